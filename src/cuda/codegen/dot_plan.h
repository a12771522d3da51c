// How a dot is computed: instruction, warps, and the layouts of its accumulator and operands.
#pragma once

#include <map>

#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/layout.h"

namespace tilewright::cuda {

struct DotPlan {
    enum class Unit : std::uint8_t {
        mma16,  ///< m16n8k16, f16 or bf16 operands, f32 accumulator
        mma8,   ///< m16n8k32, i8 or u8 operands, i32 accumulator
        tf32,   ///< m16n8k8
        f64,    ///< m8n8k4
        fma,    ///< one multiply-add at a time, any dtype and shape
    };
    Unit unit = Unit::fma;
    DType operand = DType::f32;  ///< element type of the operands in shared memory
    std::int64_t batch = 1, m = 1, n = 1, k = 1;
    Layout accumulator;  ///< of the result, [.., m, n]
    Layout a;            ///< of the logical operand [.., m, k], as instructions read it
};

/// `chained`: the result feeds another dot as its left operand, or the reverse; then every warp has
/// whole rows, so that accumulators become operands in place.
DotPlan plan_dot(const ir::Function& function, const ir::Instruction& dot, int warps, bool chained);

/// The plans of all dots.
using DotPlans = std::map<const ir::Instruction*, DotPlan>;
DotPlans plan_dots(const KernelFacts& facts);

}  // namespace tilewright::cuda
