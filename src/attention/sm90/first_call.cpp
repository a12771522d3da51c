// First calls with compact kernels.
#include "attention/sm90/first_call.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "cuda/runtime/background.h"
#include "cuda/runtime/stream.h"
#include "support/debug_log.h"
#include "support/memo.h"
#include "tilewright/first_calls.h"

namespace tilewright::attn::sm90 {
namespace {

std::atomic<int> no_compact_kernels = 0;  ///< how many NoCompactKernels exist

/// Compiling both variants takes cores that nothing else compiles on. TILEWRIGHT_COMPACT=1
/// asks for it all the same, 0 turns it off.
bool is_wanted() {
    if (no_compact_kernels > 0) return false;
    const char* const text = std::getenv("TILEWRIGHT_COMPACT");
    const std::string_view setting = text == nullptr ? "" : text;
    if (setting == "0" || setting == "1") return setting == "1";
    static const unsigned kCores = std::thread::hardware_concurrency();
    constexpr unsigned kLeast = 4;
    return kCores >= kLeast && cuda::background_compilations() < kCores / 2;
}

/// Multiply-adds of both products, for pairs inside the diagonals.
double products_of(const AttentionSpec& spec) {
    const Diagonals diagonals = diagonals_of(spec);
    std::int64_t keys = spec.kv_length;
    if (diagonals.lower && diagonals.upper)
        keys = std::clamp<std::int64_t>(*diagonals.upper - *diagonals.lower + 1, 1, keys);
    const double pairs = static_cast<double>(spec.batch * spec.query_heads * spec.query_length) *
                         static_cast<double>(keys);
    return pairs * static_cast<double>(spec.head_dim + spec.value_dim) *
           (spec.pass == Pass::backward ? 2.5 : 1);
}

/// Compact kernels pay if the call's products are few; a capture would keep them, and a measurement
/// take them for the others.
bool may_be_compact(const FirstCall& call) {
    constexpr double kMostProducts = 4e12;
    return !call.spec->autotune && products_of(*call.spec) <= kMostProducts &&
           !cuda::is_capturing(call.stream) && is_wanted();
}

bool are_compiled(const std::vector<cuda::CompileRequest>& units) {
    return std::all_of(units.begin(), units.end(), cuda::is_compiled);
}

}  // namespace

std::vector<cuda::CompileRequest> compact(std::vector<cuda::CompileRequest> units) {
    for (cuda::CompileRequest& unit : units) {
        if (unit.name.starts_with("rows_of_")) continue;
        unit.name = "compact_" + unit.name;
        unit.options.emplace_back("--define-macro=TW_COMPACT");
        unit.spill_limit_bytes.reset();  // serialised products are meant
    }
    return units;
}

bool compile_compact(const FirstCall& call, const std::vector<cuda::CompileRequest>& units) {
    if (are_compiled(units) || !may_be_compact(call)) return false;
    compile_ahead(compact(units));
    return true;
}

void compile_ahead(const std::vector<cuda::CompileRequest>& units) {
    for (const cuda::CompileRequest& unit : units) cuda::compile_in_background(unit);
}

bool begins_compact(const FirstCall& call, const std::string& variant, int device,
                    const std::vector<cuda::CompileRequest>& units) {
    static auto* const kBegun =
        new Memo<std::pair<std::string, int>, bool>("first calls of the Hopper engine", 512);
    const std::pair<std::string, int> key{variant, device};
    if (call.spec == nullptr || kBegun->find(key) || are_compiled(units) || !may_be_compact(call))
        return false;
    kBegun->put(key, true);
    debug_log("attention", "sm90: this call runs compact kernels in place of {}",
              units.front().name);
    return true;
}

}  // namespace tilewright::attn::sm90

namespace tilewright {

NoCompactKernels::NoCompactKernels() {
    ++attn::sm90::no_compact_kernels;
}
NoCompactKernels::~NoCompactKernels() {
    --attn::sm90::no_compact_kernels;
}

}  // namespace tilewright
