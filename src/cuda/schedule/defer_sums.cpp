// Loops of the program's own block.
#include "cuda/schedule/defer_sums.h"

#include <utility>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

class Deferral {
  public:
    explicit Deferral(Program& program) : p_(program), old_(program), uses_(old_) {}

    void run() {
        std::vector<Instruction> body;
        std::vector<std::pair<Value, Value>> joined;
        for (Instruction& made : p_.body.body) {
            for (const auto& [part, all] : joined) replace(made, part, all);
            std::vector<Value> parts;
            if (made.is(ir::Op::for_loop)) parts = deferred(made);
            body.push_back(std::move(made));
            for (Value part : parts) {
                const Value all = p_.add(ValueType(p_.type(part)));
                joined.emplace_back(part, all);
                body.push_back(make(Op::join_lanes, {part}, {all}));
            }
        }
        p_.body.body = std::move(body);
    }

  private:
    /// The results of a loop that are such sums, whose reductions are marked.
    std::vector<Value> deferred(Instruction& loop) {
        std::vector<Value> parts;
        Block& body = loop.blocks[0];
        for (std::size_t i = 0; i < loop.results.size(); ++i) {
            const Value carry = body.arguments[1 + i];
            const Instruction* const first = uses_.definition(loop.operands[3 + i]);
            const Instruction* const next = uses_.definition(body.body.back().operands[i]);
            if (first == nullptr || !first->is(ir::Op::constant) ||
                first->attributes[0].numbers[0] != 0 || next == nullptr ||
                uses_.count(carry) != 1 || uses_.count(next->result()) != 1) {
                continue;
            }
            if (!next->is(ir::Op::fma) && !next->is(ir::Op::add)) continue;
            const bool first_is = next->operands[0] == carry;
            if (!first_is && next->operands[1] != carry) continue;
            Value sum;  // what the carry, or a multiple of it, is added to
            if (next->is(ir::Op::fma)) {
                sum = next->operands[2];
            } else {
                sum = next->operands[first_is ? 1 : 0];
            }
            if (uses_.count(sum) != 1) continue;
            for (Instruction& made : body.body) {
                const bool is_sum = made.is(ir::Op::reduce) && made.has("sum");
                if (!is_sum || made.result() != sum) continue;
                made.flag("partial");
                parts.push_back(loop.results[i]);
            }
        }
        return parts;
    }

    Program& p_;
    const Program old_;
    const Uses uses_;
};

}  // namespace

void defer_sums(Program& program) {
    if (is_chained(program)) Deferral(program).run();
}

}  // namespace tilewright::cuda::schedule
