// Masks evaluated element by element by the CPU tile machine.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpu/machine.h"
#include "ir/function.h"
#include "ir/launch.h"
#include "mask/mask_data.h"
#include "tilewright/mod.h"

namespace tilewright::mask {

/// A mask as one function (b, h, q, kv, arrays...) -> bool and the arrays it reads.
struct MaskFunction {
    std::shared_ptr<const ir::Function> function;
    std::vector<Tensor> arrays;  ///< one per Ref parameter, in CPU memory
    std::string text;            ///< the function as text, where it may be found again by that

    /// Of a mask mod; of a score mod: where the score 0 does not become -inf. UserError when `mod`
    /// is neither, or reads an array of another device; `op` names the caller.
    static MaskFunction of(const char* op, const Mod& mod);
    std::vector<ir::RefArgument> arguments() const;
};

/// First pair of a 64 x 64 piece.
struct Origin {
    std::int64_t b = 0, h = 0, q = 0, kv = 0;
};

/// A mask compiled for pieces; immutable.
class ExactMask {
  public:
    explicit ExactMask(const MaskFunction& mask);

    /// The pieces at these places, in parallel. Pairs beyond the mask are evaluated, too: the
    /// caller clips.
    std::vector<Atom> evaluate(std::span<const Origin> origins) const;

  private:
    std::shared_ptr<const cpu::Program> program_;
    std::vector<ir::RefArgument> arrays_;
    std::vector<Tensor> owners_;
};

/// Every pair: bool (batch, heads, q_len, kv_len).
Tensor evaluate_dense(const MaskFunction& mask, std::int64_t batch, std::int64_t heads,
                      std::int64_t q_len, std::int64_t kv_len);

}  // namespace tilewright::mask
