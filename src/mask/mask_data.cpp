// Atoms, runs, and walks over them.
#include "mask/mask_data.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "support/check.h"

namespace tilewright::mask {
namespace {

std::uint64_t low_bits(std::int64_t count) {
    return count >= kAtom ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

Atom corner_atom(std::int64_t rows, std::int64_t columns) {
    Atom atom{};
    std::fill_n(atom.begin(), std::min(rows, kAtom), low_bits(columns));
    return atom;
}

// Exchanges ever smaller off-diagonal squares: 32, 16, ..., 1.
Atom transposed(const Atom& atom) {
    Atom result = atom;
    std::uint64_t mask = 0x00000000FFFFFFFFu;
    for (std::size_t half = 32; half != 0; half >>= 1, mask ^= mask << half) {
        for (std::size_t i = 0; i < 64; i = ((i | half) + 1) & ~half) {
            const std::uint64_t swap = ((result[i] >> half) ^ result[i | half]) & mask;
            result[i] ^= swap << half;
            result[i | half] ^= swap;
        }
    }
    return result;
}

AtomPool::AtomPool() {
    intern(Atom{});
    intern(corner_atom(kAtom, kAtom));
}

AtomId AtomPool::intern(const Atom& atom) {
    const std::uint64_t hash = XXH3_64bits(atom.data(), sizeof(Atom));
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto entry = begin; entry != end; ++entry) {
        if (atoms_[entry->second] == atom) return entry->second;
    }
    const auto id = static_cast<AtomId>(atoms_.size());
    if (id == UINT32_MAX) user_error("mask", "expected fewer than 2^32 distinct 64 x 64 pieces");
    atoms_.push_back(atom);
    by_hash_.emplace(hash, id);
    return id;
}

std::span<const Run> MaskData::row(std::int64_t row) const {
    const std::size_t index = row;
    return {runs.data() + row_begin[index],
            static_cast<std::size_t>(row_begin[index + 1] - row_begin[index])};
}

std::int64_t MaskData::row_size(std::int64_t row) const {
    return std::min(kAtom, q_len - row * kAtom);
}

std::int64_t MaskData::column_size(std::int64_t column) const {
    return std::min(kAtom, kv_len - column * kAtom);
}

AtomId MaskData::full_atom(std::int64_t row, std::int64_t column) {
    const std::int64_t height = row_size(row), width = column_size(column);
    if (height == kAtom && width == kAtom) return kAll;
    return atoms.intern(corner_atom(height, width));
}

std::int64_t MaskData::nbytes() const {
    return static_cast<std::int64_t>(row_begin.size() * sizeof(row_begin[0]) +
                                     runs.size() * sizeof(Run) + ids.size() * sizeof(AtomId)) +
           atoms.nbytes();
}

bool MaskData::get(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    const std::int64_t group = (batch == 1 ? 0 : b) * heads + (heads == 1 ? 0 : h);
    RowCursor cursor(*this, group * rows() + q / kAtom);
    const Atom& atom = atoms[cursor.at(kv / kAtom)];
    return (atom[q % kAtom] >> (kv % kAtom) & 1) != 0;
}

// ---- Writing rows.

Run* RowWriter::last(std::int64_t column) {
    if (std::ssize(data_.runs) == data_.row_begin.back()) return nullptr;
    Run& run = data_.runs.back();
    TW_ASSERT(run.end() <= column, "pieces of a row come in order");
    return run.end() == column ? &run : nullptr;
}

void RowWriter::full(std::int64_t first, std::int64_t count) {
    if (count <= 0) return;
    Run* run = last(first);
    if (run && run->full()) {
        run->count += static_cast<std::int32_t>(count);
    } else {
        data_.runs.push_back(
            {static_cast<std::int32_t>(first), static_cast<std::int32_t>(count), -1});
    }
}

void RowWriter::atom(std::int64_t column, AtomId id) {
    if (id == kNone) return;
    if (id == kAll) return full(column, 1);
    Run* run = last(column);
    if (run && !run->full()) {
        ++run->count;
    } else {
        data_.runs.push_back({static_cast<std::int32_t>(column), 1, std::ssize(data_.ids)});
    }
    data_.ids.push_back(id);
}

// ---- Reading rows.

AtomId RowCursor::at(std::int64_t column) {
    while (next_ < runs_.size() && runs_[next_].end() <= column) ++next_;
    if (next_ == runs_.size() || runs_[next_].first > column) return kNone;
    const Run& run = runs_[next_];
    if (run.full()) return kAll;
    return data_->ids[run.atoms + column - run.first];
}

std::int64_t RowCursor::change(std::int64_t column) {
    at(column);
    if (next_ == runs_.size()) return data_->columns();
    const Run& run = runs_[next_];
    return run.first > column ? run.first : run.end();
}

Atom read_atom(const MaskData& data, std::int64_t row_base, std::int64_t q, std::int64_t kv) {
    Atom result{};
    const auto floor_div = [](std::int64_t a) {
        return a >= 0 ? a / kAtom : -((kAtom - 1 - a) / kAtom);
    };
    const std::int64_t row = floor_div(q), column = floor_div(kv);
    const std::int64_t down = q - row * kAtom, right = kv - column * kAtom;
    for (std::int64_t r = row; r < row + (down != 0 ? 2 : 1); ++r) {
        if (r < 0 || r >= data.rows()) continue;
        RowCursor cursor(data, row_base + r);
        for (std::int64_t c = column; c < column + (right != 0 ? 2 : 1); ++c) {
            if (c < 0 || c >= data.columns()) continue;
            const Atom& atom = data.atoms[cursor.at(c)];
            for (std::int64_t i = 0; i < kAtom; ++i) {
                const std::int64_t from = i + down - (r - row) * kAtom;
                if (from < 0 || from >= kAtom) continue;
                const std::uint64_t word = atom[from];
                result[i] |= c == column ? word >> right : word << (kAtom - right);
            }
        }
    }
    return result;
}

}  // namespace tilewright::mask
