// A single forward walk: at a cast, the parameters and range of the value that it reads are known.
#include "ir/passes/float_sums.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "ir/passes/dce.h"
#include "ir/passes/range_ops.h"

namespace tilewright::ir {
namespace {

class FloatSums {
  public:
    FloatSums(Function& function, std::map<Value, Interval> ranges)
        : function_(function), ranges_(std::move(ranges)) {
        for (Value parameter : function.parameters()) depends_[parameter] = {parameter};
        walk(function.body, [&](const Instruction& instruction) {
            for (Value operand : instruction.operands) ++uses_[operand];
        });
    }

    void run(Block& block) {
        const std::map<Value, Value> outer = floats_;
        std::vector<Instruction> body;
        body.swap(block.body);
        for (Instruction& instruction : body) {
            for (Block& inner : instruction.blocks) run(inner);
            visit(block, std::move(instruction));
        }
        floats_ = outer;  // values of a block are not visible outside it
    }

    FloatSumsReport report;

  private:
    /// Parameters that a value depends on. Block arguments and loads, which may depend on more,
    /// have none.
    using Parameters = std::set<Value>;

    const Parameters* depends(Value value) const {
        const auto found = depends_.find(value);
        return found == depends_.end() ? nullptr : &found->second;
    }

    Interval range(Value value) const {
        const auto known = ranges_.find(value);
        return known == ranges_.end() ? Interval::all(function_.type(value).dtype) : known->second;
    }

    bool is_exact(Value value) const {
        constexpr std::int64_t kMost = 1 << 24;
        return is_integer(function_.type(value).dtype) && range(value).inside(-kMost, kMost);
    }

    /// A sum of exact numbers that is only needed by its reader.
    bool is_sum(Value value) const {
        const auto found = sums_.find(value);
        if (found == sums_.end() || uses_.at(value) != 1) return false;
        const auto& in = found->second.operands;
        // A sum in a narrower type may wrap and still be a number that f32 holds.
        return size_of(function_.type(value).dtype) >= 4 && is_exact(value) &&
               std::all_of(in.begin(), in.end(), [&](Value v) { return is_exact(v); });
    }

    /// Whether each term depends on fewer parameters than `all`.
    bool varies_less(Value term, const Parameters& all) const {
        if (is_sum(term)) {
            const auto& in = sums_.at(term).operands;
            return std::all_of(in.begin(), in.end(), [&](Value v) { return varies_less(v, all); });
        }
        const Parameters* some = depends(term);
        return some != nullptr && some->size() < all.size();
    }

    void visit(Block& block, Instruction instruction) {
        if (instruction.results.size() != 1 || function_.is_ref(instruction.result())) {
            block.body.push_back(std::move(instruction));
            return;
        }
        const Value result = instruction.result();
        ranges_[result] =
            result_range(function_, instruction, [&](Value value) { return range(value); });
        note_dependence(instruction);
        switch (instruction.op) {
            case Op::add:
            case Op::sub:
            case Op::min:
            case Op::max:
            case Op::abs:
                sums_[result] = instruction;
                break;
            case Op::cast:
                if (function_.type(result).dtype == DType::f32 &&
                    rewrite(block, instruction.operands[0], result)) {
                    return;
                }
                break;
            default:
                break;
        }
        block.body.push_back(std::move(instruction));
    }

    void note_dependence(const Instruction& instruction) {
        if (!instruction.blocks.empty()) return;
        Parameters all;
        for (Value operand : instruction.operands) {
            const Parameters* some = depends(operand);
            if (some == nullptr) return;
            all.insert(some->begin(), some->end());
        }
        depends_[instruction.result()] = std::move(all);
    }

    bool rewrite(Block& block, Value sum, Value result) {
        const Parameters* all = depends(sum);
        if (all == nullptr || !is_sum(sum) || !varies_less(sum, *all)) return false;
        append(block, sum, result);
        ++report.casts;
        return true;
    }

    /// Appends the sum in f32 as `result`.
    void append(Block& block, Value sum, Value result) {
        Instruction made = sums_.at(sum);
        for (Value& operand : made.operands) operand = as_float(block, operand);
        made.results = {result};
        block.body.push_back(std::move(made));
    }

    Value as_float(Block& block, Value value) {
        const auto found = floats_.find(value);
        if (found != floats_.end()) return found->second;
        const Value result = function_.add_value({DType::f32, function_.type(value).shape});
        if (is_sum(value)) {
            append(block, value, result);
        } else {
            Instruction cast;
            cast.op = Op::cast;
            cast.operands = {value};
            cast.results = {result};
            block.body.push_back(std::move(cast));
        }
        floats_[value] = result;
        return result;
    }

    Function& function_;
    std::map<Value, Interval> ranges_;
    std::map<Value, Parameters> depends_;
    std::map<Value, int> uses_;
    std::map<Value, Instruction> sums_;
    std::map<Value, Value> floats_;
};

}  // namespace

FloatSumsReport float_sums(Function& function, const std::map<Value, Interval>& ranges) {
    FloatSums sums(function, ranges);
    sums.run(function.body);
    if (sums.report.changed()) dce(function);
    return sums.report;
}

}  // namespace tilewright::ir
