// Rebuilds values on demand: one rule per op.
#include <algorithm>
#include <bit>

#include "ir/evaluate.h"
#include "ir/passes/demand.h"

namespace tilewright::ir {
namespace {

std::int64_t product(std::span<const std::int64_t> dims) {
    std::int64_t result = 1;
    for (std::int64_t dim : dims) result *= dim;
    return result;
}

// The number of elements along a streamed axis that fit with `beside` others each; a power of two.
std::int64_t chunk_beside(std::int64_t beside, std::int64_t max_tile_elements) {
    const std::int64_t room =
        std::max<std::int64_t>(1, max_tile_elements / std::max<std::int64_t>(1, beside));
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(room)));
}

}  // namespace

Value Demand::copy(const Instruction& from, std::vector<Value> operands, const Shape& shape) {
    Instruction result;
    result.op = from.op;
    result.operands = std::move(operands);
    result.attributes = from.attributes;
    result.location = from.location;
    const Type requested{source_.function().type(from.result()).dtype, shape};
    return b_.append(std::move(result), &requested).at(0);
}

Value Demand::constant(const Type& type, std::uint64_t bits) {
    Instruction result;
    result.op = Op::constant;
    result.attributes = ConstantAttributes{bits};
    return b_.append(std::move(result), &type).at(0);
}

Value Demand::elementwise(const Instruction& from, const Region& region) {
    std::vector<Value> operands;
    for (Value operand : from.operands) {
        operands.push_back(get(operand, source_shape(operand).rank() == 0 ? Region{} : region));
    }
    return copy(from, std::move(operands), shape_of(region));
}

// Counted in i64 and converted once: the same rounding and wrapping as counting from 0.
Value Demand::iota(const Instruction& from, const Region& region) {
    const int axis = from.get<AxisAttributes>().axis;
    const Shape shape = shape_of(region);
    const Value offset = region[axis].offset;
    if (!offset) return copy(from, {}, shape);
    const Value local = b_.iota({DType::i64, shape}, axis);
    const Value shifted = b_.binary(Op::add, local, b_.broadcast(offset, shape));
    return b_.cast(shifted, source_.function().type(from.result()).dtype);
}

Value Demand::shape_op(const Instruction& from, const Region& region) {
    const Value operand = from.operands[0];
    const Shape shape = source_shape(operand);
    switch (from.op) {
        case Op::broadcast: {
            Region needed;
            for (int axis = 0; axis < shape.rank(); ++axis) {
                const Range& range = region[axis];
                needed.push_back(shape[axis] == 1 ? Range{} : range);
            }
            return b_.broadcast(get(operand, needed), shape_of(region));
        }
        case Op::expand_dims: {
            Region needed = region;
            needed.erase(needed.begin() + from.get<AxisAttributes>().axis);
            return copy(from, {get(operand, needed)}, shape_of(region));
        }
        case Op::transpose: {
            const auto& permutation = from.get<PermutationAttributes>().permutation;
            Region needed(region.size());
            for (std::size_t i = 0; i < region.size(); ++i) {
                needed[permutation[i]] = region[i];
            }
            return copy(from, {get(operand, needed)}, shape_of(region));
        }
        case Op::slice:
            return slice(from, region);
        case Op::concatenate:
            return concatenate(from, region);
        default:
            return reshape(from, region);
    }
}

Value Demand::slice(const Instruction& from, const Region& region) {
    const SliceAttributes& cut = from.get<SliceAttributes>();
    if (is_whole(region, source_shape(from.result()))) {
        const Value operand = from.operands[0];
        if (source_shape(operand).size() <= options_.max_tile_elements) {
            return copy(from, {get_whole(operand)}, shape_of(region));
        }
    }
    Region needed;
    SliceAttributes local;
    for (std::size_t i = 0; i < region.size(); ++i) {
        const Range& range = region[i];
        const Value start = cut.starts[i] == 0 ? Value{} : index(cut.starts[i]);
        const std::int64_t span = range.size == 0 ? 0 : (range.size - 1) * cut.strides[i] + 1;
        needed.push_back({sum(times(range.offset, cut.strides[i]), start), span, 1});
        offset_depths_[needed.back().offset] = depth_;
        local.starts.push_back(0);
        local.sizes.push_back(range.size);
        local.strides.push_back(cut.strides[i]);
    }
    const Value part = get(from.operands[0], needed);
    const bool strided = std::ranges::any_of(cut.strides, [](auto stride) { return stride != 1; });
    return strided ? b_.slice(part, local) : part;
}

Value Demand::concatenate(const Instruction& from, const Region& region) {
    const std::size_t axis = from.get<AxisAttributes>().axis;
    const std::int64_t extent = source_shape(from.result())[axis];
    if (!(region[axis] == Range{{}, extent, 0})) {
        return refuse(from, "the axis along which it joins would be cut");
    }
    std::vector<Value> parts;
    for (Value operand : from.operands) {
        Region needed = region;
        needed[axis].size = source_shape(operand)[axis];
        parts.push_back(get(operand, needed));
    }
    return copy(from, std::move(parts), shape_of(region));
}

// Axes form groups of equal size on both sides. A cut can pass through a group with one axis on
// both sides, and through one that splits or joins axes if it cuts the outermost of them.
Value Demand::reshape(const Instruction& from, const Region& region) {
    const Value operand = from.operands[0];
    const Shape before = source_shape(operand), after = source_shape(from.result());
    if (is_whole(region, after)) return copy(from, {get_whole(operand)}, after);
    Region needed = whole(before);
    int i = 0, j = 0;
    while (i < before.rank() || j < after.rank()) {
        const int first_i = i, first_j = j;
        std::int64_t left = i < before.rank() ? before[i++] : 1;
        std::int64_t right = j < after.rank() ? after[j++] : 1;
        while (left != right) {
            if (left < right) {
                left *= before[i++];
            } else {
                right *= after[j++];
            }
        }
        // The group's outermost axis with an extent other than 1, and the size of those inside.
        const auto outermost = [](const Shape& shape, int first, int last) {
            while (first + 1 < last && shape[first] == 1) ++first;
            return first;
        };
        const int outer_i = outermost(before, first_i, i), outer_j = outermost(after, first_j, j);
        bool cut_inside = false;
        for (int axis = first_j; axis < j; ++axis) {
            const bool axis_whole = region[axis] == Range{{}, after[axis], 0};
            cut_inside |= axis != outer_j && !axis_whole;
        }
        if (cut_inside)
            return refuse(from, "the cut does not follow the outermost axis of what it joins");
        if (first_i == i || first_j == j) continue;
        const std::int64_t inner_before = product(before.dims().subspan(
            static_cast<std::size_t>(outer_i + 1), static_cast<std::size_t>(i - outer_i - 1)));
        const std::int64_t inner_after = product(after.dims().subspan(
            static_cast<std::size_t>(outer_j + 1), static_cast<std::size_t>(j - outer_j - 1)));
        const Range& range = region[outer_j];
        if (range == Range{{}, after[outer_j], 0}) continue;
        const std::int64_t size = range.size * inner_after;
        const std::int64_t multiple = range.multiple * inner_after;
        if (size % inner_before != 0 || multiple % inner_before != 0) {
            return refuse(from, "the cut does not fall on a row of what it splits");
        }
        Value offset = times(range.offset, inner_after);
        if (offset && inner_before > 1) {
            offset = b_.binary(Op::floordiv, offset, index(inner_before));
        }
        offset_depths_[offset] = depth_;
        needed[outer_i] = {offset, size / inner_before, multiple / inner_before};
    }
    return b_.reshape(get(operand, needed), shape_of(region));
}

// ---- Reductions and dots: a contracted axis that does not fit whole is read in chunks.

/// Refuses a scan of which a region has not the whole axis.
bool Demand::has_whole_axis(const Instruction& scan, std::size_t axis, const Region& region) {
    const std::int64_t extent = source_shape(scan.results[0])[static_cast<int>(axis)];
    if (region[axis] == Range{{}, extent, 0}) return true;
    refuse(scan,
           "a scan needs its axis whole; scan pieces of it in a loop that carries what they "
           "combine to");
    return false;
}

Value Demand::associative_scan(const Instruction& from, std::size_t result, const Region& region) {
    const CombineAttributes& how = from.get<CombineAttributes>();
    if (!has_whole_axis(from, static_cast<std::size_t>(how.axis), region)) return {};
    std::vector<Value> operands;
    for (std::size_t i = 0; i < from.operands.size(); ++i)
        operands.push_back(get(from.operands[i], i < from.results.size() ? region : Region{}));
    if (stopped()) return {};
    const std::vector<Value> results =
        b_.associative_scan(how.combine, operands, how.axis, how.reverse);
    for (std::size_t i = 0; i < results.size(); ++i) note({from.results[i], region}, results[i]);
    return results[result];
}

Value Demand::sort(const Instruction& from, const Region& region) {
    const auto how = from.get<SortAttributes>();
    const auto axis = static_cast<std::size_t>(how.axis);
    Region whole = region;
    whole[axis] = Range{{}, source_shape(from.operands[0])[how.axis], 0};
    if (!(region[axis] == Range{{}, how.count, 0})) {
        return refuse(
            from,
            "sorting needs its axis whole; sort longer lines by the framework's sort before the "
            "kernel");
    }
    return copy(from, {get(from.operands[0], whole)}, shape_of(region));
}

Value Demand::reduce(const Instruction& from, const Region& region) {
    const ReduceAttributes& how = from.get<ReduceAttributes>();
    const Value operand = from.operands[0];
    const std::int64_t extent = source_shape(operand)[how.axis];
    if (dot_depth_ > 0 && source_.computed_by(operand, Op::dot)) {
        return refuse(from,
                      "a dot contracts what a reduction over another dot gives; write it as a loop "
                      "with running statistics, as attention does");
    }
    const std::int64_t chunk = chunk_beside(shape_of(region).size(), options_.max_tile_elements);
    if (extent <= chunk || shape_of(region).size() * extent <= options_.max_tile_elements) {
        Region needed = region;
        needed.insert(needed.begin() + how.axis, Range{{}, extent, 0});
        return copy(from, {get(operand, needed)}, shape_of(region));
    }
    const bool extreme = how.kind == Reduction::argmax || how.kind == Reduction::argmin;
    return extreme ? stream_extreme(from, region, chunk) : stream_reduce(from, region, chunk);
}

Value Demand::stream_reduce(const Instruction& from, const Region& region, std::int64_t chunk) {
    const ReduceAttributes how = from.get<ReduceAttributes>();
    const Value operand = from.operands[0];
    const DType dtype = source_.function().type(operand).dtype;
    const DType carried = accumulator(how.kind, dtype);
    const Type type{carried, shape_of(region)};
    const auto combined = [&](Value a, Value b) {
        switch (how.kind) {
            case Reduction::sum:
                return b_.binary(Op::add, a, b);
            case Reduction::prod:
                return b_.binary(Op::mul, a, b);
            case Reduction::max:
                return b_.binary(Op::max, a, b);
            case Reduction::min:
                return b_.binary(Op::min, a, b);
            case Reduction::any:
                return b_.binary(Op::bitwise_or, a, b);
            default:
                return b_.binary(Op::bitwise_and, a, b);
        }
    };
    const auto results = stream(source_shape(operand)[how.axis], chunk,
                                {constant(type, identity(how.kind, carried))},
                                [&](Range range, std::span<const Value> carries) {
                                    const Value acc = carries[0];
                                    Region needed = region;
                                    needed.insert(needed.begin() + how.axis, range);
                                    const Value part = b_.cast(get(operand, needed), carried);
                                    const Value value = b_.reduce(how.kind, part, how.axis);
                                    return std::vector{combined(acc, value)};
                                });
    return b_.cast(results[0], dtype);
}

// Carries the extreme and its index; a later chunk wins only if it is strictly more extreme or has
// the first NaN.
Value Demand::stream_extreme(const Instruction& from, const Region& region, std::int64_t chunk) {
    const ReduceAttributes how = from.get<ReduceAttributes>();
    const Value operand = from.operands[0];
    const bool is_max = how.kind == Reduction::argmax;
    const Reduction value_kind = is_max ? Reduction::max : Reduction::min;
    const DType dtype = source_.function().type(operand).dtype;
    const Shape shape = shape_of(region);
    const auto step = [&](Range range, std::span<const Value> carries) {
        const Value best = carries[0], best_index = carries[1];
        Region needed = region;
        needed.insert(needed.begin() + how.axis, range);
        const Value tile = get(operand, needed);
        const Value value = b_.reduce(value_kind, tile, how.axis);
        Value position = b_.reduce(how.kind, tile, how.axis);
        if (range.offset) {
            const Value offset = b_.broadcast(b_.cast(range.offset, DType::i32), shape);
            position = b_.binary(Op::add, position, offset);
        }
        Value wins = b_.binary(is_max ? Op::gt : Op::lt, value, best);
        if (is_float(dtype)) {
            const Value settled = b_.unary(Op::bitwise_not, b_.unary(Op::isnan, best));
            const Value first_nan = b_.binary(Op::bitwise_and, b_.unary(Op::isnan, value), settled);
            wins = b_.binary(Op::bitwise_or, wins, first_nan);
        }
        return std::vector{b_.select(wins, value, best), b_.select(wins, position, best_index)};
    };
    const Value start = constant({dtype, shape}, identity(value_kind, dtype));
    const Value zero = b_.constant_int({DType::i32, shape}, 0);
    return stream(source_shape(operand)[how.axis], chunk, {start, zero}, step)[1];
}

Value Demand::dot(const Instruction& from, const Region& region) {
    const DotAttributes flags = from.get<DotAttributes>();
    const Value a = from.operands[0], b = from.operands[1];
    const std::size_t rank = region.size();
    const Range m = region[rank - 2], n = region[rank - 1];
    const int row = static_cast<int>(rank) - 2, column = row + 1;
    const std::int64_t k = source_shape(a)[flags.transpose_a ? row : column];
    const auto operand = [&](Value value, const Range& first, const Range& second) {
        Region needed(region.begin(), region.end() - 2);
        needed.push_back(first);
        needed.push_back(second);
        return get(value, needed);
    };
    const auto product_of = [&](const Range& range, Value acc) {
        const Value left = flags.transpose_a ? operand(a, range, m) : operand(a, m, range);
        const Value right = flags.transpose_b ? operand(b, n, range) : operand(b, range, n);
        return b_.dot(left, right, acc, flags);
    };
    const std::int64_t batch = rank == 3 ? region[0].size : 1;
    const std::int64_t beside = batch * std::max(m.size, n.size);
    const Value acc = from.operands.size() == 3 ? get(from.operands[2], region) : Value{};
    if (k * beside <= options_.max_tile_elements && k <= options_.k_chunk) {
        return product_of({{}, k, 0}, acc);
    }
    const std::int64_t chunk =
        std::min(options_.k_chunk, chunk_beside(beside, options_.max_tile_elements));
    const Type type{source_.function().type(from.result()).dtype, shape_of(region)};
    ++dot_depth_;
    struct Leave {
        int& depth;
        ~Leave() { --depth; }
    } const leave{dot_depth_};
    return stream(k, chunk, {acc ? acc : constant(type, encode(type.dtype, 0))},
                  [&](Range range, std::span<const Value> carries) {
                      return std::vector{product_of(range, carries[0])};
                  })[0];
}

}  // namespace tilewright::ir
