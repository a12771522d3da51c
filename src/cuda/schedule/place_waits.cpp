// Fences, groups and waits around the products of a loop.
#include "cuda/schedule/place_waits.h"

#include <algorithm>

#include "cuda/schedule/pipeline_dots.h"
#include "cuda/schedule/stage.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

class Waits {
  public:
    explicit Waits(Program& program) : p_(program) {}

    void block(Block& of) {
        for (std::size_t at = 0; at < of.body.size(); ++at) {
            for (Block& inner : of.body[at].blocks) block(inner);
            if (of.body[at].is(ir::Op::for_loop) && has_products(of.body[at].blocks[0])) {
                at += loop(of, at);
            }
        }
    }

  private:
    static bool has_products(const Block& of) {
        return std::any_of(of.body.begin(), of.body.end(),
                           [](const Instruction& made) { return made.is(Op::wgmma); });
    }

    /// Returns the number of instructions added after the loop.
    std::size_t loop(Block& outer, std::size_t at) {
        Instruction& loop = outer.body[at];
        Block& body = loop.blocks[0];
        std::vector<Value> before, sums, fragments;  // accumulators; operands in registers
        Instruction release;
        std::vector<Instruction> iteration;
        for (Instruction& made : body.body) {
            if (!made.is(Op::wgmma)) continue;
            const bool partial = made.has("overwrite");
            if (!partial) before.push_back(made.operands[0]);
            sums.push_back(made.result());
            partial_ |= partial;
            if (const auto read = Product(made).registers) fragments.push_back(*read);
        }
        before.insert(before.end(), fragments.begin(), fragments.end());
        std::vector<Value> used = sums;
        used.insert(used.end(), fragments.begin(), fragments.end());
        bool fenced = false;
        for (Instruction& made : body.body) {
            if (made.is(Op::wgmma) && !fenced) {
                iteration.push_back(make(Op::wgmma_fence, before));
                fenced = true;
            }
            if (!made.is(Op::release)) {
                iteration.push_back(std::move(made));
                continue;
            }
            // After the last product.
            release = made;
            iteration.push_back(make(Op::wgmma_commit, used));
            // The next iteration's operands take the registers of this one's.
            const bool flies = !partial_ && fragments.empty() &&
                               p_.channel(made.symbol("channel")).slots >= kSlotsInFlight;
            std::vector<Value> waited;
            for (Value value : used) waited.push_back(p_.add(ValueType(p_.type(value))));
            Instruction wait = make(Op::wgmma_wait, used, waited);
            iteration.push_back(std::move(wait.with("pending", flies ? 1 : 0)));
            if (flies) {
                const Value later = p_.add({false, {DType::boolean, {}}, {}}, "later");
                iteration.push_back(
                    make(ir::Op::gt, {body.arguments[0], loop.operands[0]}, {later}));
                made.operands.push_back(later);
                made.with("back", 1);
            }
            iteration.push_back(std::move(made));
            waited_ = std::move(waited);
            in_flight_ = flies;
        }
        body.body = std::move(iteration);
        for (Instruction& made : body.body) {
            if (!made.is(ir::Op::yield) && !made.is(ir::Op::add)) continue;
            for (std::size_t i = 0; i < sums.size(); ++i) replace(made, sums[i], waited_[i]);
        }
        if (!in_flight_) return 0;

        // After the loop the last group is waited for, and its slot released if it has one.
        std::vector<Instruction> after;
        std::vector<Value> last, done;
        for (std::size_t i = 0; i < loop.results.size(); ++i) {
            if (p_.type(loop.results[i]).is_count) continue;
            last.push_back(loop.results[i]);
            done.push_back(p_.add(ValueType(p_.type(loop.results[i]))));
        }
        const Value count = loop.results.back();
        const Value ran = p_.add({false, {DType::boolean, {}}, {}}, "ran");
        after.push_back(make(ir::Op::lt, {loop.operands[0], loop.operands[1]}, {ran}));
        Instruction wait = make(Op::wgmma_wait, last, done);
        after.push_back(std::move(wait.with("pending", 0)));
        Instruction end = make(Op::release, {count, ran});
        end.with_symbol("channel", release.symbol("channel")).with("back", 1);
        after.push_back(std::move(end));
        for (std::size_t i = at + 1; i < outer.body.size(); ++i) {
            for (std::size_t v = 0; v < last.size(); ++v) {
                replace(outer.body[i], last[v], done[v]);
            }
        }
        outer.body.insert(outer.body.begin() + at + 1, after.begin(), after.end());
        return after.size();
    }

    Program& p_;
    std::vector<Value> waited_;
    bool in_flight_ = false;
    bool partial_ = false;  ///< sums of an iteration are added to others
};

}  // namespace

void place_waits(Program& program) {
    if (is_chained(program)) return pipeline_dots(program);
    Waits(program).block(program.body);
    program.level = Level::waiting;
}

}  // namespace tilewright::cuda::schedule
