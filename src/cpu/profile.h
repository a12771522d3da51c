// The cost of each instruction of a program: time, executions, work.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tilewright/dtype.h"

namespace tilewright::cpu {

class Program;

/// The work of one execution of an instruction. `bytes` counts accesses to the caller's arrays.
struct Work {
    double flops = 0;
    double bytes = 0;
    std::optional<DType> dot;  ///< dtype that the kernel of a dot multiplies in
};

/// The work of every instruction; parts of tiles outside an array count as if they were inside.
std::vector<Work> work_of(const Program& program);

struct Timing {
    std::int64_t executions = 0;
    std::int64_t nanoseconds = 0;  ///< summed over threads
    std::int64_t copies = 0;       ///< executions that copied a rectangle instead of viewing it
};

/// One execution of an instruction, or of a whole program of the grid.
struct ProfileEvent {
    static constexpr std::uint32_t kProgram = UINT32_MAX;
    std::uint32_t instruction = 0;
    std::int32_t thread = 0;
    std::int64_t start = 0, end = 0;  ///< nanoseconds of the steady clock
};

/// The costs of runs of one program; many threads may add to it.
class Profile {
  public:
    /// Events beyond this number are counted but not kept.
    static constexpr std::size_t kMostEvents = 200'000;

    explicit Profile(std::size_t instructions) : timings_(instructions) {}

    /// Results so far.
    struct Totals {
        std::vector<Timing> timings;
        std::int64_t nanoseconds = 0;  ///< of all programs of the grid, summed over threads
        std::int64_t programs = 0;
        std::vector<ProfileEvent> events;
        std::int64_t left_out = 0;  ///< events
    };
    Totals totals() const;
    void add(const Totals& part);
    std::size_t num_instructions() const { return timings_.size(); }
    /// The number of events that can still be added.
    std::size_t room() const;

  private:
    mutable std::mutex mutex_;
    std::vector<Timing> timings_;
    Totals rest_;  ///< without the timings
};

/// Times the instructions of one thread and adds the results to the profile when destroyed.
class Stopwatch {
  public:
    explicit Stopwatch(Profile& profile);
    ~Stopwatch() { profile_.add(part_); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

    void start() { program_ = now(); }
    void begin() { begin_ = now(); }
    void end(std::size_t instruction) {
        const std::int64_t end = now();
        Timing& timing = part_.timings[instruction];
        ++timing.executions;
        timing.nanoseconds += end - begin_;
        note(static_cast<std::uint32_t>(instruction), begin_, end);
    }
    void copied(std::size_t instruction) { ++part_.timings[instruction].copies; }
    void stop() {
        const std::int64_t end = now();
        ++part_.programs;
        part_.nanoseconds += end - program_;
        note(ProfileEvent::kProgram, program_, end);
    }

  private:
    static std::int64_t now() {
        return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }
    void note(std::uint32_t instruction, std::int64_t start, std::int64_t end) {
        if (part_.events.size() < room_)
            part_.events.push_back({instruction, thread_, start, end});
        else
            ++part_.left_out;
    }

    Profile& profile_;
    Profile::Totals part_;
    std::size_t room_ = 0;  ///< for events
    std::int32_t thread_ = 0;
    std::int64_t program_ = 0, begin_ = 0;
};

}  // namespace tilewright::cpu
