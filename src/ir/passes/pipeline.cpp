// The pass driver and the standard sequence.
#include "ir/passes/pipeline.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ir/passes/bounds.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "ir/passes/licm.h"
#include "ir/print.h"

namespace tilewright::ir {
namespace {

// Passes enable each other, so the sequence is repeated; twice is enough for nearly every kernel.
constexpr int kMaxRounds = 4;

bool debug_passes() {
    const char* setting = std::getenv("TILEWRIGHT_DEBUG_PASSES");
    return setting != nullptr && std::string_view(setting) == "1";
}

}  // namespace

bool PassDriver::run_erased(std::string_view name, const std::function<bool(Function&)>& pass) {
    const auto start = std::chrono::steady_clock::now();
    const bool changed = pass(function_);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (observer_) observer_(name, function_, changed);
    if (debug_passes()) {
        fmt::print(stderr, "// @{}: {} {:.3f} ms{}\n{}", function_.name, name, time.count(),
                   changed ? "" : " (unchanged)", changed ? print(function_) : "");
    }
    return changed;
}

void optimise(Function& function, const PassObserver& observer) {
    PassDriver driver(function, observer);
    driver.run("inline", inline_calls);
    for (int round = 0; round < kMaxRounds; ++round) {
        bool changed = driver.run("fold", fold);
        changed |= driver.run("cse", cse);
        changed |= driver.run("licm", licm);
        changed |= driver.run("dce", dce);
        if (!changed) break;
    }
    driver.run("bounds", bounds);
}

}  // namespace tilewright::ir
