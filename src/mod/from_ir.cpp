// Mods from the text of their IR, also over a batch of problems.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ir/access.h"
#include "ir/builder.h"
#include "ir/parse.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "ir/print.h"
#include "mod/capture_table.h"
#include "mod/state.h"
#include "support/check.h"
#include "support/memo.h"

namespace tilewright {
namespace {

/// The text's function, parsed once; UserError unless it has the form of a traced mod.
std::shared_ptr<const ir::Function> parse_traced(std::string_view text) {
    using Function = std::shared_ptr<const ir::Function>;
    static auto* const kKnown = new Memo<std::string, Function>("mods given as IR", 1024);
    if (const std::optional<Function> known = kKnown->find(text)) return *known;
    ir::Function function = ir::parse(text);
    const auto& parameters = function.parameters();
    const auto first_ref = std::find_if(parameters.begin(), parameters.end(),
                                        [&](ir::Value p) { return function.is_ref(p); });
    const std::size_t scalars = first_ref - parameters.begin();
    const ir::Instruction& end = function.body.terminator();
    bool fits = scalars == mod::kPositions.size() || scalars == mod::kPositions.size() + 1;
    fits &=
        std::all_of(first_ref, parameters.end(), [&](ir::Value p) { return function.is_ref(p); });
    for (std::size_t i = 0; fits && i < scalars; ++i) {
        const ir::Type& type = function.type(parameters[i]);
        const bool is_score = i + mod::kPositions.size() < scalars;
        fits &= type.is_scalar() && (is_score ? is_float(type.dtype) : type.dtype == i64);
    }
    if (fits && end.operands.size() == 1) {
        const ir::Type& result = function.type(end.operands[0]);
        const bool is_mask = scalars == mod::kPositions.size();
        fits &= result == (is_mask ? ir::Type{boolean, {}} : function.type(parameters[0]));
    } else {
        fits = false;
    }
    if (!fits)
        user_error("mod",
                   "expected the IR of a mod, of ([score,] b, h, q, kv, arrays), but got\n{}",
                   text);
    return kKnown->put(std::string(text),
                       std::make_shared<const ir::Function>(std::move(function)));
}

/// The function with one more parameter, `attends`, and a check of every index that it clamps: the
/// form that tracing gives in the checked mode.
ir::Function with_checks(ir::Function function) {
    const ir::Value attends = function.add_parameter(ir::Type{boolean, {}}, "attends");
    std::vector<ir::Instruction> body = std::exchange(function.body.body, {});
    ir::Builder builder(function);
    std::map<ir::Value, ir::Value> clamped;  // the value that was clamped, by the result
    const ir::Value masked = builder.unary(ir::Op::bitwise_not, attends);
    const ir::Value zero = builder.constant_int(ir::Type{i64, {}}, 0);
    for (ir::Instruction& instruction : body) {
        if (instruction.op == ir::Op::clamp) {
            clamped[instruction.result()] = instruction.operands[0];
        } else if (instruction.op == ir::Op::load) {
            const ir::Access access = ir::access(instruction);
            builder.set_location(instruction.location);
            for (std::size_t d = 0; d < access.indices.size(); ++d) {
                const auto index = clamped.find(access.indices[d]);
                if (index == clamped.end()) continue;
                const ir::Value extent = builder.extent(access.ref, static_cast<int>(d));
                const ir::Value inside = builder.binary(
                    ir::Op::bitwise_and, builder.binary(ir::Op::ge, index->second, zero),
                    builder.binary(ir::Op::lt, index->second, extent));
                builder.debug_check(
                    builder.binary(ir::Op::bitwise_or, inside, masked),
                    fmt::format("index of dimension {} of capture `{}` is inside its "
                                "extent",
                                d, function.value_name(access.ref)));
            }
        }
        function.body.body.push_back(std::move(instruction));
    }
    return function;
}

/// The arrays of a mod, and which positions index them.
class Axes {
  public:
    explicit Axes(const ir::Function& function) : function_(function) {
        for (ir::Value parameter : function.parameters())
            (function.is_ref(parameter) ? refs_ : scalars_).push_back(parameter);
        ir::walk(function.body, [&](const ir::Instruction& instruction) {
            if (instruction.op == ir::Op::clamp)
                clamped_[instruction.result()] = instruction.operands[0];
        });
    }

    const std::vector<ir::Value>& refs() const { return refs_; }
    /// The position that is the i-th of the last four scalars: 0 is b.
    ir::Value position(std::size_t i) const {
        return scalars_[scalars_.size() - mod::kPositions.size() + i];
    }
    /// The letter of the position that an index is, clamped to its array; '.' for other indices.
    char letter(ir::Value index) const {
        const auto found = clamped_.find(index);
        if (found == clamped_.end()) return '.';
        for (std::size_t i = 0; i < mod::kPositions.size(); ++i) {
            if (found->second == position(i)) return mod::kPositions[i][0];
        }
        return '.';
    }
    std::vector<std::string> letters() const {
        std::map<ir::Value, std::string> found;
        ir::walk(function_.body, [&](const ir::Instruction& instruction) {
            if (instruction.op != ir::Op::load) return;
            const ir::Access access = ir::access(instruction);
            std::string own;
            for (ir::Value index : access.indices) own += letter(index);
            const auto [known, is_first] = found.emplace(access.ref, own);
            for (std::size_t d = 0; !is_first && d < own.size(); ++d) {
                if (known->second[d] != own[d]) known->second[d] = '.';
            }
        });
        std::vector<std::string> result;
        for (ir::Value ref : refs_) {
            const std::size_t rank = function_.ref_type(ref).rank();
            const auto known = found.find(ref);
            result.push_back(known == found.end() ? std::string(rank, '.') : known->second);
        }
        return result;
    }

  private:
    const ir::Function& function_;
    std::vector<ir::Value> scalars_, refs_;
    std::map<ir::Value, ir::Value> clamped_;
};

}  // namespace

Mod Mod::from_ir(std::string_view text, std::vector<Capture> captures) {
    const std::shared_ptr<const ir::Function> function = parse_traced(text);
    std::vector<ir::Value> refs;
    for (ir::Value parameter : function->parameters()) {
        if (function->is_ref(parameter)) refs.push_back(parameter);
    }
    if (refs.size() != captures.size())
        user_error("mod", "expected {} arrays for the IR of a mod but got {}", refs.size(),
                   captures.size());
    for (std::size_t i = 0; i < refs.size(); ++i) {
        const ir::RefType& type = function->ref_type(refs[i]);
        const Tensor& tensor = captures[i].tensor();
        if (type.dtype != tensor.dtype() || type.rank() != tensor.rank())
            user_error("mod", "expected array {} of the IR of a mod to be {} but got {}", i,
                       ir::to_string(type), tensor.type_name());
    }
    const std::size_t scalars = function->parameters().size() - refs.size();
    const Kind kind = scalars == mod::kPositions.size() ? Kind::mask : Kind::score;
    Body body = [function, captures](std::span<const Tile> arguments) -> Operand {
        mod::CaptureTable& table = mod::CaptureTable::current();
        lang::Tracer& tracer = table.tracer();
        std::vector<ir::Value> values;
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            const DType dtype = function->type(function->parameters()[i]).dtype;
            values.push_back(tracer.value(Operand(arguments[i], std::source_location{}), dtype));
        }
        for (const Capture& capture : captures) values.push_back(table.ref(capture));
        ir::Value result;
        if (table.attends()) {
            values.push_back(table.attends());
            result = ir::append_mod(tracer.builder(), with_checks(*function), values)[0];
        } else {
            result = ir::append_mod(tracer.builder(), *function, values)[0];
        }
        return Operand(tracer.wrap(result), std::source_location{});
    };
    Mod mod;
    mod.state_ = std::shared_ptr<const detail::ModState>(new detail::ModState{
        kind, function->name, std::move(body), function, std::move(captures), std::string(text)});
    return mod;
}

Mod Mod::with_derivative(std::string_view text, std::vector<std::size_t> gathers) const {
    mod::expect_kind("with_derivative", "the mod", *this, Kind::score);
    auto function = std::make_shared<ir::Function>(ir::parse(text));
    std::vector<int> ranks;
    for (const Capture& capture : captures()) ranks.push_back(capture.tensor().rank());
    const std::vector<ir::Value>& results = function->body.terminator().operands;
    std::vector<ir::GatherGradient> made;
    std::size_t next = 1;
    for (const std::size_t array : gathers) {
        if (array >= ranks.size())
            user_error("with_derivative", "expected arrays below {} but got {}", ranks.size(),
                       array);
        ir::GatherGradient gather{array, {}, 0};
        for (int d = 0; d < ranks[array]; ++d) gather.indices.push_back(next++);
        gather.value = next++;
        made.push_back(std::move(gather));
    }
    constexpr std::size_t kScalars = 6;  // score, positions, cotangent
    if (results.size() != next || function->parameters().size() != kScalars + ranks.size())
        user_error("with_derivative",
                   "expected a function of {} scalars and {} arrays with {} results but got\n{}",
                   kScalars, ranks.size(), next, text);
    Mod mod;
    const detail::ModState& own = *state_;
    mod.state_ = std::shared_ptr<const detail::ModState>(
        new detail::ModState{own.kind, own.name, own.body, own.parsed, own.captures, own.text,
                             std::move(function), std::move(made)});
    return mod;
}

std::string Mod::derivative_ir(
    const std::function<std::vector<Operand>(std::span<const Tile>)>& body, DType score) const {
    mod::expect_kind("derivative_ir", "the mod", *this, Kind::score);
    const std::vector<Capture> arrays = captures();
    lang::Tracer tracer("derivative");
    mod::CaptureTable table(tracer);
    ir::Function& function = tracer.function();
    std::vector<Tile> arguments;
    const auto add = [&](DType dtype, const char* name) {
        arguments.push_back(
            tracer.wrap(function.add_parameter(ir::Type{dtype, {}}, std::string(name))));
    };
    add(score, "score");
    for (const char* name : mod::kPositions) add(i64, name);
    add(score, "cotangent");
    for (const Capture& capture : arrays) table.ref(capture);
    const std::vector<Operand> results = body(arguments);
    if (table.captures().size() != arrays.size())
        user_error("derivative_ir", "expected a derivative that reads what the mod reads");
    std::vector<ir::Value> values;
    for (const Operand& result : results) {
        const DType dtype = tracer.dtype(result);
        // Gradients of narrow floats are carried in f32.
        const DType wide = is_integer(dtype) ? i64 : dtype == f64 ? f64 : f32;
        values.push_back(tracer.value(result, values.empty() ? score : wide));
    }
    tracer.builder().yield(values);
    for (bool changed = true; changed;) {
        changed = ir::fold(function).changed();
        changed |= ir::cse(function).changed();
        changed |= ir::dce(function).changed();
    }
    return ir::print(function);
}

std::string batched_mod_ir(std::string_view text, std::int64_t batch,
                           const std::vector<bool>& batched) {
    if (batch < 1) user_error("mod", "expected a batch of at least 1 but got {}", batch);
    ir::Function function = *parse_traced(text);
    std::vector<ir::Value> parameters = function.parameters();
    const auto first_ref = std::find_if(parameters.begin(), parameters.end(),
                                        [&](ir::Value p) { return function.is_ref(p); });
    const std::size_t scalars = first_ref - parameters.begin();
    if (parameters.size() - scalars != batched.size())
        user_error("mod", "expected {} flags for the arrays of a mod but got {}",
                   parameters.size() - scalars, batched.size());
    const ir::Value b = parameters[scalars - mod::kPositions.size()];
    std::map<ir::Value, ir::Value> wide;
    for (std::size_t i = 0; i < batched.size(); ++i) {
        if (!batched[i]) continue;
        ir::Value& parameter = parameters[scalars + i];
        ir::RefType type = function.ref_type(parameter);
        type.extents.insert(type.extents.begin(), kDynamic);
        const ir::Value made = function.add_ref(type);
        function.set_value_name(made, function.value_name(parameter));
        wide.emplace(parameter, made);
        parameter = made;
    }
    function.body.arguments = parameters;
    std::vector<ir::Instruction> rest = std::exchange(function.body.body, {});
    ir::Builder builder(function);
    const auto constant = [&](std::int64_t value) {
        return builder.constant_int(ir::Type{i64, {}}, value);
    };
    ir::Value inside = constant(0), problem = b;
    if (batch > 1) {
        inside = builder.binary(ir::Op::floormod, b, constant(batch));
        problem = builder.binary(ir::Op::floordiv, b, constant(batch));
    }
    std::map<ir::Value, ir::Value> places;  // index in the new dimension, by old Ref
    for (const auto& [before, made] : wide) {
        const ir::Value last = builder.binary(ir::Op::sub, builder.extent(made, 0), constant(1));
        places[before] = builder.clamp(problem, constant(0), last);
    }
    function.body.body.swap(rest);
    ir::walk(function.body, [&](ir::Instruction& instruction) {
        for (ir::Value& operand : instruction.operands) {
            if (operand == b) operand = inside;
        }
        if (instruction.operands.empty()) return;
        const auto found = wide.find(instruction.operands[0]);
        if (found == wide.end()) return;
        const ir::Value place = places[instruction.operands[0]];
        instruction.operands[0] = found->second;
        if (instruction.op == ir::Op::extent) {
            ++instruction.get<ir::AxisAttributes>().axis;
            return;
        }
        TW_ASSERT(instruction.op == ir::Op::load, "mods read their arrays by loads");
        auto& indices = instruction.get<ir::AccessAttributes>().indices;
        indices.insert(indices.begin(), ir::Index{});
        instruction.operands.insert(instruction.operands.begin() + 1, place);
    });
    function.body.body.insert(function.body.body.begin(), std::make_move_iterator(rest.begin()),
                              std::make_move_iterator(rest.end()));
    ir::fold(function);
    ir::dce(function);
    return ir::print(function);
}

std::vector<std::string> mod_axes(std::string_view text) {
    return Axes(*parse_traced(text)).letters();
}

std::string shifted_mod_ir(std::string_view text, const std::vector<bool>& local) {
    ir::Function function = *parse_traced(text);
    const Axes axes(function);
    const std::vector<ir::Value> refs = axes.refs();
    const std::vector<std::string> letters = axes.letters();
    if (refs.size() != local.size())
        user_error("mod", "expected {} flags for the arrays of a mod but got {}", refs.size(),
                   local.size());
    std::set<ir::Value> kept;  // indices that already count from the origin
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        if (instruction.op != ir::Op::load) return;
        const ir::Access access = ir::access(instruction);
        const std::size_t place = std::find(refs.begin(), refs.end(), access.ref) - refs.begin();
        for (std::size_t d = 0; local[place] && d < access.indices.size(); ++d) {
            if (letters[place][d] == 'b') kept.insert(access.indices[d]);
        }
    });
    const ir::Value b = axes.position(0), h = axes.position(1);
    const ir::Value origin = function.add_ref({i32, {kDynamic}, ir::Space::global, -1});
    function.set_value_name(origin, "origin");
    auto& parameters = function.body.arguments;
    parameters.insert(parameters.end() - std::ssize(refs), origin);
    std::vector<ir::Instruction> rest = std::exchange(function.body.body, {});
    ir::Builder builder(function);
    const auto moved = [&](ir::Value position, std::int64_t place) {
        const auto constant = [&](std::int64_t value) {
            return builder.constant_int(ir::Type{i64, {}}, value);
        };
        const ir::Value last = builder.binary(ir::Op::sub, builder.extent(origin, 0), constant(1));
        const ir::IndexOperand index =
            ir::IndexOperand::scalar(builder.clamp(constant(place), constant(0), last));
        return builder.binary(ir::Op::add, position,
                              builder.cast(builder.load(origin, {&index, 1}), i64));
    };
    const ir::Value global_b = moved(b, 0), global_h = moved(h, 1);
    function.body.body.swap(rest);
    ir::walk(function.body, [&](ir::Instruction& instruction) {
        if (instruction.op == ir::Op::clamp && kept.contains(instruction.result())) return;
        for (ir::Value& operand : instruction.operands) {
            operand = operand == b ? global_b : operand == h ? global_h : operand;
        }
    });
    function.body.body.insert(function.body.body.begin(), std::make_move_iterator(rest.begin()),
                              std::make_move_iterator(rest.end()));
    ir::fold(function);
    ir::dce(function);
    return ir::print(function);
}

}  // namespace tilewright
