// Asks the engine what it would launch for typical calls of every kind.
#include "attention/sm90/plain_kernels.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"
#include "attention/sm90/lists.h"
#include "attention/sm90/wide_rows.h"
#include "mask/mask_data.h"

namespace tilewright::attn::sm90 {
namespace {

constexpr int kMultiprocessors = 132;  // of an H100 or H200

enum class Masking : std::uint8_t { none, causal, window, data };

struct Call {
    DType dtype;
    int head_dim;
    Masking masking = Masking::none;
    bool packed = false;
    std::int64_t batch = 1, heads = 16, kv_heads = 16, q_len = 0, kv_len = 0;
};

AttentionSpec spec_of(const Call& call, Pass pass) {
    constexpr std::int64_t kSequences = 8, kWindow = 1024;
    AttentionSpec spec;
    spec.pass = pass;
    spec.device = Device::cuda();
    spec.dtype = call.dtype;
    spec.batch = call.batch;
    spec.query_heads = call.heads;
    spec.kv_heads = call.kv_heads;
    spec.query_length = call.q_len;
    spec.kv_length = call.kv_len;
    spec.head_dim = spec.value_dim = call.head_dim;
    // The last row sees the last key.
    const std::int64_t diagonal = call.kv_len - call.q_len;
    if (call.masking == Masking::causal || call.masking == Masking::window) {
        spec.window_right = diagonal;
    }
    if (call.masking == Masking::window) spec.window_left = kWindow - diagonal;
    spec.block_mask = call.masking == Masking::data;
    // Queries with few keys have other tiles.
    constexpr std::int64_t kShort = 512;
    if (spec.block_mask) spec.mask_keys = call.kv_len <= kShort ? mask::kAtom : call.kv_len;
    if (call.packed) spec.sequences = kSequences;
    return spec;
}

/// The description of a call that must be supported.
template <typename Desc>
Desc described(const AttentionSpec& spec) {
    Desc desc;
    const std::optional<Refusal> refused = describe(spec, desc);
    TW_ASSERT(!refused, "{}", refused->reason);
    return desc;
}

/// Units in the order in which they were first asked for.
struct Units {
    std::vector<cuda::CompileRequest> all;
    std::set<std::string> known;

    void add(cuda::CompileRequest unit) {
        if (known.insert(cuda::source_key(unit)).second) all.push_back(std::move(unit));
    }

    void add_forward(const Call& call) {
        const auto desc = described<ForwardDesc>(spec_of(call, Pass::forward));
        add(generate_forward(desc, choose_forward(desc, kMultiprocessors)));
    }

    void add_backward(const Call& call) {
        AttentionSpec spec = spec_of(call, Pass::backward);
        for (const bool deterministic : {true, false}) {
            spec.deterministic = deterministic;
            const auto desc = described<BackwardDesc>(spec);
            for (cuda::CompileRequest& unit : generate_backward(desc, choose_backward(desc))) {
                add(std::move(unit));
            }
        }
    }
};

}  // namespace

std::vector<cuda::CompileRequest> plain_kernels(const std::vector<int>& head_dims,
                                                const std::vector<DType>& dtypes) {
    Units units;
    units.add(generate_lists());
    units.add(generate_wide_rows());
    for (const DType dtype : dtypes) {
        for (const int head_dim : head_dims) {
            for (const Masking masking :
                 {Masking::none, Masking::causal, Masking::window, Masking::data}) {
                for (const bool packed : {false, true}) {
                    if (packed && masking == Masking::data) continue;
                    // Tiles depend on the length and, for short ones, on what fills the GPU.
                    for (const auto& [batch, length] :
                         {std::pair(1, 256), {8, 512}, {16, 2048}, {4, 8192}, {1, 32768}}) {
                        const Call call{.dtype = dtype,
                                        .head_dim = head_dim,
                                        .masking = masking,
                                        .packed = packed,
                                        .batch = packed ? 1 : batch,
                                        .q_len = length,
                                        .kv_len = length};
                        units.add_forward(call);
                        units.add_backward(call);
                        // Gradients of groups, and of more keys than queries, have other kernels.
                        Call grouped = call;
                        grouped.heads = 32;
                        grouped.kv_heads = 8;
                        units.add_backward(grouped);
                        if (masking != Masking::causal || packed) continue;
                        Call longer = call;
                        longer.kv_len *= 2;
                        units.add_backward(longer);
                    }
                }
            }
            // Few rows and many keys: whole tiles, stream-K, and tiles with all heads of a group.
            for (const int group : {1, 2, 4, 8}) {
                for (const int rows : {1, 16}) {
                    for (const int batch : {1, 64}) {
                        units.add_forward({.dtype = dtype,
                                           .head_dim = head_dim,
                                           .masking = rows > 1 ? Masking::causal : Masking::none,
                                           .batch = batch,
                                           .heads = std::int64_t{8} * group,
                                           .kv_heads = 8,
                                           .q_len = rows,
                                           .kv_len = 8192});
                    }
                }
            }
        }
    }
    return std::move(units.all);
}

}  // namespace tilewright::attn::sm90
