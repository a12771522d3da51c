// Index tiles, recomputed for each reader.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The tiles that follow from constants, positions and scalars alone.
class IndexTiles {
  public:
    explicit IndexTiles(const Program& program);
    bool contains(Value value) const { return values_.contains(value); }

  private:
    std::set<Value> values_;
};

/// Gives every reader of an index tile its own copy of the computation, so that the copies may have
/// different layouts and take no registers between their readers.
void materialise(Program& program);

}  // namespace tilewright::cuda::schedule
