// The pass driver.
#pragma once

#include <functional>
#include <string_view>

#include "ir/function.h"

namespace tilewright::ir {

/// Called after each pass with its name and whether it changed anything.
using PassObserver = std::function<void(std::string_view pass, const Function&, bool changed)>;

/// Runs passes over a function. With TILEWRIGHT_DEBUG_PASSES=1 in the environment, it logs the IR
/// or "(unchanged)" and the time to stderr after each pass.
class PassDriver {
  public:
    explicit PassDriver(Function& function, PassObserver observer = {})
        : function_(function), observer_(std::move(observer)) {}

    /// Runs `pass(function)`, which returns a report that has changed().
    template <typename Pass>
    bool run(std::string_view name, Pass&& pass) {
        return run_erased(name, [&](Function& function) { return pass(function).changed(); });
    }

  private:
    bool run_erased(std::string_view name, const std::function<bool(Function&)>& pass);

    Function& function_;
    PassObserver observer_;
};

/// The passes that every machine runs before it compiles: mods are inlined, then fold, cse, licm
/// and dce run until nothing changes (a few times at most), then bounds.
void optimise(Function& function, const PassObserver& observer = {});

}  // namespace tilewright::ir
