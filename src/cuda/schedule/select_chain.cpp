// Which chained products wgmma supports (PTX ISA, wgmma.mma_async): the left operand in registers
// or shared memory, the right one in shared memory.
#include "cuda/schedule/select_chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

bool has_dots(const Block& block) {
    return std::any_of(block.body.begin(), block.body.end(),
                       [](const Instruction& made) { return made.is(ir::Op::dot); });
}

class Chain {
  public:
    explicit Chain(Program& program) : p_(program), uses_(program) {}

    void run() {
        bool looped = false;
        for (Instruction& made : p_.body.body) {
            if (made.is(ir::Op::dot)) throw Refused("a dot stands outside of a loop");
            if (looped && is_gather(made)) {
                throw Refused("it gathers by an index tile after its loops");
            }
            looped |= made.is(ir::Op::for_loop);
            if (made.is(ir::Op::for_loop)) nest(made);
        }
        each_instruction(p_.body, [](const Instruction& made) {
            if (made.is(ir::Op::dot)) throw Refused("a dot stands in a loop beside another loop");
        });
    }

  private:
    /// Loops with dots, and loops of such loops.
    void nest(Instruction& made) {
        if (constant_of(p_, made.operands[2]).value_or(0) <= 0) {
            throw Refused("its loop has no constant step");
        }
        Block& body = made.blocks[0];
        bool inner = false;
        for (Instruction& one : body.body) {
            if (one.is(ir::Op::store)) throw Refused("its loop stores");
            if (!one.is(ir::Op::for_loop)) continue;
            inner = true;
            nest(one);
        }
        if (has_dots(body)) return loop(body);
        if (!inner) throw Refused("a loop without a dot stands beside chained dots");
    }

    void loop(Block& body) {
        // x + a b is a product that starts from x, at the place of the addition.
        std::map<Value, const Instruction*> sums;
        for (const Instruction& made : body.body) {
            if (made.is(ir::Op::store)) throw Refused("its loop stores");
            if (!made.is(ir::Op::dot) || made.operands.size() > 2) continue;
            if (const Instruction* const sum = addition(made.result(), body)) {
                sums[sum->result()] = &made;
            }
        }
        std::vector<Instruction> iteration;
        for (const Instruction& made : body.body) {
            const auto sum = made.results.size() == 1 ? sums.find(made.result()) : sums.end();
            if (sum != sums.end()) {
                const Value product = sum->second->result();
                dot(*sum->second, made.operands[made.operands[0] == product ? 1 : 0], made.result(),
                    iteration);
            } else if (!made.is(ir::Op::dot)) {
                iteration.push_back(made);
            } else if (made.operands.size() > 2) {
                dot(made, made.operands[2], made.result(), iteration);
            } else if (addition(made.result(), body) == nullptr) {
                dot(made, std::nullopt, made.result(), iteration);
            }
        }
        body.body = std::move(iteration);
    }

    /// The addition in this block that is the only reader of a value.
    const Instruction* addition(Value value, const Block& body) const {
        if (uses_.count(value) != 1) return nullptr;
        const Instruction* const sum = uses_.users(value)[0];
        if (!sum->is(ir::Op::add) || sum->operands[0] == sum->operands[1]) return nullptr;
        const bool here = std::any_of(body.body.begin(), body.body.end(),
                                      [&](const Instruction& one) { return &one == sum; });
        const Value other = sum->operands[sum->operands[0] == value ? 1 : 0];
        const Instruction* const from = uses_.definition(other);
        const bool is_dot = from != nullptr && from->is(ir::Op::dot);
        return here && !is_dot ? sum : nullptr;
    }

    void dot(const Instruction& made, std::optional<Value> from, Value result,
             std::vector<Instruction>& iteration) {
        const ir::Type type = p_.type(made.result()).type;
        const DType in = p_.type(made.operands[0]).type.dtype;
        if (type.shape.rank() != 2) throw Refused("a dot has a batch axis");
        if (in != DType::bf16 && in != DType::f16) {
            throw Refused(fmt::format("a dot has operands of {}", tilewright::name(in)));
        }
        const std::int64_t m = type.shape[0], n = type.shape[1];
        if (m != kRows && m != 2 * kRows) {
            throw Refused(fmt::format("a dot has {} rows, not 64 or 128", m));
        }
        const std::vector<int> groups = {static_cast<int>(m / kRows), 1};
        if (p_.groups.empty()) p_.groups = groups;
        const bool shares = is_shared(made);
        if (p_.groups != groups && !shares) throw Refused("its dots have different rows");
        if (n % 8 != 0 || n > kMostN || cover(n).repeat != 1 || cover(n).size() != n) {
            throw Refused(fmt::format("a dot has {} columns, not a power of two up to 256", n));
        }
        Instruction product = make(Op::wgmma, {}, {result});
        product.line = made.line;
        std::vector<std::int64_t> own;
        if (p_.groups != groups) {
            // Its columns are cut between the warpgroups.
            own = {1, p_.consumer_groups()};
            const std::int64_t columns = n / own[1];
            if (columns % kPanel != 0 && kPanel % columns != 0)
                throw Refused("its dots have different rows");
        }
        const Instruction* const start = from ? uses_.definition(*from) : nullptr;
        if (start != nullptr && start->is(ir::Op::constant)) {
            if (start->attributes[0].numbers[0] != 0) {
                throw Refused("a sum starts from a constant that is not zero");
            }
            from = std::nullopt;
        }
        if (from) {
            if (uses_.count(*from) != 1) throw Refused("an accumulator is used otherwise, too");
            product.operands.push_back(*from);
        } else {
            const Value fresh = p_.add(ValueType(p_.type(result)));
            iteration.push_back(make(Op::fresh, {}, {fresh}));
            if (!own.empty()) iteration.back().with("groups", own);
            product.operands.push_back(fresh);
            product.flag("overwrite");
        }
        if (from && !own.empty()) throw Refused("its dots have different rows");
        for (int side = 0; side < 2; ++side) operand(made, side, product, iteration);
        if (!own.empty()) product.with("groups", own);
        iteration.push_back(std::move(product));
    }

    /// Is the left operand computed, and transposed? All warpgroups read it, so that it goes
    /// through shared memory.
    bool is_shared(const Instruction& dot) const {
        const Instruction* source = uses_.definition(dot.operands[0]);
        bool transposed = dot.has("transpose_a");
        if (source != nullptr && source->is(ir::Op::transpose)) {
            transposed = !transposed;
            source = uses_.definition(source->operands[0]);
        }
        return transposed && source != nullptr && !source->is(ir::Op::load);
    }

    void operand(const Instruction& made, int side, Instruction& product,
                 std::vector<Instruction>& iteration) {
        Value operand = made.operands[side];
        bool transposed = made.has(side == 0 ? "transpose_a" : "transpose_b");
        const Instruction* source = uses_.definition(operand);
        if (source != nullptr && source->is(ir::Op::transpose)) {
            transposed = !transposed;
            operand = source->operands[0];
            source = uses_.definition(operand);
        }
        const ir::Shape& shape = p_.type(operand).type.shape;
        if (shape[(side == 0) != transposed ? 1 : 0] % kStep != 0) {
            throw Refused("a dot's inner dimension is no multiple of 16");
        }
        if (source != nullptr && source->is(ir::Op::load)) {
            if (is_gather(*source)) throw Refused("an operand of a dot is gathered");
            if (shape[1] % kPanel != 0) {
                throw Refused(fmt::format(
                    "an operand's rows have {} elements, not a multiple of 64", shape[1]));
            }
            product.operands.push_back(operand);
            if (transposed) product.flag(side == 0 ? "transpose_a" : "transpose_b");
            return;
        }
        if (side == 1) throw Refused("the right operand of a dot is computed");
        // What is packed, or shared, is rounded.
        const bool casts = source != nullptr && source->is(ir::Op::cast) &&
                           p_.type(source->operands[0]).type.dtype == DType::f32;
        if (transposed) {
            return share(casts ? source->operands[0] : operand, p_.type(operand).type.dtype,
                         product, iteration);
        }
        if (cover(shape[1]).repeat != 1) {
            throw Refused("a computed operand's columns are no power of two");
        }
        ValueType type = p_.type(operand);
        type.packed = true;
        const Value packed = p_.add(type);
        iteration.push_back(make(Op::pack, {casts ? source->operands[0] : operand}, {packed}));
        product.operands.push_back(packed);
        product.flag("registers");
    }

    /// A panel of 64 columns, of which each warpgroup writes its rows.
    void share(Value tile, DType dtype, Instruction& product, std::vector<Instruction>& iteration) {
        const ir::Type& type = p_.type(tile).type;
        if (type.dtype != DType::f32 || type.shape[1] != kPanel ||
            type.shape[0] != kRows * p_.consumer_groups()) {
            throw Refused("a computed operand that is transposed is no f32 tile of 64 columns");
        }
        Buffer buffer;
        buffer.name = fmt::format("shared{}", p_.buffers.size());
        buffer.dtype = dtype;
        buffer.rows = type.shape[0];
        buffer.columns = kPanel;
        Instruction made = make(Op::share, {tile});
        iteration.push_back(std::move(made.with_symbol("to", buffer.name)));
        product.flag("transpose_a").flag("shared").with_symbol("a", buffer.name);
        p_.buffers.push_back(std::move(buffer));
    }

    Program& p_;
    Uses uses_;
};

}  // namespace

bool has_chains(const Program& program) {
    const Uses uses(program);
    bool chained = false;
    for (const Instruction& loop : program.body.body) {
        if (!loop.is(ir::Op::for_loop)) continue;
        std::set<Value> computed;  // from a dot of this iteration
        each_instruction(loop.blocks[0], [&](const Instruction& made) {
            const bool follows =
                std::any_of(made.operands.begin(), made.operands.end(),
                            [&](Value operand) { return computed.contains(operand); });
            if (made.is(ir::Op::dot)) {
                chained |=
                    computed.contains(made.operands[0]) || computed.contains(made.operands[1]);
            }
            if (follows || made.is(ir::Op::dot)) {
                computed.insert(made.results.begin(), made.results.end());
            }
        });
    }
    return chained;
}

void select_chain(Program& program) {
    Chain(program).run();
    if (!is_chained(program)) {
        throw Refused("its dots follow from each other, but none of them starts at zero");
    }
    remove_unused(program);
    program.level = Level::selected;
}

}  // namespace tilewright::cuda::schedule
