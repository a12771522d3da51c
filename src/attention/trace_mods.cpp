// Traces the mods of attention into functions.
#include "attention/prepare.h"
#include "attention/tiles/options.h"
#include "mod/elements.h"
#include "mod/traced.h"

namespace tilewright::attn {
namespace {

ModSpec traced_mod(const Mod& mod, DType score, bool checked) {
    const mod::Traced& traced = mod::trace(mod, score, checked);
    const mod::Traced& plain = checked ? mod::trace(mod, score) : traced;
    ModSpec spec;
    spec.function = traced.function;
    spec.text = traced.text;
    spec.plain_function = plain.function;
    if (checked) spec.plain_text = plain.text;
    spec.derivative = plain.derivative;
    spec.gathers = plain.gathers;
    return spec;
}

}  // namespace

void check_captures(const AttentionOptions& options, const AttentionSpec& spec) {
    if (spec.empty() || spec.kv_length == 0) return;
    const DType sums = tiles::accumulator(spec.dtype);
    for (const Mod* mod : {&options.score_mod, &options.mask}) {
        if (!mod->defined()) continue;
        mod::expect_elements("attention", mod::trace(*mod, sums, spec.checked).captures);
    }
}

void trace_mods(const AttentionOptions& options, bool evaluates_mask, AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    const DType sums = tiles::accumulator(spec.dtype);
    if (options.score_mod.defined()) {
        spec.score = traced_mod(options.score_mod, sums, spec.checked);
    }
    if (evaluates_mask) spec.mask = traced_mod(options.mask, sums, spec.checked);
}

}  // namespace tilewright::attn
