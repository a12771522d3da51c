// Derivatives of functions of tiles.
#include "tilewright/lang/vjp.h"

#include "ir/passes/effects.h"
#include "ir/passes/reverse_sweep.h"
#include "lang/promotion.h"
#include "lang/tracer.h"

namespace tilewright::detail {

using ir::Op;
using lang::Tracer;

struct Differentiable {
    std::vector<Tile> arguments;                ///< as the function saw them
    std::vector<Tile> results;                  ///< made in the block of the trace
    std::vector<ir::Instruction> instructions;  ///< of the function
};

namespace {

bool is_float_tile(const Tracer& tracer, ir::Value value) {
    return is_float(tracer.type(value).dtype);
}

/// A value of its own for the same tile, so that only what the function does with its argument is
/// differentiated. Folding removes it.
ir::Value separate(Tracer& tracer, ir::Value value) {
    ir::Instruction same;
    same.op = Op::reshape;
    same.operands = {value};
    same.location = tracer.location();
    const ir::Type type = tracer.type(value);
    return tracer.builder().append(std::move(same), &type).at(0);
}

ir::ReverseSweep marked(Tracer& tracer, const Differentiable& trace) {
    ir::ReverseSweep sweep(tracer.builder());
    for (const Tile& argument : trace.arguments) sweep.activate(tracer.use(argument));
    for (const ir::Instruction& made : trace.instructions) sweep.mark(made);
    return sweep;
}

/// Stores and atomics would let an argument reach memory, where the derivative loses it.
void refuse_effects(const ir::ReverseSweep& sweep, const ir::Instruction& made) {
    if (ir::effects(made).writes.empty() || !sweep.reads_active(made)) return;
    user_error("vjp", "expected the function to return what depends on its arguments but got {}",
               ir::name(made.op));
}

ir::Value cotangent_of(Tracer& tracer, const Operand& given, ir::Value result, std::size_t place) {
    const ir::Type& type = tracer.type(result);
    if (!given.is_literal() && !is_float_tile(tracer, tracer.value(given))) {
        user_error("vjp", "expected a float cotangent of result {} but got {}", place,
                   ir::to_string(tracer.type(tracer.value(given))));
    }
    const ir::Value value = tracer.value(given, ir::gradient_dtype(type.dtype), "vjp");
    if (const ir::Shape from = tracer.type(value).shape; !lang::broadcasts_to(from, type.shape)) {
        user_error("vjp",
                   "expected a cotangent of result {} whose shape broadcasts to {} but got {}",
                   place, lang::shape_text(type.shape), lang::shape_text(from));
    }
    return tracer.broadcast(value, type.shape, "vjp");
}

bool is_zero_literal(const Operand& given) {
    if (!given.is_literal()) return false;
    return given.kind() == Operand::Kind::floating ? given.floating() == 0 : given.integer() == 0;
}

}  // namespace

Values vjp(const std::function<Operands(std::span<const Tile>)>& function, const Operands& primals,
           std::source_location location) {
    Tracer& tracer = Tracer::current("vjp", location);
    auto trace = std::make_shared<Differentiable>();
    tracer.at(location, [&] {
        if (primals.empty()) user_error("vjp", "expected at least one primal but got none");
        for (std::size_t i = 0; i < primals.size(); ++i) {
            const ir::Value value = tracer.value(primals[i]);
            if (!is_float_tile(tracer, value)) {
                user_error("vjp", "expected primals of float dtypes but value {} is {}", i,
                           ir::to_string(tracer.type(value)));
            }
            trace->arguments.push_back(tracer.wrap(separate(tracer, value)));
        }
    });
    const std::size_t first = tracer.builder().block().body.size();
    const Operands returned = function(trace->arguments);
    const auto& body = tracer.builder().block().body;
    trace->instructions.assign(body.begin() + static_cast<std::ptrdiff_t>(first), body.end());
    tracer.at(location, [&] {
        const ir::ReverseSweep sweep = marked(tracer, *trace);
        for (const ir::Instruction& made : trace->instructions) refuse_effects(sweep, made);
        for (const Operand& result : returned) {
            trace->results.push_back(tracer.wrap(tracer.value(result)));
        }
    });
    return {trace->results, trace};
}

Tiles pull_back(const Differentiable& trace, const Operands& cotangents,
                std::source_location location) {
    Tracer& tracer = Tracer::current("vjp", location);
    return tracer.at(location, [&] {
        if (cotangents.size() != trace.results.size()) {
            user_error("vjp", "expected cotangents of {} results but got {}", trace.results.size(),
                       cotangents.size());
        }
        ir::ReverseSweep sweep = marked(tracer, trace);
        for (std::size_t i = 0; i < cotangents.size(); ++i) {
            const ir::Value result = tracer.use(trace.results[i]);
            if (!is_float_tile(tracer, result) || is_zero_literal(cotangents[i])) continue;
            sweep.accumulate(result, {cotangent_of(tracer, cotangents[i], result, i), {}});
        }
        for (std::size_t i = trace.instructions.size(); i-- > 0;) {
            sweep.backward(trace.instructions[i]);
        }
        if (!sweep.refusal().empty()) user_error("vjp", "{}", sweep.refusal());
        Tiles gradients;
        for (const Tile& argument : trace.arguments) {
            const ir::Value value = tracer.use(argument);
            const ir::Cotangent d = sweep.cotangent(value);
            const ir::Type type{ir::gradient_dtype(tracer.type(value).dtype),
                                tracer.type(value).shape};
            gradients.push_back(tracer.wrap(d ? sweep.derivatives().materialise(d)
                                              : tracer.builder().constant(type, 0)));
        }
        return gradients;
    });
}

}  // namespace tilewright::detail
