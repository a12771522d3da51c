// What the launches of the backward kernels are given; read by the host compiler and by NVRTC.
#pragma once

#include "attention/sm90/mask_parameters.h"

namespace twd::attn {

/// A strided array (batch, head, row, column) whose columns are contiguous; strides in elements.
struct Rows {
    void* data;
    long long batch_stride, head_stride, row_stride;
};

struct BackwardParameters {
    Rows out, grad_out;                     ///< (batch, heads, q_len, value dim), read
    Rows grad_query, grad_key, grad_value;  ///< written
    const float* lse;                       ///< (batch, heads, q_len), natural log
    const float* grad_lse;                  ///< the same shape, or null
    float* row_lse;          ///< (batch, heads, q_blocks * rows of a block): log2 units,
    float* row_delta;        ///< and rowsum(grad_out * out) - grad_lse
    float* query_delta;      ///< the latter once more where head_dim > 128: (batch, heads, q_len)
    float* grad_query_sums;  ///< f32 sums in the order of accumulator registers
    unsigned* last_added;  ///< per (batch, head, block, part of dQ), where deterministic: rank + 1
                           ///< of the tile that added last; 0: none has
    unsigned* next_tile;   ///< of the dynamic scheduler, 0 at first; null when tiles are assigned
                           ///< statically
    unsigned long long* profile;  ///< 3 per CTA: cycles, first and last nanosecond; or null
    int q_len, kv_len;
    int batches, heads, kv_heads, heads_per_kv_head;
    int splits;  ///< tiles of one kv head share its query heads so many ways: kv_heads and
                 ///< heads_per_kv_head count those, and dK and dV of each are
    float *key_splits, *value_splits;  ///< f32 (batches, kv_heads, kv_len, dim), where splits > 1
    int batch_kv_heads;                ///< batch * kv heads
    int q_blocks;        ///< blocks of query rows in one head, all packed sequences together
    int kv_tiles;        ///< tiles of keys in one head, likewise
    int late_kv_tiles;   ///< the last so many tiles of a head, the shortest, run last
    int group_heads;     ///< kv heads that run side by side, so that what they share stays in L2
    int upper_diagonal;  ///< row q sees keys up to q + upper_diagonal, where there is this bound,
    int lower_diagonal;  ///< and keys from q + lower_diagonal
    float scale, scale_log2;      ///< softmax scale, and times log2(e)
    MaskLists mask;               ///< of tiles of keys, where the kernel visits listed blocks
    Segments segments;            ///< where the kernel compares them
    const BlockRows* block_rows;  ///< (q_blocks), where sequences are packed
    unsigned long long seed;      ///< of dropout
    unsigned dropout_threshold;   ///< a pair is dropped when its random bits are below
    float keep_scale;             ///< 1 / (1 - dropout)
    const float* sinks;           ///< (heads): a logit more per row, where the kernels have them;
    float* sink_parts;            ///< (batch, heads, q_blocks): their gradient by blocks,
    float* grad_sinks;            ///< (heads), and its sum
    const void* kv_lengths;  ///< (batch) or (sequences), where keys end at lengths of their own
};

}  // namespace twd::attn
