// Which loads share a channel, and where it is awaited and released.
#include "cuda/schedule/stage_chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/stage.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kMostRingSlots = 4;

class ChainStaging {
  public:
    explicit ChainStaging(Program& program) : p_(program), old_(program), uses_(old_) {}

    void run() {
        Block body;
        for (const Instruction& made : old_.body.body) {
            if (made.is(ir::Op::for_loop)) collect(made.blocks[0]);
        }
        std::map<std::string, std::size_t> last;  // the last loop that uses an invariant's channel
        const auto& all = old_.body.body;
        for (std::size_t i = 0; i < all.size(); ++i) {
            for (const Instruction* product : products_of(all[i])) {
                for (Value operand : memory_operands(*product)) {
                    if (staged_.at(operand).once) last[staged_.at(operand).channel] = i;
                }
            }
        }
        for (const Channel& channel : p_.channels) {
            const Value first = p_.add({true, {}, {}}, channel.name);
            counts_[channel.name] = first;
            Instruction count = make(Op::count, {}, {first});
            body.body.push_back(std::move(count.with_symbol("channel", channel.name)));
        }
        std::set<std::string> filled;
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (staged_.contains(result_of(all[i]))) continue;  // a load
            const auto products = products_of(all[i]);
            if (products.empty()) {
                body.body.push_back(all[i]);
                continue;
            }
            for (const Instruction* product : products) {
                for (Value operand : memory_operands(*product)) {
                    const Staged& staged = staged_.at(operand);
                    if (staged.once && filled.insert(staged.channel).second) {
                        fill(staged.channel, body);
                    }
                }
            }
            body.body.push_back(loop(all[i]));
            for (const auto& [channel, at] : last) {
                if (at == i) release(channel, body);
            }
        }
        p_.body = std::move(body);
        slots();
    }

  private:
    struct Staged {
        std::string channel, buffer;
        bool once = false;  ///< before the loops
        Instruction load;
    };

    static Value result_of(const Instruction& made) {
        return made.results.empty() ? Value() : made.results[0];
    }
    static std::vector<Value> memory_operands(const Instruction& product) {
        const std::size_t n = product.operands.size();
        std::vector<Value> operands;
        if (!product.has("registers") && !product.has("shared")) {
            operands.push_back(product.operands[n - 2]);
        }
        operands.push_back(product.operands[n - 1]);
        return operands;
    }

    /// Products of a loop and of loops inside it.
    static std::vector<const Instruction*> products_of(const Instruction& made) {
        std::vector<const Instruction*> products;
        for (const Block& inner : made.blocks) {
            each_instruction(inner, [&](const Instruction& one) {
                if (one.is(Op::wgmma)) products.push_back(&one);
            });
        }
        return products;
    }

    void collect(const Block& body) {
        for (const Instruction& made : body.body) {
            if (made.is(Op::wgmma)) collect(made, body);
            if (made.is(ir::Op::for_loop)) collect(made.blocks[0]);
        }
    }

    /// Loads whose first reader is a product.
    void collect(const Instruction& product, const Block& body) {
        std::vector<std::pair<const Instruction*, bool>> loads;
        std::string ring;  // loops whose iterations read tiles of one kind share its channel
        for (Value operand : memory_operands(product)) {
            if (staged_.contains(operand)) continue;
            const Instruction* const load = uses_.definition(operand);
            for (const Instruction* user : uses_.users(operand)) {
                if (!user->is(Op::wgmma))
                    throw Refused("an operand of a dot is used otherwise, too");
            }
            const auto is_in = [&](const Block& block) {
                return std::any_of(block.body.begin(), block.body.end(),
                                   [&](const Instruction& one) { return &one == load; });
            };
            const bool once = !is_in(body);
            if (once && !is_in(old_.body)) {
                throw Refused("an operand of a dot is loaded in a loop around the dot's");
            }
            loads.emplace_back(load, once);
            if (!once) {
                const std::string kind =
                    fmt::format("{} {} ", load->symbol("of"), ir::to_string(p_.type(operand).type));
                if (ring == kind) throw Refused("a dot multiplies two tiles of one array");
                ring += kind;
            }
        }
        if (&body != counted_) taken_.clear(), counted_ = &body;
        if (!ring.empty()) ring += fmt::format("{}", taken_[ring]++);
        for (const auto& [load, once] : loads) stage(*load, once, ring);
        if (!ring.empty()) known_.insert(ring);
    }

    void stage(const Instruction& load, bool once, const std::string& ring) {
        Staged staged;
        staged.once = once;
        staged.load = load;
        const std::string& ref = load.symbol("of");
        if (!once && known_.contains(ring)) {
            staged.channel = rings_.at(ring);
            const Channel& channel = p_.channel(staged.channel);
            for (const std::string& name : channel.buffers) {
                if (name.starts_with(ref + "_tile")) staged.buffer = name;
            }
        } else {
            Channel* channel = nullptr;
            if (!once && rings_.contains(ring)) {
                channel = &p_.channel(rings_.at(ring));
            } else {
                Channel made;
                made.name = fmt::format("{}{}", once ? "once" : "ring", p_.channels.size());
                made.empty_arrivals = 4 * p_.consumer_groups();
                p_.channels.push_back(made);
                channel = &p_.channels.back();
                if (!once) rings_[ring] = made.name;
            }
            staged.channel = channel->name;
            Buffer buffer =
                staged_buffer(p_, load, fmt::format("{}_tile{}", ref, p_.buffers.size()));
            staged.buffer = buffer.name;
            channel->buffers.push_back(buffer.name);
            channel->bytes += buffer.slot_bytes();
            p_.buffers.push_back(std::move(buffer));
        }
        staged_[load.result()] = std::move(staged);
    }

    static Instruction of_channel(Op op, Value count, const std::string& channel) {
        Instruction made = make(op, {count});
        return std::move(made.with_symbol("channel", channel));
    }

    /// The producer's copies of a channel, and the consumers' wait for them.
    void fill(const std::string& channel, Block& to, const std::set<Value>* of_loop = nullptr) {
        const Value count = counts_.at(channel);
        to.body.push_back(of_channel(Op::acquire, count, channel));
        to.body.push_back(of_channel(Op::publish, count, channel));
        for (const auto& [value, staged] : staged_) {
            if (staged.channel != channel || (of_loop != nullptr && !of_loop->contains(value))) {
                continue;
            }
            Buffer buffer = p_.buffer(staged.buffer);
            Map map = staged_map(p_, staged.load, buffer);
            Instruction made = make(Op::tma_load, staged.load.operands);
            made.line = staged.load.line;
            made.operands.push_back(count);
            made.with_symbol("map", map.name).with_symbol("to", staged.buffer);
            to.body.push_back(std::move(made.with_symbol("channel", channel)));
            const bool known = std::any_of(p_.maps.begin(), p_.maps.end(),
                                           [&](const Map& one) { return one.name == map.name; });
            if (!known) p_.maps.push_back(std::move(map));
        }
        to.body.push_back(of_channel(Op::await, count, channel));
    }

    void release(const std::string& channel, Block& to) {
        const Value count = counts_.at(channel), next = p_.add({true, {}, {}});
        to.body.push_back(of_channel(Op::release, count, channel));
        Instruction step = of_channel(Op::next, count, channel);
        step.results = {next};
        to.body.push_back(std::move(step));
        counts_[channel] = next;
    }

    Instruction loop(const Instruction& old) {
        Instruction same = old;
        const Block& from = old.blocks[0];
        Block& to = same.blocks[0];
        to.body.clear();
        std::set<Value> loads;
        std::map<std::string, std::size_t> last;
        std::vector<std::string> rings;
        for (std::size_t i = 0; i < from.body.size(); ++i) {
            const Instruction& made = from.body[i];
            if (staged_.contains(result_of(made))) loads.insert(result_of(made));
            if (!made.is(Op::wgmma)) continue;
            for (Value operand : memory_operands(made)) {
                if (!staged_.at(operand).once) last[staged_.at(operand).channel] = i;
            }
        }
        for (const Instruction* product : products_of(old)) {
            for (Value operand : memory_operands(*product)) {
                const Staged& staged = staged_.at(operand);
                const bool known =
                    std::find(rings.begin(), rings.end(), staged.channel) != rings.end();
                if (!staged.once && !known) rings.push_back(staged.channel);
            }
        }
        std::map<std::string, Value> results;
        for (const std::string& ring : rings) {
            same.operands.push_back(counts_.at(ring));
            counts_[ring] = p_.add({true, {}, {}});
            to.arguments.push_back(counts_.at(ring));
            results[ring] = p_.add({true, {}, {}});
            same.results.push_back(results[ring]);
        }
        std::set<std::string> filled;
        for (std::size_t i = 0; i < from.body.size(); ++i) {
            const Instruction& made = from.body[i];
            if (loads.contains(result_of(made))) continue;
            if (made.is(ir::Op::yield)) {
                Instruction yield = made;
                for (const std::string& ring : rings) yield.operands.push_back(counts_.at(ring));
                to.body.push_back(std::move(yield));
                continue;
            }
            if (!made.is(Op::wgmma)) {
                to.body.push_back(products_of(made).empty() ? made : loop(made));
                continue;
            }
            for (Value operand : memory_operands(made)) {
                const Staged& staged = staged_.at(operand);
                if (!staged.once && filled.insert(staged.channel).second) {
                    fill(staged.channel, to, &loads);
                }
            }
            to.body.push_back(product(made));
            for (const std::string& ring : rings) {
                if (last.contains(ring) && last.at(ring) == i) release(ring, to);
            }
        }
        for (const auto& [ring, result] : results) counts_[ring] = result;
        return same;
    }

    Instruction product(const Instruction& old) const {
        Instruction made = old;
        const std::vector<Value> operands = memory_operands(old);
        made.operands.resize(old.operands.size() - operands.size());
        for (std::size_t i = 0; i < operands.size(); ++i) {
            const Staged& staged = staged_.at(operands[i]);
            made.with_symbol(i + 1 == operands.size() ? "b" : "a", staged.buffer);
            made.operands.push_back(counts_.at(staged.channel));
        }
        return made;
    }

    /// As many as fit, up to four.
    void slots() {
        std::int64_t room = room_for_slots(p_), ring = 0;
        for (const Buffer& shared : old_.buffers) room -= shared.slot_bytes();
        for (const Channel& channel : p_.channels) {
            (channel.name.starts_with("ring") ? ring : room) +=
                channel.name.starts_with("ring") ? channel.bytes : -channel.bytes;
        }
        const std::int64_t slots = slots_of_ring(p_, ring == 0 ? 1 : room / ring, kMostRingSlots);
        if (slots < 2 && ring > 0) {
            throw Refused(fmt::format("shared memory has no room for two slots of {} bytes", ring));
        }
        for (Channel& channel : p_.channels) {
            if (!channel.name.starts_with("ring")) continue;
            channel.slots = static_cast<int>(slots);
            for (Buffer& buffer : p_.buffers) {
                const auto& own = channel.buffers;
                if (std::find(own.begin(), own.end(), buffer.name) != own.end()) {
                    buffer.slots = channel.slots;
                }
            }
        }
    }

    Program& p_;
    const Program old_;
    Uses uses_;
    std::map<Value, Staged> staged_;
    std::map<std::string, std::string> rings_;
    std::set<std::string> known_;
    std::map<std::string, int> taken_;
    const Block* counted_ = nullptr;
    std::map<std::string, Value> counts_;
};

}  // namespace

void stage_chain(Program& program) {
    ChainStaging(program).run();
    remove_unused(program);
    program.level = Level::staged;
}

}  // namespace tilewright::cuda::schedule
