// How long each line of a program's bytecode takes on a CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// One instruction of the bytecode (docs/explanation/cpu.md), over all runs of the profile.
struct ProfileLine {
    int instruction = 0;          ///< its number in the listing
    std::string text;             ///< as in the listing, on one line
    std::string source = {};      ///< "kernels.py:12, 14": the user's lines; empty where unknown
    std::int64_t executions = 0;  ///< over all programs of the grid
    double ms = 0;                ///< summed over threads
    double bytes = 0;             ///< of arrays, read and written, without the buffers of tiles
    double flops = 0;
    /// The shortest time that this machine would need for the flops and bytes (by its multiply-add
    /// and copy rates, measured once), over the time it took. Above 1: arrays were in caches.
    double roof = 0;
};

/// How long the runs of one program took. The clock is read before and after each instruction on
/// tiles, which costs about 50 ns: instructions shorter than that look slower than they are.
struct Profile {
    std::string kernel;
    std::int64_t runs = 0;
    std::int64_t programs = 0;       ///< programs of the grid, over all runs
    double wall_ms = 0;              ///< of the runs
    double thread_ms = 0;            ///< spent in programs, summed over threads
    int threads = 1;                 ///< threads that runs may use
    std::vector<ProfileLine> lines;  ///< of instructions on tiles, in the order of the bytecode
    double scalar_ms = 0;            ///< scalars, jumps and reading the clock, summed over threads

    /// A table of at most `most` lines with their times, longest first.
    std::string table(std::size_t most = 20) const;
    /// Events for chrome://tracing and ui.perfetto.dev, as JSON: the first 200,000 programs of the
    /// grid and instructions.
    std::string chrome_trace() const;

    struct Events;
    std::shared_ptr<const Events> events = {};  ///< for chrome_trace
};

}  // namespace tilewright
