// Types, literals and elementwise operations by cuda/device/tile/scalar.cuh.
#include "cuda/codegen/element_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "ir/evaluate.h"

namespace tilewright::cuda {

using ir::Op;

std::string storage_type(DType dtype) {
    return dtype == DType::boolean ? "boolean" : std::string(name(dtype));
}

std::string register_type(DType dtype) {
    if (dtype == DType::boolean) return "bool";
    if (is_float(dtype)) return dtype == DType::f64 ? "f64" : "f32";
    return std::string(name(dtype));
}

std::string literal(DType dtype, std::uint64_t bits) {
    if (dtype == DType::boolean) return bits != 0 ? "true" : "false";
    if (is_float(dtype)) {
        const double value = ir::decode(dtype, bits);
        const bool twice = dtype == DType::f64;
        if (std::isnan(value)) {
            return twice ? "__longlong_as_double(0x7ff8000000000000ll)"
                         : "__int_as_float(0x7fffffff)";
        }
        if (std::isinf(value)) {
            const char* const kSingle[] = {"__int_as_float(0x7f800000)",
                                           "__int_as_float(0xff800000)"};
            const char* const kDouble[] = {"__longlong_as_double(0x7ff0000000000000ll)",
                                           "__longlong_as_double(0xfff0000000000000ull)"};
            return (twice ? kDouble : kSingle)[value < 0 ? 1 : 0];
        }
        std::string text =
            twice ? fmt::format("{}", value) : fmt::format("{}", static_cast<float>(value));
        if (text.find_first_of(".e") == std::string::npos) text += ".0";
        if (!twice) text += "f";
        return value < 0 || std::signbit(value) ? "(" + text + ")" : text;
    }
    const auto value = static_cast<std::int64_t>(bits);
    if (dtype == DType::i64 || dtype == DType::u64) {
        if (dtype == DType::u64) return fmt::format("{}ull", bits);
        if (value == std::numeric_limits<std::int64_t>::min())
            return "(-9223372036854775807ll - 1)";
        return value < 0 ? fmt::format("({}ll)", value) : fmt::format("{}ll", value);
    }
    if (dtype == DType::u32) return fmt::format("{}u", bits & 0xffffffffU);
    if (dtype == DType::i32 && value == std::numeric_limits<std::int32_t>::min()) {
        return "(-2147483647 - 1)";
    }
    if (dtype == DType::i32)
        return value < 0 ? fmt::format("({})", value) : fmt::format("{}", value);
    return fmt::format("{}({})", name(dtype), value);
}

std::string element_text(Op op, bool approx, DType in, DType out, std::span<const std::string> x) {
    const bool floats = is_float(in);
    const auto infix = [&](const char* sign) { return fmt::format("{} {} {}", x[0], sign, x[1]); };
    const auto function = [&](std::string_view called) {
        return fmt::format("ops::{}({})", called, fmt::join(x, ", "));
    };
    switch (op) {
        case Op::neg:
            if (floats) return fmt::format("-{}", x[0]);
            break;
        case Op::add:
            if (floats) return infix("+");
            break;
        case Op::sub:
            if (floats) return infix("-");
            break;
        case Op::mul:
            if (floats) return infix("*");
            break;
        case Op::div:
            if (floats) return infix("/");
            break;
        case Op::min:
            if (in == DType::boolean) return infix("&");
            break;
        case Op::max:
            if (in == DType::boolean) return infix("|");
            break;
        case Op::bitwise_and:
            return in == DType::boolean
                       ? infix("&")
                       : fmt::format("static_cast<{}>({})", register_type(in), infix("&"));
        case Op::bitwise_or:
            return in == DType::boolean
                       ? infix("|")
                       : fmt::format("static_cast<{}>({})", register_type(in), infix("|"));
        case Op::bitwise_xor:
            return in == DType::boolean
                       ? infix("!=")
                       : fmt::format("static_cast<{}>({})", register_type(in), infix("^"));
        case Op::eq:
            return infix("==");
        case Op::ne:
            return infix("!=");
        case Op::lt:
            return infix("<");
        case Op::le:
            return infix("<=");
        case Op::gt:
            return infix(">");
        case Op::ge:
            return infix(">=");
        case Op::select:
            return fmt::format("{} ? {} : {}", x[0], x[1], x[2]);
        case Op::cast:
            return fmt::format("ops::cast<{}>({})", storage_type(out), x[0]);
        case Op::bitcast:
            return fmt::format("ops::bitcast<{}, {}>({})", storage_type(out), storage_type(in),
                               x[0]);
        case Op::random_bits:
            return function("random_bits");
        default:
            break;
    }
    const ir::FunctionInfo* const info = ir::function_info(op);
    if (info != nullptr && size_of(in) < 4 && !info->cuda.narrow.empty()) {
        return fmt::format("ops::{}({}{{}}, {})", info->cuda.narrow, storage_type(in),
                           fmt::join(x, ", "));
    }
    if (info != nullptr && !info->cuda.wrapped) {
        return fmt::format("::{}({})", in == DType::f64 ? info->cuda.f64 : info->cuda.f32,
                           fmt::join(x, ", "));
    }
    return function(approx ? fmt::format("{}_approx", name(op)) : std::string(name(op)));
}

bool is_rounded(Op op, DType out) {
    const ir::FunctionInfo* const info = ir::function_info(op);
    if (info != nullptr && !info->cuda.narrow.empty()) return false;
    return is_float(out) && size_of(out) <= 2 && op != Op::cast && op != Op::select &&
           op != Op::bitcast;
}

}  // namespace tilewright::cuda
