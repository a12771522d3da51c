// Random kernels whose results depend on no machine.
#include "tests/support/portable_program.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <random>

#include "ir/builder.h"
#include "tests/support/poison.h"
#include "tests/support/tolerance.h"

namespace tilewright::testing {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Reduction;
using ir::Shape;
using ir::Type;
using ir::Value;

constexpr DType kDTypes[] = {DType::f32,    DType::f32,   DType::f64, DType::f16, DType::bf16,
                             DType::i32,    DType::i32,   DType::i64, DType::i8,  DType::u8,
                             DType::i16,    DType::u16,   DType::u32, DType::u64, DType::boolean,
                             DType::f8e4m3, DType::f8e5m2};
constexpr std::int64_t kMaxElements = 400;

/// Bits of an integer that a float dtype holds exactly.
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

/// A value and what is known of its elements. Floats that are not `rounded` are multiples of
/// 2^-fraction of magnitude at most `limit`, so that sums and products of them can be kept exact.
struct Known {
    Value value;
    double limit = 0;
    int fraction = 0;
    bool rounded = false;  ///< any float: may be moved and stored, nothing else
    double ulps = 0;
};

class Generator {
  public:
    Generator(ir::Function& function, std::mt19937_64& random) : b_(function), random_(random) {}

    void kernel(PortableProgram& program);

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
    template <typename Range>
    const auto& any_of(const Range& range) {
        return *(std::begin(range) + static_cast<std::ptrdiff_t>(below(std::size(range))));
    }
    Op any_op(std::initializer_list<Op> ops) { return *(ops.begin() + below(ops.size())); }

    Type type(const Known& known) const { return b_.type(known.value); }
    Value index(std::int64_t value) { return b_.constant_int({DType::i64, {}}, value); }
    void keep(const Known& known) { pool_.push_back(known); }

    /// A random value of the pool that fits, if there is one.
    template <typename Predicate>
    std::optional<Known> pick(Predicate&& fits) {
        std::vector<const Known*> candidates;
        for (const Known& known : pool_) {
            if (fits(known)) candidates.push_back(&known);
        }
        if (candidates.empty()) return std::nullopt;
        return *any_of(candidates);
    }
    std::optional<Known> pick_exact() {
        return pick([](const Known& known) { return !known.rounded; });
    }
    std::optional<Known> pick_like(const Known& model) {
        return pick([&](const Known& k) { return !k.rounded && type(k) == type(model); });
    }
    /// Can stand where `model` did, as the next value of a loop.
    std::optional<Known> pick_within(const Known& model) {
        return pick([&](const Known& k) {
            return !k.rounded && type(k) == type(model) &&
                   (!is_float(type(k).dtype) ||
                    (k.limit <= model.limit && k.fraction <= model.fraction));
        });
    }
    /// Keeps a result whose elements are these multiples if the dtype holds them exactly.
    bool exact(DType dtype, double limit, int fraction, int bits) const {
        return !is_float(dtype) || (std::ldexp(limit, fraction) <= std::ldexp(1.0, bits) &&
                                    limit <= largest(dtype) && fraction <= 8);
    }
    bool exact(DType dtype, double limit, int fraction) const {
        return exact(dtype, limit, fraction, mantissa_bits(dtype));
    }

    Shape random_shape();
    void step();
    void steps(int count);

    void constant();
    void iota();
    void load();
    void unary();
    void function_with_error();
    void binary();
    void division();
    void comparison();
    void ternary();
    void cast();
    void movement();
    void reduction();
    void dot();
    void random_bits();
    void through_scratch();
    void atomic();
    void for_loop();
    void while_loop();
    void if_else();
    void call();
    void store(const Known& known, PortableProgram& program);

    ir::Builder b_;
    std::mt19937_64& random_;
    bool scalars_only_ = false;
    int depth_ = 0;
    std::vector<std::int64_t> dims_;
    std::vector<Known> pool_;
    std::vector<Value> inputs_;
    std::vector<Value> counters_;  ///< one per atomic op
};

Shape Generator::random_shape() {
    if (scalars_only_) return {};
    for (;;) {
        std::vector<std::int64_t> dims(below(4));
        for (auto& dim : dims) dim = chance(10) ? 1 : any_of(dims_);
        const Shape shape{std::span<const std::int64_t>(dims)};
        if (shape.size() <= kMaxElements) return shape;
    }
}

// ---- Sources.

void Generator::constant() {
    const DType dtype = any_of(kDTypes);
    const double value = static_cast<double>(below(7)) / (is_float(dtype) ? 4 : 1);
    const Type wanted{dtype, random_shape()};
    if (dtype == DType::boolean) {
        keep({b_.constant_int(wanted, chance(50)), 1});
    } else {
        keep({b_.constant(wanted, value), 6, 2});
    }
}

void Generator::iota() {
    const Shape shape = random_shape();
    if (shape.rank() == 0) return constant();
    const int axis = static_cast<int>(below(static_cast<std::uint64_t>(shape.rank())));
    const DType dtype = any_of(std::initializer_list<DType>{DType::i32, DType::i64, DType::f32});
    keep({b_.iota({dtype, shape}, axis), static_cast<double>(shape[axis])});
}

void Generator::load() {
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

void Generator::unary() {
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

void Generator::function_with_error() {
    const auto a = pick(
        [&](const Known& k) { return !k.rounded && is_float(type(k).dtype) && k.limit <= 64; });
    if (!a) return;
    const DType dtype = type(*a).dtype;
    const Op op = any_op({Op::exp, Op::exp2, Op::expm1, Op::log, Op::log2, Op::log1p, Op::tanh,
                          Op::logistic, Op::erf, Op::sin, Op::cos, Op::sqrt, Op::rsqrt, Op::pow});
    // The sign of a zero may differ between machines: no pole there.
    const Value operand = b_.unary(Op::abs, a->value);
    Known result{op == Op::pow ? b_.binary(op, operand, b_.constant(type(*a), 1.5))
                               : b_.unary(op, operand)};
    result.rounded = true;
    result.ulps = ulps_between_machines(op, dtype);
    keep(result);
}

void Generator::binary() {
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

void Generator::division() {
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

void Generator::comparison() {
    const auto a = pick_exact();
    const auto b = a ? pick_like(*a) : std::nullopt;
    if (!b) return;
    const Op op = any_op({Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge});
    keep({b_.binary(op, a->value, b->value), 1});
}

void Generator::ternary() {
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

void Generator::cast() {
    const auto a = pick_exact();
    if (!a) return;
    const DType from = type(*a).dtype, to = any_of(kDTypes);
    if (is_integer(from) && is_integer(to) && size_of(from) == size_of(to) && chance(50)) {
        return keep({b_.bitcast(a->value, to)});
    }
    if (from == to) return;
    if (!is_float(to)) return keep({b_.cast(a->value, to), to == DType::boolean ? 1.0 : 0.0});
    // An integer of unknown size may be as large as its type; rounding may carry it a bit beyond.
    const double limit = from == DType::boolean ? 1
                         : is_integer(from) ? std::max(a->limit, std::ldexp(1.0, 8 * size_of(from)))
                                            : a->limit;
    if (1.25 * limit > largest(to) || a->fraction > 6) return;
    keep({b_.cast(a->value, to), 1.25 * limit, is_float(from) ? a->fraction : 0});
}

// ---- Movement.

void Generator::movement() {
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
            result.value = b_.reshape(a->value, Shape({shape.size()}));
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
            if (rank == 4) return;
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

void Generator::reduction() {
    const auto a = pick([&](const Known& k) { return !k.rounded && type(k).shape.rank() > 0; });
    if (!a) return;
    const DType dtype = type(*a).dtype;
    const auto rank = static_cast<std::uint64_t>(type(*a).shape.rank());
    const int axis = static_cast<int>(below(rank));
    const auto length = static_cast<double>(type(*a).shape[axis]);
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
    if (scans) {
        result.value = b_.scan(kind, a->value, axis, chance(50), chance(50));
        // The first element of an exclusive extreme is infinite.
        result.rounded = is_float(dtype) && (kind == Reduction::max || kind == Reduction::min);
    } else {
        result.value = b_.reduce(kind, a->value, axis);
        if (gives_index) result = {result.value, length};
    }
    keep(result);
}

void Generator::dot() {
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

void Generator::random_bits() {
    const auto counter = pick([&](const Known& k) { return type(k).dtype == DType::u64; });
    if (!counter) return;
    const Value key = b_.constant_int({DType::u64, {}}, static_cast<std::int64_t>(below(1000)));
    keep({b_.random_bits(key, counter->value)});
}

// ---- Memory of the program and of the grid.

void Generator::through_scratch() {
    const auto a = pick([&](const Known& k) { return type(k).shape.rank() > 0; });
    if (!a) return;
    const Type stored = type(*a);
    const std::vector<std::int64_t> extents(stored.shape.dims().begin(), stored.shape.dims().end());
    const Value scratch =
        b_.function().add_parameter({stored.dtype, extents, ir::Space::scratch, -1}, "");
    std::vector<IndexOperand> all, some;
    for (std::int64_t extent : extents) {
        all.push_back(IndexOperand::slice(index(0), extent));
        some.push_back(IndexOperand::slice(index(static_cast<std::int64_t>(below(3)) - 1), extent));
    }
    b_.store(scratch, all, a->value);
    Known result = *a;
    result.value = b_.load(scratch, some);
    keep(result);
}

void Generator::atomic() {
    const auto where =
        pick([&](const Known& k) { return is_integer(type(k).dtype) && type(k).shape.rank() > 0; });
    if (!where) return;
    const IndexOperand indices[] = {IndexOperand::tile(where->value)};
    // One op per array: only then the order of programs does not matter.
    const std::size_t which = below(counters_.size());
    static constexpr Op kOps[] = {Op::atomic_add, Op::atomic_max, Op::atomic_min};
    b_.atomic(kOps[which], counters_[which], indices,
              b_.constant_int({DType::i32, type(*where).shape}, 3));
}

// ---- Control flow. Values of a block leave the pool at its end.

void Generator::for_loop() {
    const auto init = pick_exact();
    if (!init) return;
    const Value start[] = {init->value};
    const std::size_t outside = pool_.size();
    const auto low = static_cast<std::int64_t>(below(4));
    const auto results = b_.for_loop(index(low), index(low + static_cast<std::int64_t>(below(5))),
                                     index(1 + static_cast<std::int64_t>(below(2))), start,
                                     [&](Value iv, std::span<const Value> carries) {
                                         keep({iv, 8});
                                         Known carry = *init;
                                         carry.value = carries[0];
                                         keep(carry);
                                         steps(3);
                                         return std::vector{pick_within(carry)->value};
                                     });
    pool_.resize(outside);
    Known result = *init;
    result.value = results[0];
    keep(result);
}

void Generator::while_loop() {
    const auto init = pick_exact();
    if (!init) return;
    const auto turns = static_cast<std::int64_t>(below(4));
    const Value start[] = {index(0), init->value};
    const std::size_t outside = pool_.size();
    const auto results = b_.while_loop(
        start, [&](std::span<const Value> c) { return b_.binary(Op::lt, c[0], index(turns)); },
        [&](std::span<const Value> c) {
            Known carry = *init;
            carry.value = c[1];
            keep(carry);
            steps(2);
            return std::vector{b_.binary(Op::add, c[0], index(1)), pick_within(carry)->value};
        });
    pool_.resize(outside);
    Known result = *init;
    result.value = results[1];
    keep(result);
}

void Generator::if_else() {
    const auto condition = pick(
        [&](const Known& k) { return type(k).dtype == DType::boolean && type(k).is_scalar(); });
    const auto model = pick_exact();
    if (!condition || !model) return;
    const std::size_t outside = pool_.size();
    Known result = *model;
    const auto branch = [&] {
        steps(2);
        const Known chosen = *pick_like(*model);
        pool_.resize(outside);
        result.limit = std::max(result.limit, chosen.limit);
        result.fraction = std::max(result.fraction, chosen.fraction);
        return std::vector{chosen.value};
    };
    result.value = b_.if_else(condition->value, branch, branch)[0];
    keep(result);
}

void Generator::call() {
    const auto a = pick_exact();
    if (!a) return;
    const auto b = pick([&](const Known& k) {
        return !k.rounded && (type(k).is_scalar() || type(k).shape == type(*a).shape);
    });
    auto mod = std::make_shared<ir::Function>();
    mod->name = "mod" + std::to_string(below(1000000));
    Generator inner(*mod, random_);
    inner.scalars_only_ = true;
    inner.depth_ = 2;
    Known parameters[] = {*a, *b};
    for (Known& known : parameters) {
        known.value = mod->add_parameter(Type{type(known).dtype, {}}, "");
        inner.keep(known);
    }
    inner.steps(4);
    Known result = inner.pool_.back();
    const Value yielded[] = {result.value};
    inner.b_.yield(yielded);
    const Value operands[] = {a->value, b->value};
    result.value = b_.call(mod, operands)[0];
    keep(result);
}

// ---- Whole programs.

void Generator::step() {
    static constexpr void (Generator::*kElementwise[])() = {
        &Generator::unary,    &Generator::binary,     &Generator::binary,
        &Generator::division, &Generator::comparison, &Generator::ternary,
        &Generator::cast,     &Generator::constant,   &Generator::function_with_error};
    static constexpr void (Generator::*kTiles[])() = {
        &Generator::iota,           &Generator::load,
        &Generator::load,           &Generator::movement,
        &Generator::movement,       &Generator::reduction,
        &Generator::reduction,      &Generator::dot,
        &Generator::random_bits,    &Generator::atomic,
        &Generator::through_scratch};
    static constexpr void (Generator::*kControl[])() = {
        &Generator::for_loop, &Generator::while_loop, &Generator::if_else, &Generator::call};
    if (scalars_only_ || chance(50)) {
        (this->*any_of(kElementwise))();
    } else if (depth_ < 2 && chance(25)) {
        ++depth_;
        (this->*any_of(kControl))();
        --depth_;
    } else {
        (this->*any_of(kTiles))();
    }
}

void Generator::steps(int count) {
    for (int i = 0; i < count; ++i) step();
}

/// Each program of the grid stores to its own part of a new output; some tiles hang over its edge.
void Generator::store(const Known& known, PortableProgram& program) {
    const Type stored = type(known);
    PortableArray array;
    array.dtype = stored.dtype;
    array.is_output = true;
    array.ulps = known.ulps;
    array.extents = program.grid;
    std::vector<IndexOperand> indices;
    for (std::size_t axis = 0; axis < program.grid.size(); ++axis) {
        indices.push_back(IndexOperand::scalar(b_.program_id(static_cast<int>(axis))));
    }
    for (std::int64_t extent : stored.shape.dims()) {
        array.extents.push_back(extent > 1 && chance(20) ? extent - 1 : extent);
        indices.push_back(IndexOperand::slice(index(0), extent));
    }
    const Value ref = b_.function().add_parameter(
        ir::RefType{stored.dtype, array.extents, ir::Space::global, -1}, "");
    const auto mask = pick([&](const Known& k) {
        return type(k).dtype == DType::boolean &&
               (type(k).is_scalar() || type(k).shape == stored.shape);
    });
    b_.store(ref, indices, known.value, mask && chance(20) ? mask->value : Value{});
    program.arrays.push_back(array);
}

void Generator::kernel(PortableProgram& program) {
    for (std::uint64_t axes = below(3); axes > 0; --axes) {
        program.grid.push_back(1 + static_cast<std::int64_t>(below(3)));
    }
    program.function.grid = program.grid;
    program.function.name = "portable";
    for (int i = 0; i < 3; ++i)
        dims_.push_back(1 + static_cast<std::int64_t>(below(i == 0 ? 33 : 9)));
    for (std::uint64_t count = 2 + below(3); count > 0; --count) {
        PortableArray array;
        array.dtype = any_of(kDTypes);
        for (std::uint64_t rank = below(4); rank > 0; --rank) {
            array.extents.push_back(1 + static_cast<std::int64_t>(below(12)));
        }
        ir::RefType ref_type{array.dtype, array.extents, ir::Space::global, -1};
        for (auto& extent : ref_type.extents) {
            if (chance(30)) extent = ir::kDynamic;
        }
        inputs_.push_back(b_.function().add_parameter(ref_type, ""));
        program.arrays.push_back(array);
    }
    for (int i = 0; i < 3; ++i) {
        PortableArray counters;
        counters.dtype = DType::i32;
        counters.extents = {7};
        counters_.push_back(
            b_.function().add_parameter(ir::RefType{DType::i32, {7}, ir::Space::global, -1}, ""));
        program.arrays.push_back(counters);
    }

    for (std::size_t axis = 0; axis < program.grid.size(); ++axis) {
        keep({b_.program_id(static_cast<int>(axis)), 3});
        keep({b_.num_programs(static_cast<int>(axis)), 3});
    }
    for (Value ref : inputs_) {
        if (b_.function().ref_type(ref).rank() > 0) keep({b_.extent(ref, 0), 12});
    }
    for (int i = 0; i < 3; ++i) load();
    steps(8 + static_cast<int>(below(16)));
    std::vector<Known> results = pool_;
    for (std::size_t i = 0; i < 8 && !results.empty(); ++i) {
        store(results.back(), program);
        results.pop_back();
    }
    b_.yield({});
}

void lay_out(PortableArray& array, std::mt19937_64& random) {
    // Row-major or column-major, with a gap behind the innermost dimension now and then.
    const std::size_t rank = array.extents.size();
    const bool column_major = random() % 4 == 0;
    const std::int64_t gap = random() % 3 == 0 ? 3 : 0;
    array.strides.assign(rank, 0);
    std::int64_t stride = 1;
    for (std::size_t i = 0; i < rank; ++i) {
        const std::size_t d = column_major ? i : rank - 1 - i;
        array.strides[d] = stride;
        stride = stride * array.extents[d] + (i == 0 ? gap : 0);
    }
    array.elements = stride;
}

}  // namespace

PortableProgram portable_program(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    PortableProgram program;
    Generator(program.function, random).kernel(program);
    for (PortableArray& array : program.arrays) lay_out(array, random);
    return program;
}

std::vector<std::vector<std::byte>> portable_buffers(const PortableProgram& program,
                                                     std::uint64_t seed) {
    std::mt19937_64 random(~seed);
    std::vector<std::vector<std::byte>> buffers;
    for (const PortableArray& array : program.arrays) {
        const auto count = static_cast<std::size_t>(array.elements);
        const auto size = static_cast<std::size_t>(size_of(array.dtype));
        std::vector<std::byte>& buffer = buffers.emplace_back(count * size);
        poison(array.dtype, buffer.data(), count);
        if (array.is_output) continue;
        for (std::size_t i = 0; i < count; ++i) {
            std::uint64_t bits = random();
            if (is_float(array.dtype)) {
                bits = ir::encode(array.dtype, static_cast<double>(bits % 17) / 4 - 2);
            } else if (bits % 8 != 0) {  // small, and any pattern of bits now and then
                bits = ir::wrap_to(array.dtype, (bits >> 3) % 9 - 2);
            }
            ir::write_element(array.dtype, buffer.data() + i * size,
                              is_float(array.dtype) ? bits : ir::wrap_to(array.dtype, bits));
        }
    }
    return buffers;
}

ir::Arguments arguments_of(const PortableProgram& program,
                           std::vector<std::vector<std::byte>>& buffers) {
    ir::Arguments arguments;
    arguments.grid = program.grid;
    for (std::size_t i = 0; i < program.arrays.size(); ++i) {
        const PortableArray& array = program.arrays[i];
        ir::RefArgument argument;
        argument.data = buffers[i].data();
        std::copy(array.extents.begin(), array.extents.end(), argument.extents.begin());
        std::copy(array.strides.begin(), array.strides.end(), argument.strides.begin());
        arguments.refs.push_back(argument);
    }
    return arguments;
}

}  // namespace tilewright::testing
