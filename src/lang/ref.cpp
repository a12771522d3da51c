// Refs of the kernel language: views, loads, stores, atomics.
#include "tilewright/lang/ref.h"

#include <algorithm>

#include "lang/promotion.h"
#include "lang/tracer.h"

namespace tilewright {

using ir::Index;
using lang::ArrayIndex;
using lang::Tracer;
using lang::View;

namespace {

const View& present_view(Tracer& tracer, const Ref& ref, const char* op) {
    const View& view = tracer.view(ref);
    if (!view.ref) {
        user_error(op,
                   "expected a present argument but `{}` was left out by the caller; test "
                   "present() first",
                   view.name);
    }
    return view;
}

bool has_tile_index(const View& view) {
    return std::any_of(view.indices.begin(), view.indices.end(),
                       [](const ArrayIndex& i) { return i.kind == Index::Kind::tile; });
}

/// Extents of a view. Index tiles broadcast together and stand where the first one stood.
std::vector<std::int64_t> view_shape(Tracer& tracer, const View& view) {
    ir::Shape joint;
    for (const auto& index : view.indices) {
        if (index.kind == Index::Kind::tile) {
            joint = lang::broadcast_shapes(joint, tracer.type(index.start).shape, "index tiles");
        }
    }
    std::vector<std::int64_t> shape;
    bool joint_done = false;
    for (const auto& index : view.indices) {
        if (index.kind == Index::Kind::slice) shape.push_back(index.size);
        if (index.kind == Index::Kind::tile && !joint_done) {
            shape.insert(shape.end(), joint.dims().begin(), joint.dims().end());
            joint_done = true;
        }
    }
    return shape;
}

/// Signed value of an integer literal; nothing for a traced value.
std::optional<std::int64_t> static_index(const Operand& operand) {
    using Kind = Operand::Kind;
    if (operand.kind() != Kind::signed_int && operand.kind() != Kind::unsigned_int) return {};
    return static_cast<std::int64_t>(operand.integer());
}

class Selector {
  public:
    Selector(Tracer& tracer, const View& view) : tracer_(tracer), view_(view) {}

    void select(ArrayIndex& index, const RefIndex& by, int dim) {
        if (by.kind() == RefIndex::Kind::whole) return;
        const Slice& slice = by.slice();
        if (by.kind() == RefIndex::Kind::slice) return select_slice(index, slice, dim);
        if (tracer_.shape(slice.start).rank() > 0) return select_tile(index, slice.start, dim);
        check_static(index, slice.start, 1, 1, dim);
        check_traced(index, slice.start, 1);
        index.start = position(index, slice.start);
        index.kind = Index::Kind::scalar;
    }

  private:
    void select_slice(ArrayIndex& index, const Slice& slice, int dim) {
        if (slice.size < 0 || slice.stride < 1) {
            user_error("at",
                       "expected a slice of size >= 0 and stride >= 1 in dimension {} of `{}` "
                       "but got size {} and stride {}",
                       dim, view_.name, slice.size, slice.stride);
        }
        check_static(index, slice.start, slice.size, slice.stride, dim);
        check_traced(index, slice.start, (slice.size - 1) * slice.stride + 1);
        index.start = position(index, slice.start);
        index.size = slice.size;
        index.stride *= slice.stride;
    }

    void select_tile(ArrayIndex& index, const Operand& tile, int dim) {
        if (!is_integer(tracer_.dtype(tile))) {
            user_error("at", "expected an integer index tile in dimension {} of `{}` but got {}",
                       dim, view_.name, name(tracer_.dtype(tile)));
        }
        auto& builder = tracer_.builder();
        ir::Value value = tracer_.use(tile.tile());
        if (index.start || index.stride != 1) {
            value = builder.cast(value, i64);
            const ir::Shape shape = tracer_.type(value).shape;
            const auto splat = [&](ir::Value scalar) { return builder.broadcast(scalar, shape); };
            if (index.stride != 1) {
                value =
                    builder.binary(ir::Op::mul, value, splat(tracer_.index_constant(index.stride)));
            }
            if (index.start) value = builder.binary(ir::Op::add, value, splat(index.start));
        }
        index.start = value;
        index.kind = Index::Kind::tile;
        index.stride = 1;
    }

    /// Array position of element `offset` of the view's dimension.
    ir::Value position(const ArrayIndex& index, const Operand& offset) {
        auto& builder = tracer_.builder();
        ir::Value value = tracer_.index(offset, "at");
        if (index.stride != 1) {
            value = builder.binary(ir::Op::mul, value, tracer_.index_constant(index.stride));
        }
        if (index.start) value = builder.binary(ir::Op::add, index.start, value);
        return value;
    }

    void check_static(const ArrayIndex& index, const Operand& start, std::int64_t size,
                      std::int64_t stride, int dim) {
        const auto first = static_index(start);
        if (!first) return;
        const std::int64_t last = *first + std::max<std::int64_t>(size - 1, 0) * stride;
        const bool known = index.size != kDynamic;
        if (*first < 0 || (known && size > 0 && last >= index.size)) {
            user_error("at",
                       "expected elements inside dimension {} of `{}` (extent {}) but got "
                       "elements {} to {}",
                       dim, view_.name, known ? std::to_string(index.size) : "dynamic", *first,
                       last);
        }
    }

    /// In the checked mode a traced index that leaves its block is reported: the neighbouring
    /// elements belong to another program's block.
    void check_traced(const ArrayIndex& index, const Operand& start, std::int64_t span) {
        if (!tracer_.checked || !index.is_block || static_index(start)) return;
        auto& builder = tracer_.builder();
        const ir::Value first = tracer_.index(start, "at");
        const ir::Value low = builder.binary(ir::Op::ge, first, tracer_.index_constant(0));
        const ir::Value high =
            builder.binary(ir::Op::le, first, tracer_.index_constant(index.size - span));
        builder.debug_check(
            builder.binary(ir::Op::bitwise_and, low, high),
            fmt::format("index into `{}` leaves its block of {} elements", view_.name, index.size));
    }

    Tracer& tracer_;
    const View& view_;
};

/// The IR form of an access to the whole view.
struct Access {
    ir::Value ref;
    std::vector<ir::IndexOperand> indices;
    ir::Shape shape;
    DType dtype;
};

Access access(Tracer& tracer, const View& view, const char* op) {
    Access result{view.ref, {}, {}, tracer.function().ref_type(view.ref).dtype};
    const std::vector<std::int64_t> shape = view_shape(tracer, view);
    if (std::find(shape.begin(), shape.end(), kDynamic) != shape.end()) {
        user_error(op,
                   "expected a view with static extents but `{}` has a dynamic one; take slices "
                   "of it with at(tw::ds(start, size))",
                   view.name);
    }
    result.shape = ir::Shape{std::span<const std::int64_t>(shape)};
    for (const ArrayIndex& index : view.indices) {
        const ir::Value start = index.start ? index.start : tracer.index_constant(0);
        switch (index.kind) {
            case Index::Kind::scalar:
                result.indices.push_back(ir::IndexOperand::scalar(start));
                break;
            case Index::Kind::slice:
                result.indices.push_back(ir::IndexOperand::slice(start, index.size, index.stride));
                break;
            case Index::Kind::tile:
                result.indices.push_back(ir::IndexOperand::tile(start));
                break;
        }
    }
    return result;
}

ir::Value mask_value(Tracer& tracer, const std::optional<Operand>& mask, const ir::Shape& shape,
                     const char* op) {
    if (!mask) return {};
    if (tracer.dtype(*mask) != boolean) {
        user_error(op, "expected a bool mask but got {}", name(tracer.dtype(*mask)));
    }
    return tracer.broadcast(tracer.value(*mask), shape, op);
}

/// A value to be written: a literal takes the Ref's dtype, a traced value must have it.
ir::Value stored_value(Tracer& tracer, const View& view, const Access& target, const Operand& value,
                       const char* op) {
    if (!view.writable) {
        user_error(op,
                   "expected an output or scratch but `{}` is an input; alias it to an output to "
                   "write it",
                   view.name);
    }
    const bool is_float_literal = value.kind() == Operand::Kind::floating;
    if (value.is_literal() ? is_float_literal && !is_float(target.dtype)
                           : tracer.dtype(value) != target.dtype) {
        user_error(op, "expected a value of {} for `{}` but got {}; convert it with .to(tw::{})",
                   name(target.dtype), view.name, name(tracer.dtype(value)), name(target.dtype));
    }
    return tracer.broadcast(tracer.value(value, target.dtype), target.shape, op);
}

Tile atomic(ir::Op op, const char* name, const Ref& ref, const Operand& value,
            const StoreOptions& options, const std::source_location& location) {
    Tracer& tracer = Tracer::of(ref);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, ref, name);
        const Access target = access(tracer, view, name);
        const ir::Value update = stored_value(tracer, view, target, value, name);
        const ir::Value mask = mask_value(tracer, options.mask, target.shape, name);
        return tracer.wrap(tracer.builder().atomic(op, target.ref, target.indices, update, mask));
    });
}

}  // namespace

DType Ref::dtype() const {
    Tracer& tracer = Tracer::of(*this);
    return tracer.function().ref_type(present_view(tracer, *this, "dtype").ref).dtype;
}

std::vector<std::int64_t> Ref::shape() const {
    Tracer& tracer = Tracer::of(*this);
    return view_shape(tracer, present_view(tracer, *this, "shape"));
}

int Ref::rank() const {
    return static_cast<int>(shape().size());
}

bool Ref::present() const {
    return static_cast<bool>(Tracer::of(*this).view(*this).ref);
}

Tile Ref::extent(int dim, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "extent");
        const auto extents = view_shape(tracer, view);
        const int rank = static_cast<int>(extents.size());
        if (dim < -rank || dim >= rank) {
            user_error("extent", "expected a dimension of `{}` (rank {}) but got {}", view.name,
                       rank, dim);
        }
        const int wanted = dim < 0 ? dim + rank : dim;
        const std::int64_t size = extents[static_cast<std::size_t>(wanted)];
        if (size != kDynamic) return tracer.wrap(tracer.index_constant(size));
        // A dynamic extent is always a whole dimension of the array: find which one.
        int position = 0;
        for (std::size_t d = 0;; ++d) {
            if (view.indices[d].kind == Index::Kind::slice && position++ == wanted) {
                return tracer.wrap(tracer.builder().extent(view.ref, static_cast<int>(d)));
            }
        }
    });
}

Ref Ref::select(const std::vector<RefIndex>& indices, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this);
    return tracer.at(location, [&] {
        View view = present_view(tracer, *this, "at");
        if (has_tile_index(view)) {
            user_error("at", "expected no further indices on a view of `{}` made by an index tile",
                       view.name);
        }
        std::vector<std::size_t> dims;  // the view's dimensions within its array
        for (std::size_t d = 0; d < view.indices.size(); ++d) {
            if (view.indices[d].kind == Index::Kind::slice) dims.push_back(d);
        }
        std::size_t given = 0;
        for (const RefIndex& index : indices) given += index.kind() != RefIndex::Kind::absent;
        if (given > dims.size()) {
            user_error("at", "expected at most {} indices for `{}` but got {}", dims.size(),
                       view.name, given);
        }
        Selector selector(tracer, view);
        for (std::size_t i = 0; i < given; ++i) {
            selector.select(view.indices[dims[i]], indices[i], static_cast<int>(i));
        }
        return tracer.add_view(std::move(view));
    });
}

Tile Ref::load(LoadOptions options, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this);
    return tracer.at(location, [&] {
        const Access source = access(tracer, present_view(tracer, *this, "load"), "load");
        const ir::Value mask = mask_value(tracer, options.mask, source.shape, "load");
        ir::Value other;
        if (options.other) {
            const Operand& operand = *options.other;
            if (!operand.is_literal() && tracer.dtype(operand) != source.dtype) {
                user_error("load", "expected `other` of {} but got {}", name(source.dtype),
                           name(tracer.dtype(operand)));
            }
            other = tracer.broadcast(tracer.value(operand, source.dtype), source.shape, "load");
        }
        return tracer.wrap(tracer.builder().load(source.ref, source.indices, mask, other));
    });
}

void Ref::store(Operand value, StoreOptions options, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this);
    tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "store");
        const Access target = access(tracer, view, "store");
        const ir::Value written = stored_value(tracer, view, target, value, "store");
        const ir::Value mask = mask_value(tracer, options.mask, target.shape, "store");
        tracer.builder().store(target.ref, target.indices, written, mask);
    });
}

Tile Ref::atomic_add(Operand value, StoreOptions options, std::source_location location) const {
    return atomic(ir::Op::atomic_add, "atomic_add", *this, value, options, location);
}
Tile Ref::atomic_max(Operand value, StoreOptions options, std::source_location location) const {
    return atomic(ir::Op::atomic_max, "atomic_max", *this, value, options, location);
}
Tile Ref::atomic_min(Operand value, StoreOptions options, std::source_location location) const {
    return atomic(ir::Op::atomic_min, "atomic_min", *this, value, options, location);
}
Tile Ref::atomic_xchg(Operand value, StoreOptions options, std::source_location location) const {
    return atomic(ir::Op::atomic_xchg, "atomic_xchg", *this, value, options, location);
}

Tile Ref::atomic_cas(Operand expected, Operand desired, StoreOptions options,
                     std::source_location location) const {
    Tracer& tracer = Tracer::of(*this);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "atomic_cas");
        const Access target = access(tracer, view, "atomic_cas");
        const ir::Value old_value = stored_value(tracer, view, target, expected, "atomic_cas");
        const ir::Value new_value = stored_value(tracer, view, target, desired, "atomic_cas");
        const ir::Value mask = mask_value(tracer, options.mask, target.shape, "atomic_cas");
        return tracer.wrap(
            tracer.builder().atomic_cas(target.ref, target.indices, old_value, new_value, mask));
    });
}

}  // namespace tilewright
