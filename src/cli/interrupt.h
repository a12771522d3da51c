// What a run leaves when Ctrl-C ends it.
#pragma once

#include <csignal>
#include <string>

namespace tilewright::cli {

/// While it lives, SIGINT and SIGTERM end the process at once with status 130 and 143 after writing
/// the last words and data that were left here. One at a time.
class OnInterrupt {
  public:
    OnInterrupt();
    ~OnInterrupt();
    OnInterrupt(const OnInterrupt&) = delete;
    OnInterrupt& operator=(const OnInterrupt&) = delete;

    /// Then `words` go to standard error, `data` to standard output.
    static void leave(std::string words, std::string data);

  private:
    struct sigaction interrupt_, terminate_;
};

}  // namespace tilewright::cli
