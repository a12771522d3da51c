// Readers are collected first; the rewrite is a walk over the function's own block.
#include "ir/passes/soft_caps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ir/passes/dce.h"
#include "ir/passes/definitions.h"

namespace tilewright::ir {
namespace {

class SoftCaps {
  public:
    explicit SoftCaps(Function& function) : function_(function), definitions_(function) {}

    void run() {
        std::vector<Instruction> body;
        body.swap(function_.body.body);
        for (Instruction& made : body) {
            const bool found = made.op == Op::tanh && is_soft_cap(made);
            if (found) {
                rewrite(made);
                ++report.functions;
            } else {
                function_.body.body.push_back(std::move(made));
            }
        }
    }

    SoftCapsReport report;

    /// Divisions by usual constants, as the scores of a soft cap that is written `c tanh(s / c)`,
    /// become multiplications by their reciprocals.
    void multiply() {
        std::vector<Instruction> body;
        body.swap(function_.body.body);
        for (Instruction& made : body) {
            if (made.op == Op::div && function_.type(made.result()).dtype == DType::f32) {
                const auto by = definitions_.constant(made.operands[1]);
                if (by && is_usual(*by)) multiply(made, *by);
            }
            function_.body.body.push_back(std::move(made));
        }
    }

    /// Divisions before exact soft caps, and those whose quotient is a result. Only these: a
    /// quotient that is rounded or compared may not change at all.
    void multiply_exact_caps() {
        std::vector<Instruction> body;
        body.swap(function_.body.body);
        for (Instruction& made : body) {
            if (made.op == Op::div && function_.type(made.result()).dtype == DType::f32) {
                const auto by = definitions_.constant(made.operands[1]);
                const std::vector<Instruction>& readers = definitions_.readers(made.result());
                const bool only = std::all_of(readers.begin(), readers.end(), [&](const auto& to) {
                    return to.op == Op::yield || (to.op == Op::tanh && is_soft_cap(to));
                });
                if (by && is_usual(*by) && only) {
                    multiply(made, *by);
                    ++report.divisions;
                }
            }
            function_.body.body.push_back(std::move(made));
        }
    }

    void join_factors() {
        std::vector<Instruction> body;
        body.swap(function_.body.body);
        for (Instruction& made : body) {
            join_factors(made, function_.body.body);
            function_.body.body.push_back(std::move(made));
        }
    }

    bool has_soft_cap() const {
        return std::any_of(
            function_.body.body.begin(), function_.body.body.end(),
            [&](const Instruction& made) { return made.op == Op::tanh && is_soft_cap(made); });
    }

    /// What else a function with soft caps may lose: (1 - t)(1 + t) and 1 - t t, the derivative of
    /// a tanh t whose relative error does not matter, become one multiply-add.
    void simplify() {
        std::vector<Instruction> body;
        body.swap(function_.body.body);
        for (Instruction& made : body) {
            if (const auto function = squared(made)) {
                const Type type = function_.type(made.result());
                std::vector<Instruction>& to = function_.body.body;
                const Value one = append_constant(function_, to, type, 1);
                const Value negative = append(Op::neg, {*function}, function_.add_value(type));
                append(Op::fma, {negative, *function, one}, made.result());
            } else {
                join_factors(made, function_.body.body);
                function_.body.body.push_back(std::move(made));
            }
        }
    }

  private:
    void multiply(Instruction& division, double by) {
        const Type type = function_.type(division.result());
        division.op = Op::mul;
        division.operands[1] = append_constant(function_, function_.body.body, type, 1 / by);
    }

    /// t, where an instruction is 1 - t^2 and t a tanh that has been replaced.
    std::optional<Value> squared(const Instruction& made) const {
        if (made.operands.size() != 2 || function_.type(made.result()).dtype != DType::f32) {
            return {};
        }
        const Instruction *const a = definitions_.of(made.operands[0]), *const b = definitions_.of(
                                                                            made.operands[1]);
        if (made.op == Op::sub && definitions_.constant(made.operands[0]) == 1.0) {
            const bool is_square =
                b != nullptr && b->op == Op::mul && b->operands[0] == b->operands[1];
            return is_square && is_replaced(b->operands[0]) ? std::optional(b->operands[0])
                                                            : std::nullopt;
        }
        if (made.op != Op::mul || a == nullptr || b == nullptr) return {};
        const Instruction& sum = a->op == Op::add ? *a : *b;
        const Instruction& difference = a->op == Op::add ? *b : *a;
        if (sum.op != Op::add || difference.op != Op::sub) return {};
        const Value function = difference.operands[1];
        const bool left = sum.operands[0] == function;
        if (!left && sum.operands[1] != function) return {};
        if (definitions_.constant(difference.operands[0]) != 1.0 ||
            definitions_.constant(sum.operands[left ? 1 : 0]) != 1.0) {
            return {};
        }
        return is_replaced(function) ? std::optional(function) : std::nullopt;
    }
    bool is_replaced(Value value) const {
        const Instruction* const made = definitions_.of(value);
        if (made == nullptr || made->op != Op::fma) return false;
        const Instruction* const function = definitions_.of(made->operands[0]);
        return function != nullptr && function->op == Op::logistic &&
               function->get<MathAttributes>().approx;
    }

    /// The constant factors of a product of products, as one.
    void join_factors(Instruction& made, std::vector<Instruction>& to) {
        if (!is_product(made)) return;
        const std::vector<Instruction>& readers = definitions_.readers(made.result());
        if (readers.size() == 1 && is_product(readers[0])) return;  // joined there
        std::vector<Value> factors;
        double constant = 1;
        int constants = 0;
        if (!collect(made, factors, constant, constants) || constants < 2 || factors.size() < 2 ||
            !is_usual(constant)) {
            return;
        }
        const Type type = function_.type(made.result());
        const bool is_one = static_cast<float>(constant) == 1.0f;
        if (!is_one) factors.push_back(append_constant(function_, to, type, constant));
        Value product = factors[0];
        for (std::size_t i = 1; i + 1 < factors.size(); ++i) {
            product = append(Op::mul, {product, factors[i]}, function_.add_value(type));
        }
        made.operands = {product, factors.back()};
    }
    bool is_product(const Instruction& made) const {
        return made.op == Op::mul && function_.type(made.result()).dtype == DType::f32;
    }
    /// Not so large or small that the order of factors might matter.
    static bool is_usual(double constant) {
        constexpr double kMost = 0x1p20;
        return std::abs(constant) <= kMost && std::abs(constant) >= 1 / kMost;
    }
    /// False where a constant is unusual.
    bool collect(const Instruction& made, std::vector<Value>& factors, double& constant,
                 int& constants) const {
        for (Value operand : made.operands) {
            const Instruction* const inner = definitions_.of(operand);
            if (const auto by = definitions_.constant(operand)) {
                if (!is_usual(*by)) return false;
                constant *= *by;
                ++constants;
            } else if (inner != nullptr && is_product(*inner) && !squared(*inner) &&
                       definitions_.readers(operand).size() == 1) {
                if (!collect(*inner, factors, constant, constants)) return false;
            } else {
                factors.push_back(operand);
            }
        }
        return true;
    }

    bool is_soft_cap(const Instruction& made) const {
        const Value result = made.result();
        const std::vector<Instruction>& readers = definitions_.readers(result);
        return function_.type(result).dtype == DType::f32 && !made.get<MathAttributes>().approx &&
               std::all_of(readers.begin(), readers.end(),
                           [&](const Instruction& reader) { return is_tolerant(reader, result); });
    }

    /// Does a reader of a tanh need no relative accuracy? Nested blocks yield to unknown readers.
    bool is_tolerant(const Instruction& reader, Value result) const {
        constexpr double kMost = 128;
        if (reader.operands.size() != 2) return false;
        const Value other = reader.operands[reader.operands[0] == result ? 1 : 0];
        const std::optional<double> constant = definitions_.constant(other);
        if (reader.op == Op::mul) {
            return other == result || (constant && std::abs(*constant) <= kMost);
        }
        return (reader.op == Op::add || reader.op == Op::sub) && constant.has_value();
    }

    Value append(Op op, std::vector<Value> operands, Value result) {
        Instruction made;
        made.op = op;
        made.operands = std::move(operands);
        made.results = {result};
        if (op == Op::logistic) made.attributes = MathAttributes{.approx = true};
        function_.body.body.push_back(std::move(made));
        return result;
    }

    void rewrite(const Instruction& tanh) {
        const Type type = function_.type(tanh.result());
        std::vector<Instruction>& to = function_.body.body;
        const Value two = append_constant(function_, to, type, 2),
                    minus_one = append_constant(function_, to, type, -1);
        const Value doubled = append(Op::mul, {tanh.operands[0], two}, function_.add_value(type));
        const Value logistic = append(Op::logistic, {doubled}, function_.add_value(type));
        append(Op::fma, {logistic, two, minus_one}, tanh.result());
    }

    Function& function_;
    Definitions definitions_;
};

}  // namespace

SoftCapsReport soft_caps(Function& function) {
    SoftCaps caps(function);
    caps.run();
    if (caps.report.changed()) {
        SoftCaps(function).multiply();
        SoftCaps(function).simplify();
        dce(function);
    }
    return caps.report;
}

SoftCapsReport exact_soft_caps(Function& function) {
    SoftCaps caps(function);
    if (!caps.has_soft_cap()) return {};
    caps.multiply_exact_caps();
    if (caps.report.changed()) {
        SoftCaps(function).join_factors();
        dce(function);
    }
    return caps.report;
}

}  // namespace tilewright::ir
