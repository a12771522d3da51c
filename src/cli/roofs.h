// The machine's own limits, to be measured in the same rounds as the work: FMA peak and bandwidth.
#pragma once

#include <functional>
#include <string>

#include "cli/measure.h"

namespace tilewright::cli {

/// A loop to time, and what one execution does.
struct Roof {
    std::string name;
    std::function<void()> work;
    double amount = 0;  ///< floating point operations, or bytes
};

/// The loop, repeated until a sample lasts about as long as one execution of what it is compared
/// with: a short burst may run at a higher clock, and between the turns of other programs.
Variant as_long_as(const Roof& roof, double seconds);

/// Multiply-adds in registers on all threads with the widest vectors of this machine.
Roof fma_peak_f32();
/// The same in the fastest bf16 dot instruction (AMX, vdpbf16ps); without one this is fma_peak_f32.
Roof dot_peak_bf16();
/// Reading `bytes` on all threads, and copying them (amount counts bytes read and written).
Roof read_bandwidth(std::size_t bytes = std::size_t{256} << 20);
Roof copy_bandwidth(std::size_t bytes = std::size_t{256} << 20);

}  // namespace tilewright::cli
