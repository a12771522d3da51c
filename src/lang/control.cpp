// Structured control flow of the kernel language.
#include "tilewright/lang/control.h"

#include <algorithm>

#include "lang/tracer.h"

namespace tilewright::detail {

using lang::Tracer;

namespace {

std::vector<ir::Value> values_of(Tracer& tracer, std::span<const Tile> tiles) {
    std::vector<ir::Value> values;
    for (const Tile& tile : tiles) values.push_back(tracer.use(tile));
    return values;
}

Tiles wrapped(Tracer& tracer, std::span<const ir::Value> values) {
    Tiles tiles;
    for (ir::Value value : values) tiles.push_back(tracer.wrap(value));
    return tiles;
}

/// UserError when the values that a body gives back do not have the types of the carry.
void check_carry(Tracer& tracer, const char* op, std::span<const ir::Value> init,
                 std::span<const ir::Value> next) {
    if (init.size() != next.size()) {
        user_error(op, "expected the body to return {} carried values but got {}", init.size(),
                   next.size());
    }
    for (std::size_t i = 0; i < init.size(); ++i) {
        if (!(tracer.type(init[i]) == tracer.type(next[i]))) {
            user_error(op, "expected carry {} to stay {} but the body returns {}", i,
                       ir::to_string(tracer.type(init[i])), ir::to_string(tracer.type(next[i])));
        }
    }
}

ir::Value bool_scalar(Tracer& tracer, const char* op, const Operand& condition) {
    const ir::Value value = tracer.value(condition);
    if (!(tracer.type(value) == ir::Type{boolean, {}})) {
        user_error(op, "expected a bool scalar condition but got {}",
                   ir::to_string(tracer.type(value)));
    }
    return value;
}

}  // namespace

void append_literal(Tiles& tiles, Operand value) {
    Tracer& tracer = Tracer::current("carry");
    tiles.push_back(tracer.at(value.location(), [&] { return tracer.wrap(tracer.value(value)); }));
}

Tiles for_loop(Operand low, Operand high, Operand step, Tiles init, const std::vector<bool>& weak,
               const std::function<Tiles(Tile, std::span<const Tile>)>& body,
               std::source_location location) {
    Tracer& tracer = Tracer::current("for_loop");
    return tracer.at(location, [&] {
        if (step.is_literal() && static_cast<std::int64_t>(step.integer()) <= 0) {
            user_error("for_loop", "expected a positive step but got {}",
                       static_cast<std::int64_t>(step.integer()));
        }
        std::vector<ir::Value> start = values_of(tracer, init);
        const auto trace_body = [&](bool check, ir::Value iv, std::span<const ir::Value> carries) {
            Tracer::Scope scope(tracer);
            auto next = values_of(tracer, body(tracer.wrap(iv), wrapped(tracer, carries)));
            if (check) check_carry(tracer, "for_loop", start, next);
            return next;
        };
        // A literal's dtype follows the body: trace it once aside to learn what it gives back.
        if (std::find(weak.begin(), weak.end(), true) != weak.end()) {
            ir::Block aside;
            tracer.builder().push_block(aside);
            std::vector<ir::Value> next;
            try {
                next = trace_body(false, tracer.index_constant(0), start);
            } catch (...) {
                tracer.builder().pop_block();
                throw;
            }
            tracer.builder().pop_block();
            for (std::size_t i = 0; i < weak.size() && i < next.size(); ++i) {
                if (weak[i]) start[i] = tracer.builder().cast(start[i], tracer.type(next[i]).dtype);
            }
        }
        const auto results =
            tracer.builder().for_loop(tracer.index(low, "for_loop"), tracer.index(high, "for_loop"),
                                      tracer.index(step, "for_loop"), start,
                                      [&](ir::Value iv, std::span<const ir::Value> carries) {
                                          return trace_body(true, iv, carries);
                                      });
        return wrapped(tracer, results);
    });
}

Tiles while_loop(Tiles init, const std::function<Tile(std::span<const Tile>)>& condition,
                 const std::function<Tiles(std::span<const Tile>)>& body,
                 std::source_location location) {
    Tracer& tracer = Tracer::current("while_loop");
    return tracer.at(location, [&] {
        const std::vector<ir::Value> start = values_of(tracer, init);
        const auto results = tracer.builder().while_loop(
            start,
            [&](std::span<const ir::Value> carries) {
                Tracer::Scope scope(tracer);
                return bool_scalar(tracer, "while_loop",
                                   Operand(condition(wrapped(tracer, carries)), location));
            },
            [&](std::span<const ir::Value> carries) {
                Tracer::Scope scope(tracer);
                auto next = values_of(tracer, body(wrapped(tracer, carries)));
                check_carry(tracer, "while_loop", start, next);
                return next;
            });
        return wrapped(tracer, results);
    });
}

Tiles if_else(Operand condition, const std::function<Tiles()>& then_branch,
              const std::function<Tiles()>& else_branch, std::source_location location) {
    Tracer& tracer = Tracer::current("cond");
    return tracer.at(location, [&] {
        const auto traced = [&](const std::function<Tiles()>& branch) {
            return [&] {
                Tracer::Scope scope(tracer);
                return values_of(tracer, branch());
            };
        };
        return wrapped(tracer, tracer.builder().if_else(bool_scalar(tracer, "cond", condition),
                                                        traced(then_branch), traced(else_branch)));
    });
}

namespace {

/// Scratch memory of the program, whole.
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

Ref scan_input(Operand xs, std::source_location location) {
    Tracer& tracer = Tracer::current("scan");
    return tracer.at(location, [&] {
        const ir::Shape shape = tracer.shape(xs);
        if (shape.rank() == 0) user_error("scan", "expected a tile of rank >= 1 but got a scalar");
        const Ref rows = scratch(tracer, tracer.dtype(xs),
                                 Extents(shape.dims().begin(), shape.dims().end()), "scan_xs");
        rows.store(xs, {}, location);
        return rows;
    });
}

void scan_store(const Ref& rows, Tile i, const Tiles& y, std::vector<Ref>& stacks,
                std::source_location location) {
    Tracer& tracer = Tracer::current("scan");
    tracer.at(location, [&] {
        stacks.resize(y.size());
        for (std::size_t part = 0; part < y.size(); ++part) {
            const ir::Type type = tracer.type(tracer.use(y[part]));
            if (type.shape.rank() == ir::kMaxTileRank) {
                user_error("scan", "expected results of rank below {} but got {}", ir::kMaxTileRank,
                           ir::to_string(type));
            }
            Extents extents(type.shape.dims().begin(), type.shape.dims().end());
            extents.insert(extents.begin(), rows.shape()[0]);
            // A body that is traced twice may give another dtype the second time.
            Ref& stack = stacks[part];
            const bool fits =
                stack.id() != Ref().id() && stack.dtype() == type.dtype && stack.shape() == extents;
            if (!fits) stack = scratch(tracer, type.dtype, extents, "scan_ys");
            stack.at(i).store(y[part], {}, location);
        }
    });
}

}  // namespace tilewright::detail
