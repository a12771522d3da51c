// PNG: checksummed chunks; lines as differences, compressed by runs with deflate's fixed code.
#include "mask/png.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tilewright::mask {
namespace {

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

/// One deflate block (RFC 1951) with the fixed code: bytes, and repeats of the previous byte.
class RunWriter {
  public:
    RunWriter() {
        append(1, 1);  // final block
        append(1, 2);  // fixed code
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

    /// Appends bits to the stream, lowest first.
    void append(std::uint32_t value, int bits) {
        held_ |= value << num_held_;
        for (num_held_ += bits; num_held_ >= 8; num_held_ -= 8, held_ >>= 8) {
            bytes_ += static_cast<char>(held_ & 0xFF);
        }
    }
    /// Only codes are stored with their highest bit first.
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
    /// Repeats the previous byte `length` times: four symbols for each number of extra bits.
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

std::string png(const std::vector<std::uint8_t>& pixels, std::int64_t width,
                const std::vector<Colour>& palette) {
    std::string out = "\x89PNG\r\n\x1a\n", header, colours, rows;
    const std::size_t columns = width;
    append_number(header, static_cast<std::uint32_t>(columns));
    append_number(header, static_cast<std::uint32_t>(pixels.size() / columns));
    header += {8, 3, 0, 0, 0};  // 8 bits, palette, deflate, a filter per line, not interlaced
    append_chunk(out, "IHDR", header);
    for (const Colour& colour : palette)
        for (const std::uint8_t part : colour) colours += static_cast<char>(part);
    append_chunk(out, "PLTE", colours);
    for (std::size_t i = 0; i < pixels.size(); ++i) {
        if (i % columns == 0) rows += '\2';  // filter 2: differences from the line above
        const int above = i < columns ? 0 : pixels[i - columns];
        rows += static_cast<char>(pixels[i] - above);
    }
    append_chunk(out, "IDAT", zlib(rows));
    append_chunk(out, "IEND", "");
    return out;
}

}  // namespace tilewright::mask
