// Joins elementwise and reducing instructions into strip chains.
#include "cpu/chains.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cpu/def_use.h"
#include "cpu/fuse.h"
#include "cpu/maxima.h"
#include "cpu/operands.h"
#include "cpu/pairs.h"
#include "cpu/rematerialise.h"
#include "cpu/superinstructions.h"

namespace tilewright::cpu {
namespace {

using Location = std::pair<Home, std::uint32_t>;

/// Calls visit(ref, writes) for every Ref whose memory an instruction accesses, except for views
/// that load: nothing writes their Refs, so they may be read at any time.
template <typename Visitor>
void visit_refs(const Instruction& instruction, Visitor&& visit) {
    if (const auto* load = std::get_if<Load>(&instruction)) visit(load->access.ref, false);
    if (const auto* store = std::get_if<Store>(&instruction)) visit(store->access.ref, true);
    if (const auto* atomic = std::get_if<Atomic>(&instruction)) visit(atomic->access.ref, true);
    if (const auto* view = std::get_if<StoreView>(&instruction); view && view->loads)
        visit(view->access.ref, false);
    if (const auto* dot = std::get_if<Dot>(&instruction); dot && dot->stored_ref >= 0)
        visit(static_cast<std::uint32_t>(dot->stored_ref), true);
    if (const auto* scan = std::get_if<CombineScan>(&instruction)) {
        for (const std::int64_t ref : scan->stored_refs)
            visit(static_cast<std::uint32_t>(ref), true);
    }
    if (const auto* chain = std::get_if<Chain>(&instruction)) {
        for (const StripOp& op : chain->ops) {
            if (op.stored_ref >= 0) visit(static_cast<std::uint32_t>(op.stored_ref), true);
        }
    }
}

/// Moves the views of a region up to where their indices are known, so that chains may move up.
void hoist_views(Region& region) {
    const auto is_view = [](const Node& node) {
        if (node.kind != Node::Kind::instruction) return false;
        const auto* load = std::get_if<LoadView>(&node.instruction);
        const auto* store = std::get_if<StoreView>(&node.instruction);
        return (load && !load->packs_far_rows) ||
               std::holds_alternative<SubView>(node.instruction) || (store && !store->loads);
    };
    for (std::size_t i = 1; i < region.size(); ++i) {
        if (!is_view(region[i])) continue;
        std::set<Location> needs;
        visit_operands(region[i].instruction, [&](Home home, std::uint32_t index, Use use) {
            if (use == Use::read) needs.insert({home, index});
        });
        for (std::size_t at = i; at > 0; --at) {
            Node& before = region[at - 1];
            if (before.kind != Node::Kind::instruction) break;
            bool makes = false;
            visit_operands(before.instruction, [&](Home home, std::uint32_t index, Use use) {
                makes |= use != Use::read && needs.contains({home, index});
            });
            if (makes) break;
            std::swap(before, region[at]);
        }
    }
}

/// True when the ops of two chains may go through one space together.
bool same_space(const Chain& a, const Chain& b) {
    return a.rows == b.rows && a.lanes == b.lanes && a.width == b.width && a.agrees(b);
}

/// Tells which accesses to one Ref share no element, as far as constants show.
class Disjoint {
  public:
    Disjoint(const Region& region, const Program& program) : program_(program) {
        for (const Node& node : region) {
            if (node.kind != Node::Kind::instruction) continue;
            if (const auto* store = std::get_if<StoreView>(&node.instruction))
                accesses_.emplace(store->view, store->access);
        }
    }

    /// True when the stores of op `op` and those of `other` never overlap.
    bool operator()(const StripOp& op, const Instruction& other) const {
        const auto own = accesses_.find(op.out.index);
        if (own == accesses_.end()) return false;
        if (const auto* store = std::get_if<Store>(&other))
            return apart(own->second, store->access);
        const auto* chain = std::get_if<Chain>(&other);
        return chain != nullptr &&
               std::all_of(chain->ops.begin(), chain->ops.end(), [&](const StripOp& theirs) {
                   if (theirs.stored_ref < 0) return true;
                   const auto found = accesses_.find(theirs.out.index);
                   return found != accesses_.end() && apart(own->second, found->second);
               });
    }

  private:
    bool apart(const Access& a, const Access& b) const {
        if (a.ref != b.ref || a.gathers || b.gathers) return false;
        for (std::size_t dim = 0; dim < a.indices.size(); ++dim) {
            const auto [a_first, a_last] = range(a, a.indices[dim]);
            const auto [b_first, b_last] = range(b, b.indices[dim]);
            if (a_last < b_first || b_last < a_first) return true;
        }
        return false;
    }

    /// First and last index of a dimension; the widest range where it is unknown.
    std::pair<std::int64_t, std::int64_t> range(const Access& access,
                                                const AccessIndex& index) const {
        using Limits = std::numeric_limits<std::int64_t>;
        constexpr std::int64_t kMost = std::int64_t{1} << 40;
        if (!program_.constant_slots.contains(index.slot)) return {Limits::min(), Limits::max()};
        const auto first = static_cast<std::int64_t>(program_.initial_slots[index.slot]);
        if (first < -kMost || first > kMost) return {Limits::min(), Limits::max()};
        const bool slice = index.kind == ir::Index::Kind::slice;
        return {first, slice ? first + (access.shape[index.axis] - 1) * index.stride : first};
    }

    const Program& program_;
    std::map<std::uint32_t, Access> accesses_;  ///< of views that chains store to
};

/// The places of a region that access one location, in order.
struct Touches {
    std::vector<std::size_t> reads, writes;
};

/// Joins the chains of one straight run of instructions. Accesses are recorded per location, so a
/// chain is compared only with those that it may join: huge unrolled bodies stay cheap.
class Joiner {
  public:
    Joiner(Region& region, const Program& program)
        : region_(region),
          program_(program),
          disjoint_(region, program),
          removed_(region.size(), false) {}

    void run() {
        for (std::size_t i = 0; i < region_.size(); ++i) {
            Node& node = region_[i];
            if (node.kind != Node::Kind::instruction) {
                open_.clear();
                continue;
            }
            auto* chain = std::get_if<Chain>(&node.instruction);
            if (chain && join(*chain, i)) {
                removed_[i] = true;
                pull(joined_);
                continue;
            }
            if (chain) pull(i);
            record(node.instruction, i);
            if (chain) open_.push_back(i);
        }
        std::size_t kept = 0;
        for (std::size_t i = 0; i < region_.size(); ++i) {
            if (removed_[i]) continue;
            if (kept != i) region_[kept] = std::move(region_[i]);
            ++kept;
        }
        region_.resize(kept);
    }

  private:
    /// Appends the ops of `chain` to an earlier one if every operand is made before it; true if so.
    bool join(const Chain& chain, std::size_t at) {
        std::size_t ready = 0;  // the place where the last operand is made
        for (const StripOp& op : chain.ops) {
            for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
                ready = std::max(ready, last_write(op.in[i]).value_or(0));
            }
        }
        for (std::size_t k = open_.size(); k-- > 0 && open_[k] >= ready;) {
            auto& earlier = std::get<Chain>(region_[open_[k]].instruction);
            if (!same_space(earlier, chain) || !fits(chain, open_[k], earlier)) continue;
            if (!stores_may_move(chain, open_[k], at)) return false;  // nor farther up
            earlier.ops.insert(earlier.ops.end(), chain.ops.begin(), chain.ops.end());
            earlier.follow(chain);
            record(region_[at].instruction, open_[k]);
            joined_ = open_[k];
            return true;
        }
        return false;
    }

    /// Moves the ops of an earlier chain to the front of the chain at `at`, if one makes an operand
    /// of this chain, none of its results is used in between, and its operands do not change.
    void pull(std::size_t at) {
        auto& chain = std::get<Chain>(region_[at].instruction);
        std::set<std::size_t, std::greater<>> makers;
        for (const StripOp& op : chain.ops) {
            for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
                const auto found = touches_.find({op.in[i].home, op.in[i].index});
                if (found == touches_.end()) continue;
                makers.insert(found->second.writes.begin(), found->second.writes.end());
            }
        }
        for (const std::size_t from : makers) {
            const auto open = std::lower_bound(open_.begin(), open_.end(), from);
            if (from >= at || open == open_.end() || *open != from) continue;
            auto& earlier = std::get<Chain>(region_[from].instruction);
            if (earlier.ops.size() + chain.ops.size() > Chain::kMaxOps) continue;
            if (!same_space(earlier, chain) || !feeds(earlier, chain) || !may_move(from, at))
                continue;
            if (!stores_may_move(earlier, from, at)) continue;
            record(region_[from].instruction, at);
            chain.ops.insert(chain.ops.begin(), earlier.ops.begin(), earlier.ops.end());
            chain.follow(earlier);
            removed_[from] = true;
            open_.erase(open);
            return;
        }
    }

    /// True when `chain` reads results of `earlier`, all of which are available strip by strip.
    static bool feeds(const Chain& earlier, const Chain& chain) {
        bool any = false;
        for (const StripOp& op : chain.ops) {
            for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
                for (const StripOp& maker : earlier.ops) {
                    if (maker.out.home != op.in[i].home || maker.out.index != op.in[i].index)
                        continue;
                    if (!maker.makes_tile() || !(maker.out == op.in[i])) return false;
                    any = true;
                }
            }
        }
        return any;
    }

    /// Records the accesses of `instruction` at place `at`.
    void record(const Instruction& instruction, std::size_t at) {
        visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
            Touches& touches = touches_[{home, index}];
            auto& places = use == Use::read ? touches.reads : touches.writes;
            const auto place = std::lower_bound(places.begin(), places.end(), at);
            if (place == places.end() || *place != at) places.insert(place, at);
        });
    }

    std::optional<std::size_t> last_write(const StripSource& value) const {
        const auto found = touches_.find({value.home, value.index});
        if (found == touches_.end() || found->second.writes.empty()) return std::nullopt;
        return found->second.writes.back();
    }

    /// True when the chain at `from` gives the same results at `to`.
    bool may_move(std::size_t from, std::size_t to) const {
        const auto between = [&](const std::vector<std::size_t>& places) {
            auto place = std::upper_bound(places.begin(), places.end(), from);
            while (place != places.end() && removed_[*place]) ++place;
            return place != places.end() && *place < to;
        };
        bool independent = true;
        visit_operands(region_[from].instruction, [&](Home home, std::uint32_t index, Use use) {
            const Touches& touches = touches_.at({home, index});
            if (between(touches.writes) || (use != Use::read && between(touches.reads))) {
                independent = false;
            }
        });
        return independent;
    }

    /// True when the stores of `chain`, which is at one of the two places, may happen at the other:
    /// nothing in between or at that place accesses what they write.
    bool stores_may_move(const Chain& chain, std::size_t first, std::size_t last) const {
        bool free = true;
        for (const StripOp& op : chain.ops) {
            if (op.stored_ref < 0) continue;
            const auto stored = static_cast<std::uint32_t>(op.stored_ref);
            for (std::size_t i = first; i <= last && free; ++i) {
                const Instruction& other = region_[i].instruction;
                if (removed_[i] || std::get_if<Chain>(&other) == &chain) continue;
                if (disjoint_(op, other)) continue;
                visit_refs(other, [&](std::uint32_t ref, bool) {
                    free = free && !may_alias(program_.refs[ref], program_.refs[stored]);
                });
            }
        }
        return free;
    }

    bool may_alias(const RefSlot& a, const RefSlot& b) const {
        return &a == &b || (a.type.alias_group >= 0 && a.type.alias_group == b.type.alias_group);
    }

    bool fits(const Chain& chain, std::size_t at, const Chain& earlier) const {
        if (earlier.ops.size() + chain.ops.size() > Chain::kMaxOps) return false;
        for (const StripOp& op : chain.ops) {
            if (op.stored_ref >= 0 && last_write(op.out).value() >= at) return false;
            for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
                const StripSource& in = op.in[i];
                const std::optional<std::size_t> made = last_write(in);
                if (!made || *made < at) continue;
                if (*made > at) return false;
                // Made in the earlier chain, whose strips must be those that this op reads.
                const auto maker =
                    std::find_if(earlier.ops.begin(), earlier.ops.end(), [&](const StripOp& o) {
                        return o.out.home == in.home && o.out.index == in.index;
                    });
                if (maker == earlier.ops.end()) return false;
                if (!maker->makes_tile() || !(maker->out == in)) return false;
            }
        }
        return true;
    }

    Region& region_;
    const Program& program_;
    const Disjoint disjoint_;
    std::vector<bool> removed_;            ///< places whose ops moved elsewhere
    std::map<Location, Touches> touches_;  ///< including those of removed instructions
    std::vector<std::size_t> open_;        ///< chains that may grow, in order
    std::size_t joined_ = 0;               ///< the last chain that grew
};

void join_all(Region& region, const Program& program) {
    for (Node& node : region) {
        for (Region& inner : node.regions) join_all(inner, program);
    }
    hoist_views(region);
    Joiner(region, program).run();
}

/// Moves values that live within one chain from buffers to strip temporaries.
class Localiser {
  public:
    Localiser(Region& region, Program& program) : program_(program), uses_(region) {
        drop_unread();
        for (Chain* chain : uses_.chains()) {
            widen(*chain);
            plan_fused_runs(*chain, uses_, program_);
            localise(*chain);
            find_writers(*chain);
        }
    }

  private:
    /// Removes values that superinstructions and picks have left without a reader, and then those
    /// that only these read.
    void drop_unread() {
        for (bool again = true; again;) {
            again = false;
            for (Chain* chain : uses_.chains()) {
                for (StripOp& op : chain->ops) {
                    if (!op.function || op.out.home != Home::buffer ||
                        uses_.uses(op.out.index) != 0 || op.sum.home != Home::none)
                        continue;
                    uses_.remove(op);
                    again = true;
                }
            }
        }
        uses_.sweep();
    }

    /// True when nobody outside the chain reads what one of its ops makes.
    bool lives_within(const Chain& chain, const StripSource& made) const {
        int inside = 0;
        for (const StripOp& op : chain.ops) {
            inside += static_cast<int>(std::count_if(
                op.in.begin(), op.in.begin() + op.num_inputs,
                [&](const auto& in) { return in.home == Home::buffer && in.index == made.index; }));
        }
        return inside == uses_.uses(made.index);
    }

    /// Panels are for what outlives a chain: one whose other operands all lie along the rows of
    /// arrays goes along them, too.
    void widen(Chain& chain) const {
        const std::int64_t width =
            std::min(ceil_div(chain.lanes, kPanelLanes) * kPanelLanes, kStripElements);
        if (width <= chain.width) return;
        std::set<std::uint32_t> local;
        for (const StripOp& op : chain.ops) {
            if (op.kind != StripOp::Kind::map || op.sum.home != Home::none) return;
            if (op.out.home == Home::buffer && lives_within(chain, op.out))
                local.insert(op.out.index);
        }
        const auto lies_along = [&](const StripSource& source) {
            return source.panel_stride == source.lane_stride * chain.width ||
                   (source.home == Home::buffer && local.contains(source.index));
        };
        const auto adapt = [&](StripSource& source) {
            source.panel_stride = source.lane_stride * width;
        };
        for (const StripOp& op : chain.ops) {
            const bool all = std::all_of(op.in.begin(), op.in.end(), lies_along);
            if (!all || !lies_along(op.out)) return;
        }
        for (StripOp& op : chain.ops) {
            std::for_each(op.in.begin(), op.in.end(), adapt);
            adapt(op.out);
        }
        chain.width = width;
    }

    void localise(Chain& chain) {
        if (chain.ops.size() < 2) return;
        // Values in registers need no temporaries in the cache, so strips may be longer and fewer.
        const std::int64_t rows = (in_registers(chain) ? 2 : 1) * kStripElements / chain.width;
        chain.strip_rows = std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(chain.rows, 1));
        const bool in_pairs = std::any_of(chain.ops.begin(), chain.ops.end(),
                                          [](const StripOp& op) { return op.writes_pairs(); });
        if (in_pairs) chain.strip_rows += chain.strip_rows % 2;
        program_.strip_bytes =
            std::max(program_.strip_bytes, chain.strip_rows * chain.width * 8 + 64);
        std::vector<std::uint32_t> free;
        for (std::size_t i = 0; i < chain.ops.size(); ++i) {
            const StripSource made = chain.ops[i].out;
            if (!chain.ops[i].makes_tile() || made.home != Home::buffer) {
                release(chain, i, free);
                continue;
            }
            if (lives_within(chain, made)) {
                std::uint32_t temporary = chain.num_temporaries;
                if (free.empty()) {
                    ++chain.num_temporaries;
                } else {
                    temporary = free.back();
                    free.pop_back();
                }
                StripSource local = made;
                local.home = Home::strip;
                local.index = temporary;
                local.panel_stride = 0;
                local.offset = 0;
                local.row_stride = chain.width;
                rename(chain, i, made, local);
            }
            release(chain, i, free);
        }
    }

    /// True when fused runs do everything except reductions.
    static bool in_registers(const Chain& chain) {
        std::size_t fused = 0;
        for (const FusedRun& run : chain.fused) fused += run.last - run.first;
        const auto reductions =
            std::count_if(chain.ops.begin(), chain.ops.end(),
                          [](const StripOp& op) { return op.kind == StripOp::Kind::reduce_rows; });
        return fused > 0 && fused + static_cast<std::size_t>(reductions) == chain.ops.size();
    }

    /// Finds for every store the op that makes its operand only for it.
    static void find_writers(Chain& chain) {
        for (std::size_t i = 0; i < chain.ops.size(); ++i) {
            StripOp& store = chain.ops[i];
            const StripSource& value = store.in[0];
            if (store.stored_ref < 0 || store.num_inputs > 1 || value.home != Home::strip) continue;
            std::size_t maker = i;
            bool shared = false;
            while (maker > 0 && !(chain.ops[--maker].out == value)) {
                shared |= reads(chain.ops[maker], value);
            }
            for (std::size_t k = i + 1; k < chain.ops.size() && !shared; ++k) {
                shared = reads(chain.ops[k], value);
                if (chain.ops[k].out == value) break;
            }
            if (!shared && chain.ops[maker].stored_ref < 0 && runs_with(chain, maker, i)) {
                store.writer = static_cast<int>(maker);
            }
        }
    }

    /// True when both ops are in one fused run, or neither is in any.
    static bool runs_with(const Chain& chain, std::size_t a, std::size_t b) {
        return std::all_of(chain.fused.begin(), chain.fused.end(), [&](const FusedRun& run) {
            const auto does = [&](std::size_t op) { return run.first <= op && op < run.last; };
            return does(a) == does(b);
        });
    }

    static void rename(Chain& chain, std::size_t from, const StripSource& made,
                       const StripSource& local) {
        chain.ops[from].out = local;
        for (std::size_t i = from + 1; i < chain.ops.size(); ++i) {
            if (chain.ops[i].out == made) chain.ops[i].out = local;
            for (StripSource& in : chain.ops[i].in) {
                if (in.home == made.home && in.index == made.index) in = local;
            }
        }
    }

    /// Frees temporaries whose last reader is op `at`, for the results of later ops. The ops of a
    /// fused run alternate block by block: what one of them reads, no other may overwrite.
    static void release(const Chain& chain, std::size_t at, std::vector<std::uint32_t>& free) {
        for (const FusedRun& run : chain.fused) {
            if (at < run.first || at >= run.last) continue;
            if (at + 1 < run.last) return;
            for (std::size_t i = run.first; i < run.last; ++i) {
                release(chain, chain.ops[i], run.last, free);
            }
            return;
        }
        release(chain, chain.ops[at], at + 1, free);
    }

    /// The same for an op whose temporaries may be read again from op `next` on.
    static void release(const Chain& chain, const StripOp& op, std::size_t next,
                        std::vector<std::uint32_t>& free) {
        for (const StripSource& in : op.in) {
            if (in.home != Home::strip) continue;
            bool used_later = false;
            for (std::size_t i = next; i < chain.ops.size() && !used_later; ++i) {
                // An op may read what it overwrites.
                for (const StripSource& later : chain.ops[i].in) {
                    used_later |= later.home == Home::strip && later.index == in.index;
                }
                if (chain.ops[i].out.home == Home::strip && chain.ops[i].out.index == in.index)
                    break;
            }
            const bool is_free = std::find(free.begin(), free.end(), in.index) != free.end();
            if (!used_later && !is_free) free.push_back(in.index);
        }
    }

    Program& program_;
    DefUse uses_;  ///< before any change made here
};

/// Makes the chains of a loop's body that read a view prefetch its next rectangle, where there are
/// several chains: the first one waits for memory, which the others, in the cache, leave idle.
void plan_prefetches(Region& region) {
    std::map<std::uint32_t, std::vector<Chain*>> readers;  // per view made in this region
    for (Node& node : region) {
        for (Region& inner : node.regions) plan_prefetches(inner);
        if (node.kind != Node::Kind::instruction) continue;
        if (const auto* load = std::get_if<LoadView>(&node.instruction)) readers[load->view];
        auto* chain = std::get_if<Chain>(&node.instruction);
        if (!chain) continue;
        visit_operands(*chain, [&](Home home, std::uint32_t index, Use) {
            const auto found = readers.find(index);
            if (home != Home::view || found == readers.end()) return;
            auto& list = found->second;
            if (list.empty() || list.back() != chain) list.push_back(chain);
        });
    }
    for (const auto& [view, chains] : readers) {
        if (chains.size() > 1) prefetch_next(chains, view);
    }
}

}  // namespace

void form_chains(Region& region, Program& program) {
    join_all(region, program);
    select_superinstructions(region, program);
    rematerialise(region, program);
    write_pairs(region, program);
    find_maxima(region, program);
    const Localiser localiser(region, program);
    plan_prefetches(region);
}

}  // namespace tilewright::cpu
