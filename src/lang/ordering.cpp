// Gathers along an axis, built from existing operations of the tile IR.
#include "lang/ordering.h"

#include <algorithm>
#include <array>
#include <vector>

namespace tilewright::lang {

using ir::Op;
using ir::Value;

namespace {

/// A tile with one axis moved to the end and flattened: `rows` lines of `length` elements.
class Lines {
  public:
    Lines(ir::Builder& builder, const ir::Shape& shape, int axis) : b_(builder) {
        const int rank = shape.rank();
        for (int a = 0; a < rank; ++a) {
            if (a != axis) order_.push_back(a);
        }
        order_.push_back(axis);
        back_.resize(order_.size());
        for (int a = 0; a < rank; ++a) back_[order_[a]] = a;
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
    Value counted(int axis) const {
        return b_.reshape(b_.iota({DType::i32, ir::Shape{rows, length}}, axis), ir::Shape{size});
    }

    ir::Builder& b_;
    std::vector<int> order_, back_;
    std::vector<std::int64_t> extents_;
};

/// Elementwise operations on numbers and tiles of one shape.
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

  private:
    ir::Builder& b_;
};

}  // namespace

Value elements_at(ir::Builder& b, Value a, Value places, int axis) {
    const Lines from(b, b.type(a).shape, axis), to(b, b.type(places).shape, axis);
    const Elementwise e(b);
    if (from.size == 0 || to.size == 0) {
        return b.constant({b.type(a).dtype, b.type(places).shape}, 0);
    }
    const Value ref = b.function().add_parameter(
        {b.type(a).dtype, {from.size}, ir::Space::scratch, -1}, "elements");
    const Value zero = b.constant_int({DType::i64, {}}, 0);
    b.store(ref, std::array{ir::IndexOperand::slice(zero, from.size, 1)}, from.flat(a));
    const Value place = to.flat(b.cast(places, DType::i64));
    const Value inside = e(Op::bitwise_and, e(Op::ge, place, 0), e(Op::lt, place, from.length));
    const Value known = b.select(inside, place, e.number(place, 0));
    const Value row = e(Op::mul, to.row(), from.length);
    const Value flat = e(Op::add, row, b.cast(known, DType::i32));
    return to.restored(b.load(ref, std::array{ir::IndexOperand::tile(flat)}, inside));
}

}  // namespace tilewright::lang
