// Finds gathers whose elements are only stored, and lets them write to the array.
#include "cpu/direct_gathers.h"

#include <algorithm>
#include <map>
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
            const auto access = stored.find(chain.ops[0].out.index);
            if (access == stored.end() || !copies(*load, chain, access->second)) continue;
            Load direct = *load;
            direct.out = view_of(chain, *load);
            region[at].instruction = std::move(direct);
            region.erase(region.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }

  private:
    /// The chain that stores the gathered elements, before which nothing changes what the gather
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
                const bool stores = chain->ops.size() == 1 && chain->ops[0].stored_ref >= 0 &&
                                    chain->ops[0].num_inputs == 1 &&
                                    chain->ops[0].in[0].home == Home::buffer &&
                                    chain->ops[0].in[0].index == load.out.index;
                return stores ? i : region.size();
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

}  // namespace tilewright::cpu
