// Dtype promotion and shape broadcasting of the kernel language.
#include "lang/promotion.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/check.h"

namespace tilewright::lang {

namespace {

bool is_f8(DType type) {
    return type == f8e4m3 || type == f8e5m2;
}

DType signed_of_width(int bytes) {
    switch (bytes) {
        case 1:
            return i8;
        case 2:
            return i16;
        case 4:
            return i32;
        default:
            return i64;
    }
}

DType promote_integers(DType a, DType b) {
    if (is_signed(a) == is_signed(b)) return size_of(a) >= size_of(b) ? a : b;
    const DType with_sign = is_signed(a) ? a : b;
    const DType without = is_signed(a) ? b : a;
    if (size_of(with_sign) > size_of(without)) return with_sign;
    // No integer dtype holds both u64 and i64: they promote to f64, as in JAX with 64-bit types.
    return size_of(without) == 8 ? f64 : signed_of_width(2 * size_of(without));
}

DType promote_floats(DType a, DType b) {
    if (is_f8(a) || is_f8(b)) {
        user_error("promote", "expected an explicit .to() between {} and {}: f8 does not promote",
                   name(a), name(b));
    }
    if (size_of(a) == size_of(b)) return f32;  // f16 with bf16
    return size_of(a) > size_of(b) ? a : b;
}

/// f32, or f64 for values out of its range.
DType floating_dtype(double value) {
    const bool fits = !(std::abs(value) > std::numeric_limits<float>::max()) || std::isinf(value);
    return fits ? f32 : f64;
}

}  // namespace

DType promote(DType a, DType b) {
    if (a == b || b == boolean) return a;
    if (a == boolean) return b;
    if (is_float(a) && is_float(b)) return promote_floats(a, b);
    if (is_float(a)) return a;
    if (is_float(b)) return b;
    return promote_integers(a, b);
}

DType literal_dtype(const Operand& literal) {
    switch (literal.kind()) {
        case Operand::Kind::truth:
            return boolean;
        case Operand::Kind::floating:
            return floating_dtype(literal.floating());
        case Operand::Kind::unsigned_int:
            if (literal.integer() > static_cast<std::uint64_t>(INT64_MAX)) return u64;
            return literal.integer() > static_cast<std::uint64_t>(INT32_MAX) ? i64 : i32;
        default: {
            const auto value = static_cast<std::int64_t>(literal.integer());
            return value < INT32_MIN || value > INT32_MAX ? i64 : i32;
        }
    }
}

DType literal_dtype(const Operand& literal, DType other) {
    switch (literal.kind()) {
        case Operand::Kind::truth:
            return other;
        case Operand::Kind::floating:
            return is_float(other) ? other : floating_dtype(literal.floating());
        default:
            return other == boolean ? literal_dtype(literal) : other;
    }
}

ir::Shape broadcast_shapes(const ir::Shape& a, const ir::Shape& b, const char* op,
                           const std::string& what) {
    ir::Shape result = a.rank() >= b.rank() ? a : b;
    const ir::Shape& other = a.rank() >= b.rank() ? b : a;
    const int shift = result.rank() - other.rank();
    for (int axis = 0; axis < other.rank(); ++axis) {
        std::int64_t& dim = result[axis + shift];
        if (dim == other[axis] || other[axis] == 1) continue;
        if (dim != 1) {
            user_error(op, "expected {} that broadcast together but got {} and {}", what,
                       ir::to_string(a), ir::to_string(b));
        }
        dim = other[axis];
    }
    return result;
}

std::string shape_text(const ir::Shape& shape) {
    return shape.rank() == 0 ? "[]" : ir::to_string(shape);
}

bool broadcasts_to(const ir::Shape& from, const ir::Shape& shape) {
    const int shift = shape.rank() - from.rank();
    if (shift < 0) return false;
    for (int axis = 0; axis < from.rank(); ++axis) {
        if (from[axis] != 1 && from[axis] != shape[axis + shift]) return false;
    }
    return true;
}

}  // namespace tilewright::lang
