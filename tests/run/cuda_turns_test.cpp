// Warpgroups that take programs in turn, on the host emulation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/run/cuda_programs.h"
#include "tests/run/scheduled_case.h"
#include "tests/run/scheduled_programs.h"
#include "tests/support/sources.h"

namespace tilewright {
namespace {

using testing_support::Case;
using testing_support::CudaProgram;
using testing_support::EmulatedKernels;
using testing_support::Faults;

cuda::schedule::Choice turns_of(std::int64_t rows, std::int64_t columns) {
    return {.tile = {rows, columns, cuda::schedule::Pairs::none, true}};
}

TEST(CudaTurns, GiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<cuda::Generated> kernels;
    for (const CudaProgram& program : testing_support::uneven_products()) {
        if (program.name == "tf32") continue;  // its sums are in another order
        for (const int columns : {192, 128}) {
            SCOPED_TRACE(fmt::format("{} {}", program.name, columns));
            cases.push_back(std::make_unique<Case>(program, false, turns_of(128, columns)));
            kernels.push_back(cases.back()->kernel);
            EXPECT_NE(kernels.back().source.find(".skip("), std::string::npos);
        }
    }
    const EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        for (unsigned seed = 1; seed <= 2; ++seed) {
            EXPECT_TRUE(cases[i]->error(emulated, i, seed) <= cases[i]->program.relative)
                << cases[i]->program.name << " seed " << seed;
        }
    }
}

TEST(CudaTurns, SumsThatDoNotFitTheRegistersAreRefused) {
    const CudaProgram program = testing_support::product({"p", 256, 512, 128, 128, 256});
    try {
        const Case wide(program, false, turns_of(128, 256));
        ADD_FAILURE() << "256 registers of sums for a thread";
    } catch (const cuda::schedule::Refused& refused) {
        EXPECT_STREQ(refused.what(), "its sums are too large for a warpgroup's registers");
    }
}

// Two warpgroups with two programs each, in a product shorter than its epilogue.
TEST(CudaTurns, EveryPlantedFaultIsSeen) {
    TW_REQUIRE_SOURCES();
    const std::string add =
        "%fr = cast %rest : f32TILE\n"
        "%s = add %d, %fr : f32TILE\n"
        "%q = cast %s : bf16TILE";
    Faults faults(testing_support::product({.name = "faults",
                                            .m = 512,
                                            .n = 384,
                                            .k = 192,
                                            .bm = 128,
                                            .bn = 192,
                                            .epilogue = testing_support::with_shapes(add, 128, 192),
                                            .rest = true}),
                  turns_of(128, 192));
    const std::string& source = faults.source;
    const std::size_t consumer = source.find("registers_increase");
    const std::size_t programs = source.find("for (u32 program", consumer);
    const std::size_t panels = source.find("load_panel", programs);
    faults.leave_out("the first count is not skipped", ".skip(3)", consumer);
    faults.leave_out("counts are not skipped", ".skip(3)", programs);
    faults.plant("another count is skipped", ".skip(3)", ".skip(2)", programs);
    faults.leave_out("panels are not skipped", ".skip(6)", programs);
    faults.leave_out("no warpgroup begins", "named_barrier_arrive", consumer);
    faults.leave_out("products do not wait for their turn", "named_barrier_sync", programs);
    faults.leave_out("the turn is not passed on", "named_barrier_arrive", programs);
    faults.plant("both warpgroups have the same programs", "blockIdx.x + group * gridDim.x",
                 "blockIdx.x", consumer);
    faults.plant("the second half of the rows is the first", " + 1 * 8192", "", programs);
    faults.plant("panels of the load are read at once", "named_barrier_sync(6 + group, 256)",
                 "wgmma_wait<0>()", consumer);
    ASSERT_NE(panels, std::string::npos);
    faults.expect_all_seen();
}

}  // namespace
}  // namespace tilewright
