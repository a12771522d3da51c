// How attention specs are compared and printed.
#include "attention/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tuple>

#include "support/check.h"

namespace tilewright::attn {
namespace {

constexpr const char* kEngineNames[] = {"", "tiles", "sm90"};        // indexed by EngineId
constexpr const char* kProductNames[] = {"ieee", "tf32", "bf16x3"};  // indexed by Products

std::string printed(const char* what, const AttentionBlocks& blocks) {
    if (blocks == AttentionBlocks()) return "";
    return fmt::format(", {} blocks {} x {}, {} warps, {} stages", what, blocks.q, blocks.kv,
                       blocks.num_warps, blocks.num_stages);
}

std::string printed(const char* what, const ModSpec& mod) {
    if (!mod) return "";
    std::string text = fmt::format(", {} of {} characters", what, mod.text.size());
    for (const CaptureSpec& capture : mod.captures) {
        text += fmt::format(" {}[{}]", name(capture.dtype), fmt::join(capture.shape, ", "));
    }
    return text;
}

auto fields(const AttentionBlocks& b) {
    return std::tie(b.q, b.kv, b.num_warps, b.num_stages);
}

}  // namespace

const char* name(Pass pass) {
    return pass == Pass::forward ? "forward" : "backward";
}

const char* name(EngineId id) {
    const auto place = static_cast<std::size_t>(id);
    return place < std::size(kEngineNames) ? kEngineNames[place] : "unknown";
}

std::vector<std::string> engine_names() {
    return {std::begin(kEngineNames) + 1, std::end(kEngineNames)};
}

EngineId engine_named(const std::string& name) {
    for (std::size_t id = 0; id < std::size(kEngineNames); ++id) {
        if (name == kEngineNames[id]) return static_cast<EngineId>(id);
    }
    user_error("attention", "expected engine `{}` but got `{}`",
               fmt::join(engine_names(), "` or `"), name);
}

const char* name(Products products) {
    return kProductNames[static_cast<std::size_t>(products)];
}

Products products_named(const std::string& name) {
    if (name.empty()) return Products::ieee;
    for (std::size_t id = 0; id < std::size(kProductNames); ++id) {
        if (name == kProductNames[id]) return static_cast<Products>(id);
    }
    user_error("attention", "expected precision `ieee`, `tf32` or `bf16x3` but got `{}`", name);
}

std::strong_ordering ModSpec::operator<=>(const ModSpec& other) const {
    return std::tie(text, plain_text, derivative, captures) <=>
           std::tie(other.text, other.plain_text, other.derivative, other.captures);
}

bool AttentionSpec::operator<(const AttentionSpec& other) const {
    const auto fields_of = [](const AttentionSpec& s) {
        return std::tuple_cat(
            std::tie(s.pass, s.device.kind, s.device.index, s.dtype, s.batch, s.query_heads,
                     s.kv_heads, s.query_length, s.kv_length, s.head_dim, s.value_dim, s.sequences,
                     s.scale, s.causal, s.window_left, s.window_right, s.segment_ids, s.kv_lengths,
                     s.sinks, s.block_mask, s.mask_keys, s.dropout),
            std::tie(s.is_part, s.origin, s.max_scores, s.joined_rows, s.query_gradient,
                     s.key_gradient, s.value_gradient, s.dlse, s.deterministic, s.checked,
                     s.gradient, s.autotune, s.products, s.engine),
            fields(s.forward_blocks), fields(s.backward_blocks), std::tie(s.score, s.mask));
    };
    return fields_of(*this) < fields_of(other);
}

std::string to_string(const AttentionSpec& s) {
    std::string text =
        fmt::format("{} {} q {}x{}x{}x{} kv {}x{}x{}x{} on {}, scale {:.6g}", name(s.pass),
                    name(s.dtype), s.batch, s.query_heads, s.query_length, s.head_dim, s.batch,
                    s.kv_heads, s.kv_length, s.value_dim, to_string(s.device), s.scale);
    const auto add = [&](bool holds, const char* what) {
        if (holds) text += fmt::format(", {}", what);
    };
    const auto add_array = [&](const std::optional<DType>& dtype, const char* what) {
        if (dtype) text += fmt::format(", {} {}", name(*dtype), what);
    };
    if (s.packed()) text += fmt::format(", {} packed sequences", s.sequences);
    add(s.causal, "causal");
    if (s.window_left >= 0 || s.window_right >= 0) {
        text += fmt::format(", window ({}, {})", s.window_left, s.window_right);
    }
    add_array(s.segment_ids, "segment ids");
    add_array(s.kv_lengths, "kv_lengths");
    add_array(s.sinks, "sinks");
    add(s.block_mask, "mask as data");
    if (s.mask_keys > 0) text += fmt::format(" of about {} keys a query", s.mask_keys);
    if (s.dropout > 0) text += fmt::format(", dropout {}", s.dropout);
    text += printed("score mod", s.score) + printed("mask mod", s.mask);
    if (s.is_part) text += fmt::format(", part from ({})", fmt::join(s.origin, ", "));
    add(s.max_scores, "max_scores");
    add(s.joined_rows, "joined rows");
    add(!s.query_gradient, "no query gradient");
    add(!s.key_gradient, "no key gradient");
    add(!s.value_gradient, "no value gradient");
    add(s.dlse, "dlse");
    add(!s.deterministic, "any order");
    add(s.checked, "checked");
    add(s.gradient, "backward follows");
    add(s.autotune, "autotune");
    if (s.products != Products::ieee) text += fmt::format(", products {}", name(s.products));
    if (s.engine != EngineId::fastest) text += fmt::format(", engine {}", name(s.engine));
    return text + printed("forward", s.forward_blocks) + printed("backward", s.backward_blocks);
}

}  // namespace tilewright::attn
