// One call of attention as the front ends of frameworks make it: names of operands, texts of mods.
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

/// One call of attention but for its arrays.
struct AttentionSpec {
    /// What the operands are, in order, separated by blanks: query, key, value, out, lse, dout,
    /// dlse, segment_ids, kv_segment_ids, cu_seqlens, kv_cu_seqlens, kv_lengths, sinks, seed (u32,
    /// low half first), block_mask (packed words), origin; PyTorch's lists of blocks kv_num_blocks,
    /// kv_indices, full_kv_num_blocks, full_kv_indices, with which mask_mod decides inside of
    /// partial blocks alone. Arrays of a mod come once for each of its Refs:
    /// score or, where the gradient is wanted, dscore; mask.
    std::string operands;
    /// Texts of mods, empty without one.
    std::string score_mod, mask_mod;
    std::string derivative;  ///< of the score mod, empty where it follows from its text
    std::vector<std::size_t> gathers;
    /// Without mods and arrays. With an origin of theirs block masks are the part's own, unless
    /// `whole_masks`.
    AttentionOptions options;
    bool whole_masks = false;
    /// The operand `origin`, i32 (2), is the batch and the head of a call over all shards that the
    /// first here are: block masks are those of the whole call; so are mods and dropout if this is
    /// set.
    bool counts_from_origin = false;
    BlockSize block_size = {};  ///< of the lists
    /// Names and lengths of what the host reads and is known already, and their words one after
    /// the other.
    std::string host = {};
    std::span<const std::uint32_t> host_words = {};
};

/// The operands of a call by what they are.
struct AttentionOperands {
    Tensor query, key, value, out, lse, dout, dlse;
    AttentionOptions options;
};

/// What an operand is, under the name that Python gives it.
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

/// Masks by their words, the latest first: the same words again cost a comparison, and what
/// belongs to a mask (plans, copies on a GPU) is made once.
class Masks {
  public:
    BlockMask get(const Tensor& given);

  private:
    // Shards of a host, or masks of a schedule.
    Memo<std::string, BlockMask> known_{"masks of call sites", 16, bytes_of};
};

/// Masks of lists of blocks and of the arrays of their mask mod, by the contents of both; see
/// Masks.
class ListMasks {
  public:
    /// `lists`: those of PyTorch, in the order of their roles; the last two may be undefined. Of
    /// `shape`, that of the call; lists for one batch or head serve all, each with what the mod
    /// says of it.
    BlockMask get(const std::array<Tensor, 4>& lists, const std::vector<Tensor>& captured,
                  const std::string& mask_mod, BlockSize block_size,
                  std::array<std::int64_t, 4> shape);

  private:
    Memo<std::vector<std::int64_t>, BlockMask> known_{"masks of lists of blocks", 16, bytes_of};
};

/// A part of a mask, cut out once; see Masks.
class Parts {
  public:
    BlockMask get(const BlockMask& mask, std::array<std::int64_t, 2> origin,
                  std::array<std::int64_t, 2> counts);

  private:
    using Counts = std::array<std::int64_t, 2>;
    using Key = std::tuple<Identity<const mask::BlockMaskState>, Counts, Counts>;
    Memo<Key, BlockMask> parts_{"parts of masks", 256, bytes_of};
};

/// What is made of a spec once, for all calls.
class AttentionSite {
  public:
    explicit AttentionSite(const AttentionSpec& spec);

    /// Whether dtypes and shapes decide what a call does, not what the host reads.
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
    bool is_part_ = false;  ///< of a larger call from the start: block masks are the part's own
    BlockSize block_size_;
    mutable Masks masks_;
    mutable ListMasks list_masks_;
    mutable Parts parts_;
};

/// Numbers of a text, separated by blanks.
std::vector<std::size_t> numbers_of(std::string_view text);

}  // namespace tilewright::python
