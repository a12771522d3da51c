// A small typeface of pixels, for pictures that no other program draws.
#pragma once

#include <array>
#include <cstdint>

namespace tilewright::mask {

inline constexpr int kGlyphWidth = 5, kGlyphHeight = 9;

/// Lines from top to bottom, the leftmost pixel in bit 4; the last two lie below the base line.
/// Digits, small letters and ` ,.:-`; other characters are blank.
const std::array<std::uint8_t, kGlyphHeight>& glyph(char character);

}  // namespace tilewright::mask
