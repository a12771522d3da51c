// Masks evaluated element by element, by the CPU tile machine or by a GPU's interpreter.
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

/// A mask as one function (b, h, q, kv, arrays...) -> bool and the arrays it reads.
struct MaskFunction {
    std::shared_ptr<const ir::Function> function;
    std::vector<Tensor> arrays;  ///< one per Ref parameter, on one device
    std::string text;            ///< the function as text, where it may be found again by that
    /// Set where the arrays are on a GPU.
    std::shared_ptr<const Bytecode> bytecode = {};

    /// Of a mask mod; of a score mod: where the score 0 does not become -inf. Where an array is on
    /// a GPU, all are brought there, or to the CPU if the interpreter does not know the function.
    /// UserError when `mod` is neither, or a graph is being captured; `op` names the
    /// caller.
    static MaskFunction of(const char* op, const Mod& mod);
    /// The same of a function that reads these captures.
    static MaskFunction of(const char* op, std::shared_ptr<const ir::Function> function,
                           std::string text, const std::vector<Capture>& captures);
    std::vector<ir::RefArgument> arguments() const;
    /// Ranges of the arrays.
    std::vector<std::shared_ptr<const ir::RangeTree>> range_trees() const;
};

/// First pair of a 64 x 64 piece: b, h, q, kv.
using Origin = twd::mask::Place;

/// A mask compiled for pieces, for the device of its arrays; immutable.
class ExactMask {
  public:
    explicit ExactMask(const MaskFunction& mask);

    /// The pieces at these places, in parallel. Pairs beyond the mask are evaluated, too: the
    /// caller clips.
    std::vector<Atom> evaluate(std::span<const Origin> origins) const;

  private:
    std::vector<Atom> evaluate_on_cpu(std::span<const Origin> origins) const;

    std::optional<GpuPieces> gpu_;  ///< in place of what follows
    std::shared_ptr<const run::Executable> program_;
    std::vector<ir::RefArgument> arrays_;
    std::vector<Tensor> owners_;
};

/// Every pair: bool (batch, heads, q_len, kv_len).
Tensor evaluate_dense(const MaskFunction& mask, std::int64_t batch, std::int64_t heads,
                      std::int64_t q_len, std::int64_t kv_len);

}  // namespace tilewright::mask
