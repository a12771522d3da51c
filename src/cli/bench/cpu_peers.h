// Other libraries on the kernels of `tilewright bench cpu`, in helper processes.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "cli/bench/cpu_suite.h"
#include "cli/bench/measure.h"

namespace tilewright::cli {

/// Another library's version of a case, ready to be timed.
struct Peer {
    Variant variant;
    Tensor output;  ///< of its first execution
};

/// The libraries that bench/cpu_peers.py can drive and that are installed.
class Peers {
  public:
    /// Asks for `choice`: one of `names()`, "auto" for all that are installed, or "" for none.
    /// UserError for other choices, and where one that was named is not installed. `out` (may be
    /// null) gets notes on what is missing or fails.
    Peers(const std::string& choice, std::ostream* out);

    /// Those that have the case's kernel, after their first execution on its inputs.
    std::vector<Peer> prepare(const SuiteCase& c);

    /// By library: its version, or "not installed: why".
    const std::map<std::string, std::string>& versions() const { return versions_; }

    static const std::vector<std::string>& names();

  private:
    std::ostream* out_;
    std::vector<std::string> installed_;
    std::map<std::string, std::string> versions_;
};

}  // namespace tilewright::cli
