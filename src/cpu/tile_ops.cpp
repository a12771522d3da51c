// Pure operations of the reference machine, one element at a time.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include "cpu/tile_value.h"
#include "ir/evaluate.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Reduction;

/// Row-major strides of a shape, in elements.
std::array<std::int64_t, ir::kMaxTileRank> strides_of(const ir::Shape& shape) {
    std::array<std::int64_t, ir::kMaxTileRank> strides{};
    std::int64_t stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        strides[axis] = stride;
        stride *= shape[axis];
    }
    return strides;
}

/// Calls visit(linear, coordinates) for every element of a shape in row-major order.
template <typename Visitor>
void for_each_element(const ir::Shape& shape, Visitor&& visit) {
    std::array<std::int64_t, ir::kMaxTileRank> at{};
    const std::int64_t size = shape.size();
    for (std::int64_t linear = 0; linear < size; ++linear) {
        visit(static_cast<std::size_t>(linear), at);
        for (int axis = shape.rank() - 1; axis >= 0; --axis) {
            const std::size_t a = axis;
            if (++at[a] < shape[axis]) break;
            at[a] = 0;
        }
    }
}

void copy_element(const TileValue& from, std::size_t source, TileValue& to, std::size_t target) {
    to.bits[target] = from.bits[source];
    to.set_poison(target, from.poison_at(source));
}

// ---- Elementwise.

/// Poison of one element of an elementwise result: that of any operand that the value depends on.
Poison elementwise_poison(Op op, DType dtype, std::span<const std::uint64_t> bits,
                          std::span<const Poison> poison) {
    if (op == Op::select && poison[0] == 0) return bits[0] != 0 ? poison[1] : poison[2];
    const bool logical = dtype == DType::boolean && (op == Op::bitwise_and || op == Op::bitwise_or);
    for (std::size_t i = 0; i < poison.size(); ++i) {
        // A defined false decides an `and` and a defined true an `or`, whatever the other side is.
        const bool decides = bits[i] == (op == Op::bitwise_or ? 1U : 0U);
        if (logical && poison[i] == 0 && decides) return 0;
    }
    for (Poison p : poison) {
        if (p != 0) return p;
    }
    return 0;
}

/// Running value of a reduction or scan over elements of one dtype.
class Accumulator {
  public:
    Accumulator(Reduction kind, DType dtype)
        : kind_(kind), dtype_(dtype), carrier_(ir::accumulator(kind, dtype)) {}

    void start() { constant_ = ir::identity(kind_, carrier_); }
    void add(std::uint64_t bits) {
        constant_ = ir::combine(kind_, carrier_, constant_, to_constant(dtype_, bits));
    }
    std::uint64_t bits() const { return from_constant(dtype_, constant_); }

  private:
    Reduction kind_;
    DType dtype_, carrier_;
    std::uint64_t constant_ = 0;
};

/// The operands of a dot as [batch, rows, k] and [batch, columns, k], and the result as [batch,
/// rows, columns], whichever was stored transposed.
struct DotShape {
    std::size_t batch = 1, rows = 0, columns = 0, depth = 0;
    bool transpose_a = false, transpose_b = false;

    std::size_t a(std::size_t b, std::size_t m, std::size_t k) const {
        return b * rows * depth + (transpose_a ? k * rows + m : m * depth + k);
    }
    std::size_t b(std::size_t b, std::size_t n, std::size_t k) const {
        return b * columns * depth + (transpose_b ? n * depth + k : k * columns + n);
    }
};

template <typename T>
T element(DType dtype, std::uint64_t bits) {
    if constexpr (std::is_integral_v<T>) {
        return bits;
    } else {
        return static_cast<T>(std::bit_cast<double>(to_constant(dtype, bits)));
    }
}

/// Accumulates in T: float, double, or u64, whose low bits are those of any narrower integer.
template <typename T>
void dot_in(const DotShape& shape, const TileValue& a, const TileValue& b, const TileValue* acc,
            TileValue& result) {
    std::vector<T> a_values(a.bits.size());
    std::vector<T> b_values(b.bits.size());
    for (std::size_t i = 0; i < a_values.size(); ++i) {
        a_values[i] = element<T>(a.type.dtype, a.bits[i]);
    }
    for (std::size_t i = 0; i < b_values.size(); ++i) {
        b_values[i] = element<T>(b.type.dtype, b.bits[i]);
    }
    for (std::size_t batch = 0; batch < shape.batch; ++batch) {
        for (std::size_t m = 0; m < shape.rows; ++m) {
            for (std::size_t n = 0; n < shape.columns; ++n) {
                const std::size_t target = (batch * shape.rows + m) * shape.columns + n;
                T sum = acc != nullptr ? element<T>(acc->type.dtype, acc->bits[target]) : T{0};
                for (std::size_t k = 0; k < shape.depth; ++k) {
                    sum += a_values[shape.a(batch, m, k)] * b_values[shape.b(batch, n, k)];
                }
                if constexpr (std::is_integral_v<T>) {
                    result.bits[target] = ir::wrap_to(result.type.dtype, sum);
                } else {
                    result.bits[target] = from_constant(
                        result.type.dtype, std::bit_cast<std::uint64_t>(static_cast<double>(sum)));
                }
            }
        }
    }
}

void dot_poison(const DotShape& shape, const TileValue& a, const TileValue& b, const TileValue* acc,
                TileValue& result) {
    for (std::size_t batch = 0; batch < shape.batch; ++batch) {
        for (std::size_t m = 0; m < shape.rows; ++m) {
            for (std::size_t n = 0; n < shape.columns; ++n) {
                const std::size_t target = (batch * shape.rows + m) * shape.columns + n;
                Poison poison = acc != nullptr ? acc->poison_at(target) : 0;
                for (std::size_t k = 0; k < shape.depth && poison == 0; ++k) {
                    poison = a.poison_at(shape.a(batch, m, k));
                    if (poison == 0) poison = b.poison_at(shape.b(batch, n, k));
                }
                result.set_poison(target, poison);
            }
        }
    }
}

}  // namespace

void apply_elementwise(const ir::Instruction& instruction,
                       std::span<const TileValue* const> operands, TileValue& result) {
    const Op op = instruction.op;
    // The condition of a select is bool, so the dtype of an op is that of its last operand.
    const DType dtype = operands.back()->type.dtype;
    const DType result_dtype = result.type.dtype;
    const std::size_t count = operands.size();
    bool any_poison = false;
    for (const TileValue* operand : operands) any_poison = any_poison || !operand->poison.empty();

    std::array<std::uint64_t, 3> bits{};
    std::array<std::uint64_t, 3> constants{};
    std::array<Poison, 3> poison{};
    for (std::size_t i = 0; i < result.bits.size(); ++i) {
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t at = operands[k]->type.is_scalar() ? 0 : i;
            bits[k] = operands[k]->bits[at];
            poison[k] = operands[k]->poison_at(at);
        }
        if (op == Op::select) {
            result.bits[i] = bits[0] != 0 ? bits[1] : bits[2];
        } else if (op == Op::bitcast) {
            std::byte raw[8];
            write_bits(raw, dtype, bits[0]);
            result.bits[i] = read_bits(raw, result_dtype);
        } else {
            for (std::size_t k = 0; k < count; ++k) constants[k] = to_constant(dtype, bits[k]);
            result.bits[i] = from_constant(result_dtype,
                                           ir::evaluate(op, dtype, result_dtype, constants.data()));
        }
        if (any_poison) {
            result.set_poison(
                i, elementwise_poison(op, dtype, {bits.data(), count}, {poison.data(), count}));
        }
    }
}

// ---- Movement.

void apply_movement(const ir::Instruction& instruction, std::span<const TileValue* const> operands,
                    TileValue& result) {
    const TileValue& operand = *operands[0];
    const ir::Shape& from = operand.type.shape;
    const auto strides = strides_of(from);
    switch (instruction.op) {
        case Op::reshape:
        case Op::expand_dims:
            result.bits = operand.bits;
            result.poison = operand.poison;
            return;
        case Op::broadcast:
            for_each_element(result.type.shape, [&](std::size_t i, const auto& at) {
                std::int64_t source = 0;
                for (int axis = 0; axis < from.rank(); ++axis) {
                    const std::size_t a = axis;
                    if (from[axis] != 1) source += at[a] * strides[a];
                }
                copy_element(operand, static_cast<std::size_t>(source), result, i);
            });
            return;
        case Op::transpose: {
            const auto& permutation = instruction.get<ir::PermutationAttributes>().permutation;
            for_each_element(result.type.shape, [&](std::size_t i, const auto& at) {
                std::int64_t source = 0;
                for (std::size_t a = 0; a < permutation.size(); ++a) {
                    source += at[a] * strides[permutation[a]];
                }
                copy_element(operand, static_cast<std::size_t>(source), result, i);
            });
            return;
        }
        case Op::slice: {
            const auto& slice = instruction.get<ir::SliceAttributes>();
            for_each_element(result.type.shape, [&](std::size_t i, const auto& at) {
                std::int64_t source = 0;
                for (std::size_t a = 0; a < slice.starts.size(); ++a) {
                    source += (slice.starts[a] + at[a] * slice.strides[a]) * strides[a];
                }
                copy_element(operand, static_cast<std::size_t>(source), result, i);
            });
            return;
        }
        case Op::concatenate: {
            const int axis = instruction.get<ir::AxisAttributes>().axis;
            const auto result_strides = strides_of(result.type.shape);
            std::int64_t start = 0;
            for (const TileValue* part : operands) {
                for_each_element(part->type.shape, [&](std::size_t i, const auto& at) {
                    std::int64_t target = start * result_strides[axis];
                    for (std::size_t a = 0; a < at.size(); ++a) target += at[a] * result_strides[a];
                    copy_element(*part, i, result, static_cast<std::size_t>(target));
                });
                start += part->type.shape[axis];
            }
            return;
        }
        default:
            TW_ASSERT(false, "{} moves nothing", ir::name(instruction.op));
    }
}

void apply_iota(int axis, TileValue& result) {
    const DType dtype = result.type.dtype;
    for_each_element(result.type.shape, [&](std::size_t i, const auto& at) {
        const auto index = static_cast<std::uint64_t>(at[axis]);
        result.bits[i] = from_constant(dtype, ir::evaluate(Op::cast, DType::i64, dtype, &index));
    });
}

// ---- Across lanes.

void apply_reduce(const ir::ReduceAttributes& attributes, const TileValue& operand,
                  TileValue& result) {
    const Lines lines(operand.type.shape, attributes.axis);
    const DType dtype = operand.type.dtype;
    const bool index = attributes.kind == Reduction::argmax || attributes.kind == Reduction::argmin;
    Accumulator accumulator(attributes.kind, dtype);
    for (std::size_t o = 0; o < lines.outer; ++o) {
        for (std::size_t i = 0; i < lines.inner; ++i) {
            const std::size_t target = o * lines.inner + i;
            std::size_t best = 0;
            Poison poison = 0;
            if (!index) accumulator.start();
            for (std::size_t k = 0; k < lines.length; ++k) {
                const std::size_t source = lines.at(o, k, i);
                if (poison == 0) poison = operand.poison_at(source);
                if (!index) {
                    accumulator.add(operand.bits[source]);
                } else if (ir::replaces_extreme(
                               attributes.kind, dtype,
                               to_constant(dtype, operand.bits[lines.at(o, best, i)]),
                               to_constant(dtype, operand.bits[source]))) {
                    best = k;
                }
            }
            result.bits[target] = index ? best : accumulator.bits();
            result.set_poison(target, poison);
        }
    }
}

void apply_scan(const ir::ReduceAttributes& attributes, const TileValue& operand,
                TileValue& result) {
    const Lines lines(operand.type.shape, attributes.axis);
    Accumulator accumulator(attributes.kind, operand.type.dtype);
    for (std::size_t o = 0; o < lines.outer; ++o) {
        for (std::size_t i = 0; i < lines.inner; ++i) {
            accumulator.start();
            Poison poison = 0;
            for (std::size_t step = 0; step < lines.length; ++step) {
                const std::size_t k = attributes.reverse ? lines.length - 1 - step : step;
                const std::size_t at = lines.at(o, k, i);
                const Poison before = poison;
                const std::uint64_t exclusive = accumulator.bits();
                accumulator.add(operand.bits[at]);
                if (poison == 0) poison = operand.poison_at(at);
                result.bits[at] = attributes.exclusive ? exclusive : accumulator.bits();
                result.set_poison(at, attributes.exclusive ? before : poison);
            }
        }
    }
}

void apply_sort(Op op, const ir::SortAttributes& attributes, const TileValue& operand,
                TileValue& result) {
    const Lines lines(operand.type.shape, attributes.axis), to(result.type.shape, attributes.axis);
    const DType dtype = operand.type.dtype;
    std::vector<std::size_t> places(lines.length);
    for (std::size_t o = 0; o < lines.outer; ++o) {
        for (std::size_t i = 0; i < lines.inner; ++i) {
            const auto key = [&](std::size_t k) {
                return to_constant(dtype, operand.bits[lines.at(o, k, i)]);
            };
            std::iota(places.begin(), places.end(), std::size_t{0});
            std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
                return attributes.descending ? ir::comes_before(dtype, key(b), key(a))
                                             : ir::comes_before(dtype, key(a), key(b));
            });
            // Every place depends on every element.
            Poison poison = 0;
            for (std::size_t k = 0; k < lines.length && poison == 0; ++k) {
                poison = operand.poison_at(lines.at(o, k, i));
            }
            for (std::size_t k = 0; k < to.length; ++k) {
                const std::size_t target = to.at(o, k, i);
                result.bits[target] =
                    op == Op::sort ? operand.bits[lines.at(o, places[k], i)] : places[k];
                result.set_poison(target, poison);
            }
        }
    }
}

void apply_dot(const ir::DotAttributes& attributes, const TileValue& a, const TileValue& b,
               const TileValue* acc, TileValue& result) {
    const auto extent = [](const TileValue& tile, int from_last) {
        return static_cast<std::size_t>(tile.type.shape[tile.type.shape.rank() - from_last]);
    };
    DotShape shape;
    shape.batch = a.type.shape.rank() == 3 ? static_cast<std::size_t>(a.type.shape[0]) : 1;
    shape.rows = extent(a, attributes.transpose_a ? 1 : 2);
    shape.depth = extent(a, attributes.transpose_a ? 2 : 1);
    shape.columns = extent(b, attributes.transpose_b ? 2 : 1);
    shape.transpose_a = attributes.transpose_a;
    shape.transpose_b = attributes.transpose_b;
    const DType dtype = result.type.dtype;
    if (dtype == DType::f64) {
        dot_in<double>(shape, a, b, acc, result);
    } else if (is_float(dtype)) {
        dot_in<float>(shape, a, b, acc, result);
    } else {
        dot_in<std::uint64_t>(shape, a, b, acc, result);
    }
    if (!a.poison.empty() || !b.poison.empty() || (acc != nullptr && !acc->poison.empty())) {
        dot_poison(shape, a, b, acc, result);
    }
}

void apply_random_bits(const TileValue& key, const TileValue& counter, TileValue& result) {
    for (std::size_t i = 0; i < counter.bits.size(); ++i) {
        result.bits[i] = ir::philox(key.bits[0], counter.bits[i]);
        const Poison poison = key.poison_at(0);
        result.set_poison(i, poison != 0 ? poison : counter.poison_at(i));
    }
}

}  // namespace tilewright::cpu
