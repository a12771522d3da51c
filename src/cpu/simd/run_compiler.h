// Compiles fused runs to machine code when a program with them is compiled.
#pragma once

#include <span>

#include "cpu/simd/fused.h"

namespace tilewright::cpu {

/// A function that does all steps of a run on vectors of 32 or 64 bytes, with what
/// FusedKernels::run gives to the bit. Runs are made once, and kept until the process ends. nullptr
/// for runs of steps that it does not know or with too many temporaries, on other machines than
/// 64-bit x86 with Linux, where the system does not let memory become code, and with
/// TILEWRIGHT_JIT=0.
void (*compile_run(std::span<const FusedShape> shapes, int vector_bytes))(const FusedCall& call);

}  // namespace tilewright::cpu
