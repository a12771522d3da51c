// Masks as data: which queries attend to which keys, built once, for any kernel.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/mod.h"
#include "tilewright/tensor.h"

namespace TW_API tilewright {

namespace mask {
struct BlockMaskState;
}

/// Numbers of queries and keys in a block of a BlockMask's block-level view.
struct BlockSize {
    std::int64_t q = 128;
    std::int64_t kv = 128;

    BlockSize() = default;
    BlockSize(std::int64_t both) : q(both), kv(both) {}
    BlockSize(std::int64_t q_size, std::int64_t kv_size) : q(q_size), kv(kv_size) {}
    bool operator==(const BlockSize&) const = default;
};

/// Lists of blocks in the form of PyTorch's BlockMask; all i32. Each row of `indices` starts with
/// `num_blocks` blocks, followed by zeros. Batches and heads that are stored once are views with
/// stride 0.
struct BlockLists {
    Tensor num_blocks;  ///< (B, H, rows)
    Tensor indices;     ///< (B, H, rows, columns)
};

/// A mask over (B, H, q_len, kv_len), which says for each pair whether the query attends to the
/// key. A B or H of 1 stands for any number of batches or heads. It is stored in pieces of 64 x 64
/// pairs; the block size matters only to the block-level view: `sparsity`, `to_dense` and the lists
/// of blocks. Immutable; copies share memory.
class BlockMask {
  public:
    /// No mask.
    BlockMask() = default;

    /// The mask given by a dense tensor: bool (B, H, q_len, kv_len).
    static BlockMask from_dense(const Tensor& dense, BlockSize block_size = {});
    /// The mask given by PyTorch's lists of blocks: integers (B, H, q blocks[, kv blocks]); with
    /// `lengths` the last dimension may be shorter, as long as it holds all blocks that are
    /// counted. All pairs of a full block attend; those of a partial block where `mask_mod` says
    /// so, or all without one. `lengths` (q_len, kv_len) defaults to blocks x block size. UserError
    /// for lists that contradict each other: counts or indices out of range, a block named twice.
    static BlockMask from_kv_blocks(const Tensor& kv_num_blocks, const Tensor& kv_indices,
                                    const Tensor& full_kv_num_blocks = {},
                                    const Tensor& full_kv_indices = {}, BlockSize block_size = {},
                                    const Mod& mask_mod = {},
                                    std::optional<std::array<std::int64_t, 2>> lengths = {});

    /// The mask that `packed` returned, in this process or another. UserError for other words.
    static BlockMask from_packed(const Tensor& words);

    bool defined() const { return state_ != nullptr; }
    /// B, H, q_len, kv_len.
    std::array<std::int64_t, 4> shape() const;
    /// q_len, kv_len.
    std::array<std::int64_t, 2> seq_lengths() const;
    std::int64_t numel() const;
    BlockSize block_size() const;
    /// The same mask with another block size.
    BlockMask with_block_size(BlockSize block_size) const;

    /// Whether query q attends to key kv, for batch b and head h.
    bool attends(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const;
    /// Every pair: bool (B, H, q_len, kv_len).
    Tensor elements() const;

    // ---- Block level. A block is full when all its pairs are inside the mask and attend, partial
    // when only some do: a block that reaches past the lengths is never full.

    /// Percentage of blocks in which no pair attends.
    double sparsity() const;
    /// i32 (B, H, q blocks, kv blocks): 1 for full and partial blocks.
    Tensor to_dense() const;
    BlockLists kv_blocks() const;       ///< partial blocks of each row of blocks
    BlockLists full_kv_blocks() const;  ///< full ones
    BlockLists q_blocks() const;        ///< partial blocks of each column of blocks
    BlockLists full_q_blocks() const;   ///< full ones

    // ---- Parts and combinations, exact to the pair.

    /// One batch, or one batch and head, negative from the end. All dimensions are kept.
    BlockMask at(std::int64_t b) const;
    BlockMask at(std::int64_t b, std::int64_t h) const;
    /// `batches` batches from `b` on and `heads` heads from `h` on; a dimension of 1 is kept.
    BlockMask part(std::int64_t b, std::int64_t batches, std::int64_t h, std::int64_t heads) const;
    /// These batches and heads in this order, at least one of each; negative ones from the end.
    BlockMask select(std::vector<std::int64_t> batches, std::vector<std::int64_t> heads) const;
    /// `count` rows of blocks from row `first` on, with all keys. Queries count from 0 again.
    BlockMask q_rows(std::int64_t first, std::int64_t count) const;
    /// Pair (q, kv) of the result is pair (q + q_offset, kv + kv_offset) of this mask; pairs
    /// outside it do not attend.
    BlockMask shifted(std::int64_t q_offset, std::int64_t kv_offset, std::int64_t q_len,
                      std::int64_t kv_len) const;
    /// The mask as words, u32 (n), for other processes and as an argument of compiled programs.
    Tensor packed() const;
    /// Whether the same pairs attend, whatever the block sizes.
    bool operator==(const BlockMask& other) const;

    // ---- Text and pictures.

    /// A picture in characters: full blocks as two full squares, partial ones shaded, empty ones
    /// blank; at most `grid` cells high and wide, for at most `limit` pairs of a batch and a head.
    std::string to_string(std::array<std::int64_t, 2> grid = {20, 20},
                          std::int64_t limit = 4) const;
    /// A picture as SVG text, or as the bytes of a PNG file: a panel for each of up to twelve
    /// heads, axes with positions, a legend, and the number of heads left out.
    std::string svg() const;
    std::string png() const;
    /// Writes the picture to a file whose name ends in .svg or .png. UserError when it cannot be
    /// written: then an existing file stays as it was.
    void save(const std::string& path) const;
    /// Size of the mask in bytes.
    std::int64_t nbytes() const;

    /// For the implementation.
    const std::shared_ptr<const mask::BlockMaskState>& state() const { return state_; }
    explicit BlockMask(std::shared_ptr<const mask::BlockMaskState> state)
        : state_(std::move(state)) {}

  private:
    std::shared_ptr<const mask::BlockMaskState> state_;
};

/// Intersection, union and complement. UserError unless lengths are equal and batches and heads
/// broadcast. The block size is that of the first mask.
BlockMask operator&(const BlockMask& a, const BlockMask& b);
BlockMask operator|(const BlockMask& a, const BlockMask& b);
BlockMask operator~(const BlockMask& a);

std::ostream& operator<<(std::ostream& out, const BlockMask& mask);

/// The mask of a mask mod, or of a score mod: then the pairs whose score 0 it does not turn into
/// -inf. `batch` and `heads` of 1 stand for any number. Time and memory grow with the borders of
/// the mask, not with its area. A mod that reads arrays on a GPU is evaluated there if its
/// operations allow it; that waits for the GPU, and is a UserError during graph capture. UserError
/// for negative lengths, block sizes below 1, or a mod that cannot be traced.
BlockMask create_block_mask(const Mod& mod, std::int64_t batch, std::int64_t heads,
                            std::int64_t q_len, std::int64_t kv_len, BlockSize block_size = {});

/// The same, pair by pair: bool (batch, heads, q_len, kv_len).
Tensor create_mask(const Mod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                   std::int64_t kv_len);

/// A score mod applied to `scores` (batch, heads, q_len, kv_len), f32 or f64, pair by pair; the
/// result has their dtype and shape. Slow, for debugging. UserError for other dtypes and ranks.
Tensor create_scores(const Mod& mod, const Tensor& scores);

}  // namespace tilewright
