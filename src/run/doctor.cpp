// Reports what this machine has, what will be used and what is missing.
#include <fmt/format.h>
#include <hwy/highway.h>
#include <oneapi/tbb/version.h>
#include <xxhash.h>

#include <limits>

#include "cpu/machine.h"
#include "cpu/simd/kernels.h"
#include "cuda/runtime/device.h"
#include "run/system_info.h"
#include "support/check.h"
#include "support/disk_cache.h"
#include "tilewright/system.h"
#include "tilewright/version.h"

namespace tilewright {
namespace run {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = __VERSION__;  // includes the compiler's name
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

class Report {
  public:
    void section(std::string_view title) { text_ += fmt::format("\n{}\n", title); }
    void row(std::string_view key, std::string_view value) {
        text_ += fmt::format("  {:<12}{}\n", key, value.empty() ? "unknown" : value);
    }
    /// Appends lines of text made elsewhere.
    void lines(std::string_view text) {
        while (!text.empty()) {
            const std::size_t end = std::min(text.find('\n'), text.size());
            text_ += fmt::format("  {}\n", text.substr(0, end));
            text.remove_prefix(std::min(end + 1, text.size()));
        }
    }
    const std::string& text() const { return text_; }

  private:
    std::string text_ = fmt::format("tilewright {}\n", version());
};

std::string gib(std::uint64_t bytes) {
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

void report_host(Report& report, const SystemInfo& info) {
    report.section("CPU");
    report.row("model", fmt::format("{} ({})", info.cpu_model, info.architecture));
    report.row("cores", fmt::format("{} usable, {} physical; {} threads will be used",
                                    info.logical_cores, info.physical_cores, cpu::num_threads()));
    report.row("features", fmt::format("{}", fmt::join(info.cpu_features, " ")));
    std::vector<std::string> caches;
    for (const CpuCache& cache : info.caches) {
        const char* kind = cache.type == "Data" ? "d" : cache.type == "Instruction" ? "i" : "";
        caches.push_back(fmt::format("L{}{} {}", cache.level, kind, cache.size));
    }
    report.row("caches", fmt::format("{}", fmt::join(caches, ", ")));
    report.row("memory",
               fmt::format("{}, {} available", gib(info.memory_bytes), gib(info.available_bytes)));
    std::vector<std::string_view> targets;
    for (const cpu::Kernels* table : cpu::available_kernels()) targets.emplace_back(table->name);
    report.row("kernels", fmt::format("{} of {} (TILEWRIGHT_TARGET)", cpu::kernels().name,
                                      fmt::join(targets, ", ")));
    if (targets.size() == 1) {
        report.row("advice", "only scalar kernels run here: vector kernels need AVX2 or NEON");
    }
}

void report_build(Report& report) {
    report.section("Build");
    report.row("compiler", kCompiler);
    report.row("fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                                  FMT_VERSION % 100));
    report.row("oneTBB", fmt::format("{}.{}", TBB_VERSION_MAJOR, TBB_VERSION_MINOR));
    report.row("Highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH));
    report.row("xxHash",
               fmt::format("{}.{}.{}", XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE));
}

/// Which kernels attention uses on which device; attention/engine.cpp chooses.
void report_engines(Report& report) {
    report.section("Attention");
    report.row("cpu", "tile programs");
    for (int i = 0; i < cuda::device_count(); ++i) {
        const cuda::DeviceInfo& info = cuda::device_info(i);
        const bool hopper = info.major == 9 && info.minor == 0;
        report.row(fmt::format("cuda:{}", i),
                   !hopper ? "tile programs"
                           : "sm90 (f16, bf16, head dimensions up to 256), tile programs for the "
                             "rest; TILEWRIGHT_DEBUG=1 says why");
    }
}

void report_cache(Report& report) {
    report.section("Cache");
    report.row("folder", cache_root().string());
    const std::optional<std::string> problem = cache_problem(cache_root());
    report.row("state", problem ? "not used: " + *problem : "can be written");
    if (problem)
        report.row("advice",
                   "set TILEWRIGHT_CACHE_DIR to a folder of your own, or remove this one");
}

void report_memory(Report& report) {
    report.section("Caches in memory");
    const std::vector<CacheCount> counts = cache_counts();
    if (counts.empty()) report.lines("none in use yet");
    for (const CacheCount& count : counts) {
        report.lines(fmt::format(
            "{}: {}{} entries{}; {} hits, {} misses, {} evictions", count.name, count.entries,
            count.most == std::numeric_limits<std::size_t>::max()
                ? ""
                : fmt::format(" of {}", count.most),
            count.bytes ? fmt::format(", {:.1f} MiB", static_cast<double>(*count.bytes) / (1 << 20))
                        : "",
            count.hits, count.misses, count.evictions));
    }
}

}  // namespace
}  // namespace run

std::string doctor() {
    run::Report report;
    run::report_host(report, run::read_system_info());
    report.section("CUDA");
    report.lines(cuda::probe().text());
    run::report_engines(report);
    run::report_cache(report);
    run::report_memory(report);
    run::report_build(report);
    return report.text();
}

std::vector<std::string> devices() {
    std::vector<std::string> names{"cpu"};
    for (int i = 0; i < cuda::device_count(); ++i) names.push_back(fmt::format("cuda:{}", i));
    return names;
}

void set_num_threads(int threads) {
    cpu::set_num_threads(threads);
}

int num_threads() {
    return cpu::num_threads();
}

}  // namespace tilewright
