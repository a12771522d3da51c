// The thread that prints notices for one that waits.
#include "cuda/runtime/wait_notice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>

namespace tilewright::cuda {

bool wants_wait_notices() {
    const char* const text = std::getenv("TILEWRIGHT_WAIT_NOTICE");
    return (text == nullptr || std::string_view(text) != "0") && isatty(STDERR_FILENO) != 0;
}

WaitNotice::WaitNotice(std::string what) {
    if (!wants_wait_notices()) return;
    thread_ = std::thread([this, what = std::move(what)] { speak(what, std::cerr, 0.3); });
}

WaitNotice::WaitNotice(std::string what, std::ostream& out, double delay)
    : thread_([this, what = std::move(what), &out, delay] { speak(what, out, delay); }) {}

WaitNotice::~WaitNotice() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        done_ = true;
    }
    ended_.notify_one();
    thread_.join();
}

void WaitNotice::speak(const std::string& what, std::ostream& out, double delay) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, std::chrono::duration<double>(delay), [&] { return done_; })) return;
    // One write per line, so that threads do not mix their lines; \r wipes a progress bar's line.
    out << fmt::format("\r\033[Ktilewright: {} ...\n", what) << std::flush;
    ended_.wait(lock, [&] { return done_; });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    out << fmt::format("tilewright: {} took {:.1f} s\n", what, taken.count()) << std::flush;
}

}  // namespace tilewright::cuda
