// First calls with compact kernels.
#include "attention/sm90/first_call.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
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

std::string_view setting() {
    const char* const text = std::getenv("TILEWRIGHT_COMPACT");
    return text == nullptr ? "" : text;
}

bool is_turned_off() {
    return no_compact_kernels > 0 || setting() == "0";
}

/// Compiling both variants takes cores that nothing else compiles on. TILEWRIGHT_COMPACT=1
/// asks for it all the same.
bool has_cores() {
    if (setting() == "1") return true;
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

constexpr double kMostProducts = 4e12;

/// A capture would keep compact kernels, and a measurement take them for the others.
bool allows_compact(const FirstCall& call) {
    return call.spec != nullptr && !call.spec->autotune && !cuda::is_capturing(call.stream) &&
           !is_turned_off();
}

/// Compact kernels pay if the call's products are few.
bool may_be_compact(const FirstCall& call) {
    return allows_compact(call) && products_of(*call.spec) <= kMostProducts && has_cores();
}

/// Products of compact kernels that GPUs may not have come to yet. Calls return before their
/// kernels run: a loop of them could queue minutes of work while the full kernels compile.
class Queued {
  public:
    /// Adds a call's products; false and none if a GPU would then have too many.
    bool add(int device, double products, bool always) {
        constexpr double kPerSecond = 1e13;  // the slowest measured: 1.15e13
        const std::lock_guard lock(mutex_);
        const auto now = std::chrono::steady_clock::now();
        Left& left = left_[device];
        const double seconds = std::chrono::duration<double>(now - left.since).count();
        left = {std::max(0.0, left.products - kPerSecond * seconds), now};
        if (!always && left.products + products > kMostProducts) return false;
        left.products += products;
        return true;
    }

  private:
    struct Left {
        double products = 0;
        std::chrono::steady_clock::time_point since;
    };
    std::mutex mutex_;
    std::map<int, Left> left_;  ///< by device
};

Queued& queued() {
    static auto* const kQueued = new Queued;
    return *kQueued;
}

/// Variants whose compact kernels were asked for, by device: ready once they are loaded or failed.
auto& begun() {
    static auto* const kBegun = new Memo<std::pair<std::string, int>, std::shared_future<void>>(
        "first calls of the Hopper engine", 512);
    return *kBegun;
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
        unit.options.emplace_back("--ptxas-options=-O1");  // no slower kernels, a tenth sooner
        unit.spill_limit_bytes.reset();                    // serialised products are meant
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

std::optional<std::promise<void>> begins_compact(const FirstCall& call, const std::string& variant,
                                                 int device,
                                                 const std::vector<cuda::CompileRequest>& units) {
    const std::pair<std::string, int> key{variant, device};
    if (begun().find(key) || are_compiled(units) || !may_be_compact(call)) return std::nullopt;
    std::promise<void> loading;
    begun().put(key, loading.get_future().share());
    return loading;
}

void await_compact(const FirstCall& call, const std::string& variant, int device) {
    if (!allows_compact(call)) return;
    if (const auto loading = begun().find(std::pair(variant, device))) loading->wait();
}

void runs_compact(const FirstCall& call, int device,
                  const std::vector<cuda::CompileRequest>& units) {
    queued().add(device, products_of(*call.spec), /*always=*/true);
    debug_log("attention", "sm90: this call runs compact kernels in place of {}",
              units.front().name);
}

bool stays_compact(const FirstCall& call, int device,
                   const std::vector<cuda::CompileRequest>& units) {
    return allows_compact(call) && std::any_of(units.begin(), units.end(), cuda::is_compiling) &&
           queued().add(device, products_of(*call.spec), /*always=*/false);
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
