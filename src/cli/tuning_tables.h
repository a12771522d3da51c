// Prints what the autotuner tried.
#pragma once

#include <fmt/format.h>

#include <ostream>
#include <string>

#include "run/tuning.h"

namespace tilewright::cli {

/// While it lives, if `wanted`, prints every choice of the autotuner as a table.
class TuningTables {
  public:
    TuningTables(bool wanted, std::ostream& out) : wanted_(wanted) {
        if (!wanted) return;
        run::listen_to_tuning([&out](const run::Tuning& tuning) {
            // The strides that follow distinguish choices but do not help a reader.
            const std::string call = tuning.what.substr(0, tuning.what.find(", autotune"));
            out << fmt::format("{}\n{}{}\n", call, tuning.table,
                               tuning.remembered ? "(from the disk cache)\n" : "")
                << std::flush;
        });
    }
    ~TuningTables() {
        if (wanted_) run::listen_to_tuning({});
    }
    TuningTables(const TuningTables&) = delete;
    TuningTables& operator=(const TuningTables&) = delete;

  private:
    bool wanted_;
};

}  // namespace tilewright::cli
