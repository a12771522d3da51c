// Which backward passes the Hopper kernels support, and the checks of their inputs.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "attention/sm90/backward.h"
#include "attention/sm90/combined_mod.h"

namespace tilewright::attn::sm90 {
namespace {

using Spread = CaptureGradient::Spread;

/// Why the sum for a capture's gradient has no fixed order; empty if it has one, or if each element
/// gets the gradient of a single pair.
std::string broken_order(const CaptureGradient& gradient, const std::vector<CaptureSpec>& captures,
                         const BackwardDesc& desc) {
    const std::vector<std::int64_t>& shape = captures[gradient.capture].shape;
    const std::int64_t batches = desc.sequences > 0 ? desc.sequences : desc.batch;
    const std::int64_t sizes[4] = {batches, desc.heads, desc.q_len, desc.kv_len};
    const auto apart = [&](std::size_t position) {
        const int d = gradient.dimension_of[position];
        return sizes[position] <= 1 || (d >= 0 && shape[d] >= sizes[position]);
    };
    const bool keys = apart(3), pairs = apart(0) && apart(1) && apart(2) && keys;
    const bool ordered = gradient.spread == Spread::tile ||
                         (gradient.spread == Spread::row && keys) ||
                         (gradient.spread == Spread::pair && pairs);
    std::size_t gathers = 0;
    for (const CaptureGradient& other : desc.score_mod->gradients) {
        gathers += other.capture == gradient.capture ? 1 : 0;
    }
    if (ordered && gathers == 1) return {};
    return fmt::format(
        "deterministic: expected gradients of captures that add up in one order, but capture {} of "
        "the score mod is read {}",
        gradient.capture,
        gathers > 1                         ? "several times"
        : gradient.spread == Spread::column ? "by queries"
                                            : "by pairs that meet");
}

/// Adds the text of the mod and its derivative, or returns the rule that they break.
std::optional<Refusal> differentiate(BackwardDesc& desc,
                                     const std::shared_ptr<const ir::Function>& mod,
                                     const std::vector<CaptureSpec>& captures) {
    if (const std::string rule = broken_rule(*mod, captures); !rule.empty()) return refusal(rule);
    ScoreModFacts facts =
        score_mod_facts(captures, desc.kv_len, desc.q_len, /*columns_are_keys=*/false);
    facts.derivative = true;
    for (std::size_t i = 0; i < captures.size(); ++i) {
        facts.captures[i].differentiated = captures[i].differentiable;
    }
    desc.score_mod = find_mod_text(mod, facts);
    if (!desc.score_mod->refusal.empty()) return refusal(desc.score_mod->refusal);
    if (desc.over_128()) {
        ScoreModFacts by_query =
            score_mod_facts(captures, desc.q_len, desc.kv_len, /*columns_are_keys=*/true);
        by_query.derivative = true;
        desc.query_score_mod = find_mod_text(mod, by_query);
        if (!desc.query_score_mod->refusal.empty()) return refusal(desc.query_score_mod->refusal);
    }
    if (!desc.deterministic) return std::nullopt;
    for (const CaptureGradient& gradient : desc.score_mod->gradients) {
        const std::string rule = broken_order(gradient, captures, desc);
        if (!rule.empty()) return refusal(rule);
    }
    return std::nullopt;
}

std::optional<Refusal> complete(BackwardDesc& desc, const std::shared_ptr<const ir::Function>& mod,
                                const std::vector<CaptureSpec>& captures) {
    if (const std::string rule = broken_rule(desc); !rule.empty()) return refusal(rule);
    if (desc.over_128() && desc.kv_len < 1) {
        return refusal(
            rule_text("key", "from 1 to 2^29 rows where a head is wider than 128", desc.kv_len));
    }
    return mod == nullptr ? std::nullopt : differentiate(desc, mod, captures);
}

}  // namespace

std::optional<Refusal> describe(const AttentionSpec& spec, BackwardDesc& desc) {
    describe(spec, static_cast<ProblemDesc&>(desc));
    desc.deterministic = spec.deterministic;
    desc.positive_scale = spec.scale > 0;
    return complete(desc, combined_mod(spec), combined_captures(spec));
}

BackwardDesc check_backward(const BackwardInputs& inputs) {
    BackwardDesc desc;
    describe(inputs, desc);
    desc.deterministic = inputs.deterministic;
    desc.positive_scale = inputs.scale > 0;
    require(inputs.grad_captures.size() <= inputs.captures.size(), "grad_captures",
            "at most one for each capture", inputs.grad_captures.size());
    std::vector<bool> wanted;
    for (const cuda::DeviceAddress address : inputs.grad_captures) wanted.push_back(address != 0);
    if (const auto refused = complete(desc, inputs.score_mod, specs_of(inputs.captures, wanted))) {
        throw UserError(refused->reason);
    }
    check_arrays(inputs, desc);
    return desc;
}

void check_arrays(const BackwardInputs& inputs, const BackwardDesc& desc) {
    check_problem_arrays(inputs);
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    const std::int64_t kv_heads = desc.kv_heads, kv_len = desc.kv_len, value_dim = desc.value_dim;
    check_tensor(inputs.grad_out, "grad_out", {batch, heads, q_len, value_dim});
    check_tensor(inputs.grad_query, "grad_query", {batch, heads, q_len, dim});
    check_tensor(inputs.grad_key, "grad_key", {batch, kv_heads, kv_len, dim});
    check_tensor(inputs.grad_value, "grad_value", {batch, kv_heads, kv_len, value_dim});
    require(inputs.grad_lse % 4 == 0, "grad_lse", "an address that is a multiple of 4",
            inputs.grad_lse);
    require(inputs.grad_sinks % 4 == 0 && (inputs.grad_sinks != 0) == (inputs.sinks != 0),
            "grad_sinks", "an address that is a multiple of 4, beside sinks", inputs.grad_sinks);
    for (const cuda::DeviceAddress address : inputs.grad_captures) {
        require(address % 4 == 0, "grad_captures", "addresses that are multiples of 4", address);
    }
    require(inputs.workspace != 0 && inputs.workspace % 256 == 0, "workspace",
            "an address that is a multiple of 256", inputs.workspace);
    require(!inputs.mask.has_value() || inputs.mask->by_key, "mask", "lists for tiles of keys",
            "lists for tiles of queries");
    if (!desc.over_128()) return;
    require(inputs.mask.has_value() == inputs.query_mask.has_value() &&
                (!inputs.query_mask.has_value() || !inputs.query_mask->by_key),
            "query_mask", "lists for tiles of queries beside a mask where head_dim > 128",
            inputs.query_mask.has_value() ? "others" : "none");
}

}  // namespace tilewright::attn::sm90
