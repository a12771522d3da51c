// Rematerialisation: recomputing a value in registers is cheaper than storing and reading a row.
#include "cpu/rematerialise.h"

#include <algorithm>
#include <set>

#include "cpu/def_use.h"
#include "cpu/operands.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using Location = std::pair<Home, std::uint32_t>;

/// Ops that take about as long as a load.
bool is_cheap(const StripOp& op) {
    constexpr std::array kCheap = {Op::add, Op::sub, Op::mul, Op::fma, Op::neg,
                                   Op::abs, Op::min, Op::max, Op::cast};
    return op.kind == StripOp::Kind::map && op.super == Super::none && op.stored_ref < 0 &&
           op.out.home == Home::buffer && op.out.dtype == DType::f32 &&
           std::find(kCheap.begin(), kCheap.end(), op.op) != kCheap.end();
}

class Rematerialiser {
  public:
    Rematerialiser(Region& region, Program& program, const DefUse& uses)
        : region_(region), program_(program), uses_(uses) {}

    void run() {
        for (std::size_t i = 0; i < region_.size(); ++i) {
            const Chain* chain = chain_at(i);
            if (!chain || chain->width <= kPanelLanes) continue;
            for (std::size_t op = 0; op < chain->ops.size(); ++op) {
                if (is_cheap(chain->ops[op])) move_to_readers(i, op);
            }
        }
    }

  private:
    /// The most ops that make a value; more would cost more than the stored row.
    static constexpr std::size_t kMostOps = 3;

    Chain* chain_at(std::size_t i) const {
        return region_[i].kind == Node::Kind::instruction
                   ? std::get_if<Chain>(&region_[i].instruction)
                   : nullptr;
    }

    static bool reads(const StripOp& op, Location location) {
        return std::any_of(op.in.begin(), op.in.begin() + op.num_inputs, [&](const auto& in) {
            return Location{in.home, in.index} == location;
        });
    }

    /// Copies op `at` of chain `from` to every later chain that reads its result, if all readers
    /// are such chains.
    void move_to_readers(std::size_t from, std::size_t at) {
        const Chain& chain = *chain_at(from);
        const StripSource made = chain.ops[at].out;
        int found = 0;
        std::vector<std::size_t> readers;
        for (std::size_t i = from; i < region_.size(); ++i) {
            const Chain* reader = chain_at(i);
            if (!reader) continue;
            int here = 0;
            for (const StripOp& op : reader->ops) {
                for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                    if (op.in[k].home != Home::buffer || op.in[k].index != made.index) continue;
                    if (!(op.in[k] == made)) return;
                    ++here;
                }
            }
            found += here;
            if (here > 0 && i > from) readers.push_back(i);
        }
        if (readers.empty() || uses_.uses(made.index) != found) return;
        for (const std::size_t reader : readers) {
            if (!may_copy(from, at, reader)) return;
        }
        const std::vector<std::size_t> ops = makers(chain, at);
        for (const std::size_t reader : readers) copy(chain, ops, *chain_at(reader));
    }

    /// Op `at` and the ops of its chain that make its operands, in order.
    static std::vector<std::size_t> makers(const Chain& chain, std::size_t at) {
        std::set<std::size_t> found{at};
        for (std::size_t i = at; i-- > 0;) {
            const bool needed = std::any_of(found.begin(), found.end(), [&](std::size_t user) {
                return chain.ops[i].out.home == Home::buffer &&
                       reads(chain.ops[user], {Home::buffer, chain.ops[i].out.index});
            });
            if (needed) found.insert(i);
        }
        return {found.begin(), found.end()};
    }

    /// True when the reader can compute the value itself, from operands that it reads anyway except
    /// for at most one tile.
    bool may_copy(std::size_t from, std::size_t at, std::size_t to) const {
        const Chain &chain = *chain_at(from), &reader = *chain_at(to);
        const std::vector<std::size_t> ops = makers(chain, at);
        if (chain.rows != reader.rows || chain.lanes != reader.lanes || chain.width != reader.width)
            return false;
        if (ops.size() > kMostOps || reader.ops.size() + ops.size() > Chain::kMaxOps) return false;
        std::set<Location> made, operands, new_tiles;
        for (const std::size_t i : ops) {
            const StripOp& op = chain.ops[i];
            if (!is_cheap(op)) return false;
            for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                const StripSource& in = op.in[k];
                const Location location{in.home, in.index};
                if (made.contains(location)) continue;
                operands.insert(location);
                const bool read_there =
                    std::any_of(reader.ops.begin(), reader.ops.end(),
                                [&](const StripOp& other) { return reads(other, location); });
                if (in.lane_stride != 0 && !read_there) new_tiles.insert(location);
            }
            made.insert({op.out.home, op.out.index});
        }
        if (new_tiles.size() > 1) return false;
        bool lasts = true;
        for (std::size_t i = from; i <= to; ++i) {
            if (region_[i].kind != Node::Kind::instruction) return false;
            visit_operands(region_[i].instruction, [&](Home home, std::uint32_t index, Use use) {
                lasts = lasts && (use == Use::read || !operands.contains({home, index}));
            });
        }
        return lasts;
    }

    void copy(const Chain& chain, const std::vector<std::size_t>& ops, Chain& reader) {
        std::map<std::uint32_t, std::uint32_t> renamed;
        std::vector<StripOp> copies;
        for (const std::size_t i : ops) {
            StripOp op = chain.ops[i];
            for (StripSource& in : op.in) {
                const auto found = renamed.find(in.index);
                if (in.home == Home::buffer && found != renamed.end()) in.index = found->second;
            }
            const auto index = static_cast<std::uint32_t>(program_.buffers.size());
            program_.buffers.push_back(program_.buffers[op.out.index]);
            renamed[op.out.index] = index;
            op.out.index = index;
            copies.push_back(std::move(op));
        }
        // Only the value of the last one was read here before.
        const std::uint32_t value = chain.ops[ops.back()].out.index;
        for (StripOp& op : reader.ops) {
            for (StripSource& in : op.in) {
                if (in.home == Home::buffer && in.index == value) in.index = renamed.at(value);
            }
        }
        reader.ops.insert(reader.ops.begin(), copies.begin(), copies.end());
    }

    Region& region_;
    Program& program_;
    const DefUse& uses_;  ///< of the whole program, before any change
};

void run(Region& region, Program& program, const DefUse& uses) {
    for (Node& node : region) {
        for (Region& inner : node.regions) run(inner, program, uses);
    }
    Rematerialiser(region, program, uses).run();
}

}  // namespace

void rematerialise(Region& region, Program& program) {
    if (!program.kernels->fused.run) return;
    run(region, program, DefUse(region));
}

}  // namespace tilewright::cpu
