// Chooses a layout for every tile: first the accumulators of dots, then wide loads and stores, then
// the rest; each choice spreads to the values that then need no conversion.
#include <algorithm>
#include <deque>

#include "cuda/codegen/emitter.h"

namespace tilewright::cuda {

using ir::Op;

namespace {

constexpr std::int64_t kMinChainedRows = 32;

}  // namespace

bool Emitter::is_reduced(Value value, int axis) const {
    std::vector<std::pair<Value, int>> open{{value, 0}};
    std::set<Value> seen;
    while (!open.empty()) {
        const auto [next, depth] = open.back();
        open.pop_back();
        if (depth > 32 || !seen.insert(next).second) continue;
        for (const Instruction* user : analysis_.users(next)) {
            if (user->op == Op::reduce &&
                (axis < 0 || user->get<ir::ReduceAttributes>().axis == axis)) {
                return true;
            }
            if (ir::is_elementwise(user->op)) open.emplace_back(user->result(), depth + 1);
        }
    }
    return false;
}

void Emitter::plan_dots() {
    // Dots whose result reaches the left operand of another dot have the same rows per warp.
    std::vector<const Instruction*> dots;
    ir::walk(f_.body, [&](const Instruction& each) {
        if (each.op == Op::dot) dots.push_back(&each);
    });
    std::set<const Instruction*> chained;
    for (const Instruction* dot : dots) {
        const Operand left = operand_of(*dot, 0);
        if (left.transposed) continue;
        std::vector<std::pair<Value, int>> open{{left.value, 0}};
        std::set<Value> seen;
        while (!open.empty()) {
            const auto [value, depth] = open.back();
            open.pop_back();
            const Instruction* made = analysis_.definition(value);
            if (made == nullptr || depth > 32 || !seen.insert(value).second) continue;
            if (made->op == Op::dot) {
                // With few rows a warp, more reads of the right operands outweigh the copy saved.
                const std::int64_t rows = plan_dot(f_, *made, warps_, true).m / warps_;
                if (rows < kMinChainedRows && !is_reduced(made->result())) continue;
                chained.insert(made);
                chained.insert(dot);
            } else if (ir::is_elementwise(made->op)) {
                for (Value operand : made->operands) open.emplace_back(operand, depth + 1);
            }
        }
    }
    // So do those to whose result such a dot adds; later dots are visited first.
    for (auto dot = dots.rbegin(); dot != dots.rend(); ++dot) {
        if (chained.count(*dot) == 0 || (*dot)->operands.size() < 3) continue;
        const Instruction* made = analysis_.definition((*dot)->operands[2]);
        if (made != nullptr && made->op == Op::dot) chained.insert(made);
    }
    for (const Instruction* dot : dots) {
        plans_.emplace(dot, plan_dot(f_, *dot, warps_, chained.count(dot) != 0));
    }
}

void Emitter::assign_layouts() {
    using Step = std::function<std::optional<Layout>(const Layout&)>;
    std::map<Value, std::vector<std::pair<Value, Step>>> edges;
    const auto carries = [&](Value value) {
        // Index math is recomputed at every use, so it ties no layouts together.
        return !f_.is_ref(value) && !type(value).is_scalar() && !analysis_.is_index_math(value);
    };
    const auto connect = [&](Value from, Value to, Step step) {
        if (carries(from) && carries(to)) edges[from].emplace_back(to, std::move(step));
    };
    const auto same = [&](Value a, Value b) {
        if (f_.is_ref(a) || f_.is_ref(b) || !(type(a).shape == type(b).shape)) return;
        const Step keep = [](const Layout& layout) { return layout; };
        connect(a, b, keep);
        connect(b, a, keep);
    };
    ir::walk(f_.body, [&](const Instruction& made) {
        const auto yields = [&](std::size_t block) -> const std::vector<Value>& {
            return made.blocks[block].terminator().operands;
        };
        switch (made.op) {
            case Op::broadcast: {
                const ir::Shape narrow = type(made.operands[0]).shape;
                connect(made.result(), made.operands[0],
                        [narrow](const Layout& layout) { return layout.narrowed(narrow); });
                return;
            }
            case Op::expand_dims: {
                const int axis = made.get<ir::AxisAttributes>().axis;
                connect(made.result(), made.operands[0],
                        [axis](const Layout& layout) { return layout.without(axis); });
                connect(made.operands[0], made.result(),
                        [axis](const Layout& layout) { return layout.with_inserted(axis); });
                return;
            }
            case Op::transpose: {
                const auto permutation = made.get<ir::PermutationAttributes>().permutation;
                std::vector<int> inverse(permutation.size());
                for (std::size_t i = 0; i < permutation.size(); ++i) {
                    inverse[permutation[i]] = static_cast<int>(i);
                }
                connect(made.operands[0], made.result(), [permutation](const Layout& layout) {
                    return layout.transposed(permutation);
                });
                connect(made.result(), made.operands[0],
                        [inverse](const Layout& layout) { return layout.transposed(inverse); });
                return;
            }
            case Op::reshape: {
                const ir::Shape from = type(made.operands[0]).shape, to = type(made.result()).shape;
                connect(made.operands[0], made.result(),
                        [to](const Layout& layout) { return layout.reshaped(to); });
                connect(made.result(), made.operands[0],
                        [from](const Layout& layout) { return layout.reshaped(from); });
                return;
            }
            case Op::reduce: {
                const int axis = made.get<ir::ReduceAttributes>().axis;
                connect(made.operands[0], made.result(),
                        [axis](const Layout& layout) { return layout.without(axis); });
                return;
            }
            case Op::dot:
                if (made.operands.size() > 2) same(made.operands[2], made.result());
                return;
            case Op::for_loop:
                for (std::size_t i = 0; i < made.results.size(); ++i) {
                    const Value argument = made.blocks[0].arguments[i + 1];
                    same(argument, made.operands[i + 3]);
                    same(argument, yields(0)[i]);
                    same(argument, made.results[i]);
                }
                return;
            case Op::while_loop:
                for (std::size_t i = 0; i < made.results.size(); ++i) {
                    const Value argument = made.blocks[1].arguments[i];
                    same(argument, made.blocks[0].arguments[i]);
                    same(argument, made.operands[i]);
                    same(argument, yields(1)[i]);
                    same(argument, made.results[i]);
                }
                return;
            case Op::if_else:
                for (std::size_t i = 0; i < made.results.size(); ++i) {
                    same(made.results[i], yields(0)[i]);
                    same(made.results[i], yields(1)[i]);
                }
                return;
            default:
                break;
        }
        if (ir::is_access(made.op)) {
            const ir::Access access = ir::access(made);
            for (Value value : access.values) {
                if (!made.results.empty()) same(value, made.result());
            }
            if (access.other && !made.results.empty()) same(access.other, made.result());
            return;
        }
        if (!ir::is_elementwise(made.op) && made.op != Op::random_bits) return;
        for (Value operand : made.operands) same(operand, made.result());
    });

    const auto seed = [&](Value value, const Layout& layout) {
        if (type(value).is_scalar() || home_.count(value) != 0) return;
        std::deque<Value> open{value};
        home_.emplace(value, layout);
        while (!open.empty()) {
            const Value next = open.front();
            open.pop_front();
            const auto found = edges.find(next);
            if (found == edges.end()) continue;
            for (const auto& [to, step] : found->second) {
                if (home_.count(to) != 0) continue;
                if (const auto spread = step(home_.at(next))) {
                    home_.emplace(to, *spread);
                    open.push_back(to);
                }
            }
        }
    };

    std::vector<const Instruction*> dots, accesses;
    ir::walk(f_.body, [&](const Instruction& made) {
        if (made.op == Op::dot) dots.push_back(&made);
        if (ir::is_access(made.op) && !(made.op == Op::load && is_staged(made))) {
            accesses.push_back(&made);
        }
    });
    const auto tile_of = [&](const Instruction* access) {
        return access->op == Op::load ? access->result() : ir::access(*access).values[0];
    };
    const auto elements = [&](const Instruction* access) {
        return type(tile_of(access)).shape.size();
    };
    std::stable_sort(dots.begin(), dots.end(), [&](const Instruction* a, const Instruction* b) {
        const DotPlan &x = plans_.at(a), &y = plans_.at(b);
        return x.batch * x.m * x.n * x.k > y.batch * y.m * y.n * y.k;
    });
    for (const Instruction* dot : dots) seed(dot->result(), plans_.at(dot).accumulator);
    ir::walk(f_.body, [&](const Instruction& made) {
        if (made.op == Op::scan) seed(made.result(), scan_layout(made));
    });
    std::stable_sort(
        accesses.begin(), accesses.end(),
        [&](const Instruction* a, const Instruction* b) { return elements(a) > elements(b); });
    for (const Instruction* access : accesses) {
        const Value tile = tile_of(access);
        const ir::Shape& shape = type(tile).shape;
        int axis = shape.rank() - 1;
        std::int64_t vector = contiguous_vector(*access, &axis);
        vector = std::clamp<std::int64_t>(shape.size() / (std::int64_t{32} * warps_), 1, vector);
        int bits = 0;
        while ((2 << bits) <= vector) ++bits;
        std::vector<int> order;
        if (axis >= 0) order.push_back(axis);
        for (int a = shape.rank() - 1; a >= 0; --a) {
            if (a != axis) order.push_back(a);
        }
        // Sums along rows within a warp need no barrier.
        const bool rows = shape.rank() == 2 && axis == 1 && dots.empty() && shape[0] >= warps_ &&
                          is_reduced(tile, 1);
        seed(tile, rows ? blocked_rows(shape, warps_, 1 << bits)
                        : blocked(shape, warps_, 1 << bits, order));
        if (!access->results.empty()) seed(access->result(), home(tile));
    }
    ir::walk(f_.body, [&](const Instruction& made) {
        for (Value result : made.results) {
            if (!type(result).is_scalar()) seed(result, blocked(type(result).shape, warps_, 1));
        }
        for (const ir::Block& body : made.blocks) {
            for (Value argument : body.arguments) {
                if (!type(argument).is_scalar()) {
                    seed(argument, blocked(type(argument).shape, warps_, 1));
                }
            }
        }
    });
}

}  // namespace tilewright::cuda
