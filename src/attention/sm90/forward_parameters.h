// Parameters of kernels with tiles of queries: the forward pass, and dQ where head_dim > 128.
// Compiled by the host compiler and by NVRTC.
#pragma once

#include "attention/sm90/mask_parameters.h"

namespace twd::attn {

/// For one row and one split of its keys: the reference of the exponent, in log2 units, and the sum
/// of probabilities. An lse in their place would lose the sum where scores are large.
struct alignas(8) SplitSums {
    float reference, sum;
};

struct ForwardParameters {
    void* out;  ///< (batch, heads, q_len, value dim), elements of the inputs' dtype; or dQ
    long long out_batch_stride;  ///< in elements, like the next two; the last dimension is
                                 ///< contiguous
    long long out_head_stride;
    long long out_row_stride;
    float* lse;           ///< (batch, heads, q_len), contiguous; read for dQ
    const float* delta;   ///< for dQ, same shape: rowsum(dO * out) - dlse
    unsigned* next_tile;  ///< counter of the dynamic tile scheduler, 0 at first; null: static
    unsigned long long* profile;  ///< 3 per CTA: cycles, first and last nanosecond; or null
    int q_len, kv_len;
    int heads;  ///< query heads, or groups of them if a tile holds a group
    int heads_per_kv_head;
    int batch_heads;     ///< batch * heads
    int q_tiles;         ///< tiles of query rows in one head
    int stream_k;        ///< CTAs with equal ranges of the blocks of all tiles; 0: whole tiles
    int slots;           ///< slots of each tile, for stream-K
    int all_slots;       ///< slots of all tiles, for stream-K
    int late_q_tiles;    ///< the first tiles of a head, the shortest, this many of which run last
    bool keys_once;      ///< only one tile reads a head's K and V
    int group_heads;     ///< heads that run at the same time, so that their K and V stay in L2
    int upper_diagonal;  ///< row q sees keys up to q + upper_diagonal, if the kernel has this bound
    int lower_diagonal;  ///< row q sees keys from q + lower_diagonal, if the kernel has this bound
    float scale_log2;    ///< softmax scale * log2(e)
    float scale;         ///< softmax scale, used if a score mod comes between it and log2(e)
    MaskLists mask;      ///< if the kernel visits listed blocks
    const float* sinks;  ///< (heads): one more logit per row, if the kernel has sinks
    Segments segments;   ///< if the kernel compares them
    unsigned long long seed;     ///< seed of dropout
    unsigned dropout_threshold;  ///< a pair is dropped if its random bits are below this
    float keep_scale;            ///< 1 / (1 - dropout)
    float* row_max;    ///< (batch, heads, q_len), written if the kernel takes exact maxima
    float* split_out;  ///< (splits, batch, heads, q_len, value dim), results of the splits of keys
    SplitSums* split_sums;   ///< (splits, batch, heads, q_len)
    const void* kv_lengths;  ///< (batch) or (sequences), if keys end at lengths
};

}  // namespace twd::attn
