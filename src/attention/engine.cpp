// The list of engines, and the choice among them.
#include "attention/engine.h"

#include <variant>

#include "attention/sm90/engine.h"
#include "attention/tiles/engine.h"
#include "attention/tune.h"
#include "run/machine.h"
#include "run/scratch.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::attn {
namespace {

std::int64_t operations_of(const ir::Function& function) {
    std::int64_t count = 0;
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        const auto* const call = std::get_if<ir::CallAttributes>(&instruction.attributes);
        count += call != nullptr && call->callee      ? operations_of(*call->callee)
                 : instruction.op == ir::Op::constant ? 0
                                                      : 1;
    });
    return count;
}

}  // namespace

std::int64_t num_operations(const ModSpec& mod) {
    return mod ? operations_of(*mod.function) : 0;
}

std::span<const Engine* const> engines() {
    static const Engine* const kEngines[] = {&sm90::engine(), &tiles::engine()};
    return kEngines;
}

const Engine& choose_engine(const AttentionSpec& spec, std::span<const Engine* const> among) {
    const bool asked = spec.engine != EngineId::fastest;
    std::string reasons;
    for (const Engine* const engine : among) {
        if (asked && engine->id() != spec.engine) continue;
        std::optional<Refusal> refusal = engine->supports(spec);
        if (!refusal) {
            if (asked || !reasons.empty()) {
                debug_log("attention", "{}{}: {}, {}", spec.on_gpu() && !asked ? "slow path: " : "",
                          name(spec.pass), engine->description(),
                          asked ? "as asked for" : "since " + reasons);
            }
            return *engine;
        }
        if (asked) {
            user_error("attention", "expected a {} pass that engine `{}` can run but {}",
                       name(spec.pass), name(spec.engine), refusal->reason);
        }
        reasons += (reasons.empty() ? "" : "; ") + std::move(refusal->reason);
    }
    user_error("attention", "expected a {} pass that an engine can run but {}", name(spec.pass),
               reasons.empty() ? "there is no such engine" : reasons);
}

void run_on(const Engine& engine, const AttentionSpec& spec, AttentionBuffers buffers) {
    if (spec.on_gpu()) run::check_stream("attention", spec.device.index);
    const auto launch = [&](const EngineConfig& config) {
        const std::int64_t bytes = engine.workspace(spec, config);
        buffers.workspace = run::scratch(bytes, spec.device);
        engine.launch(spec, config, buffers, spec.on_gpu() ? cuda_stream() : nullptr);
    };
    launch(*configuration(engine, spec, buffers, launch));
}

}  // namespace tilewright::attn
