// Definitions are collected first; what becomes unused is removed at the end.
#include "ir/passes/fold_factors.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ir/passes/dce.h"
#include "ir/passes/definitions.h"

namespace tilewright::ir {
namespace {

class FoldFactors {
  public:
    explicit FoldFactors(Function& function) : function_(function), definitions_(function) {}

    void run() { block(function_.body); }

    FoldFactorsReport report;

  private:
    struct Scaled {
        Value of;
        double by;
    };

    void block(Block& of) {
        std::vector<Instruction> body;
        body.swap(of.body);
        for (Instruction& made : body) {
            for (Block& inner : made.blocks) block(inner);
            before(made, of.body);
            after(made, of.body);
            of.body.push_back(std::move(made));
        }
    }

    void before(Instruction& made, std::vector<Instruction>& to) {
        if (!is_approximate(made)) return;
        sum_before(made, to);
        int factors = 0;
        Scaled operand{made.operands[0], 1};
        while (const auto scaled = product(operand.of)) {
            operand = {scaled->of, operand.by * scaled->by};
            ++factors;
        }
        if (factors < 2 || !is_usual(operand.by)) return;
        const Type type = function_.type(made.operands[0]);
        Instruction product;
        product.op = Op::mul;
        product.operands = {operand.of, append_constant(function_, to, type, operand.by)};
        product.results = {function_.add_value(type)};
        made.operands[0] = product.result();
        to.push_back(std::move(product));
        report.folded += factors - 1;
    }

    /// f((x a) b + c), where c need not be constant.
    void sum_before(Instruction& made, std::vector<Instruction>& to) {
        const Instruction* const sum = definitions_.of(made.operands[0]);
        // For another reader the sum would be computed twice.
        if (sum == nullptr || sum->op != Op::fma || definitions_.readers(sum->result()).size() > 1)
            return;
        const auto outer = product_of(*sum);
        if (!outer) return;
        const auto inner = product(outer->of);
        if (!inner || !is_usual(inner->by) || !is_usual(inner->by * outer->by)) return;
        const Type type = function_.type(sum->result());
        Instruction joined = *sum;
        joined.operands = {inner->of, append_constant(function_, to, type, inner->by * outer->by),
                           sum->operands[2]};
        joined.results = {function_.add_value(type)};
        made.operands[0] = joined.result();
        to.push_back(std::move(joined));
        ++report.folded;
    }

    void after(Instruction& made, std::vector<Instruction>& to) {
        const auto scaled = product_of(made);
        if (!scaled) return;
        const auto added = made.op == Op::fma ? constant_of(made.operands[2]) : 0.0;
        if (!added) return;
        const Instruction* const sum = definitions_.of(scaled->of);
        // Another reader would keep the function's result in registers.
        if (sum == nullptr || sum->op != Op::fma || definitions_.readers(scaled->of).size() > 1) {
            return;
        }
        const Instruction* const function = definitions_.of(sum->operands[0]);
        const auto factor = constant_of(sum->operands[1]), term = constant_of(sum->operands[2]);
        if (function == nullptr || !is_approximate(*function) || !factor || !term) return;
        if (!is_usual(*factor * scaled->by) || !is_usual(*term * scaled->by)) return;
        const double constant = *term * scaled->by + *added;
        const Type type = function_.type(made.result());
        const Value result = made.result();
        const Value by = append_constant(function_, to, type, *factor * scaled->by),
                    plus = append_constant(function_, to, type, constant);
        made.op = Op::fma;
        made.operands = {sum->operands[0], by, plus};
        made.results = {result};
        made.attributes = {};
        ++report.folded;
    }

    bool is_approximate(const Instruction& made) const {
        return (made.op == Op::logistic || made.op == Op::tanh || made.op == Op::exp ||
                made.op == Op::exp2) &&
               function_.type(made.result()).dtype == DType::f32 &&
               made.get<MathAttributes>().approx;
    }
    /// Far from overflow, and from where bits are lost.
    static bool is_usual(double factor) {
        constexpr double kMost = 0x1p60;
        return std::abs(factor) < kMost && std::abs(factor) > 1 / kMost;
    }

    /// A constant, of all elements.
    std::optional<double> constant_of(Value value) const {
        const Instruction* made = definitions_.of(value);
        while (made != nullptr && (made->op == Op::broadcast || made->op == Op::expand_dims)) {
            value = made->operands[0];
            made = definitions_.of(value);
        }
        return definitions_.constant(value);
    }
    std::optional<Scaled> product(Value value) const {
        const Instruction* const made = definitions_.of(value);
        return made == nullptr || made->op != Op::mul ? std::nullopt : product_of(*made);
    }
    /// Of a `mul`, or of the product in an `fma`.
    std::optional<Scaled> product_of(const Instruction& made) const {
        if (made.op != Op::mul && made.op != Op::fma) return std::nullopt;
        if (function_.type(made.result()).dtype != DType::f32) return std::nullopt;
        if (const auto by = constant_of(made.operands[1])) return Scaled{made.operands[0], *by};
        if (const auto by = constant_of(made.operands[0])) return Scaled{made.operands[1], *by};
        return std::nullopt;
    }

    Function& function_;
    Definitions definitions_;
};

}  // namespace

FoldFactorsReport fold_factors(Function& function) {
    FoldFactors pass(function);
    pass.run();
    if (pass.report.changed()) dce(function);
    return pass.report;
}

}  // namespace tilewright::ir
