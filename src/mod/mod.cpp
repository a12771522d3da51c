// Mods: tracing, application, combination of masks.
#include "tilewright/mod.h"

#include <mutex>

#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/print.h"
#include "lang/tracer.h"
#include "mod/capture_table.h"
#include "mod/elements.h"
#include "mod/evaluate.h"
#include "mod/state.h"
#include "mod/traced.h"

namespace tilewright {

namespace {

const char* kind_name(Mod::Kind kind) {
    return kind == Mod::Kind::mask ? "mask_mod" : "score_mod";
}

/// The dtype of the score in a score mod that was made from IR text.
DType score_dtype(const detail::ModState& state) {
    return state.parsed->type(state.parsed->parameters()[0]).dtype;
}

/// The result of the body as a scalar of the required dtype.
ir::Value result_value(lang::Tracer& tracer, Mod::Kind kind, const Operand& result, DType score) {
    const char* const op = kind_name(kind);
    const ir::Type type{tracer.dtype(result), tracer.shape(result)};
    const bool is_mask = kind == Mod::Kind::mask;
    if (!type.is_scalar() || is_mask != (type.dtype == boolean)) {
        user_error(op, "expected {} to return {} but it returns {}{}", op,
                   is_mask ? "a bool scalar" : "a number", ir::to_string(type),
                   is_mask ? "; compare it, as in `q >= kv`"
                           : "; choose scores with where(condition, score, other)");
    }
    return tracer.value(result, is_mask ? boolean : score);
}

mod::Traced trace_state(const detail::ModState& state, DType score, bool checked) {
    lang::Tracer tracer(state.name.empty() ? kind_name(state.kind) : state.name);
    tracer.checked = checked;
    mod::CaptureTable table(tracer);
    ir::Function& function = tracer.function();
    std::vector<Tile> arguments;
    if (state.kind == Mod::Kind::score) {
        arguments.push_back(
            tracer.wrap(function.add_parameter(ir::Type{score, {}}, std::string("score"))));
    }
    for (const char* name : mod::kPositions) {
        const ir::Value position = function.add_parameter(ir::Type{i64, {}}, std::string(name));
        table.set_position(position);
        arguments.push_back(tracer.wrap(position));
    }
    if (checked) table.set_attends(function.add_parameter(ir::Type{boolean, {}}, "attends"));
    const Operand result = state.body(arguments);
    tracer.at({}, [&] {
        const ir::Value value = result_value(tracer, state.kind, result, score);
        tracer.builder().yield(std::vector{value});
    });
    mod::Traced traced;
    traced.captures = table.captures();
    for (bool changed = true; changed;) {
        changed = ir::fold(function).changed();
        changed |= ir::cse(function).changed();
        changed |= ir::dce(function).changed();
    }
    traced.text = ir::print(function);
    traced.function = std::make_shared<const ir::Function>(std::move(function));
    return traced;
}

mod::Evaluator evaluator_of(const Mod& mod, DType score) {
    const mod::Traced& traced = mod::trace(mod, score);
    mod::expect_elements("mod", traced.captures);
    std::vector<Tensor> captures;
    for (const Capture& capture : traced.captures)
        captures.push_back(capture.tensor().to(Device{}));
    return {*traced.function, std::move(captures)};
}

/// A mask that combines the bools of two masks.
template <typename Combine>
Mod combined(const char* op, const Mod& a, const Mod& b, Combine combine) {
    mod::expect_kind(op, "the left operand", a, Mod::Kind::mask);
    mod::expect_kind(op, "the right operand", b, Mod::Kind::mask);
    return Mod::make(Mod::Kind::mask, {}, [a, b, combine](std::span<const Tile> x) -> Operand {
        return combine(a(x[0], x[1], x[2], x[3]), b(x[0], x[1], x[2], x[3]));
    });
}

template <typename Combine>
Mod folded(const char* op, std::initializer_list<Mod> masks, Combine combine) {
    if (masks.size() == 0) user_error(op, "expected at least one mask but got none");
    Mod result = *masks.begin();
    mod::expect_kind(op, "mask 0", result, Mod::Kind::mask);
    for (const Mod* next = masks.begin() + 1; next != masks.end(); ++next) {
        result = combine(result, *next);
    }
    return result;
}

}  // namespace

namespace mod {

const Traced& trace(const Mod& mod, DType score, bool checked) {
    if (!mod.defined()) user_error("mod", "expected a mod but got none");
    const detail::ModState& state = *mod.state();
    if (state.kind == Mod::Kind::mask) score = f32;
    const std::lock_guard lock(state.mutex);
    const auto found = state.traced.find({score, checked});
    if (found != state.traced.end()) return found->second;
    if (state.parsed && !checked &&
        (state.kind == Mod::Kind::mask || score == score_dtype(state))) {
        // The parsed function already is the result of a trace.
        return state.traced
            .emplace(std::pair(score, checked), Traced{state.parsed, state.captures, state.text,
                                                       state.derivative, state.gathers})
            .first->second;
    }
    Traced traced = trace_state(state, score, checked);
    traced.derivative = state.derivative;
    traced.gathers = state.gathers;
    return state.traced.emplace(std::pair(score, checked), std::move(traced)).first->second;
}

void expect_kind(const char* op, const char* argument, const Mod& mod, Mod::Kind kind) {
    if (!mod.defined()) user_error(op, "expected {} but it was left out", argument);
    if (mod.kind() == kind) return;
    const bool is_mask = kind == Mod::Kind::mask;
    user_error(
        op, "expected {} to be a {} but got a {}", argument,
        is_mask ? "mask mod (b, h, q, kv) -> bool" : "score mod (score, b, h, q, kv) -> score",
        is_mask ? "score mod (5 arguments)" : "mask mod (4 arguments)");
}

}  // namespace mod

Mod Mod::make(Kind kind, std::string name, Body body) {
    Mod mod;
    mod.state_ = std::shared_ptr<const detail::ModState>(
        new detail::ModState{kind, std::move(name), std::move(body)});
    return mod;
}

Mod::Kind Mod::kind() const {
    if (!defined()) user_error("mod", "expected a mod but got none");
    return state_->kind;
}

const std::string& Mod::name() const {
    static const std::string kNone;
    return defined() ? state_->name : kNone;
}

Mod Mod::renamed(std::string name) const {
    return make(kind(), std::move(name), state_->body);
}

Tile Mod::operator()(Operand b, Operand h, Operand q, Operand kv) const {
    mod::expect_kind("mod", "a mod applied to (b, h, q, kv)", *this, Kind::mask);
    lang::Tracer& tracer = lang::Tracer::current("mod");
    std::vector<Tile> arguments;
    for (const Operand& position : {b, h, q, kv}) {
        arguments.push_back(tracer.wrap(tracer.value(position, i64)));
    }
    const Operand result = state_->body(arguments);
    return tracer.at({},
                     [&] { return tracer.wrap(result_value(tracer, Kind::mask, result, f32)); });
}

Tile Mod::operator()(Operand score, Operand b, Operand h, Operand q, Operand kv) const {
    mod::expect_kind("mod", "a mod applied to (score, b, h, q, kv)", *this, Kind::score);
    lang::Tracer& tracer = lang::Tracer::current("mod");
    std::vector<Tile> arguments{tracer.wrap(tracer.value(score))};
    for (const Operand& position : {b, h, q, kv}) {
        arguments.push_back(tracer.wrap(tracer.value(position, i64)));
    }
    const DType dtype = tracer.dtype(score);
    const Operand result = state_->body(arguments);
    return tracer.at({},
                     [&] { return tracer.wrap(result_value(tracer, Kind::score, result, dtype)); });
}

std::vector<Capture> Mod::captures() const {
    return mod::trace(*this).captures;
}

std::string Mod::ir(DType score, bool with_lines) const {
    const mod::Traced& traced = mod::trace(*this, score);
    return with_lines ? ir::print(*traced.function, true) : traced.text;
}

bool Mod::evaluate(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    mod::expect_kind("mod", "a mod applied to (b, h, q, kv)", *this, Kind::mask);
    return evaluator_of(*this, f32).mask(b, h, q, kv);
}

double Mod::evaluate(double score, std::int64_t b, std::int64_t h, std::int64_t q,
                     std::int64_t kv) const {
    mod::expect_kind("mod", "a mod applied to (score, b, h, q, kv)", *this, Kind::score);
    return evaluator_of(*this, f64).score(score, b, h, q, kv);
}

Mod::Reads Mod::reads() const {
    const ir::Function& function = *mod::trace(*this).function;
    const std::size_t first = kind() == Kind::mask ? 0 : 1;
    const auto &b = function.parameters()[first], &h = function.parameters()[first + 1];
    Reads reads;
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        for (ir::Value operand : instruction.operands) {
            reads.batch |= operand == b;
            reads.head |= operand == h;
        }
    });
    return reads;
}

Mod Mod::written_at(std::string file, int line) const {
    const auto body = [mod = *this, file = std::move(file),
                       line](std::span<const Tile> arguments) -> Operand {
        struct Restored {
            detail::SourceLine before;
            ~Restored() { detail::exchange_source_line(before.file, before.line); }
        } restored{detail::exchange_source_line(file, line)};
        return mod.state_->body(arguments);
    };
    return make(kind(), name(), body);
}

Mod operator&(const Mod& a, const Mod& b) {
    return combined("&", a, b, [](Tile x, Tile y) { return x & y; });
}
Mod operator|(const Mod& a, const Mod& b) {
    return combined("|", a, b, [](Tile x, Tile y) { return x | y; });
}
Mod operator^(const Mod& a, const Mod& b) {
    return combined("^", a, b, [](Tile x, Tile y) { return x ^ y; });
}
Mod operator~(const Mod& a) {
    mod::expect_kind("~", "the operand", a, Mod::Kind::mask);
    return Mod::make(Mod::Kind::mask, {}, [a](std::span<const Tile> x) -> Operand {
        return ~Operand(a(x[0], x[1], x[2], x[3]), std::source_location{});
    });
}

Mod and_masks(std::initializer_list<Mod> masks) {
    return folded("and_masks", masks, [](const Mod& a, const Mod& b) { return a & b; });
}
Mod or_masks(std::initializer_list<Mod> masks) {
    return folded("or_masks", masks, [](const Mod& a, const Mod& b) { return a | b; });
}

}  // namespace tilewright
