// The rules of accesses to arrays in programs without roles.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cuda/schedule/array_access.h"
#include "cuda/schedule/tools.h"
#include "cuda/schedule/verify_rules.h"

namespace tilewright::cuda::schedule {
namespace {

/// The tile that an access moves.
Value tile_of(const Instruction& made, const ArrayAccess& access) {
    return made.results.empty() ? access.values[0] : made.result();
}

/// The shape that indices give; none if index tiles do not go together.
std::optional<ir::Shape> shape_of(const Program& p, const ArrayAccess& access) {
    std::vector<std::int64_t> joint(static_cast<std::size_t>(access.tile_rank), 1), dims;
    bool has_joint = false;
    for (std::size_t dim = 0; dim < access.sizes.size(); ++dim) {
        if (!access.is_gathered(dim)) continue;
        const ir::Shape& shape = p.type(access.indices[dim]).type.shape;
        if (shape.rank() != access.tile_rank) return std::nullopt;
        for (int a = 0; a < shape.rank(); ++a) {
            std::int64_t& known = joint[static_cast<std::size_t>(a)];
            if (known != shape[a] && known != 1 && shape[a] != 1) return std::nullopt;
            if (shape[a] != 1) known = shape[a];
        }
    }
    for (std::size_t dim = 0; dim < access.sizes.size(); ++dim) {
        if (access.is_scalar(dim)) continue;
        if (!access.is_gathered(dim)) {
            dims.push_back(access.size(dim));
        } else if (!has_joint) {
            has_joint = true;
            dims.insert(dims.end(), joint.begin(), joint.end());
        }
    }
    return ir::Shape(std::span<const std::int64_t>(dims));
}

bool lies_like(const Program& p, Value value, Value tile) {
    return p.type(value).type.shape == p.type(tile).type.shape &&
           p.type(value).layout == p.type(tile).layout;
}

Broken broken_indices(const Program& p, const ArrayAccess& access) {
    for (std::size_t dim = 0; dim < access.sizes.size(); ++dim) {
        const ir::Type& index = p.type(access.indices[dim]).type;
        if (is_float(index.dtype) || (!access.is_gathered(dim) && !index.is_scalar())) {
            return broken("%{} is no index of dimension {}", p.value_name(access.indices[dim]),
                          dim);
        }
    }
    return std::nullopt;
}

Broken broken_operands(const Program& p, const Instruction& made, const ArrayAccess& access,
                       Value tile) {
    const auto name = [&](Value value) { return p.value_name(value); };
    for (std::size_t dim = 0; dim < access.sizes.size(); ++dim) {
        const ValueType& index = p.type(access.indices[dim]);
        if (index.layout && *index.layout != index_layout(*p.type(tile).layout, access.axis[dim],
                                                          access.tile_rank, index.type.shape)) {
            return broken("%{} does not lie in the threads of its elements",
                          name(access.indices[dim]));
        }
    }
    for (const Value one : {access.mask, access.other}) {
        if (!one) continue;
        const DType wanted = one == access.mask ? DType::boolean : access.array.dtype;
        const bool fits = !p.is_tile(one) || lies_like(p, one, tile);
        if (!fits || p.type(one).type.dtype != wanted) {
            return broken("%{} has another type or layout than the access", name(one));
        }
    }
    for (const Value value : access.values) {
        if (!lies_like(p, value, tile)) {
            return broken("%{} has another shape or layout than the access", name(value));
        }
    }
    const bool reads = !made.results.empty() && !made.is(Op::targets);
    if (reads && p.type(tile).type.dtype != access.array.dtype) {
        return broken("%{} has another type than @{}", name(tile), access.array.name);
    }
    return std::nullopt;
}

// V28: an access has an index for each dimension of its array, and the shape that they give; what
// its elements need is in their threads.
Broken broken_access(const Program& p, const Instruction& made) {
    const Parameter& array = p.ref(made.symbol("of"));
    const std::size_t rank = made.list("index").size();
    const auto fits = [&](const char* list) {
        return !made.has(list) || made.list(list).size() == rank;
    };
    const std::size_t expected =
        rank + (made.has("masked") ? 1 : 0) + values_of_access(made) + (made.has("other") ? 1 : 0);
    if (rank != array.extents.size() || !fits("steps") || !fits("bounds")) {
        return broken("an access to @{} has {} dimensions, not {}", array.name, rank,
                      array.extents.size());
    }
    if (made.operands.size() != expected) {
        return broken("an access to @{} has {} operands, not {}", array.name, made.operands.size(),
                      expected);
    }
    const ArrayAccess access(p, made);
    if (Broken found = broken_indices(p, access)) return found;
    if (made.is(Op::copy_tile)) return std::nullopt;
    const Value tile = tile_of(made, access);
    if (shape_of(p, access) != p.type(tile).type.shape) {
        return broken("the indices of @{} do not give the shape of %{}", array.name,
                      p.value_name(tile));
    }
    return broken_operands(p, made, access, tile);
}

/// Values whose elements stay in words.
std::set<Value> values_in_words(const Program& p) {
    std::set<Value> found;
    each_instruction(p.body, [&](const Instruction& made) {
        if (made.results.size() == 1 &&
            (made.has("words") || (made.is(Op::copy) && found.contains(made.operands.at(0))))) {
            found.insert(made.result());
        }
    });
    return found;
}

/// May elements of a tile differ along an axis, as far as operations tell?
class Variation {
  public:
    explicit Variation(const Program& p) : p_(p), uses_(p) {}

    bool along(Value value, int axis) {
        const ir::Shape& shape = p_.type(value).type.shape;
        if (shape.rank() == 0 || shape[axis] == 1) return false;
        const auto [known, is_new] = known_.try_emplace({value, axis}, true);
        if (!is_new) return known->second;
        const Instruction* const made = uses_.definition(value);
        return known_[{value, axis}] = made == nullptr || along(*made, axis);
    }

  private:
    bool along(const Instruction& made, int axis) {
        const auto operands_vary = [&](int other) {
            return std::any_of(made.operands.begin(), made.operands.end(),
                               [&](Value operand) { return along(operand, other); });
        };
        // A tile that came through shared memory is not followed to where it was written.
        if (made.is(ir::Op::constant) || made.is(Op::read_tile)) return false;
        if (made.is(ir::Op::iota)) return made.number("axis") == axis;
        if (made.is(ir::Op::expand_dims)) {
            return operands_vary(axis < made.number("axis") ? axis : axis - 1);
        }
        if (made.is(ir::Op::transpose)) {
            return operands_vary(
                static_cast<int>(made.list("permutation").at(static_cast<std::size_t>(axis))));
        }
        const bool keeps_axes = made.is(Op::relabel) || made.is(Op::shuffle) ||
                                made.is(ir::Op::broadcast) ||
                                (made.op == Op::tile && is_pointwise(made.tile));
        return !keeps_axes || operands_vary(axis);
    }

    const Program& p_;
    const Uses uses_;
    std::map<std::pair<Value, int>, bool> known_;
};

}  // namespace

Broken array_accesses(const Program& p) {
    return first(p.body, [&](const Instruction& made) {
        return is_array_access(made) ? broken_access(p, made) : std::nullopt;
    });
}

// V29: what is accessed at once lies beside each other, in an array and in the registers, under one
// mask; elements stay in words only where those are loaded whole.
Broken vectors_of_accesses(const Program& p) {
    const std::set<Value> in_words = values_in_words(p);
    std::optional<Variation> variation;
    std::set<Value> variables;
    each_instruction(p.body, [&](const Instruction& made) {
        if (made.is(Op::declare)) variables.insert(made.result());
    });
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(Op::keep_words) && !in_words.contains(made.operands.at(0))) {
            return broken("%{} has no words", p.value_name(made.operands[0]));
        }
        if (!is_array_access(made) || made.is(Op::copy_tile)) return std::nullopt;
        const ArrayAccess access(p, made);
        const Value tile = tile_of(made, access);
        const auto& layout = p.type(tile).layout;
        const int bytes = access.vector * size_of(access.array.dtype);
        if (access.vector != 1) {
            const std::size_t last = access.sizes.size() - 1;
            const bool contiguous = access.array.vectors && !access.sizes.empty() &&
                                    access.size(last) > 0 && access.step(last) == 1;
            if (access.vector < 1 || !contiguous || !layout || bytes > 16 ||
                access.vector > vector_length(*layout, access.axis[last])) {
                return broken("%{} does not have {} neighbours in rows", p.value_name(tile),
                              access.vector);
            }
            if (access.mask && !variation) variation.emplace(p);
            if (access.mask && variation->along(access.mask, access.vector_axis())) {
                return broken("neighbours in %{} are masked one by one", p.value_name(tile));
            }
        }
        if (made.has("into") && !variables.contains(tile)) {
            return broken("%{} is not declared", p.value_name(tile));
        }
        const bool whole = in_words.contains(tile);
        if (whole && made.is(ir::Op::load) && (bytes != 16 || access.other)) {
            return broken("%{} is not loaded in words", p.value_name(tile));
        }
        if ((whole || made.has("into")) && made.is(ir::Op::load) && access.cuts_vectors) {
            return broken("@{} may end inside of a word of %{}", access.array.name,
                          p.value_name(tile));
        }
        return std::nullopt;
    });
}

// V31: threads copy pieces of 16 bytes of contiguous rows, for which the buffer has space.
Broken copied_tiles(const Program& p) {
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (!made.is(Op::copy_tile)) return std::nullopt;
        const ArrayAccess access(p, made);
        const ir::Shape shape = copied_shape(access);
        const std::string& buffer = made.symbol("to");
        const std::size_t last = access.sizes.size() - 1;
        const std::int64_t row = made.number("row_bytes"), group = made.number("group");
        const bool slices = std::none_of(access.sizes.begin(), access.sizes.end(),
                                         [](std::int64_t size) { return size == kGathered; });
        if (!access.array.vectors || !slices || shape.rank() > 3 || access.size(last) < 1 ||
            access.step(last) != 1) {
            return broken("what is copied to @{} does not lie in up to 3 axes of rows", buffer);
        }
        if (row % 16 != 0 || row < access.size(last) * size_of(access.array.dtype) || group < 16 ||
            (group & (group - 1)) != 0 || row % group != 0) {
            return broken("rows of {} bytes in groups of {} do not fit what is copied to @{}", row,
                          group, buffer);
        }
        if (covered_rows(shape) * row > p.buffer(buffer).slot_bytes()) {
            return broken("what is copied is larger than @{}", buffer);
        }
        return std::nullopt;
    });
}

// V30: every thread finds the addresses of all elements, in the order of the tile.
Broken targets_of_stores(const Program& p) {
    std::map<Value, const Instruction*> made_by;
    each_instruction(p.body, [&](const Instruction& made) {
        if (made.is(Op::targets) || made.is(Op::last_writers)) made_by[made.result()] = &made;
    });
    const auto made_as = [&](Value value, Op op) -> const Instruction* {
        const auto found = made_by.find(value);
        return found != made_by.end() && found->second->is(op) ? found->second : nullptr;
    };
    return first(p.body, [&](const Instruction& made) -> Broken {
        if (made.is(Op::targets)) {
            const std::string& buffer = made.symbol("writes");
            if (p.type(made.result()).type.shape.size() * 8 > p.buffer(buffer).slot_bytes()) {
                return broken("%{} is larger than @{}", p.value_name(made.result()), buffer);
            }
        }
        if (made.is(Op::last_writers)) {
            const Instruction* const targets = made_as(made.operands.at(0), Op::targets);
            if (targets == nullptr || targets->symbol("writes") != made.symbol("reads") ||
                !lies_like(p, made.result(), targets->result())) {
                return broken("@{} does not have the addresses of %{}", made.symbol("reads"),
                              p.value_name(made.operands[0]));
            }
        }
        if (made.is(Op::store_targets)) {
            const Instruction* const last = made_as(made.operands.at(1), Op::last_writers);
            if (last == nullptr || last->operands.at(0) != made.operands[0] ||
                !lies_like(p, made.operands.at(2), made.operands[0])) {
                return broken("%{} is not stored to the last targets of %{}",
                              p.value_name(made.operands.at(2)), p.value_name(made.operands[0]));
            }
        }
        return std::nullopt;
    });
}

}  // namespace tilewright::cuda::schedule
