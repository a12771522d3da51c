// Readers are collected first; the rewrite is a walk over all blocks.
#include "ir/passes/error_functions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ir/passes/dce.h"
#include "ir/passes/definitions.h"
#include "ir/passes/facts.h"

namespace tilewright::ir {
namespace {

// -Q(t) / t from the highest power on, where erfc(t) = 2^-Q(t): a minimax fit on [0, 9.4] to an
// absolute error of 2^-20.6 or, where that is less, a relative one of 2^-11.1 up to 3.9, from
// where it may grow. The highest coefficient is negative, so that 2^-Q vanishes at infinity.
constexpr std::array kCoefficients = {-0x1.3c2140p-17, 0x1.619864p-12, -0x1.257254p-8,
                                      0x1.07d618p-5,   -0x1.347734p-3, -0x1.d5f742p-1,
                                      -0x1.a0c130p+0};

class ErrorFunctions {
  public:
    explicit ErrorFunctions(Function& function) : function_(function), definitions_(function) {}

    ErrorFunctionsReport run() {
        walk(function_.body, [&](const Instruction& made) {
            if (made.op == Op::erf && is_rounded_sum(made)) {
                for (const Instruction& sum : definitions_.readers(made.result())) {
                    sums_[sum.result()] = made.operands[0];
                }
            }
        });
        if (!sums_.empty()) rewrite(function_.body);
        return {static_cast<int>(sums_.size())};
    }

  private:
    bool is_rounded_sum(const Instruction& erf) {
        const std::vector<Instruction>& readers = definitions_.readers(erf.result());
        return function_.type(erf.result()).dtype == DType::f32 && !readers.empty() &&
               std::all_of(readers.begin(), readers.end(), [&](const Instruction& sum) {
                   return sum.op == Op::add &&
                          constant(sum.operands[sum.operands[0] == erf.result() ? 1 : 0]) == 1.0 &&
                          is_rounded(sum.result(), 0);
               });
    }

    /// Do all that read a value multiply it, add other values to it, and round it in the end?
    bool is_rounded(Value value, int depth) {
        constexpr int kDeepest = 16;
        if (const auto known = rounded_.find(value); known != rounded_.end()) return known->second;
        const std::vector<Instruction>& readers = definitions_.readers(value);
        return rounded_[value] =
                   depth < kDeepest && !readers.empty() &&
                   std::all_of(readers.begin(), readers.end(), [&](const Instruction& reader) {
                       if (reader.results.size() != 1) return false;
                       const DType to = function_.type(reader.result()).dtype;
                       if (reader.op == Op::cast) return is_float(to) && size_of(to) <= 2;
                       return to == DType::f32 && carries(reader, value) &&
                              is_rounded(reader.result(), depth + 1);
                   });
    }
    /// A term that is a constant, or one of a few, might take away all but the error.
    bool carries(const Instruction& reader, Value value) const {
        if (is_view(reader.op) || reader.op == Op::neg || reader.op == Op::mul) return true;
        if (reader.op == Op::select) return reader.operands[0] != value;
        if (reader.op == Op::fma) {
            return reader.operands[2] != value ? !has_steps(reader.operands[2])
                                               : !has_steps(reader.operands[0]);
        }
        return (reader.op == Op::add || reader.op == Op::sub) &&
               std::none_of(reader.operands.begin(), reader.operands.end(),
                            [&](Value term) { return has_steps(term); });
    }
    /// Is each element one of a few constants, as a sign or a mask is?
    bool has_steps(Value value, int depth = 0) const {
        constexpr int kDeepest = 8;
        const Instruction* const made = definitions_.of(value);
        if (made == nullptr || depth > kDeepest) return false;
        if (made->op == Op::constant || made->op == Op::sign) return true;
        if (made->op == Op::cast && function_.type(made->operands[0]).dtype == DType::boolean) {
            return true;
        }
        if (made->op == Op::select) {
            return has_steps(made->operands[1], depth + 1) &&
                   has_steps(made->operands[2], depth + 1);
        }
        return (is_view(made->op) || made->op == Op::neg) &&
               has_steps(made->operands[0], depth + 1);
    }
    std::optional<double> constant(Value value) const {
        const Instruction* made = definitions_.of(value);
        while (made != nullptr && is_view(made->op)) {
            value = made->operands[0];
            made = definitions_.of(value);
        }
        return definitions_.constant(value);
    }

    void rewrite(Block& block) {
        std::vector<Instruction> body;
        body.swap(block.body);
        for (Instruction& made : body) {
            for (Block& inner : made.blocks) rewrite(inner);
            const auto found = made.results.size() == 1 ? sums_.find(made.result()) : sums_.end();
            if (found == sums_.end()) {
                block.body.push_back(std::move(made));
            } else {
                append_sum(found->second, made.result(), block.body);
            }
        }
    }

    void append_sum(Value x, Value result, std::vector<Instruction>& to) {
        const Type type = function_.type(result);
        const auto append = [&](Op op, std::vector<Value> operands, Value of) {
            Instruction made;
            made.op = op;
            made.operands = std::move(operands);
            made.results = {of};
            if (op == Op::exp2) made.attributes = MathAttributes{.approx = true};
            to.push_back(std::move(made));
            return of;
        };
        const auto next = [&](Op op, std::vector<Value> operands) {
            return append(op, std::move(operands), function_.add_value(type));
        };
        const auto number = [&](double value) {
            return append_constant(function_, to, type, value);
        };
        const Value size = next(Op::abs, {x});
        Value power = number(kCoefficients[0]);
        for (std::size_t i = 1; i < kCoefficients.size(); ++i) {
            power = next(Op::fma, {power, size, number(kCoefficients[i])});
        }
        const Value rest = next(Op::exp2, {next(Op::mul, {power, size})});
        const Value most = next(Op::sub, {number(2), rest});
        const Value below =
            append(Op::lt, {x, number(0)}, function_.add_value({DType::boolean, type.shape}));
        append(Op::select, {below, rest, most}, result);
    }

    Function& function_;
    Definitions definitions_;
    std::map<Value, Value> sums_;    ///< the arguments of erf by the sums
    std::map<Value, bool> rounded_;  ///< what is_rounded found
};

}  // namespace

ErrorFunctionsReport error_functions(Function& function) {
    bool has_any = false;
    walk(function.body, [&](const Instruction& made) { has_any |= made.op == Op::erf; });
    if (!has_any) return {};
    const ErrorFunctionsReport report = ErrorFunctions(function).run();
    if (report.changed()) dce(function);
    return report;
}

}  // namespace tilewright::ir
