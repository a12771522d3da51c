// Shared by the tests of programmable Hopper attention: dense definitions, and problems with mods,
// masks, sinks, segments and dropout in device memory.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "attention/sm90/backward.h"
#include "attention/sm90/mask_lists.h"
#include "mask/dense.h"
#include "mod/traced.h"
#include "tests/attention/sm90_support.h"

namespace tilewright::attn::sm90 {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline std::vector<CaptureView> views_of(const std::vector<Capture>& captures,
                                         const std::vector<cuda::DeviceAddress>& addresses) {
    std::vector<CaptureView> views;
    for (std::size_t i = 0; i < captures.size(); ++i) {
        const Tensor& tensor = captures[i].tensor();
        views.push_back({addresses[i], tensor.dtype(), tensor.shape(), tensor.strides()});
    }
    return views;
}

/// A mask by attends(head, q, kv), for this number of heads.
template <typename Attends>
mask::MaskData mask_data(std::int64_t heads, std::int64_t q_len, std::int64_t kv_len,
                         const Attends& attends) {
    const Tensor dense = Tensor::empty(boolean, {1, heads, q_len, kv_len});
    auto* values = dense.data<bool>();
    for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t q = 0; q < q_len; ++q) {
            for (std::int64_t kv = 0; kv < kv_len; ++kv) *values++ = attends(h, q, kv);
        }
    }
    return mask::from_dense(dense);
}

/// The inputs of a dense computation. Positions are b, h, q, kv.
struct Dense {
    using Value = std::function<double(double, std::int64_t b, std::int64_t h, std::int64_t q,
                                       std::int64_t kv)>;
    Value score = [](double s, auto, auto, auto, auto) { return s; };
    Value derivative = [](double, auto, auto, auto, auto) { return 1.0; };  ///< of the score
    std::function<bool(std::int64_t q, std::int64_t kv)> attends = [](auto, auto) { return true; };
    /// In place of `attends` if heads differ.
    std::function<bool(std::int64_t h, std::int64_t q, std::int64_t kv)> head_attends = {};
    /// The factor of a probability, for dropout.
    std::function<double(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv)> keep =
        [](auto, auto, auto, auto) { return 1.0; };
    std::vector<double> sinks;     ///< per head, or none
    double tolerance = 1.0 / 256;  ///< relative: p and out are each rounded to 8 bits
    double lse_tolerance = 1e-3;

    bool alive(std::int64_t h, std::int64_t q, std::int64_t kv) const {
        return head_attends ? head_attends(h, q, kv) : attends(q, kv);
    }
};

/// Keeps the pairs whose random bits are above the rate, as kernels with seed 11 do.
inline double kept_by_bits(double rate, std::int64_t b, std::int64_t h, std::int64_t q,
                           std::int64_t kv) {
    const std::uint64_t pair = (static_cast<std::uint64_t>(b) << 32 | static_cast<std::uint64_t>(h))
                               << 1;
    const std::uint64_t key =
        static_cast<std::uint64_t>(ir::philox(11, pair | 1)) << 32 | ir::philox(11, pair);
    const std::uint32_t bits =
        ir::philox(key, static_cast<std::uint64_t>(q) << 32 | static_cast<std::uint64_t>(kv));
    return bits < rate * 0x1p32 ? 0.0 : 1 / (1 - rate);
}

inline double slope_of(std::int64_t h, std::int64_t heads) {
    return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads));
}

struct ProgramOptions {
    Mod mod = {};
    bool listed = false;
    bool small_tiles = false;  ///< lists for tiles of queries with few keys
    bool row_max = false;
    bool exact = false;
    std::vector<std::int32_t> segments = {};  ///< of queries and keys
    double dropout = 0;
    double key_growth = 0;       ///< scores rise by this much from the first to the last key
    bool deterministic = false;  ///< backward
};

/// A problem in device memory with everything that its options name, ready for the forward pass.
struct Programmed {
    Device device;
    std::vector<Buffer> arrays;
    std::vector<Capture> captures;
    std::optional<UploadedLists> lists, key_lists;
    Guarded row_max;
    Buffer sinks{0, 4096}, segments, workspace;

    Programmed(const Problem& p, const Dense& dense, const ProgramOptions& options, const Array& q,
               const Array& k, const Array& v)
        : device(p, q, k, v),
          row_max(static_cast<std::size_t>(p.batch * p.heads * p.q_len) * 4),
          segments(0, 4 * options.segments.size() + 16) {
        ForwardInputs& inputs = device.inputs;
        if (options.mod) {
            const mod::Traced& traced = mod::trace(options.mod);
            std::vector<cuda::DeviceAddress> addresses;
            captures = traced.captures;
            for (const Capture& capture : captures) {
                const auto bytes = static_cast<std::size_t>(capture.tensor().nbytes());
                arrays.emplace_back(0, bytes + 16);
                arrays.back().upload(capture.tensor().raw(), bytes);
                addresses.push_back(arrays.back().address());
            }
            inputs.score_mod = traced.function;
            inputs.captures = views_of(captures, addresses);
        }
        if (options.listed) {
            const mask::MaskData data =
                mask_data(dense.head_attends ? p.heads : 1, p.q_len, p.kv_len,
                          [&](auto h, auto row, auto kv) { return dense.alive(h, row, kv); });
            const auto dim = static_cast<int>(p.dim), value_dim = static_cast<int>(p.value_dim);
            const ForwardConfig tiles = choose_listed(dim, value_dim, options.small_tiles ? 1 : 0);
            lists.emplace(mask::make_plan(data, plan_options(tiles)), p.q_len, p.kv_len, 0);
            const bool crowded =
                options.dropout > 0 ||
                (options.mod &&
                 !kept_mod_text(inputs.score_mod,
                                score_mod_facts(*inputs.score_mod, inputs.captures, p.kv_len,
                                                p.q_len, /*columns_are_keys=*/false))
                      ->affine);
            const BackwardConfig config = choose_listed_backward(dim, value_dim, crowded);
            key_lists.emplace(mask::make_plan(data, backward_plan_options(config)), p.q_len,
                              p.kv_len, 0, p.heads / p.kv_heads);
            inputs.mask = lists->mask();
            inputs.upper_diagonal.reset();
        }
        if (options.row_max) inputs.row_max = row_max.address();
        if (!dense.sinks.empty()) {
            const std::vector<float> values(dense.sinks.begin(), dense.sinks.end());
            sinks.upload(values.data(), values.size() * 4);
            inputs.sinks = sinks.address();
        }
        inputs.exact_maximum = options.exact;
        if (!options.segments.empty()) {
            segments.upload(options.segments.data(), 4 * options.segments.size());
            inputs.q_segments = inputs.kv_segments = segments.address();
        }
        inputs.dropout = options.dropout;
        inputs.seed = 11;
        take_workspace();
    }

    /// Allocates the workspace for the current inputs.
    void take_workspace() {
        const ForwardDesc desc = check_forward(device.inputs);
        workspace = Buffer(0, forward_workspace_bytes(desc, choose_forward(desc, 132)));
        device.inputs.workspace = workspace.address();
    }
};

/// Keys whose scores rise from key to key.
inline Array growing_keys(const Problem& p, double growth) {
    Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
    for (std::size_t i = 0; i < k.data.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / p.dim % p.kv_len;
        const double stretch = growth * static_cast<double>(row) / static_cast<double>(p.kv_len);
        k.data[i] = round_to(k.data[i] * (1 + stretch), p.dtype);
    }
    return k;
}

}  // namespace tilewright::attn::sm90
