// Operators and elementwise functions of the kernel language.
#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "lang/promotion.h"
#include "lang/tracer.h"
#include "tilewright/lang/ops.h"

namespace tilewright {

using ir::Op;
using lang::Tracer;

namespace {

/// Runs `emit(tracer)` at the operand's line and wraps the resulting value.
template <typename Emit>
Tile traced(const char* op, const Operand& operand, Emit&& emit) {
    Tracer& tracer = Tracer::current(op, operand.location());
    return tracer.at(operand.location(), [&] { return tracer.wrap(emit(tracer)); });
}

/// Operands in their common dtype and shape.
template <std::size_t N>
std::array<ir::Value, N> unify(Tracer& tracer, const char* op,
                               const std::array<Operand, N>& operands, DType dtype) {
    ir::Shape shape;
    for (const Operand& operand : operands) {
        shape = lang::broadcast_shapes(shape, tracer.shape(operand), op);
    }
    std::array<ir::Value, N> values;
    for (std::size_t i = 0; i < N; ++i) {
        values[i] = tracer.broadcast(tracer.value(operands[i], dtype, op), shape, op);
    }
    return values;
}

Tile binary(Op op, const char* name, const Operand& a, const Operand& b) {
    return traced(name, a, [&](Tracer& tracer) {
        const std::array operands{a, b};
        const auto [x, y] = unify(tracer, name, operands, tracer.common_dtype(operands));
        return tracer.builder().binary(op, x, y);
    });
}

/// 1 in the dtype and shape of the operand.
Tile one_like(const Operand& x) {
    return traced("pow", x, [&](Tracer& tracer) {
        const DType dtype = tracer.dtype(x);
        const ir::Value one =
            tracer.value(Operand(1, x.location()), dtype == boolean ? i32 : dtype);
        return tracer.broadcast(one, tracer.shape(x), "pow");
    });
}

/// Arithmetic: bool operands become i32, because adding them means counting.
Tile arithmetic(Op op, const char* name, const Operand& a, const Operand& b) {
    return traced(name, a, [&](Tracer& tracer) {
        const std::array operands{a, b};
        DType dtype = tracer.common_dtype(operands);
        if (dtype == boolean) dtype = i32;
        const auto [x, y] = unify(tracer, name, operands, dtype);
        return tracer.builder().binary(op, x, y);
    });
}

Tile logical(Op op, const char* name, const Operand& a, const Operand& b) {
    return traced(name, a, [&](Tracer& tracer) {
        const std::array operands{a, b};
        for (const Operand& operand : operands) {
            if (tracer.dtype(operand) != boolean) {
                user_error(name, "expected bool operands but got {}",
                           tilewright::name(tracer.dtype(operand)));
            }
        }
        const auto [x, y] = unify(tracer, name, operands, boolean);
        return tracer.builder().binary(op, x, y);
    });
}

Tile unary(Op op, const char* name, const Operand& x) {
    return traced(name, x,
                  [&](Tracer& tracer) { return tracer.builder().unary(op, tracer.value(x)); });
}

/// Functions of floats: an integer operand becomes f32.
Tile float_unary(Op op, const char* name, const Operand& x, bool approx = false) {
    return traced(name, x, [&](Tracer& tracer) {
        const DType dtype = tracer.dtype(x);
        return tracer.builder().unary(op, tracer.value(x, is_float(dtype) ? dtype : f32), approx);
    });
}

/// Powers that are cheaper than pow: x^n with a literal n as products, and 2^y.
std::optional<Tile> simple_power(const Operand& x, const Operand& y) {
    constexpr std::uint64_t kMostProducts = 64;
    const auto at = [&](auto value) { return Operand(value, x.location()); };
    if (y.kind() == Operand::Kind::signed_int && y.integer() <= kMostProducts) {
        if (y.integer() == 0) return one_like(x);
        Tile result = +x;
        for (std::uint64_t i = 1; i < y.integer(); ++i) result = at(result) * x;
        return result;
    }
    const auto is_two = [](const Operand& a) {
        return a.is_literal() && a.kind() != Operand::Kind::truth &&
               (a.kind() == Operand::Kind::floating ? a.floating() == 2 : a.integer() == 2);
    };
    if (is_two(x)) return exp2(y);
    return {};
}

/// Functions of floats: integer operands become f32.
Tile float_binary(Op op, const char* name, const Operand& x, const Operand& y) {
    if (op == Op::pow) {
        if (const auto power = simple_power(x, y)) return *power;
    }
    return traced(name, x, [&](Tracer& tracer) {
        const std::array operands{x, y};
        const DType dtype = tracer.common_dtype(operands);
        const auto [a, b] = unify(tracer, name, operands, is_float(dtype) ? dtype : f32);
        return tracer.builder().binary(op, a, b);
    });
}

const ir::Type& type_of(const Tile& tile, const char* op, const std::source_location& location) {
    Tracer& tracer = Tracer::of(tile, op, location);
    return *Tracer::with_line(location, [&] { return &tracer.type(tracer.use(tile)); });
}

}  // namespace

Tile operator+(Operand a, Operand b) {
    return arithmetic(Op::add, "add", a, b);
}
Tile operator-(Operand a, Operand b) {
    return arithmetic(Op::sub, "sub", a, b);
}
Tile operator*(Operand a, Operand b) {
    return arithmetic(Op::mul, "mul", a, b);
}
Tile operator/(Operand a, Operand b) {
    return arithmetic(Op::div, "div", a, b);
}
Tile operator%(Operand a, Operand b) {
    return arithmetic(Op::rem, "rem", a, b);
}
Tile operator-(Operand a) {
    return unary(Op::neg, "neg", a);
}
Tile operator+(Operand a) {
    return traced("pos", a, [&](Tracer& tracer) { return tracer.value(a); });
}

Tile operator==(Operand a, Operand b) {
    return binary(Op::eq, "eq", a, b);
}
Tile operator!=(Operand a, Operand b) {
    return binary(Op::ne, "ne", a, b);
}
Tile operator<(Operand a, Operand b) {
    return binary(Op::lt, "lt", a, b);
}
Tile operator<=(Operand a, Operand b) {
    return binary(Op::le, "le", a, b);
}
Tile operator>(Operand a, Operand b) {
    return binary(Op::gt, "gt", a, b);
}
Tile operator>=(Operand a, Operand b) {
    return binary(Op::ge, "ge", a, b);
}

Tile operator&(Operand a, Operand b) {
    return binary(Op::bitwise_and, "bitwise_and", a, b);
}
Tile operator|(Operand a, Operand b) {
    return binary(Op::bitwise_or, "bitwise_or", a, b);
}
Tile operator^(Operand a, Operand b) {
    return binary(Op::bitwise_xor, "bitwise_xor", a, b);
}
Tile operator~(Operand a) {
    return unary(Op::bitwise_not, "bitwise_not", a);
}
Tile operator<<(Operand a, Operand b) {
    return binary(Op::shift_left, "shift_left", a, b);
}
Tile operator>>(Operand a, Operand b) {
    return binary(Op::shift_right, "shift_right", a, b);
}
Tile detail::logical_and(Operand a, Operand b) {
    return logical(Op::bitwise_and, "&&", a, b);
}
Tile detail::logical_or(Operand a, Operand b) {
    return logical(Op::bitwise_or, "||", a, b);
}
Tile detail::logical_not(Operand a) {
    return traced("!", a, [&](Tracer& tracer) {
        if (tracer.dtype(a) != boolean) {
            user_error("!", "expected a bool operand but got {}", name(tracer.dtype(a)));
        }
        return tracer.builder().unary(Op::bitwise_not, tracer.value(a));
    });
}

#define TW_UNARY(op, function, ...)               \
    Tile function(Operand x) {                    \
        return float_unary(Op::op, #function, x); \
    }
#define TW_APPROXIMABLE(op, function, ...)                \
    Tile function(Operand x, bool approx) {               \
        return float_unary(Op::op, #function, x, approx); \
    }
#define TW_BINARY(op, function, ...)                  \
    Tile function(Operand x, Operand y) {             \
        return float_binary(Op::op, #function, x, y); \
    }
#include "ir/ops.inl"

Tile isnan(Operand x) {
    return float_unary(Op::isnan, "isnan", x);
}
Tile abs(Operand x) {
    return unary(Op::abs, "abs", x);
}
Tile sign(Operand x) {
    return unary(Op::sign, "sign", x);
}

Tile reciprocal(Operand x) {
    return Operand(1.0, x.location()) / x;
}
Tile square(Operand x) {
    return x * x;
}
Tile relu(Operand x) {
    return maximum(x, Operand(0, x.location()));
}
Tile silu(Operand x) {
    return x * Operand(sigmoid(x), x.location());
}

Tile gelu(Operand x, bool approximate) {
    const auto here = x.location();
    const auto at = [&](auto value) { return Operand(value, here); };
    if (!approximate) {
        const Tile phi = at(1.0) + at(erf(x * at(std::numbers::sqrt2 / 2)));
        return at(x * at(0.5)) * at(phi);
    }
    const double scale = std::sqrt(2.0 / std::numbers::pi);
    const Tile cube = x * at(x * x);
    const Tile inner = at(scale) * at(x + at(at(0.044715) * at(cube)));
    return at(x * at(0.5)) * at(at(1.0) + at(tanh(at(inner))));
}

Tile softplus(Operand x) {
    const auto at = [&](auto value) { return Operand(value, x.location()); };
    return at(maximum(x, at(0.0))) + at(log1p(at(exp(at(-at(abs(x)))))));
}

Tile minimum(Operand x, Operand y) {
    return binary(Op::min, "minimum", x, y);
}
Tile maximum(Operand x, Operand y) {
    return binary(Op::max, "maximum", x, y);
}
Tile floordiv(Operand x, Operand y) {
    return arithmetic(Op::floordiv, "floordiv", x, y);
}
Tile floormod(Operand x, Operand y) {
    return arithmetic(Op::floormod, "floormod", x, y);
}
Tile cdiv(Operand x, Operand y) {
    const auto at = [&](auto value) { return Operand(value, x.location()); };
    return -at(floordiv(at(-x), y));
}

Tile clamp(Operand x, Operand low, Operand high) {
    return traced("clamp", x, [&](Tracer& tracer) {
        const std::array operands{x, low, high};
        const auto [v, lo, hi] = unify(tracer, "clamp", operands, tracer.common_dtype(operands));
        return tracer.builder().clamp(v, lo, hi);
    });
}

Tile fma(Operand a, Operand b, Operand c) {
    return traced("fma", a, [&](Tracer& tracer) {
        const std::array operands{a, b, c};
        const auto [x, y, z] = unify(tracer, "fma", operands, tracer.common_dtype(operands));
        return tracer.builder().fma(x, y, z);
    });
}

Tile where(Operand condition, Operand if_true, Operand if_false) {
    return traced("where", condition, [&](Tracer& tracer) {
        if (tracer.dtype(condition) != boolean) {
            user_error("where", "expected a bool condition but got {}",
                       name(tracer.dtype(condition)));
        }
        const std::array operands{if_true, if_false};
        auto [x, y] = unify(tracer, "where", operands, tracer.common_dtype(operands));
        const ir::Shape shape =
            lang::broadcast_shapes(tracer.shape(condition), tracer.type(x).shape, "where");
        return tracer.builder().select(tracer.broadcast(tracer.value(condition), shape, "where"),
                                       tracer.broadcast(x, shape, "where"),
                                       tracer.broadcast(y, shape, "where"));
    });
}

Tile cast(Operand x, DType dtype) {
    return traced("cast", x, [&](Tracer& tracer) { return tracer.value(x, dtype); });
}

Tile bitcast(Operand x, DType dtype) {
    return traced("bitcast", x,
                  [&](Tracer& tracer) { return tracer.builder().bitcast(tracer.value(x), dtype); });
}

Tile Tile::to(DType dtype, std::source_location location) const {
    return cast(Operand(*this, location), dtype);
}

DType Tile::dtype(std::source_location location) const {
    return type_of(*this, "dtype", location).dtype;
}

std::vector<std::int64_t> Tile::shape(std::source_location location) const {
    const auto dims = type_of(*this, "shape", location).shape.dims();
    return {dims.begin(), dims.end()};
}

int Tile::rank(std::source_location location) const {
    return type_of(*this, "rank", location).shape.rank();
}

std::int64_t Tile::dim(int axis, std::source_location location) const {
    const ir::Shape& shape = type_of(*this, "dim", location).shape;
    const int rank = shape.rank();
    return Tracer::with_line(location, [&] {
        if (axis < -rank || axis >= rank) {
            user_error("dim", "expected an axis of a tile of rank {} but got {}", rank, axis);
        }
        return shape[axis < 0 ? axis + rank : axis];
    });
}

std::int64_t Tile::size(std::source_location location) const {
    return type_of(*this, "size", location).shape.size();
}

}  // namespace tilewright
