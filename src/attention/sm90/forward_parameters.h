// What a launch of a kernel whose tiles are of queries is given: the forward, and dQ where
// head_dim > 128. Read by the host compiler and by NVRTC.
#pragma once

#include "attention/sm90/mask_parameters.h"

namespace twd::attn {

/// The reference of the exponent, in log2 units, and the sum of a row's probabilities in one split
/// of its keys. Their lse would lose the sum where scores are large.
struct alignas(8) SplitSums {
    float reference, sum;
};

struct ForwardParameters {
    void* out;  ///< (batch, heads, q_len, value dim), elements of the inputs' dtype; or dQ
    long long out_batch_stride;  ///< in elements, as the next two; the last dimension is contiguous
    long long out_head_stride;
    long long out_row_stride;
    float* lse;           ///< (batch, heads, q_len), contiguous; read for dQ
    const float* delta;   ///< for dQ, the same shape: rowsum(dO * out) - dlse
    unsigned* next_tile;  ///< of the dynamic scheduler, 0 at first; null when tiles are assigned
                          ///< statically
    unsigned long long* profile;  ///< 3 per CTA: cycles, first and last nanosecond; or null
    int q_len, kv_len;
    int heads;  ///< query heads; where tiles hold a group of them, groups
    int heads_per_kv_head;
    int batch_heads;     ///< batch * heads
    int q_tiles;         ///< tiles of query rows in one head
    int stream_k;        ///< where the blocks of all tiles are cut into ranges: so many CTAs,
    int slots;           ///< of each tile,
    int all_slots;       ///< of all tiles
    int late_q_tiles;    ///< the first so many tiles of a head, the shortest, run last
    bool keys_once;      ///< one tile alone reads a head's K and V
    int group_heads;     ///< heads that run side by side, so that their K and V stay in L2
    int upper_diagonal;  ///< row q sees keys up to q + upper_diagonal, where the kernel has this
                         ///< bound,
    int lower_diagonal;  ///< and keys from q + lower_diagonal
    float scale_log2;    ///< softmax scale * log2(e)
    float scale;         ///< softmax scale, read where a score mod stands between it and log2(e)
    MaskLists mask;      ///< where the kernel visits listed blocks
    const float* sinks;  ///< (heads): a logit more per row, where the kernel has them
    Segments segments;   ///< where the kernel compares them
    unsigned long long seed;     ///< of dropout
    unsigned dropout_threshold;  ///< a pair is dropped when its random bits are below
    float keep_scale;            ///< 1 / (1 - dropout)
    float* row_max;    ///< (batch, heads, q_len), written where the kernel keeps exact maxima
    float* split_out;  ///< (splits, batch, heads, q_len, value dim), results of the splits of keys
    SplitSums* split_sums;   ///< (splits, batch, heads, q_len)
    const void* kv_lengths;  ///< (batch) or (sequences), where keys end at lengths of their own
};

}  // namespace twd::attn
