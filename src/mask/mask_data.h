// The canonical form of a mask: for each row of 64 queries, runs of 64 x 64 pieces, whose pairs are
// bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tilewright::mask {

inline constexpr std::int64_t kAtom = 64;  ///< queries and keys of one piece

/// A 64 x 64 piece: word i holds query i, and its bit j key j. Bits outside the mask are 0.
using Atom = std::array<std::uint64_t, kAtom>;
using AtomId = std::uint32_t;
inline constexpr AtomId kNone = 0;  ///< the piece without any bit
inline constexpr AtomId kAll = 1;   ///< the piece with all 4096 bits

/// The atom with bits in its first `rows` rows and `columns` columns.
Atom corner_atom(std::int64_t rows, std::int64_t columns);
Atom transposed(const Atom& atom);

/// Distinct atoms: equal content has equal ids. kNone and kAll are always included.
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

/// Adjacent pieces of a row: either all full, or each with its own atom.
struct Run {
    std::int32_t first = 0;   ///< index of its first piece along the keys
    std::int32_t count = 0;   ///< number of pieces
    std::int64_t atoms = -1;  ///< partial: index of its first id in MaskData::ids; full: -1

    bool full() const { return atoms < 0; }
    std::int32_t end() const { return first + count; }
};

/// Which of q_len x kv_len pairs attend, for each of `batch` x `heads` (1 if all are the same).
/// Pieces that no run covers are empty. Runs are in order and maximal, and no atom of a partial run
/// is kNone or kAll, so equal masks have equal runs.
struct MaskData {
    std::int64_t batch = 1, heads = 1;
    std::int64_t q_len = 0, kv_len = 0;
    std::vector<std::int64_t> row_begin;  ///< batch * heads * rows() + 1 indices into `runs`
    std::vector<Run> runs;
    std::vector<AtomId> ids;
    AtomPool atoms;

    std::int64_t rows() const { return (q_len + kAtom - 1) / kAtom; }
    std::int64_t columns() const { return (kv_len + kAtom - 1) / kAtom; }
    /// The runs of a row, counted over batch, heads and rows.
    std::span<const Run> row(std::int64_t row) const;
    /// Queries (keys) of the mask in a row (column) of pieces: 64, or fewer in the last one.
    std::int64_t row_size(std::int64_t row) const;
    std::int64_t column_size(std::int64_t column) const;
    /// The atom of a piece whose pairs all attend: kAll inside the mask, else a corner from this
    /// pool.
    AtomId full_atom(std::int64_t row, std::int64_t column);
    std::int64_t nbytes() const;
    bool get(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const;
};

/// Appends rows to a MaskData piece by piece, in order, and merges adjacent pieces into runs.
class RowWriter {
  public:
    explicit RowWriter(MaskData& data) : data_(data) {
        if (data_.row_begin.empty()) data_.row_begin.push_back(0);
    }
    void full(std::int64_t first, std::int64_t count);
    void atom(std::int64_t column, AtomId id);  ///< the id may be kNone or kAll, too
    void end_row() { data_.row_begin.push_back(static_cast<std::int64_t>(data_.runs.size())); }

  private:
    Run* last(std::int64_t column);
    MaskData& data_;
};

/// Reads one row's pieces from left to right.
class RowCursor {
  public:
    RowCursor(const MaskData& data, std::int64_t row) : data_(&data), runs_(data.row(row)) {}
    /// The id of a piece; columns must not decrease from call to call.
    AtomId at(std::int64_t column);
    /// The first column after `column` whose kind (none, full, partial) differs from its own.
    std::int64_t change(std::int64_t column);

  private:
    const MaskData* data_;
    std::span<const Run> runs_;
    std::size_t next_ = 0;  ///< first run that ends after the last column requested
};

/// The mask with queries and keys exchanged.
MaskData transposed(const MaskData& data);

enum class Combine : std::uint8_t { both, either };
/// Intersection or union. Lengths must be equal; batch and heads broadcast.
MaskData combined(const MaskData& a, const MaskData& b, Combine how);
MaskData complement(const MaskData& data);
/// These batches and heads, in this order; a single stored batch or head stands for all.
MaskData selected_heads(const MaskData& data, std::span<const std::int64_t> batches,
                        std::span<const std::int64_t> heads);
/// The q_len x kv_len pairs from (q_start, kv_start) on, which may be negative; false outside the
/// mask.
MaskData window(const MaskData& data, std::int64_t q_start, std::int64_t q_len,
                std::int64_t kv_start, std::int64_t kv_len);

/// The 64 x 64 pairs from (q, kv) on, clipped to the mask; `row_base` is the head's first row.
Atom read_atom(const MaskData& data, std::int64_t row_base, std::int64_t q, std::int64_t kv);

}  // namespace tilewright::mask
