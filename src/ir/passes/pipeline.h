// The pass driver.
#pragma once

#include <functional>
#include <string_view>

#include "ir/function.h"

namespace tilewright::ir {

/// Called after each pass with its name and whether it changed anything.
using PassObserver = std::function<void(std::string_view pass, const Function&, bool changed)>;

/// Runs passes over one function. With TILEWRIGHT_DEBUG_PASSES=1 in the environment it logs to
/// stderr, after each pass, the IR or "(unchanged)", and the time the pass took.
class PassDriver {
  public:
    explicit PassDriver(Function& function, PassObserver observer = {})
        : function_(function), observer_(std::move(observer)) {}

    /// Runs `pass(function)`, which returns a report with changed().
    template <typename Pass>
    bool run(std::string_view name, Pass&& pass) {
        return run_erased(name, [&](Function& function) { return pass(function).changed(); });
    }

  private:
    bool run_erased(std::string_view name, const std::function<bool(Function&)>& pass);

    Function& function_;
    PassObserver observer_;
};

/// What every machine wants before it compiles: mods inlined, then fold, cse, licm and dce until
/// nothing changes (at most a few rounds), then bounds.
void optimise(Function& function, const PassObserver& observer = {});

}  // namespace tilewright::ir
