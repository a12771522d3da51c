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

/// Queries and keys of one block of a BlockMask, as its block-level view counts them.
struct BlockSize {
    std::int64_t q = 128;
    std::int64_t kv = 128;

    BlockSize() = default;
    BlockSize(std::int64_t both) : q(both), kv(both) {}
    BlockSize(std::int64_t q_size, std::int64_t kv_size) : q(q_size), kv(kv_size) {}
    bool operator==(const BlockSize&) const = default;
};

/// Lists of blocks, as PyTorch's BlockMask keeps them; all i32. `indices` hold the blocks of a row
/// first, as many as `num_blocks` says, then zeros. Batches and heads that are stored once come as
/// views of stride 0.
struct BlockLists {
    Tensor num_blocks;  ///< (B, H, rows)
    Tensor indices;     ///< (B, H, rows, columns)
};

/// A mask over (B, H, q_len, kv_len): for each pair whether the query attends to the key. B or H of
/// 1 stands for any number of batches or heads. It is stored at 64 x 64 pairs, whatever its block
/// size, which only matters to the block-level view: `sparsity`, `to_dense`, `kv_num_blocks` and
/// what belongs to them. Immutable; copies share memory.
class BlockMask {
  public:
    /// No mask.
    BlockMask() = default;

    /// The mask of a dense tensor: bool (B, H, q_len, kv_len).
    static BlockMask from_dense(const Tensor& dense, BlockSize block_size = {});
    /// PyTorch's index form: lists (B, H, q blocks[, kv blocks]) of integers, with `lengths` also
    /// narrower ones that hold the blocks that they count. Pairs of a full block attend; those of a
    /// partial block where `mask_mod` says so, without one all of them. `lengths` (q_len, kv_len)
    /// defaults to blocks x block size. UserError for lists that do not fit together: counts out of
    /// range, indices outside, a block named twice.
    static BlockMask from_kv_blocks(const Tensor& kv_num_blocks, const Tensor& kv_indices,
                                    const Tensor& full_kv_num_blocks = {},
                                    const Tensor& full_kv_indices = {}, BlockSize block_size = {},
                                    const Mod& mask_mod = {},
                                    std::optional<std::array<std::int64_t, 2>> lengths = {});

    /// The mask that `packed` gave, in this process or another. UserError when the words are none.
    static BlockMask from_packed(const Tensor& words);

    bool defined() const { return state_ != nullptr; }
    /// B, H, q_len, kv_len.
    std::array<std::int64_t, 4> shape() const;
    /// q_len, kv_len.
    std::array<std::int64_t, 2> seq_lengths() const;
    std::int64_t numel() const;
    BlockSize block_size() const;
    /// The same mask, counted in other blocks.
    BlockMask with_block_size(BlockSize block_size) const;

    /// Whether query q attends to key kv, for batch b and head h.
    bool attends(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const;
    /// Every pair: bool (B, H, q_len, kv_len).
    Tensor elements() const;

    // ---- Block level. A block is full when all its pairs lie inside of the mask and attend,
    // partial when only some do: a block that sticks out of the lengths is never full.

    /// Percentage of blocks without a pair that attends.
    double sparsity() const;
    /// i32 (B, H, q blocks, kv blocks): 1 for full and partial blocks.
    Tensor to_dense() const;
    BlockLists kv_blocks() const;       ///< partial blocks of each row of blocks
    BlockLists full_kv_blocks() const;  ///< full ones
    BlockLists q_blocks() const;        ///< partial blocks of each column of blocks
    BlockLists full_q_blocks() const;   ///< full ones

    // ---- Parts and combinations, exact.

    /// One batch, or one batch and head: a negative index counts from the end. Dimensions stay.
    BlockMask at(std::int64_t b) const;
    BlockMask at(std::int64_t b, std::int64_t h) const;
    /// `batches` batches from `b` on and `heads` heads from `h` on; a dimension of 1 stays.
    BlockMask part(std::int64_t b, std::int64_t batches, std::int64_t h, std::int64_t heads) const;
    /// These batches and heads, in this order, one of each at least; negative from the end.
    BlockMask select(std::vector<std::int64_t> batches, std::vector<std::int64_t> heads) const;
    /// `count` rows of blocks from `first` on, with all keys. Query 0 is the first of them.
    BlockMask q_rows(std::int64_t first, std::int64_t count) const;
    /// Pair (q, kv) of the result is pair (q + q_offset, kv + kv_offset) of this mask, and attends
    /// to nothing outside of it.
    BlockMask shifted(std::int64_t q_offset, std::int64_t kv_offset, std::int64_t q_len,
                      std::int64_t kv_len) const;
    /// The mask as words, u32 (n): how it travels to other processes, and as an argument of
    /// compiled programs.
    Tensor packed() const;
    /// Same pairs, whatever the block sizes.
    bool operator==(const BlockMask& other) const;

    // ---- For people.

    /// Full blocks as two full squares, partial ones shaded, empty ones blank; at most
    /// `grid` characters high and half as wide, and `limit` pictures over batches and heads.
    std::string to_string(std::array<std::int64_t, 2> grid = {20, 20},
                          std::int64_t limit = 4) const;
    /// A picture as SVG text, or as the bytes of a PNG file: a panel for each of up to twelve
    /// heads, axes with positions, a legend, and how many heads are left out.
    std::string svg() const;
    std::string png() const;
    /// Writes the picture; the file's name ends in .svg or .png. UserError when it cannot be
    /// written: then an old file stays as it was.
    void save(const std::string& path) const;
    /// Bytes that the mask occupies.
    std::int64_t nbytes() const;

    /// For the implementation.
    const std::shared_ptr<const mask::BlockMaskState>& state() const { return state_; }
    explicit BlockMask(std::shared_ptr<const mask::BlockMaskState> state)
        : state_(std::move(state)) {}

  private:
    std::shared_ptr<const mask::BlockMaskState> state_;
};

/// Where both, or either, attend; where the mask does not. Lengths are equal, batches and heads
/// broadcast. The block size is the first mask's.
BlockMask operator&(const BlockMask& a, const BlockMask& b);
BlockMask operator|(const BlockMask& a, const BlockMask& b);
BlockMask operator~(const BlockMask& a);

std::ostream& operator<<(std::ostream& out, const BlockMask& mask);

/// The mask of a mask mod; of a score mod: where it does not turn the score 0 into -inf. `batch`
/// and `heads` of 1 stand for any number. Time and memory grow with the borders of the mask, not
/// with its area. A mod that reads arrays of a GPU is evaluated there, where its operations allow
/// it; that waits, and is refused during a graph capture. UserError for negative lengths, block
/// sizes below 1, or a mod that does not trace.
BlockMask create_block_mask(const Mod& mod, std::int64_t batch, std::int64_t heads,
                            std::int64_t q_len, std::int64_t kv_len, BlockSize block_size = {});

/// The same, pair by pair: bool (batch, heads, q_len, kv_len).
Tensor create_mask(const Mod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                   std::int64_t kv_len);

/// What a score mod makes of `scores` (batch, heads, q_len, kv_len), f32 or f64, one pair after the
/// other; its dtype and shape. Slow, for debugging. UserError for other dtypes and ranks.
Tensor create_scores(const Mod& mod, const Tensor& scores);

}  // namespace tilewright
