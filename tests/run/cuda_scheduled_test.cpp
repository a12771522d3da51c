// Kernels of the scheduled form, on the host emulation of warpgroups, TMA and mbarriers, give the
// results of the reference machine; and the emulation detects faults.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cpu/interpreter.h"
#include "cuda/schedule/print_cuda.h"
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

/// A program with its arrays, the reference results, and its kernel.
struct Case {
    explicit Case(const CudaProgram& of, bool copies = false)
        : program(of),
          function(ir::parse(of.text)),
          expected(function, of.extents),
          got(function, of.extents) {
        expected.arguments.grid = got.arguments.grid =
            program.grid.empty() ? function.grid : program.grid;
        expected.poison_output();
        cpu::interpret(function, expected.arguments);
        cuda::Target target = cuda::target_of("sm_90a");
        target.facts = cuda::facts_of(function, got.arguments, copies);
        kernel = cuda::schedule::print_cuda(cuda::schedule::schedule(function, target));
    }
    /// The error of the last array, the output, which is poisoned before the run.
    double error(const EmulatedKernels& emulated, std::size_t index, unsigned seed) {
        got.poison_output();
        cuda::LaunchArguments arguments(function, got.arguments, &kernel);
        emulated.run(index, arguments, seed);
        return relative_error(function, program.extents.size() - 1, expected, got);
    }

    CudaProgram program;
    ir::Function function;
    ProgramArrays expected, got;
    cuda::Generated kernel;
};

void expect_reference_results(const std::vector<CudaProgram>& programs, bool copies = false) {
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<cuda::Generated> kernels;
    for (const CudaProgram& program : programs) {
        SCOPED_TRACE(program.name);
        cases.push_back(std::make_unique<Case>(program, copies));
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

TEST(CudaScheduled, OperandsThatThreadsCopyGiveWhatTheReferenceGives) {
    if (!has_sources()) GTEST_SKIP() << "NOT RUN: the sources are not here";
    for (const CudaProgram& program : testing_support::copied_programs()) {
        const Case one(program, true);
        EXPECT_NE(one.kernel.source.find("copy_box<"), std::string::npos) << program.name;
    }
    expect_reference_results(testing_support::copied_programs(), true);
}

/// Whether a kernel is wrong or does not end under one of a few schedules of threads.
bool is_caught(Case& of, const EmulatedKernels& emulated, std::size_t index) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
        const pid_t child = ::fork();
        if (child == 0) {
            // Hides the emulation's report on a fault that was injected on purpose.
            if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
            ::_exit(of.error(emulated, index, seed) <= of.program.relative ? 0 : 1);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        if (status != 0) return true;
    }
    return false;
}

/// A kernel and its texts with one fault each.
class Faults {
  public:
    explicit Faults(const CudaProgram& program) : of(program), source(of.kernel.source) {
        kernels.push_back(of.kernel);
        names.emplace_back("none");
    }
    /// Replaces the next occurrence of `words` after `from` by `by`.
    void plant(const char* name, const std::string& words, const std::string& by,
               std::size_t from) {
        const std::size_t at = source.find(words, from);
        ASSERT_NE(at, std::string::npos) << words << "\n" << source;
        add(name, at, words.size(), by);
    }
    /// Removes the line of the next occurrence of `words`.
    void leave_out(const char* name, const std::string& words, std::size_t from) {
        const std::size_t at = source.find(words, from);
        ASSERT_NE(at, std::string::npos) << words << "\n" << source;
        const std::size_t begin = source.rfind('\n', at) + 1;
        add(name, begin, source.find('\n', at) + 1 - begin, "");
    }
    void expect_all_seen() {
        const EmulatedKernels emulated(kernels);
        for (std::size_t i = 0; i < kernels.size(); ++i) {
            EXPECT_EQ(is_caught(of, emulated, i), i > 0) << names[i];
        }
    }

    Case of;
    const std::string source;

  private:
    void add(const char* name, std::size_t at, std::size_t size, const std::string& by) {
        kernels.push_back(of.kernel);
        kernels.back().source.replace(at, size, by);
        names.emplace_back(name);
    }

    std::vector<cuda::Generated> kernels;
    std::vector<std::string> names;
};

TEST(CudaScheduled, EveryPlantedFaultIsSeen) {
    if (!has_sources()) GTEST_SKIP() << "NOT RUN: the sources are not here";
    // More iterations than slots, a block with two programs, and an odd number of panels.
    Faults faults(testing_support::product({"faults", 256, 384, 384, 128, 192}));
    const std::string& source = faults.source;
    const std::size_t producer = source.find("registers_decrease"),
                      consumer = source.find("registers_increase"),
                      panel = source.find("store_panel");
    faults.leave_out("no wait for an empty slot", "mbarrier_wait", producer);
    faults.leave_out("no wait for a full slot", "mbarrier_wait", consumer);
    faults.plant("parity of the producer", "{0, 1};", "{0, 0};", producer);
    faults.plant("parity of the consumer", "{0, 0};", "{0, 1};", consumer);
    faults.plant("one warp releases a slot", ", 8);", ", 1);", 0);
    faults.plant("another slot is released", ".before());", ".at);", consumer);
    faults.leave_out("no wait for products", "wgmma_wait<0>", consumer);
    faults.leave_out("no fence", "fence_async_shared", consumer);
    faults.leave_out("no meeting before a copy", "named_barrier_sync", panel);
    faults.leave_out("no wait before a slot of panels is written", "bulk_wait_read", consumer);
    faults.expect_all_seen();
}

TEST(CudaScheduled, EveryFaultPlantedInChainsIsSeen) {
    if (!has_sources()) GTEST_SKIP() << "NOT RUN: the sources are not here";
    // More iterations than slots, and blocks with two programs; not causal, so that all are alike.
    Faults faults(testing_support::attention({"faults", 4, 128, 448, 64, 128, 64}));
    const std::string& source = faults.source;
    const std::size_t producer = source.find("registers_decrease"),
                      consumer = source.find("registers_increase"),
                      rounds = source.find("TW_ROLLED", consumer),
                      after = source.find("wgmma_wait<1>", rounds);
    const auto following = [&](std::size_t from) { return source.find('\n', from) + 1; };
    const std::size_t first_full = source.find("mbarrier_wait", consumer),
                      first_of_round = source.find("mbarrier_wait", rounds);
    faults.leave_out("no wait for the empty slot of the queries", "mbarrier_wait", producer);
    faults.leave_out("no wait for an empty slot of a ring", "mbarrier_wait",
                     source.find("TW_ROLLED", producer));
    faults.leave_out("no wait for the queries", "mbarrier_wait", first_full);
    faults.leave_out("no wait for the first keys", "mbarrier_wait", following(first_full));
    faults.leave_out("no wait for keys", "mbarrier_wait", first_of_round);
    faults.leave_out("no wait for values", "mbarrier_wait", following(first_of_round));
    faults.plant("the first product is not waited for", "wgmma_wait<1>", "wgmma_wait<2>", rounds);
    faults.leave_out("the second product is not waited for", "wgmma_wait<0>", after);
    faults.leave_out("the last product is not waited for", "wgmma_wait<0>",
                     following(source.find("wgmma_wait<0>", after)));
    faults.leave_out("keys are not released", "mbarrier_arrive", rounds);
    faults.leave_out("values are not released", "mbarrier_arrive",
                     following(source.find("mbarrier_arrive", rounds)));
    faults.expect_all_seen();
}

}  // namespace
}  // namespace tilewright
