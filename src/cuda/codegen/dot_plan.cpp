// Chooses the instruction, the warp grid and the layouts of a dot.
#include "cuda/codegen/dot_plan.h"

#include <algorithm>
#include <set>
#include <vector>

#include "cuda/codegen/mma_fragments.h"

namespace tilewright::cuda {
namespace {

struct Sizes {
    std::int64_t batch, m, n, k;
};

Sizes sizes(const ir::Function& function, const ir::Instruction& dot) {
    const auto& attributes = dot.get<ir::DotAttributes>();
    const ir::Shape& a = function.type(dot.operands[0]).shape;
    const ir::Shape& result = function.type(dot.result()).shape;
    const int rank = result.rank();
    return {rank == 3 ? result[0] : 1, result[rank - 2], result[rank - 1],
            a[attributes.transpose_a ? rank - 2 : rank - 1]};
}

DotPlan::Unit unit_of(const ir::Function& function, const ir::Instruction& dot) {
    const DType dtype = function.type(dot.operands[0]).dtype;
    const auto& attributes = dot.get<ir::DotAttributes>();
    const Sizes size = sizes(function, dot);
    const Cover k = cover(size.k), n = cover(size.n);
    if (n.bits < 3) return DotPlan::Unit::fma;
    const bool narrow = is_float(dtype) && size_of(dtype) <= 2;
    if (narrow && k.bits >= 4) return DotPlan::Unit::mma16;
    const bool bytes = is_integer(dtype) && size_of(dtype) == 1;
    if (bytes && k.bits >= 5) return DotPlan::Unit::mma8;
    if (dtype == DType::f32 && attributes.precision == ir::Precision::tf32 && k.bits >= 3) {
        return DotPlan::Unit::tf32;
    }
    if (dtype == DType::f64 && k.bits >= 2) return DotPlan::Unit::f64;
    return DotPlan::Unit::fma;
}

/// Assigns the bits of an axis to the lanes and registers of a fragment.
class Bits {
  public:
    Bits(const Layout& layout, int axis)
        : layout_(layout), axis_(axis), count_(cover(layout.shape[axis]).bits) {}
    /// The basis of one bit; 0 (copies) where the tile is smaller.
    std::uint64_t at(int bit) const { return bit < count_ ? layout_.basis(axis_, bit) : 0; }
    /// Bits from `first` up, in register order, without the `taken` ones that warps hold.
    void append(std::vector<std::uint64_t>& to, int first, int taken_from, int taken) const {
        for (int bit = first; bit < count_; ++bit) {
            if (bit < taken_from || bit >= taken_from + taken) to.push_back(at(bit));
        }
    }
    int count() const { return count_; }

  private:
    const Layout& layout_;
    int axis_, count_;
};

void keep_nonzero(std::vector<std::uint64_t>& bases) {
    bases.erase(std::remove(bases.begin(), bases.end(), 0), bases.end());
}

/// The number of bits of the warp index along batch, m and n.
struct WarpGrid {
    int batch = 0, m = 0, n = 0;
};

WarpGrid warp_grid(const Sizes& size, int warp_bits, int m_unit, int n_unit, bool chained) {
    WarpGrid grid;
    int left = warp_bits;
    grid.batch = size.batch > 1 ? std::min(left, cover(size.batch).bits) : 0;
    left -= grid.batch;
    const int m_free = std::max(0, cover(size.m).bits - m_unit);
    const int n_free = std::max(0, cover(size.n).bits - n_unit);
    while (left > 0 && (grid.m < m_free || grid.n < n_free)) {
        const std::int64_t rows = cover(size.m).size() >> grid.m;
        const std::int64_t columns = cover(size.n).size() >> grid.n;
        const bool along_m = grid.m < m_free && (chained || grid.n >= n_free || rows >= columns);
        ++(along_m ? grid.m : grid.n);
        --left;
    }
    return grid;
}

void set_warps(Layout& layout, const WarpGrid& grid, int batch_axis, int m_axis, int m_from,
               int n_axis, int n_from) {
    std::size_t warp = 0;
    const auto take = [&](int count, int axis, int from) {
        for (int i = 0; i < count; ++i, ++warp) {
            layout.warp[warp] = axis < 0 ? 0 : layout.basis(axis, from + i);
        }
    };
    take(grid.batch, batch_axis, 0);
    take(grid.m, m_axis, m_from);
    take(grid.n, n_axis, n_from);
}

void plan_tensor_cores(DotPlan& plan, const Sizes& size, bool chained) {
    const bool rank3 = plan.accumulator.shape.rank() == 3;
    const int batch = rank3 ? 0 : -1, row = rank3 ? 1 : 0, column = row + 1;
    const bool f64 = plan.unit == DotPlan::Unit::f64;
    const int m_unit = f64 ? 3 : 4, n_unit = 3;
    const int warp_bits = static_cast<int>(plan.accumulator.warp.size());
    const WarpGrid grid = warp_grid(size, warp_bits, m_unit, n_unit, chained);
    // Warps take the highest bits of n, so that a warp's columns are pairs of 8.
    const int n_from = cover(size.n).bits - grid.n, m_from = m_unit;

    Layout& c = plan.accumulator;
    const Bits m(c, row), n(c, column);
    c.lane = {n.at(1), n.at(2), m.at(0), m.at(1), m.at(2)};
    c.reg = {n.at(0)};
    if (!f64) c.reg.push_back(m.at(3));
    n.append(c.reg, 3, n_from, grid.n);
    m.append(c.reg, m_unit, m_from, grid.m);
    if (rank3) Bits(c, 0).append(c.reg, 0, 0, grid.batch);
    keep_nonzero(c.reg);
    set_warps(c, grid, batch, row, m_from, column, n_from);
    plan.a = left_fragments(c, plan.operand, size.k);
}

/// Each thread computes a few rows times a few neighbouring columns.
void plan_fma(DotPlan& plan) {
    Layout& c = plan.accumulator;
    const int rank = c.shape.rank(), row = rank - 2, column = rank - 1;
    std::vector<std::uint64_t> n, m, batch;
    for (int bit = 0; bit < cover(c.shape[column]).bits; ++bit) n.push_back(c.basis(column, bit));
    for (int bit = 0; bit < cover(c.shape[row]).bits; ++bit) m.push_back(c.basis(row, bit));
    if (rank == 3) {
        for (int bit = 0; bit < cover(c.shape[0]).bits; ++bit) batch.push_back(c.basis(0, bit));
    }
    const auto take = [](std::vector<std::uint64_t>& from) {
        const std::uint64_t basis = from.front();
        from.erase(from.begin());
        return basis;
    };
    // Registers get bits only where threads have enough.
    const std::size_t threads = c.lane.size() + c.warp.size();
    std::size_t spare = n.size() + m.size() + batch.size();
    spare = spare > threads ? spare - threads : 0;
    for (int i = 0; i < 2 && spare > 0 && !n.empty(); ++i, --spare) c.reg.push_back(take(n));
    for (int i = 0; i < 2 && spare > 0 && !m.empty(); ++i, --spare) c.reg.push_back(take(m));
    std::size_t from_n = 0;
    for (auto& basis : c.lane) {
        basis = 0;
        if (!n.empty() && (from_n < 3 || m.empty()))
            basis = take(n), ++from_n;
        else if (!m.empty())
            basis = take(m);
        else if (!batch.empty())
            basis = take(batch);
    }
    for (auto& basis : c.warp) {
        basis = !m.empty() ? take(m) : !n.empty() ? take(n) : !batch.empty() ? take(batch) : 0;
    }
    for (auto* rest : {&n, &m, &batch}) c.reg.insert(c.reg.end(), rest->begin(), rest->end());
}

}  // namespace

DotPlan plan_dot(const ir::Function& function, const ir::Instruction& dot, int warps,
                 bool chained) {
    const Sizes size = sizes(function, dot);
    DotPlan plan;
    plan.unit = unit_of(function, dot);
    plan.batch = size.batch;
    plan.m = size.m;
    plan.n = size.n;
    plan.k = size.k;
    const DType dtype = function.type(dot.operands[0]).dtype;
    // Every f8 value is also an f16 value.
    plan.operand = plan.unit == DotPlan::Unit::mma16 && size_of(dtype) == 1 ? DType::f16 : dtype;
    const ir::Shape& shape = function.type(dot.result()).shape;
    plan.accumulator = Layout(shape, warps);
    if (plan.unit == DotPlan::Unit::fma) {
        plan_fma(plan);
    } else {
        plan_tensor_cores(plan, size, chained);
    }
    return plan;
}

DotPlans plan_dots(const KernelFacts& facts) {
    constexpr std::int64_t kMinChainedRows = 32;
    DotPlans plans;
    // Dots whose result reaches the left operand of another dot have the same rows per warp.
    std::vector<const ir::Instruction*> dots;
    ir::walk(facts.function().body, [&](const ir::Instruction& each) {
        if (each.op == ir::Op::dot) dots.push_back(&each);
    });
    std::set<const ir::Instruction*> chained;
    for (const ir::Instruction* dot : dots) {
        const DotOperand left = facts.operand_of(*dot, 0);
        if (left.transposed) continue;
        std::vector<std::pair<ir::Value, int>> open{{left.value, 0}};
        std::set<ir::Value> seen;
        while (!open.empty()) {
            const auto [value, depth] = open.back();
            open.pop_back();
            const ir::Instruction* made = facts.definition(value);
            if (made == nullptr || depth > 32 || !seen.insert(value).second) continue;
            if (made->op == ir::Op::dot) {
                // With few rows a warp, more reads of the right operands outweigh the copy saved.
                const std::int64_t rows =
                    plan_dot(facts.function(), *made, facts.warps(), true).m / facts.warps();
                if (rows < kMinChainedRows && !facts.is_reduced(made->result())) continue;
                chained.insert(made);
                chained.insert(dot);
            } else if (ir::is_elementwise(made->op)) {
                for (ir::Value operand : made->operands) open.emplace_back(operand, depth + 1);
            }
        }
    }
    // So do those to whose result such a dot adds; later dots are visited first.
    for (auto dot = dots.rbegin(); dot != dots.rend(); ++dot) {
        if (chained.count(*dot) == 0 || (*dot)->operands.size() < 3) continue;
        const ir::Instruction* made = facts.definition((*dot)->operands[2]);
        if (made != nullptr && made->op == ir::Op::dot) chained.insert(made);
    }
    for (const ir::Instruction* dot : dots) {
        plans.emplace(dot,
                      plan_dot(facts.function(), *dot, facts.warps(), chained.count(dot) != 0));
    }
    return plans;
}

}  // namespace tilewright::cuda
