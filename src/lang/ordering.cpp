// Sorting, and gathers along an axis, built from existing operations of the tile IR.
#include "lang/ordering.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "ir/evaluate.h"

namespace tilewright::lang {

using ir::Op;
using ir::Value;

namespace {

/// A tile with one axis moved to the end, seen as `rows` lines of `length` elements, flat.
class Lines {
  public:
    Lines(ir::Builder& builder, const ir::Shape& shape, int axis) : b_(builder) {
        const int rank = shape.rank();
        for (int a = 0; a < rank; ++a) {
            if (a != axis) order_.push_back(a);
        }
        order_.push_back(axis);
        back_.resize(order_.size());
        for (int a = 0; a < rank; ++a) back_[static_cast<std::size_t>(order_[a_(a)])] = a;
        for (const int a : order_) extents_.push_back(shape[a]);
        length = shape[axis];
        rows = shape.size() / std::max<std::int64_t>(length, 1);
        size = rows * length;
    }

    Value flat(Value tile) const { return b_.reshape(b_.transpose(tile, order_), ir::Shape{size}); }
    Value restored(Value flat) const {
        return b_.transpose(b_.reshape(flat, ir::Shape(std::span<const std::int64_t>(extents_))),
                            back_);
    }
    /// For each element, its place in its line, or the number of its line.
    Value place() const { return counted(1); }
    Value row() const { return counted(0); }

    std::int64_t rows = 1, length = 1, size = 1;

  private:
    static std::size_t a_(int axis) { return static_cast<std::size_t>(axis); }
    Value counted(int axis) const {
        return b_.reshape(b_.iota({DType::i32, ir::Shape{rows, length}}, axis), ir::Shape{size});
    }

    ir::Builder& b_;
    std::vector<int> order_, back_;
    std::vector<std::int64_t> extents_;
};

/// Elementwise operations on tiles of one shape and numbers.
class Elementwise {
  public:
    explicit Elementwise(ir::Builder& builder) : b_(builder) {}

    Value number(Value like, std::int64_t value) const {
        return b_.constant_int(b_.type(like), value);
    }
    Value operator()(Op op, Value a, Value c) const { return b_.binary(op, a, c); }
    Value operator()(Op op, Value a, std::int64_t c) const {
        return b_.binary(op, a, number(a, c));
    }
    /// A scalar in every element.
    Value splat(Value scalar, Value like) const {
        return b_.broadcast(scalar, b_.type(like).shape);
    }

  private:
    ir::Builder& b_;
};

/// Signed integers in the order of the elements: i32, of elements of 64 bits i64.
Value order_keys(ir::Builder& b, Value a) {
    const Elementwise e(b);
    const DType dtype = b.type(a).dtype;
    if (is_float(dtype)) {
        const bool wide = dtype == DType::f64;
        const DType key = wide ? DType::i64 : DType::i32;
        const Value x = b.cast(a, wide ? DType::f64 : DType::f32);
        const Value zero = b.constant(b.type(x), 0);
        const Value bits = b.bitcast(b.select(b.binary(Op::eq, x, zero), zero, x), key);
        const std::int64_t top = wide ? std::numeric_limits<std::int64_t>::max()
                                      : std::numeric_limits<std::int32_t>::max();
        // Of negative numbers the larger magnitude comes first.
        const Value ordered = b.select(e(Op::lt, bits, 0), e(Op::bitwise_xor, bits, top), bits);
        return b.select(b.unary(Op::isnan, x), e.number(ordered, top), ordered);
    }
    if (dtype == DType::u32 || dtype == DType::u64) {
        const Value bits = b.bitcast(a, dtype == DType::u32 ? DType::i32 : DType::i64);
        return e(Op::bitwise_xor, bits,
                 dtype == DType::u32 ? std::numeric_limits<std::int32_t>::min()
                                     : std::numeric_limits<std::int64_t>::min());
    }
    return dtype == DType::i64 ? a : b.cast(a, DType::i32);
}

Value scratch(ir::Builder& b, DType dtype, std::int64_t size) {
    return b.function().add_parameter({dtype, {size}, ir::Space::scratch, -1}, "order");
}

/// How many neighbours are put in order by counting before runs are merged: a power of two that
/// divides the length.
std::int64_t counted_run(std::int64_t length) {
    constexpr std::int64_t kLeast = 8, kMost = 64;
    const std::int64_t run = std::min(kMost, length & -length);
    return run < kLeast ? 1 : run;
}

/// Where each key goes when runs of so many neighbours are put in order: it counts those of its run
/// that come before it, one after the other, which takes no gather. `key_ref` holds the keys.
Value places_in_runs(ir::Builder& b, Value keys, Value key_ref, std::int64_t run) {
    const Elementwise e(b);
    const std::int64_t size = b.type(keys).shape.size(), runs = size / run;
    const ir::Shape shape{runs, run};
    const Value own = b.reshape(keys, shape), place = b.iota({DType::i32, shape}, 1);
    const auto index = [&](std::int64_t value) { return b.constant_int({DType::i64, {}}, value); };
    const Value start = e(Op::mul, b.iota({DType::i32, shape}, 0), run);
    const Value target = b.for_loop(
        index(0), index(run), index(1), std::array{start},
        [&](Value other, std::span<const Value> carry) {
            const std::array at{ir::IndexOperand::slice(other, runs, run)};
            const Value key = b.broadcast(b.expand_dims(b.load(key_ref, at), 1), shape);
            const Value earlier = e(Op::lt, e.splat(b.cast(other, DType::i32), place), place);
            const Value before = e(Op::bitwise_or, e(Op::lt, key, own),
                                   e(Op::bitwise_and, earlier, e(Op::eq, key, own)));
            return std::vector{e(Op::add, carry[0], b.cast(before, DType::i32))};
        })[0];
    return b.reshape(target, ir::Shape{size});
}

}  // namespace

Value sorted_places(ir::Builder& b, Value a, int axis, bool descending) {
    const ir::Shape shape = b.type(a).shape;
    const Lines lines(b, shape, axis);
    if (lines.length < 2 || lines.rows == 0) return b.constant_int({DType::i32, shape}, 0);
    const Elementwise e(b);
    Value keys = lines.flat(order_keys(b, a));
    if (descending) keys = b.unary(Op::bitwise_not, keys);
    const Value place = lines.place();
    const Value first = e(Op::mul, lines.row(), lines.length);
    const Value key_ref = scratch(b, b.type(keys).dtype, lines.size);
    const Value place_ref = scratch(b, DType::i32, lines.size);
    const Value zero = b.constant_int({DType::i64, {}}, 0),
                one = b.constant_int({DType::i64, {}}, 1);
    const std::array whole{ir::IndexOperand::slice(zero, lines.size, 1)};
    b.store(key_ref, whole, keys);
    b.store(place_ref, whole, place);
    const std::int64_t run = counted_run(lines.length);
    if (run > 1) {
        const std::array at{ir::IndexOperand::tile(places_in_runs(b, keys, key_ref, run))};
        b.store(key_ref, at, keys);
        b.store(place_ref, at, place);
    }
    const Value start_level =
        b.constant_int({DType::i64, {}}, std::countr_zero(static_cast<std::uint64_t>(run)));
    const auto levels =
        static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(lines.length - 1)));
    const Value last = b.constant_int({DType::i64, {}}, levels);
    b.for_loop(start_level, last, one, {}, [&](Value level, std::span<const Value>) {
        const Value width_of_run = b.binary(Op::shift_left, b.constant_int({DType::i32, {}}, 1),
                                            b.cast(level, DType::i32));
        const Value width = e.splat(width_of_run, place);
        const Value own = b.load(key_ref, whole), from = b.load(place_ref, whole);
        // Where its run and the other one begin, and how long that is.
        const Value within = e(Op::bitwise_and, place, e(Op::sub, width, 1));
        const Value start = e(Op::sub, place, within);
        const Value other = e(Op::bitwise_xor, start, width);
        const Value is_second = e(Op::lt, other, start);
        const Value length = e(Op::min, e(Op::sub, e.number(place, lines.length), other), width);
        const Value before_other = e(Op::sub, e(Op::add, first, other), 1);
        // How many elements of the other run come before this one.
        const Value steps = b.binary(Op::add, level, one);
        const Value found = b.for_loop(
            zero, steps, one, std::array{e.number(place, 0)},
            [&](Value step, std::span<const Value> carry) {
                const Value half =
                    b.binary(Op::shift_right, width_of_run, b.cast(step, DType::i32));
                const Value reach = e(Op::add, carry[0], e.splat(half, place));
                const Value exists = e(Op::le, reach, length);
                const std::array at{ir::IndexOperand::tile(e(Op::add, before_other, reach))};
                const Value key = b.load(key_ref, at, exists);
                const Value before = e(Op::bitwise_or, e(Op::lt, key, own),
                                       e(Op::bitwise_and, is_second, e(Op::eq, key, own)));
                return std::vector{b.select(e(Op::bitwise_and, exists, before), reach, carry[0])};
            })[0];
        const Value target =
            e(Op::add, e(Op::add, first, e(Op::min, start, other)), e(Op::add, within, found));
        const std::array at{ir::IndexOperand::tile(target)};
        b.store(key_ref, at, own);
        b.store(place_ref, at, from);
        return std::vector<Value>();
    });
    return lines.restored(b.load(place_ref, whole));
}

Value elements_at(ir::Builder& b, Value a, Value places, int axis) {
    const Lines from(b, b.type(a).shape, axis), to(b, b.type(places).shape, axis);
    const Elementwise e(b);
    if (from.size == 0 || to.size == 0) {
        return b.constant({b.type(a).dtype, b.type(places).shape}, 0);
    }
    const Value ref = scratch(b, b.type(a).dtype, from.size);
    const Value zero = b.constant_int({DType::i64, {}}, 0);
    b.store(ref, std::array{ir::IndexOperand::slice(zero, from.size, 1)}, from.flat(a));
    const Value place = to.flat(b.cast(places, DType::i64));
    const Value inside = e(Op::bitwise_and, e(Op::ge, place, 0), e(Op::lt, place, from.length));
    const Value known = b.select(inside, place, e.number(place, 0));
    const Value row = e(Op::mul, to.row(), from.length);
    const Value flat = e(Op::add, row, b.cast(known, DType::i32));
    return to.restored(b.load(ref, std::array{ir::IndexOperand::tile(flat)}, inside));
}

Value largest_places(ir::Builder& b, Value a, std::int64_t count, int axis) {
    const ir::Shape shape = b.type(a).shape;
    const Value keys = order_keys(b, a);
    // Passes that each take the largest left; sorting is cheaper than many of them, and keys of 64
    // bits leave no bits for the places.
    constexpr std::int64_t kPasses = 16;
    if (count > kPasses || size_of(b.type(keys).dtype) > 4) {
        ir::SliceAttributes slice;
        for (int d = 0; d < shape.rank(); ++d) {
            slice.starts.push_back(0);
            slice.sizes.push_back(d == axis ? count : shape[d]);
            slice.strides.push_back(1);
        }
        return b.slice(sorted_places(b, a, axis, true), slice);
    }
    const Elementwise e(b);
    // Keys that differ: the key, then the place, the lower the larger.
    const Value wide = e(Op::mul, b.cast(keys, DType::i64), std::int64_t{1} << 32);
    const Value place = b.iota({DType::i64, shape}, axis);
    constexpr std::int64_t kLast = std::numeric_limits<std::int32_t>::max();
    const Value unique = e(Op::add, wide, e(Op::sub, e.number(place, kLast), place));
    const Value lowest = e.number(unique, std::numeric_limits<std::int64_t>::min());
    std::vector<Value> found;
    for (std::int64_t i = 0; i < count; ++i) {
        Value left = unique;
        if (i > 0) {
            const Value before = b.broadcast(found.back(), shape);
            left = b.select(e(Op::lt, unique, before), unique, lowest);
        }
        found.push_back(b.expand_dims(b.reduce(ir::Reduction::max, left, axis), axis));
    }
    const Value all = found.size() == 1 ? found.front() : b.concatenate(found, axis);
    const Value low = e(Op::bitwise_and, all, kLast);
    return b.cast(e(Op::sub, e.number(low, kLast), low), DType::i32);
}

}  // namespace tilewright::lang
