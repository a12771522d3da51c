// What a run writes when Ctrl-C ends it.
#pragma once

#include <csignal>
#include <string>

namespace tilewright::cli {

/// While it lives, SIGINT and SIGTERM write the words and data that were left last and end the
/// process at once with status 130 and 143. Only one may exist at a time.
class OnInterrupt {
  public:
    OnInterrupt();
    ~OnInterrupt();
    OnInterrupt(const OnInterrupt&) = delete;
    OnInterrupt& operator=(const OnInterrupt&) = delete;

    /// Leaves `words` for standard error and `data` for standard output.
    static void leave(std::string words, std::string data);

  private:
    struct sigaction interrupt_, terminate_;
};

}  // namespace tilewright::cli
