// Operators and functions of texts: Python's arithmetic on literals, traced operations otherwise.
#include <cmath>
#include <optional>

#include "lang/tracer.h"
#include "mod/text.h"
#include "support/check.h"

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
    // |base| > 1 overflows within 64 steps; others repeat with period 2.
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
        if (b == -1) {  // the lowest integer has no negative
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

/// The operand as a float: integers become f32, or a literal with a point.
Operand as_float(const Operand& a) {
    if (a.is_literal()) return Operand(real(a), {});
    return is_float(dtype_of_operand(a)) ? a : Operand(cast(a, f32), {});
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

namespace {

using Arguments = std::span<const Operand>;

/// A function of one number: literals in f64.
template <double (*OnLiteral)(double), Tile (*OnTile)(Operand)>
Operand number_function(Arguments x) {
    if (x[0].is_literal()) return Operand(OnLiteral(real(x[0])), {});
    return OnTile(x[0]);
}

Tile exact_exp(Operand x) {
    return exp(x);
}
Tile exact_exp2(Operand x) {
    return exp2(x);
}
Tile exact_log(Operand x) {
    return log(x);
}
Tile exact_log2(Operand x) {
    return log2(x);
}
Tile exact_sigmoid(Operand x) {
    return sigmoid(x);
}
Tile exact_sqrt(Operand x) {
    return sqrt(x);
}
Tile exact_sin(Operand x) {
    return sin(x);
}
Tile exact_cos(Operand x) {
    return cos(x);
}
Tile exact_relu(Operand x) {
    return relu(x);
}
Tile exact_softplus(Operand x) {
    return softplus(x);
}
Tile exact_square(Operand x) {
    return square(x);
}
double literal_relu(double x) {
    return x < 0 ? 0 : x;
}
double literal_softplus(double x) {
    return std::fmax(x, 0) + std::log1p(std::exp(-std::abs(x)));
}
double literal_square(double x) {
    return x * x;
}
double literal_sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

Operand tanh_function(Arguments x) {
    const bool approx = x.size() > 1 && x[1].kind() == Kind::truth && x[1].integer() != 0;
    if (x.size() > 1 && x[1].kind() != Kind::truth) {
        user_error("tanh", "expected True or False for `approx`");
    }
    if (x[0].is_literal()) return Operand(std::tanh(real(x[0])), {});
    return tanh(x[0], approx);
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

const TextFunction* find_function(std::string_view name) {
    static const std::map<std::string_view, TextFunction> kFunctions{
        {"exp", {1, 1, number_function<std::exp, exact_exp>}},
        {"exp2", {1, 1, number_function<std::exp2, exact_exp2>}},
        {"log", {1, 1, number_function<std::log, exact_log>}},
        {"log2", {1, 1, number_function<std::log2, exact_log2>}},
        {"tanh", {1, 2, tanh_function}},
        {"sigmoid", {1, 1, number_function<literal_sigmoid, exact_sigmoid>}},
        {"relu", {1, 1, number_function<literal_relu, exact_relu>}},
        {"softplus", {1, 1, number_function<literal_softplus, exact_softplus>}},
        {"square", {1, 1, number_function<literal_square, exact_square>}},
        {"sqrt", {1, 1, number_function<std::sqrt, exact_sqrt>}},
        {"sin", {1, 1, number_function<std::sin, exact_sin>}},
        {"cos", {1, 1, number_function<std::cos, exact_cos>}},
        {"floor", {1, 1, number_function<std::floor, tilewright::floor>}},
        {"ceil", {1, 1, number_function<std::ceil, tilewright::ceil>}},
        {"abs", {1, 1, abs_function}},
        {"min", {2, 16, extreme_function<false>}},
        {"max", {2, 16, extreme_function<true>}},
        {"clamp", {3, 3, clamp_function}},
        {"where", {3, 3, where_function}},
        {"int", {1, 1, int_function}},
        {"float", {1, 1, float_function}},
    };
    const auto found = kFunctions.find(name);
    return found == kFunctions.end() ? nullptr : &found->second;
}

}  // namespace tilewright::mod
