// Values: names, layouts, conversions; the frame of the kernel.
#include "cuda/codegen/emitter.h"

#include <algorithm>
#include <limits>

#include "cuda/codegen/notes.h"
#include "ir/print.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::cuda {

using ir::Op;

Emitter::Emitter(const KernelFacts& facts, const Plan& plan, const Target& target, bool workspace)
    : f_(facts.function()),
      target_(target),
      facts_(facts),
      plan_(plan),
      warps_(facts.warps()),
      workspace_(workspace) {
    program_.name = f_.name;
    program_.arch = target.arch;
    program_.level = schedule::Level::split;
    program_.grid = f_.grid;
    program_.stages = facts.stages();
    program_.mark_lines = target.mark_lines;
    program_.roles.push_back({"all", 0, warps_, 0, false});
    open_.push_back(&program_.body);
}

// ---- Text.

schedule::Instruction& Emitter::append(schedule::Op op) {
    schedule::Instruction& made = open_.back()->body.emplace_back();
    made.op = op;
    return made;
}

void Emitter::open(const std::string& head, schedule::Op op) {
    schedule::Instruction& made = append(op).with_text("text", head);
    open_.push_back(&made.blocks.emplace_back());
    scopes_.emplace_back();
}

void Emitter::open_else() {
    open_.push_back(&open_.back()->body.back().blocks.emplace_back());
    scopes_.emplace_back();
}

void Emitter::close() {
    open_.pop_back();
    scopes_.pop_back();
}

void Emitter::begin_operation(std::string_view name) {
    append(schedule::Op::operation).with_symbol("of", std::string(name));
}

// ---- Values.

const Held* Emitter::find(Value value) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        const auto found = scope->held.find(value);
        if (found != scope->held.end()) return &found->second.front();
    }
    return nullptr;
}

const Held* Emitter::find(Value value, const Layout& layout) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        const auto found = scope->held.find(value);
        if (found == scope->held.end()) continue;
        for (const Held& held : found->second) {
            if (held.layout == layout) return &held;
        }
    }
    return nullptr;
}

void Emitter::hold(Value value, Layout layout, Names names) {
    hold(value, Held{std::move(layout), std::move(names)});
}

void Emitter::hold(Value value, Held held) {
    scopes_.back().held[value].push_back(std::move(held));
}

Held Emitter::get_any(Value value) {
    const Held* const known = find(value);
    const Layout layout = known != nullptr ? known->layout : home(value);
    Names names = get(value, layout);
    if (const Held* const held = find(value, layout)) return *held;
    return {layout, std::move(names)};
}

schedule::Value Emitter::value_of(const Held& held, DType dtype) {
    if (held.value) return held.value;
    const schedule::Value value = program_.add({false, {dtype, held.layout.shape}, held.layout});
    append(schedule::Op::registers)
        .with_text("text", fmt::format("{}", fmt::join(held.names, schedule::kBetweenRegisters)))
        .results = {value};
    return value;
}

Held Emitter::result_of(schedule::Instruction& made, std::string name, const Layout& layout,
                        DType dtype) {
    const schedule::Value value =
        program_.add({false, {dtype, layout.shape}, layout}, std::move(name));
    made.results = {value};
    return {layout, numbered(program_.value_name(value), layout.registers()), value};
}

Layout Emitter::home(Value value) const {
    return home_of(facts_, plan_.layouts, value);
}

std::string Emitter::scalar(Value value) {
    return get(value, scalar_layout()).front();
}

std::string Emitter::index(Value value) {
    const std::string text = scalar(value);
    return type(value).dtype == DType::i64 ? text : fmt::format("static_cast<i64>({})", text);
}

std::optional<Names> Emitter::get_view(const Instruction& made, const Layout& layout) {
    const Value source = made.operands[0];
    const ir::Shape& from = type(source).shape;
    const int registers = layout.registers();
    const auto by_coordinates = [&](const Layout& other, auto&& map) {
        const Names names = get(source, other);
        std::map<Coordinates, int> places;
        for (int r = 0; r < std::ssize(names); ++r) {
            places[other.register_coordinates(r)] = r;
        }
        Names result;
        for (int r = 0; r < registers; ++r) {
            const auto found = places.find(map(layout.register_coordinates(r)));
            TW_ASSERT(found != places.end());
            result.push_back(names[found->second]);
        }
        return result;
    };
    switch (made.op) {
        case Op::broadcast:
            if (from.rank() == 0) return Names(static_cast<std::size_t>(registers), scalar(source));
            return by_coordinates(layout.narrowed(from), [&](Coordinates at) {
                for (int a = 0; a < from.rank(); ++a) {
                    if (from[a] == 1) at[a] = 0;
                }
                return at;
            });
        case Op::expand_dims:
            return get(source, layout.without(made.get<ir::AxisAttributes>().axis));
        case Op::reshape: {
            const auto other = layout.reshaped(from);
            TW_ASSERT(other.has_value());
            return get(source, *other);
        }
        case Op::transpose: {
            const auto& permutation = made.get<ir::PermutationAttributes>().permutation;
            std::vector<int> inverse(permutation.size());
            for (std::size_t i = 0; i < permutation.size(); ++i) {
                inverse[permutation[i]] = static_cast<int>(i);
            }
            return by_coordinates(layout.transposed(inverse), [&](const Coordinates& at) {
                Coordinates result{};
                for (std::size_t i = 0; i < permutation.size(); ++i) {
                    result[permutation[i]] = at[i];
                }
                return result;
            });
        }
        default:
            return std::nullopt;
    }
}

Names Emitter::get(Value value, const Layout& layout) {
    TW_ASSERT(layout.shape == type(value).shape, "{} wanted as {}", layout.shape.rank(),
              type(value).shape.rank());
    if (const Held* held = find(value, layout)) return held->names;
    const Instruction* made = facts_.definition(value);
    const DType dtype = type(value).dtype;
    if (made != nullptr && made->op == Op::reduce && !unread_.empty()) {
        read_warp_parts();
        return get(value, layout);
    }
    if (plan_.loads.repeated.count(value) != 0 && find(value) == nullptr) {
        load(*made);
        return get(value, layout);
    }
    if (made != nullptr && made->op == Op::constant) {
        return Names(static_cast<std::size_t>(layout.registers()),
                     literal(dtype, made->get<ir::ConstantAttributes>().bits));
    }
    const bool again = forgotten_.count(value) != 0 && plan_.loads.repeated.count(value) == 0;
    if (made != nullptr && (facts_.is_lazy(*made) || again)) {
        Names names;
        if (made->op == Op::iota) {
            const int axis = made->get<ir::AxisAttributes>().axis;
            for (int r = 0; r < layout.registers(); ++r) {
                const std::string at =
                    coordinate(layout, axis, layout.register_coordinates(r)[axis]);
                names.push_back(dtype == DType::i32
                                    ? at
                                    : fmt::format("ops::cast<{}>({})", storage_type(dtype), at));
            }
        } else if (auto view = get_view(*made, layout)) {
            names = std::move(*view);
        } else {
            names = elementwise(*made, layout, value);
        }
        hold(value, layout, names);
        return names;
    }
    const Held* held = find(value);
    TW_ASSERT(held != nullptr, "value {} has no elements yet", value.id);
    Held converted = convert(*held, layout, dtype);
    const Names names = converted.names;
    hold(value, std::move(converted));
    return names;
}

Held Emitter::convert(const Held& from, const Layout& to, DType dtype) {
    const Conversion plan = conversion(from.layout, to);
    if (plan.kind == Conversion::Kind::relabel) {
        Names names;
        for (int source : plan.source) names.push_back(from.names[source]);
        return {to, std::move(names)};
    }
    if (plan.kind == Conversion::Kind::shuffle && to.registers() <= 64) {
        const schedule::Value source = value_of(from, dtype);
        schedule::Instruction& made = append(schedule::Op::shuffle);
        made.operands = {source};
        return result_of(made, fresh("s"), to, dtype);
    }
    line("// through shared memory from {} to {}", from.layout.to_string(), to.to_string());
    const std::int64_t pitch = row_pitch(from.layout, to, size_of(dtype));
    const int rank = to.shape.rank();
    std::int64_t rows = 1;
    for (int axis = 0; axis + 1 < rank; ++axis) rows *= cover(to.shape[axis]).size();
    const int bytes = size_of(dtype);
    const auto in_rows = [&](const Layout& layout) {
        return TilePlace{pitch, {}, {}, {}, vector_in_rows(layout, pitch, bytes)};
    };
    return through_shared({from}, in_rows(from.layout), to, in_rows(to),
                          rank == 0 ? 1 : rows * pitch, dtype);
}

// ---- The kernel.

void Emitter::program_ids() {
    const int axes = static_cast<int>(f_.grid.size());
    std::vector<std::string> extents;
    for (int axis = 0; axis < axes; ++axis) {
        const std::int64_t extent = f_.grid[axis];
        extents.push_back(extent == ir::kDynamic ? fmt::format("grid{}", axis)
                                                 : fmt::format("{}", extent));
    }
    if (axes == 0) return;
    line("u32 program = {}{};", workspace_ ? "first_program + " : "",
         plan_.launch.last_first ? "gridDim.x - 1 - blockIdx.x" : "blockIdx.x");
    for (int axis = axes - 1; axis >= 0; --axis) {
        const std::string& extent = extents[axis];
        if (axis == 0) {
            line("const i64 program0 = program;");
        } else {
            line("const i64 program{} = program % static_cast<u32>({});", axis, extent);
            line("program /= static_cast<u32>({});", extent);
        }
    }
}

std::int64_t Emitter::place_scratch(std::vector<int>& scratch) {
    constexpr std::int64_t kAlignment = 128;
    std::int64_t total = 0;
    std::vector<std::pair<Value, std::int64_t>> in_workspace;  // offsets
    for (Value parameter : f_.parameters()) {
        if (!f_.is_ref(parameter) || f_.ref_type(parameter).space != ir::Space::scratch) continue;
        const ir::RefType& ref = f_.ref_type(parameter);
        std::int64_t bytes = size_of(ref.dtype);
        for (std::int64_t extent : ref.extents) bytes *= extent;
        if (workspace_) {
            in_workspace.emplace_back(parameter, total);
            total += ceil_div(bytes, kAlignment) * kAlignment;
            continue;
        }
        const int id = buffer(std::max<std::int64_t>(bytes, 1));
        line("{0}* const {1}_data = reinterpret_cast<{0}*>(memory + {2});", storage_type(ref.dtype),
             ref_name(parameter), buffer_name(id));
        touch(id);
        scratch.push_back(id);
    }
    for (const auto& [parameter, offset] : in_workspace) {
        line("{0}* const {1}_data = reinterpret_cast<{0}*>(workspace + blockIdx.x * {2}ull + {3});",
             storage_type(f_.ref_type(parameter).dtype), ref_name(parameter), total, offset);
    }
    return total;
}

void Emitter::declare_positions() {
    std::vector<schedule::Instruction> made;
    for (const Position& one : positions_.all()) {
        schedule::Instruction& position =
            made.emplace_back(schedule::make(schedule::Op::position, {}));
        position.with_symbol("called", one.name);
        if (one.is_address) position.flag("address");
        position.with_text("text", one.text);
    }
    program_.body.body.insert(program_.body.body.begin(), std::make_move_iterator(made.begin()),
                              std::make_move_iterator(made.end()));
}

Emitted Emitter::run() {
    scopes_.emplace_back();
    Emitted emitted;
    Generated& generated = emitted.generated;
    std::string scalar_parameters;
    for (Value parameter : f_.parameters()) {
        schedule::Parameter& made = program_.parameters.emplace_back();
        made.name = ref_name(parameter);
        if (f_.is_ref(parameter)) {
            const ir::RefType& ref = f_.ref_type(parameter);
            made.is_ref = true;
            made.dtype = ref.dtype;
            made.extents = ref.extents;
            made.vectors = facts_.has_vectors(parameter);
            if (ref.space == ir::Space::scratch) continue;
            emitted.parameters += fmt::format(", const __grid_constant__ Array<{}, {}> {}",
                                              storage_type(ref.dtype), ref.rank(), made.name);
            ++generated.num_refs;
        } else {
            const std::string name = fmt::format("v{}", parameter.id);
            const DType dtype = type(parameter).dtype;
            made.dtype = dtype;
            made.value = program_.add({false, type(parameter), {}}, name);
            scalar_parameters += fmt::format(", const u64 bits{}", parameter.id);
            line("const {} {} = ops::cast<{}>({});", register_type(dtype), name,
                 storage_type(dtype),
                 is_float(dtype) ? fmt::format("__longlong_as_double(bits{})", parameter.id)
                                 : fmt::format("bits{}", parameter.id));
            hold(parameter, scalar_layout(), {name});
            ++generated.num_scalars;
        }
    }
    emitted.parameters += scalar_parameters;
    for (std::size_t axis = 0; axis < f_.grid.size(); ++axis) {
        emitted.parameters += fmt::format(", const i64 grid{}", axis);
    }
    if (workspace_) emitted.parameters += ", const u64 workspace, const u32 first_program";
    emitted.parameters.erase(0, 2);
    std::vector<int> scratch;
    generated.workspace_bytes = place_scratch(scratch);
    program_ids();
    block(f_.body);
    begin_operation("yield");
    for (int id : scratch) touch(id);  // lives to the end
    declare_positions();

    generated.notes = notes_of(facts_, plan_, workspace_);
    generated.num_axes = static_cast<int>(f_.grid.size());
    generated.threads = 32 * warps_;
    generated.name = "kernel_";
    for (char c : f_.name) generated.name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    if (plan_.launch.blocks > 0) {
        emitted.launch_bounds = fmt::format(", {}", plan_.launch.blocks);
    }
    emitted.program = std::move(program_);
    return emitted;
}

}  // namespace tilewright::cuda
