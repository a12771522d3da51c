// One attention call as frameworks' front ends make it: names of operands, texts of mods.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "support/memo.h"
#include "tilewright/attention.h"

namespace tilewright::python {

/// One attention call without its arrays.
struct AttentionSpec {
    /// Names of the operands, in order, separated by blanks: query, key, value, out, lse, dout,
    /// dlse, segment_ids, kv_segment_ids, cu_seqlens, kv_cu_seqlens, kv_lengths, sinks, seed (u32,
    /// low half first), block_mask (packed words), origin; PyTorch's lists of blocks kv_num_blocks,
    /// kv_indices, full_kv_num_blocks, full_kv_indices, with which mask_mod only decides within
    /// partial blocks. A mod's arrays come once for each of its Refs: score, or dscore if its
    /// gradient is needed; mask.
    std::string operands;
    /// Texts of the mods, empty without one.
    std::string score_mod, mask_mod;
    std::string derivative;  ///< of the score mod; empty if derived from its text
    std::vector<std::size_t> gathers;
    /// Without mods and arrays. If they have an origin, block masks cover this part of a larger
    /// call only, unless `whole_masks`.
    AttentionOptions options;
    bool whole_masks = false;
    /// The operand `origin`, i32 (2), is the batch and head, in a call over all shards, that are
    /// first here: block masks cover the whole call, and so do mods and dropout if this is set.
    bool counts_from_origin = false;
    BlockSize block_size = {};  ///< of PyTorch's lists
    /// Names and lengths of what the host reads and is known in advance, and their words,
    /// concatenated.
    std::string host = {};
    std::span<const std::uint32_t> host_words = {};
};

/// The operands of a call, by role.
struct AttentionOperands {
    Tensor query, key, value, out, lse, dout, dlse;
    AttentionOptions options;
};

/// The role of an operand, under Python's name for it.
enum class Role : std::uint8_t {
    query,
    key,
    value,
    out,
    lse,
    dout,
    dlse,
    segment_ids,
    kv_segment_ids,
    cu_seqlens,
    kv_cu_seqlens,
    kv_lengths,
    sinks,
    seed,
    block_mask,
    origin,
    kv_num_blocks,
    kv_indices,
    full_kv_num_blocks,
    full_kv_indices,
    score,
    dscore,
    mask,
    unused,
};

inline std::size_t bytes_of(const BlockMask& mask) {
    return static_cast<std::size_t>(mask.nbytes());
}

/// Masks by their words, the latest first: for words that it knows it only compares, and what
/// belongs to a mask (plans, copies on a GPU) is made once.
class Masks {
  public:
    BlockMask get(const Tensor& given);

  private:
    // Enough for the shards of a host, or the masks of a schedule.
    Memo<std::string, BlockMask> known_{"masks of call sites", 16, bytes_of};
};

/// Masks made from lists of blocks and the arrays of their mask mod, by the contents of both; see
/// Masks.
class ListMasks {
  public:
    /// `lists`: PyTorch's, in the order of their roles; the last two may be undefined. `shape` is
    /// the call's; lists for one batch or head apply to all, with the mod evaluated for each.
    BlockMask get(const std::array<Tensor, 4>& lists, const std::vector<Tensor>& captured,
                  const std::string& mask_mod, BlockSize block_size,
                  std::array<std::int64_t, 4> shape);

  private:
    Memo<std::vector<std::int64_t>, BlockMask> known_{"masks of lists of blocks", 16, bytes_of};
};

/// Parts of masks, each cut out once; see Masks.
class Parts {
  public:
    BlockMask get(const BlockMask& mask, std::array<std::int64_t, 2> origin,
                  std::array<std::int64_t, 2> counts);

  private:
    using Counts = std::array<std::int64_t, 2>;
    using Key = std::tuple<Identity<const mask::BlockMaskState>, Counts, Counts>;
    Memo<Key, BlockMask> parts_{"parts of masks", 256, bytes_of};
};

/// What is made from a spec once, for all calls.
class AttentionSite {
  public:
    explicit AttentionSite(const AttentionSpec& spec);

    /// Whether dtypes and shapes alone decide what a call launches, not values that the host reads.
    bool repeats() const;
    AttentionOperands read(std::span<const Tensor> operands) const;
    std::size_t num_operands() const { return roles_.size(); }
    const AttentionOptions& options() const { return options_; }

  private:
    void add_host_array(AttentionOptions& options, Role role, const Tensor& array) const;
    void cut(AttentionOperands& given) const;
    void read_host_words(const AttentionSpec& spec);

    std::vector<Role> roles_;
    AttentionOptions options_;
    std::string score_mod_, mask_mod_, derivative_;
    std::vector<std::size_t> gathers_;
    bool counts_from_origin_ = false;
    bool is_part_ = false;  ///< of a larger call, whose block masks cover this part only
    BlockSize block_size_;
    mutable Masks masks_;
    mutable ListMasks list_masks_;
    mutable Parts parts_;
};

/// The numbers of a text, separated by blanks.
std::vector<std::size_t> numbers_of(std::string_view text);

}  // namespace tilewright::python
