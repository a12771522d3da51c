// Mask functions as bytecode for the GPU's interpreter.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/function.h"
#include "mask/device/interpreter_parameters.h"
#include "tilewright/tensor.h"

namespace tilewright::mask {

/// A mask function as straight-line code over registers, as `twd::mask` describes it.
struct Bytecode {
    std::vector<twd::mask::Step> steps;
    std::vector<unsigned long long> constants;
    std::array<int, 4> scalars{-1, -1, -1, -1};  ///< registers of b, h, q, kv; -1: not read
    int result = 0;
    /// What the interpreter cannot compute with the CPU's exact bits; the rest is then of no use.
    std::string refusal;

    /// Translates a function (b, h, q, kv, arrays...) -> bool, for which only the arrays' extents
    /// are read.
    static Bytecode of(const ir::Function& mask, std::span<const Tensor> arrays);
};

}  // namespace tilewright::mask
