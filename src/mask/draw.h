// Pictures of masks for people: axes with positions, labels of heads and a legend, as SVG and PNG.
#pragma once

#include <string>

#include "mask/mask_data.h"

namespace tilewright::mask {

/// One panel for each of up to twelve stored heads, with keys to the right and queries downwards,
/// and a line that says how many heads were left out.
std::string svg(const MaskData& data);
/// The same as a PNG file.
std::string png(const MaskData& data);

}  // namespace tilewright::mask
