// Masks sampled as rasters and as characters.
#include "mask/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "support/integer.h"

namespace tilewright::mask {
namespace {

constexpr std::int64_t kExactLength = 4096;

/// Sums of weights in one row of a picture's cells, added run by run.
class RowSums {
  public:
    RowSums(std::int64_t length, std::int64_t cells)
        : length_(length), cells_(cells), sums_(static_cast<std::size_t>(cells)) {}

    std::int64_t cell(std::int64_t position) const { return position * cells_ / length_; }
    /// Adds `weight` for each position in [first, end).
    void add(std::int64_t first, std::int64_t end, double weight) {
        for (std::int64_t c = cell(first); first < end; ++c) {
            // The first position of the next cell.
            const std::int64_t next = std::min(end, ceil_div((c + 1) * length_, cells_));
            sums_[c] += weight * static_cast<double>(next - first);
            first = next;
        }
    }
    const std::vector<double>& sums() const { return sums_; }

  private:
    std::int64_t length_, cells_;
    std::vector<double> sums_;
};

Picture picture(const MaskData& data, std::int64_t head, std::int64_t most_cells) {
    const bool exact = std::max(data.q_len, data.kv_len) <= kExactLength;
    Picture result;
    result.height = std::min(most_cells, exact ? data.q_len : data.rows());
    result.width = std::min(most_cells, exact ? data.kv_len : data.columns());
    result.cells.assign(result.height * result.width, 0);
    // By single queries if the picture can show them, else by rows of pieces.
    const std::int64_t step = exact ? 1 : kAtom;
    std::vector<double> sums(result.cells.size());
    std::vector<double> queries(result.height);
    for (std::int64_t q = 0; q < data.q_len; q += step) {
        const std::int64_t y = q / step * result.height / (exact ? data.q_len : data.rows());
        const std::int64_t rows = std::min(step, data.q_len - q);
        RowSums row(data.kv_len, result.width);
        for (const Run& run : data.row(head * data.rows() + q / kAtom)) {
            if (run.full()) {
                row.add(run.first * kAtom, std::min(run.end() * kAtom, data.kv_len),
                        static_cast<double>(rows));
                continue;
            }
            for (std::int32_t i = 0; i < run.count; ++i) {
                const Atom& atom = data.atoms[data.ids[run.atoms + i]];
                const std::int64_t kv = (run.first + i) * kAtom;
                if (!exact) {
                    double count = 0;
                    for (const std::uint64_t word : atom) count += std::popcount(word);
                    const std::int64_t width = data.column_size(run.first + i);
                    row.add(kv, kv + width, count / static_cast<double>(width));
                    continue;
                }
                for (std::uint64_t word = atom[q % kAtom]; word != 0; word &= word - 1) {
                    const std::int64_t j = kv + std::countr_zero(word);
                    row.add(j, j + 1, 1);
                }
            }
        }
        queries[y] += static_cast<double>(rows);
        for (std::size_t x = 0; x < row.sums().size(); ++x)
            sums[y * result.width + x] += row.sums()[x];
    }
    // Keys per cell, by the same rule.
    RowSums keys(std::max<std::int64_t>(data.kv_len, 1), std::max<std::int64_t>(result.width, 1));
    keys.add(0, data.kv_len, 1);
    for (std::int64_t y = 0; y < result.height; ++y) {
        for (std::int64_t x = 0; x < result.width; ++x) {
            const std::size_t i = y * result.width + x;
            result.cells[i] = static_cast<float>(sums[i] / (queries[y] * keys.sums()[x]));
        }
    }
    return result;
}

}  // namespace

std::vector<Picture> pictures(const MaskData& data, std::int64_t most, std::int64_t most_cells) {
    std::vector<Picture> result;
    if (data.q_len == 0 || data.kv_len == 0) return result;
    for (std::int64_t head = 0; head < std::min(data.batch * data.heads, most); ++head) {
        result.push_back(picture(data, head, most_cells));
        result.back().b = head / data.heads;
        result.back().h = head % data.heads;
    }
    return result;
}

std::string characters(const BlockLevel& level, std::int64_t rows, std::int64_t columns,
                       std::int64_t limit) {
    std::string text;
    const std::int64_t heads = level.batch * level.heads;
    if (level.rows == 0 || level.columns == 0) return text;
    const std::int64_t height = std::min(rows, level.rows),
                       width = std::min(columns, level.columns);
    for (std::int64_t head = 0; head < std::min(heads, limit); ++head) {
        text += fmt::format("({}, {})\n", head / level.heads, head % level.heads);
        std::vector<double> sums(height * width);
        std::vector<double> blocks(height);
        for (std::int64_t row = 0; row < level.rows; ++row) {
            const std::int64_t y = row * height / level.rows;
            blocks[y] += 1;
            RowSums line(level.columns, width);
            for (const BlockSpan& span : level.row(head * level.rows + row))
                line.add(span.first, span.first + span.count, span.full ? 1 : 0.5);
            for (std::size_t x = 0; x < line.sums().size(); ++x)
                sums[y * width + x] += line.sums()[x];
        }
        RowSums keys(level.columns, width);
        keys.add(0, level.columns, 1);
        for (std::int64_t y = 0; y < height; ++y) {
            for (std::int64_t x = 0; x < width; ++x) {
                const double share = sums[y * width + x] / (blocks[y] * keys.sums()[x]);
                text += share >= 0.999999 ? "██" : share > 0 ? "░░" : "  ";
            }
            text += '\n';
        }
    }
    if (heads > limit) text += fmt::format("... {} more\n", heads - limit);
    return text;
}

}  // namespace tilewright::mask
