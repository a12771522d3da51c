// Pictures of masks.
#include "mask/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace tilewright::mask {
namespace {

constexpr std::int64_t kMaxCells = 512;
constexpr std::int64_t kExactLength = 4096;
constexpr std::int64_t kMaxPictures = 4;

/// Weights of one row of queries over the columns of a picture, filled run by run.
class RowSums {
  public:
    RowSums(std::int64_t length, std::int64_t cells)
        : length_(length), cells_(cells), sums_(static_cast<std::size_t>(cells)) {}

    std::int64_t cell(std::int64_t position) const { return position * cells_ / length_; }
    /// Adds `weight` for each position in [first, end).
    void add(std::int64_t first, std::int64_t end, double weight) {
        for (std::int64_t c = cell(first); first < end; ++c) {
            // The first position of the next cell.
            const std::int64_t next = std::min(end, ((c + 1) * length_ + cells_ - 1) / cells_);
            sums_[static_cast<std::size_t>(c)] += weight * static_cast<double>(next - first);
            first = next;
        }
    }
    const std::vector<double>& sums() const { return sums_; }

  private:
    std::int64_t length_, cells_;
    std::vector<double> sums_;
};

Picture picture(const MaskData& data, std::int64_t head) {
    const bool exact = std::max(data.q_len, data.kv_len) <= kExactLength;
    Picture result;
    result.height = std::min(kMaxCells, exact ? data.q_len : data.rows());
    result.width = std::min(kMaxCells, exact ? data.kv_len : data.columns());
    result.cells.assign(static_cast<std::size_t>(result.height * result.width), 0);
    // By single queries where the picture may show them, else by rows of pieces.
    const std::int64_t step = exact ? 1 : kAtom;
    std::vector<double> sums(result.cells.size());
    std::vector<double> queries(static_cast<std::size_t>(result.height));
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
                const Atom& atom = data.atoms[data.ids[static_cast<std::size_t>(run.atoms + i)]];
                const std::int64_t kv = (run.first + i) * kAtom;
                if (!exact) {
                    double count = 0;
                    for (const std::uint64_t word : atom) count += std::popcount(word);
                    const std::int64_t width = data.column_size(run.first + i);
                    row.add(kv, kv + width, count / static_cast<double>(width));
                    continue;
                }
                for (std::uint64_t word = atom[static_cast<std::size_t>(q % kAtom)]; word != 0;
                     word &= word - 1) {
                    const std::int64_t j = kv + std::countr_zero(word);
                    row.add(j, j + 1, 1);
                }
            }
        }
        queries[static_cast<std::size_t>(y)] += static_cast<double>(rows);
        for (std::size_t x = 0; x < row.sums().size(); ++x)
            sums[static_cast<std::size_t>(y * result.width) + x] += row.sums()[x];
    }
    // Keys per cell, by the same rule.
    RowSums keys(std::max<std::int64_t>(data.kv_len, 1), std::max<std::int64_t>(result.width, 1));
    keys.add(0, data.kv_len, 1);
    for (std::int64_t y = 0; y < result.height; ++y) {
        for (std::int64_t x = 0; x < result.width; ++x) {
            const auto i = static_cast<std::size_t>(y * result.width + x);
            result.cells[i] =
                static_cast<float>(sums[i] / (queries[static_cast<std::size_t>(y)] *
                                              keys.sums()[static_cast<std::size_t>(x)]));
        }
    }
    return result;
}

// Shades of a cell: 0 empty, kShades full, between them by the share that attends.
constexpr int kShades = 15;

int shade(float share) {
    if (share <= 0) return 0;
    if (share >= 0.9999F) return kShades;
    return std::clamp(static_cast<int>(std::lround(share * kShades)), 1, kShades - 1);
}

struct Colour {
    int red, green, blue;
};

/// White, pale orange to orange for partial cells, blue for full ones.
Colour colour(int shade) {
    if (shade == 0) return {245, 246, 248};
    if (shade == kShades) return {38, 84, 150};
    const double t = static_cast<double>(shade) / kShades;
    const auto mix = [&](int pale, int deep) {
        return static_cast<int>(std::lround(pale + (deep - pale) * t));
    };
    return {mix(252, 232), mix(222, 132), mix(186, 44)};
}

constexpr std::int64_t kGap = 8;  ///< cells between pictures

/// All pictures side by side in shades; the gap is kShades + 1.
struct Canvas {
    std::int64_t height = 0, width = 0;
    std::vector<std::uint8_t> pixels;

    Canvas(const std::vector<Picture>& pictures, std::int64_t scale) {
        for (const Picture& picture : pictures) {
            height = std::max(height, picture.height * scale);
            width += picture.width * scale + (width > 0 ? kGap : 0);
        }
        height = std::max<std::int64_t>(height, 1);
        width = std::max<std::int64_t>(width, 1);
        pixels.assign(static_cast<std::size_t>(height * width), kShades + 1);
        std::int64_t left = 0;
        for (const Picture& picture : pictures) {
            for (std::int64_t y = 0; y < picture.height * scale; ++y) {
                for (std::int64_t x = 0; x < picture.width * scale; ++x) {
                    const auto cell =
                        static_cast<std::size_t>(y / scale * picture.width + x / scale);
                    pixels[static_cast<std::size_t>(y * width + left + x)] =
                        static_cast<std::uint8_t>(shade(picture.cells[cell]));
                }
            }
            left += picture.width * scale + kGap;
        }
    }
};

std::int64_t scale_of(const std::vector<Picture>& pictures) {
    std::int64_t side = 1;
    for (const Picture& picture : pictures) side = std::max({side, picture.height, picture.width});
    return std::max<std::int64_t>(1, kMaxCells / side);
}

// ---- PNG: chunks with checksums around lines of differences, as deflate's fixed code writes runs.

void append_number(std::string& out, std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xFF);
}

std::uint32_t crc32(const std::string& bytes) {
    std::uint32_t crc = 0xFFFFFFFFu;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

void append_chunk(std::string& out, const std::string& type, const std::string& content) {
    append_number(out, static_cast<std::uint32_t>(content.size()));
    out += type + content;
    append_number(out, crc32(type + content));
}

/// One block of deflate (RFC 1951) in its fixed code: bytes, and runs of the byte before.
class RunWriter {
  public:
    RunWriter() {
        append(1, 1);  // the last block
        append(1, 2);  // of the fixed code
    }
    void append_run(char byte, std::size_t count) {
        const int literal = static_cast<unsigned char>(byte);
        append_symbol(literal);
        for (--count; count >= kShortest;) {
            const std::size_t length = std::min(count, kLongest);
            append_repeat(length);
            count -= length;
        }
        for (; count > 0; --count) append_symbol(literal);
    }
    std::string finish() {
        append_symbol(256);
        append(0, 7);
        return std::move(bytes_);
    }

  private:
    static constexpr std::size_t kShortest = 3, kLongest = 258;

    /// The stream's bits, lowest first.
    void append(std::uint32_t value, int bits) {
        held_ |= value << num_held_;
        for (num_held_ += bits; num_held_ >= 8; num_held_ -= 8, held_ >>= 8) {
            bytes_ += static_cast<char>(held_ & 0xFF);
        }
    }
    /// Codes alone stand with their highest bit first.
    void append_code(std::uint32_t code, int bits) {
        while (bits-- > 0) append(code >> bits & 1, 1);
    }
    void append_symbol(int symbol) {
        const auto number = static_cast<std::uint32_t>(symbol);
        if (symbol < 144) return append_code(0x30 + number, 8);
        if (symbol < 256) return append_code(0x190 + number - 144, 9);
        if (symbol < 280) return append_code(number - 256, 7);
        append_code(0xC0 + number - 280, 8);
    }
    /// The byte before, `length` times: four symbols for each number of further bits.
    void append_repeat(std::size_t length) {
        const auto more = static_cast<std::uint32_t>(length - kShortest);
        const int bits = std::max(static_cast<int>(std::bit_width(more)) - 3, 0);
        if (length == kLongest) {
            append_symbol(285);
        } else {
            append_symbol(257 + 4 * bits + static_cast<int>(more >> bits));
            append(more & ((1u << bits) - 1), bits);
        }
        append_code(0, 5);  // at distance 1
    }

    std::string bytes_;
    std::uint32_t held_ = 0;
    int num_held_ = 0;
};

std::string zlib(const std::string& bytes) {
    std::uint32_t low = 1, high = 0;  // Adler-32
    for (const char byte : bytes) {
        low = (low + static_cast<unsigned char>(byte)) % 65521;
        high = (high + low) % 65521;
    }
    RunWriter runs;
    for (std::size_t start = 0; start < bytes.size();) {
        const std::size_t end =
            std::min(bytes.find_first_not_of(bytes[start], start), bytes.size());
        runs.append_run(bytes[start], end - start);
        start = end;
    }
    std::string out = "\x78\x01" + runs.finish();
    append_number(out, high << 16 | low);
    return out;
}

}  // namespace

std::vector<Picture> pictures(const MaskData& data) {
    std::vector<Picture> result;
    if (data.q_len == 0 || data.kv_len == 0) return result;
    for (std::int64_t head = 0; head < std::min(data.batch * data.heads, kMaxPictures); ++head) {
        result.push_back(picture(data, head));
        result.back().b = head / data.heads;
        result.back().h = head % data.heads;
    }
    return result;
}

std::string png(const std::vector<Picture>& pictures) {
    const Canvas canvas(pictures, scale_of(pictures));
    std::string out = "\x89PNG\r\n\x1a\n", header, palette, rows;
    append_number(header, static_cast<std::uint32_t>(canvas.width));
    append_number(header, static_cast<std::uint32_t>(canvas.height));
    header += {8, 3, 0, 0, 0};  // 8 bits, palette, deflate, a filter for each line, not interlaced
    append_chunk(out, "IHDR", header);
    for (int i = 0; i <= kShades + 1; ++i) {
        const Colour c = i <= kShades ? colour(i) : Colour{255, 255, 255};
        for (const int part : {c.red, c.green, c.blue}) palette += static_cast<char>(part);
    }
    append_chunk(out, "PLTE", palette);
    const auto width = static_cast<std::size_t>(canvas.width);
    for (std::size_t i = 0; i < canvas.pixels.size(); ++i) {
        if (i % width == 0) rows += '\2';  // this line: differences from the one above
        const int above = i < width ? 0 : canvas.pixels[i - width];
        rows += static_cast<char>(canvas.pixels[i] - above);
    }
    append_chunk(out, "IDAT", zlib(rows));
    append_chunk(out, "IEND", "");
    return out;
}

// Rectangles of one shade: runs along a line, joined with equal runs of the line above.
std::string svg(const std::vector<Picture>& pictures) {
    struct Rectangle {
        std::int64_t x, y, width, height;
        int shade;
    };
    const std::int64_t scale = scale_of(pictures);
    const Canvas canvas(pictures, 1);
    std::vector<Rectangle> done, open;
    for (std::int64_t y = 0; y <= canvas.height; ++y) {
        std::vector<Rectangle> line;
        for (std::int64_t x = 0; x < canvas.width && y < canvas.height;) {
            const auto at = [&](std::int64_t column) {
                return canvas.pixels[static_cast<std::size_t>(y * canvas.width + column)];
            };
            std::int64_t end = x + 1;
            while (end < canvas.width && at(end) == at(x)) ++end;
            if (at(x) != 0 && at(x) <= kShades) line.push_back({x, y, end - x, 1, at(x)});
            x = end;
        }
        for (Rectangle& rectangle : line) {
            for (Rectangle& above : open) {
                if (above.x != rectangle.x || above.width != rectangle.width ||
                    above.shade != rectangle.shade || above.height == 0)
                    continue;
                rectangle.y = above.y;
                rectangle.height = above.height + 1;
                above.height = 0;
                break;
            }
        }
        for (const Rectangle& above : open) {
            if (above.height > 0) done.push_back(above);
        }
        open = std::move(line);
    }
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} "
        "{}\" "
        "shape-rendering=\"crispEdges\">\n",
        canvas.width * scale, canvas.height * scale, canvas.width, canvas.height);
    // Empty cells are what each picture's ground shows.
    std::int64_t left = 0;
    for (const Picture& picture : pictures) {
        done.insert(done.begin(), {left, 0, picture.width, picture.height, 0});
        left += picture.width + kGap;
    }
    for (const Rectangle& r : done) {
        const Colour c = colour(r.shade);
        out += fmt::format(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
            "fill=\"#{:02x}{:02x}{:02x}\"/>\n",
            r.x, r.y, r.width, r.height, c.red, c.green, c.blue);
    }
    return out + "</svg>\n";
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
        std::vector<double> sums(static_cast<std::size_t>(height * width));
        std::vector<double> blocks(static_cast<std::size_t>(height));
        for (std::int64_t row = 0; row < level.rows; ++row) {
            const std::int64_t y = row * height / level.rows;
            blocks[static_cast<std::size_t>(y)] += 1;
            RowSums line(level.columns, width);
            for (const BlockSpan& span : level.row(head * level.rows + row))
                line.add(span.first, span.first + span.count, span.full ? 1 : 0.5);
            for (std::size_t x = 0; x < line.sums().size(); ++x)
                sums[static_cast<std::size_t>(y * width) + x] += line.sums()[x];
        }
        RowSums keys(level.columns, width);
        keys.add(0, level.columns, 1);
        for (std::int64_t y = 0; y < height; ++y) {
            for (std::int64_t x = 0; x < width; ++x) {
                const double share = sums[static_cast<std::size_t>(y * width + x)] /
                                     (blocks[static_cast<std::size_t>(y)] *
                                      keys.sums()[static_cast<std::size_t>(x)]);
                text += share >= 0.999999 ? "██" : share > 0 ? "░░" : "  ";
            }
            text += '\n';
        }
    }
    if (heads > limit) text += fmt::format("... {} more\n", heads - limit);
    return text;
}

}  // namespace tilewright::mask
