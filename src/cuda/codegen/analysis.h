// Facts about a kernel's values that code generation needs: those of the IR, and which Refs it
// writes.
#pragma once

#include <map>
#include <set>

#include "ir/access.h"
#include "ir/function.h"
#include "ir/passes/facts.h"

namespace tilewright::cuda {

/// What a call promises about one array, beyond its type.
struct RefFacts {
    /// The last dimension has stride 1; base address and all other strides are multiples of 16
    /// bytes.
    bool vectors = false;
    /// Row-major without gaps: strides follow from the extents.
    bool dense = false;
    /// TMA can address it: `vectors`, every extent is between 1 and 2^30 - 1, all strides are
    /// positive and below 2^40 bytes.
    bool tensor = false;
    /// Where TMA cannot address it: the bytes, 8 or 4, that divide its address and all strides but
    /// the last, so that threads can copy rows to shared memory in such pieces; else 0.
    int copy_bytes = 0;
    bool operator==(const RefFacts&) const = default;
};

class Analysis : public ir::Facts {
  public:
    explicit Analysis(const ir::Function& function);

    /// Cheap to recompute in any layout: constants, iotas, scalars, views and cheap ops on them.
    bool is_index_math(ir::Value value) const;
    /// Values defined anywhere inside an instruction's blocks, block arguments included.
    static std::set<ir::Value> values_inside(const ir::Instruction& instruction);

    /// Does the kernel write the Ref or one that may share its memory?
    bool is_written(ir::Value ref) const { return written_.count(root(ref)) != 0; }
    /// The representative of all Refs that may share memory with this one.
    ir::Value root(ir::Value ref) const;

  private:
    int index_math_size(ir::Value value) const;

    std::set<ir::Value> written_;
    mutable std::map<ir::Value, int> index_math_;
};

}  // namespace tilewright::cuda
