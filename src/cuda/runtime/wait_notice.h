// Tells people at a terminal what a slow call waits for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

namespace tilewright::cuda {

/// Is standard error a terminal, and TILEWRIGHT_WAIT_NOTICE not 0?
bool wants_wait_notices();

/// Says what a thread waits for once the wait is long enough to notice, and at its end how long it
/// took: "tilewright: compiling attention_forward.cu for sm_90a ...", "... took 1.2 s".
class WaitNotice {
  public:
    /// Speaks after 0.3 s, on standard error where notices are wanted.
    explicit WaitNotice(std::string what);
    /// Speaks after `delay` seconds, on any stream.
    WaitNotice(std::string what, std::ostream& out, double delay);
    ~WaitNotice();
    WaitNotice(const WaitNotice&) = delete;
    WaitNotice& operator=(const WaitNotice&) = delete;

  private:
    void speak(const std::string& what, std::ostream& out, double delay);

    std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    std::thread thread_;
};

}  // namespace tilewright::cuda
