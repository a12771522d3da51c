// vmap: a leading batch axis in the grid and a squeezed dimension in every mapped spec.
#include "run/call_state.h"
#include "support/check.h"

namespace tilewright {

namespace detail {

BlockSpec batched_spec(const BlockSpec& spec, int rank, int axis) {
    if (spec.is_absent() || (spec.is_whole() && axis < 0)) return spec;
    std::vector<BlockDim> shape = spec.shape();
    if (spec.is_whole()) shape.assign(rank, BlockDim(all));
    const std::size_t inner_rank = shape.size();
    if (axis >= 0) {
        if (axis > static_cast<int>(inner_rank)) {
            user_error("vmap", "expected a batch axis in [0, {}] but got {}", inner_rank, axis);
        }
        shape.insert(shape.begin() + axis, squeezed);
    }
    const auto index_map = [=](std::span<const Tile> indices) {
        const auto inner_indices = indices.subspan(1);
        BlockIndex index;
        if (!spec.index_map()) {
            index.indices.assign(inner_rank, Operand(0));
        } else {
            if (spec.arity() >= 0 && spec.arity() != std::ssize(inner_indices)) {
                user_error("vmap",
                           "expected the index map of the call to take {} indices (one per "
                           "grid axis) but it takes {}",
                           inner_indices.size(), spec.arity());
            }
            index = spec.index_map()(inner_indices);
        }
        if (axis >= 0) index.indices.insert(index.indices.begin() + axis, Operand(indices[0]));
        return index;
    };
    return BlockSpec(std::move(shape), index_map, spec.location());
}

}  // namespace detail

Call vmap(const Call& call, std::vector<int> in_axes, std::vector<int> out_axes) {
    for (int axis : in_axes) {
        if (axis < kNotMapped) {
            user_error("vmap", "expected an axis >= 0 or kNotMapped but got {}", axis);
        }
    }
    auto batchings = call.state_->batchings();
    batchings.push_back({std::move(in_axes), std::move(out_axes)});
    Call mapped = call;
    mapped.state_ =
        std::make_shared<detail::CallState>(call.kernel(), call.options(), std::move(batchings));
    return mapped;
}

}  // namespace tilewright
