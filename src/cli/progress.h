// Progress shown on a terminal during long work.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

namespace tilewright::cli {

/// Redraws `label [######......] 50%` on one line and erases it at the end. Draws nothing before
/// `delay` seconds have passed, so that short work shows nothing.
class Progress {
  public:
    /// On standard error where that is a terminal, else silent.
    explicit Progress(std::string label);
    /// On any stream.
    Progress(std::string label, std::ostream& out, double delay);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Reports that the fraction `done` of the work, in [0, 1], is finished. Any thread may call
    /// it; draws at most ten times a second.
    void update(double done);

  private:
    using Clock = std::chrono::steady_clock;

    std::string label_;
    std::ostream* out_;  ///< null if silent
    std::mutex mutex_;
    Clock::time_point next_;  ///< when to draw again
    bool drawn_ = false;
};

/// While it lives, draws `label, 12 s` on one line every second, starting after two seconds, for
/// work that rarely or never reports progress; `label, 12 s, 25%` once it has.
class Elapsed {
  public:
    /// On standard error where that is a terminal, else silent.
    explicit Elapsed(std::string label);
    /// On any stream, every `period` seconds after the first `delay`.
    Elapsed(std::string label, std::ostream& out, double delay, double period = 1);
    ~Elapsed();
    Elapsed(const Elapsed&) = delete;
    Elapsed& operator=(const Elapsed&) = delete;

    /// Reports that the fraction `done` of the work, in [0, 1], is finished. Thread-safe.
    void update(double done) { share_ = done; }

  private:
    void draw(const std::string& label, std::ostream& out, double delay, double period);

    std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    std::atomic<double> share_ = 0;
    std::thread thread_;
};

}  // namespace tilewright::cli
