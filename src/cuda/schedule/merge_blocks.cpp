// Recognises that programs differ in their position only.
#include "cuda/schedule/merge_blocks.h"

#include <algorithm>
#include <map>

#include "ir/access.h"

namespace tilewright::cuda::schedule {
namespace {

using Definitions = std::map<ir::Value, const ir::Instruction*>;

Definitions definitions_of(const ir::Function& kernel) {
    Definitions definitions;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        for (ir::Value result : made.results) definitions[result] = &made;
    });
    return definitions;
}

const ir::Instruction* definition(const Definitions& definitions, ir::Value value) {
    const auto found = definitions.find(value);
    return found == definitions.end() ? nullptr : found->second;
}

std::optional<std::int64_t> constant(const Definitions& definitions, ir::Value value) {
    const ir::Instruction* const made = definition(definitions, value);
    if (made == nullptr || made->op != ir::Op::constant) return std::nullopt;
    return static_cast<std::int64_t>(made->get<ir::ConstantAttributes>().bits);
}

/// The grid axis and size of a product `program_id * size`.
std::optional<std::pair<int, std::int64_t>> scaled_position(const Definitions& definitions,
                                                            ir::Value value) {
    const ir::Instruction* const made = definition(definitions, value);
    if (made == nullptr || made->op != ir::Op::mul) return std::nullopt;
    for (int side = 0; side < 2; ++side) {
        const ir::Instruction* const id = definition(definitions, made->operands[side]);
        const auto size = constant(definitions, made->operands[1 - side]);
        if (id != nullptr && id->op == ir::Op::program_id && size) {
            return std::pair(id->get<ir::AxisAttributes>().axis, *size);
        }
    }
    return std::nullopt;
}

/// Does each element of a result follow from elements at the same place along the blocks' axes?
bool keeps_places(const ir::Instruction& made) {
    switch (made.op) {
        case ir::Op::constant:
        case ir::Op::load:
        case ir::Op::store:
        case ir::Op::dot:
        case ir::Op::broadcast:
        case ir::Op::expand_dims:
        case ir::Op::transpose:
        case ir::Op::for_loop:
        case ir::Op::yield:
        case ir::Op::program_id:
        case ir::Op::extent:
            return true;
        default:
            return ir::is_elementwise(made.op);
    }
}

}  // namespace

std::optional<MergedBlocks> mergeable_blocks(const ir::Function& kernel) {
    bool simple = true;
    std::vector<const ir::Instruction*> stores;
    ir::walk(kernel.body, [&](const ir::Instruction& made) {
        simple = simple && keeps_places(made);
        if (made.op == ir::Op::store) stores.push_back(&made);
    });
    const auto at_top =
        std::count_if(kernel.body.body.begin(), kernel.body.body.end(),
                      [](const ir::Instruction& made) { return made.op == ir::Op::store; });
    if (!simple || stores.empty() || at_top != std::ssize(stores)) return std::nullopt;
    const Definitions definitions = definitions_of(kernel);
    MergedBlocks merged;
    for (const ir::Instruction* const store : stores) {
        const ir::Access access = ir::access(*store);
        const ir::AccessShape tile = ir::access_shape(kernel, *store);
        if (tile.shape.rank() != 2 || access.mask) return std::nullopt;
        const auto& indices = store->get<ir::AccessAttributes>().indices;
        std::vector<int> axes(2, -2);
        std::vector<std::int64_t> sizes(2, 0), extents(2, 0);
        for (std::size_t d = 0; d < indices.size(); ++d) {
            if (indices[d].kind == ir::Index::Kind::scalar) continue;
            const std::int64_t extent = kernel.ref_type(access.ref).extents[d];
            const bool slice = indices[d].kind == ir::Index::Kind::slice && indices[d].stride == 1;
            if (!slice || indices[d].size < 2 || extent == ir::kDynamic) return std::nullopt;
            std::int64_t reach = indices[d].size;
            int axis = -1;
            if (const auto position = scaled_position(definitions, access.indices[d])) {
                axis = position->first;
                const std::int64_t programs = kernel.grid.at(axis);
                if (position->second != reach || programs == ir::kDynamic || programs < 1 ||
                    __builtin_mul_overflow(reach, programs, &reach)) {
                    return std::nullopt;
                }
            } else if (constant(definitions, access.indices[d]) != 0) {
                return std::nullopt;
            }
            if (reach < extent || extent < 1) return std::nullopt;
            axes[tile.axis[d]] = axis;
            sizes[tile.axis[d]] = indices[d].size;
            extents[tile.axis[d]] = extent;
        }
        if (axes[0] < -1 || axes[1] < -1 || (axes[0] >= 0 && axes[0] == axes[1])) {
            return std::nullopt;
        }
        if (merged.axes.empty()) {
            merged = {axes, sizes, extents};
        } else if (merged.axes != axes || merged.sizes != sizes) {
            return std::nullopt;
        }
        for (int i = 0; i < 2; ++i) merged.extents[i] = std::max(merged.extents[i], extents[i]);
    }
    return merged;
}

bool remove_merged_axes(ir::Function& cut, const MergedBlocks& merged, std::size_t old_rank) {
    const Definitions definitions = definitions_of(cut);
    std::map<ir::Value, std::vector<const ir::Instruction*>> users;
    ir::walk(cut.body, [&](const ir::Instruction& made) {
        for (ir::Value operand : made.operands) users[operand].push_back(&made);
    });
    const auto axis_of =
        [&](ir::Value value) {  // of a position times the block's size; -1: another
            const auto position = scaled_position(definitions, value);
            if (!position) return -1;
            for (int i = 0; i < 2; ++i) {
                if (position->first == merged.axes[i] && position->second != merged.sizes[i])
                    return -1;
            }
            return position->first;
        };
    bool only_begins = true;
    ir::walk(cut.body, [&](const ir::Instruction& made) {
        if (made.op != ir::Op::program_id) return;
        const int axis = made.get<ir::AxisAttributes>().axis;
        for (int i = 0; i < 2; ++i) {
            const int tile = static_cast<int>(old_rank) + i, old = merged.axes[i];
            if (old < 0 || (axis != tile && axis != old)) continue;
            const int other = axis == tile ? old : tile;
            for (const ir::Instruction* const product : users[made.result()]) {
                only_begins &= product->op == ir::Op::mul && axis_of(product->result()) == axis;
                for (const ir::Instruction* const sum : users[product->result()]) {
                    only_begins &= sum->op == ir::Op::add && (axis_of(sum->operands[0]) == other ||
                                                              axis_of(sum->operands[1]) == other);
                }
            }
        }
    });
    if (!only_begins) return false;
    ir::walk(cut.body, [&](ir::Instruction& made) {
        if (made.op != ir::Op::program_id) return;
        const int axis = made.get<ir::AxisAttributes>().axis;
        if (std::find(merged.axes.begin(), merged.axes.end(), axis) == merged.axes.end()) return;
        made.op = ir::Op::constant;
        made.attributes = ir::ConstantAttributes{0};
    });
    for (int axis : merged.axes) {
        if (axis >= 0) cut.grid[axis] = 1;
    }
    return true;
}

}  // namespace tilewright::cuda::schedule
