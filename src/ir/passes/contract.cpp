// Contraction: an add and the mul before it become one fma.
#include "ir/passes/contract.h"

#include <algorithm>

namespace tilewright::ir {
namespace {

class Contractor {
  public:
    explicit Contractor(Function& function) : function_(function), reads_(function.num_values()) {
        walk(function.body, [&](const Instruction& instruction) {
            for (Value operand : instruction.operands) ++reads_[operand.id];
        });
    }

    void run(Block& block) {
        for (Instruction& instruction : block.body) {
            for (Block& inner : instruction.blocks) run(inner);
        }
        std::vector<Instruction>& body = block.body;
        for (std::size_t i = 0; i < body.size(); ++i) {
            if (body[i].op == Op::add && is_float_tile(body[i].result())) contract(body, i);
        }
        std::erase_if(body, [&](const Instruction& instruction) {
            return instruction.op == Op::mul && reads_[instruction.result().id] == kTaken;
        });
    }

    ContractReport report;

  private:
    static constexpr int kTaken = -1;

    bool is_float_tile(Value value) const {
        const Type& type = function_.type(value);
        return !type.is_scalar() && (type.dtype == DType::f32 || type.dtype == DType::f64);
    }

    void contract(std::vector<Instruction>& body, std::size_t at) {
        Instruction& add = body[at];
        for (const std::size_t side : {0U, 1U}) {
            const Value product = add.operands[side];
            if (reads_[product.id] != 1) continue;
            const auto mul = std::find_if(
                body.begin(), body.begin() + static_cast<long>(at), [&](const Instruction& before) {
                    return before.op == Op::mul && before.result() == product;
                });
            if (mul == body.begin() + static_cast<long>(at)) continue;
            const Value other = add.operands[1 - side];
            add.op = Op::fma;
            add.operands = {mul->operands[0], mul->operands[1], other};
            reads_[product.id] = kTaken;
            ++report.multiplications;
            return;
        }
    }

    Function& function_;
    std::vector<int> reads_;
};

}  // namespace

ContractReport contract(Function& function) {
    Contractor contractor(function);
    contractor.run(function.body);
    return contractor.report;
}

}  // namespace tilewright::ir
