// `tilewright bench compile --arch ARCH`.
#include "cli/bench/compile_kernels.h"

#include <fmt/format.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/measure.h"
#include "cli/builtin.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/runtime/compiler.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

/// Seconds of the processor, of all threads: other programs on the machine do not count.
double processor_time() {
    std::timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Programs by name, as `tilewright dump` has them.
std::vector<std::pair<std::string, Builtin>> programs(DType dtype) {
    std::vector<std::pair<std::string, Builtin>> result;
    for (const std::string& name : builtin_names()) {
        result.emplace_back(name, builtin("bench", name, dtype, true));
    }
    const std::pair<const char*, ModTexts> mods[] = {
        {"causal mask", {"q >= kv", "", {}}},
        {"soft cap", {"", "20 * tanh(score / 20)", {}}},
        {"ALiBi", {"", "score + (kv - q) * 0.125", {}}}};
    for (const auto& [name, texts] : mods) {
        for (const bool backward : {false, true}) {
            result.emplace_back(fmt::format("{}, {}", backward ? "flex_backward" : "flex", name),
                                flex_builtin("bench", dtype, texts, backward, true));
        }
    }
    return result;
}

}  // namespace

void bench_compile_kernels(const BenchOptions& options, Report& report) {
    cuda::Target target = cuda::target_of(options.arch);
    constexpr int kMost = 9;
    bool any = false;
    for (const auto& [name_, program] : programs(options.dtype)) {
        if (name_.find(options.only) == std::string::npos) continue;
        any = true;
        const ir::Function function = ir::parse(program.call.ir(program.inputs, false));
        target.facts =
            cuda::facts_of_dense(function, cuda::schedule::may_copy(function, target.arch));
        std::vector<double> generating, compiling;
        const double begin = processor_time();
        while (generating.empty() ||
               (generating.size() < kMost && processor_time() - begin < options.seconds)) {
            const double start = processor_time();
            const cuda::Generated generated = cuda::schedule::generate_best(function, target);
            const double between = processor_time();
            generating.push_back(between - start);
            cuda::compile(cuda::compile_request(generated, target.arch));
            compiling.push_back(processor_time() - between);
        }
        Row row;
        row.case_name = fmt::format("{} {} {}", name_, name(options.dtype), options.arch);
        row.impl = "tilewright";
        for (const auto& [operation, seconds] :
             {std::pair{"passes", generating}, {"nvrtc", compiling}}) {
            row.operation = operation;
            row.ms = median(seconds) * 1e3;
            report.add(row);
        }
        report.print();
    }
    if (!any) {
        user_error("bench", "expected --case with a part of a program's name but got {}",
                   options.only);
    }
}

}  // namespace tilewright::cli
