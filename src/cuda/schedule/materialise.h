// Index tiles: computed by each reader for itself.
#pragma once

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Does a tile follow from constants, positions and scalars alone?
class IndexTiles {
  public:
    explicit IndexTiles(const Program& program);
    bool contains(Value value) const { return values_.contains(value); }

  private:
    std::set<Value> values_;
};

/// Gives every reader of an index tile a copy of what computes it, so that the copies may have
/// different layouts and need no registers between their readers.
void materialise(Program& program);

}  // namespace tilewright::cuda::schedule
