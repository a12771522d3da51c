// Finds gathers whose elements are only stored, or multiplied and summed, and lets them do that.
#include "cpu/direct_gathers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cpu/def_use.h"
#include "cpu/operands.h"

namespace tilewright::cpu {
namespace {

using Location = std::pair<Home, std::uint32_t>;

class DirectGathers {
  public:
    DirectGathers(Region& whole, Program& program) : program_(program), uses_(whole) {}

    void run(Region& region) {
        for (Node& node : region) {
            for (Region& inner : node.regions) run(inner);
        }
        std::map<std::uint32_t, Access> stored;  // by view
        for (const Node& node : region) {
            if (node.kind != Node::Kind::instruction) continue;
            if (const auto* view = std::get_if<StoreView>(&node.instruction))
                stored.emplace(view->view, view->access);
        }
        for (std::size_t i = region.size(); i-- > 0;) {
            if (region[i].kind != Node::Kind::instruction) continue;
            const auto* load = std::get_if<Load>(&region[i].instruction);
            if (!load || !load->access.gathers || load->out.home != Home::buffer ||
                load->access.dtype == DType::boolean || uses_.uses(load->out.index) != 1 ||
                uses_.writes(load->out.index) != 1)
                continue;
            const std::size_t at = reader(region, i);
            if (at == region.size()) continue;
            const auto& chain = std::get<Chain>(region[at].instruction);
            if (chain.ops.size() != 1 || chain.ops[0].stored_ref < 0) continue;
            const auto access = stored.find(chain.ops[0].out.index);
            if (access == stored.end() || !copies(*load, chain, access->second)) continue;
            Load direct = *load;
            direct.out = view_of(chain, *load);
            region[at].instruction = std::move(direct);
            region.erase(region.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }

    void sum(Region& region) {
        for (Node& node : region) {
            for (Region& inner : node.regions) sum(inner);
        }
        for (std::size_t i = region.size(); i-- > 0;) {
            if (region[i].kind != Node::Kind::instruction) continue;
            const auto* load = std::get_if<Load>(&region[i].instruction);
            if (!load || !is_row(*load) || load->out.home != Home::buffer ||
                uses_.uses(load->out.index) != 1 || uses_.writes(load->out.index) != 1)
                continue;
            const std::size_t at = reader(region, i);
            if (at == region.size()) continue;
            const auto factor = factor_of(*load, std::get<Chain>(region[at].instruction));
            if (!factor) continue;
            Load sums = *load;
            sums.factor = *factor;
            sums.sum = std::get<Chain>(region[at].instruction).ops[1].out;
            sums.out = {};
            region[at].instruction = std::move(sums);
            region.erase(region.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }

  private:
    /// True for rows of elements of an array with one dimension; 0 is outside.
    static bool is_row(const Load& load) {
        const Access& access = load.access;
        return access.gathers && access.dtype == DType::f32 && access.indices.size() == 1 &&
               access.shape.rank() == 2 && access.indices[0].tile.shape == access.shape &&
               load.other.home == Home::none;
    }

    /// What the chain multiplies the gathered elements by, if all it does is to sum the products
    /// along the last axis.
    static std::optional<StripSource> factor_of(const Load& load, const Chain& chain) {
        if (chain.ops.size() != 2) return std::nullopt;
        const StripOp &product = chain.ops[0], &sum = chain.ops[1];
        if (product.kind != StripOp::Kind::map || product.op != ir::Op::mul ||
            product.super != Super::none || product.out.dtype != DType::f32 ||
            product.out.home != Home::strip || sum.kind != StripOp::Kind::reduce_lanes ||
            sum.reduction != ir::Reduction::sum || sum.super != Super::none ||
            !(sum.in[0] == product.out) || sum.out.home != Home::buffer)
            return std::nullopt;
        const Space space{load.access.shape, 1, chain.width};
        const auto source = as_source(load.out, space);
        if (!source || chain.rows != space.rows() || chain.lanes != space.lanes())
            return std::nullopt;
        const std::size_t own = product.in[0] == *source ? 0 : 1;
        const StripSource& factor = product.in[1 - own];
        const bool in_rows = factor.lane_stride == 1 &&
                             (chain.lanes <= chain.width || factor.panel_stride == chain.width) &&
                             (factor.home == Home::view || factor.home == Home::buffer);
        if (!(product.in[own] == *source) || !in_rows) return std::nullopt;
        return factor;
    }

    /// The chain that reads the gathered elements, before which nothing changes what the gather
    /// reads; else the region's end.
    static std::size_t reader(const Region& region, std::size_t at) {
        const auto& load = std::get<Load>(region[at].instruction);
        std::set<Location> needs;
        visit_operands(region[at].instruction, [&](Home home, std::uint32_t index, Use use) {
            if (use == Use::read) needs.insert({home, index});
        });
        for (std::size_t i = at + 1; i < region.size(); ++i) {
            if (region[i].kind != Node::Kind::instruction) break;
            const Instruction& next = region[i].instruction;
            if (const auto* chain = std::get_if<Chain>(&next)) {
                bool reads = false;
                for (int k = 0; k < chain->ops[0].num_inputs; ++k) {
                    const StripSource& in = chain->ops[0].in[k];
                    reads |= in.home == Home::buffer && in.index == load.out.index;
                }
                return reads ? i : region.size();
            }
            const bool moves_no_data =
                std::holds_alternative<LoadView>(next) || std::holds_alternative<SubView>(next) ||
                std::holds_alternative<StoreView>(next) || std::holds_alternative<ScalarOp>(next) ||
                std::holds_alternative<ScalarMove>(next) ||
                std::holds_alternative<ScalarQuery>(next);
            if (!moves_no_data) break;
            bool changes = false;
            visit_operands(next, [&](Home home, std::uint32_t index, Use use) {
                changes |= use != Use::read && needs.contains({home, index});
            });
            if (changes) break;
        }
        return region.size();
    }

    /// True when the chain stores the gathered elements where they are in the access's shape, to
    /// another array.
    bool copies(const Load& load, const Chain& chain, const Access& to) const {
        const StripOp& store = chain.ops[0];
        if (store.num_inputs != 1) return false;
        const RefSlot& from = program_.refs[load.access.ref];
        const RefSlot& written = program_.refs[static_cast<std::size_t>(store.stored_ref)];
        const bool aliases =
            &from == &written ||
            (from.type.alias_group >= 0 && from.type.alias_group == written.type.alias_group);
        if (aliases || to.dtype != load.access.dtype || to.shape != load.access.shape) return false;
        const Space space{to.shape, to.shape.rank() - 1, chain.width};
        const auto source = as_source(load.out, space);
        return source && *source == store.in[0] && chain.rows == space.rows() &&
               chain.lanes == space.lanes();
    }

    static Tile view_of(const Chain& chain, const Load& load) {
        Tile tile;
        tile.home = Home::view;
        tile.index = chain.ops[0].out.index;
        tile.dtype = load.access.dtype;
        tile.shape = load.access.shape;
        tile.unit_axis = tile.shape.rank() - 1;
        for (int axis = 0; axis < tile.shape.rank(); ++axis) tile.view_axis[axis] = axis;
        return tile;
    }

    const Program& program_;
    const DefUse uses_;
};

}  // namespace

void gather_into_arrays(Region& region, Program& program) {
    DirectGathers(region, program).run(region);
}

void sum_gathers(Region& region, Program& program) {
    DirectGathers(region, program).sum(region);
}

}  // namespace tilewright::cpu
