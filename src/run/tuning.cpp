// The autotuner's progress bar, table and listener.
#include "run/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <mutex>
#include <utility>

#include "cuda/runtime/wait_notice.h"

namespace tilewright::run {
namespace {

struct Listener {
    std::mutex mutex;
    std::function<void(const Tuning&)> hears;
};

Listener& listener() {
    static auto* const kListener = new Listener;
    return *kListener;
}

}  // namespace

std::string table_of(std::vector<Trial> trials) {
    std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
        if (a.error.empty() != b.error.empty()) return a.error.empty();
        return a.error.empty() && a.seconds < b.seconds;
    });
    std::string text;
    for (const Trial& trial : trials) {
        text +=
            trial.error.empty()
                ? fmt::format("{}: {:.4f} ms, {:.2f} of the fastest\n", trial.config.to_string(),
                              trial.seconds * 1e3, trials.front().seconds / trial.seconds)
                : fmt::format("{}: does not run: {}\n", trial.config.to_string(), trial.error);
    }
    return text;
}

void listen_to_tuning(std::function<void(const Tuning&)> hears) {
    const std::scoped_lock lock(listener().mutex);
    listener().hears = std::move(hears);
}

void tell_of_tuning(const Tuning& tuning) {
    const std::scoped_lock lock(listener().mutex);
    if (listener().hears) listener().hears(tuning);
}

TuningBar::TuningBar(std::string what, std::size_t total)
    : TuningBar(std::move(what), total, cuda::wants_wait_notices() ? &std::cerr : nullptr, 0.3) {}

TuningBar::TuningBar(std::string what, std::size_t total, std::ostream* out, double delay)
    : what_(std::move(what)),
      total_(total),
      out_(out),
      from_(Clock::now() +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay))) {}

TuningBar::~TuningBar() {
    if (drawn_) *out_ << "\r\033[K" << std::flush;
}

void TuningBar::update(std::size_t done) {
    constexpr std::size_t kWidth = 30;
    if (out_ == nullptr || Clock::now() < from_) return;
    const std::size_t full = kWidth * done / total_;
    *out_ << fmt::format("\r\033[Ktuning {} [{}{}] {} of {}", what_, std::string(full, '#'),
                         std::string(kWidth - full, '.'), done, total_)
          << std::flush;
    drawn_ = true;
}

}  // namespace tilewright::run
