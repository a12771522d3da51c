// Sources, shapes, reductions, dot, random numbers and debugging of the kernel language.
#include <algorithm>
#include <numeric>

#include "lang/promotion.h"
#include "lang/tracer.h"
#include "tilewright/lang/ops.h"

namespace tilewright {

using ir::Reduction;
using lang::Tracer;

namespace {

template <typename Emit>
Tile traced(const char* op, const std::source_location& location, Emit&& emit) {
    Tracer& tracer = Tracer::current(op, location);
    return tracer.at(location, [&] { return tracer.wrap(emit(tracer)); });
}

int checked_axis(const char* op, int axis, int rank) {
    if (axis < -rank || axis >= rank) {
        user_error(op, "expected an axis in [{}, {}) but got {}", -rank, rank, axis);
    }
    return axis < 0 ? axis + rank : axis;
}

const Tracer::GridAxis& grid_axis(Tracer& tracer, const char* op, int axis) {
    const int visible = static_cast<int>(tracer.grid.size()) - tracer.hidden_axes;
    if (axis < 0 || axis >= visible) {
        user_error(op, "expected an axis of the {}-dimensional grid of kernel `{}` but got {}",
                   visible, tracer.function().name, axis);
    }
    return tracer.grid[axis + tracer.hidden_axes];
}

/// Dtype of a sum or product: narrow integers and bool use 32 bits, as in JAX.
DType accumulated(DType dtype) {
    if (dtype == boolean || dtype == i8 || dtype == i16) return i32;
    return dtype == u8 || dtype == u16 ? u32 : dtype;
}

/// Dtype in which a dot accumulates, which is also that of its result.
DType dot_result(DType dtype) {
    if (is_float(dtype)) return size_of(dtype) < 4 ? f32 : dtype;
    return size_of(dtype) == 1 ? i32 : dtype;
}

bool accumulates(Reduction kind) {
    return kind == Reduction::sum || kind == Reduction::prod;
}

/// Extents given by the user, as a shape.
ir::Shape shape_of(const char* op, const Extents& extents) {
    if (extents.size() > ir::kMaxTileRank ||
        std::any_of(extents.begin(), extents.end(), [](std::int64_t n) { return n < 0; })) {
        user_error(op, "expected a shape of at most {} extents >= 0 but got [{}]", ir::kMaxTileRank,
                   fmt::join(extents, ", "));
    }
    return ir::Shape{std::span<const std::int64_t>(extents)};
}

Tile reduced(Reduction kind, const char* op, const Operand& x, std::optional<int> axis,
             bool keepdims) {
    return traced(op, x.location(), [&](Tracer& tracer) {
        ir::Builder& builder = tracer.builder();
        ir::Value value = tracer.value(x);
        const bool is_logical = kind == Reduction::any || kind == Reduction::all;
        if (is_logical && tracer.dtype(x) != boolean) {
            user_error(op, "expected a bool tile but got {}", name(tracer.dtype(x)));
        }
        if (accumulates(kind)) value = builder.cast(value, accumulated(tracer.type(value).dtype));
        const int rank = tracer.type(value).shape.rank();
        std::vector<int> axes;
        if (axis) {
            axes.push_back(checked_axis(op, *axis, rank));
        } else {
            for (int a = rank - 1; a >= 0; --a) axes.push_back(a);
        }
        for (int a : axes) value = builder.reduce(kind, value, a);
        if (keepdims) {
            std::reverse(axes.begin(), axes.end());
            for (int a : axes) value = builder.expand_dims(value, a);
        }
        return value;
    });
}

Tile scanned(Reduction kind, const char* op, const Operand& x, int axis, bool reverse) {
    return traced(op, x.location(), [&](Tracer& tracer) {
        ir::Builder& builder = tracer.builder();
        ir::Value value = tracer.value(x);
        const DType dtype = tracer.type(value).dtype;
        if (accumulates(kind)) value = builder.cast(value, accumulated(dtype));
        if (kind == Reduction::logsumexp && !is_float(dtype)) value = builder.cast(value, f32);
        const int rank = tracer.type(value).shape.rank();
        return builder.scan(kind, value, checked_axis(op, axis, rank), reverse);
    });
}

/// What is added to a product of these operands. Shapes that do not match are left to the builder,
/// which reports them.
ir::Value accumulator(Tracer& tracer, const Operand& a, const Operand& b, const DotOptions& options,
                      DType dtype) {
    const ir::Shape left = tracer.shape(a), right = tracer.shape(b);
    const int rank = left.rank();
    const ir::Value given = tracer.value(*options.acc, dtype, "dot");
    if (rank < 2 || rank > 3 || right.rank() != rank) return given;
    ir::Shape product = left;
    product[rank - 2] = left[options.trans_a ? rank - 1 : rank - 2];
    product[rank - 1] = right[options.trans_b ? rank - 2 : rank - 1];
    if (!lang::broadcasts_to(tracer.shape(*options.acc), product)) return given;
    return tracer.broadcast(given, product, "dot");
}

Tile philox(const char* op, const Operand& seed, const Operand& counter) {
    return traced(op, counter.location(), [&](Tracer& tracer) {
        const DType counts = tracer.dtype(counter);
        if (!is_integer(counts)) {
            user_error(op, "expected `counter` to be integers but got {}", name(counts));
        }
        if (!is_integer(tracer.dtype(seed)) || tracer.shape(seed).rank() != 0) {
            user_error(op, "expected `seed` to be an integer scalar but got {}",
                       ir::to_string(ir::Type{tracer.dtype(seed), tracer.shape(seed)}));
        }
        return tracer.builder().random_bits(tracer.value(seed, u64, op),
                                            tracer.value(counter, u64, op));
    });
}

}  // namespace

Tile program_id(int axis, std::source_location location) {
    return traced("program_id", location, [&](Tracer& tracer) {
        return tracer.program_index(grid_axis(tracer, "program_id", axis));
    });
}

Tile num_programs(int axis, std::source_location location) {
    return traced("num_programs", location, [&](Tracer& tracer) {
        const auto& grid_dim = grid_axis(tracer, "num_programs", axis);
        return grid_dim.extent == kDynamic ? tracer.builder().num_programs(grid_dim.axis)
                                           : tracer.index_constant(grid_dim.extent);
    });
}

Tile iota(std::int64_t n, DType dtype, std::source_location location) {
    return iota(Extents{n}, 0, dtype, location);
}

Tile iota(Extents shape, int axis, DType dtype, std::source_location location) {
    return traced("iota", location, [&](Tracer& tracer) {
        const ir::Shape extents = shape_of("iota", shape);
        return tracer.builder().iota({dtype, extents}, checked_axis("iota", axis, extents.rank()));
    });
}

Tile full(Extents shape, Operand value, DType dtype, std::source_location location) {
    return traced("full", location, [&](Tracer& tracer) {
        return tracer.broadcast(tracer.value(value, dtype, "full"), shape_of("full", shape),
                                "full");
    });
}

Tile zeros(Extents shape, DType dtype, std::source_location location) {
    return full(std::move(shape), 0, dtype, location);
}

Tile ones(Extents shape, DType dtype, std::source_location location) {
    return full(std::move(shape), 1, dtype, location);
}

Tile constant(Operand value, DType dtype, std::source_location location) {
    return full({}, value, dtype, location);
}

Tile reshape(Operand x, Extents shape) {
    return traced("reshape", x.location(), [&](Tracer& tracer) {
        return tracer.builder().reshape(tracer.value(x), shape_of("reshape", shape));
    });
}

Tile transpose(Operand x, std::vector<int> permutation) {
    return traced("transpose", x.location(), [&](Tracer& tracer) {
        const ir::Value value = tracer.value(x);
        const int rank = tracer.type(value).shape.rank();
        if (permutation.empty()) {
            for (int axis = rank - 1; axis >= 0; --axis) permutation.push_back(axis);
        }
        for (int& axis : permutation) axis = checked_axis("transpose", axis, rank);
        return tracer.builder().transpose(value, permutation);
    });
}

Tile expand_dims(Operand x, int axis) {
    return traced("expand_dims", x.location(), [&](Tracer& tracer) {
        const ir::Value value = tracer.value(x);
        const int rank = tracer.type(value).shape.rank();
        return tracer.builder().expand_dims(value, checked_axis("expand_dims", axis, rank + 1));
    });
}

Tile squeeze(Operand x, int axis) {
    return traced("squeeze", x.location(), [&](Tracer& tracer) {
        const ir::Value value = tracer.value(x);
        const ir::Shape shape = tracer.type(value).shape;
        const int at = checked_axis("squeeze", axis, shape.rank());
        if (shape[at] != 1) {
            user_error("squeeze", "expected axis {} to have extent 1 but got shape {}", at,
                       ir::to_string(shape));
        }
        return tracer.builder().reshape(value, shape.without(at));
    });
}

Tile broadcast_to(Operand x, Extents shape) {
    return traced("broadcast_to", x.location(), [&](Tracer& tracer) {
        return tracer.broadcast(tracer.value(x), shape_of("broadcast_to", shape), "broadcast_to");
    });
}

Tile slice(Operand x, Extents starts, Extents sizes, Extents strides) {
    return traced("slice", x.location(), [&](Tracer& tracer) {
        if (strides.empty()) strides.assign(starts.size(), 1);
        return tracer.builder().slice(tracer.value(x), {starts, sizes, strides});
    });
}

Tile concatenate(const std::vector<Tile>& parts, int axis, std::source_location location) {
    return traced("concatenate", location, [&](Tracer& tracer) {
        if (parts.empty()) user_error("concatenate", "expected at least one tile but got none");
        std::vector<Operand> operands(parts.begin(), parts.end());
        const DType dtype = tracer.common_dtype(operands);
        std::vector<ir::Value> values;
        for (const Operand& part : operands) values.push_back(tracer.value(part, dtype));
        const int rank = tracer.type(values.front()).shape.rank();
        return tracer.builder().concatenate(values, checked_axis("concatenate", axis, rank));
    });
}

Tile stack(const std::vector<Tile>& parts, int axis, std::source_location location) {
    std::vector<Tile> rows;
    for (const Tile& part : parts) rows.push_back(expand_dims(Operand(part, location), axis));
    return concatenate(rows, axis, location);
}

Tile sum(Operand x, std::optional<int> axis, bool keepdims) {
    return reduced(Reduction::sum, "sum", x, axis, keepdims);
}
Tile prod(Operand x, std::optional<int> axis, bool keepdims) {
    return reduced(Reduction::prod, "prod", x, axis, keepdims);
}
Tile max(Operand x, std::optional<int> axis, bool keepdims) {
    return reduced(Reduction::max, "max", x, axis, keepdims);
}
Tile min(Operand x, std::optional<int> axis, bool keepdims) {
    return reduced(Reduction::min, "min", x, axis, keepdims);
}
Tile any(Operand x, std::optional<int> axis, bool keepdims) {
    return reduced(Reduction::any, "any", x, axis, keepdims);
}
Tile All::operator()(Operand x, std::optional<int> axis, bool keepdims) const {
    return reduced(Reduction::all, "all", x, axis, keepdims);
}
Tile argmax(Operand x, int axis, bool keepdims) {
    return reduced(Reduction::argmax, "argmax", x, axis, keepdims);
}
Tile argmin(Operand x, int axis, bool keepdims) {
    return reduced(Reduction::argmin, "argmin", x, axis, keepdims);
}

Tile mean(Operand x, std::optional<int> axis, bool keepdims) {
    const auto at = [&](auto value) { return Operand(value, x.location()); };
    Tracer& tracer = Tracer::current("mean", x.location());
    const Tile total = sum(x, axis, keepdims);
    const ir::Shape shape = tracer.shape(x);
    const std::int64_t count =
        axis ? shape[checked_axis("mean", *axis, shape.rank())] : shape.size();
    return at(total) / at(static_cast<double>(count));
}

Tile cumsum(Operand x, int axis, bool reverse) {
    return scanned(Reduction::sum, "cumsum", x, axis, reverse);
}
Tile cumprod(Operand x, int axis, bool reverse) {
    return scanned(Reduction::prod, "cumprod", x, axis, reverse);
}
Tile cummax(Operand x, int axis, bool reverse) {
    return scanned(Reduction::max, "cummax", x, axis, reverse);
}
Tile cummin(Operand x, int axis, bool reverse) {
    return scanned(Reduction::min, "cummin", x, axis, reverse);
}
Tile cumlogsumexp(Operand x, int axis, bool reverse) {
    return scanned(Reduction::logsumexp, "cumlogsumexp", x, axis, reverse);
}

static_assert(static_cast<int>(Precision::tf32x3) == static_cast<int>(ir::Precision::tf32x3),
              "the public enum lists the IR's precisions in order");

Tile dot(Operand a, Operand b, DotOptions options) {
    return traced("dot", a.location(), [&](Tracer& tracer) {
        const std::array operands{a, b};
        const DType dtype = tracer.common_dtype(operands);
        ir::Value acc;
        if (options.acc) acc = accumulator(tracer, a, b, options, dot_result(dtype));
        ir::DotAttributes attributes{options.trans_a, options.trans_b,
                                     static_cast<ir::Precision>(options.precision)};
        return tracer.builder().dot(tracer.value(a, dtype), tracer.value(b, dtype), acc,
                                    attributes);
    });
}

Tile random_bits(Operand seed, Operand counter) {
    return philox("random_bits", seed, counter);
}

Tile uniform(Operand seed, Operand counter) {
    const auto at = [&](auto value) { return Operand(value, counter.location()); };
    // The upper 24 bits are exact in an f32, so 1.0 is never reached.
    const Tile bits = at(philox("uniform", seed, counter)) >> at(8);
    return at(bits.to(i32, counter.location())) * at(1.0 / (1 << 24));
}

void debug_print(std::string format, const std::vector<Tile>& operands,
                 std::source_location location) {
    Tracer& tracer = Tracer::current("debug_print", location);
    tracer.at(location, [&] {
        std::vector<ir::Value> values;
        for (const Tile& operand : operands) values.push_back(tracer.use(operand));
        tracer.builder().debug_print(std::move(format), values);
    });
}

void debug_check(Operand condition, std::string message) {
    Tracer& tracer = Tracer::current("debug_check", condition.location());
    tracer.at(condition.location(),
              [&] { tracer.builder().debug_check(tracer.value(condition), std::move(message)); });
}

}  // namespace tilewright
