// Blocks of any size from runs and atoms, and conversion to and from PyTorch's index form.
#include "mask/block_level.h"

#include <algorithm>
#include <map>

#include "mask/tiles.h"
#include "support/check.h"

namespace tilewright::mask {
namespace {

enum class Content : std::uint8_t { none, partial, full };

/// What a block that is not covered by full runs holds, from its atoms; single bits are read only
/// where it does not line up with them. Columns must be read in order.
class BlockReader {
  public:
    BlockReader(const MaskData& data, const TileRow& row) : data_(data), row_(row) {
        aligned_ = row.q % kAtom == 0 && row.height % kAtom == 0 && row.width % kAtom == 0;
        end_ = std::min(row.q + row.height, data.q_len);
        for (std::int64_t r = row.q / kAtom; r * kAtom < end_; ++r)
            cursors_.emplace_back(data, row.head * data.rows() + r);
    }

    Content content(std::int64_t block) {
        const std::int64_t kv = block * row_.width,
                           kv_end = std::min(kv + row_.width, data_.kv_len);
        bool some = false;
        bool all = row_.q + row_.height <= data_.q_len && kv + row_.width <= data_.kv_len;
        for (std::int64_t c = kv / kAtom; c * kAtom < kv_end && !(some && !all); ++c) {
            for (std::size_t i = 0; i < cursors_.size(); ++i) {
                const AtomId id = cursors_[i].at(c);
                const std::int64_t q = (row_.q / kAtom + static_cast<std::int64_t>(i)) * kAtom;
                if (aligned_ || id <= kAll) {
                    some |= id != kNone;
                    all &= id == kAll;
                    continue;
                }
                const Atom& atom = data_.atoms[id];
                const std::int64_t left = std::max(kv - c * kAtom, std::int64_t{0});
                const std::int64_t right = std::min(kv_end - c * kAtom, kAtom);
                const std::uint64_t columns = corner_atom(1, right)[0] & ~corner_atom(1, left)[0];
                for (std::int64_t r = std::max(row_.q - q, std::int64_t{0});
                     r < std::min(end_ - q, kAtom); ++r) {
                    const std::uint64_t bits = atom[r] & columns;
                    some |= bits != 0;
                    all &= bits == columns;
                }
            }
        }
        return !some ? Content::none : all ? Content::full : Content::partial;
    }

  private:
    const MaskData& data_;
    TileRow row_;
    bool aligned_;
    std::int64_t end_;
    std::vector<RowCursor> cursors_;
};

std::int64_t blocks_in(std::int64_t length, std::int64_t block) {
    return length == 0 ? 0 : (length - 1) / block + 1;
}

/// One pair of count and index tensors, checked and converted to i64.
struct Lists {
    Tensor counts, indices;

    Lists(const char* name, const Tensor& num, const Tensor& list) {
        if (!num.defined() || !list.defined() || num.rank() != 3 || list.rank() != 4 ||
            !is_integer(num.dtype()) || !is_integer(list.dtype()))
            user_error("from_kv_blocks",
                       "expected {0}_num_blocks (B, H, rows) and {0}_indices (B, H, rows, columns) "
                       "of integers but got {1} and {2}",
                       name, num.defined() ? num.type_name() : "nothing",
                       list.defined() ? list.type_name() : "nothing");
        for (int d = 0; d < 3; ++d) {
            if (num.dim(d) != list.dim(d))
                user_error("from_kv_blocks",
                           "expected {0}_num_blocks and {0}_indices of equal (B, "
                           "H, rows) but got {1} and {2}",
                           name, num.type_name(), list.type_name());
        }
        counts = num.to(i64).contiguous();
        indices = list.to(i64).contiguous();
    }
};

}  // namespace

std::span<const BlockSpan> BlockLevel::row(std::int64_t row) const {
    const std::size_t i = row;
    return {spans.data() + row_begin[i], static_cast<std::size_t>(row_begin[i + 1] - row_begin[i])};
}

void BlockLevel::add(std::int64_t first, std::int64_t count, bool full) {
    if (std::ssize(spans) > row_begin.back()) {
        BlockSpan& last = spans.back();
        if (last.first + last.count == first && last.full == full) {
            last.count += static_cast<std::int32_t>(count);
            return;
        }
    }
    spans.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(count), full});
}

BlockLevel block_level(const MaskData& data, BlockSize size) {
    BlockLevel level;
    level.batch = data.batch;
    level.heads = data.heads;
    level.rows = blocks_in(data.q_len, size.q);
    level.columns = blocks_in(data.kv_len, size.kv);
    for (std::int64_t i = 0; i < level.batch * level.heads * level.rows; ++i) {
        const TileRow row{i / level.rows, i % level.rows * size.q, size.q, size.kv};
        const bool ragged = row.q + row.height > data.q_len;
        BlockReader reader(data, row);
        for (const TileSpan& span : tile_spans(data, row)) {
            if (span.full) {
                level.add(span.first, span.count, !ragged);
                continue;
            }
            const Content content = reader.content(span.first);
            if (content != Content::none) level.add(span.first, 1, content == Content::full);
        }
        level.end_row();
    }
    return level;
}

BlockLevel transposed(const BlockLevel& level) {
    BlockLevel result;
    result.batch = level.batch;
    result.heads = level.heads;
    result.rows = level.columns;
    result.columns = level.rows;
    std::vector<std::vector<BlockSpan>> columns;
    for (std::int64_t head = 0; head < level.batch * level.heads; ++head) {
        columns.assign(level.columns, {});
        for (std::int64_t row = 0; row < level.rows; ++row) {
            for (const BlockSpan& span : level.row(head * level.rows + row)) {
                for (std::int32_t c = span.first; c < span.first + span.count; ++c)
                    columns[c].push_back({static_cast<std::int32_t>(row), 1, span.full});
            }
        }
        for (const auto& column : columns) {
            for (const BlockSpan& span : column) result.add(span.first, 1, span.full);
            result.end_row();
        }
    }
    return result;
}

BlockLists lists(const BlockLevel& level, bool full, std::int64_t batch, std::int64_t heads) {
    BlockLists result;
    const std::vector<std::int64_t> stored = {level.batch, level.heads, level.rows};
    result.num_blocks = Tensor::zeros(i32, stored);
    result.indices = Tensor::zeros(i32, {level.batch, level.heads, level.rows, level.columns});
    auto* count = result.num_blocks.data<std::int32_t>();
    auto* indices = result.indices.data<std::int32_t>();
    for (std::int64_t row = 0; row < level.batch * level.heads * level.rows; ++row) {
        for (const BlockSpan& span : level.row(row)) {
            if (span.full != full) continue;
            for (std::int32_t i = 0; i < span.count; ++i) indices[count[row]++] = span.first + i;
        }
        indices += level.columns;
    }
    result.num_blocks = result.num_blocks.broadcast_to({batch, heads, level.rows});
    result.indices = result.indices.broadcast_to({batch, heads, level.rows, level.columns});
    return result;
}

BlockLevel parse_lists(const Tensor& num, const Tensor& indices, const Tensor& full_num,
                       const Tensor& full_indices, std::int64_t columns) {
    const Lists partial("kv", num, indices);
    columns = std::max(columns, indices.dim(3));
    std::vector<std::pair<const char*, const Lists*>> parts{{"kv", &partial}};
    std::optional<Lists> full;
    if (full_num.defined() || full_indices.defined()) {
        full.emplace("full_kv", full_num, full_indices);
        if (full->counts.shape() != partial.counts.shape())
            user_error(
                "from_kv_blocks",
                "expected full_kv_num_blocks of the shape of kv_num_blocks but got {} and {}",
                full_num.type_name(), num.type_name());
        parts.emplace_back("full_kv", &*full);
        columns = std::max(columns, full_indices.dim(3));
    }
    BlockLevel level;
    level.batch = num.dim(0);
    level.heads = num.dim(1);
    level.rows = num.dim(2);
    level.columns = columns;
    for (std::int64_t row = 0; row < level.batch * level.heads * level.rows; ++row) {
        std::map<std::int64_t, bool> blocks;
        for (const auto& [name, part] : parts) {
            const std::int64_t count = part->counts.data<std::int64_t>()[row];
            const std::int64_t width = part->indices.dim(3);
            if (count < 0 || count > width)
                user_error("from_kv_blocks", "expected {}_num_blocks of 0 to {} but row {} has {}",
                           name, width, row, count);
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t block = part->indices.data<std::int64_t>()[row * width + i];
                if (block < 0 || block >= level.columns)
                    user_error("from_kv_blocks",
                               "expected {}_indices of 0 to {} but row {} names block {}", name,
                               level.columns - 1, row, block);
                if (!blocks.emplace(block, part == &*full).second)
                    user_error("from_kv_blocks",
                               "expected each block once but row {} names block {} twice", row,
                               block);
            }
        }
        for (const auto& [block, is_full] : blocks) level.add(block, 1, is_full);
        level.end_row();
    }
    return level;
}

MaskData pairs_of(const BlockLevel& level, bool full, BlockSize size, std::int64_t q_len,
                  std::int64_t kv_len) {
    MaskData data;
    data.batch = level.batch;
    data.heads = level.heads;
    data.q_len = q_len;
    data.kv_len = kv_len;
    RowWriter writer(data);
    for (std::int64_t i = 0; i < data.batch * data.heads * data.rows(); ++i) {
        const std::int64_t head = i / data.rows(), q = i % data.rows() * kAtom;
        const std::int64_t q_end = std::min(q + kAtom, q_len);
        // By column: pieces that spans cover entirely stay intervals, the others become atoms.
        std::map<std::int64_t, Atom> atoms;
        std::vector<std::pair<std::int64_t, std::int64_t>> whole;
        for (std::int64_t block = q / size.q; block * size.q < q_end && block < level.rows;
             ++block) {
            const std::int64_t from = std::max(block * size.q - q, std::int64_t{0});
            const std::int64_t to = std::min((block + 1) * size.q, q_end) - q;
            const bool whole_rows = from == 0 && to == kAtom;
            for (const BlockSpan& span : level.row(head * level.rows + block)) {
                if (span.full != full) continue;
                const std::int64_t kv = span.first * size.kv;
                const std::int64_t kv_end = std::min(kv + span.count * size.kv, kv_len);
                for (std::int64_t c = kv / kAtom; c * kAtom < kv_end; ++c) {
                    const std::int64_t inside = kv_end / kAtom;
                    if (whole_rows && c * kAtom >= kv && c < inside) {
                        whole.emplace_back(c, inside);
                        c = inside - 1;
                        continue;
                    }
                    const std::uint64_t bits =
                        corner_atom(1, kv_end - c * kAtom)[0] &
                        ~corner_atom(1, std::max(kv - c * kAtom, std::int64_t{0}))[0];
                    Atom& atom = atoms.try_emplace(c, Atom{}).first->second;
                    for (std::int64_t r = from; r < to; ++r) atom[r] |= bits;
                }
            }
        }
        auto next = atoms.begin();
        for (std::size_t w = 0; w <= whole.size(); ++w) {
            const std::int64_t limit = w < whole.size() ? whole[w].first : data.columns();
            for (; next != atoms.end() && next->first < limit; ++next)
                writer.atom(next->first, data.atoms.intern(next->second));
            if (w < whole.size()) writer.full(whole[w].first, whole[w].second - whole[w].first);
        }
        writer.end_row();
    }
    return data;
}

}  // namespace tilewright::mask
