// Masks as lists of blocks, segment ids and packed sequences, as both kernels read them; read by
// the host compiler and by NVRTC.
#pragma once

namespace twd::attn {

/// One entry of a tile's list: blocks first, first + 1, ..., and what each strip of 64 rows (of
/// queries in the forward kernel, of keys in the backward) finds in them.
struct alignas(16) MaskEntry {
    int first;
    int count;   ///< forward: 1 unless all strips see all of it
    int states;  ///< 2 bits per strip: BlockState; backward: from bit 8 on the predecessor
                 ///< (BlockPredecessor)
    int bits;    ///< which tile of mask bits; negative: none, every strip sees all or nothing
};

/// What a strip sees of a block. kBlockCut: all of it up to where keys end at a length.
enum BlockState { kBlockDead = 0, kBlockPartial = 1, kBlockFull = 2, kBlockCut = 3 };

/// Beside the states of a forward entry: some of its keys are attended by no row of the tile.
enum BlockKeys { kAllStates = (1 << 6) - 1, kHidesSome = 1 << 6 };

/// Where ordered sums are wanted, a tile adds to a block after the tile of the list's rank before
/// it that sees the block too: when the block's counter is that rank + 1, or 0 without such a tile.
enum BlockPredecessor { kPredecessorShift = 8 };

/// Beside the states of a visit: its block has rows past the end of a packed sequence; it is the
/// tile's last of its query head.
enum BlockVisits { kRaggedRows = 1 << 6, kLastOfHead = 1 << 7 };

/// A tile (of queries forward, of keys backward) in a mask's lists, in the order of work.
struct alignas(16) MaskTile {
    int index;  ///< -1: no tile, where there may be fewer than places
    int first_entry;
    int blocks;    ///< over its entries; forward: at least one
    int sequence;  ///< of packed sequences
};

/// Rows of a packed sequence.
struct alignas(16) SequenceRows {
    int q_begin, q_len, kv_begin, kv_len;
};

/// A mask as lists: for each of `batches` x `heads` planes as many MaskTiles as a head has tiles,
/// longest first. One batch or head stands for all.
struct MaskLists {
    const MaskTile* tiles;
    const MaskEntry* entries;
    const unsigned* bits;  ///< tile, strip, thread, 64 columns: bit r is accumulator register r
    int batches, heads;
    /// Which keys some query attends, where bits or ids tell. Forward, per entry: of its 64 keys,
    /// in any of the tile's rows. Backward, two words per tile: of its keys, in any query at all.
    const unsigned long long* live;
    const SequenceRows* sequences;  ///< of each tile, where sequences are packed
    const int* first_q_blocks;      ///< and, backward, blocks of query rows in the sequences before
};

/// Segment ids: pairs of equal ids attend.
struct Segments {
    const int* query;  ///< (batch, q_len); packed: (q_len)
    const int* key;    ///< (batch, kv_len)
};

/// One side of the scores while lists are built: queries or keys.
struct ListAxis {
    const int* ids;     ///< (batches, length), or null
    const int* starts;  ///< (packed + 1), or null
    int length;         ///< packed: in all
};

/// Where keys end: (batches) or, where sequences are packed, (packed) numbers of `bytes` bytes
/// each.
struct KeyLengths {
    const void* data;  ///< null: there are none
    int bytes;         ///< 4 or 8
};

/// What lists are built from on the device: diagonals, segment ids, packed sequences.
struct ListParameters {
    MaskTile* tiles;           ///< (batches, row_tiles)
    SequenceRows* sequences;   ///< (row_tiles) or null
    int* first_q_blocks;       ///< likewise
    MaskEntry* entries;        ///< (batches, row_tiles, blocks)
    unsigned long long* live;  ///< as in MaskLists; null where there are no ids
    KeyLengths lengths;
    ListAxis rows, columns;              ///< tiles lie along rows, blocks along columns
    int packed;                          ///< number of sequences; 0: they are not packed
    int row_tiles, blocks;               ///< of a batch, the most a tile can have
    int strips;                          ///< of 64 rows in a tile
    int block_columns;                   ///< 64 or 128
    int upper_diagonal, lower_diagonal;  ///< of column - row; out of reach where there is none
    bool rows_are_keys;  ///< backward: first tiles first, and rows past the end are masked
    bool ordered;        ///< backward: entries tell predecessors
};

/// Query rows of a block, where sequences are packed: the tensor's first, and how many.
struct BlockRows {
    int first, count;
};

}  // namespace twd::attn
