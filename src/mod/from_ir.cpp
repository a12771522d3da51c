// Mods from the text of their IR, and the same over a batch of problems.
#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

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

namespace tilewright {
namespace {

/// The function of the text, read once; UserError unless it has the form of a traced mod.
std::shared_ptr<const ir::Function> parse_traced(std::string_view text) {
    static std::mutex mutex;
    static std::map<std::string, std::shared_ptr<const ir::Function>, std::less<>> known;
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(text); found != known.end()) return found->second;
    ir::Function function = ir::parse(text);
    const auto& parameters = function.parameters();
    const auto first_ref = std::find_if(parameters.begin(), parameters.end(),
                                        [&](ir::Value p) { return function.is_ref(p); });
    const auto scalars = static_cast<std::size_t>(first_ref - parameters.begin());
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
    constexpr std::size_t kKept = 1024;
    if (known.size() >= kKept) known.clear();
    const auto shared = std::make_shared<const ir::Function>(std::move(function));
    return known.emplace(std::string(text), shared).first->second;
}

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
        const ir::Value result = ir::append_mod(tracer.builder(), *function, values)[0];
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
    const auto scalars = static_cast<std::size_t>(first_ref - parameters.begin());
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
    std::map<ir::Value, ir::Value> places;  // in the new dimension, by old Ref
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

}  // namespace tilewright
