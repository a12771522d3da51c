// Dead code elimination: marks what is needed, loops to a fixpoint, then sweeps.
#include "ir/passes/dce.h"

#include <algorithm>

#include "ir/passes/effects.h"

namespace tilewright::ir {
namespace {

class Marker {
  public:
    explicit Marker(std::size_t num_values) : used_(num_values) {}

    bool used(Value value) const { return used_[value.id]; }

    bool live(const Instruction& instruction) const {
        return instruction.op == Op::yield || !effects(instruction).removable() ||
               std::ranges::any_of(instruction.results, [&](Value v) { return used(v); });
    }

    // Marks what the block needs if the yielded values in `needed` (by position) are needed.
    void mark(const Block& block, const std::vector<bool>& needed) {
        for (auto at = block.body.rbegin(); at != block.body.rend(); ++at) {
            const Instruction& instruction = *at;
            if (instruction.op == Op::yield) {
                for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
                    if (needed[i]) use(instruction.operands[i]);
                }
            } else if (live(instruction)) {
                mark(instruction);
            }
        }
    }

  private:
    void use(Value value) { used_[value.id] = true; }

    std::vector<bool> used_of(std::span<const Value> values) const {
        std::vector<bool> result;
        for (Value value : values) result.push_back(used(value));
        return result;
    }

    void mark(const Instruction& instruction) {
        const std::vector<bool> results = used_of(instruction.results);
        switch (instruction.op) {
            case Op::for_loop: {
                for (std::size_t i = 0; i < 3; ++i) use(instruction.operands[i]);
                mark_loop(instruction, 3, [&](const std::vector<bool>& needed) {
                    mark(instruction.blocks[0], needed);
                    return used_of(std::span(instruction.blocks[0].arguments).subspan(1));
                });
                return;
            }
            case Op::while_loop:
                mark_loop(instruction, 0, [&](const std::vector<bool>& needed) {
                    mark(instruction.blocks[0], {true});
                    mark(instruction.blocks[1], needed);
                    std::vector<bool> inside = used_of(instruction.blocks[0].arguments);
                    const auto body = used_of(instruction.blocks[1].arguments);
                    for (std::size_t i = 0; i < inside.size(); ++i) {
                        inside[i] = inside[i] || body[i];
                    }
                    return inside;
                });
                return;
            default:
                for (Value operand : instruction.operands) use(operand);
                for (const Block& block : instruction.blocks) mark(block, results);
        }
    }

    // A carry is needed if its result is, or if the loop's blocks use it, which may make others
    // needed in turn. Marks the results of needed carries, where the sweep finds them.
    template <typename Pass>
    void mark_loop(const Instruction& loop, std::size_t first_carry, Pass&& pass) {
        std::vector<bool> needed = used_of(loop.results);
        for (bool grew = true; grew;) {
            grew = false;
            const std::vector<bool> inside = pass(needed);
            for (std::size_t i = 0; i < needed.size(); ++i) {
                if (inside[i] && !needed[i]) needed[i] = grew = true;
            }
        }
        for (std::size_t i = 0; i < needed.size(); ++i) {
            if (!needed[i]) continue;
            use(loop.results[i]);
            use(loop.operands[first_carry + i]);
        }
    }

    std::vector<bool> used_;
};

template <typename T>
void keep(std::vector<T>& items, std::size_t offset, const std::vector<bool>& mask) {
    std::size_t to = offset;
    for (std::size_t i = 0; i < mask.size(); ++i) {
        if (mask[i]) items[to++] = items[offset + i];
    }
    items.resize(to);
}

class Sweeper {
  public:
    Sweeper(const Marker& marker, DceReport& report) : marker_(marker), report_(report) {}

    void sweep(Block& block) {
        const std::size_t before = block.body.size();
        std::erase_if(block.body, [&](const Instruction& i) { return !marker_.live(i); });
        report_.instructions += static_cast<int>(before - block.body.size());
        for (Instruction& instruction : block.body) sweep(instruction);
    }

  private:
    void sweep(Instruction& instruction) {
        if (!instruction.blocks.empty()) drop_unused(instruction);
        for (Block& block : instruction.blocks) sweep(block);
    }

    // Drops results that are not needed, with the carries, arguments and yields that made them.
    void drop_unused(Instruction& instruction) {
        std::vector<bool> mask;
        for (Value value : instruction.results) mask.push_back(marker_.used(value));
        const auto dropped = std::ranges::count(mask, false);
        if (dropped == 0) return;
        report_.carries += static_cast<int>(dropped);
        keep(instruction.results, 0, mask);
        if (instruction.op == Op::for_loop) keep(instruction.operands, 3, mask);
        if (instruction.op == Op::while_loop) keep(instruction.operands, 0, mask);
        for (std::size_t i = 0; i < instruction.blocks.size(); ++i) {
            Block& block = instruction.blocks[i];
            if (instruction.op != Op::if_else) {
                keep(block.arguments, instruction.op == Op::for_loop ? 1 : 0, mask);
            }
            const bool is_condition = instruction.op == Op::while_loop && i == 0;
            if (!is_condition) keep(block.body.back().operands, 0, mask);
        }
    }

    const Marker& marker_;
    DceReport& report_;
};

}  // namespace

DceReport dce(Function& function) {
    Marker marker(function.num_values());
    marker.mark(function.body, std::vector<bool>(function.body.terminator().operands.size(), true));
    DceReport report;
    Sweeper(marker, report).sweep(function.body);
    return report;
}

}  // namespace tilewright::ir
