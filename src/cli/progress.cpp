// Progress shown on a terminal during long work.
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

namespace tilewright::cli {
namespace {

constexpr int kWidth = 30;
constexpr const char* kWipe = "\r\033[K";

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

}  // namespace

Progress::Progress(std::string label) : Progress(std::move(label), std::cerr, 1) {
    if (isatty(STDERR_FILENO) == 0) out_ = nullptr;
}

Progress::Progress(std::string label, std::ostream& out, double delay)
    : label_(std::move(label)), out_(&out), next_(Clock::now() + milliseconds(delay)) {}

Progress::~Progress() {
    if (drawn_) *out_ << kWipe << std::flush;
}

void Progress::update(double done) {
    if (out_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (Clock::now() < next_) return;
    next_ = Clock::now() + milliseconds(0.1);
    const double part = std::clamp(done, 0.0, 1.0);
    const auto full = static_cast<int>(part * kWidth);
    *out_ << kWipe
          << fmt::format("{} [{:#<{}}{:.<{}}] {:.0f}%", label_, "", full, "", kWidth - full,
                         part * 100)
          << std::flush;
    drawn_ = true;
}

Elapsed::Elapsed(std::string label) {
    if (isatty(STDERR_FILENO) == 0) return;
    thread_ = std::thread([this, label = std::move(label)] { draw(label, std::cerr, 2, 1); });
}

Elapsed::Elapsed(std::string label, std::ostream& out, double delay, double period)
    : thread_([this, label = std::move(label), &out, delay, period] {
          draw(label, out, delay, period);
      }) {}

Elapsed::~Elapsed() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        done_ = true;
    }
    ended_.notify_one();
    thread_.join();
}

void Elapsed::draw(const std::string& label, std::ostream& out, double delay, double period) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    double next = delay;
    while (!ended_.wait_until(lock, start + milliseconds(next), [&] { return done_; })) {
        out << kWipe << fmt::format("{}, {:.0f} s", label, next);
        if (share_ > 0) out << fmt::format(", {:.0f}%", share_ * 100);
        out << std::flush;
        next += period;
    }
    if (next > delay) out << kWipe << std::flush;
}

}  // namespace tilewright::cli
