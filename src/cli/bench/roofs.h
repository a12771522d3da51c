// The machine's own limits, to be measured in the same rounds as the work: FMA peak and bandwidth.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cli/bench/measure.h"

namespace tilewright::cli {

/// A loop to time, and what one execution does.
struct Roof {
    std::string name;
    std::function<void()> work;
    double amount = 0;  ///< floating point operations, or bytes
};

/// The loop, repeated until a sample lasts about as long as one execution of what it is compared
/// with: a short burst, or one between other programs, may run at a higher clock.
Variant as_long_as(const Roof& roof, double seconds);

/// Multiply-adds in registers on all threads with the widest vectors of this machine.
Roof fma_peak_f32();
/// The same in the fastest bf16 dot instruction (AMX, vdpbf16ps); without one this is fma_peak_f32.
Roof dot_peak_bf16();
/// Reading `bytes` on all threads, and copying them (amount counts bytes read and written).
Roof read_bandwidth(std::size_t bytes = std::size_t{256} << 20);
/// The copy is the C library's, which as a rule reads the lines that it writes first.
Roof copy_bandwidth(std::size_t bytes = std::size_t{256} << 20);
/// Copying past the caches, in huge pages where there are some: the most that a kernel which reads
/// and writes memory can reach. Nothing where a compiler's headers know no such stores (not x86).
std::optional<Roof> streaming_copy(std::size_t bytes = std::size_t{256} << 20);

}  // namespace tilewright::cli
