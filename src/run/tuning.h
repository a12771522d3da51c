// Reports on the autotuner: a progress bar while it measures, and a table of what it tried.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tilewright/run.h"

namespace tilewright::run {

/// A configuration that was tried.
struct Trial {
    Config config;
    double seconds = 0;
    std::string error = {};  ///< why it does not run; empty if it does
};

/// A choice and what it is based on.
struct Tuning {
    std::string what;    ///< the first line of the key
    std::string chosen;  ///< the configuration
    std::string table;   ///< a line for each trial: "q=64, kv=128: 0.211 ms, 1.00 of the fastest"
    bool remembered = false;  ///< it came from the disk cache and nothing was measured
};

/// A line for each trial: fastest first, those that do not run last.
std::string table_of(std::vector<Trial> trials);

/// Calls `listener` for every choice in this process from now on; null stops that.
void listen_to_tuning(std::function<void(const Tuning&)> listener);
void tell_of_tuning(const Tuning& tuning);

/// Draws "tuning attention [####....] 3 of 8" on one line and erases it at the end. Draws nothing
/// before `delay` seconds have passed.
class TuningBar {
  public:
    /// Draws on standard error if that is a terminal and TILEWRIGHT_WAIT_NOTICE is not 0.
    TuningBar(std::string what, std::size_t total);
    TuningBar(std::string what, std::size_t total, std::ostream* out, double delay);
    ~TuningBar();
    TuningBar(const TuningBar&) = delete;
    TuningBar& operator=(const TuningBar&) = delete;

    void update(std::size_t done);

  private:
    using Clock = std::chrono::steady_clock;

    std::string what_;
    std::size_t total_;
    std::ostream* out_;  ///< null: silent
    Clock::time_point from_;
    bool drawn_ = false;
};

}  // namespace tilewright::run
