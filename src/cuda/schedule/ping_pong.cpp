// Turns of warpgroups, and counts that skip the other one's.
#include "cuda/schedule/ping_pong.h"

#include <algorithm>

#include "cuda/schedule/tools.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

class Turns {
  public:
    explicit Turns(Program& program) : p_(program) {}

    void consumer(Block& role) {
        const auto programs =
            std::find_if(role.body.begin(), role.body.end(),
                         [](const Instruction& made) { return made.is(Op::programs); });
        TW_ASSERT(programs != role.body.end());
        Block& body = programs->blocks[0];
        // What other threads wait for in order, they do in order: products, and panels of a load.
        std::vector<Instruction> before;
        std::int64_t turn = 0;
        for (const char* const kind : {"loop", "panels"}) {
            const auto at =
                std::find_if(body.body.begin(), body.body.end(), [&](const Instruction& made) {
                    return *kind == 'l' ? made.is(ir::Op::for_loop) : made.is(Op::panels);
                });
            TW_ASSERT(at != body.body.end());
            const auto count = std::find_if(at->results.begin(), at->results.end(),
                                            [&](Value value) { return p_.type(value).is_count; });
            if (count == at->results.end()) continue;  // panels of no load
            const Value consumed = *count;
            const std::int64_t by = iterations(*at);
            surround(body, at, turn);
            Instruction first = make(Op::issue_end, {});
            before.push_back(std::move(first.flag("first").with("turn", turn)));
            skip(role, *programs, consumed, by, before);
            ++turn;
        }
        const auto place =
            std::find_if(role.body.begin(), role.body.end(),
                         [](const Instruction& made) { return made.is(Op::programs); });
        role.body.insert(place, before.begin(), before.end());
    }

  private:
    std::int64_t iterations(const Instruction& made) const {
        if (made.is(Op::panels)) return made.number("count");
        std::int64_t bounds[3] = {};
        for (int i = 0; i < 3; ++i) {
            const auto constant = constant_of(p_, made.operands[i]);
            TW_ASSERT(constant.has_value(), "programs of unequal length do not alternate");
            bounds[i] = *constant;
        }
        return ceil_div(bounds[1] - bounds[0], bounds[2]);
    }

    static void surround(Block& body, std::vector<Instruction>::iterator at, std::int64_t turn) {
        Instruction end = make(Op::issue_end, {});
        const auto after = body.body.insert(at + 1, std::move(end.with("turn", turn)));
        Instruction begin = make(Op::issue_begin, {});
        body.body.insert(after - 1, std::move(begin.with("turn", turn)));
    }

    /// Of a count that programs carry, what the other warpgroup consumes: once before all programs
    /// of the second one, and after each program.
    void skip(Block& role, Instruction& programs, Value consumed, std::int64_t by,
              std::vector<Instruction>& before) {
        Block& body = programs.blocks[0];
        Instruction& yield = body.body.back();
        const auto carried = std::find(yield.operands.begin(), yield.operands.end(), consumed);
        TW_ASSERT(carried != yield.operands.end());
        Value& initial = programs.operands[carried - yield.operands.begin()];
        std::string channel;
        for (const Instruction& made : role.body) {
            if (made.is(Op::count) && made.result() == initial) channel = made.symbol("channel");
        }
        const auto make_skip = [&](Value from, Value to) {
            Instruction made = make(Op::skip, {from}, {to});
            return std::move(made.with("by", by).with_symbol("channel", channel));
        };
        const Value first = p_.add({true, {}, {}}), next = p_.add({true, {}, {}});
        before.push_back(make_skip(initial, first));
        before.back().flag("first");
        initial = first;
        *carried = next;
        body.body.insert(body.body.end() - 1, make_skip(consumed, next));
    }

    Program& p_;
};

}  // namespace

void ping_pong(Program& program) {
    if (program.turns == 1) return;
    for (Instruction& made : program.body.body) {
        if (made.is(Op::role) && made.symbol("of") == "consumer") {
            Turns(program).consumer(made.blocks[0]);
        }
    }
}

}  // namespace tilewright::cuda::schedule
