// Common subexpression elimination, scoped by dominance.
#include "ir/passes/cse.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "ir/passes/effects.h"
#include "ir/passes/replace.h"

namespace tilewright::ir {
namespace {

// min and max of floats do not commute: of -0 and +0 a machine may return either, depending on
// their order.
bool commutes(Op op, DType dtype) {
    switch (op) {
        case Op::min:
        case Op::max:
            return !is_float(dtype);
        case Op::add:
        case Op::mul:
        case Op::bitwise_and:
        case Op::bitwise_or:
        case Op::bitwise_xor:
        case Op::eq:
        case Op::ne:
            return true;
        default:
            return false;
    }
}

// Instructions with equal keys have equal values. The key is a string of the raw fields.
class Key {
  public:
    template <typename T>
    Key& operator<<(const T& field) {
        static_assert(std::is_trivially_copyable_v<T>);
        text_.append(reinterpret_cast<const char*>(&field), sizeof(field));
        return *this;
    }
    template <typename T>
    Key& operator<<(const std::vector<T>& fields) {
        *this << fields.size();
        for (const T& field : fields) *this << field;
        return *this;
    }
    Key& operator<<(const Index& index) {
        return *this << index.kind << index.size << index.stride;
    }

    Key& operator<<(const Attributes& attributes) {
        *this << attributes.index();
        std::visit(
            [&](const auto& value) {
                using T = std::decay_t<decltype(value)>;
                if constexpr (std::is_same_v<T, ConstantAttributes>) {
                    *this << value.bits;
                } else if constexpr (std::is_same_v<T, AxisAttributes>) {
                    *this << value.axis;
                } else if constexpr (std::is_same_v<T, MathAttributes>) {
                    *this << value.approx;
                } else if constexpr (std::is_same_v<T, AccessAttributes>) {
                    *this << value.indices << value.has_mask << value.has_other << value.in_bounds;
                } else if constexpr (std::is_same_v<T, PermutationAttributes>) {
                    *this << value.permutation;
                } else if constexpr (std::is_same_v<T, SliceAttributes>) {
                    *this << value.starts << value.sizes << value.strides;
                } else if constexpr (std::is_same_v<T, ReduceAttributes>) {
                    *this << value.kind << value.axis << value.reverse << value.exclusive;
                } else if constexpr (std::is_same_v<T, CombineAttributes>) {
                    *this << value.combine.get() << value.axis << value.reverse;
                } else if constexpr (std::is_same_v<T, SortAttributes>) {
                    *this << value.axis << value.count << value.descending;
                } else if constexpr (std::is_same_v<T, DotAttributes>) {
                    *this << value.transpose_a << value.transpose_b << value.precision;
                } else if constexpr (std::is_same_v<T, CallAttributes>) {
                    *this << value.callee.get();
                }
            },
            attributes);
        return *this;
    }

    std::string take() { return std::move(text_); }

  private:
    std::string text_;
};

class Merger {
  public:
    explicit Merger(Function& function) : function_(function) {}

    CseReport run() {
        block(function_.body);
        return report_;
    }

  private:
    void block(Block& block) {
        const std::size_t outer = known_.size();
        std::vector<Instruction> kept;
        kept.reserve(block.body.size());
        for (Instruction& instruction : block.body) {
            replaced_.apply(instruction);
            if (visit(instruction)) kept.push_back(std::move(instruction));
        }
        block.body = std::move(kept);
        while (known_.size() > outer) {
            table_.erase(known_.back());
            known_.pop_back();
        }
    }

    // False when the instruction is merged into an earlier one.
    bool visit(Instruction& instruction) {
        const Effects what = effects(instruction);
        if (!instruction.blocks.empty()) {
            // A loop's own writes precede its loads in the next iteration, and what follows.
            touch(what.writes);
            for (Block& inner : instruction.blocks) block(inner);
            touch(what.writes);
            return true;
        }
        touch(what.writes);
        const bool mergeable =
            !instruction.results.empty() && what.removable() &&
            (is_pure(instruction.op) || instruction.op == Op::load || instruction.op == Op::call);
        if (!mergeable) return true;
        const auto [found, is_new] =
            table_.try_emplace(key(instruction, what), instruction.results);
        if (is_new) {
            known_.push_back(found->first);
            return true;
        }
        for (std::size_t i = 0; i < instruction.results.size(); ++i) {
            replaced_.add(instruction.results[i], found->second[i]);
        }
        ++report_.merged;
        return false;
    }

    void touch(const std::set<Value>& writes) {
        for (Value ref : writes) versions_[ref] = ++version_;
    }

    std::string key(const Instruction& instruction, const Effects& what) {
        std::vector<Value> operands = instruction.operands;
        if (operands.size() == 2 && is_elementwise(instruction.op) &&
            commutes(instruction.op, function_.type(operands[0]).dtype)) {
            std::sort(operands.begin(), operands.end());
        }
        Key key;
        key << instruction.op << operands << instruction.attributes;
        for (Value result : instruction.results) {
            const Type& type = function_.type(result);
            key << type.dtype << type.shape.rank();
            for (std::int64_t dim : type.shape.dims()) key << dim;
        }
        // The state of memory: the last write to each Ref that may alias one that is read.
        for (Value read : what.reads) {
            for (const auto& [written, version] : versions_) {
                if (may_alias(function_, written, read)) key << written << version;
            }
        }
        return key.take();
    }

    Function& function_;
    CseReport report_;
    Replacements replaced_;
    std::unordered_map<std::string, std::vector<Value>> table_;
    std::vector<std::string> known_;  // keys in the table, innermost scope last
    std::map<Value, int> versions_;
    int version_ = 0;
};

}  // namespace

CseReport cse(Function& function) {
    return Merger(function).run();
}

}  // namespace tilewright::ir
