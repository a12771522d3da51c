// Kernels of the scheduled form, on the host emulation of warpgroups, TMA and mbarriers, give the
// results of the reference machine; and the emulation detects faults.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <optional>

#include "cpu/interpreter.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/choices.h"
#include "cuda/schedule/merge_blocks.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/schedule.h"
#include "cuda/schedule/split_product.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/verify.h"
#include "support/integer.h"
#include "tests/run/chained_programs.h"
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
using testing_support::ProgramArrays;
using testing_support::uneven_products;

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
    TW_REQUIRE_SOURCES();
    expect_reference_results(testing_support::scheduled_programs());
}

TEST(CudaScheduled, ChainedProductsGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    expect_reference_results(testing_support::chained_programs());
}

TEST(CudaScheduled, OperandsThatThreadsCopyGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    for (const CudaProgram& program : testing_support::copied_programs()) {
        const Case one(program, true);
        EXPECT_NE(one.kernel.source.find("copy_box<"), std::string::npos) << program.name;
    }
    expect_reference_results(testing_support::copied_programs(), true);
}

TEST(CudaScheduled, TilesOfEverySizeAndPairsGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    using cuda::schedule::Pairs;
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<cuda::Generated> kernels;
    const std::vector<CudaProgram> programs = uneven_products();
    const auto add = [&](const CudaProgram& program, int rows, int columns, Pairs pairs) {
        SCOPED_TRACE(fmt::format("{} {} x {}", program.name, rows, columns));
        cases.push_back(std::make_unique<Case>(
            program, false, cuda::schedule::Choice{.tile = {rows, columns, pairs}}));
        const cuda::Generated& kernel = cases.back()->kernel;
        kernels.push_back(kernel);
        EXPECT_EQ(kernel.cluster, pairs == Pairs::none ? 1 : pairs == Pairs::both ? 4 : 2);
        const std::int64_t tiles = std::accumulate(kernel.grid.begin(), kernel.grid.end(),
                                                   std::int64_t{1}, std::multiplies<>());
        const std::vector<std::int64_t>& z = program.extents.back();
        EXPECT_EQ(tiles, ceil_div(z[0], std::int64_t{rows}) * ceil_div(z[1], std::int64_t{columns}))
            << "no tile lies outside of the array";
    };
    add(programs[0], 128, 192, Pairs::none);
    add(programs[0], 128, 256, Pairs::rows);
    add(programs[0], 128, 192, Pairs::rows);
    add(programs[0], 128, 64, Pairs::rows);
    add(programs[0], 128, 128, Pairs::columns);
    add(programs[1], 128, 192, Pairs::rows);
    add(programs[1], 64, 256, Pairs::rows);
    add(programs[2], 128, 128, Pairs::rows);
    add(programs[2], 64, 128, Pairs::columns);
    add(programs[0], 128, 128, Pairs::both);
    add(programs[1], 128, 256, Pairs::both);
    add(programs[2], 64, 64, Pairs::both);
    add(programs[2], 128, 128, Pairs::both);
    add(programs[3], 256, 128, Pairs::none);
    add(programs[3], 192, 128, Pairs::none);
    add(programs[3], 256, 64, Pairs::none);
    add(programs[3], 64, 128, Pairs::rows);
    add(programs[3], 256, 128, Pairs::columns);
    add(programs[3], 128, 128, Pairs::both);
    add(programs[0], 256, 192, Pairs::none);
    add(programs[0], 256, 192, Pairs::rows);
    add(programs[1], 256, 192, Pairs::none);
    add(programs[1], 128, 192, Pairs::none);
    add(programs[1], 128, 256, Pairs::none);
    add(programs[0], 256, 192, Pairs::columns);
    add(programs[4], 256, 192, Pairs::none);
    const EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        EXPECT_TRUE(cases[i]->error(emulated, i, static_cast<unsigned>(i)) <=
                    cases[i]->program.relative)
            << cases[i]->program.name << " " << i;
    }
}

TEST(CudaScheduled, EveryChoiceToMeasureGivesWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    const CudaProgram program = testing_support::product({"tuned", 264, 328, 136, 256, 256});
    const ir::Function function = ir::parse(program.text);
    cuda::Target target = cuda::target_of("sm_90a");
    target.facts = cuda::facts_of_dense(function);
    std::vector<cuda::schedule::Choice> choices = cuda::schedule::choices_of(function, target);
    EXPECT_GE(choices.size(), 10u);
    for (const cuda::schedule::Choice& other :
         cuda::schedule::refinements_of(function, target, choices.front())) {
        if (other != choices.front()) choices.push_back(other);
    }
    EXPECT_GE(choices.size(), 14u);
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<cuda::Generated> kernels;
    for (const cuda::schedule::Choice& choice : choices) {
        if (choice.parts > 1) continue;  // see below
        cases.push_back(std::make_unique<Case>(program, false, choice));
        kernels.push_back(cases.back()->kernel);
    }
    const EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        EXPECT_TRUE(cases[i]->error(emulated, i, static_cast<unsigned>(i)) <= program.relative)
            << i;
    }
}

/// The extents of a Ref's dense argument at `data`.
ir::RefArgument dense(const ir::RefType& type, void* data) {
    ir::RefArgument ref;
    ref.data = data;
    std::int64_t stride = 1;
    for (std::size_t d = type.extents.size(); d-- > 0;) {
        ref.extents[d] = type.extents[d];
        ref.strides[d] = stride;
        stride *= type.extents[d];
    }
    return ref;
}

/// A product for each position in a batch of 2 x 3, whose grid has the batch's axes around those of
/// blocks.
CudaProgram batched_product() {
    return {"batched",
            R"(
func @batched(%x: ref<bf16[2, 3, 72, 400]>, %y: ref<bf16[2, 3, 400, 136]>, %z: ref<bf16[2, 3, 72, 136]>) grid [2, 2, 3, 3] {
  %b = program_id axis 0 : i64
  %c = program_id axis 2 : i64
  %pi = program_id axis 1 : i64
  %pj = program_id axis 3 : i64
  %size = constant 64 : i64
  %o = constant 0 : i64
  %i = mul %pi, %size : i64
  %j = mul %pj, %size : i64
  %l = load %x[%b, %c, %i : 64, %o : 400] : bf16[64, 400]
  %r = load %y[%b, %c, %o : 400, %j : 64] : bf16[400, 64]
  %d = dot %l, %r : f32[64, 64]
  %q = cast %d : bf16[64, 64]
  store %z[%b, %c, %i : 64, %j : 64], %q
  yield
}
)",
            {{2, 3, 72, 400}, {2, 3, 400, 136}, {2, 3, 72, 136}},
            0.008};
}

/// The inner dimension of 328 as a loop over slices of 48, the left operand stored transposed.
CudaProgram looped_product(const std::string& slices = "7", const std::string& init = "0") {
    return {"looped",
            R"(
func @looped(%x: ref<bf16[328, 200]>, %y: ref<bf16[328, 136]>, %z: ref<f32[200, 136]>) grid [4, 3] {
  %pi = program_id axis 0 : i64
  %pj = program_id axis 1 : i64
  %size = constant 64 : i64
  %slice = constant 48 : i64
  %o = constant 0 : i64
  %one = constant 1 : i64
  %slices = constant )" +
                slices +
                R"( : i64
  %i = mul %pi, %size : i64
  %j = mul %pj, %size : i64
  %init = constant )" +
                init + R"( : f32[64, 64]
  %d = for_loop %k = %o, %slices, %one carry (%acc = %init) : f32[64, 64] {
    %at = mul %k, %slice : i64
    %l = load %x[%at : 48, %i : 64] : bf16[48, 64]
    %lt = transpose %l permutation [1, 0] : bf16[64, 48]
    %r = load %y[%at : 48, %j : 64] : bf16[48, 64]
    %next = dot %lt, %r, %acc : f32[64, 64]
    yield %next
  }
  store %z[%i : 64, %j : 64], %d
  yield
}
)",
            {{328, 200}, {328, 136}, {200, 136}},
            1e-6};
}

TEST(CudaScheduled, PartsOfTheInnerDimensionAddUp) {
    std::vector<CudaProgram> programs = uneven_products();
    programs.resize(4);  // the others have few steps, or count positions
    programs.push_back(batched_product());
    programs.push_back(looped_product());
    for (const CudaProgram& program : programs) {
        SCOPED_TRACE(program.name);
        const ir::Function function = ir::parse(program.text);
        const auto split = cuda::schedule::split_product(function, 3);
        ASSERT_TRUE(split.has_value());
        // Parts are whole steps of 64: of 4 steps there are only two.
        EXPECT_EQ(split->sums.extents[0],
                  program.extents[0].back() == 200 && program.name == "uneven" ? 2 : 3);
        ProgramArrays expected(function, program.extents), got(function, program.extents);
        expected.arguments.grid = function.grid;
        expected.poison_output();
        got.poison_output();
        cpu::interpret(function, expected.arguments);
        const std::vector<std::int64_t>& extents = split->sums.extents;
        std::vector<float> sums(
            std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>()),
            std::numeric_limits<float>::quiet_NaN());
        ir::Arguments arguments = got.arguments;
        arguments.refs.push_back(dense(split->sums, sums.data()));
        for (const ir::Function* const kernel : {&split->parts, &split->finish}) {
            ir::verify(*kernel);
            arguments.grid = kernel->grid;
            cpu::interpret(*kernel, arguments);
        }
        EXPECT_LE(relative_error(function, program.extents.size() - 1, expected, got),
                  program.relative);
    }
}

TEST(CudaScheduled, ProductsOfOtherFormsAreNotSplitOrMerged) {
    const std::string text = testing_support::product({"plain", 256, 256, 256, 128, 128}).text;
    const auto with = [&](std::string_view words, std::string_view by) {
        std::string changed = text;
        changed.replace(changed.find(words), words.size(), by);
        ir::Function function = ir::parse(changed);
        ir::optimise(function);
        return function;
    };
    const auto is_split = [](const ir::Function& function) {
        return cuda::schedule::split_product(function, 2).has_value();
    };
    const auto is_merged = [](const ir::Function& function) {
        return cuda::schedule::mergeable_blocks(function).has_value();
    };
    EXPECT_TRUE(is_split(with("yield", "yield")));
    EXPECT_FALSE(is_split(with("%o : 256, %j", "%bm : 256, %j"))) << "half of an array";
    EXPECT_FALSE(is_split(with("grid [2, 2]", "grid [2, 1]"))) << "blocks do not cover the array";
    EXPECT_TRUE(is_split(ir::parse(looped_product().text)));
    EXPECT_FALSE(is_split(ir::parse(looped_product("6").text))) << "a part of the array";
    EXPECT_FALSE(is_split(ir::parse(looped_product("7", "1").text))) << "sums begin with ones";
    std::string batched = batched_product().text;
    EXPECT_TRUE(is_split(ir::parse(batched)));
    batched.replace(batched.find("grid [2, "), 9, "grid [?, ");
    EXPECT_FALSE(is_split(ir::parse(batched))) << "a batch of unknown size";
    EXPECT_FALSE(is_merged(with("mul %pi, %bm", "add %pi, %bm"))) << "blocks that overlap";
    EXPECT_FALSE(is_merged(with("grid [2, 2]", "grid [?, 2]"))) << "an unknown number of blocks";
}

TEST(CudaScheduled, EveryPlantedFaultIsSeen) {
    TW_REQUIRE_SOURCES();
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

TEST(CudaScheduled, EveryFaultPlantedInLoadsAheadIsSeen) {
    TW_REQUIRE_SOURCES();
    // Three panels of a tile in two slots, and two programs in a block.
    const std::string add =
        "%fr = cast %rest : f32TILE\n"
        "%s = add %d, %fr : f32TILE\n"
        "%q = cast %s : bf16TILE";
    Faults faults(testing_support::product({.name = "faults",
                                            .m = 256,
                                            .n = 384,
                                            .k = 128,
                                            .bm = 128,
                                            .bn = 192,
                                            .epilogue = testing_support::with_shapes(add, 128, 192),
                                            .rest = true}),
                  cuda::schedule::Choice{.tile = {128, 192}});
    const std::string& source = faults.source;
    const std::size_t copy = source.find("&r_map"), read = source.find("load_panel");
    ASSERT_LT(copy, read) << source;
    faults.leave_out("no wait for an empty slot", "mbarrier_wait",
                     source.rfind("ptx::mbarrier_wait", copy));
    faults.leave_out("no wait for a full slot", "mbarrier_wait",
                     source.rfind("ptx::mbarrier_wait", read));
    faults.leave_out("no slot is released", "mbarrier_arrive", read);
    faults.plant("both warpgroups read the same rows", " + group * 8192, ", ", ", read);
    faults.plant("all panels are the first one", ", 64ll)", ", 0ll)",
                 source.rfind("mbarrier_wait", copy));
    faults.expect_all_seen();
}

TEST(CudaScheduled, EveryFaultPlantedInFragmentsIsSeen) {
    TW_REQUIRE_SOURCES();
    Faults faults(testing_support::product({.name = "faults",
                                            .m = 256,
                                            .n = 384,
                                            .k = 192,
                                            .bm = 256,
                                            .bn = 128,
                                            .in = "f32",
                                            .out = "f32",
                                            .tolerance = 2e-3}),
                  cuda::schedule::Choice{.tile = {256, 128}});
    const std::string& source = faults.source;
    const std::size_t producer = source.find("registers_decrease"),
                      consumer = source.find("registers_increase");
    faults.leave_out("no wait for an empty slot", "mbarrier_wait", producer);
    faults.leave_out("no wait for a full slot", "mbarrier_wait", consumer);
    faults.leave_out("no wait for products", "wgmma_wait<0>", consumer);
    faults.plant("all warpgroups read the same rows", " + group * 8192)", ")", consumer);
    faults.expect_all_seen();
}

TEST(CudaScheduled, EveryFaultPlantedInPairsIsSeen) {
    TW_REQUIRE_SOURCES();
    Faults faults(testing_support::product({"faults", 256, 384, 768, 128, 192}),
                  cuda::schedule::Choice{.tile = {128, 192, cuda::schedule::Pairs::rows}});
    const std::string& source = faults.source;
    const std::size_t producer = source.find("registers_decrease"),
                      consumer = source.find("registers_increase");
    faults.leave_out("no wait for an empty slot", "mbarrier_wait", producer);
    faults.plant("one block releases a slot", ", 16);", ", 8);", 0);
    faults.plant("a slot is released in one block only", "lane < 2", "lane < 1", consumer);
    faults.plant("a copy goes to one block only", ", 3, ", ", 1, ", producer);
    faults.plant("both load the same half", "rank * ", "0 * ", producer);
    faults.expect_all_seen();
}

TEST(CudaScheduled, EveryFaultPlantedInChainsIsSeen) {
    TW_REQUIRE_SOURCES();
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

TEST(CudaScheduled, EveryBarrierLeftOutOfOtherKernelsIsSeen) {
    TW_REQUIRE_SOURCES();
    const CudaProgram programs[] = {
        // A ring of copies.
        testing_support::matmul_program("f16", "f32", 64, 64, 32, 6, 1e-3),
        // Lines that are filled, written and sorted.
        {"sorted",
         R"(
func @sorted(%x: ref<i32[2, 320]>, %z: ref<i32[2, 320]>) grid [] num_warps 4 {
  %o = constant 0 : i64
  %a = load %x[%o : 2, %o : 320] : i32[2, 320]
  %p = sort %a axis 1 count 320 : i32[2, 320]
  store %z[%o : 2, %o : 320], %p
  yield
}
)",
         {{2, 320}, {2, 320}}},
        // Parts of a reduction, and totals of a scan.
        {"parts",
         R"(
func @parts(%x: ref<i32[512]>, %z: ref<i32[512]>) grid [] num_warps 4 {
  %o = constant 0 : i64
  %a = load %x[%o : 512] : i32[512]
  %m = reduce %a sum axis 0 : i32
  %w = broadcast %m : i32[512]
  %s = scan %a sum axis 0 : i32[512]
  %d = sub %s, %w : i32[512]
  store %z[%o : 512], %d
  yield
}
)",
         {{512}, {512}}}};
    for (const CudaProgram& program : programs) {
        Faults faults(program, std::nullopt, true);
        const std::string& source = faults.source;
        std::string line;
        for (const char* words : {"__syncthreads();", "cp_async_wait<"}) {
            for (std::size_t at = source.find(words); at != std::string::npos;
                 at = source.find(words, at + 1)) {
                const std::size_t begin = source.rfind('\n', at) + 1,
                                  next = source.find('\n', at) + 1;
                line = fmt::format("{}: {}", program.name,
                                   source.substr(begin, source.find('\n', next) - begin));
                faults.leave_out(line.c_str(), words, at);
            }
        }
        faults.expect_all_seen();
    }
}

}  // namespace
}  // namespace tilewright
