// Straight-line code.
#include "ir/passes/straighten.h"

#include <map>

#include "ir/builder.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

/// Loops with more iterations are refused: the code would grow too large.
constexpr int kMostIterations = 4096;

class Straightener {
  public:
    explicit Straightener(Function& function)
        : function_(function), old_(std::move(function.body)), builder_(function) {
        function_.body = Block();
        function_.body.arguments = old_.arguments;
    }

    StraightenReport run() {
        const std::vector<Value> results = block(old_);
        builder_.yield(results);
        return report_;
    }

  private:
    template <typename... Args>
    void refuse(fmt::format_string<Args...> format, Args&&... args) {
        if (report_.refusal.empty())
            report_.refusal = fmt::format(format, std::forward<Args>(args)...);
    }

    Value mapped(Value value) const {
        const auto found = values_.find(value);
        return found == values_.end() ? value : found->second;
    }

    /// Emits the instructions of a block and returns the values it yields.
    std::vector<Value> block(const Block& block) {
        for (const Instruction& instruction : block.body) {
            if (instruction.op != Op::yield) {
                visit(instruction);
                continue;
            }
            std::vector<Value> yielded;
            for (Value value : instruction.operands) yielded.push_back(mapped(value));
            return yielded;
        }
        TW_ASSERT(false, "a block of @{} has no yield", function_.name);
    }

    void visit(const Instruction& instruction) {
        switch (instruction.op) {
            case Op::if_else:
                return if_else(instruction);
            case Op::for_loop:
                return for_loop(instruction);
            case Op::debug_check:
            case Op::debug_print:
                return;
            case Op::while_loop:
            case Op::store:
            case Op::atomic_add:
            case Op::atomic_max:
            case Op::atomic_min:
            case Op::atomic_xchg:
            case Op::atomic_cas:
                return refuse("expected a function without {} but @{} has one",
                              name(instruction.op), function_.name);
            default:
                copy(instruction);
        }
    }

    void copy(const Instruction& instruction) {
        Instruction made = instruction;
        for (Value& operand : made.operands) operand = mapped(operand);
        const std::vector<Value> old_results = instruction.results;
        made.results.clear();
        for (Value result : old_results) {
            // A block emitted more than once, as a loop's body is, needs new values each time.
            const Value fresh = values_.count(result) != 0 || emitted_.count(result) != 0
                                    ? function_.add_value(function_.type(result))
                                    : result;
            emitted_[result] = true;
            if (fresh != result) values_[result] = fresh;
            made.results.push_back(fresh);
        }
        if (made.op == Op::constant && made.results.size() == 1 &&
            function_.type(made.result()).is_scalar()) {
            constants_[made.result()] = made.get<ConstantAttributes>().bits;
        }
        builder_.block().body.push_back(std::move(made));
    }

    void if_else(const Instruction& instruction) {
        ++report_.branches;
        const Value condition = mapped(instruction.operands[0]);
        const std::vector<Value> if_true = block(instruction.blocks[0]);
        const std::vector<Value> if_false = block(instruction.blocks[1]);
        for (std::size_t i = 0; i < if_true.size(); ++i) {
            values_[instruction.results[i]] = builder_.select(condition, if_true[i], if_false[i]);
        }
    }

    void for_loop(const Instruction& instruction) {
        std::int64_t bounds[3];
        for (std::size_t i = 0; i < 3; ++i) {
            const auto found = constants_.find(mapped(instruction.operands[i]));
            if (found == constants_.end()) {
                return refuse("expected loops of @{} to have constant bounds", function_.name);
            }
            bounds[i] = static_cast<std::int64_t>(found->second);
        }
        const Block& body = instruction.blocks[0];
        std::vector<Value> carries;
        for (std::size_t i = 3; i < instruction.operands.size(); ++i) {
            carries.push_back(mapped(instruction.operands[i]));
        }
        std::int64_t i = bounds[0];
        while (bounds[2] > 0 && i < bounds[1]) {
            if (++report_.unrolled > kMostIterations) {
                return refuse("expected at most {} iterations in the loops of @{}", kMostIterations,
                              function_.name);
            }
            const Value iv = builder_.constant_int({DType::i64, {}}, i);
            constants_[iv] = static_cast<std::uint64_t>(i);
            values_[body.arguments[0]] = iv;
            for (std::size_t c = 0; c < carries.size(); ++c) {
                values_[body.arguments[c + 1]] = carries[c];
            }
            carries = block(body);
            if (__builtin_add_overflow(i, bounds[2], &i)) break;
        }
        for (std::size_t c = 0; c < carries.size(); ++c) {
            values_[instruction.results[c]] = carries[c];
        }
    }

    Function& function_;
    Block old_;
    Builder builder_;
    StraightenReport report_;
    std::map<Value, Value> values_;
    std::map<Value, bool> emitted_;
    std::map<Value, std::uint64_t> constants_;
};

}  // namespace

StraightenReport try_straighten(Function& function) {
    inline_calls(function);
    fold(function);
    return Straightener(function).run();
}

StraightenReport straighten(Function& function) {
    StraightenReport report = try_straighten(function);
    if (!report.refusal.empty()) user_error("differentiate", "{}", report.refusal);
    return report;
}

}  // namespace tilewright::ir
