// Empty: one emulated function handles all shapes.
#pragma once

#include "cuda/device/ptx/wgmma.cuh"
