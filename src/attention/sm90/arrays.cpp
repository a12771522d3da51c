// Puts the arrays of a call where the Hopper kernels can read and write them.
#include "attention/sm90/arrays.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "attention/mask_cache.h"
#include "attention/sm90/combined_mod.h"
#include "attention/sm90/mask_lists.h"
#include "cuda/runtime/stream.h"
#include "run/cuda_memory.h"
#include "run/machine.h"
#include "support/debug_log.h"
#include "support/memo.h"
#include "tilewright/masks.h"

namespace tilewright::attn::sm90 {

cuda::DeviceAddress address_of(const Tensor& tensor) {
    return tensor.defined() ? reinterpret_cast<cuda::DeviceAddress>(tensor.raw()) : 0;
}

DeviceTensor view_of(const Tensor& tensor) {
    DeviceTensor result;
    result.address = address_of(tensor);
    std::copy_n(tensor.shape().begin(), 4, result.shape.begin());
    std::copy_n(tensor.strides().begin(), 4, result.strides.begin());
    return result;
}

Tensor writable(const char* argument, const Tensor& tensor) {
    bool fits = address_of(tensor) % 16 == 0;
    for (int d = 0; d < 3; ++d) {
        const std::int64_t stride = tensor.strides()[d];
        fits = fits && (tensor.dim(d) == 1 || stride % 8 == 0);
    }
    fits = fits && (tensor.dim(3) == 1 || tensor.strides()[3] == 1);
    if (fits || tensor.size() == 0) return tensor;
    debug_log("attention",
              "slow path: {} is copied, since its address or a stride is no multiple of 16 bytes",
              argument);
    return Tensor::empty(tensor.dtype(), tensor.shape(), tensor.device());
}

Tensor readable(const char* argument, const Tensor& tensor) {
    const Tensor result = writable(argument, tensor);
    if (result.raw() != tensor.raw()) result.copy_from(tensor);
    return result;
}

namespace {

/// The starts of packed sequences as i32 on the GPU.
Tensor starts_on(Device device, const std::vector<std::int64_t>& starts) {
    std::vector<std::int32_t> narrow(starts.begin(), starts.end());
    narrow.resize((narrow.size() + 1) / 2 * 2);
    std::vector<std::int64_t> words(narrow.size() / 2);
    std::memcpy(words.data(), narrow.data(), narrow.size() * sizeof(narrow[0]));
    return run::constant(words, device);
}

/// Everything that masks by position: the mask as data, and the diagonals of causal and window.
BlockMask mask_with_diagonals(const AttentionSpec& s, const BlockMask& mask) {
    const std::int64_t left = s.window_left, right = s.right();
    if (left < 0 && right < 0) return mask;
    const BlockMask band = mask_of_mod(masks::window(left, right),
                                       {s.batch, s.query_heads, s.query_length, s.kv_length});
    return intersection(mask, band);
}

}  // namespace

PlacedArrays::PlacedArrays(const AttentionSpec& spec, const AttentionBuffers& b,
                           ProblemInputs& inputs)
    : query(readable("query", b.query)),
      key(readable("key", b.key)),
      value(readable("value", b.value)) {
    if (b.sinks.defined()) sinks = b.sinks.to(f32).contiguous();
    if (spec.packed()) {
        q_starts = starts_on(spec.device, b.starts);
        kv_starts = starts_on(spec.device, b.kv_starts);
    }
    inputs.dtype = spec.dtype;
    inputs.query = view_of(query);
    inputs.key = view_of(key);
    inputs.value = view_of(value);
    inputs.scale = spec.scale;
    const Diagonals diagonals = diagonals_of(spec);
    inputs.lower_diagonal = diagonals.lower;
    inputs.upper_diagonal = diagonals.upper;
    inputs.score_mod = combined_mod(spec);
    for (const Tensor& x : b.captured) {
        inputs.captures.push_back({address_of(x), x.dtype(), x.shape(), x.strides()});
    }
    inputs.sinks = address_of(sinks);
    inputs.q_segments = address_of(b.segment_ids);
    inputs.kv_segments = address_of(b.kv_segment_ids);
    inputs.q_starts = address_of(q_starts);
    inputs.kv_starts = address_of(kv_starts);
    inputs.sequences = spec.sequences;
    inputs.kv_lengths = address_of(b.kv_lengths);
    inputs.length_bytes = spec.kv_lengths ? size_of(*spec.kv_lengths) : 0;
    inputs.dropout = spec.dropout;
    inputs.seed = b.seed;
    inputs.workspace = address_of(b.workspace);
}

std::shared_ptr<const UploadedLists> lists_on(const AttentionSpec& spec,
                                              const AttentionBuffers& buffers,
                                              const mask::PlanOptions& options) {
    using Lists = std::shared_ptr<const UploadedLists>;
    using Key = std::tuple<Identity<const mask::MaskPlan>, int, std::int64_t>;
    static auto* const kLists = new Memo<Key, Lists>("lists of masks on GPUs", kWhileAlive);
    const auto plan = mask::plan(mask_with_diagonals(spec, buffers.block_mask), options);
    const Lists lists = kLists->get({Identity(plan), spec.device.index, spec.group()}, [&] {
        cuda::expect_no_capture("attention", "the mask to be on the GPU");
        // Freeing memory waits for the kernels that read it.
        kLists->take_if([](const Key& key, const Lists&) { return std::get<0>(key).is_gone(); });
        debug_log("attention", "a mask of {} bytes is copied to {}", plan->nbytes(),
                  to_string(spec.device));
        return std::make_shared<const UploadedLists>(*plan, spec.query_length, spec.kv_length,
                                                     spec.device.index, spec.group());
    });
    run::keep_for_graph(lists);
    return lists;
}

std::shared_ptr<const UploadedLists> query_lists_on(const AttentionSpec& spec,
                                                    const AttentionBuffers& buffers) {
    return lists_on(
        spec, buffers,
        plan_options(static_cast<int>(spec.head_dim), static_cast<int>(spec.value_dim)));
}

}  // namespace tilewright::attn::sm90
