// Which products wgmma supports (PTX ISA, wgmma.mma_async), and how many warpgroups compute them.
#include "cuda/schedule/select_dots.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/select_chain.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

/// Of a product's m x n; `rows` is what the dot calls its rows.
std::vector<int> choose_groups(std::int64_t m, std::int64_t n, const char* rows, int turns) {
    if (turns > 1 && (m == kRows || m == 2 * kRows)) return {1, 1};
    if (m == 2 * kRows || m == 4 * kRows) return {2, 1};
    if (m != kRows) {
        throw Refused(fmt::format("a dot has {} {}, not 64, 128 or 256", m, rows));
    }
    const bool halves = n % (2 * kPanel) == 0 && cover(n).repeat == 1;
    return {1, halves ? 2 : 1};
}

/// The loop that the program is built around.
Instruction& only_loop(Program& program) {
    Instruction* loop = nullptr;
    for (Instruction& made : program.body.body) {
        if (made.is(ir::Op::dot)) throw Refused("a dot stands outside of a loop");
        if (!made.is(ir::Op::for_loop)) continue;
        if (loop != nullptr) throw Refused("it has several loops");
        loop = &made;
    }
    if (loop == nullptr) throw Refused("it has no loop with a dot");
    return *loop;
}

/// Products of 8-bit floats keep about 14 bits of their sums (DeepSeek-V3, section 3.3.2), so each
/// iteration has a sum of its own, which is added to the total in f32.
bool is_promoted(DType operands) {
    return is_float(operands) && size_of(operands) == 1;
}

/// The accumulator type of wgmma for operands of this type, given the flags of `dot`.
DType sum_type(const Instruction& dot, DType operands) {
    switch (operands) {
        case DType::bf16:
        case DType::f16:
        case DType::f8e4m3:
        case DType::f8e5m2:
            return DType::f32;
        case DType::i8:
        case DType::u8:
            return DType::i32;
        case DType::f32:
            if (dot.has("tf32")) return DType::f32;
            throw Refused("a dot has operands of f32 and not the precision tf32");
        default:
            throw Refused(fmt::format("a dot has operands of {}", tilewright::name(operands)));
    }
}

class Selection {
  public:
    Selection(Program& program, Instruction& loop)
        : p_(program), loop_(loop), body_(loop.blocks[0]), uses_(program) {}

    void run() {
        const Value low = loop_.operands[0];
        bool found = false;
        Value later;  // the first iteration does not add, so nothing needs to be zeroed
        if (runs_) later = p_.add({false, {DType::boolean, {}}, {}}, "later");
        std::vector<Instruction> iteration;
        for (const Instruction& made : body_.body) {
            if (made.is(ir::Op::for_loop)) throw Refused("a loop stands inside of a loop");
            if (made.is(ir::Op::dot)) {
                found = true;
                select(made, later, iteration);
            } else {
                iteration.push_back(made);
            }
        }
        for (const Instruction& made : body_.body) check_iteration(made);
        body_.body = std::move(iteration);
        if (!found) throw Refused("its loop has no dot");
        for (Value argument :
             std::vector<Value>(body_.arguments.begin() + 1, body_.arguments.end())) {
            if (!accumulators_.contains(argument)) {
                throw Refused("its loop carries more than accumulators");
            }
        }
        if (later && std::any_of(body_.body.begin(), body_.body.end(),
                                 [](const Instruction& made) { return made.has("conditional"); })) {
            body_.body.insert(body_.body.begin(),
                              make(ir::Op::gt, {body_.arguments[0], low}, {later}));
        }
    }

    bool runs_ = false;  ///< at least one iteration in every call
    std::vector<Instruction> before;

  private:
    void select(const Instruction& dot, Value later, std::vector<Instruction>& iteration) {
        const ir::Type type = p_.type(dot.result()).type;
        const DType in = p_.type(dot.operands[0]).type.dtype;
        if (type.shape.rank() != 2) throw Refused("a dot has a batch axis");
        if (p_.type(dot.operands[1]).type.dtype != in) throw Refused("a dot has mixed operands");
        if (sum_type(dot, in) != type.dtype) {
            throw Refused(fmt::format("a dot of {} gives {}", tilewright::name(in),
                                      tilewright::name(type.dtype)));
        }
        if (dot.operands.size() < 3) throw Refused("a dot in the loop does not accumulate");
        const Operand left = operand(dot, 0), right = operand(dot, 1);
        const bool fragments = size_of(in) != 2 && (left.across || right.across);
        if (fragments) expect_fragments(in, left, right);
        const bool swaps = fragments && right.across;
        choose(swaps ? Sums::swapped : fragments ? Sums::fragments : Sums::plain, type.shape);
        if (is_promoted(in) && type.shape[0] > kRows * p_.groups[0]) {
            throw Refused("sums of f8 take twice the registers");
        }
        expect_rows(left);
        expect_rows(right);
        Instruction made = make(Op::wgmma, {dot.operands[2]}, dot.results);
        made.line = dot.line;
        if (fragments) {
            const ir::Shape& tile = p_.type(swaps ? right.tile : left.tile).type.shape;
            const Value read = p_.add({false, {in, {tile[1], tile[0]}}, {}, true}, "fragments");
            iteration.push_back(make(Op::read_fragments, {swaps ? right.tile : left.tile}, {read}));
            made.operands.push_back(read);
            made.operands.push_back(swaps ? left.tile : right.tile);
            made.flag("registers").flag("transpose_b");
            if (swaps) made.flag("swapped");
        } else {
            made.operands.push_back(left.tile);
            made.operands.push_back(right.tile);
            if (left.across) made.flag("transpose_a");
            if (!right.across) made.flag("transpose_b");
        }
        accumulate(dot, made.operands[0], is_promoted(in));
        if (is_promoted(in)) return promote(std::move(made), iteration);
        if (later) {
            made.operands.insert(made.operands.begin() + 1, later);
            made.flag("conditional");
        }
        iteration.push_back(std::move(made));
    }

    /// A tile that a dot reads, and whether its inner dimension is the first axis in memory.
    struct Operand {
        Value tile;
        bool across = false;
    };

    Operand operand(const Instruction& dot, int side) const {
        Operand result{dot.operands[side]};
        bool transposed = dot.has(side == 0 ? "transpose_a" : "transpose_b");
        const Instruction* source = uses_.definition(result.tile);
        if (source != nullptr && source->is(ir::Op::transpose)) {
            transposed = !transposed;
            result.tile = source->operands[0];
            source = uses_.definition(result.tile);
        }
        if (source == nullptr || !source->is(ir::Op::load)) {
            throw Refused("an operand of a dot is computed");
        }
        result.across = (side == 0) == transposed;
        return result;
    }

    void expect_rows(const Operand& operand) const {
        const ir::Type& type = p_.type(operand.tile).type;
        const std::int64_t panel = 128 / size_of(type.dtype);
        if (type.shape[1] % panel != 0) {
            throw Refused(fmt::format("an operand's rows have {} elements, not a multiple of {}",
                                      type.shape[1], panel));
        }
        if (type.shape[operand.across ? 0 : 1] % kStep != 0) {
            throw Refused("a dot's inner dimension is no multiple of 16");
        }
    }

    /// wgmma reads operands of other than 16 bits from shared memory along their inner dimension
    /// only. A left operand of 32 bits may come from registers instead; so may the right one, as
    /// the left one of the transposed product.
    static void expect_fragments(DType in, const Operand& left, const Operand& right) {
        if (left.across && right.across) {
            throw Refused(fmt::format(
                "the inner dimension of a dot of {} is not the last one of either operand's array",
                tilewright::name(in)));
        }
        if (size_of(in) == 4) return;
        throw Refused(
            fmt::format("the inner dimension of a dot of {} is not the last one of the {} "
                        "operand's array",
                        tilewright::name(in), left.across ? "left" : "right"));
    }

    /// The warpgroups of a tile, which all products share.
    void choose(Sums sums, const ir::Shape& tile) {
        const bool swaps = sums == Sums::swapped;
        const std::int64_t m = tile[swaps ? 1 : 0], columns = tile[swaps ? 0 : 1];
        std::vector<int> groups = choose_groups(m, columns, swaps ? "columns" : "rows", p_.turns);
        const std::int64_t n = columns / groups[1];
        if (n % kPanel != 0 || n > kMostN) {
            throw Refused(
                fmt::format("a dot has {} {} for a warpgroup, not a multiple of 64 up to 256", n,
                            swaps ? "rows" : "columns"));
        }
        if (p_.turns > 1) expect_turns();
        if (m > kRows * groups[0]) expect_registers(sums, tile);
        if (swaps) std::swap(groups[0], groups[1]);
        if (p_.groups.empty()) p_.groups = groups, sums_ = sums;
        if (sums_ != sums) throw Refused("its dots have operands in different orders");
        if (p_.groups != groups) throw Refused("its dots have different rows");
    }

    /// Warpgroups take programs in turn where all have equally many iterations, so that each knows
    /// what the other one consumes.
    void expect_turns() const {
        if (!runs_) throw Refused("its programs may have no iteration");
    }
    /// A warpgroup has sums of 128 rows.
    void expect_registers(Sums sums, const ir::Shape& tile) const {
        constexpr std::int64_t kMost = 192;  // registers of a thread
        const std::int64_t threads = p_.turns > 1 ? 128 : 256;
        if (sums != Sums::plain || tile.size() > kMost * threads) {
            throw Refused("its sums are too large for a warpgroup's registers");
        }
    }

    /// The sum of this iteration, and its addition to the carried one.
    void promote(Instruction made, std::vector<Instruction>& iteration) {
        const Value carry = made.operands[0], result = made.result();
        const Value partial = p_.add(ValueType(p_.type(carry)), "partial");
        const Value sum = p_.add(ValueType(p_.type(carry)), "sum");
        Instruction fresh = make(Op::fresh, {}, {partial});
        iteration.push_back(std::move(fresh.flag("partial")));
        made.operands[0] = partial;
        made.results[0] = sum;
        iteration.push_back(std::move(made.flag("overwrite")));
        iteration.push_back(make(ir::Op::add, {carry, sum}, {result}));
    }

    /// The accumulator is a carry that starts at zero and that the loop yields.
    void accumulate(const Instruction& dot, Value carry, bool from_zero) {
        const auto at = std::find(body_.arguments.begin() + 1, body_.arguments.end(), carry);
        if (at == body_.arguments.end() || uses_.count(carry) != 1) {
            throw Refused("an accumulator is not the loop's own");
        }
        const auto index = static_cast<std::size_t>(at - body_.arguments.begin() - 1);
        if (body_.body.back().operands[index] != dot.result() || uses_.count(dot.result()) != 1) {
            throw Refused("an accumulator changes between two iterations");
        }
        const Instruction* const init = uses_.definition(loop_.operands[3 + index]);
        if (init == nullptr || !init->is(ir::Op::constant) || init->attributes[0].numbers[0] != 0) {
            throw Refused("an accumulator does not start at zero");
        }
        const Value zeros = p_.add(p_.type(carry));
        before.push_back(make(Op::zeros, {}, {zeros}));
        loop_.operands[3 + index] = zeros;
        if (!runs_ || from_zero) {
            const Value cleared = p_.add(p_.type(carry));
            before.push_back(make(Op::clear, {zeros}, {cleared}));
            loop_.operands[3 + index] = cleared;
        }
        accumulators_.insert(carry);
    }

    void check_iteration(const Instruction& made) const {
        if (made.is(ir::Op::dot) || made.is(ir::Op::yield)) return;
        if (made.is(ir::Op::load) || made.is(ir::Op::transpose)) return;
        if (made.is(ir::Op::store)) throw Refused("its loop stores");
        for (Value result : made.results) {
            if (p_.is_tile(result) && !made.is(ir::Op::constant)) {
                throw Refused(fmt::format("its loop has `{}` of tiles", ir::name(made.tile)));
            }
        }
    }

    Program& p_;
    Instruction& loop_;
    Block& body_;
    Uses uses_;
    std::set<Value> accumulators_;
    Sums sums_ = Sums::plain;
};

}  // namespace

void select_dots(Program& program) {
    if (has_chains(program)) return select_chain(program);
    each_instruction(program.body, [](const Instruction& made) {
        if (made.is(ir::Op::reduce)) throw Refused("it has the operation `reduce`");
        if (is_gather(made)) throw Refused("it gathers by an index tile");
    });
    Instruction& loop = only_loop(program);
    if (constant_of(program, loop.operands[2]).value_or(0) <= 0) {
        throw Refused("its loop has no constant step");
    }
    Selection selection(program, loop);
    const auto low = constant_of(program, loop.operands[0]);
    const auto high = constant_of(program, loop.operands[1]);
    selection.runs_ = low && high && *low < *high;
    selection.run();
    const auto at = std::find_if(program.body.body.begin(), program.body.body.end(),
                                 [](const Instruction& made) { return made.is(ir::Op::for_loop); });
    program.body.body.insert(at, selection.before.begin(), selection.before.end());
    program.level = Level::selected;
}

}  // namespace tilewright::cuda::schedule
