// What an engine needs to know of an attention call to say whether it supports it, to choose a
// configuration and to compile: shapes, dtypes and features, no arrays.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/function.h"
#include "ir/passes/differentiate.h"
#include "tilewright/attention.h"
#include "tilewright/tensor.h"

namespace tilewright::attn {

enum class Pass : std::uint8_t { forward, backward };

/// What runs attention (engine.h). `fastest` is the first engine that supports the call.
enum class EngineId : std::uint8_t { fastest, tiles, sm90 };

/// How GPUs compute f32 matrix products.
enum class Products : std::uint8_t { ieee, tf32, bf16x3 };

const char* name(Pass pass);
const char* name(Products products);
/// UserError for unknown names; an empty name means ieee.
Products products_named(const std::string& name);
/// "tiles", "sm90"; empty for the fastest.
const char* name(EngineId id);
/// The names of all engines.
std::vector<std::string> engine_names();
/// UserError if no engine has this name.
EngineId engine_named(const std::string& name);

/// A captured array.
struct CaptureSpec {
    DType dtype = DType::f32;
    Tensor::Dims shape, strides;
    int alignment = 1;            ///< alignment of its address in bytes, up to 16
    bool differentiable = false;  ///< the backward pass computes its gradient
    auto operator<=>(const CaptureSpec&) const = default;
};

/// A mod as programs inline it, with the parameters that mod/traced.h describes. Two are equal if
/// their texts, derivatives and captures are; `text` is the printed function.
struct ModSpec {
    std::shared_ptr<const ir::Function> function;  ///< null: none
    std::string text;
    /// The function without the checked mode's parameter; this is what is differentiated.
    std::shared_ptr<const ir::Function> plain_function;
    std::string plain_text;
    std::shared_ptr<const ir::Function> derivative;  ///< written by the caller; null: none
    std::vector<ir::GatherGradient> gathers;         ///< gathers of that derivative
    std::vector<CaptureSpec> captures;

    explicit operator bool() const { return function != nullptr; }
    std::strong_ordering operator<=>(const ModSpec& other) const;
    bool operator==(const ModSpec& other) const { return (*this <=> other) == 0; }
};

struct AttentionSpec {
    Pass pass = Pass::forward;
    Device device;
    DType dtype = DType::f32;  ///< of query, key, value, out and their gradients
    std::int64_t batch = 0, query_heads = 0, kv_heads = 0, query_length = 0, kv_length = 0;
    std::int64_t head_dim = 0, value_dim = 0;
    std::int64_t sequences = 0;  ///< packed one after the other in a batch of 1; 0: not packed
    double scale = 1;
    bool causal = false;
    /// As in AttentionOptions; -1 where the bound masks no pair.
    std::int64_t window_left = -1, window_right = -1;
    std::optional<DType> segment_ids, kv_lengths, sinks;  ///< their dtypes, if given
    bool block_mask = false;                              ///< the mask is given as data
    /// With such a mask, about how many keys a query has: 64 times a power of two.
    std::int64_t mask_keys = 0;
    double dropout = 0;
    ModSpec score;
    ModSpec mask;          ///< a mask that programs evaluate themselves
    bool is_part = false;  ///< the call is part of a larger one that starts at `origin`
    std::array<std::int64_t, 2> origin = {};  ///< where the first batch and head are in it
    bool max_scores = false;                  ///< max_scores are written
    /// In every array the queries of all heads of a group have one common stride, so that they can
    /// be the rows of one block.
    bool joined_rows = false;
    bool query_gradient = true, key_gradient = true, value_gradient = true;  ///< are wanted
    bool dlse = false;                                                       ///< dlse is given
    bool deterministic = true, checked = false;
    bool gradient = false;  ///< the backward pass will follow
    bool autotune = false;
    Products products = Products::ieee;
    EngineId engine = EngineId::fastest;              ///< the engine that the caller asked for
    AttentionBlocks forward_blocks, backward_blocks;  ///< the caller's hints

    bool empty() const { return batch * query_heads * query_length == 0; }
    bool packed() const { return sequences > 0; }
    bool on_gpu() const { return device.kind == Device::Kind::cuda; }
    /// Does any query have a key?
    bool has_work() const { return !empty() && (kv_length > 0 || packed()); }
    /// Query heads per kv head.
    std::int64_t group() const { return kv_heads == 0 ? 1 : query_heads / kv_heads; }
    /// Largest kv - q that attends: 0 when causal; -1: unbounded.
    std::int64_t right() const { return causal ? 0 : window_right; }
    const AttentionBlocks& blocks() const {
        return pass == Pass::forward ? forward_blocks : backward_blocks;
    }

    bool operator==(const AttentionSpec&) const = default;
    bool operator<(const AttentionSpec& other) const;
};

/// Why an engine cannot run a call: "..., since {reason}".
struct Refusal {
    std::string reason;
};

/// One line: "forward bf16 q 2x8x1024x128 kv 2x1x1024x128 on cuda:0, scale 0.088388, causal".
std::string to_string(const AttentionSpec& spec);

}  // namespace tilewright::attn
