// Parameters of kernels with tiles of queries.
#include "attention/sm90/query_tiles.h"

#include <algorithm>
#include <cmath>

#include "attention/sm90/mask_lists.h"

namespace tilewright::attn::sm90 {
namespace {

// Bytes of K and V in a group of heads that run at the same time, in L2. Where few suffice, Q and
// the results have room there, too; that is measured for heads of up to 128 columns, each with keys
// of its own, and a causal mask.
constexpr std::int64_t kGroupBytes = 32ll << 20, kSmallGroupBytes = 8ll << 20;
constexpr double kLateShare = 0.2;  // tiles shorter than this share of the longest run last

}  // namespace

std::int64_t query_tiles_of(const ProblemDesc& desc, int rows, int group) {
    return ceil_div(desc.q_len * group, rows) + desc.sequences;
}

twd::attn::ForwardParameters query_tile_parameters(const ProblemInputs& inputs,
                                                   const ProblemDesc& desc, const DeviceTensor& out,
                                                   int rows, int group) {
    const std::int64_t heads = desc.heads / group, batch_heads = desc.batch * heads;
    const std::int64_t q_tiles = query_tiles_of(desc, rows, group);
    twd::attn::ForwardParameters p{};
    p.out = reinterpret_cast<void*>(out.address);
    p.out_batch_stride = out.strides[0];
    p.out_head_stride = out.strides[1];
    p.out_row_stride = out.strides[2];
    p.lse = reinterpret_cast<float*>(inputs.lse);
    p.q_len = static_cast<int>(desc.q_len);
    p.kv_len = static_cast<int>(desc.kv_len);
    p.heads = static_cast<int>(heads);
    p.heads_per_kv_head = static_cast<int>(heads / desc.kv_heads);
    p.batch_heads = static_cast<int>(batch_heads);
    p.q_tiles = static_cast<int>(q_tiles);
    p.group_heads = 1;
    p.upper_diagonal = static_cast<int>(desc.upper_diagonal);
    p.lower_diagonal = static_cast<int>(desc.lower_diagonal);
    p.scale_log2 = static_cast<float>(inputs.scale * 1.44269504088896340736);
    p.scale = static_cast<float>(inputs.scale);
    p.sinks = reinterpret_cast<const float*>(inputs.sinks);
    p.segments = {reinterpret_cast<const int*>(inputs.q_segments),
                  reinterpret_cast<const int*>(inputs.kv_segments)};
    p.kv_lengths = reinterpret_cast<const void*>(inputs.kv_lengths);
    p.seed = inputs.seed;
    p.dropout_threshold = dropout_threshold(inputs.dropout);
    p.keep_scale = static_cast<float>(1 / (1 - inputs.dropout));
    if (desc.upper_bound || desc.listed) {
        const std::int64_t head_bytes =
            std::max<std::int64_t>(1, desc.kv_len * (desc.query_dim + desc.value_dim) * 2);
        const bool is_small = !desc.listed && !desc.lower_bound && desc.heads == desc.kv_heads &&
                              std::max(desc.query_dim, desc.value_dim) <= 128;
        const std::int64_t group_bytes = is_small ? kSmallGroupBytes : kGroupBytes;
        const std::int64_t side_by_side =
            std::max<std::int64_t>(1, group_bytes / head_bytes) * p.heads_per_kv_head;
        p.group_heads =
            static_cast<int>(std::min(side_by_side, std::max<std::int64_t>(1, batch_heads)));
    }
    if (desc.upper_bound && !desc.lower_bound && !desc.listed && group == 1) {
        // Tiles grow with their rows; the first `late` of a head are shorter than kLateShare.
        const double longest =
            static_cast<double>(std::min(desc.kv_len, q_tiles * rows + desc.upper_diagonal));
        const double late =
            (kLateShare * longest - static_cast<double>(desc.upper_diagonal)) / rows;
        p.late_q_tiles = static_cast<int>(
            std::clamp<double>(std::floor(late), 0.0, static_cast<double>(q_tiles - 1)));
    }
    return p;
}

twd::attn::MaskLists query_lists(const DeviceMask& mask, int strips, int block) {
    if (mask.strips != strips || mask.block != block) {
        user_error(kOperation, "mask: expected lists of tiles of {} x {} but got {} x {}",
                   64 * strips, block, 64 * mask.strips, mask.block);
    }
    return lists_in(mask);
}

}  // namespace tilewright::attn::sm90
