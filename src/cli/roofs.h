// The machine's own limits, to be measured in the same rounds as the work: FMA peak and bandwidth.
#pragma once

#include "cli/measure.h"

namespace tilewright::cli {

/// A loop to time, and what one execution does.
struct Roof {
    Variant variant;
    double amount = 0;  ///< floating point operations, or bytes
};

/// Multiply-adds in registers on all threads with the widest vectors of this machine.
Roof fma_peak_f32();
/// The same in the fastest bf16 dot instruction (AMX, vdpbf16ps); without one this is fma_peak_f32.
Roof dot_peak_bf16();
/// Reading `bytes` on all threads, and copying them (amount counts bytes read and written).
Roof read_bandwidth(std::size_t bytes = std::size_t{256} << 20);
Roof copy_bandwidth(std::size_t bytes = std::size_t{256} << 20);

}  // namespace tilewright::cli
