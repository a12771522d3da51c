// Kernels of the scheduled form give what the reference machine gives, on the host emulation of
// warpgroups, TMA and mbarriers; and the emulation sees what would go wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "cpu/interpreter.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "tests/cuda/emulate.h"
#include "tests/run/chained_programs.h"
#include "tests/run/cuda_arrays.h"
#include "tests/run/scheduled_programs.h"

namespace tilewright {
namespace {

using testing_support::CudaProgram;
using testing_support::EmulatedKernels;
using testing_support::ProgramArrays;

bool has_sources() {
    return std::filesystem::exists(TW_SOURCE_FOLDER "/tests/cuda/emulator");
}

/// A program with its arrays, what the reference makes of them, and its kernel.
struct Case {
    explicit Case(const CudaProgram& of)
        : program(of),
          function(ir::parse(of.text)),
          expected(function, of.extents),
          got(function, of.extents) {
        expected.arguments.grid = got.arguments.grid = function.grid;
        cpu::interpret(function, expected.arguments);
        cuda::Target target = cuda::target_of("sm_90a");
        target.facts = cuda::facts_of(function, got.arguments);
        kernel = cuda::schedule::generate_scheduled(function, target).value();
    }
    /// The error of the last array, which is the output, after a run that finds it poisoned.
    double error(const EmulatedKernels& emulated, std::size_t index, unsigned seed) {
        for (auto& word : got.memory.back()) std::memset(&word, 0xff, sizeof(word));
        cuda::LaunchArguments arguments(function, got.arguments, &kernel);
        emulated.run(index, arguments, seed);
        return relative_error(function, program.extents.size() - 1, expected, got);
    }

    CudaProgram program;
    ir::Function function;
    ProgramArrays expected, got;
    cuda::Generated kernel;
};

void expect_reference_results(const std::vector<CudaProgram>& programs) {
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<cuda::Generated> kernels;
    for (const CudaProgram& program : programs) {
        SCOPED_TRACE(program.name);
        cases.push_back(std::make_unique<Case>(program));
        kernels.push_back(cases.back()->kernel);
    }
    const EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        for (unsigned seed = 1; seed <= 2; ++seed) {
            EXPECT_TRUE(cases[i]->error(emulated, i, seed) <= cases[i]->program.relative)
                << cases[i]->program.name << " seed " << seed;
        }
    }
}

TEST(CudaScheduled, ProgramsOfEveryPathGiveWhatTheReferenceGives) {
    if (!has_sources()) GTEST_SKIP() << "NOT RUN: the sources are not here";
    expect_reference_results(testing_support::scheduled_programs());
}

TEST(CudaScheduled, ChainedProductsGiveWhatTheReferenceGives) {
    if (!has_sources()) GTEST_SKIP() << "NOT RUN: the sources are not here";
    expect_reference_results(testing_support::chained_programs());
}

/// Does a schedule of threads exist, among a few, in which a kernel is wrong or does not end?
bool is_caught(Case& of, const EmulatedKernels& emulated, std::size_t index) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
        const pid_t child = ::fork();
        if (child == 0) {
            // What the emulation says of a fault that was put there on purpose is no news.
            if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
            ::setenv("TW_EMULATOR_SWITCHES", "400000", 1);
            ::_exit(of.error(emulated, index, seed) <= of.program.relative ? 0 : 1);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        if (status != 0) return true;
    }
    return false;
}

TEST(CudaScheduled, EveryPlantedFaultIsSeen) {
    if (!has_sources()) GTEST_SKIP() << "NOT RUN: the sources are not here";
    // More rounds than slots, a block with two programs, and an odd number of panels.
    Case of(testing_support::product({"faults", 256, 384, 384, 128, 192}));
    const std::string& source = of.kernel.source;
    std::vector<cuda::Generated> kernels = {of.kernel};
    std::vector<std::string> names = {"none"};
    const auto plant = [&](const char* name, const std::string& words, const std::string& by,
                           std::size_t from) {
        const std::size_t at = source.find(words, from);
        ASSERT_NE(at, std::string::npos) << words << "\n" << source;
        kernels.push_back(of.kernel);
        kernels.back().source.replace(at, words.size(), by);
        names.emplace_back(name);
    };
    const auto leave_out = [&](const char* name, const std::string& words, std::size_t from) {
        const std::size_t at = source.find(words, from);
        ASSERT_NE(at, std::string::npos) << words << "\n" << source;
        const std::size_t begin = source.rfind('\n', at) + 1, end = source.find('\n', at) + 1;
        kernels.push_back(of.kernel);
        kernels.back().source.erase(begin, end - begin);
        names.emplace_back(name);
    };
    const std::size_t producer = source.find("registers_decrease"),
                      consumer = source.find("registers_increase"),
                      panel = source.find("store_panel");
    leave_out("no wait for an empty slot", "mbarrier_wait", producer);
    leave_out("no wait for a full slot", "mbarrier_wait", consumer);
    plant("parity of the producer", "{0, 1};", "{0, 0};", producer);
    plant("parity of the consumer", "{0, 0};", "{0, 1};", consumer);
    plant("one warp releases a slot", ", 8);", ", 1);", 0);
    plant("another slot is released", ".before());", ".at);", consumer);
    leave_out("no wait for products", "wgmma_wait<0>", consumer);
    leave_out("no fence", "fence_async_shared", consumer);
    leave_out("no meeting before a copy", "named_barrier_sync", panel);
    leave_out("no wait before a slot of panels is written", "bulk_wait_read", consumer);
    const EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        EXPECT_EQ(is_caught(of, emulated, i), i > 0) << names[i];
    }
}

}  // namespace
}  // namespace tilewright
