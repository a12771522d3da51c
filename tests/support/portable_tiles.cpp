// Steps of portable programs that compute on tiles.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <utility>

#include "tests/support/portable_generator.h"
#include "tests/support/tolerance.h"

namespace tilewright::testing {
namespace {

/// Every elementwise function of floats.
constexpr Op kFunctions[] = {
#define TW_FUNCTION(op, ...) Op::op,
#include "ir/ops.inl"
};

/// Bits of an integer that a float dtype represents exactly.
int mantissa_bits(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return 53;
        case DType::f32:
            return 24;
        case DType::f16:
            return 11;
        case DType::bf16:
            return 8;
        case DType::f8e4m3:
            return 4;
        default:
            return 3;
    }
}

double largest(DType dtype) {
    switch (dtype) {
        case DType::f16:
            return 65504;
        case DType::f8e4m3:
            return 448;
        case DType::f8e5m2:
            return 57344;
        default:
            return 1e30;
    }
}

}  // namespace

bool PortableGenerator::exact(DType dtype, double limit, int fraction, int bits) {
    return !is_float(dtype) || (std::ldexp(limit, fraction) <= std::ldexp(1.0, bits) &&
                                limit <= largest(dtype) && fraction <= 8);
}

bool PortableGenerator::exact(DType dtype, double limit, int fraction) {
    return exact(dtype, limit, fraction, mantissa_bits(dtype));
}

Shape PortableGenerator::random_shape() {
    if (scalars_only_) return {};
    for (;;) {
        std::vector<std::int64_t> dims(below(chance(15) ? kMaxRank + 1 : 4));
        for (auto& dim : dims) dim = chance(10) ? 1 : any_of(dims_);
        const Shape shape{std::span<const std::int64_t>(dims)};
        if (shape.size() <= kMaxElements) return shape;
    }
}

// ---- Sources.

void PortableGenerator::constant() {
    const DType dtype = any_of(kPortableDTypes);
    const double value = static_cast<double>(below(7)) / (is_float(dtype) ? 4 : 1);
    const Type wanted{dtype, random_shape()};
    if (dtype == DType::boolean) {
        keep({b_.constant_int(wanted, chance(50)), 1});
    } else {
        keep({b_.constant(wanted, value), 6, 2});
    }
}

void PortableGenerator::iota() {
    const Shape shape = random_shape();
    if (shape.rank() == 0) return constant();
    const int axis = static_cast<int>(below(static_cast<std::uint64_t>(shape.rank())));
    const DType dtype = any_of(std::initializer_list<DType>{DType::i32, DType::i64, DType::f32});
    keep({b_.iota({dtype, shape}, axis), static_cast<double>(shape[axis])});
}

void PortableGenerator::load() {
    const Value ref = any_of(inputs_);
    const ir::RefType ref_type = b_.function().ref_type(ref);
    std::vector<IndexOperand> indices;
    std::int64_t size = 1;
    int rank = 0;
    for (int dim = 0; dim < ref_type.rank(); ++dim) {
        const auto start = static_cast<std::int64_t>(below(6)) - 2;
        const auto extent = any_of(dims_);
        const auto gather = pick(
            [&](const Known& k) { return is_integer(type(k).dtype) && type(k).shape.rank() == 1; });
        if (chance(25) || size * extent > kMaxElements || rank == 3) {
            const auto scalar = pick(
                [&](const Known& k) { return is_integer(type(k).dtype) && type(k).is_scalar(); });
            indices.push_back(IndexOperand::scalar(scalar ? scalar->value : index(start)));
        } else if (gather && dim == 0 && chance(40)) {
            indices.push_back(IndexOperand::tile(gather->value));
            size *= type(*gather).shape.size();
            ++rank;
        } else {
            const auto stride = static_cast<std::int64_t>(1 + below(2));
            indices.push_back(IndexOperand::slice(index(start), extent, stride));
            size *= extent;
            ++rank;
        }
    }
    Value loaded = b_.load(ref, indices);
    const Type loaded_type = b_.type(loaded);
    const auto mask = pick([&](const Known& k) {
        return type(k).dtype == DType::boolean &&
               (type(k).is_scalar() || type(k).shape == loaded_type.shape);
    });
    if (mask && chance(50)) {
        const Value other =
            chance(50) ? b_.constant({loaded_type.dtype, loaded_type.shape}, 1) : Value{};
        loaded = b_.load(ref, indices, mask->value, other);
    }
    keep({loaded, 2, 2});
}

// ---- Elementwise.

void PortableGenerator::unary() {
    const auto a = pick_exact();
    if (!a) return constant();
    const DType dtype = type(*a).dtype;
    if (is_float(dtype)) {
        const Op op =
            any_op({Op::neg, Op::abs, Op::sign, Op::floor, Op::ceil, Op::round, Op::isnan});
        if (op == Op::isnan) return keep({b_.unary(op, a->value), 1});
        const bool whole = op != Op::neg && op != Op::abs;
        const double limit = whole ? std::ceil(a->limit) : a->limit;
        if (!exact(dtype, limit, 0)) return;
        keep({b_.unary(op, a->value), limit, whole ? 0 : a->fraction});
    } else if (dtype == DType::boolean) {
        keep({b_.unary(Op::bitwise_not, a->value), 1});
    } else {
        keep({b_.unary(any_op({Op::neg, Op::abs, Op::sign, Op::bitwise_not}), a->value)});
    }
}

void PortableGenerator::function_with_error() {
    const auto a = pick(
        [&](const Known& k) { return !k.rounded && is_float(type(k).dtype) && k.limit <= 64; });
    if (!a) return;
    const DType dtype = type(*a).dtype;
    const Op op = kFunctions[below(std::size(kFunctions))];
    // The sign of a zero may differ between machines: no pole there.
    const Value operand = b_.unary(Op::abs, a->value);
    Known result{ir::function_info(op)->operands == 2
                     ? b_.binary(op, operand, b_.constant(type(*a), 1.5))
                     : b_.unary(op, operand)};
    result.rounded = true;
    result.ulps = ulps_between_machines(op, dtype);
    keep(result);
}

void PortableGenerator::binary() {
    const auto a = pick_exact();
    const auto b = a ? pick_like(*a) : std::nullopt;
    if (!b) return constant();
    const DType dtype = type(*a).dtype;
    if (dtype == DType::boolean) {
        return keep(
            {b_.binary(any_op({Op::bitwise_and, Op::bitwise_or, Op::bitwise_xor, Op::min, Op::max}),
                       a->value, b->value),
             1});
    }
    if (is_integer(dtype)) {
        const Op op = any_op({Op::add, Op::sub, Op::mul, Op::div, Op::floordiv, Op::rem,
                              Op::floormod, Op::min, Op::max, Op::bitwise_and, Op::bitwise_or,
                              Op::bitwise_xor, Op::shift_left, Op::shift_right});
        return keep({b_.binary(op, a->value, b->value)});
    }
    const Op op = any_op({Op::add, Op::sub, Op::mul, Op::min, Op::max});
    const bool product = op == Op::mul, sum = op == Op::add || op == Op::sub;
    const double limit = product ? a->limit * b->limit
                         : sum   ? a->limit + b->limit
                                 : std::max(a->limit, b->limit);
    const int fraction = product ? a->fraction + b->fraction : std::max(a->fraction, b->fraction);
    if (!exact(dtype, limit, fraction)) return;
    keep({b_.binary(op, a->value, b->value), limit, fraction});
}

void PortableGenerator::division() {
    const auto a = pick([&](const Known& k) { return !k.rounded && is_float(type(k).dtype); });
    const auto b = a ? pick_like(*a) : std::nullopt;
    if (!b) return;
    const Value least = b_.constant(type(*a), 0.25);
    const Value divisor = b_.binary(Op::max, b_.unary(Op::abs, b->value), least);
    const Op op = any_op({Op::div, Op::floordiv, Op::rem, Op::floormod});
    Known result{b_.binary(op, a->value, divisor)};
    result.rounded = true;
    keep(result);
}

void PortableGenerator::comparison() {
    const auto a = pick_exact();
    const auto b = a ? pick_like(*a) : std::nullopt;
    if (!b) return;
    const Op op = any_op({Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge});
    keep({b_.binary(op, a->value, b->value), 1});
}

void PortableGenerator::ternary() {
    const auto a = chance(30) ? pick([](const Known&) { return true; }) : pick_exact();
    if (!a) return;
    const auto b = pick([&](const Known& k) { return type(k) == type(*a); });
    const auto condition = pick([&](const Known& k) {
        return type(k).dtype == DType::boolean &&
               (type(k).is_scalar() || type(k).shape == type(*a).shape);
    });
    Known merged{{},
                 std::max(a->limit, b->limit),
                 std::max(a->fraction, b->fraction),
                 a->rounded || b->rounded,
                 std::max(a->ulps, b->ulps)};
    if (condition && (merged.rounded || chance(60))) {
        merged.value = b_.select(condition->value, a->value, b->value);
        return keep(merged);
    }
    const DType dtype = type(*a).dtype;
    if (merged.rounded || dtype == DType::boolean) return;
    const auto c = pick_like(*a);
    merged.limit = std::max(merged.limit, c->limit);
    merged.fraction = std::max(merged.fraction, c->fraction);
    if (is_float(dtype) && chance(50)) {
        const double limit = a->limit * b->limit + c->limit;
        const int fraction = std::max(a->fraction + b->fraction, c->fraction);
        if (!exact(dtype, limit, fraction)) return;
        return keep({b_.fma(a->value, b->value, c->value), limit, fraction});
    }
    merged.value = b_.clamp(a->value, b->value, c->value);
    keep(merged);
}

void PortableGenerator::cast() {
    const auto a = pick_exact();
    if (!a) return;
    const DType from = type(*a).dtype, to = any_of(kPortableDTypes);
    if (is_integer(from) && is_integer(to) && size_of(from) == size_of(to) && chance(50)) {
        return keep({b_.bitcast(a->value, to)});
    }
    if (from == to) return;
    if (!is_float(to)) return keep({b_.cast(a->value, to), to == DType::boolean ? 1.0 : 0.0});
    // An integer of unknown size may be as large as its type, or slightly larger after rounding.
    const double limit = from == DType::boolean ? 1
                         : is_integer(from) ? std::max(a->limit, std::ldexp(1.0, 8 * size_of(from)))
                                            : a->limit;
    if (1.25 * limit > largest(to) || a->fraction > 6) return;
    keep({b_.cast(a->value, to), 1.25 * limit, is_float(from) ? a->fraction : 0});
}

// ---- Movement.

/// The same elements with more axes: of extent 1, or halves of even ones.
Shape PortableGenerator::split(const Shape& shape) {
    std::vector<std::int64_t> dims;
    std::size_t left = kMaxRank - static_cast<std::size_t>(shape.rank());
    for (std::int64_t dim : shape.dims()) {
        if (left > 0 && chance(50)) {
            const std::int64_t outer = dim % 2 == 0 ? 2 : 1;
            dims.push_back(outer);
            dim /= outer;
            --left;
        }
        dims.push_back(dim);
    }
    return Shape{std::span<const std::int64_t>(dims)};
}

void PortableGenerator::movement() {
    auto a = pick([](const Known&) { return true; });
    if (!a || scalars_only_) return;
    const Shape shape = type(*a).shape;
    const auto rank = static_cast<std::size_t>(shape.rank());
    Known result = *a;
    switch (below(6)) {
        case 0: {
            Shape wide = rank == 0 ? random_shape() : shape;
            for (int axis = 0; axis < shape.rank(); ++axis) {
                if (shape[axis] == 1) wide[axis] = any_of(dims_);
            }
            if (wide.size() > kMaxElements) return;
            result.value = b_.broadcast(a->value, wide);
            break;
        }
        case 1:
            result.value = b_.reshape(a->value, chance(50) ? Shape({shape.size()}) : split(shape));
            break;
        case 2: {
            std::vector<int> permutation(rank);
            for (std::size_t i = 0; i < rank; ++i) permutation[i] = static_cast<int>(i);
            for (std::size_t i = rank; i > 1; --i) {
                std::swap(permutation[i - 1], permutation[below(i)]);
            }
            result.value = b_.transpose(a->value, permutation);
            break;
        }
        case 3:
            if (rank == kMaxRank) return;
            result.value = b_.expand_dims(a->value, static_cast<int>(below(rank + 1)));
            break;
        case 4: {
            ir::SliceAttributes slice;
            for (std::size_t i = 0; i < rank; ++i) {
                const std::int64_t extent = shape[static_cast<int>(i)];
                const auto stride = static_cast<std::int64_t>(1 + below(2));
                const auto start =
                    static_cast<std::int64_t>(below(static_cast<std::uint64_t>(extent)));
                const std::int64_t most = (extent - start + stride - 1) / stride;
                slice.starts.push_back(start);
                slice.strides.push_back(stride);
                slice.sizes.push_back(
                    1 + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most))));
            }
            result.value = b_.slice(a->value, slice);
            break;
        }
        default: {
            if (rank == 0 || 2 * shape.size() > kMaxElements) return;
            const auto b = pick([&](const Known& k) { return type(k) == type(*a); });
            const Value parts[] = {a->value, b->value};
            result.value = b_.concatenate(parts, static_cast<int>(below(rank)));
            result.limit = std::max(a->limit, b->limit);
            result.fraction = std::max(a->fraction, b->fraction);
            result.rounded = a->rounded || b->rounded;
            result.ulps = std::max(a->ulps, b->ulps);
        }
    }
    keep(result);
}

// ---- Across lanes.

void PortableGenerator::reduction() {
    const auto a = pick([&](const Known& k) { return !k.rounded && type(k).shape.rank() > 0; });
    if (!a) return;
    const DType dtype = type(*a).dtype;
    const auto rank = static_cast<std::uint64_t>(type(*a).shape.rank());
    const int axis = static_cast<int>(below(rank));
    const auto length = static_cast<double>(type(*a).shape[axis]);
    if (chance(15)) {
        const auto extent = static_cast<std::uint64_t>(length);
        const auto count = static_cast<std::int64_t>(chance(50) ? extent : 1 + below(extent));
        const ir::SortAttributes how{axis, count, chance(50)};
        Known sorted = *a;
        sorted.value = b_.sort(a->value, how);
        keep(sorted);
        if (chance(50)) keep({b_.argsort(a->value, how), length});
        return;
    }
    const bool scans = chance(35);
    Reduction kind = any_of(std::initializer_list<Reduction>{
        Reduction::sum, Reduction::sum, Reduction::prod, Reduction::max, Reduction::min,
        Reduction::argmax, Reduction::argmin});
    if (dtype == DType::boolean) kind = chance(50) ? Reduction::any : Reduction::all;
    const bool gives_index = kind == Reduction::argmax || kind == Reduction::argmin;
    if (scans && gives_index) kind = Reduction::sum;
    Known result = *a;
    if (kind == Reduction::sum) result.limit = a->limit * length;
    if (kind == Reduction::prod) {
        result.limit = std::pow(std::max(a->limit, 1.0), length);
        result.fraction = a->fraction * static_cast<int>(length);
    }
    // Sums of narrow floats are carried in f32: exact there, then rounded once.
    const int bits = std::max(mantissa_bits(dtype), 24);
    if (kind == Reduction::sum || kind == Reduction::prod) {
        if (!exact(dtype, 1.25 * result.limit, result.fraction, bits)) return;
        if (is_float(dtype)) result.limit *= 1.25;
    }
    const bool extreme = kind == Reduction::max || kind == Reduction::min;
    if (scans && extreme && chance(50)) {
        auto mod = std::make_shared<ir::Function>();
        mod->name = "combine";
        const Type element{dtype, {}};
        const Value first = mod->add_parameter(element, "a");
        const Value second = mod->add_parameter(element, "b");
        ir::Builder inner(*mod);
        const Op op = kind == Reduction::max ? Op::max : Op::min;
        const Value yielded[] = {inner.binary(op, first, second)};
        inner.yield(yielded);
        const Value operands[] = {a->value};
        result.value = b_.associative_scan(std::move(mod), operands, axis, chance(50))[0];
    } else if (scans) {
        result.value = b_.scan(kind, a->value, axis, chance(50), chance(50));
        // The first element of an exclusive extreme is infinite.
        result.rounded = is_float(dtype) && extreme;
    } else {
        result.value = b_.reduce(kind, a->value, axis);
        if (gives_index) result = {result.value, length};
    }
    keep(result);
}

void PortableGenerator::dot() {
    const auto a = pick([&](const Known& k) {
        const int rank = type(k).shape.rank();
        return !k.rounded && (rank == 2 || rank == 3) && type(k).dtype != DType::boolean;
    });
    if (!a) return;
    const Shape shape = type(*a).shape;
    const DType dtype = type(*a).dtype;
    const int rank = shape.rank();
    ir::DotAttributes attributes;
    attributes.transpose_a = chance(40);
    attributes.transpose_b = chance(40);
    const std::int64_t rows = shape[attributes.transpose_a ? rank - 1 : rank - 2];
    const std::int64_t depth = shape[attributes.transpose_a ? rank - 2 : rank - 1];
    std::optional<Known> b = pick([&](const Known& k) {
        const Type& other = type(k);
        return !k.rounded && other.dtype == dtype && other.shape.rank() == rank &&
               (rank == 2 || other.shape[0] == shape[0]) &&
               other.shape[attributes.transpose_b ? rank - 1 : rank - 2] == depth;
    });
    if (!b) {  // a times its own transpose
        b = a;
        attributes.transpose_b = !attributes.transpose_a;
    }
    const Shape b_shape = type(*b).shape;
    const std::int64_t columns = b_shape[attributes.transpose_b ? rank - 2 : rank - 1];
    if (rows * columns * (rank == 3 ? shape[0] : 1) > kMaxElements) return;
    const double limit = a->limit * b->limit * static_cast<double>(depth);
    const int fraction = a->fraction + b->fraction;
    if (!exact(dtype == DType::f64 || !is_float(dtype) ? dtype : DType::f32, limit, fraction))
        return;
    Known result{b_.dot(a->value, b->value, {}, attributes), limit, fraction};
    const auto acc = pick_like(result);
    if (acc && chance(50) &&
        exact(b_.type(result.value).dtype, limit + acc->limit, std::max(fraction, acc->fraction))) {
        result = {b_.dot(a->value, b->value, acc->value, attributes), limit + acc->limit,
                  std::max(fraction, acc->fraction)};
    }
    keep(result);
}

void PortableGenerator::random_bits() {
    const auto counter = pick([&](const Known& k) { return type(k).dtype == DType::u64; });
    if (!counter) return;
    const Value key = b_.constant_int({DType::u64, {}}, static_cast<std::int64_t>(below(1000)));
    keep({b_.random_bits(key, counter->value)});
}

}  // namespace tilewright::testing
