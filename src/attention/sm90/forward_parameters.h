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
    int q_tile;  ///< -1: no tile, where there may be fewer than places
    int first_entry;
    int blocks;    ///< over its entries; at least one
    int sequence;  ///< of packed sequences
};

/// Rows of a packed sequence.
struct alignas(16) SequenceRows {
    int q_begin, q_len, kv_begin, kv_len;
};

/// A mask as lists of key blocks: for each of `batches` x `heads` planes q_tiles MaskTiles, longest
/// first. One batch or head stands for all.
struct MaskLists {
    const MaskTile* tiles;
    const MaskEntry* entries;
    const unsigned* bits;  ///< tile, warpgroup, thread, 64 columns: bit r is accumulator register r
    int batches, heads;
    const SequenceRows* sequences;  ///< of each tile, where sequences are packed
};

/// Segment ids: pairs of equal ids attend.
struct Segments {
    const int* query;  ///< (batch, q_len); packed: (q_len)
    const int* key;    ///< (batch, kv_len)
};

/// What lists are built from on the device: diagonals, segment ids, packed sequences.
struct ListParameters {
    MaskTile* tiles;                  ///< (batches, q_tiles)
    SequenceRows* sequences;          ///< (q_tiles) or null
    MaskEntry* entries;               ///< (batches, q_tiles, blocks)
    Segments segments;                ///< null: none
    const int *q_starts, *kv_starts;  ///< (packed + 1), or null
    int packed;                       ///< number of sequences; 0: they are not packed
    int q_len, kv_len;                ///< packed: in all
    int q_tiles, blocks;              ///< of a batch, the most a tile can have
    int warpgroups;
    int upper_diagonal, lower_diagonal;  ///< out of reach where there is none
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
    Segments segments;   ///< where the kernel compares them
    unsigned long long seed;     ///< of dropout
    unsigned dropout_threshold;  ///< a pair is dropped when its random bits are below
    float keep_scale;            ///< 1 / (1 - dropout)
    float* row_max;  ///< (batch, heads, q_len), written where the kernel keeps exact maxima
};

}  // namespace tw::attn
