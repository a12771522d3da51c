// Masks from masks: transposed, combined, cut out.
#include <algorithm>
#include <map>

#include "mask/mask_data.h"
#include "support/check.h"

namespace tilewright::mask {
namespace {

/// Memo of an operation on atoms: atoms repeat, so each distinct input is computed once.
template <typename Operation>
class AtomMemo {
  public:
    AtomMemo(AtomPool& pool, Operation operation) : pool_(pool), operation_(operation) {}
    AtomId operator()(AtomId a, AtomId b) {
        const auto key = std::uint64_t{a} << 32 | b;
        const auto [entry, fresh] = memo_.try_emplace(key, kNone);
        if (fresh) entry->second = pool_.intern(operation_(a, b));
        return entry->second;
    }

  private:
    AtomPool& pool_;
    Operation operation_;
    std::unordered_map<std::uint64_t, AtomId> memo_;
};

MaskData empty_like(const MaskData& data) {
    MaskData result;
    result.batch = data.batch;
    result.heads = data.heads;
    result.q_len = data.q_len;
    result.kv_len = data.kv_len;
    return result;
}

/// Exchanges one head's rows and columns. Full runs of a column open and close where two adjacent
/// rows differ, so the work is proportional to the runs of the result.
class Transposition {
  public:
    Transposition(const MaskData& in, std::int64_t head, MaskData& out)
        : in_(in), head_(head), out_(out), columns_(static_cast<std::size_t>(in.columns())) {}

    void run(auto& flip) {
        const std::int64_t rows = in_.rows();
        std::vector<Run> before;
        for (std::int64_t row = 0; row <= rows; ++row) {
            std::vector<Run> now;
            if (row < rows) {
                for (const Run& run : in_.row(head_ * rows + row)) {
                    if (run.full()) now.push_back(run);
                }
            }
            toggle_differences(before, now, row);
            if (row < rows) {
                for (const Run& run : in_.row(head_ * rows + row)) {
                    for (std::int32_t i = 0; !run.full() && i < run.count; ++i) {
                        const AtomId id = in_.ids[run.atoms + i];
                        columns_[run.first + i].pieces.push_back({row, 1, flip(id, kNone)});
                    }
                }
            }
            before = std::move(now);
        }
        RowWriter writer(out_);
        for (const Column& column : columns_) {
            for (const Piece& piece : column.pieces) {
                if (piece.id == kAll)
                    writer.full(piece.row, piece.count);
                else
                    writer.atom(piece.row, piece.id);
            }
            writer.end_row();
        }
    }

  private:
    struct Piece {
        std::int64_t row, count;
        AtomId id;
    };
    struct Column {
        std::int64_t open = -1;  ///< row at which a full run began; -1: none is open
        std::vector<Piece> pieces;
    };

    // Columns that are full in exactly one of two adjacent rows begin or end a run at `row`.
    void toggle_differences(const std::vector<Run>& before, const std::vector<Run>& now,
                            std::int64_t row) {
        std::vector<std::int32_t> edges;
        for (const auto* runs : {&before, &now}) {
            for (const Run& run : *runs) {
                edges.push_back(run.first);
                edges.push_back(run.end());
            }
        }
        std::sort(edges.begin(), edges.end());
        // Between edges 2i and 2i + 1 the number of covering runs is odd, so it is one.
        for (std::size_t i = 0; i + 1 < edges.size(); i += 2) {
            for (std::int32_t c = edges[i]; c < edges[i + 1]; ++c) {
                Column& column = columns_[c];
                if (column.open < 0) {
                    column.open = row;
                } else {
                    column.pieces.push_back({column.open, row - column.open, kAll});
                    column.open = -1;
                }
            }
        }
    }

    const MaskData& in_;
    std::int64_t head_;
    MaskData& out_;
    std::vector<Column> columns_;
};

}  // namespace

MaskData transposed(const MaskData& data) {
    MaskData result = empty_like(data);
    std::swap(result.q_len, result.kv_len);
    AtomMemo flip(result.atoms, [&](AtomId a, AtomId) { return transposed(data.atoms[a]); });
    for (std::int64_t head = 0; head < data.batch * data.heads; ++head) {
        Transposition(data, head, result).run(flip);
    }
    return result;
}

MaskData combined(const MaskData& a, const MaskData& b, Combine how) {
    MaskData result = empty_like(a);
    result.batch = std::max(a.batch, b.batch);
    result.heads = std::max(a.heads, b.heads);
    const bool both = how == Combine::both;
    AtomMemo combine(result.atoms, [&](AtomId x, AtomId y) {
        Atom atom = a.atoms[x];
        for (std::size_t i = 0; i < atom.size(); ++i) {
            atom[i] = both ? atom[i] & b.atoms[y][i] : atom[i] | b.atoms[y][i];
        }
        return atom;
    });
    RowWriter writer(result);
    const std::int64_t rows = a.rows(), columns = a.columns();
    const auto row_of = [&](const MaskData& m, std::int64_t batch, std::int64_t head) {
        return ((m.batch == 1 ? 0 : batch) * m.heads + (m.heads == 1 ? 0 : head)) * rows;
    };
    for (std::int64_t batch = 0; batch < result.batch; ++batch) {
        for (std::int64_t head = 0; head < result.heads; ++head) {
            for (std::int64_t row = 0; row < rows; ++row) {
                RowCursor left(a, row_of(a, batch, head) + row);
                RowCursor right(b, row_of(b, batch, head) + row);
                for (std::int64_t c = 0; c < columns;) {
                    const AtomId x = left.at(c), y = right.at(c);
                    const AtomId absorbing = both ? kNone : kAll;
                    // A piece that decides the result does so to the end of its run, whatever the
                    // other mask holds.
                    std::int64_t end = c + 1;
                    if (x == absorbing) end = left.change(c);
                    if (y == absorbing) end = std::max(end, right.change(c));
                    if (x <= kAll && y <= kAll && x != absorbing && y != absorbing)
                        end = std::min(left.change(c), right.change(c));
                    const AtomId id = x == absorbing || y == absorbing ? absorbing : combine(x, y);
                    if (id == kAll)
                        writer.full(c, end - c);
                    else
                        writer.atom(c, id);
                    c = end;
                }
                writer.end_row();
            }
        }
    }
    return result;
}

MaskData complement(const MaskData& data) {
    MaskData result = empty_like(data);
    RowWriter writer(result);
    std::map<std::array<std::int64_t, 3>, AtomId> memo;
    const std::int64_t rows = data.rows(), columns = data.columns();
    for (std::int64_t row = 0; row < data.batch * data.heads * rows; ++row) {
        const std::int64_t height = data.row_size(row % rows);
        RowCursor cursor(data, row);
        for (std::int64_t c = 0; c < columns;) {
            const AtomId id = cursor.at(c);
            const std::int64_t width = data.column_size(c);
            if (id <= kAll && height == kAtom && width == kAtom) {
                std::int64_t end = cursor.change(c);
                if (end == columns && data.kv_len % kAtom != 0) --end;  // the partial last piece
                if (id == kNone) writer.full(c, end - c);
                c = end;
                continue;
            }
            const auto [entry, fresh] = memo.try_emplace({id, height, width}, kNone);
            if (fresh) {
                Atom atom = corner_atom(height, width);
                for (std::size_t i = 0; i < atom.size(); ++i) atom[i] &= ~data.atoms[id][i];
                entry->second = result.atoms.intern(atom);
            }
            writer.atom(c, entry->second);
            ++c;
        }
        writer.end_row();
    }
    return result;
}

MaskData selected_heads(const MaskData& data, std::span<const std::int64_t> batches,
                        std::span<const std::int64_t> heads) {
    constexpr std::int64_t kShared[] = {0};
    if (data.batch == 1) batches = kShared;
    if (data.heads == 1) heads = kShared;
    MaskData result = empty_like(data);
    result.batch = std::ssize(batches);
    result.heads = std::ssize(heads);
    result.atoms = data.atoms;
    RowWriter writer(result);
    const std::int64_t rows = data.rows();
    for (const std::int64_t b : batches) {
        for (const std::int64_t h : heads) {
            const std::int64_t head = b * data.heads + h;
            for (std::int64_t row = 0; row < rows; ++row) {
                for (Run run : data.row(head * rows + row)) {
                    if (!run.full()) {
                        const auto from = data.ids.begin() + run.atoms;
                        run.atoms = std::ssize(result.ids);
                        result.ids.insert(result.ids.end(), from, from + run.count);
                    }
                    result.runs.push_back(run);
                }
                writer.end_row();
            }
        }
    }
    return result;
}

MaskData window(const MaskData& data, std::int64_t q_start, std::int64_t q_len,
                std::int64_t kv_start, std::int64_t kv_len) {
    MaskData result = empty_like(data);
    result.q_len = q_len;
    result.kv_len = kv_len;
    RowWriter writer(result);
    const std::int64_t rows = data.rows();
    const auto overlap_end = [](std::int64_t start, std::int64_t length, std::int64_t whole) {
        return std::clamp<std::int64_t>(whole - start, 0, length);
    };
    const std::int64_t q_end = overlap_end(q_start, q_len, data.q_len);
    const std::int64_t kv_end = overlap_end(kv_start, kv_len, data.kv_len);
    for (std::int64_t head = 0; head < data.batch * data.heads; ++head) {
        for (std::int64_t row = 0; row < result.rows(); ++row) {
            const std::int64_t q = q_start + row * kAtom;
            // Pieces of the old rows that this row overlaps; only those that are neither empty nor
            // full are read bit by bit.
            std::vector<RowCursor> cursors;
            const bool inside = q >= 0 && row * kAtom + kAtom <= q_end;
            for (std::int64_t r = std::max<std::int64_t>(q, 0) / kAtom;
                 r < rows && r * kAtom < q + kAtom && row * kAtom < q_end; ++r) {
                cursors.emplace_back(data, head * rows + r);
            }
            for (std::int64_t c = 0; c < result.columns() && !cursors.empty();) {
                const std::int64_t kv = kv_start + c * kAtom;
                if (kv + kAtom <= 0) {
                    c = -kv_start / kAtom;
                    continue;
                }
                if (c * kAtom >= kv_end) break;
                const std::int64_t column = std::max<std::int64_t>(kv, 0) / kAtom;
                bool none = true, all = inside && kv >= 0;
                std::int64_t same = data.columns();
                for (RowCursor& cursor : cursors) {
                    const AtomId id = cursor.at(column);
                    none &= id == kNone;
                    all &= id == kAll;
                    same = std::min(same, cursor.change(column));
                }
                // New pieces that lie entirely within old columns [column, same).
                const std::int64_t count =
                    std::min((same * kAtom - kv_start) / kAtom - c, kv_end / kAtom - c);
                if ((none || all) && count > 0) {
                    if (all) writer.full(c, count);
                    c += count;
                    continue;
                }
                Atom atom = read_atom(data, head * rows, q, kv);
                const Atom clip = corner_atom(result.row_size(row), result.column_size(c));
                for (std::size_t i = 0; i < atom.size(); ++i) atom[i] &= clip[i];
                writer.atom(c, result.atoms.intern(atom));
                ++c;
            }
            writer.end_row();
        }
    }
    return result;
}

}  // namespace tilewright::mask
