// Reverse-mode derivatives: the function forwards, then its cotangents backwards.
#include "ir/passes/differentiate.h"

#include <algorithm>
#include <map>

#include "ir/access.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/derivatives.h"
#include "ir/passes/fold.h"
#include "ir/passes/straighten.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

class Differentiation {
  public:
    Differentiation(Function& function, const DifferentiateOptions& options)
        : function_(function), builder_(function), derivatives_(builder_) {
        std::size_t scalar = 0, ref = 0;
        for (Value parameter : function.parameters()) {
            const bool is_ref = function.is_ref(parameter);
            const auto& wanted = is_ref ? options.refs : options.scalars;
            std::size_t& place = is_ref ? ref : scalar;
            TW_ASSERT(place < wanted.size(), "too few choices for @{}", function.name);
            if (is_ref) ref_place_[parameter] = place;
            if (wanted[place++]) {
                active_[parameter] = true;
                if (!is_ref) {
                    if (!is_float(function.type(parameter).dtype)) {
                        refuse("expected a float parameter but {} is {}",
                               function.value_name(parameter), to_string(function.type(parameter)));
                    }
                    chosen_.push_back(parameter);
                }
            }
        }
    }

    void run(DifferentiateReport& report) {
        report.refusal = refusal();
        if (report.refusal.empty()) append(report);
        report.refusal = refusal();
    }

  private:
    template <typename... Args>
    void refuse(fmt::format_string<Args...> format, Args&&... args) {
        if (refusal_.empty()) refusal_ = fmt::format(format, std::forward<Args>(args)...);
    }
    const std::string& refusal() const {
        return refusal_.empty() ? derivatives_.refusal() : refusal_;
    }

    void append(DifferentiateReport& report) {
        const std::vector<Value> outputs = function_.body.terminator().operands;
        function_.body.body.pop_back();
        const std::size_t count = function_.body.body.size();
        mark_active();
        for (Value output : outputs) {
            const Type& type = function_.type(output);
            if (!is_float(type.dtype)) {
                return refuse("expected float results of @{} but got {}", function_.name,
                              to_string(type));
            }
            const Value cotangent = add_cotangent_parameter(type);
            if (is_active(output)) accumulate(output, {cotangent, {}});
        }
        for (std::size_t i = count; i-- > 0;) backward(function_.body.body[i]);
        if (!refusal().empty()) return;

        std::vector<Value> results;
        for (Value parameter : chosen_) {
            const Cotangent d = cotangents_[parameter];
            const Type& type = function_.type(parameter);
            results.push_back(d ? derivatives_.materialise(d)
                                : builder_.constant({gradient_dtype(type.dtype), type.shape}, 0));
        }
        std::reverse(gathers_.begin(), gathers_.end());
        for (const Gather& gather : gathers_) {
            GatherGradient& made = report.gathers.emplace_back();
            made.ref = ref_place_.at(gather.ref);
            for (Value index : gather.indices) {
                made.indices.push_back(results.size());
                results.push_back(builder_.cast(index, DType::i64));
            }
            made.value = results.size();
            results.push_back(derivatives_.materialise(gather.gradient));
        }
        builder_.yield(results);
    }

    struct Gather {
        Value ref;
        std::vector<Value> indices;
        Cotangent gradient;
    };

    bool is_active(Value value) const { return active_.count(value) != 0; }

    /// Marks values that depend on what the function is differentiated by.
    void mark_active() {
        for (const Instruction& instruction : function_.body.body) {
            const bool from_active =
                std::any_of(instruction.operands.begin(), instruction.operands.end(),
                            [&](Value v) { return is_active(v); });
            if (!from_active || instruction.op == Op::extent) continue;
            for (Value result : instruction.results) {
                if (is_float(function_.type(result).dtype)) active_[result] = true;
            }
        }
    }

    Value add_cotangent_parameter(const Type& type) {
        const Value value = function_.add_value({gradient_dtype(type.dtype), type.shape});
        function_.set_value_name(value, "cotangent");
        auto& parameters = function_.body.arguments;
        const auto first_ref = std::find_if(parameters.begin(), parameters.end(),
                                            [&](Value p) { return function_.is_ref(p); });
        parameters.insert(first_ref, value);
        return value;
    }

    void accumulate(Value value, Cotangent d) {
        Cotangent& sum = cotangents_[value];
        sum = derivatives_.add(sum, d);
    }

    void backward(const Instruction& at) {
        const bool wanted = at.results.size() == 1 && cotangents_.count(at.results[0]) != 0;
        if (!wanted) return;
        const Instruction instruction = at;  // appending moves the instructions
        const Cotangent d = cotangents_.at(instruction.result());
        if (instruction.op == Op::load) return gather(instruction, d);
        const bool reaches = std::any_of(instruction.operands.begin(), instruction.operands.end(),
                                         [&](Value v) { return is_active(v); });
        if (!reaches) return;
        const std::vector<Cotangent> parts = derivatives_.operands(instruction, d);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (parts[i] && is_active(instruction.operands[i])) {
                accumulate(instruction.operands[i], parts[i]);
            }
        }
    }

    void gather(const Instruction& instruction, Cotangent d) {
        const Access from = access(instruction);
        if (!is_active(from.ref)) return;
        for (const Index& index : instruction.get<AccessAttributes>().indices) {
            if (index.kind == Index::Kind::slice) {
                return refuse("expected gathers by scalars or tiles in @{}", function_.name);
            }
        }
        Gather gather{from.ref, {from.indices.begin(), from.indices.end()}, d};
        if (from.mask) {
            gather.gradient.condition =
                d.condition ? builder_.binary(Op::bitwise_and, d.condition, from.mask) : from.mask;
        }
        gathers_.push_back(std::move(gather));
    }

    Function& function_;
    Builder builder_;
    Derivatives derivatives_;
    std::vector<Value> chosen_;
    std::map<Value, std::size_t> ref_place_;
    std::map<Value, bool> active_;
    std::map<Value, Cotangent> cotangents_;
    std::vector<Gather> gathers_;
    std::string refusal_;
};

}  // namespace

DifferentiateReport try_differentiate(Function& function, const DifferentiateOptions& options) {
    DifferentiateReport report;
    const StraightenReport straight = try_straighten(function);
    report.branches = straight.branches;
    report.unrolled = straight.unrolled;
    report.refusal = straight.refusal;
    if (!report.refusal.empty()) return report;
    // Merges equal loads, so that each element's gradient is added once.
    cse(function);
    dce(function);
    Differentiation(function, options).run(report);
    if (!report.refusal.empty()) return report;
    for (bool changed = true; changed;) {
        changed = fold(function).changed();
        changed |= cse(function).changed();
        changed |= dce(function).changed();
    }
    return report;
}

DifferentiateReport differentiate(Function& function, const DifferentiateOptions& options) {
    DifferentiateReport report = try_differentiate(function, options);
    if (!report.refusal.empty()) user_error("differentiate", "{}", report.refusal);
    return report;
}

}  // namespace tilewright::ir
