// Parameters of the backward kernels' launches; compiled by the host compiler and by NVRTC.
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
    const float* grad_lse;                  ///< same shape, or null
    float* row_lse;          ///< (batch, heads, q_blocks * rows of a block), in log2 units
    float* row_delta;        ///< same shape: rowsum(grad_out * out) - grad_lse
    float* query_delta;      ///< (batch, heads, q_len): row_delta again, where head_dim > 128
    float* grad_query_sums;  ///< f32 sums in the order of accumulator registers
    unsigned* last_added;    ///< (batch, head, block, part of dQ) if deterministic: rank + 1 of the
                             ///< tile that added last; 0: none has
    unsigned* next_tile;     ///< counter of the dynamic tile scheduler, 0 at first; null: static
    unsigned long long* profile;  ///< 3 per CTA: cycles, first and last nanosecond; or null
    int q_len, kv_len;
    int batches, heads, kv_heads, heads_per_kv_head;
    int splits;  ///< parts into which the query heads of a kv head are split; kv_heads and
                 ///< heads_per_kv_head count them as kv heads of their own
    float *key_splits, *value_splits;  ///< dK and dV of each split: f32 (batches, kv_heads, kv_len,
                                       ///< dim), if splits > 1
    int batch_kv_heads;                ///< batch * kv heads
    int whole_places;  ///< if the kernel cuts tiles: those of later places are cut ...
    int pieces;    ///< ... into so many; dK and dV of each are in key_splits and value_splits: f32
                   ///< (piece, keys of a tile, dim)
    int q_blocks;  ///< blocks of query rows in one head, over all packed sequences
    int kv_tiles;  ///< tiles of keys in one head, over all packed sequences
    int late_kv_tiles;  ///< the last tiles of a head, the shortest, this many of which run last
    int upward_heads;   ///< the first kv heads of all batches, this many, go upward if any do
    int group_heads;    ///< kv heads that run at the same time, so that what they share stays in L2
    int upper_diagonal;       ///< row q sees keys up to q + upper_diagonal, if there is this bound
    int lower_diagonal;       ///< row q sees keys from q + lower_diagonal, if there is this bound
    float scale, scale_log2;  ///< softmax scale, and times log2(e)
    MaskLists mask;           ///< for tiles of keys, if the kernel visits listed blocks
    Segments segments;        ///< if the kernel compares them
    const BlockRows* block_rows;  ///< (q_blocks), if sequences are packed
    unsigned long long seed;      ///< seed of dropout
    unsigned dropout_threshold;   ///< a pair is dropped if its random bits are below this
    float keep_scale;             ///< 1 / (1 - dropout)
    const float* sinks;           ///< (heads): one more logit per row, if the kernels have sinks
    float* sink_parts;            ///< (batch, heads, q_blocks): the sinks' gradient from each block
    float* grad_sinks;            ///< (heads): the sum of sink_parts
    const void* kv_lengths;       ///< (batch) or (sequences), if keys end at lengths
};

}  // namespace twd::attn
