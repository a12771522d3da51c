// Loads, stores and atomics: addresses, bounds, vectors.
#include <algorithm>
#include <numeric>

#include "cuda/codegen/emitter.h"
#include "support/check.h"

namespace tilewright::cuda {

std::string Emitter::ref_name(Value ref) const {
    std::string text = fmt::format("r{}", ref.id);
    const std::string& hint = f_.value_name(ref);
    if (!hint.empty()) text += '_';
    for (char c : hint) text += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return text;
}

std::string Emitter::extent_text(Value ref, int dim) const {
    const std::int64_t extent = f_.ref_type(ref).extents[dim];
    if (extent != ir::kDynamic) return fmt::format("{}ll", extent);
    return fmt::format("{}.extent[{}]", ref_name(ref), dim);
}

std::string Emitter::stride_text(Value ref, int dim) const {
    const ir::RefType& array = f_.ref_type(ref);
    std::int64_t dense = 1;
    for (int d = array.rank() - 1; d > dim && dense > 0; --d) {
        const std::int64_t extent = array.extents[d];
        dense = extent == ir::kDynamic ? -1 : dense * extent;
    }
    if (array.space == ir::Space::scratch) return fmt::format("{}", dense);
    if (dim == array.rank() - 1 && facts_.has_vectors(ref)) return "1";
    if (facts_.is_dense(ref) && dense > 0) return fmt::format("{}ll", dense);
    return fmt::format("{}.stride[{}]", ref_name(ref), dim);
}

Emitter::AccessText Emitter::access_text(const Instruction& made, const Layout& layout,
                                         const Names* indices) {
    const ir::Access access = ir::access(made);
    const auto index_text = [&](std::size_t dim) {
        return indices != nullptr ? (*indices)[dim] : index(access.indices[dim]);
    };
    const ir::AccessShape shape = ir::access_shape(f_, made);
    const auto& attributes = made.get<ir::AccessAttributes>();
    const Value ref = access.ref;
    const ir::RefType& array = f_.ref_type(ref);
    const int registers = layout.registers();
    const std::string base = fresh("p");

    int vector_axis = -1;
    int vector = facts_.contiguous_vector(made, &vector_axis);
    if (vector > 1) vector = std::min(vector, vector_length(layout, vector_axis));
    Names masks;
    if (access.mask) {
        masks = type(access.mask).is_scalar()
                    ? Names(static_cast<std::size_t>(registers), scalar(access.mask))
                    : get(access.mask, layout);
        for (int r = 0; r < registers && vector > 1; r += vector) {
            for (int i = 1; i < vector; ++i) {
                if (masks[r + i] != masks[r]) {
                    vector = 1;
                    break;
                }
            }
        }
    }

    AccessText text;
    std::string uniform, pointer = array.space == ir::Space::scratch ? ref_name(ref) + "_data"
                                                                     : ref_name(ref) + ".data";
    std::vector<Names> conditions, offsets;  // per dimension, per register
    std::size_t cut_dim = conditions.max_size();
    std::vector<bool> bounded_axis(ir::kMaxTileRank, false);
    for (int dim = 0; dim < array.rank(); ++dim) {
        const std::size_t d = dim;
        const ir::Index& index = attributes.indices[d];
        const Value operand = access.indices[d];
        const std::string stride = stride_text(ref, dim), extent = extent_text(ref, dim);
        const auto times_stride = [&](const std::string& position) {
            return stride == "1" ? position : fmt::format("({}) * {}", position, stride);
        };
        if (index.kind == ir::Index::Kind::scalar) {
            const std::string at = index_text(d);
            if (!facts_.stays_inside(made, d)) {
                uniform = both(uniform, fmt::format("static_cast<u64>({}) < {}", at, extent));
            }
            pointer += " + " + times_stride(at);
            continue;
        }
        Names condition(static_cast<std::size_t>(registers));
        Names offset(static_cast<std::size_t>(registers));
        if (index.kind == ir::Index::Kind::slice) {
            const int axis = shape.axis[d];
            const std::size_t a = axis;
            const std::string start = index_text(d);
            const std::string thread = thread_coordinate(layout, axis);
            pointer += " + " + times_stride(start);
            const std::string step = index.stride == 1 ? stride
                                     : stride == "1"
                                         ? fmt::format("{}ll", index.stride)
                                         : fmt::format("({}ll * {})", index.stride, stride);
            if (thread != "0") {
                pointer += step == "1" ? " + " + thread : fmt::format(" + {} * {}", thread, step);
            }
            std::string window, count;
            const bool inside = facts_.stays_inside(made, d);
            if (!inside && index.stride == 1) {
                bounded_axis[a] = true;
                const std::int64_t known = array.extents[d];
                const bool cuts_vectors =
                    vector > 1 && axis == vector_axis &&
                    (index.size % vector != 0 || known == ir::kDynamic || known % vector != 0);
                if (facts_.non_negative(access.indices[d]) && !cuts_vectors) {
                    count = fmt::format("{}_n{}", base, dim);
                    line("const int {} = count_inside({}, {}, {});", count, start, extent,
                         index.size);
                } else {
                    window = fmt::format("{}_w{}", base, dim);
                    line("const Window {} = window({}, {}, {});", window, start, extent,
                         index.size);
                    if (cuts_vectors) text.window = window, cut_dim = conditions.size();
                }
            } else if (vector > 1 && axis == vector_axis && index.size % vector != 0) {
                vector = static_cast<int>(std::gcd(index.size, std::int64_t{vector}));
            }
            std::map<std::int64_t, std::string> steps;
            for (int r = 0; r < registers; ++r) {
                const std::size_t at = r;
                const std::int64_t part = layout.register_coordinates(r)[a];
                const std::string position = plus(thread, part);
                if (!window.empty()) {
                    condition[at] = fmt::format("{}.contains({})", window, position);
                } else if (!count.empty()) {
                    condition[at] = fmt::format("{} < {}", position, count);
                } else if (!inside) {
                    condition[at] =
                        fmt::format("static_cast<u64>({} + {}ll * {}) < {}", start, index.stride,
                                    position == "0" ? "0" : position, extent);
                }
                if (part != 0) {
                    auto& known = steps[part];
                    if (known.empty()) {
                        if (step == "1") {
                            known = fmt::format("{}", part);
                        } else {
                            known = fmt::format("{}_{}_{}", base, dim, part);
                            line("const i64 {} = {} * {};", known, part, step);
                        }
                    }
                    offset[at] = known;
                }
                if (axis == vector_axis) text.position.push_back(position);
            }
        } else {
            // The index tile spans the joint axes from `axis` on.
            Layout joint = layout;
            for (int a = layout.shape.rank() - 1; a >= 0; --a) {
                if (a < shape.axis[d] || a >= shape.axis[d] + shape.tile_rank)
                    joint = joint.without(a);
            }
            const ir::Shape& narrow = type(operand).shape;
            const Layout wanted = joint.narrowed(narrow);
            const Names names = get(operand, wanted);
            std::map<Coordinates, int> places;
            for (int r = 0; r < std::ssize(names); ++r) {
                places[wanted.register_coordinates(r)] = r;
            }
            for (int r = 0; r < registers; ++r) {
                const Coordinates full = layout.register_coordinates(r);
                Coordinates at{};
                for (int a = 0; a < narrow.rank(); ++a) {
                    if (narrow[a] != 1) {
                        at[a] = full[shape.axis[d] + a];
                    }
                }
                const std::string position =
                    fmt::format("static_cast<i64>({})", names[places.at(at)]);
                if (!attributes.in_bounds) {
                    condition[r] = fmt::format("static_cast<u64>({}) < {}", position, extent);
                }
                offset[r] = times_stride(position);
            }
        }
        conditions.push_back(std::move(condition));
        offsets.push_back(std::move(offset));
    }
    if (!uniform.empty()) {
        line("const bool {}_ok = {};", base, uniform);
        uniform = base + "_ok";
    }
    line("auto* const {} = {};", base, pointer);
    text.pointer = base;
    text.vector = vector;
    for (int r = 0; r < registers; ++r) {
        const std::size_t at = r;
        std::string inside = uniform, beside = uniform, offset;
        for (std::size_t d = 0; d < conditions.size(); ++d) {
            inside = both(inside, conditions[d][at]);
            beside = both(beside, d == cut_dim ? "true" : conditions[d][at]);
        }
        for (const Names& part : offsets) {
            if (!part[at].empty()) offset += (offset.empty() ? "" : " + ") + part[at];
        }
        for (int axis = 0; axis < layout.shape.rank(); ++axis) {
            if (!layout.has_phantoms(axis) || bounded_axis[axis]) continue;
            const std::int64_t part = layout.register_coordinates(r)[axis];
            const std::string real =
                fmt::format("{} < {}", coordinate(layout, axis, part), layout.shape[axis]);
            inside = both(inside, real);
            beside = both(beside, real);
        }
        if (!masks.empty()) inside = both(inside, masks[at]), beside = both(beside, masks[at]);
        text.inside.push_back(inside);
        text.beside.push_back(beside);
        text.offset.push_back(offset);
    }
    if (vector == 1) text.window.clear();
    return text;
}

void Emitter::load(const Instruction& made) {
    const Value ref = made.operands[0];
    if (plan_.staged.contains(made)) {
        if (streamed_.count(&made) != 0) return;  // the loop copies it
        access_global(ref, false);
        return stage(made);
    }
    access_global(ref, false);
    const Value result = made.result();
    const DType dtype = type(result).dtype;
    const Layout layout = home(result);
    const ir::Access access = ir::access(made);
    const int registers = layout.registers();
    Names others(static_cast<std::size_t>(registers), literal(dtype, 0));
    if (access.other) {
        others = type(access.other).is_scalar()
                     ? Names(static_cast<std::size_t>(registers), scalar(access.other))
                     : get(access.other, layout);
    }
    const bool again = plan_.loads.repeated.count(result) != 0;
    const Names names = numbered(again ? fresh("v") : fmt::format("v{}", result.id), registers);
    // Elements are unpacked at their use: they take half the registers, and branches that load them
    // do not wait for memory one after the other.
    const auto hold_packed = [&](const Names& words) {
        const std::size_t vector = names.size() / words.size();
        Names elements;
        for (std::size_t r = 0; r < names.size(); ++r) {
            elements.push_back(fmt::format("unpacked<{}, {}>({})", storage_type(dtype), r % vector,
                                           words[r / vector]));
        }
        if (f_.ref_type(ref).space == ir::Space::global) packed_[result] = words;
        hold(result, layout, elements);
    };
    if (const auto ahead = prefetched_.find(result); ahead != prefetched_.end()) {
        if (ahead->second.packed) return hold_packed(ahead->second.now);
        return hold(result, layout, ahead->second.now);
    }
    const AccessText text = access_text(made, layout);
    const bool zeros = !access.other || facts_.is_constant(access.other, 0);
    if (text.vector * size_of(dtype) == 16 && zeros && text.window.empty()) {
        const Names words = numbered(fresh("raw"), registers / text.vector);
        line("uint4 {} = {{}};", fmt::join(words, " = {}, "));
        for (std::size_t i = 0; i < words.size(); ++i) {
            const std::size_t at = i * static_cast<std::size_t>(text.vector);
            const std::string& inside = text.inside[at];
            line("{}load_raw({}{}, {});", inside.empty() ? "" : fmt::format("if ({}) ", inside),
                 text.pointer, text.offset[at].empty() ? "" : " + " + text.offset[at], words[i]);
        }
        return hold_packed(words);
    }
    for (int r = 0; r < registers; r += text.vector) {
        const std::size_t at = r;
        const std::string address =
            text.offset[at].empty() ? text.pointer : text.pointer + " + " + text.offset[at];
        Names group(names.begin() + r, names.begin() + r + text.vector);
        const bool same = std::all_of(others.begin() + r, others.begin() + r + text.vector,
                                      [&](const std::string& o) { return o == others[at]; });
        const std::string& inside = text.inside[at];
        if (inside.empty()) {
            line("{} {};", register_type(dtype), fmt::join(group, ", "));
            line("load_vector({}, {});", address, fmt::join(group, ", "));
        } else if (!text.window.empty() && same) {
            // The window may end inside a vector; other conditions hold for all of it.
            line("{} {};", register_type(dtype), fmt::join(group, ", "));
            line("load_vector_part({}, {} ? {}.left({}) : 0, {}, {});", address, text.beside[at],
                 text.window, text.position[at], others[at], fmt::join(group, ", "));
        } else if (!text.window.empty() || (!same && text.vector > 1)) {
            for (int i = 0; i < text.vector; ++i) {
                line("{0} {1} = {2}; if ({3}) load_vector({4} + {5}, {1});", register_type(dtype),
                     group[i], others[at + i], text.inside[at + i], address, i);
            }
        } else {
            Names declarations;
            for (int i = 0; i < text.vector; ++i) {
                declarations.push_back(fmt::format("{} = {}", group[i], others[at + i]));
            }
            line("{} {};", register_type(dtype), fmt::join(declarations, ", "));
            line("if ({}) load_vector({}, {});", inside, address, fmt::join(group, ", "));
        }
    }
    hold(result, layout, names);
}

ir::Value Emitter::before_rounding(Value value) const {
    return find(value) != nullptr ? value : facts_.before_rounding(value);
}

bool Emitter::distinct_targets(const Instruction& made) const {
    const auto& indices = made.get<ir::AccessAttributes>().indices;
    return std::none_of(indices.begin(), indices.end(),
                        [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
}

Names Emitter::last_writers(const Layout& layout, const AccessText& text, const Names& conditions) {
    // Where several elements have one address, the last one in row-major order is stored: every
    // thread looks through the later ones.
    const std::int64_t size = layout.shape.size();
    const int id = buffer(std::max<std::int64_t>(size, 1) * 8);
    const std::string base = fresh("w");
    access_shared("writes", {id});
    line("auto* const {} = reinterpret_cast<u64*>(memory + {});", base, buffer_name(id));
    const std::string own = owner(layout);
    Names places;
    for (int r = 0; r < layout.registers(); ++r) {
        const Coordinates at = layout.register_coordinates(r);
        std::string place = "0";
        for (int axis = 0; axis < layout.shape.rank(); ++axis) {
            place = fmt::format("({}) * {} + {}", place, layout.shape[axis],
                                coordinate(layout, axis, at[axis]));
        }
        places.push_back(place);
        const std::string inside = positions_.inside(layout, r);
        const std::size_t i = r;
        line("{}{}[{}] = {} ? reinterpret_cast<u64>({}{}) : 0;",
             both(own, inside).empty() ? "" : fmt::format("if ({}) ", both(own, inside)), base,
             place, conditions[i].empty() ? "true" : "(" + conditions[i] + ")", text.pointer,
             text.offset[i].empty() ? "" : " + " + text.offset[i]);
    }
    access_shared("reads", {id});
    Names result;
    for (int r = 0; r < layout.registers(); ++r) {
        const std::size_t i = r;
        const std::string name = fmt::format("{}_{}", base, r);
        const std::string inside = both(both(own, positions_.inside(layout, r)), conditions[i]);
        line("bool {} = {};", name, inside.empty() ? "true" : inside);
        line("if ({0}) for (int i = {1} + 1; i < {2} && {0}; ++i) {0} = {3}[i] != {3}[{1}];", name,
             "(" + places[i] + ")", size, base);
        result.push_back(name);
    }
    return result;
}

void Emitter::store(const Instruction& made) {
    const ir::Access access = ir::access(made);
    const DType dtype = f_.ref_type(access.ref).dtype;
    const Value source = before_rounding(access.values[0]);
    // Each thread reads only its own elements of private scratch, in the home layout.
    const bool ordered = plan_.own_scratch.count(access.ref) == 0;
    const Held* known = ordered ? find(source) : nullptr;
    Layout layout = known != nullptr ? known->layout : home(source);
    Names names = get(source, layout);
    int axis = -1;
    const int aligned = facts_.contiguous_vector(made, &axis);
    // Fragments of narrow elements would be stored in pieces of a few bytes.
    if (ordered && aligned * size_of(dtype) == 16 && size_of(dtype) <= 2 &&
        vector_length(layout, axis) * size_of(dtype) < 8 &&
        layout.shape.size() >= std::int64_t{32} * warps_ * aligned / 2) {
        std::vector<int> order{axis};
        for (int a = layout.shape.rank() - 1; a >= 0; --a) {
            if (a != axis) order.push_back(a);
        }
        const Layout rows = blocked(layout.shape, warps_, aligned, order);
        names = convert({layout, names}, rows, dtype).names;
        layout = rows;
    }
    access_global(access.ref, true);
    AccessText text = access_text(made, layout);
    if (!distinct_targets(made)) {
        text.inside = text.beside = last_writers(layout, text, text.inside);
    }
    const std::string own = owner(layout);
    for (int r = 0; r < layout.registers(); r += text.vector) {
        const std::size_t at = r;
        const std::string address =
            text.offset[at].empty() ? text.pointer : text.pointer + " + " + text.offset[at];
        const Names group(names.begin() + r, names.begin() + r + text.vector);
        if (!text.window.empty()) {
            line("if ({}) store_vector_part({}, {}.left({}), {});", both(own, text.beside[at]),
                 address, text.window, text.position[at], fmt::join(group, ", "));
            continue;
        }
        const std::string condition = both(own, text.inside[at]);
        line("{}store_vector({}, {});", condition.empty() ? "" : fmt::format("if ({}) ", condition),
             address, fmt::join(group, ", "));
    }
}

void Emitter::atomic(const Instruction& made) {
    const ir::Access access = ir::access(made);
    const Value result = made.result();
    const DType dtype = f_.ref_type(access.ref).dtype;
    const Layout layout = home(result);
    std::vector<Names> values;
    for (Value value : access.values) values.push_back(get(value, layout));
    access_global(access.ref, true);
    const AccessText text = access_text(made, layout);
    const std::string own = owner(layout);
    const Names names = numbered(fmt::format("v{}", result.id), layout.registers());
    Names declarations;
    for (const std::string& each : names) declarations.push_back(each + " = {}");
    line("{} {};", register_type(dtype), fmt::join(declarations, ", "));
    // Neighbours under one condition share one branch: the compiler does not merge branches.
    std::string open_condition;
    for (int r = 0; r < layout.registers(); ++r) {
        const std::size_t at = r;
        const std::string address =
            text.offset[at].empty() ? text.pointer : text.pointer + " + " + text.offset[at];
        Names arguments{address};
        for (const Names& value : values) arguments.push_back(value[at]);
        const std::string condition = both(own, text.inside[at]);
        if (condition != open_condition) {
            if (!open_condition.empty()) close();
            if (!condition.empty()) open(fmt::format("if ({})", condition));
            open_condition = condition;
        }
        line("{} = {}({});", names[at], name(made.op), fmt::join(arguments, ", "));
    }
    if (!open_condition.empty()) close();
    if (own.empty() || facts_.users(result).empty()) {
        hold(result, layout, names);
        return;
    }
    // The owners of the elements pass the results to the threads that hold copies.
    TilePlace place;
    std::int64_t size = 1;
    for (std::int64_t extent : layout.shape.dims()) {
        place.extents.push_back(cover(extent).size());
        size *= cover(extent).size();
    }
    hold(result, through_shared({{layout, names}}, place, layout, place, size, dtype));
}

}  // namespace tilewright::cuda
