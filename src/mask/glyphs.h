// A small pixel typeface, for pictures that are drawn without any other software.
#pragma once

#include <array>
#include <cstdint>

namespace tilewright::mask {

inline constexpr int kGlyphWidth = 5, kGlyphHeight = 9;

/// Lines from top to bottom, with the leftmost pixel in bit 4; the last two are below the baseline.
/// Has digits, lower-case letters and ` ,.:-`; other characters are blank.
const std::array<std::uint8_t, kGlyphHeight>& glyph(char character);

}  // namespace tilewright::mask
