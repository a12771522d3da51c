// Operators and functions of texts: Python's arithmetic on literals, traced operations otherwise.
#include <cmath>
#include <optional>

#include "lang/tracer.h"
#include "mod/text.h"
#include "support/check.h"
#include "tilewright/lang/functions.h"

namespace tilewright::mod {
namespace {

using Kind = Operand::Kind;

// ---- Literals.

bool is_integral(const Operand& a) {
    return a.kind() == Kind::signed_int || a.kind() == Kind::truth;
}
std::int64_t integer(const Operand& a) {
    return static_cast<std::int64_t>(a.integer());
}
double real(const Operand& a) {
    return a.kind() == Kind::floating ? a.floating() : static_cast<double>(integer(a));
}

[[noreturn]] void too_large() {
    user_error("literal", "expected an integer result that fits in 64 bits");
}

std::int64_t int_power(std::int64_t base, std::int64_t exponent) {
    std::int64_t result = 1;
    // If |base| > 1, 64 steps overflow; other bases repeat with period 2.
    if (exponent > 64 && base >= -1 && base <= 1) exponent = 64 + exponent % 2;
    for (std::int64_t i = 0; i < exponent; ++i) {
        if (__builtin_mul_overflow(result, base, &result)) too_large();
    }
    return result;
}

std::optional<Operand> integer_binary(const std::string& op, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
        overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
        overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
        overflow = __builtin_mul_overflow(a, b, &result);
    } else if (op == "//" || op == "%") {
        if (b == 0) user_error("literal", "expected a divisor other than 0");
        if (b == -1) {  // the lowest integer cannot be negated
            overflow = op == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
        } else {
            const std::int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0));
            result = op == "//" ? quotient : a - quotient * b;
        }
    } else if (op == "**" && b >= 0) {
        result = int_power(a, b);
    } else if (op == "&") {
        result = a & b;
    } else if (op == "|") {
        result = a | b;
    } else if (op == "^") {
        result = a ^ b;
    } else if (op == "<<" || op == ">>") {
        if (b < 0 || b > 62) user_error("literal", "expected a shift of 0 to 62 but got {}", b);
        overflow = op == "<<" && __builtin_mul_overflow(a, std::int64_t{1} << b, &result);
        if (op == ">>") result = a >> b;
    } else {
        return {};
    }
    if (overflow) too_large();
    return Operand(result, {});
}

double real_binary(const std::string& op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "**") return std::pow(a, b);
    if (op == "/" || op == "//" || op == "%") {
        if (b == 0) user_error("literal", "expected a divisor other than 0");
        if (op == "/") return a / b;
        const double quotient = std::floor(a / b);
        return op == "//" ? quotient : a - quotient * b;
    }
    user_error(op.c_str(), "expected integers or bools but got a number with a point");
}

bool compare(const std::string& op, double a, double b) {
    if (op == "<") return a < b;
    if (op == "<=") return a <= b;
    if (op == ">") return a > b;
    if (op == ">=") return a >= b;
    return op == "==" ? a == b : a != b;
}

bool is_comparison(const std::string& op) {
    return op == "<" || op == "<=" || op == ">" || op == ">=" || op == "==" || op == "!=";
}

void expect_truths(const std::string& op, const Operand& a, const Operand& b) {
    for (const Operand& operand : {a, b}) {
        const DType dtype = lang::Tracer::current("mod").dtype(operand);
        if (dtype != boolean) {
            user_error(op.c_str(), "expected bools but got {}; compare first", name(dtype));
        }
    }
}

Operand literal_binary(const std::string& op, const Operand& a, const Operand& b) {
    const bool truths = a.kind() == Kind::truth && b.kind() == Kind::truth;
    if (truths && (op == "&" || op == "and")) return Operand(integer(a) && integer(b), {});
    if (truths && (op == "|" || op == "or")) return Operand(integer(a) || integer(b), {});
    if (truths && op == "^") return Operand(integer(a) != integer(b), {});
    if (is_integral(a) && is_integral(b)) {
        if (is_comparison(op)) {
            const auto order =
                static_cast<double>((integer(a) > integer(b)) - (integer(a) < integer(b)));
            return Operand(compare(op, order, 0), {});
        }
        if (const auto result = integer_binary(op, integer(a), integer(b))) return *result;
    }
    if (is_comparison(op)) return Operand(compare(op, real(a), real(b)), {});
    return Operand(real_binary(op, real(a), real(b)), {});
}

// ---- Traced values.

DType dtype_of_operand(const Operand& a) {
    return lang::Tracer::current("mod").dtype(a);
}

/// The operand as a float: integers become f32, integer literals become float literals.
Operand as_float(const Operand& a) {
    if (a.is_literal()) return Operand(real(a), {});
    return is_float(dtype_of_operand(a)) ? a : Operand(cast(a, f32), {});
}

using Arguments = std::span<const Operand>;

/// A function of lang/functions.h; literals are computed in f64. `approx` is accepted if there is
/// an approximation.
Operand elementwise(const ElementwiseFunction& function, Arguments x) {
    const std::size_t operands = function.operands;
    bool approx = false;
    if (x.size() > operands) {
        if (x.back().kind() != Kind::truth) {
            user_error(std::string(function.name).c_str(), "expected True or False for `approx`");
        }
        approx = x.back().integer() != 0;
    }
    const Operand& last = x[operands - 1];
    if (x[0].is_literal() && last.is_literal()) {
        return Operand(function.value(real(x[0]), real(last)), {});
    }
    return function.trace(x[0], last, approx);
}

Operand abs_function(Arguments x) {
    if (!x[0].is_literal()) return abs(x[0]);
    if (!is_integral(x[0])) return Operand(std::abs(real(x[0])), {});
    return integer(x[0]) < 0 ? apply_unary("-", x[0]) : Operand(integer(x[0]), {});
}

template <bool kLargest>
Operand extreme_function(Arguments x) {
    Operand result = x[0];
    for (const Operand& next : x.subspan(1)) {
        if (result.is_literal() && next.is_literal()) {
            const bool replace = kLargest ? real(next) > real(result) : real(next) < real(result);
            if (replace) result = next;
        } else {
            result = kLargest ? maximum(result, next) : minimum(result, next);
        }
    }
    return result;
}

Operand clamp_function(Arguments x) {
    return clamp(x[0], x[1], x[2]);
}
Operand where_function(Arguments x) {
    if (x[0].kind() == Kind::truth) return x[0].integer() != 0 ? x[1] : x[2];
    return where(x[0], x[1], x[2]);
}
Operand int_function(Arguments x) {
    if (x[0].is_literal()) {
        const double value = std::trunc(real(x[0]));
        if (is_integral(x[0])) return Operand(integer(x[0]), {});
        if (!(std::abs(value) < 0x1p63)) too_large();
        return Operand(static_cast<std::int64_t>(value), {});
    }
    return cast(x[0], i64);
}
Operand float_function(Arguments x) {
    return as_float(x[0]);
}

}  // namespace

Operand apply_unary(const std::string& op, const Operand& a) {
    if (!a.is_literal()) {
        if (op == "not") {
            if (dtype_of_operand(a) != boolean) {
                user_error("not", "expected a bool but got {}; compare first",
                           name(dtype_of_operand(a)));
            }
            return ~a;
        }
        if (op == "-") return -a;
        return op == "~" ? ~a : +a;
    }
    if (op == "not" || (op == "~" && a.kind() == Kind::truth)) {
        if (a.kind() != Kind::truth) user_error("not", "expected a bool but got a number");
        return Operand(integer(a) == 0, {});
    }
    if (op == "+") return a;
    if (op == "~") {
        if (!is_integral(a)) user_error("~", "expected an integer or a bool but got a float");
        return Operand(~integer(a), {});
    }
    if (!is_integral(a)) return Operand(-a.floating(), {});
    return *integer_binary("-", 0, integer(a));
}

Operand apply_binary(const std::string& op, const Operand& a, const Operand& b) {
    if (op == "and" || op == "or") expect_truths(op, a, b);
    if (a.is_literal() && b.is_literal()) return literal_binary(op, a, b);
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return as_float(a) / as_float(b);
    if (op == "//") return floordiv(a, b);
    if (op == "%") return floormod(a, b);
    if (op == "**") return pow(a, b);
    if (op == "&" || op == "and") return a & b;
    if (op == "|" || op == "or") return a | b;
    if (op == "^") return a ^ b;
    if (op == "<<") return a << b;
    if (op == ">>") return a >> b;
    if (op == "<") return a < b;
    if (op == "<=") return a <= b;
    if (op == ">") return a > b;
    if (op == ">=") return a >= b;
    return op == "==" ? a == b : a != b;
}

const TextFunction* find_function(std::string_view name) {
    static const auto kFunctions = [] {
        std::map<std::string_view, TextFunction> functions{
            {"abs", {1, 1, abs_function}},
            {"min", {2, 16, extreme_function<false>}},
            {"max", {2, 16, extreme_function<true>}},
            {"clamp", {3, 3, clamp_function}},
            {"where", {3, 3, where_function}},
            {"int", {1, 1, int_function}},
            {"float", {1, 1, float_function}},
        };
        for (const ElementwiseFunction& function : elementwise_functions()) {
            const std::size_t operands = function.operands;
            const auto apply = [&function](std::span<const Operand> x) {
                return elementwise(function, x);
            };
            functions.emplace(function.name,
                              TextFunction{operands, operands + (function.approx ? 1 : 0), apply});
        }
        return functions;
    }();
    const auto found = kFunctions.find(name);
    return found == kFunctions.end() ? nullptr : &found->second;
}

}  // namespace tilewright::mod
