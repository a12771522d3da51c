// PNG files with a palette, written without a library.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tilewright::mask {

/// Red, green, blue.
using Colour = std::array<std::uint8_t, 3>;

/// The bytes of a PNG file (RFC 2083) with `width` pixels per line, each an index into `palette`,
/// which has at most 256 colours. Compressed only by runs of equal pixels.
std::string png(const std::vector<std::uint8_t>& pixels, std::int64_t width,
                const std::vector<Colour>& palette);

}  // namespace tilewright::mask
