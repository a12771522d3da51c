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

/// Extents of a view. The joint dimensions of index tiles replace those of the first one.
std::vector<std::int64_t> view_shape(Tracer& tracer, const View& view) {
    ir::Shape joint;
    for (const auto& index : view.indices) {
        if (index.kind == Index::Kind::tile) {
            joint = lang::broadcast_shapes(joint, tracer.type(index.start).shape, "at",
                                           fmt::format("index tiles of `{}`", view.name));
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

/// The signed value of an integer literal; nullopt for a traced value.
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
        const ir::Value offset = this->offset(slice.start, dim);
        check_static(index, slice.start, 1, 1, dim);
        check_traced(index, slice.start, offset, 1);
        index.start = position(index, slice.start, offset);
        index.kind = Index::Kind::scalar;
    }

  private:
    void select_slice(ArrayIndex& index, const Slice& slice, int dim) {
        // The IR's limit, below which no sum of a start and steps wraps back into an array.
        constexpr std::int64_t kMost = std::int64_t{1} << 40;
        const std::int64_t reach = kMost / std::max<std::int64_t>(slice.size, 1);
        if (slice.size < 0 || slice.stride < 1 || slice.stride > reach / index.stride) {
            user_error(
                "at",
                "expected a slice of size >= 0 and stride >= 1, of at most 2^40 elements "
                "from end to end, in dimension {} of `{}` but got size {} and stride {}{}",
                dim, view_.name, slice.size, slice.stride,
                index.stride > 1 ? fmt::format(" of a view of stride {}", index.stride) : "");
        }
        const ir::Value offset = this->offset(slice.start, dim);
        check_static(index, slice.start, slice.size, slice.stride, dim);
        check_traced(index, slice.start, offset, (slice.size - 1) * slice.stride + 1);
        index.start = position(index, slice.start, offset);
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
            value = tracer_.scaled_index(builder.cast(value, i64), index.stride, range(tile));
            if (index.start) {
                const ir::Value start = builder.broadcast(index.start, tracer_.type(value).shape);
                value = builder.binary(ir::Op::add, value, start);
            }
        }
        index.start = value;
        index.kind = Index::Kind::tile;
        index.stride = 1;
    }

    ir::Value offset(const Operand& operand, int dim) {
        return tracer_.index(operand, "at",
                             fmt::format("the index in dimension {} of `{}`", dim, view_.name));
    }

    /// The values that an index may have.
    ir::Interval range(const Operand& operand) {
        if (const auto known = static_index(operand)) return ir::Interval::integers(*known, *known);
        const DType dtype = tracer_.dtype(operand);
        return ir::Interval::all(dtype == u64 ? i64 : dtype);
    }

    /// The position in the array of element `offset` of the view's dimension.
    ir::Value position(const ArrayIndex& index, const Operand& operand, ir::Value offset) {
        const ir::Value value = tracer_.scaled_index(offset, index.stride, range(operand));
        return index.start ? tracer_.builder().binary(ir::Op::add, index.start, value) : value;
    }

    void check_static(const ArrayIndex& index, const Operand& start, std::int64_t size,
                      std::int64_t stride, int dim) {
        const auto first = static_index(start);
        if (!first) return;
        const std::int64_t reach = std::max<std::int64_t>(size - 1, 0) * stride;
        const std::int64_t last = *first > INT64_MAX - reach ? INT64_MAX : *first + reach;
        const bool known = index.size != kDynamic;
        if (*first < 0 || (known && size > 0 && last >= index.size)) {
            user_error("at",
                       "expected elements inside dimension {} of `{}` (extent {}) but got "
                       "elements {} to {}",
                       dim, view_.name, known ? std::to_string(index.size) : "dynamic", *first,
                       last);
        }
    }

    /// In the checked mode, reports a traced index that leaves its block, because the neighbouring
    /// elements belong to another program's block.
    void check_traced(const ArrayIndex& index, const Operand& start, ir::Value first,
                      std::int64_t span) {
        if (!tracer_.checked || !index.is_block || static_index(start)) return;
        auto& builder = tracer_.builder();
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
                   "of it with ds(start, size)",
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

/// An operand of an access, broadcast to the view's shape; `what` names it in the UserError.
ir::Value fitted(Tracer& tracer, const View& view, const Access& target, const Operand& operand,
                 DType dtype, const char* op, const char* what) {
    if (!lang::broadcasts_to(tracer.shape(operand), target.shape)) {
        user_error(op, "expected {} of a shape that broadcasts to {} for `{}` but got {}", what,
                   lang::shape_text(target.shape), view.name,
                   lang::shape_text(tracer.shape(operand)));
    }
    if (operand.is_literal() && !Tracer::fits(operand, dtype)) {
        user_error(op, "expected {} of {} for `{}` but got {}", what, name(dtype), view.name,
                   Tracer::text(operand));
    }
    return tracer.broadcast(tracer.value(operand, dtype), target.shape, op);
}

ir::Value mask_value(Tracer& tracer, const View& view, const Access& target,
                     const std::optional<Operand>& mask, const char* op) {
    if (!mask) return {};
    if (tracer.dtype(*mask) != boolean) {
        user_error(op, "expected a bool mask for `{}` but got {}", view.name,
                   name(tracer.dtype(*mask)));
    }
    return fitted(tracer, view, target, *mask, boolean, op, "a mask");
}

/// A value to be stored: a literal takes the Ref's dtype, a traced value must have it.
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
        user_error(op, "expected a value of {} for `{}` but got {}; convert it with .to({})",
                   name(target.dtype), view.name, name(tracer.dtype(value)), name(target.dtype));
    }
    return fitted(tracer, view, target, value, target.dtype, op, "a value");
}

/// What masked lanes and lanes outside the array read.
ir::Value other_value(Tracer& tracer, const View& view, const Access& source,
                      const std::optional<Operand>& other) {
    if (!other) return {};
    if (!other->is_literal() && tracer.dtype(*other) != source.dtype) {
        user_error("load", "expected `other` of {} for `{}` but got {}", name(source.dtype),
                   view.name, name(tracer.dtype(*other)));
    }
    return fitted(tracer, view, source, *other, source.dtype, "load", "`other`");
}

Tile atomic(ir::Op op, const char* name, const Ref& ref, const Operand& value,
            const StoreOptions& options, const std::source_location& location) {
    Tracer& tracer = Tracer::of(ref, name, location);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, ref, name);
        const Access target = access(tracer, view, name);
        const ir::Value update = stored_value(tracer, view, target, value, name);
        const ir::Value mask = mask_value(tracer, view, target, options.mask, name);
        return tracer.wrap(tracer.builder().atomic(op, target.ref, target.indices, update, mask));
    });
}

/// The result of `look(tracer, view)` on a present Ref, which emits nothing.
template <typename Look>
auto looked_at(const Ref& ref, const char* op, const std::source_location& location, Look&& look) {
    Tracer& tracer = Tracer::of(ref, op, location);
    return Tracer::with_line(location, [&] { return look(tracer, present_view(tracer, ref, op)); });
}

}  // namespace

DType Ref::dtype(std::source_location location) const {
    return looked_at(*this, "dtype", location, [](Tracer& tracer, const View& view) {
        return tracer.function().ref_type(view.ref).dtype;
    });
}

std::vector<std::int64_t> Ref::shape(std::source_location location) const {
    return looked_at(*this, "shape", location,
                     [](Tracer& tracer, const View& view) { return view_shape(tracer, view); });
}

int Ref::rank(std::source_location location) const {
    return looked_at(*this, "rank", location, [](Tracer& tracer, const View& view) {
        return static_cast<int>(view_shape(tracer, view).size());
    });
}

bool Ref::present(std::source_location location) const {
    return static_cast<bool>(Tracer::of(*this, "present", location).view(*this).ref);
}

Tile Ref::extent(int dim, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this, "extent", location);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "extent");
        const auto extents = view_shape(tracer, view);
        const int rank = static_cast<int>(extents.size());
        if (dim < -rank || dim >= rank) {
            user_error("extent", "expected a dimension of `{}` (rank {}) but got {}", view.name,
                       rank, dim);
        }
        const int wanted = dim < 0 ? dim + rank : dim;
        const std::int64_t size = extents[wanted];
        if (size != kDynamic) return tracer.wrap(tracer.index_constant(size));
        // A dynamic extent always belongs to a whole dimension of the array: find which one.
        int position = 0;
        for (std::size_t d = 0;; ++d) {
            if (view.indices[d].kind == Index::Kind::slice && position++ == wanted) {
                return tracer.wrap(tracer.builder().extent(view.ref, static_cast<int>(d)));
            }
        }
    });
}

Ref Ref::select(const std::vector<RefIndex>& indices, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this, "at", location);
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
        // `at` passes empty indices for those that were not given.
        std::size_t given = indices.size();
        while (given > 1 && indices[given - 1].kind() == RefIndex::Kind::absent) --given;
        for (std::size_t i = 0; i < given; ++i) {
            if (indices[i].kind() == RefIndex::Kind::absent) {
                user_error("at",
                           "expected an index in dimension {} of `{}` but got an empty RefIndex; "
                           "tw::all is the whole dimension",
                           i, view.name);
            }
        }
        if (given > dims.size()) {
            user_error("at", "expected at most {} indices for `{}` but got {}", dims.size(),
                       view.name, given);
        }
        Selector selector(tracer, view);
        for (std::size_t i = 0; i < given; ++i) {
            selector.select(view.indices[dims[i]], indices[i], static_cast<int>(i));
        }
        if (has_tile_index(view)) view_shape(tracer, view);  // checks that index tiles broadcast
        return tracer.add_view(std::move(view));
    });
}

Tile Ref::load(LoadOptions options, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this, "load", location);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "load");
        const Access source = access(tracer, view, "load");
        const ir::Value mask = mask_value(tracer, view, source, options.mask, "load");
        const ir::Value other = other_value(tracer, view, source, options.other);
        return tracer.wrap(tracer.builder().load(source.ref, source.indices, mask, other));
    });
}

void Ref::store(Operand value, StoreOptions options, std::source_location location) const {
    Tracer& tracer = Tracer::of(*this, "store", location);
    tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "store");
        const Access target = access(tracer, view, "store");
        const ir::Value written = stored_value(tracer, view, target, value, "store");
        const ir::Value mask = mask_value(tracer, view, target, options.mask, "store");
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
    Tracer& tracer = Tracer::of(*this, "atomic_cas", location);
    return tracer.at(location, [&] {
        const View& view = present_view(tracer, *this, "atomic_cas");
        const Access target = access(tracer, view, "atomic_cas");
        const ir::Value old_value = stored_value(tracer, view, target, expected, "atomic_cas");
        const ir::Value new_value = stored_value(tracer, view, target, desired, "atomic_cas");
        const ir::Value mask = mask_value(tracer, view, target, options.mask, "atomic_cas");
        return tracer.wrap(
            tracer.builder().atomic_cas(target.ref, target.indices, old_value, new_value, mask));
    });
}

}  // namespace tilewright
