// Copies to one role, the rest to the other, both in a loop over programs.
#include "cuda/schedule/warp_specialise.h"

#include <algorithm>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr int kGroupWarps = 4;

bool is_of_producer(const Instruction& made) {
    return made.is(Op::acquire) || made.is(Op::publish) || made.is(Op::tma_load) ||
           made.is(Op::thread_load) || made.is(Op::publish_copies);
}

bool is_scalar(const Program& program, const Instruction& made) {
    return made.op == Op::tile && made.blocks.empty() && !made.is(ir::Op::store) &&
           !made.is(ir::Op::atomic_add) && !made.is(ir::Op::yield) &&
           std::none_of(made.results.begin(), made.results.end(),
                        [&](Value result) { return program.is_tile(result); });
}

class Specialisation {
  public:
    explicit Specialisation(Program& program)
        : p_(program), chained_(is_chained(program)), old_(std::move(program.body)) {}

    void run() {
        const int groups = p_.all_consumer_groups();
        // With 384 threads a thread starts with 168 registers; with 256 it may keep 255.
        const bool share = groups == 2;
        const bool needs_most = chained_ || has_most_sums();
        const int most = needs_most ? 240 : 232, least = needs_most ? 24 : 40;
        const bool copies = std::any_of(p_.channels.begin(), p_.channels.end(),
                                        [](const Channel& one) { return one.copied > 0; });
        p_.roles = {{"consumer", 0, kGroupWarps * groups, share ? most : 0, false},
                    {"producer", kGroupWarps * groups, kGroupWarps, share ? least : 0, !copies}};
        find_computed(old_);
        p_.body = {};
        role("producer", true);
        role("consumer", false);
        order();
        remove_unused(p_);
        check_producer();
    }

  private:
    /// What lives from program to program: counts and the registers of accumulators.
    static bool is_carried(const Instruction& made, bool producer) {
        return made.is(Op::count) || (made.is(Op::zeros) && !producer);
    }

    /// Has a thread more than 128 registers of sums?
    bool has_most_sums() const {
        bool has = false;
        each_instruction(old_, [&](const Instruction& made) {
            if (!made.is(Op::wgmma)) return;
            const ir::Shape& shape = p_.type(made.result()).type.shape;
            has |= shape.size() > static_cast<std::int64_t>(128 * 128) * p_.consumer_groups();
        });
        return has;
    }

    void role(const char* name, bool producer) {
        Instruction role = make(Op::role, {});
        role.with_symbol("of", name);
        Block outer;
        Instruction programs = make(Op::programs, {});
        Block inner;
        std::map<Value, Value> copies;
        for (const Instruction& made : old_.body) {
            if (!is_carried(made, producer)) continue;
            Block one;
            one.body = {made};
            clone(p_, one, outer, copies, [](const Instruction&) { return true; });
            const Value first = outer.body.back().result();
            const Value argument = p_.add(p_.type(first), p_.value_name(first));
            programs.operands.push_back(first);
            inner.arguments.push_back(argument);
            copies[made.result()] = argument;
        }
        std::vector<Value> last = inner.arguments;
        for (const Instruction& made : old_.body) {
            if (is_carried(made, true) || made.is(Op::zeros) || made.is(ir::Op::yield)) continue;
            if (made.is(Op::next)) {
                copy(made, inner, copies);
                std::replace(last.begin(), last.end(), inner.body.back().operands[0],
                             inner.body.back().result());
            } else if (made.is(ir::Op::for_loop)) {
                loop(made, inner, copies, producer);
                // The carries of the loop that live on.
                const Instruction& done = inner.body.back();
                for (std::size_t i = 3; i < done.operands.size(); ++i) {
                    const Value from = origin(inner, done.operands[i]);
                    std::replace(last.begin(), last.end(), from, done.results[i - 3]);
                }
            } else if (producer ? is_of_producer(made) || is_known(made) : !is_of_producer(made)) {
                copy(made, inner, copies);
            }
        }
        inner.body.push_back(make(ir::Op::yield, last));
        for (Value argument : inner.arguments) {
            programs.results.push_back(p_.add(p_.type(argument)));
        }
        programs.blocks.push_back(std::move(inner));
        const std::vector<Value> ends = programs.results;
        outer.body.push_back(std::move(programs));
        if (producer) finish_copies(ends, outer);
        role.blocks.push_back(std::move(outer));
        p_.body.body.push_back(std::move(role));
    }

    /// Publishes the last slots that threads have copied to, too.
    void finish_copies(const std::vector<Value>& counts, Block& to) {
        for (const Channel& channel : p_.channels) {
            if (channel.copied == 0) continue;
            Instruction finish = make(Op::finish_copies, {counts.at(0)});
            finish.with_symbol("channel", channel.name);
            each_instruction(old_, [&](const Instruction& made) {
                if (made.is(Op::publish_copies)) finish.with("lag", made.number("lag"));
            });
            to.body.push_back(std::move(finish));
        }
    }

    void copy(const Instruction& made, Block& to, std::map<Value, Value>& copies) {
        Block one;
        one.body = {made};
        clone(p_, one, to, copies, [](const Instruction&) { return true; });
    }

    /// Scalars that follow from tiles, which the producer does not have.
    void find_computed(const Block& block) {
        each_instruction(block, [&](const Instruction& made) {
            const auto is_computed = [&](Value value) {
                return computed_.contains(value) || (p_.is_tile(value) && !p_.type(value).is_count);
            };
            if (!made.is(ir::Op::for_loop)) {
                const bool follows =
                    std::any_of(made.operands.begin(), made.operands.end(), is_computed);
                if (follows) computed_.insert(made.results.begin(), made.results.end());
                return;
            }
            // A carry may depend on later instructions of the iteration, so they are visited twice.
            const Block& body = made.blocks[0];
            for (int time = 0; time < 2; ++time) {
                for (std::size_t i = 0; i < made.results.size(); ++i) {
                    if (is_computed(made.operands[3 + i]) ||
                        is_computed(body.body.back().operands[i])) {
                        computed_.insert(body.arguments[1 + i]);
                        computed_.insert(made.results[i]);
                    }
                }
                if (time == 0) find_computed(body);
            }
        });
    }
    bool is_known(const Instruction& made) const {
        return is_scalar(p_, made) &&
               std::none_of(made.results.begin(), made.results.end(),
                            [&](Value value) { return computed_.contains(value); });
    }

    /// A cleared accumulator stands for the original one.
    static Value origin(const Block& block, Value value) {
        for (const Instruction& made : block.body) {
            if (made.is(Op::clear) && made.result() == value) return made.operands[0];
        }
        return value;
    }

    void loop(const Instruction& made, Block& to, std::map<Value, Value>& copies, bool producer) {
        const auto copy_of = [&](Value value) {
            const auto found = copies.find(value);
            return found == copies.end() ? value : found->second;
        };
        const Block& body = made.blocks[0];
        Instruction same = make(ir::Op::for_loop, {});
        for (int i = 0; i < 3; ++i) same.operands.push_back(copy_of(made.operands[i]));
        Block inner;
        const auto copy = [&](Value value) {
            return copies[value] = p_.add(ValueType(p_.type(value)), p_.value_name(value));
        };
        inner.arguments.push_back(copy(body.arguments[0]));
        std::vector<std::size_t> kept;
        for (std::size_t i = 1; i < body.arguments.size(); ++i) {
            const bool is_count = p_.type(body.arguments[i]).is_count;
            const bool known = chained_ && !p_.is_tile(body.arguments[i]) &&
                               !computed_.contains(body.arguments[i]);
            if (producer && !is_count && !known) continue;
            kept.push_back(i - 1);
            same.operands.push_back(copy_of(made.operands[2 + i]));
            inner.arguments.push_back(copy(body.arguments[i]));
        }
        const auto is_kept = [&](const Instruction& one) {
            if (one.is(Op::next)) return true;
            if (is_of_producer(one)) return producer;
            return is_known(one) || (!producer && !one.is(ir::Op::yield));
        };
        for (const Instruction& one : body.body) {
            if (one.is(ir::Op::for_loop)) {
                loop(one, inner, copies, producer);
            } else if (is_kept(one)) {
                Block single;
                single.body = {one};
                clone(p_, single, inner, copies, [](const Instruction&) { return true; });
            }
        }
        Instruction yield = make(ir::Op::yield, {});
        for (std::size_t i : kept) yield.operands.push_back(copy_of(body.body.back().operands[i]));
        inner.body.push_back(std::move(yield));
        for (std::size_t i : kept) same.results.push_back(copy(made.results[i]));
        same.blocks.push_back(std::move(inner));
        to.body.push_back(std::move(same));
    }

    /// Grid axes that only the first operand's coordinates depend on count rows of tiles, and those
    /// of the second operand alone columns; all others are outermost.
    void order() {
        if (chained_) return order_of_loops();
        const Uses uses(p_);
        std::map<std::string, std::set<int>> axes;  // of each buffer
        std::function<void(Value, std::set<int>&)> collect = [&](Value value, std::set<int>& of) {
            const Instruction* const made = uses.definition(value);
            if (made == nullptr) return;
            if (made->is(ir::Op::program_id)) of.insert(static_cast<int>(made->number("axis")));
            for (Value operand : made->operands) collect(operand, of);
        };
        const Instruction* product = nullptr;
        each_instruction(p_.body, [&](const Instruction& made) {
            if (made.is(Op::wgmma) && product == nullptr) product = &made;
            if (!made.is(Op::tma_load) && !made.is(Op::thread_load)) return;
            for (Value operand : made.operands) collect(operand, axes[made.symbol("to")]);
        });
        p_.order.rows = p_.order.columns = {};
        const auto [left, right] = operand_buffers(p_, *product);
        const std::set<int>&of_a = axes[left], &of_b = axes[right];
        for (int axis = 0; axis < std::ssize(p_.grid); ++axis) {
            const bool first = of_a.contains(axis), second = of_b.contains(axis);
            if (first && !second) p_.order.rows.push_back(axis);
            if (second && !first) p_.order.columns.push_back(axis);
        }
    }

    /// Grid axes that the rings' loads do not depend on are innermost.
    void order_of_loops() {
        const Uses uses(p_);
        std::set<int> of_loads, of_bounds;
        std::function<void(Value, std::set<int>&)> collect = [&](Value value, std::set<int>& of) {
            const Instruction* const made = uses.definition(value);
            if (made == nullptr) return;
            if (made->is(ir::Op::program_id)) of.insert(static_cast<int>(made->number("axis")));
            for (Value operand : made->operands) collect(operand, of);
        };
        bool irregular = false;
        std::function<void(Value)> look_for_loads = [&](Value value) {
            const Instruction* const made = uses.definition(value);
            if (made == nullptr) return;
            irregular |= made->is(ir::Op::load);
            for (Value operand : made->operands) look_for_loads(operand);
        };
        each_instruction(p_.body, [&](const Instruction& made) {
            if (!made.is(ir::Op::for_loop)) return;
            for (int i = 0; i < 3; ++i) {
                collect(made.operands[i], of_bounds);
                look_for_loads(made.operands[i]);
            }
            each_instruction(made.blocks[0], [&](const Instruction& inner) {
                if (!inner.is(Op::tma_load)) return;
                for (Value operand : inner.operands) collect(operand, of_loads);
            });
        });
        p_.order.inner = {};
        p_.order.unequal = !of_bounds.empty();
        p_.order.irregular = p_.order.unequal && irregular;
        for (int axis = 0; axis < std::ssize(p_.grid); ++axis) {
            if (!of_loads.contains(axis)) p_.order.inner.push_back(axis);
        }
    }

    /// The producer must have everything that its addresses depend on.
    void check_producer() const {
        std::set<Value> defined;
        for (const Parameter& one : p_.parameters) defined.insert(one.value);
        const auto define = [&](const std::vector<Value>& values) {
            defined.insert(values.begin(), values.end());
        };
        each_instruction(p_.body, [&](const Instruction& made) {
            define(made.results);
            for (const Block& inner : made.blocks) define(inner.arguments);
        });
        each_instruction(p_.body, [&](const Instruction& made) {
            for (Value operand : made.operands) {
                if (!defined.contains(operand)) {
                    throw Refused("what is loaded depends on what is computed");
                }
            }
        });
    }

    Program& p_;
    bool chained_;
    Block old_;
    std::set<Value> computed_;
};

}  // namespace

void warp_specialise(Program& program) {
    Specialisation(program).run();
    program.level = Level::specialised;
}

}  // namespace tilewright::cuda::schedule
