// Structured control flow of the kernel language.
#include "tilewright/lang/control.h"

#include <algorithm>
#include <array>

#include "lang/promotion.h"
#include "lang/tracer.h"

namespace tilewright::detail {

using lang::Tracer;

namespace {

/// Appends instructions to another block while it lives.
class AppendTo {
  public:
    AppendTo(Tracer& tracer, ir::Block& block) : builder_(tracer.builder()), scope_(tracer) {
        builder_.push_block(block);
    }
    ~AppendTo() { builder_.pop_block(); }
    AppendTo(const AppendTo&) = delete;
    AppendTo& operator=(const AppendTo&) = delete;

  private:
    ir::Builder& builder_;
    Tracer::Scope scope_;
};

bool is_literal(const Operand& part) {
    return part.is_literal();
}

std::vector<ir::Value> values_of(Tracer& tracer, std::span<const Operand> parts) {
    std::vector<ir::Value> values;
    for (const Operand& part : parts) values.push_back(tracer.value(part));
    return values;
}

Tiles wrapped(Tracer& tracer, std::span<const ir::Value> values) {
    Tiles tiles;
    for (ir::Value value : values) tiles.push_back(tracer.wrap(value));
    return tiles;
}

ir::Type type_of(Tracer& tracer, const Operand& part) {
    return {tracer.dtype(part), tracer.shape(part)};
}

using CarryBody = std::function<Operands(std::span<const Tile> carry)>;

/// The initial carry. Literals take the dtypes that the body returns, which tracing it once into a
/// discarded block shows.
std::vector<ir::Value> initial(Tracer& tracer, const char* op, std::span<const Operand> init,
                               const CarryBody& body) {
    if (std::none_of(init.begin(), init.end(), is_literal)) return values_of(tracer, init);
    std::vector<DType> dtypes;
    {
        ir::Block aside;
        const AppendTo block(tracer, aside);
        const Operands next = body(wrapped(tracer, values_of(tracer, init)));
        for (std::size_t i = 0; i < init.size(); ++i) {
            const std::array both{init[i], i < next.size() ? next[i] : init[i]};
            dtypes.push_back(tracer.common_dtype(both));
        }
    }
    std::vector<ir::Value> values;
    for (std::size_t i = 0; i < init.size(); ++i) {
        values.push_back(init[i].is_literal() ? tracer.literal(init[i], dtypes[i], op)
                                              : tracer.value(init[i]));
    }
    return values;
}

/// What a body returns, in the types of the carry: literals take them, other values have them.
std::vector<ir::Value> carried(Tracer& tracer, const char* op, std::span<const ir::Value> carry,
                               std::span<const Operand> next) {
    if (carry.size() != next.size()) {
        user_error(op, "expected the body to return {} carried values but got {}", carry.size(),
                   next.size());
    }
    std::vector<ir::Value> values;
    for (std::size_t i = 0; i < carry.size(); ++i) {
        const ir::Type& type = tracer.type(carry[i]);
        const ir::Type got = type_of(tracer, next[i]);
        const bool fits = next[i].is_literal()
                              ? lang::literal_dtype(next[i], type.dtype) == type.dtype
                              : got == type;
        if (!fits) {
            user_error(op,
                       "expected carry {} to stay {} but the body returns {}; start from such a "
                       "value, or convert what the body returns",
                       i, ir::to_string(type), ir::to_string(got));
        }
        values.push_back(tracer.broadcast(tracer.value(next[i], type.dtype, op), type.shape, op));
    }
    return values;
}

ir::Value bool_scalar(Tracer& tracer, const char* op, const Operand& condition) {
    const ir::Type type = type_of(tracer, condition);
    if (!(type == ir::Type{boolean, {}})) {
        user_error(op, "expected a bool scalar condition but got {}", ir::to_string(type));
    }
    return tracer.value(condition);
}

/// A part of what a branch of a cond returns.
struct BranchResult {
    Operand operand;
    ir::Type type;
    ir::Value value;  ///< none: a literal
};

std::vector<BranchResult> trace_branch(Tracer& tracer, ir::Block& block,
                                       const std::function<Operands()>& branch) {
    const AppendTo here(tracer, block);
    std::vector<BranchResult> results;
    for (const Operand& part : branch()) {
        const ir::Value value = part.is_literal() ? ir::Value() : tracer.value(part);
        results.push_back({part, type_of(tracer, part), value});
    }
    return results;
}

/// The common type of a result of both branches: traced values must agree, literals follow.
ir::Type common_type(Tracer& tracer, const BranchResult& a, const BranchResult& b,
                     std::size_t part) {
    if (!a.value && !b.value) {
        const std::array both{a.operand, b.operand};
        return {tracer.common_dtype(both), {}};
    }
    if (!a.value) return {lang::literal_dtype(a.operand, b.type.dtype), b.type.shape};
    if (!b.value) return {lang::literal_dtype(b.operand, a.type.dtype), a.type.shape};
    if (!(a.type == b.type)) {
        user_error("cond",
                   "expected both branches to return the same types but result {} is {} in the "
                   "first and {} in the second",
                   part, ir::to_string(a.type), ir::to_string(b.type));
    }
    return a.type;
}

/// A view of all of a new scratch array.
Ref scratch(Tracer& tracer, DType dtype, const Extents& extents, const char* name) {
    const ir::Value ref =
        tracer.function().add_parameter({dtype, extents, ir::Space::scratch, -1}, name);
    lang::View view{ref, name, true, {}};
    for (std::int64_t extent : extents) {
        view.indices.emplace_back();
        view.indices.back().size = extent;
    }
    return tracer.add_view(std::move(view));
}

}  // namespace

Tiles for_loop(Operand low, Operand high, Operand step, const Operands& init,
               const std::function<Operands(Tile, std::span<const Tile>)>& body,
               std::source_location location) {
    Tracer& tracer = Tracer::current("for_loop", location);
    return tracer.at(location, [&] {
        const ir::Value first = tracer.index(low, "for_loop", "`low`");
        const ir::Value end = tracer.index(high, "for_loop", "`high`");
        const ir::Value stride = tracer.index(step, "for_loop", "`step`");
        if (step.is_literal() && static_cast<std::int64_t>(step.integer()) <= 0) {
            user_error("for_loop", "expected `step` to be positive but got {}",
                       static_cast<std::int64_t>(step.integer()));
        }
        const std::vector<ir::Value> start =
            initial(tracer, "for_loop", init, [&](std::span<const Tile> carry) {
                return body(tracer.wrap(tracer.index_constant(0)), carry);
            });
        const auto results = tracer.builder().for_loop(
            first, end, stride, start, [&](ir::Value iv, std::span<const ir::Value> carry) {
                Tracer::Scope scope(tracer);
                const Operands next = body(tracer.wrap(iv), wrapped(tracer, carry));
                return carried(tracer, "for_loop", start, next);
            });
        return wrapped(tracer, results);
    });
}

Tiles while_loop(const Operands& init,
                 const std::function<Operand(std::span<const Tile>)>& condition,
                 const std::function<Operands(std::span<const Tile>)>& body,
                 std::source_location location) {
    Tracer& tracer = Tracer::current("while_loop", location);
    return tracer.at(location, [&] {
        const std::vector<ir::Value> start = initial(tracer, "while_loop", init, body);
        const auto results = tracer.builder().while_loop(
            start,
            [&](std::span<const ir::Value> carry) {
                Tracer::Scope scope(tracer);
                return bool_scalar(tracer, "while_loop", condition(wrapped(tracer, carry)));
            },
            [&](std::span<const ir::Value> carry) {
                Tracer::Scope scope(tracer);
                return carried(tracer, "while_loop", start, body(wrapped(tracer, carry)));
            });
        return wrapped(tracer, results);
    });
}

Tiles if_else(const char* op, Operand condition, const std::function<Operands()>& then_branch,
              const std::function<Operands()>& else_branch, std::source_location location) {
    Tracer& tracer = Tracer::current(op, location);
    return tracer.at(location, [&] {
        ir::Instruction instruction;
        instruction.op = ir::Op::if_else;
        instruction.operands = {bool_scalar(tracer, op, condition)};
        instruction.location = tracer.location();
        instruction.blocks.resize(2);
        const std::array results{trace_branch(tracer, instruction.blocks[0], then_branch),
                                 trace_branch(tracer, instruction.blocks[1], else_branch)};
        if (results[0].size() != results[1].size()) {
            user_error("cond",
                       "expected both branches to return as many values but got {} from the first "
                       "and {} from the second",
                       results[0].size(), results[1].size());
        }
        // Only now are the types known that the branches have in common.
        ir::Builder& builder = tracer.builder();
        for (std::size_t branch = 0; branch < 2; ++branch) {
            const AppendTo here(tracer, instruction.blocks[branch]);
            std::vector<ir::Value> values;
            for (std::size_t i = 0; i < results[0].size(); ++i) {
                const ir::Type type = common_type(tracer, results[0][i], results[1][i], i);
                const BranchResult& result = results[branch][i];
                const ir::Value value = result.value
                                            ? builder.cast(result.value, type.dtype)
                                            : tracer.literal(result.operand, type.dtype, "cond");
                values.push_back(tracer.broadcast(value, type.shape, "cond"));
            }
            builder.yield(values);
        }
        return wrapped(tracer, builder.append(std::move(instruction)));
    });
}

Ref scan_input(Operand xs, std::source_location location) {
    Tracer& tracer = Tracer::current("scan", location);
    return tracer.at(location, [&] {
        const ir::Shape shape = tracer.shape(xs);
        if (shape.rank() == 0) user_error("scan", "expected a tile of rank >= 1 but got a scalar");
        const Ref rows = scratch(tracer, tracer.dtype(xs),
                                 Extents(shape.dims().begin(), shape.dims().end()), "scan_xs");
        rows.store(xs, {}, location);
        return rows;
    });
}

void scan_store(const Ref& rows, Tile i, const Operands& y, std::vector<Ref>& stacks,
                std::source_location location) {
    Tracer& tracer = Tracer::current("scan", location);
    tracer.at(location, [&] {
        stacks.resize(y.size());
        for (std::size_t part = 0; part < y.size(); ++part) {
            const ir::Type type = type_of(tracer, y[part]);
            if (type.shape.rank() == ir::kMaxTileRank) {
                user_error("scan", "expected results of rank below {} but got {}", ir::kMaxTileRank,
                           ir::to_string(type));
            }
            Extents extents(type.shape.dims().begin(), type.shape.dims().end());
            extents.insert(extents.begin(), rows.shape()[0]);
            // A body that is traced twice may return another dtype the second time.
            Ref& stack = stacks[part];
            const bool fits =
                stack.id() != Ref().id() && stack.dtype() == type.dtype && stack.shape() == extents;
            if (!fits) stack = scratch(tracer, type.dtype, extents, "scan_ys");
            stack.at(i).store(y[part], {}, location);
        }
    });
}

}  // namespace tilewright::detail
