// Reverse-mode derivatives: the function forwards, then its cotangents backwards.
#include "ir/passes/differentiate.h"

#include <algorithm>
#include <map>

#include "ir/access.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/reverse_sweep.h"
#include "ir/passes/straighten.h"
#include "support/check.h"

namespace tilewright::ir {
namespace {

class Differentiation {
  public:
    Differentiation(Function& function, const DifferentiateOptions& options)
        : function_(function), builder_(function), sweep_(builder_) {
        std::size_t scalar = 0, ref = 0;
        for (Value parameter : function.parameters()) {
            const bool is_ref = function.is_ref(parameter);
            const auto& wanted = is_ref ? options.refs : options.scalars;
            std::size_t& place = is_ref ? ref : scalar;
            TW_ASSERT(place < wanted.size(), "too few choices for @{}", function.name);
            if (is_ref) ref_place_[parameter] = place;
            if (wanted[place++]) {
                sweep_.activate(parameter);
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
    const std::string& refusal() const { return refusal_.empty() ? sweep_.refusal() : refusal_; }

    void append(DifferentiateReport& report) {
        const std::vector<Value> outputs = function_.body.terminator().operands;
        function_.body.body.pop_back();
        const std::size_t count = function_.body.body.size();
        for (const Instruction& instruction : function_.body.body) sweep_.mark(instruction);
        for (Value output : outputs) {
            const Type& type = function_.type(output);
            if (!is_float(type.dtype)) {
                return refuse("expected float results of @{} but got {}", function_.name,
                              to_string(type));
            }
            const Value cotangent = add_cotangent_parameter(type);
            sweep_.accumulate(output, {cotangent, {}});
        }
        for (std::size_t i = count; i-- > 0;) {
            const Instruction& at = function_.body.body[i];
            if (at.op == Op::load) {
                if (const Cotangent d = sweep_.cotangent(at.result())) gather(Instruction(at), d);
            } else {
                sweep_.backward(at);
            }
        }
        if (!refusal().empty()) return;

        std::vector<Value> results;
        for (Value parameter : chosen_) {
            const Cotangent d = sweep_.cotangent(parameter);
            const Type& type = function_.type(parameter);
            results.push_back(d ? materialise(d)
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
            results.push_back(materialise(gather.gradient));
        }
        builder_.yield(results);
    }

    struct Gather {
        Value ref;
        std::vector<Value> indices;
        Cotangent gradient;
    };

    Value materialise(const Cotangent& d) { return sweep_.derivatives().materialise(d); }

    Value add_cotangent_parameter(const Type& type) {
        const Value value = function_.add_value({gradient_dtype(type.dtype), type.shape});
        function_.set_value_name(value, "cotangent");
        auto& parameters = function_.body.arguments;
        const auto first_ref = std::find_if(parameters.begin(), parameters.end(),
                                            [&](Value p) { return function_.is_ref(p); });
        parameters.insert(first_ref, value);
        return value;
    }

    void gather(const Instruction& instruction, Cotangent d) {
        const Access from = access(instruction);
        if (!sweep_.is_active(from.ref)) return;
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
    ReverseSweep sweep_;
    std::vector<Value> chosen_;
    std::map<Value, std::size_t> ref_place_;
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
