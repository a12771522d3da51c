// Chooses a layout for every tile: first the accumulators of dots, then wide loads and stores, then
// the rest; each choice spreads to the values that then need no conversion.
#include "cuda/codegen/assign_layouts.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

int scan_axis(const Instruction& scan) {
    return scan.op == Op::scan ? scan.get<ir::ReduceAttributes>().axis
                               : scan.get<ir::CombineAttributes>().axis;
}

bool is_reverse(const Instruction& scan) {
    return scan.op == Op::scan ? scan.get<ir::ReduceAttributes>().reverse
                               : scan.get<ir::CombineAttributes>().reverse;
}

/// How many bits of an axis a thread has that scans neighbours: in rows a vector, so that threads
/// load and store what lies side by side; what a thread has besides follows after all threads.
/// Along other axes all that it has, and where a function would begin with places past the end.
int neighbour_bits(const KernelFacts& facts, const Instruction& scan, int axis) {
    constexpr int kVectorBytes = 16, kFewest = 2;
    const ir::Shape& shape = facts.type(scan.result()).shape;
    const bool begins_outside =
        scan.op != Op::scan && is_reverse(scan) && cover(shape[axis]).size() != shape[axis];
    if (axis + 1 != shape.rank() || begins_outside) return cover(shape[axis]).bits;
    int bytes = 1, bits = kFewest;
    for (const Value result : scan.results)
        bytes = std::max(bytes, size_of(facts.type(result).dtype));
    while ((bytes << bits) < kVectorBytes) ++bits;
    return bits;
}

}  // namespace

Layout scan_layout(const KernelFacts& facts, const Instruction& made) {
    const ir::Shape& shape = facts.type(made.result()).shape;
    const int axis = scan_axis(made);
    Layout layout(shape, facts.warps());
    const int bits = cover(shape[axis]).bits;
    const int lanes = std::min(5, std::max(0, bits - 2));
    const int warps = std::min(static_cast<int>(layout.warp.size()), std::max(0, bits - lanes - 2));
    const int chunk = std::min(bits - lanes - warps, neighbour_bits(facts, made, axis));
    for (int bit = 0; bit < chunk; ++bit) layout.reg.push_back(layout.basis(axis, bit));
    for (int bit = 0; bit < lanes; ++bit) {
        layout.lane[bit] = layout.basis(axis, chunk + bit);
    }
    // What a thread has besides lies within its warp, so that only one total leaves it.
    const int before = bits - warps;
    for (int bit = 0; bit < warps; ++bit) layout.warp[bit] = layout.basis(axis, before + bit);
    for (int bit = chunk + lanes; bit < bits; ++bit) {
        if (bit < before || bit >= before + warps) layout.reg.push_back(layout.basis(axis, bit));
    }
    std::vector<std::uint64_t> rest;
    for (int a = shape.rank() - 1; a >= 0; --a) {
        for (int bit = 0; a != axis && bit < cover(shape[a]).bits; ++bit) {
            rest.push_back(layout.basis(a, bit));
        }
    }
    std::size_t next = 0;
    for (std::size_t bit = static_cast<std::size_t>(lanes); bit < layout.lane.size(); ++bit) {
        if (next < rest.size()) layout.lane[bit] = rest[next++];
    }
    for (std::size_t bit = static_cast<std::size_t>(warps); bit < layout.warp.size(); ++bit) {
        if (next < rest.size()) layout.warp[bit] = rest[next++];
    }
    layout.reg.insert(layout.reg.end(), rest.begin() + next, rest.end());
    return layout;
}

std::vector<std::vector<Value>> totals_of(const KernelFacts& facts, const Instruction& scan) {
    const bool folds = scan.op == Op::scan;
    const int axis = scan_axis(scan);
    const bool reverse = is_reverse(scan);
    std::vector<std::vector<Value>> found(scan.results.size());
    const ir::Shape& shape = facts.type(scan.result()).shape;
    // A function is applied to what lies past the end of a line, too.
    if (folds ? scan.get<ir::ReduceAttributes>().exclusive
              : !reverse && cover(shape[axis]).size() != shape[axis])
        return found;
    ir::walk(facts.function().body, [&](const Instruction& made) {
        if (made.op != Op::slice) return;
        const auto at = std::find(scan.results.begin(), scan.results.end(), made.operands[0]);
        if (at == scan.results.end()) return;
        const auto& slice = made.get<ir::SliceAttributes>();
        for (int a = 0; a < shape.rank(); ++a) {
            const auto d = static_cast<std::size_t>(a);
            const std::int64_t start = a == axis && !reverse ? shape[a] - 1 : 0;
            if (slice.starts[d] != start || slice.sizes[d] != (a == axis ? 1 : shape[a])) return;
        }
        found[static_cast<std::size_t>(at - scan.results.begin())].push_back(made.result());
    });
    return found;
}

Layout home_of(const KernelFacts& facts, const Layouts& layouts, Value value) {
    const auto found = layouts.find(value);
    return found != layouts.end() ? found->second
                                  : blocked(facts.type(value).shape, facts.warps(), 1);
}

Layouts assign_layouts(const KernelFacts& facts, const DotPlans& dot_plans,
                       const StagedLoads& staged) {
    const ir::Function& function = facts.function();
    const int num_warps = facts.warps();
    Layouts layouts;
    using Step = std::function<std::optional<Layout>(const Layout&)>;
    std::map<Value, std::vector<std::pair<Value, Step>>> edges;
    const auto carries = [&](Value value) {
        // Index math is recomputed at every use, so it ties no layouts together.
        return !function.is_ref(value) && !facts.type(value).is_scalar() &&
               !facts.is_index_math(value);
    };
    const auto connect = [&](Value from, Value to, Step step) {
        if (carries(from) && carries(to)) edges[from].emplace_back(to, std::move(step));
    };
    const auto same = [&](Value a, Value b) {
        if (function.is_ref(a) || function.is_ref(b) ||
            !(facts.type(a).shape == facts.type(b).shape))
            return;
        const Step keep = [](const Layout& layout) { return layout; };
        connect(a, b, keep);
        connect(b, a, keep);
    };
    ir::walk(function.body, [&](const Instruction& made) {
        const auto yields = [&](std::size_t block) -> const std::vector<Value>& {
            return made.blocks[block].terminator().operands;
        };
        switch (made.op) {
            case Op::broadcast: {
                const ir::Shape narrow = facts.type(made.operands[0]).shape;
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
                const ir::Shape from = facts.type(made.operands[0]).shape,
                                to = facts.type(made.result()).shape;
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
        if (facts.type(value).is_scalar() || layouts.count(value) != 0) return;
        std::deque<Value> open{value};
        layouts.emplace(value, layout);
        while (!open.empty()) {
            const Value next = open.front();
            open.pop_front();
            const auto found = edges.find(next);
            if (found == edges.end()) continue;
            for (const auto& [to, step] : found->second) {
                if (layouts.count(to) != 0) continue;
                if (const auto spread = step(layouts.at(next))) {
                    layouts.emplace(to, *spread);
                    open.push_back(to);
                }
            }
        }
    };

    std::vector<const Instruction*> dots, accesses;
    ir::walk(function.body, [&](const Instruction& made) {
        if (made.op == Op::dot) dots.push_back(&made);
        if (ir::is_access(made.op) && !(made.op == Op::load && staged.contains(made))) {
            accesses.push_back(&made);
        }
    });
    const auto tile_of = [&](const Instruction* access) {
        return access->op == Op::load ? access->result() : ir::access(*access).values[0];
    };
    const auto elements = [&](const Instruction* access) {
        return facts.type(tile_of(access)).shape.size();
    };
    std::stable_sort(dots.begin(), dots.end(), [&](const Instruction* a, const Instruction* b) {
        const DotPlan &x = dot_plans.at(a), &y = dot_plans.at(b);
        return x.batch * x.m * x.n * x.k > y.batch * y.m * y.n * y.k;
    });
    for (const Instruction* dot : dots) seed(dot->result(), dot_plans.at(dot).accumulator);
    ir::walk(function.body, [&](const Instruction& made) {
        if (made.op != Op::scan && made.op != Op::associative_scan) return;
        const Layout layout = scan_layout(facts, made);
        for (const Value result : made.results) seed(result, layout);
        for (const auto& slices : totals_of(facts, made)) {
            for (const Value slice : slices) seed(slice, layout.narrowed(facts.type(slice).shape));
        }
        // Rows are read as they are scanned: a thread's neighbours are vectors, and no element has
        // to move.
        if (scan_axis(made) + 1 != layout.shape.rank()) return;
        for (std::size_t i = 0; i < made.results.size(); ++i) seed(made.operands[i], layout);
    });
    std::stable_sort(
        accesses.begin(), accesses.end(),
        [&](const Instruction* a, const Instruction* b) { return elements(a) > elements(b); });
    for (const Instruction* access : accesses) {
        const Value tile = tile_of(access);
        const ir::Shape& shape = facts.type(tile).shape;
        int axis = shape.rank() - 1;
        std::int64_t vector = facts.contiguous_vector(*access, &axis);
        vector = std::clamp<std::int64_t>(shape.size() / (std::int64_t{32} * num_warps), 1, vector);
        int bits = 0;
        while ((2 << bits) <= vector) ++bits;
        std::vector<int> order;
        if (axis >= 0) order.push_back(axis);
        for (int a = shape.rank() - 1; a >= 0; --a) {
            if (a != axis) order.push_back(a);
        }
        // Sums along rows within a warp need no barrier.
        const bool rows = shape.rank() == 2 && axis == 1 && dots.empty() && shape[0] >= num_warps &&
                          facts.is_reduced(tile, 1);
        seed(tile, rows ? blocked_rows(shape, num_warps, 1 << bits)
                        : blocked(shape, num_warps, 1 << bits, order));
        if (!access->results.empty()) seed(access->result(), home_of(facts, layouts, tile));
    }
    ir::walk(function.body, [&](const Instruction& made) {
        for (Value result : made.results) {
            if (!facts.type(result).is_scalar())
                seed(result, blocked(facts.type(result).shape, num_warps, 1));
        }
        for (const ir::Block& body : made.blocks) {
            for (Value argument : body.arguments) {
                if (!facts.type(argument).is_scalar()) {
                    seed(argument, blocked(facts.type(argument).shape, num_warps, 1));
                }
            }
        }
    });
    return layouts;
}

}  // namespace tilewright::cuda
