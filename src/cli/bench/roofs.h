// The machine's limits, measured in the same rounds as the work: FMA peak and bandwidth.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cli/bench/measure.h"

namespace tilewright::cli {

/// A loop to time, and the amount of work of one execution.
struct Roof {
    std::string name;
    std::function<void()> work;
    double amount = 0;  ///< floating point operations, or bytes
};

/// The loop, repeated until a sample lasts about as long as one execution of the work that it is
/// compared with: a short burst, or one between other programs, may run at a higher clock rate.
Variant as_long_as(const Roof& roof, double seconds);

/// Multiply-adds on registers on all threads with the widest vectors of this machine.
Roof fma_peak_f32();
/// The same with the fastest bf16 dot instruction (AMX, vdpbf16ps), or fma_peak_f32 without one.
Roof dot_peak_bf16();
/// Reads `bytes` bytes on all threads.
Roof read_bandwidth(std::size_t bytes = std::size_t{256} << 20);
/// Copies `bytes` bytes on all threads with the C library, which usually reads cache lines before
/// it writes them; the amount counts bytes read and written.
Roof copy_bandwidth(std::size_t bytes = std::size_t{256} << 20);
/// Copies with stores that bypass the caches, in huge pages if there are any: the most that a
/// kernel which reads and writes memory can reach. nullopt without such stores (other than x86).
std::optional<Roof> streaming_copy(std::size_t bytes = std::size_t{256} << 20);

}  // namespace tilewright::cli
