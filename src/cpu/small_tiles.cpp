// Replaces chains on small tiles, and the scalars between them, by machine code.
#include "cpu/small_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cpu/kept_code.h"
#include "cpu/operands.h"
#include "cpu/simd/executable_code.h"
#include "cpu/small_tile_code.h"
#include "cpu/vector_code.h"
#include "support/debug_log.h"

namespace tilewright::cpu {
namespace {

using Function = decltype(MachineCode::function);

constexpr std::size_t kMostFunctions = 4096, kMostBytes = std::size_t{64} << 20;

Function executable(std::vector<std::uint8_t> code) {
    static auto* const kKept =
        new KeptCode("machine code of small tiles", kMostFunctions, kMostBytes);
    code.insert(code.end(), {0xC5, 0xF8, 0x77, 0xC3});  // vzeroupper, ret
    return reinterpret_cast<Function>(kKept->keep(code));
}

void set_targets(Program& program, const std::vector<std::size_t>& moved) {
    for (Instruction& instruction : program.code) {
        if (auto* jump = std::get_if<Jump>(&instruction)) jump->target = moved[jump->target];
        if (auto* jump = std::get_if<JumpUnless>(&instruction)) jump->target = moved[jump->target];
        if (auto* test = std::get_if<LoopTest>(&instruction)) test->target = moved[test->target];
        if (auto* next = std::get_if<LoopNext>(&instruction)) next->target = moved[next->target];
    }
}

/// How many jumps go to each place.
std::map<std::size_t, int> jumps_to(const Program& program) {
    std::map<std::size_t, int> jumps;
    for (const Instruction& instruction : program.code) {
        if (const auto* jump = std::get_if<Jump>(&instruction)) ++jumps[jump->target];
        if (const auto* jump = std::get_if<JumpUnless>(&instruction)) ++jumps[jump->target];
        if (const auto* test = std::get_if<LoopTest>(&instruction)) ++jumps[test->target];
        if (const auto* next = std::get_if<LoopNext>(&instruction)) ++jumps[next->target];
    }
    return jumps;
}

/// The code of instructions that follow each other, in the order in which they run: loops whose
/// bounds are known are done as often as they run.
class Trace {
  public:
    Trace(const Program& program, ConstantPool& pool, int lanes, KnownSlots known)
        : program_(program), known_(std::move(known)), vectors_(pool, lanes) {}

    /// Goes on from `first` up to `stop` at most. False if it has to stop earlier: at `end()`.
    bool run(std::size_t first, std::size_t stop, const std::map<std::size_t, int>& jumps) {
        std::size_t at = first, exit = stop + 1;  // `exit`: where the loop that was last done ends
        end_ = first;
        while (at != stop) {
            if (loops_.empty()) end_ = at;
            const Instruction& instruction = program_.code[at];
            const auto found = jumps.find(at);
            const int others = found == jumps.end() ? 0 : found->second;
            if (const auto* test = std::get_if<LoopTest>(&instruction)) {
                const bool again = !loops_.empty() && loops_.back().test == at;
                if (!again && others > (at == exit ? 2 : 1)) return false;
                const auto left = trips(*test);
                if (!left || *left > kMostIterations || ++iterations_ > kMostIterations)
                    return false;
                if (*left > 0) {
                    if (!again)
                        loops_.push_back({at, size()});
                    else if (size() + *left * (size() - loops_.back().size) > kMostSteps)
                        return false;
                    loops_.back().size = size();
                    ++at;
                } else {
                    if (again) loops_.pop_back();
                    at = exit = test->target;
                }
                continue;
            }
            if (const auto* next = std::get_if<LoopNext>(&instruction)) {
                if (loops_.empty() || loops_.back().test != next->target) return false;
                std::int64_t value = 0;
                if (__builtin_add_overflow(static_cast<std::int64_t>(known_.at(next->iv)),
                                           static_cast<std::int64_t>(known_.at(next->step)),
                                           &value)) {
                    loops_.pop_back();
                    at = exit = at + 1;
                } else {
                    set_slot(next->iv, static_cast<std::uint64_t>(value));
                    at = next->target;
                }
                continue;
            }
            const bool enters = others > (at == exit ? 1 : 0);
            if ((at != first && enters) || !add(instruction)) return false;
            ++at;
        }
        if (loops_.empty()) end_ = at;
        return loops_.empty();
    }
    std::size_t end() const { return end_; }
    bool is_worth_it() const { return has_tiles_; }
    /// To be done before the code.
    const std::vector<StoreView>& before() const { return before_; }

    std::optional<std::vector<std::uint8_t>> code() { return vectors_.encode(); }

  private:
    /// Bounds of what is compiled at once.
    static constexpr int kMostIterations = 256;
    static constexpr std::int64_t kMostSteps = 16384;

    /// Of the code so far, in steps.
    std::int64_t size() const { return static_cast<std::int64_t>(vectors_.size()); }

    /// How often a loop still runs; nullopt if its bounds are not known.
    std::optional<std::int64_t> trips(const LoopTest& test) const {
        const auto iv = known_.find(test.iv), hi = known_.find(test.hi),
                   step = known_.find(test.step);
        if (iv == known_.end() || hi == known_.end() || step == known_.end()) return {};
        const auto low = static_cast<std::int64_t>(iv->second),
                   high = static_cast<std::int64_t>(hi->second),
                   by = static_cast<std::int64_t>(step->second);
        std::int64_t span = 0;
        if (by <= 0 || __builtin_sub_overflow(high, low, &span)) return {};
        return span <= 0 ? 0 : (span - 1) / by + 1;
    }

    void set_slot(std::uint32_t slot, std::uint64_t bits) {
        written_.insert(slot);
        known_[slot] = bits;
        vectors_.store_slot_bits(8 * static_cast<std::int32_t>(slot), bits);
    }

    bool add(const Instruction& instruction) {
        if (size() > kMostSteps) return false;
        visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
            if (home == Home::slot && use != Use::read) written_.insert(index);
        });
        const auto* const chain = std::get_if<Chain>(&instruction);
        vectors_.set_early(chain == nullptr || chain->rows == 1);
        if (chain != nullptr) {
            has_tiles_ = true;
            return add_chain(vectors_, program_, *chain, known_);
        }
        if (const auto* pick = std::get_if<Pick>(&instruction)) {
            has_tiles_ = true;
            if (pick->out.home == Home::slot) known_.erase(pick->out.index);
            return add_pick(vectors_, program_, *pick, known_);
        }
        if (const auto* move = std::get_if<Move>(&instruction))
            return add_copy(vectors_, program_, *move);
        if (const auto* store = std::get_if<StoreView>(&instruction)) return add_before(*store);
        if (const auto* op = std::get_if<ScalarOp>(&instruction)) {
            if (const auto result = known_result(*op, known_)) {
                set_slot(op->out, *result);
                return true;
            }
            known_.erase(op->out);
            return add_scalar(vectors_, *op);
        }
        if (const auto* move = std::get_if<ScalarMove>(&instruction)) {
            if (const auto from = known_.find(move->from); from != known_.end()) {
                set_slot(move->to, from->second);
                return true;
            }
            known_.erase(move->to);
            return add_move(vectors_, *move);
        }
        return false;
    }

    /// Where a result goes may be known before it is made.
    bool add_before(const StoreView& store) {
        if (store.loads || !loops_.empty() || !has_tiles_) return false;
        for (const AccessIndex& index : store.access.indices) {
            if (index.kind == ir::Index::Kind::tile || written_.contains(index.slot)) return false;
        }
        before_.push_back(store);
        return true;
    }

    const Program& program_;
    KnownSlots known_;
    VectorCode vectors_;
    struct Loop {
        std::size_t test;
        std::int64_t size;  ///< of the code at the last test
    };
    std::vector<Loop> loops_;  ///< those that it is in
    std::vector<StoreView> before_;
    std::set<std::uint32_t> written_;  ///< slots
    std::size_t end_ = 0;
    int iterations_ = 0;
    bool has_tiles_ = false;
};

KnownSlots constant_slots(const Program& program) {
    KnownSlots known;
    for (const std::uint32_t slot : program.constant_slots)
        known[slot] = program.initial_slots[slot];
    return known;
}

/// What is known after an instruction.
void follow(const Instruction& instruction, KnownSlots& known) {
    const auto* move = std::get_if<ScalarMove>(&instruction);
    const auto from = move != nullptr ? known.find(move->from) : known.end();
    if (from != known.end()) {
        known[move->to] = from->second;
        return;
    }
    visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
        if (home == Home::slot && use != Use::read) known.erase(index);
    });
}

}  // namespace

void compile_small_tiles(Program& program) {
    const int lanes = static_cast<int>(program.kernels->vector_bytes / 4);
    if (!wants_machine_code() || (lanes != 16 && lanes != 8)) return;
    const std::map<std::size_t, int> jumps = jumps_to(program);
    const KnownSlots constants = constant_slots(program);
    struct Found {
        std::vector<StoreView> before;
        MachineCode code;
    };
    std::map<std::size_t, Found> found;  // by the first instruction
    ConstantPool pool(program);
    KnownSlots known = constants;
    std::size_t reach = program.code.size();  // instructions that one function may have room for
    for (std::size_t first = 0; first < program.code.size();) {
        const bool is_loop = std::holds_alternative<LoopTest>(program.code[first]);
        if (!is_loop && jumps.contains(first)) known = constants;
        std::size_t end = first, next = first + 1;
        bool is_partial = reach < (program.code.size() - first) / 2;
        for (std::size_t stop = is_partial ? first + 2 * reach : program.code.size();;) {
            Trace trace(program, pool, lanes, known);
            const bool done = trace.run(first, stop, jumps);
            stop = trace.end();
            if (stop == first && is_partial) {  // a longer loop
                is_partial = false;
                stop = reach = program.code.size();
                continue;
            }
            if (stop == first) break;
            if (!done) continue;
            // What begins further on has the same end.
            if (!trace.is_worth_it()) {
                next = stop;
                break;
            }
            const auto code = trace.code();
            if (!code) {  // fewer instructions may need less of the stack
                reach = (stop - first) / 2;
                if (reach == 0) break;
                stop = first + reach;
                continue;
            }
            if (const Function function = executable(*code)) {
                found[first] = {trace.before(), {function, stop - first}};
                end = stop;
            } else {
                debug_log(program.kernel.name,
                          "slow path: no machine code for small tiles, since the process keeps at "
                          "most {} functions and {} MiB of it, or the system refuses memory",
                          kMostFunctions, kMostBytes >> 20);
            }
            next = stop;
            break;
        }
        if (end > first) {
            known = constants;
            first = end;
            continue;
        }
        for (; first < next; ++first) {
            const bool begins = std::holds_alternative<LoopTest>(program.code[first]);
            if (begins || jumps.contains(first)) known = constants;
            follow(program.code[first], known);
        }
    }
    if (found.empty()) return;
    std::vector<Instruction> code;
    std::vector<std::uint32_t> lines;
    std::vector<std::size_t> moved;
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        moved.push_back(code.size());
        if (const auto here = found.find(i); here != found.end()) {
            for (const StoreView& store : here->second.before) code.emplace_back(store);
            code.emplace_back(here->second.code);
            lines.resize(code.size(), program.lines[i]);
        }
        code.push_back(std::move(program.code[i]));
        lines.push_back(program.lines[i]);
    }
    program.code = std::move(code);
    program.lines = std::move(lines);
    set_targets(program, moved);
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

void compile_small_tiles(Program&) {}

}  // namespace tilewright::cpu

#endif
