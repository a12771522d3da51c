// Patterns of operations with constants.
#include "cuda/schedule/join_soft_caps.h"

#include <bit>
#include <cmath>
#include <optional>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

/// A sum with at least this multiple of the factor has lost the function's relative accuracy.
constexpr double kLeastTerm = 0.25;

class SoftCaps {
  public:
    explicit SoftCaps(const Program& program) : p_(program), uses_(program) {}

    /// The instruction, or one that takes its place.
    std::optional<Instruction> joined(const Instruction& sum) const {
        if (!sum.is(ir::Op::fma) || !p_.is_tile(sum.result())) return {};
        const Instruction* const function = definition_if_read_once(sum.operands[0]);
        if (function == nullptr || !function->is(ir::Op::logistic) || !function->has("approx") ||
            p_.type(sum.result()).type.dtype != DType::f32) {
            return {};
        }
        const Instruction* const product = definition_if_read_once(function->operands[0]);
        const auto factor = number(sum.operands[1]), term = number(sum.operands[2]);
        if (product == nullptr || !product->is(ir::Op::mul) || !number(product->operands[1]) ||
            !factor || !term || std::abs(*term) < kLeastTerm * std::abs(*factor)) {
            return {};
        }
        return make(Op::soft_cap,
                    {product->operands[0], product->operands[1], sum.operands[1], sum.operands[2]},
                    sum.results);
    }

  private:
    /// The definition of a value that is read once.
    const Instruction* definition_if_read_once(Value value) const {
        return uses_.count(value) == 1 ? uses_.definition(value) : nullptr;
    }

    std::optional<double> number(Value value) const {
        const Instruction* made = uses_.definition(value);
        if (made != nullptr && made->is(ir::Op::broadcast)) {
            made = uses_.definition(made->operands[0]);
        }
        if (made == nullptr || !made->is(ir::Op::constant)) return {};
        return std::bit_cast<double>(made->attributes[0].numbers[0]);
    }

    const Program& p_;
    const Uses uses_;
};

}  // namespace

void join_soft_caps(Program& program) {
    if (!is_chained(program)) return;
    const Program old = program;
    const SoftCaps caps(old);
    each_instruction(program.body, [&](Instruction& made) {
        if (auto joined = caps.joined(made)) made = *std::move(joined);
    });
    remove_unused(program);
}

}  // namespace tilewright::cuda::schedule
