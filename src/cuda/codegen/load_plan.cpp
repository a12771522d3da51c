// How threads keep what they load: packed, loaded again at each use, or an iteration ahead.
#include "cuda/codegen/load_plan.h"

#include <algorithm>
#include <numeric>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

class Loads {
  public:
    Loads(const KernelFacts& facts, const Layouts& layouts, const StagedLoads& staged)
        : facts_(facts), layouts_(layouts), staged_(staged) {}

    LoadPlan run(bool has_dots) {
        plan_.is_wide = !has_dots && elements_in_loops(facts_.function().body, false) >= kMany;
        for (const Instruction& each : facts_.function().body.body) {
            if (!plan_.is_wide || !facts_.is_tile_load(each)) continue;
            const ir::Access access = ir::access(each);
            if (!access.mask && !facts_.is_written(access.ref)) {
                plan_.repeated.insert(each.result());
            }
        }
        ir::walk(facts_.function().body, [&](const Instruction& made) {
            if (made.op == Op::load && is_packed(made)) plan_.packed.insert(made.result());
        });
        visit(facts_.function().body, 0);
        return std::move(plan_);
    }

  private:
    static constexpr int kMany = 64;      // elements of a thread
    static constexpr int kMaxWords = 88;  // registers of carries, packed tiles and pending loads
    static constexpr int kMaxSharedWords = 140;
    static constexpr int kMaxElements = 4;  // of a load that has no 16-byte pieces

    int registers(Value value) const { return home_of(facts_, layouts_, value).registers(); }

    int elements_in_loops(const ir::Block& block, bool in_loop) const {
        int elements = 0;
        for (const Instruction& each : block.body) {
            for (const ir::Block& inner : each.blocks) {
                elements += elements_in_loops(inner, in_loop || each.op == Op::for_loop);
            }
            if (in_loop && facts_.is_tile_load(each)) elements += registers(each.result());
        }
        return elements;
    }

    /// Do all elements along an axis have one value?
    bool is_uniform(Value value, int axis) const {
        const Instruction* const made = facts_.definition(value);
        if (facts_.type(value).is_scalar()) return true;
        if (made == nullptr) return false;
        if (made->op == Op::constant) return true;
        if (made->op == Op::iota) return made->get<ir::AxisAttributes>().axis != axis;
        if (made->op == Op::broadcast) {
            const ir::Shape& from = facts_.type(made->operands[0]).shape;
            return from.rank() == 0 || from[axis] == 1 || is_uniform(made->operands[0], axis);
        }
        return ir::is_elementwise(made->op) &&
               std::all_of(made->operands.begin(), made->operands.end(),
                           [&](Value operand) { return is_uniform(operand, axis); });
    }

    /// Is the load made of whole words of 16 bytes, of zeros where it is outside of its array?
    bool is_packed(const Instruction& load) const {
        const ir::Access access = ir::access(load);
        const ir::RefType& array = facts_.function().ref_type(access.ref);
        if (staged_.contains(load) || array.space != ir::Space::global ||
            (access.other && !facts_.is_constant(access.other, 0))) {
            return false;
        }
        int axis = -1;
        int vector = facts_.contiguous_vector(load, &axis);
        if (vector == 1) return false;
        const Layout layout = home_of(facts_, layouts_, load.result());
        vector = std::min(vector, vector_length(layout, axis));
        if (access.mask && !is_uniform(access.mask, axis)) return false;
        const ir::Index& last = load.get<ir::AccessAttributes>().indices.back();
        const std::int64_t extent = array.extents.back();
        const bool whole = last.size % vector == 0;
        if (!facts_.stays_inside(load, static_cast<std::size_t>(array.rank() - 1))) {
            if (!whole || extent == ir::kDynamic || extent % vector != 0) return false;
        } else if (!whole) {
            vector = static_cast<int>(std::gcd(last.size, std::int64_t{vector}));
        }
        return vector * size_of(array.dtype) == 16;
    }

    /// `packed`: registers of packed tiles that are alive where the block begins.
    void visit(const ir::Block& block, int packed) {
        for (const Instruction& each : block.body) {
            if (each.op == Op::for_loop) {
                auto ahead = loads_ahead(each, packed);
                if (!ahead.empty()) plan_.ahead[&each] = std::move(ahead);
            }
            for (const ir::Block& inner : each.blocks) visit(inner, packed);
            if (each.op == Op::load && plan_.packed.count(each.result()) != 0) {
                packed += words(each);
            }
        }
    }
    /// More where thread blocks share programs, which have longer pieces and begin with one.
    int most_words() const { return facts_.warps() > 16 ? kMaxSharedWords : kMaxWords; }
    int words(const Instruction& load) const {
        return registers(load.result()) * size_of(facts_.type(load.result()).dtype) / 4;
    }

    std::vector<const Instruction*> loads_ahead(const Instruction& loop, int packed) const {
        std::vector<const Instruction*> loads;
        if (facts_.stages() == 1 || plan_.is_wide || staged_.loops.count(&loop) != 0) return loads;
        bool plain = true;
        ir::walk(loop.blocks[0], [&](const Instruction& each) {
            plain = plain && each.op != Op::dot && each.blocks.empty();
        });
        if (!plain) return loads;
        int total = packed;
        for (Value argument : loop.blocks[0].arguments) {
            if (!facts_.type(argument).is_scalar()) total += registers(argument);
        }
        for (const Instruction& each : loop.blocks[0].body) {
            if (facts_.is_tile_load(each)) total += words(each);
        }
        const std::set<Value> inside = Analysis::values_inside(loop);
        const std::set<Value> written = written_in(facts_, loop);
        for (const Instruction& each : loop.blocks[0].body) {
            if (each.op != Op::load || staged_.contains(each) ||
                !may_run_ahead(each, loop, inside, written)) {
                continue;
            }
            total += (registers(each.result()) * size_of(facts_.type(each.result()).dtype) + 3) / 4;
            if (total > most_words()) break;
            loads.push_back(&each);
        }
        return loads;
    }

    bool may_run_ahead(const Instruction& load, const Instruction& loop,
                       const std::set<Value>& inside, const std::set<Value>& written) const {
        const ir::Access access = ir::access(load);
        const auto& attributes = load.get<ir::AccessAttributes>();
        const ir::RefType& array = facts_.function().ref_type(access.ref);
        const bool whole = std::none_of(
            attributes.indices.begin(), attributes.indices.end(),
            [](const ir::Index& index) { return index.kind == ir::Index::Kind::tile; });
        if (access.mask || !whole || written.count(facts_.root(access.ref)) != 0 ||
            array.space != ir::Space::global ||
            (access.other && !facts_.is_constant(access.other, 0))) {
            return false;
        }
        const auto depends = [&](Value operand) { return inside.count(operand) != 0; };
        if (std::none_of(access.indices.begin(), access.indices.end(), depends) ||
            !std::all_of(access.indices.begin(), access.indices.end(), [&](Value operand) {
                return is_computable(facts_, operand, inside, loop.blocks[0].arguments[0]);
            })) {
            return false;
        }
        const Layout layout = home_of(facts_, layouts_, load.result());
        if (layout.has_phantoms()) return false;
        const int vector = facts_.access_vector(load, layout);
        const DType dtype = facts_.type(load.result()).dtype;
        if (vector * size_of(dtype) != 16 && layout.registers() > kMaxElements) return false;
        if (vector == 1) return true;
        // Vectors that may cross the array's edge are loaded at their use.
        const std::int64_t extent = array.extents.back();
        return attributes.indices.back().size % vector == 0 &&
               (attributes.in_bounds || (extent != ir::kDynamic && extent % vector == 0));
    }

    const KernelFacts& facts_;
    const Layouts& layouts_;
    const StagedLoads& staged_;
    LoadPlan plan_;
};

}  // namespace

LoadPlan plan_loads(const KernelFacts& facts, const Layouts& layouts, const DotPlans& dots,
                    const StagedLoads& staged) {
    return Loads(facts, layouts, staged).run(!dots.empty());
}

}  // namespace tilewright::cuda
