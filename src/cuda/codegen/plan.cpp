// The plan of a kernel as text.
#include "cuda/codegen/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

std::string_view name(DotPlan::Unit unit) {
    switch (unit) {
        case DotPlan::Unit::mma16:
            return "mma16";
        case DotPlan::Unit::mma8:
            return "mma8";
        case DotPlan::Unit::tf32:
            return "tf32";
        case DotPlan::Unit::f64:
            return "f64";
        case DotPlan::Unit::fma:
            return "fma";
    }
    return "";
}

class PlanText {
  public:
    PlanText(const Plan& plan, const KernelFacts& facts) : plan_(plan), facts_(facts) {}

    std::string run() {
        if (plan_.launch.last_first) line("programs: the last first");
        if (plan_.launch.blocks > 0) line("blocks: {} on a multiprocessor", plan_.launch.blocks);
        for (Value ref : plan_.own_scratch) line("scratch {}: without barriers", name_of(ref));
        ir::walk(facts_.function().body, [&](const Instruction& made) {
            if (made.op == Op::load) load(made);
            if (made.op == Op::dot) {
                line("dot {}: {} of {} x {} x {}", name_of(made.result()),
                     name(plan_.dots.at(&made).unit), plan_.dots.at(&made).m,
                     plan_.dots.at(&made).n, plan_.dots.at(&made).k);
            }
            for (const auto& [loop, sums] : plan_.sums) {
                if (std::find(sums.begin(), sums.end(), &made) != sums.end()) {
                    line("reduce {}: between lanes after the loop", name_of(made.result()));
                }
            }
            for (Value result : made.results) layout(result);
        });
        return std::move(text_);
    }

  private:
    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
    }
    std::string name_of(Value value) const {
        const std::string& hint = facts_.function().value_name(value);
        return hint.empty() ? fmt::format("%{}", value.id) : hint;
    }

    void load(const Instruction& made) {
        const std::string what = fmt::format("load {}", name_of(made.operands[0]));
        for (const auto& [loop, staged] : plan_.staged.loops) {
            if (std::find(staged.loads.begin(), staged.loads.end(), &made) != staged.loads.end()) {
                return line("{}: to shared memory, {} stages", what, staged.stages);
            }
        }
        if (plan_.staged.contains(made)) return line("{}: to shared memory", what);
        for (const auto& [loop, ahead] : plan_.loads.ahead) {
            if (std::find(ahead.begin(), ahead.end(), &made) != ahead.end()) {
                line("{}: an iteration ahead", what);
            }
        }
        if (plan_.loads.packed.count(made.result()) != 0) line("{}: packed", what);
        if (plan_.loads.repeated.count(made.result()) != 0) line("{}: at each use", what);
    }

    void layout(Value value) {
        const auto found = plan_.layouts.find(value);
        if (found == plan_.layouts.end()) return;
        line("{} in {}", name_of(value), found->second.to_string());
    }

    const Plan& plan_;
    const KernelFacts& facts_;
    std::string text_;
};

}  // namespace

std::string print(const Plan& plan, const KernelFacts& facts) {
    return PlanText(plan, facts).run();
}

}  // namespace tilewright::cuda
