// Attention by hand-scheduled kernels for Hopper GPUs.
#pragma once

#include "attention/engine.h"

namespace tilewright::attn::sm90 {

const Engine& engine();

}  // namespace tilewright::attn::sm90
