// What a launch of the forward kernel is given; read by the host compiler and by NVRTC.
#pragma once

namespace tw::attn {

/// One entry of a tile's list: key blocks first, first + 1, ..., and what each warpgroup of 64 rows
/// finds in them.
struct alignas(16) MaskEntry {
    int first;
    int count;   ///< 1 unless all warpgroups see all of it
    int states;  ///< 2 bits per warpgroup: BlockState
    int bits;    ///< which tile of mask bits; read where a warpgroup sees a part
};

/// What a warpgroup sees of a key block.
enum BlockState { kBlockDead = 0, kBlockPartial = 1, kBlockFull = 2 };

/// A tile of query rows in a mask's lists, in the order of work.
struct alignas(16) MaskTile {
    int q_tile;
    int first_entry;
    int blocks;  ///< over its entries; at least one
    int unused;
};

/// A mask as lists of key blocks: for each of `batches` x `heads` planes q_tiles MaskTiles, longest
/// first. One batch or head stands for all.
struct MaskLists {
    const MaskTile* tiles;
    const MaskEntry* entries;
    const unsigned* bits;  ///< tile, warpgroup, thread, 64 columns: bit r is accumulator register r
    int batches, heads;
};

struct ForwardParameters {
    void* out;  ///< (batch, heads, q_len, value dim), elements of the inputs' dtype
    long long out_batch_stride;  ///< in elements, as the next two; the last dimension is contiguous
    long long out_head_stride;
    long long out_row_stride;
    float* lse;                   ///< (batch, heads, q_len), contiguous
    unsigned* tickets;            ///< one zero; null when tiles are assigned statically
    unsigned long long* profile;  ///< 3 per CTA: cycles, first and last nanosecond; or null
    int q_len, kv_len;
    int heads;  ///< query heads
    int heads_per_kv_head;
    int batch_heads;     ///< batch * heads
    int q_tiles;         ///< tiles of query rows in one head
    int late_q_tiles;    ///< the first so many tiles of a head, the shortest, run last
    int group_heads;     ///< heads that run side by side, so that their K and V stay in L2
    int upper_diagonal;  ///< row q sees keys up to q + upper_diagonal, where the kernel has this
                         ///< bound,
    int lower_diagonal;  ///< and keys from q + lower_diagonal
    float scale_log2;    ///< softmax scale * log2(e)
    float scale;         ///< softmax scale, read where a score mod stands between it and log2(e)
    MaskLists mask;      ///< where the kernel visits listed blocks
    const float* sinks;  ///< (heads): a logit more per row, where the kernel has them
    float* row_max;      ///< (batch, heads, q_len), written where the kernel keeps exact maxima
};

}  // namespace tw::attn
