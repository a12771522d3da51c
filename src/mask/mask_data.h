// The canonical form of a mask: per row of 64 queries, runs of 64 x 64 pieces; pieces as bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tilewright::mask {

inline constexpr std::int64_t kAtom = 64;  ///< queries and keys of one piece

/// A 64 x 64 piece: word i holds query i, bit j of it key j. Bits outside of the mask are 0.
using Atom = std::array<std::uint64_t, kAtom>;
using AtomId = std::uint32_t;
inline constexpr AtomId kNone = 0;  ///< the piece without a bit
inline constexpr AtomId kAll = 1;   ///< the piece of 4096 bits

/// The atom with bits in its first `rows` rows and `columns` columns.
Atom corner_atom(std::int64_t rows, std::int64_t columns);
Atom transposed(const Atom& atom);

/// Distinct atoms; equal content, equal id. None and all are always there.
class AtomPool {
  public:
    AtomPool();
    AtomId intern(const Atom& atom);
    const Atom& operator[](AtomId id) const { return atoms_[id]; }
    const std::vector<Atom>& atoms() const { return atoms_; }
    std::int64_t nbytes() const { return static_cast<std::int64_t>(atoms_.size() * sizeof(Atom)); }

  private:
    std::vector<Atom> atoms_;
    std::unordered_multimap<std::uint64_t, AtomId> by_hash_;
};

/// Neighbouring pieces of a row: all of them full, or each with an atom of its own.
struct Run {
    std::int32_t first = 0;   ///< index of its first piece along the keys
    std::int32_t count = 0;   ///< pieces
    std::int64_t atoms = -1;  ///< partial: position of its first id in MaskData::ids; full: -1

    bool full() const { return atoms < 0; }
    std::int32_t end() const { return first + count; }
};

/// Which of q_len x kv_len pairs attend, for each of `batch` x `heads` (1 where they do not
/// matter). Pieces that no run covers are empty. Runs are in order, maximal, and of a partial run
/// no atom is none or all: equal masks have equal runs.
struct MaskData {
    std::int64_t batch = 1, heads = 1;
    std::int64_t q_len = 0, kv_len = 0;
    std::vector<std::int64_t> row_begin;  ///< batch * heads * rows() + 1 positions in `runs`
    std::vector<Run> runs;
    std::vector<AtomId> ids;
    AtomPool atoms;

    std::int64_t rows() const { return (q_len + kAtom - 1) / kAtom; }
    std::int64_t columns() const { return (kv_len + kAtom - 1) / kAtom; }
    /// Runs of row `row`, counted over batch, heads and rows.
    std::span<const Run> row(std::int64_t row) const;
    /// Queries (keys) of the mask that lie in a row (column) of pieces: 64, less in the last.
    std::int64_t row_size(std::int64_t row) const;
    std::int64_t column_size(std::int64_t column) const;
    /// The atom of a piece all of whose pairs attend: kAll inside, else a corner of this pool.
    AtomId full_atom(std::int64_t row, std::int64_t column);
    std::int64_t nbytes() const;
    bool get(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const;
};

/// Appends rows to a MaskData piece by piece, in order, and merges what touches.
class RowWriter {
  public:
    explicit RowWriter(MaskData& data) : data_(data) {
        if (data_.row_begin.empty()) data_.row_begin.push_back(0);
    }
    void full(std::int64_t first, std::int64_t count);
    void atom(std::int64_t column, AtomId id);  ///< none and all find their place, too
    void end_row() { data_.row_begin.push_back(static_cast<std::int64_t>(data_.runs.size())); }

  private:
    Run* last(std::int64_t column);
    MaskData& data_;
};

/// Walks one row's pieces from left to right.
class RowCursor {
  public:
    RowCursor(const MaskData& data, std::int64_t row) : data_(&data), runs_(data.row(row)) {}
    /// Id of a piece; columns must not decrease from call to call.
    AtomId at(std::int64_t column);
    /// First column at or after `column` that differs in kind (none, full, partial) from it.
    std::int64_t change(std::int64_t column);

  private:
    const MaskData* data_;
    std::span<const Run> runs_;
    std::size_t next_ = 0;  ///< first run that ends after the last column asked for
};

/// The mask with queries and keys exchanged.
MaskData transposed(const MaskData& data);

enum class Combine : std::uint8_t { both, either };
/// Intersection or union. Lengths are equal; batch and heads broadcast.
MaskData combined(const MaskData& a, const MaskData& b, Combine how);
MaskData complement(const MaskData& data);
/// These batches and heads, in this order; one stored batch or head stands for all.
MaskData selected_heads(const MaskData& data, std::span<const std::int64_t> batches,
                        std::span<const std::int64_t> heads);
/// The q_len x kv_len pairs from (q_start, kv_start) on, which may be negative; false outside.
MaskData window(const MaskData& data, std::int64_t q_start, std::int64_t q_len,
                std::int64_t kv_start, std::int64_t kv_len);

/// The 64 x 64 pairs from (q, kv) on, clipped to the mask; `row_base` is the first row of the head.
Atom read_atom(const MaskData& data, std::int64_t row_base, std::int64_t q, std::int64_t kv);

}  // namespace tilewright::mask
