// Rebuilds values on demand: memo, accesses, control flow. demand_ops.cpp has the other ops.
#include "ir/passes/demand.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/access.h"
#include "ir/passes/effects.h"
#include "support/check.h"

namespace tilewright::ir {

Region whole(const Shape& shape) {
    Region region;
    for (std::int64_t dim : shape.dims()) region.push_back({{}, dim, 0});
    return region;
}

bool is_whole(const Region& region, const Shape& shape) {
    return region == whole(shape);
}

Shape shape_of(const Region& region) {
    std::vector<std::int64_t> dims;
    for (const Range& range : region) dims.push_back(range.size);
    return Shape(dims);
}

bool Demand::Key::operator<(const Key& other) const {
    if (value != other.value) return value < other.value;
    return std::ranges::lexicographical_compare(
        region, other.region, [](const Range& a, const Range& b) {
            return std::pair(a.offset, a.size) < std::pair(b.offset, b.size);
        });
}

Demand::Scope::~Scope() {
    --demand_.depth_;
    while (demand_.notes_.size() > notes_) {
        demand_.known_.erase(demand_.notes_.back());
        demand_.notes_.pop_back();
    }
}

void Demand::note(Key key, Value value) {
    if (known_.emplace(key, value).second) notes_.push_back(std::move(key));
}

void Demand::set_roots(std::vector<const Instruction*> roots, Region region) {
    roots_ = std::move(roots);
    root_region_ = std::move(region);
}

Value Demand::refuse(const Instruction& at, std::string_view reason) {
    std::string what = "a result";
    if (!at.results.empty()) what = to_string(source_.function().type(at.results[0]));
    const std::string place = at.location.file.empty()
                                  ? ""
                                  : fmt::format(" (at {}:{})", at.location.file, at.location.line);
    refuse(
        fmt::format("expected a block that can be cut into tiles of at most {} elements but got "
                    "{} of {}: {}{}",
                    options_.max_tile_elements, name(at.op), what, reason, place));
    return {};
}

Value Demand::placeholder(Value value, const Region& region) {
    return constant({source_.function().type(value).dtype, shape_of(region)}, 0);
}

Value Demand::sum(Value a, Value b) {
    if (!a) return b;
    if (!b) return a;
    return b_.binary(Op::add, a, b);
}

Value Demand::times(Value a, std::int64_t factor) {
    return !a || factor == 1 ? a : b_.binary(Op::mul, a, index(factor));
}

Value Demand::get_whole(Value value) {
    return get(value, whole(source_shape(value)));
}

Value Demand::get(Value value, const Region& region) {
    TW_ASSERT(static_cast<int>(region.size()) == source_shape(value).rank());
    const Key key{value, region};
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    if (stopped()) return placeholder(value, region);
    const Definition& from = source_.definition(value);
    if (from.instruction != nullptr && shape_of(region).size() > options_.max_tile_elements) {
        refuse(*from.instruction,
               fmt::format("{} of it is needed at once", is_whole(region, source_shape(value))
                                                             ? "all"
                                                             : to_string(shape_of(region))));
    }
    const Value result = stopped() ? Value{} : build(value, region);
    if (stopped()) return placeholder(value, region);
    note(key, result);
    return result;
}

std::vector<Value> Demand::stream(std::int64_t extent, std::int64_t chunk, std::vector<Value> init,
                                  const ChunkBody& body) {
    std::vector<Value> carries = std::move(init);
    const std::int64_t full = extent / chunk * chunk;
    if (full == chunk) carries = body({{}, chunk, 0}, carries);
    if (full > chunk) {
        carries = b_.for_loop(index(0), index(full), index(chunk), carries,
                              [&](Value iv, std::span<const Value> arguments) {
                                  const Scope scope(*this);
                                  offset_depths_[iv] = depth_;
                                  return body({iv, chunk, chunk}, arguments);
                              });
    }
    if (full < extent) {
        const Value offset = full == 0 ? Value{} : index(full);
        if (offset) offset_depths_[offset] = depth_;
        carries = body({offset, extent - full, full}, carries);
    }
    return carries;
}

// ---- Accesses.

namespace {

// The region of an operand that was broadcast to the region's shape; extents of 1 stay whole.
Region narrowed(const Region& region, const Shape& from) {
    Region result;
    for (int axis = 0; axis < from.rank(); ++axis) {
        const Range& range = region[axis];
        result.push_back(from[axis] == 1 ? Range{} : range);
    }
    return result;
}

}  // namespace

void Demand::narrow_access(const Instruction& from, const Region& region, Instruction& to) {
    const Access operands = access(from);
    const AccessShape lanes = access_shape(source_.function(), from);
    AccessAttributes attributes = from.get<AccessAttributes>();
    const bool moved = !is_whole(region, lanes.shape);
    attributes.in_bounds = attributes.in_bounds && !moved;
    to.operands = {operands.ref};
    for (std::size_t i = 0; i < attributes.indices.size(); ++i) {
        Index& form = attributes.indices[i];
        const Value index = operands.indices[i];
        if (form.kind == Index::Kind::tile) {
            const auto first = region.begin() + lanes.axis[i];
            const Region joint(first, first + lanes.tile_rank);
            to.operands.push_back(get(index, narrowed(joint, source_shape(index))));
            continue;
        }
        Value start = get(index, {});
        if (form.kind == Index::Kind::slice) {
            const Range& range = region[lanes.axis[i]];
            if (range.offset) {
                start = sum(b_.cast(start, DType::i64), times(range.offset, form.stride));
            }
            form.size = range.size;
        }
        to.operands.push_back(start);
    }
    std::vector<Value> tiles(operands.values.begin(), operands.values.end());
    if (operands.mask) tiles.push_back(operands.mask);
    if (operands.other) tiles.push_back(operands.other);
    for (Value tile : tiles) {
        const bool scalar = source_shape(tile).rank() == 0;
        to.operands.push_back(get(tile, scalar ? Region{} : region));
    }
    to.op = from.op;
    to.location = from.location;
    to.attributes = std::move(attributes);
}

// A load moves to the stores that need it. It may read what they write only if each element is read
// by the sub-tile that writes it: same indices, same region.
Value Demand::load(const Instruction& from, const Region& region) {
    for (const Instruction* root : roots_) {
        if (source_.written_between(from, *root)) {
            return refuse(from, "its Ref is written between the load and the store that needs it");
        }
        if (!is_access(root->op) ||
            !may_write(source_.function(), effects(*root).writes, from.operands[0])) {
            continue;
        }
        const Access mine = access(from), theirs = access(*root);
        const bool same =
            mine.ref == theirs.ref && region == root_region_ &&
            std::ranges::equal(mine.indices, theirs.indices) &&
            from.get<AccessAttributes>().indices == root->get<AccessAttributes>().indices;
        if (!same) return refuse(from, "a store in parts writes what a later part would read");
    }
    Instruction copy;
    narrow_access(from, region, copy);
    return b_.append(std::move(copy)).at(0);
}

// ---- Control flow.

// A block argument not known so far: a carry of a loop being rebuilt, which is needed from now on.
Value Demand::carry(Value, const Definition& from, const Region& region) {
    for (const Frame* frame : frames_) {
        if (frame->loop != from.instruction) continue;
        if (frame->carries.contains(from.index)) {
            return refuse(*from.instruction,
                          "two parts of a sub-tile need different regions of one carry");
        }
        for (const Range& range : region) {
            if (range.offset && offset_depths_[range.offset] > frame->depth) {
                return refuse(*from.instruction,
                              "a carry is needed in parts that change inside the loop");
            }
        }
        missing_ = MissingCarry{frame, from.index, region};
        return {};
    }
    return refuse(*from.instruction, "a carry of a loop with stores is larger than a tile");
}

Value Demand::for_loop(const Instruction& loop, std::size_t result, const Region& region) {
    if (!effects(loop).removable()) return refuse(loop, "the loop also writes memory");
    Frame frame{&loop, {{result, region}}, depth_};
    for (;;) {
        if (const auto done = try_loop(loop, result, frame)) return *done;
    }
}

// Rebuilds the loop with the carries known to be needed; nullopt if another one turns out to be.
std::optional<Value> Demand::try_loop(const Instruction& loop, std::size_t result, Frame& frame) {
    const Block& block = loop.blocks[0];
    const std::vector<Value>& yielded = block.terminator().operands;
    frames_.push_back(&frame);
    Value bounds[3];
    for (std::size_t i = 0; i < 3; ++i) bounds[i] = get(loop.operands[i], {});
    std::vector<Value> init;
    for (const auto& [i, region] : frame.carries) init.push_back(get(loop.operands[3 + i], region));
    const std::vector<Value> results = b_.for_loop(
        bounds[0], bounds[1], bounds[2], init, [&](Value iv, std::span<const Value> arguments) {
            const Scope inner(*this);
            note({block.arguments[0], {}}, iv);
            std::size_t next = 0;
            for (const auto& [i, region] : frame.carries) {
                note({block.arguments[1 + i], region}, arguments[next++]);
            }
            std::vector<Value> values;
            for (const auto& [i, region] : frame.carries) values.push_back(get(yielded[i], region));
            return values;
        });
    frames_.pop_back();
    if (missing_ && missing_->frame == &frame) {
        frame.carries.emplace(missing_->carry, missing_->region);
        missing_.reset();
        b_.block().body.pop_back();  // the loop without this carry
        return std::nullopt;
    }
    if (stopped()) return Value{};
    std::optional<Value> wanted;
    std::size_t next = 0;
    for (const auto& [i, region] : frame.carries) {
        if (i == result) wanted = results[next];
        note({loop.results[i], region}, results[next++]);
    }
    return wanted;
}

Value Demand::if_else(const Instruction& branch, std::size_t result, const Region& region) {
    if (!effects(branch).removable()) return refuse(branch, "a branch also writes memory");
    const auto side = [&](std::size_t block) {
        return [this, &branch, &region, result, block] {
            const Scope scope(*this);
            const Value yielded = branch.blocks[block].terminator().operands[result];
            return std::vector<Value>{get(yielded, region)};
        };
    };
    return b_.if_else(get(branch.operands[0], {}), side(0), side(1)).at(0);
}

Value Demand::build(Value value, const Region& region) {
    const Definition& from = source_.definition(value);
    TW_ASSERT(from.instruction != nullptr, "a parameter of {} was not kept",
              source_.function().name);
    if (from.is_argument) return carry(value, from, region);
    const Instruction& instruction = *from.instruction;
    b_.set_location(instruction.location);
    if (is_elementwise(instruction.op) || instruction.op == Op::random_bits) {
        return elementwise(instruction, region);
    }
    switch (instruction.op) {
        case Op::constant:
        case Op::program_id:
        case Op::num_programs:
        case Op::extent:
            return copy(instruction, instruction.operands, shape_of(region));
        case Op::iota:
            return iota(instruction, region);
        case Op::load:
            return load(instruction, region);
        case Op::reduce:
            return reduce(instruction, region);
        case Op::dot:
            return dot(instruction, region);
        case Op::for_loop:
            return for_loop(instruction, from.index, region);
        case Op::if_else:
            return if_else(instruction, from.index, region);
        case Op::while_loop:
            return refuse(instruction, "the number of rounds may depend on the whole tile");
        case Op::scan: {
            if (!has_whole_axis(instruction, instruction.get<ReduceAttributes>().axis, region))
                return {};
            return copy(instruction, {get(instruction.operands[0], region)}, shape_of(region));
        }
        case Op::associative_scan:
            return associative_scan(instruction, from.index, region);
        case Op::sort:
        case Op::argsort:
            return sort(instruction, region);
        default:
            if (info(instruction.op).op_class == OpClass::shape) {
                return shape_op(instruction, region);
            }
            return refuse(instruction,
                          "its result is used, and running it again would repeat its effect");
    }
}

}  // namespace tilewright::ir
