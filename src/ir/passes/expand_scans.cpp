// Scans with the user's function as steps of doubling reach.
#include "ir/passes/expand_scans.h"

#include <array>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/passes/replace.h"

namespace tilewright::ir {
namespace {

class Expansion {
  public:
    Expansion(Function& function, const std::function<bool(const Instruction&)>& wanted)
        : wanted_(wanted), builder_(function) {}

    ExpandScansReport run() {
        expand(builder_.function().body);
        return report_;
    }

  private:
    void expand(Block& block) {
        std::vector<Instruction> old = std::exchange(block.body, {});
        builder_.push_block(block);
        for (Instruction& instruction : old) {
            replaced_.apply(instruction);
            for (Block& inner : instruction.blocks) expand(inner);
            const bool expands =
                instruction.op == Op::associative_scan && (!wanted_ || wanted_(instruction));
            if (!expands) {
                block.body.push_back(std::move(instruction));
                continue;
            }
            builder_.set_location(instruction.location);
            const std::vector<Value> results = steps(instruction);
            for (std::size_t i = 0; i < results.size(); ++i)
                replaced_.add(instruction.results[i], results[i]);
            ++report_.scans;
        }
        builder_.pop_block();
    }

    // After the step with `reach`, every element combines the last 2 * reach elements up to itself.
    std::vector<Value> steps(const Instruction& scan) {
        const auto& [combine, axis, reverse] = scan.get<CombineAttributes>();
        const auto split = scan.operands.begin() + std::ssize(scan.results);
        std::vector<Value> now(scan.operands.begin(), split);
        const std::vector<Value> captured(split, scan.operands.end());
        const std::int64_t length = builder_.type(now[0]).shape[axis];
        for (std::int64_t reach = 1; reach < length; reach *= 2) {
            const auto low = part(now, axis, 0, length - reach);
            const auto high = part(now, axis, reach, length - reach);
            std::vector<Value> arguments = reverse ? high : low;
            const auto& after = reverse ? low : high;
            arguments.insert(arguments.end(), after.begin(), after.end());
            arguments.insert(arguments.end(), captured.begin(), captured.end());
            const std::vector<Value> combined = builder_.call(combine, arguments);
            const auto kept =
                reverse ? part(now, axis, length - reach, reach) : part(now, axis, 0, reach);
            for (std::size_t i = 0; i < now.size(); ++i) {
                now[i] = builder_.concatenate(
                    reverse ? std::array{combined[i], kept[i]} : std::array{kept[i], combined[i]},
                    axis);
            }
        }
        return now;
    }

    /// `count` elements of each tile along the axis, from `first` on.
    std::vector<Value> part(const std::vector<Value>& values, int axis, std::int64_t first,
                            std::int64_t count) {
        std::vector<Value> parts;
        for (const Value value : values) {
            const Shape shape = builder_.type(value).shape;
            SliceAttributes slice;
            for (int a = 0; a < shape.rank(); ++a) {
                slice.starts.push_back(a == axis ? first : 0);
                slice.sizes.push_back(a == axis ? count : shape[a]);
                slice.strides.push_back(1);
            }
            parts.push_back(builder_.slice(value, slice));
        }
        return parts;
    }

    const std::function<bool(const Instruction&)>& wanted_;
    Builder builder_;
    ExpandScansReport report_;
    Replacements replaced_;
};

}  // namespace

ExpandScansReport expand_scans(Function& function,
                               const std::function<bool(const Instruction&)>& wanted) {
    bool any = false;
    walk(function.body, [&](const Instruction& i) { any |= i.op == Op::associative_scan; });
    return any ? Expansion(function, wanted).run() : ExpandScansReport();
}

}  // namespace tilewright::ir
