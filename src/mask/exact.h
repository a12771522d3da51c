// Masks evaluated pair by pair, by the CPU's tile machine or by a GPU's interpreter.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"
#include "ir/passes/intervals.h"
#include "mask/bytecode.h"
#include "mask/gpu.h"
#include "mask/mask_data.h"
#include "run/executable.h"
#include "tilewright/mod.h"

namespace tilewright::mask {

/// A mask as one function (b, h, q, kv, arrays...) -> bool, and the arrays that it reads.
struct MaskFunction {
    std::shared_ptr<const ir::Function> function;
    std::vector<Tensor> arrays;  ///< one per Ref parameter, all on one device
    std::string text;            ///< the function as text, by which it can be cached; may be empty
    /// Set if the arrays are on a GPU.
    std::shared_ptr<const Bytecode> bytecode = {};

    /// The function of a mask mod or, for a score mod, where the score 0 does not become -inf. If
    /// any array is on a GPU, all are moved there, or to the CPU if the interpreter does not
    /// support the function. UserError if `mod` is neither, or if a graph is being captured; `op`
    /// names the caller.
    static MaskFunction of(const char* op, const Mod& mod);
    /// The same for a function that reads these captures.
    static MaskFunction of(const char* op, std::shared_ptr<const ir::Function> function,
                           std::string text, const std::vector<Capture>& captures);
    std::vector<ir::RefArgument> arguments() const;
    /// The ranges of the arrays' elements.
    std::vector<std::shared_ptr<const ir::RangeTree>> range_trees() const;
};

/// The first pair of a 64 x 64 piece: b, h, q, kv.
using Origin = twd::mask::Place;

/// A mask compiled to evaluate pieces on the device of its arrays; immutable.
class ExactMask {
  public:
    explicit ExactMask(const MaskFunction& mask);

    /// Evaluates the pieces at these places in parallel. Pairs outside the mask are evaluated, too:
    /// the caller clips them.
    std::vector<Atom> evaluate(std::span<const Origin> origins) const;

  private:
    std::vector<Atom> evaluate_on_cpu(std::span<const Origin> origins) const;

    std::optional<GpuPieces> gpu_;  ///< replaces the members below
    std::shared_ptr<const run::Executable> program_;
    std::vector<ir::RefArgument> arrays_;
    std::vector<Tensor> owners_;
};

/// Evaluates every pair: bool (batch, heads, q_len, kv_len).
Tensor evaluate_dense(const MaskFunction& mask, std::int64_t batch, std::int64_t heads,
                      std::int64_t q_len, std::int64_t kv_len);

}  // namespace tilewright::mask
