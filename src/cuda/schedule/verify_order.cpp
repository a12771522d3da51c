// The rules of what warpgroups and the units of a multiprocessor do at the same time.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "cuda/schedule/verify_rules.h"

namespace tilewright::cuda::schedule {

// V10: between a product and its wait nothing accesses its registers or releases its slots.
Broken waits(const Program& p) {
    struct Group {
        std::set<Value> registers, fragments;
        std::set<std::string> channels;
        std::string shared;
    };
    return first_block(p.body, [&](const Block& block) -> Broken {
        std::set<Value> fragments;  // that are read in this block
        std::vector<Group> groups;  // in flight; the last one may still be open
        bool open = false;
        const auto in_flight = [&](const auto& holds) {
            return std::any_of(groups.begin(), groups.end(), holds);
        };
        for (const Instruction& made : block.body) {
            if (made.is(Op::read_fragments)) fragments.insert(made.result());
            if (made.is(Op::wgmma)) {
                if (!open) groups.emplace_back();
                open = true;
                const Product parts(made);
                groups.back().registers.insert({made.result(), parts.accumulator});
                if (parts.registers) groups.back().registers.insert(*parts.registers);
                if (parts.registers) groups.back().fragments.insert(*parts.registers);
                groups.back().channels.merge(channels_of(p, made));
                if (made.has("shared")) groups.back().shared = made.symbol("a");
                continue;
            }
            if (made.is(Op::wgmma_commit)) {
                open = false;
                continue;
            }
            if (made.is(Op::wgmma_wait)) {
                const std::size_t pending = made.number("pending");
                while (groups.size() > pending) groups.erase(groups.begin());
                // Without `finished` the newest group's sum goes to the next iteration's product.
                if (!made.has("finished")) {
                    for (Group& group : groups) group.registers.clear();
                }
            }
            if (made.is(Op::release) && made.number("back") < 1 &&
                in_flight([&](const Group& group) {
                    return group.channels.contains(made.symbol("channel"));
                })) {
                return broken("a slot is released while a product reads it");
            }
            if (made.is(Op::share) &&
                in_flight([&](const Group& group) { return group.shared == made.symbol("to"); })) {
                return broken("@{} is written while a product reads it", made.symbol("to"));
            }
            for (Value operand : made.operands) {
                if (in_flight(
                        [&](const Group& group) { return group.registers.contains(operand); })) {
                    return broken("%{} is used before its product is waited for",
                                  p.value_name(operand));
                }
            }
        }
        for (const Group& group : groups) {
            for (Value read : group.fragments) {
                if (!fragments.contains(read)) continue;
                return broken("%{} is read anew before its product is waited for",
                              p.value_name(read));
            }
        }
        return std::nullopt;
    });
}

// V11: a fence precedes the first product of a group, a commit follows the last.
Broken fences(const Program& p) {
    return first_block(p.body, [&](const Block& block) -> Broken {
        bool fenced = false, open = false;
        for (const Instruction& made : block.body) {
            if (made.is(Op::wgmma_fence)) fenced = true;
            if (made.is(Op::wgmma_commit)) fenced = open = false;
            if (!made.is(Op::wgmma)) continue;
            if (!fenced) return broken("no fence stands before a product");
            open = true;
        }
        if (open) return broken("products are not committed");
        return std::nullopt;
    });
}

// V14: between a write of shared memory and a copy or product of it stand a fence, then a meeting:
// of all warpgroups for what they share, which they also met before they write it. Before a panel
// is written, the copies from its slot are waited for, then a meeting.
Broken proxies(const Program& p) {
    return first_block(p.body, [&](const Block& block) -> Broken {
        bool written = false, fenced = false, shared = false, met = false;
        bool waited = false, free = false;  // for copies from the panel's slot
        for (const Instruction& made : block.body) {
            if (made.is(Op::wait_stores)) waited = true;
            if (made.is(Op::group_sync) && waited) free = true;
            if (made.is(Op::store_shared) && !free) {
                return broken("@{} is written while a copy may read it", made.symbol("to"));
            }
            if (made.is(Op::share) && !met) {
                return broken("@{} is written before all have met", made.symbol("to"));
            }
            if (made.is(Op::store_shared)) written = true, fenced = false;
            if (made.is(Op::share)) shared = true, fenced = false;
            if (made.is(Op::fence_async)) fenced = true;
            if (made.is(Op::group_sync) && fenced) written = false;
            if (made.is(Op::all_sync)) {
                met = true;
                if (fenced) written = shared = false;
            }
            if (made.is(Op::wgmma) && made.has("shared") && shared) {
                return broken("a product reads @{} before a fence and a meeting", made.symbol("a"));
            }
            if (made.is(Op::tma_store) && written) {
                return broken("a copy reads @{} before a fence and a meeting", made.symbol("from"));
            }
        }
        return std::nullopt;
    });
}

// V15: only the consumer role has barriers between warpgroups.
Broken meetings(const Program& p) {
    const auto meets = [](const Instruction& made) -> Broken {
        const bool issues = made.is(Op::issue_begin) || made.is(Op::issue_end);
        if (made.is(Op::group_sync) || made.is(Op::all_sync) || issues)
            return broken("a warpgroup meets outside of the consumers");
        return std::nullopt;
    };
    for (const Instruction& made : p.body.body) {
        if (made.is(Op::role) && made.symbol("of") == "consumer") continue;
        if (Broken found = meets(made)) return found;
        for (const Block& inner : made.blocks) {
            if (Broken found = first(inner, meets)) return found;
        }
    }
    return std::nullopt;
}

// V20: of two warpgroups, each ends the issue that it begins, in the same block, and the second one
// lets the first one begin.
Broken issues(const Program& p) {
    std::set<std::int64_t> begun, first;  // turns
    Broken found = first_block(p.body, [&](const Block& block) -> Broken {
        std::set<std::int64_t> open;
        for (const Instruction& made : block.body) {
            const std::int64_t turn = made.number("turn");
            if (made.is(Op::issue_end) && made.has("first")) first.insert(turn);
            if (made.is(Op::issue_end) && !made.has("first") && open.erase(turn) == 0) {
                return broken("an issue ends that has not begun");
            }
            if (made.is(Op::issue_begin)) {
                if (!open.insert(turn).second) return broken("an issue begins twice");
                begun.insert(turn);
            }
        }
        return open.empty() ? std::nullopt : broken("an issue does not end");
    });
    if (found) return found;
    if (begun != first) return broken("no warpgroup may begin");
    if (!begun.empty() && p.all_consumer_groups() != 2) {
        return broken("ping-pong needs two warpgroups");
    }
    return std::nullopt;
}

// V37: warpgroups that take programs in turn issue products in turn, and skip on each channel as
// much as a program consumes: once before all programs of the second one, and after each program.
Broken turns(const Program& p) {
    if (p.turns == 1) return std::nullopt;
    if (p.turns != 2 || p.consumer_groups() != 1 || p.cluster() != 1) {
        return broken("turns need two warpgroups with a tile each");
    }
    std::map<std::string, std::array<std::vector<std::int64_t>, 2>> skips;  // later, first
    bool issues = false;
    each_instruction(p.body, [&](const Instruction& made) {
        issues |= made.is(Op::issue_begin);
        if (made.is(Op::skip)) {
            skips[made.symbol("channel")][made.has("first") ? 1 : 0].push_back(made.number("by"));
        }
    });
    if (!issues) return broken("no warpgroup waits for its turn");
    for (const Channel& channel : p.channels) {
        const auto& [later, first] = skips[channel.name];
        if (later.size() != 1 || later != first || later[0] < 1) {
            return broken("a warpgroup does not skip what the other one consumes of @{}",
                          channel.name);
        }
    }
    return std::nullopt;
}

}  // namespace tilewright::cuda::schedule
