// What the passes of code generation and lowering ask about a kernel.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "cuda/codegen/analysis.h"
#include "cuda/codegen/generate.h"
#include "cuda/codegen/layout.h"

namespace tilewright::cuda {

/// The operand of a dot, without transposes that the dot absorbs.
struct DotOperand {
    ir::Value value;
    bool transposed = false;  ///< stored [.., k, m] or [.., n, k]
};

/// A kernel, its target and its values' facts. The function and the target outlive it.
class KernelFacts : public Analysis {
  public:
    KernelFacts(const ir::Function& function, const Target& target, int warps, int stages);

    const ir::Function& function() const { return function_; }
    const ir::Type& type(ir::Value value) const { return function_.type(value); }
    int warps() const { return warps_; }
    /// Of loops with dots; 0: as many as fit.
    int stages() const { return stages_; }

    /// Is a Ref's last axis contiguous, and all its rows aligned to 16 bytes?
    bool has_vectors(ir::Value ref) const;
    /// Row-major without gaps?
    bool is_dense(ir::Value ref) const;

    /// Does the index of an access along a dimension stay inside in every program?
    bool stays_inside(const ir::Instruction& access, std::size_t dim) const;
    /// The number of aligned neighbours in memory along the last axis, the tile's `axis`; 1 when
    /// there are none.
    int contiguous_vector(const ir::Instruction& access, int* axis) const;
    /// Elements that a thread accesses at once in this layout, without a mask.
    int access_vector(const ir::Instruction& access, const Layout& layout) const;
    /// May elements of a tile differ along an axis, as far as operations tell?
    bool varies_along(ir::Value value, int axis) const;
    /// Is it a load of a tile from global memory?
    bool is_tile_load(const ir::Instruction& made) const;

    DotOperand operand_of(const ir::Instruction& dot, int side) const;
    /// The f32 operand of a cast to f16 or bf16, which is rounded where it is packed; else the
    /// value itself.
    ir::Value before_rounding(ir::Value value) const;
    /// Is a value written where it is read, in any layout that is wanted there?
    bool is_lazy(const ir::Instruction& made) const;
    /// Does a reduction (along `axis`; -1: any) read the value, perhaps through elementwise
    /// operations?
    bool is_reduced(ir::Value value, int axis = -1) const;

  private:
    const RefFacts* facts_of(ir::Value ref) const;

    const Target& target_;
    int warps_ = 4, stages_ = 0;
    std::map<ir::Value, std::size_t> ref_order_;  ///< global Refs by parameter order
    mutable std::map<std::pair<ir::Value, int>, bool> varies_;
};

/// The roots of the Refs that a loop writes.
std::set<ir::Value> written_in(const KernelFacts& facts, const ir::Instruction& loop);
/// Can a scalar of a loop be computed in advance, for any value of the induction variable?
/// `inside`: the values of the loop.
bool is_computable(const KernelFacts& facts, ir::Value value, const std::set<ir::Value>& inside,
                   ir::Value induction);

}  // namespace tilewright::cuda
