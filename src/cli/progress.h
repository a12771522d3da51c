// A bar on the terminal while something takes more than a second.
#pragma once

#include <chrono>
#include <mutex>
#include <ostream>
#include <string>

namespace tilewright::cli {

/// Draws `label [######......] 50%` over and over on one line, and wipes it at the end. Nothing is
/// drawn before `delay` seconds have passed, so that short work leaves no trace.
class Progress {
  public:
    /// On standard error where that is a terminal, else silent.
    explicit Progress(std::string label);
    /// On any stream.
    Progress(std::string label, std::ostream& out, double delay);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// `done` of the work, in [0, 1], is finished. Any thread may call it; it draws ten times a
    /// second at most.
    void update(double done);

  private:
    using Clock = std::chrono::steady_clock;

    std::string label_;
    std::ostream* out_;  ///< null: silent
    std::mutex mutex_;
    Clock::time_point next_;  ///< when to draw again
    bool drawn_ = false;
};

}  // namespace tilewright::cli
