// Text of scalar ops, in int where ranges allow it.
#include "cuda/codegen/scalar_op.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ir/evaluate.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {

using ir::Op;
constexpr const char* kOperation = "cuda";

/// Ops whose text in int, where all ranges are narrow, is the C++ operator itself.
const char* plain_operator(Op op) {
    switch (op) {
        case Op::add:
            return "+";
        case Op::sub:
            return "-";
        case Op::mul:
            return "*";
        case Op::div:
            return "/";
        case Op::rem:
            return "%";
        case Op::bitwise_and:
            return "&";
        case Op::bitwise_or:
            return "|";
        case Op::bitwise_xor:
            return "^";
        case Op::eq:
            return "==";
        case Op::ne:
            return "!=";
        case Op::lt:
            return "<";
        case Op::le:
            return "<=";
        case Op::gt:
            return ">";
        case Op::ge:
            return ">=";
        default:
            return nullptr;
    }
}

/// The function of cuda/device/scalar.cuh for integers, where the operator is not enough.
const char* integer_function(Op op) {
    switch (op) {
        case Op::add:
            return "wrapping_add";
        case Op::sub:
            return "wrapping_sub";
        case Op::mul:
            return "wrapping_mul";
        case Op::div:
            return "divide";
        case Op::floordiv:
            return "floor_divide";
        case Op::rem:
            return "remainder";
        case Op::floormod:
            return "floor_modulo";
        case Op::shift_left:
            return "shift_left";
        case Op::shift_right:
            return "shift_right";
        case Op::min:
            return "min";
        case Op::max:
            return "max";
        default:
            return nullptr;
    }
}

/// The CUDA name of an op on floats: from its row in ir/ops.inl, or for arithmetic from here.
ir::FunctionInfo::Cuda float_function(Op op) {
    if (const ir::FunctionInfo* const function = ir::function_info(op)) return function->cuda;
    switch (op) {
        case Op::abs:
            return {.f32 = "fabsf", .f64 = "fabs"};
        case Op::sign:
            return {.f32 = "scalar::sign", .f64 = "scalar::sign"};
        case Op::floordiv:
            return {.f32 = "scalar::floor_divide", .f64 = "scalar::floor_divide"};
        case Op::rem:
            return {.f32 = "fmodf", .f64 = "fmod"};
        case Op::floormod:
            return {.f32 = "scalar::floor_modulo", .f64 = "scalar::floor_modulo"};
        case Op::min:
            return {.f32 = "scalar::min", .f64 = "scalar::min"};
        case Op::max:
            return {.f32 = "scalar::max", .f64 = "scalar::max"};
        case Op::fma:
            return {.f32 = "fmaf", .f64 = "fma"};
        default:
            return {.f32 = {}, .f64 = {}};
    }
}

std::string call(std::string_view function, std::span<const std::string> arguments) {
    return fmt::format("{}({})", function, fmt::join(arguments, ", "));
}

std::string rounded(DType dtype, std::string text) {
    if (dtype == DType::f16) return fmt::format("scalar::round_to(F16{{}}, {})", text);
    if (dtype == DType::bf16) return fmt::format("scalar::round_to(Bf16{{}}, {})", text);
    return text;
}

std::string float_expression(const ir::Instruction& instruction, DType dtype,
                             std::span<const std::string> in) {
    const Op op = instruction.op;
    if (op == Op::neg) return fmt::format("-{}", in[0]);
    if (op == Op::isnan) return fmt::format("{0} != {0}", in[0]);
    if (op == Op::clamp)
        return fmt::format("scalar::min(scalar::max({}, {}), {})", in[0], in[1], in[2]);
    const bool arithmetic = op == Op::add || op == Op::sub || op == Op::mul || op == Op::div;
    if (arithmetic) {
        return rounded(dtype, fmt::format("{} {} {}", in[0], plain_operator(op), in[1]));
    }
    if (ir::info(op).op_class == ir::OpClass::comparison) {
        return fmt::format("{} {} {}", in[0], plain_operator(op), in[1]);
    }
    const ir::FunctionInfo::Cuda function = float_function(op);
    const auto* math = std::get_if<ir::MathAttributes>(&instruction.attributes);
    const bool approx = math != nullptr && math->approx && !function.approx.empty();
    if (dtype == DType::f64) return call(function.f64, in);
    if (size_of(dtype) < 4 && !function.narrow.empty()) {
        const char* const tag = dtype == DType::f16 ? "F16" : "Bf16";
        return fmt::format("scalar::{}({}{{}}, {})", function.narrow, tag, fmt::join(in, ", "));
    }
    return rounded(dtype, call(approx ? function.approx : function.f32, in));
}

std::string cast_expression(DType from, DType to, const ir::Interval& range,
                            const ir::Interval& result, const std::string& in) {
    if (to == DType::boolean) return from == DType::boolean ? in : fmt::format("{} != 0", in);
    if (is_float(to)) {
        const std::string wide = scalar_type(to);
        return scalar_type(from) == wide
                   ? rounded(to, in)
                   : rounded(to, fmt::format("static_cast<{}>({})", wide, in));
    }
    if (is_float(from)) return fmt::format("scalar::to_integer<{}>({})", held_type(to, result), in);
    return fmt::format("static_cast<{}>({})", held_type(to, result),
                       range.inside(result.low, result.high)
                           ? in
                           : fmt::format("static_cast<{}>({})", scalar_type(to), in));
}

/// The shortest decimal that reads back exactly, as a floating-point literal.
template <typename Float>
std::string decimal(Float value) {
    const std::string digits = fmt::format("{}", value);
    return digits.find_first_of(".e") == std::string::npos ? digits + ".0" : digits;
}

}  // namespace

std::string scalar_type(DType dtype) {
    switch (dtype) {
        case DType::boolean:
            return "bool";
        case DType::i8:
            return "signed char";
        case DType::u8:
            return "u8";
        case DType::i16:
            return "short";
        case DType::u16:
            return "u16";
        case DType::i32:
            return "int";
        case DType::u32:
            return "u32";
        case DType::i64:
            return "i64";
        case DType::u64:
            return "u64";
        case DType::f16:
        case DType::bf16:
        case DType::f32:
            return "float";
        case DType::f64:
            return "double";
        default:
            user_error(kOperation,
                       "expected scalars of at least 16 bits where they are floats but got {}",
                       name(dtype));
    }
}

std::string scalar_literal(DType dtype, std::uint64_t bits) {
    if (dtype == DType::boolean) return bits != 0 ? "true" : "false";
    if (is_float(dtype)) {
        const double value = std::bit_cast<double>(bits);
        if (dtype == DType::f64) {
            return std::isfinite(value) ? decimal(value)
                                        : fmt::format("__longlong_as_double({:#x}ll)", bits);
        }
        const auto single = static_cast<float>(value);
        if (std::isfinite(single)) return decimal(single) + "f";
        return fmt::format("__int_as_float({:#x})", std::bit_cast<std::uint32_t>(single));
    }
    if (dtype == DType::u64) return fmt::format("{}ull", bits);
    if (dtype == DType::u32) return fmt::format("{}u", bits);
    const auto value = static_cast<std::int64_t>(bits);
    if (value == std::numeric_limits<std::int64_t>::min()) return "(-9223372036854775807ll - 1)";
    using Limits = std::numeric_limits<std::int32_t>;
    if (Limits::min() < value && value <= Limits::max()) {
        return fmt::format("{}", value);
    }
    return fmt::format("{}ll", value);
}

std::string held_type(DType dtype, const ir::Interval& range) {
    return is_integer(dtype) && dtype != DType::u64 && range.fits_i32() ? "int"
                                                                        : scalar_type(dtype);
}

std::string no_scalar_expression(const ir::Instruction& instruction, DType result_dtype,
                                 std::span<const ScalarOperand> operands) {
    const Op op = instruction.op;
    const DType dtype = operands.empty() ? result_dtype : operands[0].dtype;
    if (op == Op::cast) {
        if (!is_float(result_dtype) || size_of(result_dtype) != 2 || !is_integer(dtype) ||
            exact_in_f32(operands[0].range)) {
            return {};
        }
        return fmt::format("expected integers below 2^24 in a cast to {} but got any {}",
                           name(result_dtype), name(dtype));
    }
    if (op == Op::bitcast) {
        if (size_of(result_dtype) >= 4 || !(is_float(result_dtype) || is_float(dtype))) return {};
        return fmt::format("expected bitcasts of 32 or 64 bits but got one from {} to {}",
                           name(dtype), name(result_dtype));
    }
    const bool has_text =
        op == Op::random_bits || op == Op::select || op == Op::neg || op == Op::clamp ||
        plain_operator(op) != nullptr ||
        (is_float(dtype) ? op == Op::isnan || !float_function(op).f32.empty()
                         : op == Op::abs || op == Op::sign || op == Op::bitwise_not ||
                               integer_function(op) != nullptr);
    if (has_text) return {};
    return fmt::format("expected an op with CUDA text for {} but got {}", name(dtype), name(op));
}

std::string scalar_expression(const ir::Instruction& instruction, DType result_dtype,
                              const ir::Interval& result, std::span<const ScalarOperand> operands) {
    const Op op = instruction.op;
    const std::string refusal = no_scalar_expression(instruction, result_dtype, operands);
    if (!refusal.empty()) user_error(kOperation, "{}", refusal);
    std::vector<std::string> in;
    for (const ScalarOperand& operand : operands) in.push_back(operand.text);
    if (op == Op::random_bits) return call("scalar::philox", in);
    if (op == Op::cast) {
        return cast_expression(operands[0].dtype, result_dtype, operands[0].range, result, in[0]);
    }
    if (op == Op::bitcast) {
        const std::string from = scalar_type(operands[0].dtype), to = scalar_type(result_dtype);
        return fmt::format("__builtin_bit_cast({}, static_cast<{}>({}))", to, from, in[0]);
    }
    if (op == Op::select) return fmt::format("{} ? {} : {}", in[0], in[1], in[2]);
    const DType dtype = operands[0].dtype;
    if (is_float(dtype)) return float_expression(instruction, dtype, in);
    if (op == Op::bitwise_not) {
        if (dtype == DType::boolean) return fmt::format("!{}", in[0]);
        return fmt::format("static_cast<{0}>(~static_cast<{0}>({1}))", scalar_type(dtype), in[0]);
    }
    if (dtype == DType::boolean) {
        const bool both = op == Op::min || op == Op::bitwise_and;
        const bool either = op == Op::max || op == Op::bitwise_or;
        if (op == Op::bitwise_xor) return fmt::format("{} != {}", in[0], in[1]);
        const char* const text = both ? "&&" : either ? "||" : plain_operator(op);
        return fmt::format("{} {} {}", in[0], text, in[1]);
    }

    // Integers: in int when everything fits, else in the dtype's own type. A result that may be any
    // value of the dtype may have wrapped.
    const bool comparison = ir::info(op).op_class == ir::OpClass::comparison;
    const bool wraps = result.is_all(result_dtype);
    bool narrow = dtype != DType::u64 && (comparison || (!wraps && result.fits_i32()));
    for (const ScalarOperand& operand : operands) narrow &= operand.range.fits_i32();
    const std::string type = narrow ? "int" : scalar_type(dtype);
    for (std::size_t i = 0; i < in.size(); ++i) {
        if (held_type(operands[i].dtype, operands[i].range) != type) {
            in[i] = fmt::format("static_cast<{}>({})", type, in[i]);
        }
    }
    std::string text;
    const char* const function = integer_function(op);
    const bool divides = op == Op::div || op == Op::rem || op == Op::floordiv || op == Op::floormod;
    const bool safe_divisor = divides && operands[1].range.low >= 1;
    if (op == Op::neg) {
        text = wraps ? fmt::format("scalar::wrapping_sub({}{{0}}, {})", type, in[0])
                     : fmt::format("-{}", in[0]);
    } else if (op == Op::abs || op == Op::sign) {
        text = fmt::format("scalar::{}({})", name(op), in[0]);
    } else if (op == Op::clamp) {
        text = fmt::format("scalar::min(scalar::max({}, {}), {})", in[0], in[1], in[2]);
    } else if (divides && safe_divisor && operands[0].range.low >= 0) {
        // As unsigned numbers: cheaper, and truncation rounds down.
        const std::string wide = narrow ? "u32" : "u64";
        text =
            fmt::format("static_cast<{}>(static_cast<{}>({}) {} static_cast<{}>({}))", type, wide,
                        in[0], op == Op::div || op == Op::floordiv ? "/" : "%", wide, in[1]);
    } else if (divides && safe_divisor && (op == Op::div || op == Op::rem)) {
        text = fmt::format("{} {} {}", in[0], plain_operator(op), in[1]);
    } else if (op == Op::shift_right && operands[1].range.inside(0, 31) && narrow) {
        text = fmt::format("{} >> {}", in[0], in[1]);
    } else if (function != nullptr && (wraps || plain_operator(op) == nullptr || divides)) {
        text = fmt::format("scalar::{}({}, {})", function, in[0], in[1]);
    } else {
        text = fmt::format("{} {} {}", in[0], plain_operator(op), in[1]);
    }
    if (comparison) return text;
    const std::string held = held_type(result_dtype, result);
    return held == type ? text : fmt::format("static_cast<{}>({})", held, text);
}

}  // namespace tilewright::cuda
