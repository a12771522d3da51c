// Which instructions of a region make and read each buffer.
#include "cpu/def_use.h"

#include <algorithm>
#include <utility>

#include "cpu/operands.h"

namespace tilewright::cpu {

DefUse::DefUse(Region& region) {
    collect(region);
}

void DefUse::collect(Region& region) {
    for (Node& node : region) {
        for (Region& inner : node.regions) collect(inner);
        if (node.kind != Node::Kind::instruction) continue;
        visit_operands(node.instruction, [&](Home home, std::uint32_t index, Use use) {
            if (home != Home::buffer) return;
            if (use != Use::write) ++uses_[index];
            if (use != Use::read) ++writes_[index];
        });
        auto* chain = std::get_if<Chain>(&node.instruction);
        if (chain == nullptr) continue;
        chains_.push_back(chain);
        for (const StripOp& op : chain->ops) {
            if (op.out.home == Home::buffer) makers_[op.out.index] = op;
        }
    }
}

int DefUse::at(const Counts& counts, std::uint32_t buffer) {
    const auto found = counts.find(buffer);
    return found == counts.end() ? 0 : found->second;
}

void DefUse::count(const StripOp& op, int by) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
        if (op.in[i].home == Home::buffer) uses_[op.in[i].index] += by;
    }
    for (const StripSource* made : {&op.out, &op.sum}) {
        if (made->home == Home::buffer) writes_[made->index] += by;
    }
}

StripOp* DefUse::sole_maker(Chain& chain, const StripSource& source) const {
    if (source.home != Home::buffer || uses(source.index) != 1) return nullptr;
    for (StripOp& op : chain.ops) {
        if (op.function && op.out == source && op.kind == StripOp::Kind::map) return &op;
    }
    return nullptr;
}

void DefUse::replace(StripOp& op, StripOp by) {
    count(op, -1);
    op = std::move(by);
    count(op, 1);
}

void DefUse::add(Chain& chain, std::size_t at, StripOp op) {
    count(op, 1);
    chain.ops.insert(chain.ops.begin() + at, std::move(op));
}

void DefUse::remove(StripOp& op) {
    StripOp nothing;
    nothing.kind = op.kind;
    nothing.op = op.op;
    replace(op, std::move(nothing));
}

void DefUse::sweep() {
    for (Chain* chain : chains_) {
        std::erase_if(chain->ops, [](const StripOp& op) { return !op.function; });
    }
}

bool reads(const StripOp& op, const StripSource& value) {
    return std::any_of(op.in.begin(), op.in.begin() + op.num_inputs, [&](const auto& in) {
        return in.home == value.home && in.index == value.index;
    });
}

}  // namespace tilewright::cpu
