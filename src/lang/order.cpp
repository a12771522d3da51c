// Sorting, gathers along an axis and one-hot tiles of the kernel language.
#include "tilewright/lang/order.h"

#include "lang/ordering.h"
#include "lang/tracer.h"

namespace tilewright {

using lang::Tracer;

namespace {

/// Runs emit(tracer, value of x, non-negative axis) for a tile of rank >= 1.
template <typename Emit>
auto along(const char* op, const Operand& x, int axis, Emit&& emit) {
    Tracer& tracer = Tracer::current(op, x.location());
    return tracer.at(x.location(), [&] {
        const int rank = tracer.shape(x).rank();
        if (axis < -rank || axis >= rank) {
            user_error(op, "expected an axis in [{}, {}) but got {}", -rank, rank, axis);
        }
        return emit(tracer, tracer.value(x), axis < 0 ? axis + rank : axis);
    });
}

ir::SortAttributes whole(Tracer& tracer, ir::Value value, int axis, bool descending) {
    return {axis, tracer.type(value).shape[axis], descending};
}

void want_integers(const char* op, const char* what, DType dtype) {
    if (!is_integer(dtype)) {
        user_error(op, "expected `{}` to be integers but got {}", what, name(dtype));
    }
}

/// Broadcasts to the shape of `x`, except along the axis.
ir::Value beside(Tracer& tracer, const char* op, ir::Value places, const ir::Shape& x, int axis) {
    ir::Shape wanted = x;
    const ir::Shape given = tracer.type(places).shape;
    if (given.rank() != x.rank()) {
        user_error(op, "expected places of rank {} but got {}", x.rank(), ir::to_string(given));
    }
    wanted[axis] = given[axis];
    return tracer.broadcast(places, wanted, op);
}

}  // namespace

Tile argsort(Operand x, int axis, bool descending) {
    return along("argsort", x, axis, [&](Tracer& tracer, ir::Value value, int at) {
        return tracer.wrap(tracer.builder().argsort(value, whole(tracer, value, at, descending)));
    });
}

Tile sort(Operand x, int axis, bool descending) {
    return along("sort", x, axis, [&](Tracer& tracer, ir::Value value, int at) {
        return tracer.wrap(tracer.builder().sort(value, whole(tracer, value, at, descending)));
    });
}

std::pair<Tile, Tile> sort_by_key(Operand keys, Operand values, int axis, bool descending) {
    return along("sort_by_key", keys, axis, [&](Tracer& tracer, ir::Value key, int at) {
        const ir::Shape shape = tracer.type(key).shape;
        if (!(tracer.shape(values) == shape)) {
            user_error("sort_by_key", "expected values of shape {} like the keys but got {}",
                       ir::to_string(shape), ir::to_string(tracer.shape(values)));
        }
        ir::Builder& builder = tracer.builder();
        const ir::SortAttributes how = whole(tracer, key, at, descending);
        const Tile sorted = tracer.wrap(builder.sort(key, how));
        const ir::Value places = builder.argsort(key, how);
        return std::pair(sorted,
                         tracer.wrap(lang::elements_at(builder, tracer.value(values), places, at)));
    });
}

std::pair<Tile, Tile> top_k(Operand x, std::int64_t count, int axis) {
    return along("top_k", x, axis, [&](Tracer& tracer, ir::Value value, int at) {
        const std::int64_t extent = tracer.type(value).shape[at];
        if (count < 1 || count > extent) {
            user_error("top_k", "expected a count from 1 to {} but got {}", extent, count);
        }
        ir::Builder& builder = tracer.builder();
        const ir::SortAttributes how{at, count, true};
        const Tile values = tracer.wrap(builder.sort(value, how));
        return std::pair(values, tracer.wrap(builder.argsort(value, how)));
    });
}

Tile take_along_axis(Operand x, Operand places, int axis) {
    return along("take_along_axis", x, axis, [&](Tracer& tracer, ir::Value value, int at) {
        want_integers("take_along_axis", "places", tracer.dtype(places));
        ir::Shape from = tracer.type(value).shape;
        const ir::Shape given = tracer.shape(places);
        // Extents of 1 in x also broadcast to those of the places.
        for (int a = 0; a < from.rank() && given.rank() == from.rank(); ++a) {
            if (a != at && from[a] == 1) from[a] = given[a];
        }
        value = tracer.broadcast(value, from, "take_along_axis");
        const ir::Value index = beside(tracer, "take_along_axis", tracer.value(places), from, at);
        return tracer.wrap(lang::elements_at(tracer.builder(), value, index, at));
    });
}

Tile one_hot(Operand places, std::int64_t depth, DType dtype, int axis) {
    Tracer& tracer = Tracer::current("one_hot", places.location());
    return tracer.at(places.location(), [&] {
        want_integers("one_hot", "places", tracer.dtype(places));
        if (depth < 0) user_error("one_hot", "expected a depth >= 0 but got {}", depth);
        ir::Builder& builder = tracer.builder();
        const ir::Value index = builder.cast(tracer.value(places), i64);
        const int rank = tracer.type(index).shape.rank() + 1;
        if (axis < -rank || axis >= rank) {
            user_error("one_hot", "expected an axis in [{}, {}) but got {}", -rank, rank, axis);
        }
        const int at = axis < 0 ? axis + rank : axis;
        const ir::Value column =
            rank == 1 ? builder.broadcast(index, ir::Shape{1}) : builder.expand_dims(index, at);
        ir::Shape shape = tracer.type(column).shape;
        shape[at] = depth;
        const ir::Value count = builder.iota({i64, shape}, at);
        return tracer.wrap(builder.cast(
            builder.binary(ir::Op::eq, builder.broadcast(column, shape), count), dtype));
    });
}

}  // namespace tilewright
