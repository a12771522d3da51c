// The delayed product, and products one after the other.
#include "cuda/schedule/pipeline_dots.h"

#include <algorithm>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

/// Registers of a consumer thread, of 240, that tiles of a delayed loop may take: the rest are for
/// addresses, per-row values and temporaries.
constexpr int kTileRegisters = 192;

bool has_products(const Instruction& made) {
    return made.is(ir::Op::for_loop) &&
           std::any_of(made.blocks[0].body.begin(), made.blocks[0].body.end(),
                       [](const Instruction& one) { return one.is(Op::wgmma); });
}

/// The registers that a product reads or writes: its accumulator and its operand.
std::vector<Value> touched(const Instruction& product) {
    const Product parts(product);
    std::vector<Value> values = {parts.accumulator};
    if (parts.registers) values.push_back(*parts.registers);
    return values;
}

/// The parts of a delayed loop, in the order of the iteration.
struct Parts {
    std::vector<Instruction> head;     ///< scalars and await before the first product
    Instruction first, second;         ///< products
    std::vector<Instruction> done;     ///< release and next after the first product
    std::vector<Instruction> await;    ///< before the second product
    std::vector<Instruction> between;  ///< what follows from the first product
    std::vector<Instruction> update;   ///< what changes the accumulator, and the operand's packing
    std::vector<Instruction> last;     ///< release and next after the second product
    std::size_t carry = 0;             ///< the carry that goes through the second product
};

class Pipeline {
  public:
    explicit Pipeline(Program& program) : p_(program) {}

    void run() {
        for (Instruction& role : p_.body.body) {
            if (!role.is(Op::role) || role.symbol("of") != "consumer") continue;
            for (Instruction& programs : role.blocks[0].body) {
                if (programs.is(Op::programs)) block(programs.blocks[0]);
            }
            if (!ping_pong_) continue;
            std::vector<Instruction>& body = role.blocks[0].body;
            body.insert(body.begin(), std::move(make(Op::issue_end, {}).flag("first")));
        }
    }

  private:
    void block(Block& of) {
        Block to;
        to.arguments = of.arguments;
        for (Instruction& made : of.body) {
            if (!has_products(made)) {
                if (made.is(ir::Op::for_loop)) block(made.blocks[0]);
                to.body.push_back(std::move(made));
            } else if (const auto parts = delayed(made)) {
                rotate(made, *parts, to);
            } else {
                in_order(made.blocks[0]);
                to.body.push_back(std::move(made));
            }
        }
        of = std::move(to);
    }

    // ---- Products that are waited for where they are wanted.

    /// A product in flight.
    struct Group {
        std::vector<Value> registers;  ///< its sum, then its operand
        std::set<std::string> channels;
    };

    void in_order(Block& of) {
        std::vector<Instruction> body, postponed;
        std::vector<Group> groups;
        std::map<Value, Value> waited;
        const auto finish = [&](std::size_t pending) {
            std::vector<Value> values;
            while (groups.size() > pending) {
                const std::vector<Value>& done = groups.front().registers;
                values.insert(values.end(), done.begin(), done.end());
                groups.erase(groups.begin());
            }
            if (values.empty()) return;
            const std::vector<Value> results = wait(values, static_cast<int>(pending), body);
            for (std::size_t i = 0; i < values.size(); ++i) waited[values[i]] = results[i];
            // Slots that no product reads any more are given back.
            std::vector<Instruction> later;
            for (Instruction& made : postponed) {
                const bool reads = is_read(groups, made.symbol("channel"));
                (reads ? later : body).push_back(std::move(made));
            }
            postponed = std::move(later);
        };
        for (Instruction& made : of.body) {
            for (const auto& [value, by] : waited) replace(made, value, by);
            if (made.has("channel") && (made.is(Op::release) || made.is(Op::next)) &&
                is_read(groups, made.symbol("channel"))) {
                postponed.push_back(std::move(made));
                continue;
            }
            const auto wants = [&](const Group& group) {
                return std::any_of(made.operands.begin(), made.operands.end(), [&](Value operand) {
                    return std::find(group.registers.begin(), group.registers.end(), operand) !=
                           group.registers.end();
                });
            };
            std::size_t pending = groups.size();  // those younger than what is wanted
            for (std::size_t i = 0; i < groups.size(); ++i) {
                if (wants(groups[i])) pending = groups.size() - 1 - i;
            }
            if (made.is(ir::Op::yield)) pending = 0;
            finish(pending);
            for (const auto& [value, by] : waited) replace(made, value, by);
            if (!made.is(Op::wgmma)) {
                body.push_back(std::move(made));
                continue;
            }
            Group group{touched(made), channels_of(p_, made)};
            group.registers[0] = made.result();
            start(std::move(made), body);
            groups.push_back(std::move(group));
        }
        of.body = std::move(body);
        if (alternates(of)) alternate(of);
    }

    /// Do warpgroups gain from ping-pong: issuing their first products one after the other, so that
    /// one computes while the other one multiplies? So the gradients of keys and values of 128
    /// columns do; those of queries, and those of 64 columns, are not faster.
    bool alternates(const Block& of) const {
        constexpr std::int64_t kColumns = 128;
        constexpr int kProducts = 4;
        int products = 0;
        std::int64_t most = 0;
        for (const Instruction& made : of.body) {
            if (!made.is(Op::wgmma)) continue;
            if (made.has("shared")) return false;
            ++products;
            most = std::max(most, p_.type(made.result()).type.shape[1]);
        }
        return p_.groups == std::vector<int>{2, 1} && products >= kProducts && most == kColumns;
    }

    /// From the first product to the first wait, if several products are issued between the two.
    void alternate(Block& of) {
        const auto find = [&](Op op) {
            return std::find_if(of.body.begin(), of.body.end(),
                                [&](const Instruction& made) { return made.is(op); });
        };
        const auto wait = find(Op::wgmma_wait);
        const auto issued = std::count_if(
            of.body.begin(), wait, [](const Instruction& made) { return made.is(Op::wgmma); });
        if (issued < 2) return;
        of.body.insert(wait, make(Op::issue_end, {}));
        of.body.insert(find(Op::wgmma_fence), make(Op::issue_begin, {}));
        ping_pong_ = true;
    }

    static bool is_read(const std::vector<Group>& groups, const std::string& channel) {
        return std::any_of(groups.begin(), groups.end(),
                           [&](const Group& group) { return group.channels.contains(channel); });
    }

    /// A product, and the wait for it.
    Value issue(Instruction product, std::vector<Instruction>& to) {
        const Value result = product.result();
        start(std::move(product), to);
        return wait({result}, 0, to)[0];
    }
    static void start(Instruction product, std::vector<Instruction>& to) {
        const Value result = product.result();
        std::vector<Value> after = touched(product), before = after;
        if (product.has("overwrite")) before.erase(before.begin());  // they are undefined
        to.push_back(make(Op::wgmma_fence, std::move(before)));
        after[0] = result;
        to.push_back(std::move(product));
        to.push_back(make(Op::wgmma_commit, after));
    }
    std::vector<Value> wait(const std::vector<Value>& values, int pending,
                            std::vector<Instruction>& to) {
        std::vector<Value> waited;
        for (Value value : values) waited.push_back(p_.add(ValueType(p_.type(value))));
        Instruction made = make(Op::wgmma_wait, values, waited);
        to.push_back(std::move(made.with("pending", pending).flag("finished")));
        return waited;
    }

    // ---- The delayed product.

    std::optional<Parts> delayed(const Instruction& loop) const {
        const Block& body = loop.blocks[0];
        const std::vector<Instruction>& all = body.body;
        std::vector<std::size_t> products;
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i].is(Op::wgmma)) products.push_back(i);
        }
        if (products.size() != 2) return std::nullopt;
        Parts parts;
        parts.first = all[products[0]];
        parts.second = all[products[1]];
        const Product first(parts.first), second(parts.second);
        if (first.registers || !second.registers || !parts.first.has("overwrite")) {
            return std::nullopt;
        }
        // The second sum is a carry that nothing else reads.
        const std::vector<Value>& yielded = all.back().operands;
        const Value sum = parts.second.result();
        const auto at = std::find(yielded.begin(), yielded.end(), sum);
        if (at == yielded.end()) return std::nullopt;
        parts.carry = static_cast<std::size_t>(at - yielded.begin());
        int reads = 0;
        for (const Instruction& made : all) {
            reads += static_cast<int>(std::count(made.operands.begin(), made.operands.end(), sum));
        }
        if (reads != 1) return std::nullopt;
        if (registers(parts) > kTileRegisters) return std::nullopt;

        std::set<Value> of_carry = {body.arguments[1 + parts.carry]};
        const std::string& second_channel = p_.channel_of(parts.second.symbol("b")).name;
        for (std::size_t i = 0; i + 1 < all.size(); ++i) {
            const Instruction& made = all[i];
            if (i == products[0] || i == products[1]) continue;
            const bool of_channel = made.has("channel");
            if (of_channel && made.symbol("channel") == second_channel) {
                (made.is(Op::await) ? parts.await : parts.last).push_back(made);
                continue;
            }
            if (of_channel && !made.is(Op::await)) {
                parts.done.push_back(made);
                continue;
            }
            const auto depends = [&](const std::set<Value>& on) {
                return std::any_of(made.operands.begin(), made.operands.end(),
                                   [&](Value operand) { return on.contains(operand); });
            };
            if (depends(of_carry) || made.is(Op::pack)) {
                of_carry.insert(made.results.begin(), made.results.end());
                parts.update.push_back(made);
            } else if (i < products[0]) {
                parts.head.push_back(made);
            } else {
                parts.between.push_back(made);
            }
        }
        // The packing is part of the update, but no other part of the update may come before the
        // first product or be carried.
        const Value packed = *second.registers;
        for (std::size_t i = 0; i < yielded.size(); ++i) {
            if (i != parts.carry && of_carry.contains(yielded[i])) return std::nullopt;
        }
        if (!of_carry.contains(packed) || !of_carry.contains(second.accumulator)) {
            return std::nullopt;
        }
        if (parts.await.size() != 1 || parts.last.size() != 2 || parts.done.size() != 2) {
            return std::nullopt;
        }
        return parts;
    }

    int registers(const Parts& parts) const {
        const auto of = [&](Value value) {
            const ValueType& type = p_.type(value);
            return type.layout->registers() / (type.packed ? 2 : 1);
        };
        const Product second(parts.second);
        return of(parts.first.result()) + of(second.accumulator) + of(*second.registers);
    }

    using Copies = std::map<Value, Value>;
    static Value copy_of(const Copies& copies, Value value) {
        const auto found = copies.find(value);
        return found == copies.end() ? value : found->second;
    }
    void copy(const std::vector<Instruction>& from, Copies& copies, Block& to) {
        Block block;
        block.body = from;
        clone(p_, block, to, copies, [](const Instruction&) { return true; });
    }
    Instruction copy(const Instruction& from, Copies& copies) {
        Block to;
        copy(std::vector<Instruction>{from}, copies, to);
        return to.body.back();
    }

    void rotate(const Instruction& loop, const Parts& parts, Block& outer) {
        const Block& body = loop.blocks[0];
        const std::vector<Value>& yielded = body.body.back().operands;
        const Product second(parts.second);
        const std::size_t carries = yielded.size();
        const Value runs = p_.add({false, {DType::boolean, {}}, {}}, "runs");
        outer.body.push_back(make(ir::Op::lt, {loop.operands[0], loop.operands[1]}, {runs}));
        Instruction branch = make(ir::Op::if_else, {runs});

        // The first iteration, up to the operand of its second product.
        Block then;
        Copies peeled;
        for (std::size_t i = 0; i < carries; ++i)
            peeled[body.arguments[1 + i]] = loop.operands[3 + i];
        peeled[body.arguments[0]] = loop.operands[0];
        copy(parts.head, peeled, then);
        const Value first = issue(copy(parts.first, peeled), then.body);
        peeled[parts.first.result()] = first;
        copy(parts.done, peeled, then);
        copy(parts.between, peeled, then);
        copy(parts.update, peeled, then);

        // An iteration: its first product, and the second one of the previous iteration.
        Instruction iterations = make(ir::Op::for_loop, {});
        const Value start =
            append_scalar(p_, then, ir::Op::add, {loop.operands[0], loop.operands[2]});
        iterations.operands = {start, loop.operands[1], loop.operands[2]};
        Block iteration;
        Copies copies;
        const auto argument = [&](Value of) {
            iteration.arguments.push_back(p_.add(ValueType(p_.type(of))));
            return iteration.arguments.back();
        };
        copies[body.arguments[0]] = argument(body.arguments[0]);
        // What the next iteration gets from this one, in terms of this iteration.
        std::vector<Value> next;
        for (std::size_t i = 0; i < carries; ++i) {
            const bool sum = i == parts.carry;
            // Counts of the second channel lag by an iteration.
            const bool lags = yielded[i] == parts.last[1].result();
            const Value value = sum ? second.accumulator : yielded[i];
            iterations.operands.push_back(lags ? copy_of(peeled, body.arguments[1 + i])
                                               : copy_of(peeled, value));
            const Value own = argument(body.arguments[1 + i]);
            copies[body.arguments[1 + i]] = own;
            next.push_back(value);
        }
        iterations.operands.push_back(copy_of(peeled, *second.registers));
        const Value packed = argument(*second.registers);
        next.push_back(*second.registers);

        copy(parts.head, copies, iteration);
        start_copy(parts.first, copies, iteration);
        // The carry is the accumulator of the previous iteration.
        const Value accumulator = copies.at(body.arguments[1 + parts.carry]);
        Copies before = copies;
        before[second.accumulator] = accumulator;
        before[*second.registers] = packed;
        copy(parts.await, before, iteration);
        start_copy(parts.second, before, iteration);
        copies[parts.first.result()] =
            wait({copies.at(parts.first.result())}, 1, iteration.body)[0];
        copy(parts.done, copies, iteration);
        copy(parts.between, copies, iteration);
        const std::vector<Value> waited =
            wait({before.at(parts.second.result()), packed}, 0, iteration.body);
        copy(parts.last, before, iteration);
        copies[parts.last[1].result()] = before.at(parts.last[1].result());
        copies[body.arguments[1 + parts.carry]] = waited[0];
        copy(parts.update, copies, iteration);
        Instruction yield = make(ir::Op::yield, {});
        for (Value value : next) yield.operands.push_back(copy_of(copies, value));
        iteration.body.push_back(std::move(yield));
        for (std::size_t i = 0; i < next.size(); ++i) {
            iterations.results.push_back(p_.add(ValueType(p_.type(iteration.arguments[1 + i]))));
        }
        const std::vector<Value> results = iterations.results;
        iterations.blocks.push_back(std::move(iteration));
        then.body.push_back(std::move(iterations));

        // The second product of the last iteration.
        Copies end;
        end[second.accumulator] = results[parts.carry];
        end[*second.registers] = results.back();
        for (std::size_t i = 0; i < carries; ++i) {
            if (p_.type(body.arguments[1 + i]).is_count) end[body.arguments[1 + i]] = results[i];
        }
        copy(parts.await, end, then);
        const Value sum = issue(copy(parts.second, end), then.body);
        copy(parts.last, end, then);
        Instruction done = make(ir::Op::yield, {});
        for (std::size_t i = 0; i < carries; ++i) {
            const bool lags = yielded[i] == parts.last[1].result();
            done.operands.push_back(i == parts.carry ? sum
                                    : lags           ? end.at(parts.last[1].result())
                                                     : results[i]);
        }
        then.body.push_back(std::move(done));
        Block otherwise;
        Instruction same = make(ir::Op::yield, {});
        same.operands.assign(loop.operands.begin() + 3, loop.operands.end());
        otherwise.body.push_back(std::move(same));
        branch.blocks.push_back(std::move(then));
        branch.blocks.push_back(std::move(otherwise));
        branch.results = loop.results;
        outer.body.push_back(std::move(branch));
    }

    void start_copy(const Instruction& product, Copies& copies, Block& to) {
        start(copy(product, copies), to.body);
    }

    Program& p_;
    bool ping_pong_ = false;
};

}  // namespace

void pipeline_dots(Program& program) {
    Pipeline(program).run();
    remove_unused(program);
    program.level = Level::waiting;
}

}  // namespace tilewright::cuda::schedule
