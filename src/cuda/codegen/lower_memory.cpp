// Loads, stores and atomics: addresses, bounds, vectors.
#include "cuda/codegen/lower_memory.h"

#include <algorithm>
#include <numeric>

#include "cuda/codegen/lower_ahead.h"
#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"
#include "support/check.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Value;

namespace {

bool distinct_targets(const Instruction& made) {
    const auto& indices = made.get<ir::AccessAttributes>().indices;
    return std::none_of(indices.begin(), indices.end(),
                        [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
}

Names last_writers(Lowering& cx, const Layout& layout, const AccessText& text,
                   const Names& conditions) {
    // Where several elements have one address, the last one in row-major order is stored: every
    // thread looks through the later ones.
    const std::int64_t size = layout.shape.size();
    const int id = cx.buffer(std::max<std::int64_t>(size, 1) * 8);
    const std::string base = cx.fresh("w");
    cx.access_shared("writes", {id});
    cx.line("auto* const {} = reinterpret_cast<u64*>(memory + {});", base, buffer_name(id));
    const std::string own = owner(layout);
    Names places;
    for (int r = 0; r < layout.registers(); ++r) {
        const Coordinates at = layout.register_coordinates(r);
        std::string place = "0";
        for (int axis = 0; axis < layout.shape.rank(); ++axis) {
            place = fmt::format("({}) * {} + {}", place, layout.shape[axis],
                                cx.coordinate(layout, axis, at[axis]));
        }
        places.push_back(place);
        const std::string inside = cx.positions.inside(layout, r);
        const std::size_t i = r;
        cx.line("{}{}[{}] = {} ? reinterpret_cast<u64>({}{}) : 0;",
                both(own, inside).empty() ? "" : fmt::format("if ({}) ", both(own, inside)), base,
                place, conditions[i].empty() ? "true" : "(" + conditions[i] + ")", text.pointer,
                text.offset[i].empty() ? "" : " + " + text.offset[i]);
    }
    cx.access_shared("reads", {id});
    Names result;
    for (int r = 0; r < layout.registers(); ++r) {
        const std::size_t i = r;
        const std::string name = fmt::format("{}_{}", base, r);
        const std::string inside = both(both(own, cx.positions.inside(layout, r)), conditions[i]);
        cx.line("bool {} = {};", name, inside.empty() ? "true" : inside);
        cx.line("if ({0}) for (int i = {1} + 1; i < {2} && {0}; ++i) {0} = {3}[i] != {3}[{1}];",
                name, "(" + places[i] + ")", size, base);
        result.push_back(name);
    }
    return result;
}

}  // namespace

std::string ref_name(const Lowering& cx, Value ref) {
    std::string text = fmt::format("r{}", ref.id);
    const std::string& hint = cx.function.value_name(ref);
    if (!hint.empty()) text += '_';
    for (char c : hint) text += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return text;
}

std::string extent_text(const Lowering& cx, Value ref, int dim) {
    const std::int64_t extent = cx.function.ref_type(ref).extents[dim];
    if (extent != ir::kDynamic) return fmt::format("{}ll", extent);
    return fmt::format("{}.extent[{}]", ref_name(cx, ref), dim);
}

std::string stride_text(const Lowering& cx, Value ref, int dim) {
    const ir::RefType& array = cx.function.ref_type(ref);
    std::int64_t dense = 1;
    for (int d = array.rank() - 1; d > dim && dense > 0; --d) {
        const std::int64_t extent = array.extents[d];
        dense = extent == ir::kDynamic ? -1 : dense * extent;
    }
    if (array.space == ir::Space::scratch) return fmt::format("{}", dense);
    if (dim == array.rank() - 1 && cx.facts.has_vectors(ref)) return "1";
    if (cx.facts.is_dense(ref) && dense > 0) return fmt::format("{}ll", dense);
    return fmt::format("{}.stride[{}]", ref_name(cx, ref), dim);
}

AccessText access_text(Lowering& cx, const Instruction& made, const Layout& layout,
                       const Names* indices) {
    const ir::Access access = ir::access(made);
    const auto index_of = [&](std::size_t dim) {
        return indices != nullptr ? (*indices)[dim] : index_text(cx, access.indices[dim]);
    };
    const ir::AccessShape shape = ir::access_shape(cx.function, made);
    const auto& attributes = made.get<ir::AccessAttributes>();
    const Value ref = access.ref;
    const ir::RefType& array = cx.function.ref_type(ref);
    const int registers = layout.registers();
    const std::string base = cx.fresh("p");

    int vector_axis = -1;
    int vector = cx.facts.contiguous_vector(made, &vector_axis);
    if (vector > 1) vector = std::min(vector, vector_length(layout, vector_axis));
    Names masks;
    if (access.mask) {
        masks = cx.type(access.mask).is_scalar()
                    ? Names(static_cast<std::size_t>(registers), scalar_text(cx, access.mask))
                    : elements_of(cx, access.mask, layout);
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
    std::string uniform, pointer = array.space == ir::Space::scratch ? ref_name(cx, ref) + "_data"
                                                                     : ref_name(cx, ref) + ".data";
    std::vector<Names> conditions, offsets;  // per dimension, per register
    std::size_t cut_dim = conditions.max_size();
    std::vector<bool> bounded_axis(ir::kMaxTileRank, false);
    for (int dim = 0; dim < array.rank(); ++dim) {
        const std::size_t d = dim;
        const ir::Index& index = attributes.indices[d];
        const Value operand = access.indices[d];
        const std::string stride = stride_text(cx, ref, dim), extent = extent_text(cx, ref, dim);
        const auto times_stride = [&](const std::string& position) {
            return stride == "1" ? position : fmt::format("({}) * {}", position, stride);
        };
        if (index.kind == ir::Index::Kind::scalar) {
            const std::string at = index_of(d);
            if (!cx.facts.stays_inside(made, d)) {
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
            const std::string start = index_of(d);
            const std::string thread = cx.thread_coordinate(layout, axis);
            pointer += " + " + times_stride(start);
            const std::string step = index.stride == 1 ? stride
                                     : stride == "1"
                                         ? fmt::format("{}ll", index.stride)
                                         : fmt::format("({}ll * {})", index.stride, stride);
            if (thread != "0") {
                pointer += step == "1" ? " + " + thread : fmt::format(" + {} * {}", thread, step);
            }
            std::string window, count;
            const bool inside = cx.facts.stays_inside(made, d);
            if (!inside && index.stride == 1) {
                bounded_axis[a] = true;
                const std::int64_t known = array.extents[d];
                const bool cuts_vectors =
                    vector > 1 && axis == vector_axis &&
                    (index.size % vector != 0 || known == ir::kDynamic || known % vector != 0);
                if (cx.facts.non_negative(access.indices[d]) && !cuts_vectors) {
                    count = fmt::format("{}_n{}", base, dim);
                    cx.line("const int {} = count_inside({}, {}, {});", count, start, extent,
                            index.size);
                } else {
                    window = fmt::format("{}_w{}", base, dim);
                    cx.line("const Window {} = window({}, {}, {});", window, start, extent,
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
                            cx.line("const i64 {} = {} * {};", known, part, step);
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
            const ir::Shape& narrow = cx.type(operand).shape;
            const Layout wanted = joint.narrowed(narrow);
            const Names names = elements_of(cx, operand, wanted);
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
        cx.line("const bool {}_ok = {};", base, uniform);
        uniform = base + "_ok";
    }
    cx.line("auto* const {} = {};", base, pointer);
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
                fmt::format("{} < {}", cx.coordinate(layout, axis, part), layout.shape[axis]);
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

void lower_load(Lowering& cx, const Instruction& made) {
    const Value ref = made.operands[0];
    if (cx.plan.staged.contains(made)) {
        if (cx.streamed.count(&made) != 0) return;  // the loop copies it
        cx.access_global(ref, false);
        return lower_staged(cx, made);
    }
    cx.access_global(ref, false);
    const Value result = made.result();
    const DType dtype = cx.type(result).dtype;
    const Layout layout = cx.home(result);
    const ir::Access access = ir::access(made);
    const int registers = layout.registers();
    Names others(static_cast<std::size_t>(registers), literal(dtype, 0));
    if (access.other) {
        others = cx.type(access.other).is_scalar()
                     ? Names(static_cast<std::size_t>(registers), scalar_text(cx, access.other))
                     : elements_of(cx, access.other, layout);
    }
    const bool again = cx.plan.loads.repeated.count(result) != 0;
    const std::string name =
        again ? cx.fresh(fmt::format("v{}x", result.id).c_str()) : fmt::format("v{}", result.id);
    const Names names = numbered(name, registers);
    // Elements are unpacked at their use: they take half the registers, and branches that load them
    // do not wait for memory one after the other.
    const auto hold_packed = [&](const Names& words) {
        const std::size_t vector = names.size() / words.size();
        Names elements;
        for (std::size_t r = 0; r < names.size(); ++r) {
            elements.push_back(fmt::format("unpacked<{}, {}>({})", storage_type(dtype), r % vector,
                                           words[r / vector]));
        }
        if (cx.function.ref_type(ref).space == ir::Space::global) cx.packed[result] = words;
        cx.hold(result, layout, elements);
    };
    if (const auto ahead = cx.prefetched.find(result); ahead != cx.prefetched.end()) {
        if (ahead->second.packed) return hold_packed(ahead->second.now);
        return cx.hold(result, layout, ahead->second.now);
    }
    const AccessText text = access_text(cx, made, layout);
    const bool zeros = !access.other || cx.facts.is_constant(access.other, 0);
    if (text.vector * size_of(dtype) == 16 && zeros && text.window.empty()) {
        const Names words = numbered(cx.fresh("raw"), registers / text.vector);
        cx.line("uint4 {} = {{}};", fmt::join(words, " = {}, "));
        for (std::size_t i = 0; i < words.size(); ++i) {
            const std::size_t at = i * static_cast<std::size_t>(text.vector);
            const std::string& inside = text.inside[at];
            cx.line("{}load_raw({}{}, {});", inside.empty() ? "" : fmt::format("if ({}) ", inside),
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
            cx.line("{} {};", register_type(dtype), fmt::join(group, ", "));
            cx.line("load_vector({}, {});", address, fmt::join(group, ", "));
        } else if (!text.window.empty() && same) {
            // The window may end inside a vector; other conditions hold for all of it.
            cx.line("{} {};", register_type(dtype), fmt::join(group, ", "));
            cx.line("load_vector_part({}, {} ? {}.left({}) : 0, {}, {});", address, text.beside[at],
                    text.window, text.position[at], others[at], fmt::join(group, ", "));
        } else if (!text.window.empty() || (!same && text.vector > 1)) {
            for (int i = 0; i < text.vector; ++i) {
                cx.line("{0} {1} = {2}; if ({3}) load_vector({4} + {5}, {1});",
                        register_type(dtype), group[i], others[at + i], text.inside[at + i],
                        address, i);
            }
        } else {
            Names declarations;
            for (int i = 0; i < text.vector; ++i) {
                declarations.push_back(fmt::format("{} = {}", group[i], others[at + i]));
            }
            cx.line("{} {};", register_type(dtype), fmt::join(declarations, ", "));
            cx.line("if ({}) load_vector({}, {});", inside, address, fmt::join(group, ", "));
        }
    }
    cx.hold(result, cx.variables(name, layout, dtype));
}

Value before_rounding(const Lowering& cx, Value value) {
    return cx.find(value) != nullptr ? value : cx.facts.before_rounding(value);
}

void lower_store(Lowering& cx, const Instruction& made) {
    const ir::Access access = ir::access(made);
    const DType dtype = cx.function.ref_type(access.ref).dtype;
    const Value source = before_rounding(cx, access.values[0]);
    // Each thread reads only its own elements of private scratch, in the home layout.
    const bool ordered = cx.plan.own_scratch.count(access.ref) == 0;
    const Held* known = ordered ? cx.find(source) : nullptr;
    Layout layout = known != nullptr ? known->layout : cx.home(source);
    schedule::Value stored = value_in(cx, source, layout);
    int axis = -1;
    const int aligned = cx.facts.contiguous_vector(made, &axis);
    // Fragments of narrow elements would be stored in pieces of a few bytes.
    if (ordered && aligned * size_of(dtype) == 16 && size_of(dtype) <= 2 &&
        vector_length(layout, axis) * size_of(dtype) < 8 &&
        layout.shape.size() >= std::int64_t{32} * cx.warps * aligned / 2) {
        std::vector<int> order{axis};
        for (int a = layout.shape.rank() - 1; a >= 0; --a) {
            if (a != axis) order.push_back(a);
        }
        const Layout rows = blocked(layout.shape, cx.warps, aligned, order);
        stored = convert(cx, {layout, stored}, rows, dtype).value;
        layout = rows;
    }
    cx.access_global(access.ref, true);
    const Names& names = cx.registers.of(stored);
    AccessText text = access_text(cx, made, layout);
    if (!distinct_targets(made)) {
        text.inside = text.beside = last_writers(cx, layout, text, text.inside);
    }
    const std::string own = owner(layout);
    for (int r = 0; r < layout.registers(); r += text.vector) {
        const std::size_t at = r;
        const std::string address =
            text.offset[at].empty() ? text.pointer : text.pointer + " + " + text.offset[at];
        const Names group(names.begin() + r, names.begin() + r + text.vector);
        if (!text.window.empty()) {
            cx.line("if ({}) store_vector_part({}, {}.left({}), {});", both(own, text.beside[at]),
                    address, text.window, text.position[at], fmt::join(group, ", "));
            continue;
        }
        const std::string condition = both(own, text.inside[at]);
        cx.line("{}store_vector({}, {});",
                condition.empty() ? "" : fmt::format("if ({}) ", condition), address,
                fmt::join(group, ", "));
    }
}

void lower_atomic(Lowering& cx, const Instruction& made) {
    const ir::Access access = ir::access(made);
    const Value result = made.result();
    const DType dtype = cx.function.ref_type(access.ref).dtype;
    const Layout layout = cx.home(result);
    std::vector<Names> values;
    for (Value value : access.values) values.push_back(elements_of(cx, value, layout));
    cx.access_global(access.ref, true);
    const AccessText text = access_text(cx, made, layout);
    const std::string own = owner(layout);
    const Held held = cx.variables(fmt::format("v{}", result.id), layout, dtype);
    const Names& names = cx.names(held);
    Names declarations;
    for (const std::string& each : names) declarations.push_back(each + " = {}");
    cx.line("{} {};", register_type(dtype), fmt::join(declarations, ", "));
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
            if (!open_condition.empty()) cx.close();
            if (!condition.empty()) cx.open(fmt::format("if ({})", condition));
            open_condition = condition;
        }
        cx.line("{} = {}({});", names[at], name(made.op), fmt::join(arguments, ", "));
    }
    if (!open_condition.empty()) cx.close();
    if (own.empty() || cx.facts.users(result).empty()) {
        cx.hold(result, held);
        return;
    }
    // The owners of the elements pass the results to the threads that hold copies.
    TilePlace place;
    std::int64_t size = 1;
    for (std::int64_t extent : layout.shape.dims()) {
        place.extents.push_back(cover(extent).size());
        size *= cover(extent).size();
    }
    cx.hold(result, through_shared(cx, {held}, place, layout, place, size, dtype));
}

}  // namespace tilewright::cuda
