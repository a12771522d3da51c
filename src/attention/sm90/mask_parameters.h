// Masks as lists of blocks, segment ids and packed sequences, as both kernels read them; compiled
// by the host compiler and by NVRTC.
#pragma once

namespace twd::attn {

/// An entry of a tile's list: blocks first, first + 1, ..., and what each strip of 64 rows (queries
/// in the forward kernel, keys in the backward) sees of them.
struct alignas(16) MaskEntry {
    int first;
    int count;   ///< forward: 1 unless all strips see these blocks in full
    int states;  ///< 2 bits of BlockState per strip; backward: the predecessor (BlockPredecessor)
                 ///< from bit 8 on
    int bits;  ///< index of the tile of mask bits; negative: none, every strip sees all or nothing
};

/// What a strip sees of a block. kBlockCut: all of it up to the length at which keys end.
enum BlockState { kBlockDead = 0, kBlockPartial = 1, kBlockFull = 2, kBlockCut = 3 };

/// A bit next to the states of a forward entry: no row of the tile attends to some of its keys.
enum BlockKeys { kAllStates = (1 << 6) - 1, kHidesSome = 1 << 6 };

/// With ordered accumulation, a tile adds to a block after the previous tile in the list that also
/// sees the block: once the block's counter is that tile's rank + 1, or 0 if there is none.
enum BlockPredecessor { kPredecessorShift = 8 };

/// Bits next to the states of a visit: its block has rows past the end of a packed sequence; it is
/// the tile's last visit for its query head.
enum BlockVisits { kRaggedRows = 1 << 6, kLastOfHead = 1 << 7 };

/// A tile (of queries forward, of keys backward) in a mask's lists, in the order of work.
struct alignas(16) MaskTile {
    int index;  ///< -1: no tile, where there may be fewer tiles than places
    int first_entry;
    int blocks;    ///< number of blocks over its entries; forward: at least one
    int sequence;  ///< which packed sequence it belongs to
};

/// Rows of a packed sequence.
struct alignas(16) SequenceRows {
    int q_begin, q_len, kv_begin, kv_len;
};

/// A mask as lists: for each of `batches` x `heads` planes, as many MaskTiles as a head has tiles,
/// longest first. A single batch or head stands for all of them.
struct MaskLists {
    const MaskTile* tiles;
    const MaskEntry* entries;
    const unsigned* bits;  ///< tile, strip, thread, 64 columns: bit r is accumulator register r
    int batches, heads;
    /// Which keys some query attends to, if bits or ids say so. Forward, per entry: which of its 64
    /// keys, for any row of the tile. Backward, two words per tile: which of its keys, for any
    /// query.
    const unsigned long long* live;
    const SequenceRows* sequences;  ///< for each tile, if sequences are packed
    const int* first_q_blocks;  ///< backward: for each tile, blocks of query rows in the sequences
                                ///< before its own
};

/// Segment ids: only pairs with equal ids attend.
struct Segments {
    const int* query;  ///< (batch, q_len); packed: (q_len)
    const int* key;    ///< (batch, kv_len)
};

/// One side of the scores, queries or keys, while lists are built.
struct ListAxis {
    const int* ids;     ///< (batches, length), or null
    const int* starts;  ///< (packed + 1), or null
    int length;         ///< of all packed sequences together
};

/// Where keys end: `bytes`-byte integers, one per batch or per packed sequence.
struct KeyLengths {
    const void* data;  ///< null: keys have no lengths
    int bytes;         ///< 4 or 8
};

/// What lists are built from on the device: diagonals, segment ids, packed sequences.
struct ListParameters {
    MaskTile* tiles;           ///< (batches, row_tiles)
    SequenceRows* sequences;   ///< (row_tiles), or null
    int* first_q_blocks;       ///< (row_tiles), or null
    MaskEntry* entries;        ///< (batches, row_tiles, blocks)
    unsigned long long* live;  ///< as in MaskLists; null if there are no ids
    KeyLengths lengths;
    ListAxis rows, columns;              ///< tiles lie along rows, blocks along columns
    int packed;                          ///< number of packed sequences; 0: not packed
    int row_tiles, blocks;               ///< tiles of a batch; the most blocks that a tile can have
    int strips;                          ///< strips of 64 rows in a tile
    int block_columns;                   ///< 64 or 128
    int upper_diagonal, lower_diagonal;  ///< bounds of column - row; out of reach if there is none
    bool rows_are_keys;  ///< backward: first tiles first, and rows past the end are masked
    bool ordered;        ///< backward: entries include predecessors
};

/// The query rows of a block of packed sequences: the first one in the tensor, and how many.
struct BlockRows {
    int first, count;
};

}  // namespace twd::attn
