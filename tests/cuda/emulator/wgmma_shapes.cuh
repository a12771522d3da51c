// All shapes are one function here.
#pragma once

#include "cuda/device/ptx/wgmma.cuh"
