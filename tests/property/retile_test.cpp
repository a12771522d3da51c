// Retiling does not change what a kernel computes, for any block, tile and schedule.
#include "ir/passes/retile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/interpreter.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "tests/support/random_program.h"
#include "tests/support/throws.h"

namespace tilewright::testing {
namespace {

using ir::RetileOptions;
using ::testing::HasSubstr;

std::int64_t largest_tile(const ir::Function& f) {
    std::int64_t result = 0;
    ir::walk(f.body, [&](const ir::Instruction& i) {
        for (ir::Value value : i.results) result = std::max(result, f.type(value).shape.size());
    });
    return result;
}

// Retiles, checks sizes and results against the original, and returns the report. What is refused
// must be unchanged.
ir::RetileReport check(const ir::Function& f, const RetileOptions& options, std::uint64_t seed) {
    ir::Function tiled = f;
    const ir::RetileReport report = ir::try_retile(tiled, options);
    if (!report.refusal.empty()) {
        EXPECT_EQ(ir::print(tiled), ir::print(f));
        return report;
    }
    ir::verify(tiled);
    EXPECT_LE(largest_tile(tiled), options.max_tile_elements);
    for (bool optimised : {false, true}) {
        if (optimised) ir::optimise(tiled);
        RandomArguments expected(f, seed), got(f, seed);
        cpu::interpret(f, expected.arguments());
        ir::Arguments arguments = got.arguments();
        arguments.grid = tiled.grid;
        cpu::interpret(tiled, arguments);
        EXPECT_EQ(first_difference(f, expected, got), -1)
            << "seed " << seed << ", optimised " << optimised << "\n"
            << ir::print(f) << "\n"
            << ir::print(tiled);
    }
    return report;
}

// Checks both schedules with several tiles.
void check_all(std::string_view text) {
    const ir::Function f = ir::parse(text);
    for (auto schedule : {RetileOptions::Schedule::loops, RetileOptions::Schedule::grid}) {
        for (auto [elements, rows, columns, chunk] :
             {std::tuple{64, 8, 8, 8}, {40, 5, 7, 3}, {100, 16, 4, 64}, {17, 2, 8, 5}}) {
            const RetileOptions options{elements, rows, columns, chunk, schedule};
            EXPECT_TRUE(check(f, options, 1).changed());
        }
    }
}

std::string refusal(std::string_view text, std::int64_t elements = 64) {
    ir::Function f = ir::parse(text);
    const std::string before = ir::print(f);
    const RetileOptions options{elements, 8, 8, 8, RetileOptions::Schedule::loops};
    const ir::RetileReport report = ir::try_retile(f, options);
    EXPECT_EQ(ir::print(f), before);
    EXPECT_FALSE(report.changed());
    EXPECT_THAT([&] { ir::retile(f, options); }, throws("[retile] " + report.refusal));
    return report.refusal;
}

TEST(Retile, LeavesWhatFitsAlone) {
    ir::Function f = ir::parse(
        "func @f(%x: ref<i32[8, 8]>) {\n  %z = constant 0 : i64\n  %t = load %x[%z : 8, %z : 8] : "
        "i32[8, 8]\n  store %x[%z : 8, %z : 8], %t\n  yield\n}\n");
    const std::string before = ir::print(f);
    EXPECT_FALSE(ir::retile(f, {64, 8, 8, 8, RetileOptions::Schedule::loops}).changed());
    EXPECT_EQ(ir::print(f), before);
}

TEST(Retile, MatmulWithFusedActivation) {
    check_all(
        R"(func @matmul(%x: ref<i32[26, 37]>, %y: ref<i32[37, 22]>, %z: ref<i32[26, 22]>) grid [2] {
  %0 = constant 0 : i64
  %h = constant 13 : i64
  %p = program_id axis 0 : i64
  %r = mul %p, %h : i64
  %a = load %x[%r : 13, %0 : 37] : i32[13, 37]
  %b = load %y[%0 : 37, %0 : 22] : i32[37, 22]
  %s = constant 3 : i32[13, 37]
  %as = mul %a, %s : i32[13, 37]
  %d = dot %as, %b : i32[13, 22]
  %zero = constant 0 : i32[13, 22]
  %relu = max %d, %zero : i32[13, 22]
  store %z[%r : 13, %0 : 22], %relu
  yield
}
)");
}

TEST(Retile, TransposedAndBatchedDots) {
    check_all(
        R"(func @f(%x: ref<i32[2, 37, 13]>, %y: ref<i32[2, 22, 37]>, %c: ref<i32[2, 13, 22]>, %z: ref<i32[2, 13, 22]>) {
  %0 = constant 0 : i64
  %a = load %x[%0 : 2, %0 : 37, %0 : 13] : i32[2, 37, 13]
  %b = load %y[%0 : 2, %0 : 22, %0 : 37] : i32[2, 22, 37]
  %acc = load %c[%0 : 2, %0 : 13, %0 : 22] : i32[2, 13, 22]
  %d = dot %a, %b, %acc transpose_a transpose_b : i32[2, 13, 22]
  store %z[%0 : 2, %0 : 13, %0 : 22], %d
  yield
}
)");
}

TEST(Retile, ReductionsOverLongRows) {
    for (const std::string kind : {"sum", "prod", "max", "min", "argmax", "argmin"}) {
        const std::string result = kind.starts_with("arg") ? "i32" : "i16";
        check_all(
            "func @f(%x: ref<i16[7, 131]>, %m: ref<" + result +
            "[7]>, %y: ref<i32[7, 131]>) {\n"
            "  %0 = constant 0 : i64\n  %t = load %x[%0 : 7, %0 : 131] : i16[7, 131]\n"
            "  %r = reduce %t " +
            kind + " axis 1 : " + result +
            "[7]\n"
            "  store %m[%0 : 7], %r\n"
            "  %c = cast %r : i32[7]\n" +
            (result == "i32" ? "  %w = expand_dims %r axis 1 : i32[7, 1]\n"
                             : "  %w = expand_dims %c axis 1 : i32[7, 1]\n") +
            "  %b = broadcast %w : i32[7, 131]\n  %u = cast %t : i32[7, 131]\n"
            "  %s = sub %u, %b : i32[7, 131]\n  store %y[%0 : 7, %0 : 131], %s\n  yield\n}\n");
    }
}

TEST(Retile, NarrowFloatSumsAreCarriedInF32AndNanWinsArgmax) {
    check_all(R"(func @f(%x: ref<f16[3, 90]>, %y: ref<f16[3]>, %i: ref<i32[3]>) {
  %0 = constant 0 : i64
  %t = load %x[%0 : 3, %0 : 90] : f16[3, 90]
  %r = reduce %t sum axis 1 : f16[3]
  store %y[%0 : 3], %r
  %a = reduce %t argmax axis 1 : i32[3]
  store %i[%0 : 3], %a
  yield
}
)");
}

TEST(Retile, ShapeOpsIotaAndMasks) {
    check_all(
        R"(func @f(%x: ref<i32[12, 30]>, %y: ref<i32[30, 12]>, %z: ref<i32[6, 2, 30]>, %n: i32) {
  %0 = constant 0 : i64
  %r = iota axis 0 : i32[12, 30]
  %c = iota axis 1 : i32[12, 30]
  %m = lt %c, %r : bool[12, 30]
  %o = constant 7 : i32
  %t = load %x[%0 : 12, %0 : 30] mask %m other %o : i32[12, 30]
  %row = iota axis 0 : i32[12, 1]
  %idx = broadcast %n : i32[12, 1]
  %ro = add %row, %idx : i32[12, 1]
  %co = iota axis 1 : u8[1, 30]
  %g = load %x[tile %ro, tile %co] : i32[12, 30]
  %s = add %t, %g : i32[12, 30]
  %tr = transpose %s permutation [1, 0] : i32[30, 12]
  store %y[%0 : 30, %0 : 12], %tr
  yield
}
)");
}

TEST(Retile, SplitsAndJoinsAxes) {
    check_all(R"(func @f(%x: ref<i32[24, 10]>, %z: ref<i32[6, 4, 10]>, %w: ref<i32[240]>) {
  %0 = constant 0 : i64
  %t = load %x[%0 : 24, %0 : 10] : i32[24, 10]
  %s = reshape %t : i32[6, 4, 10]
  store %z[%0 : 6, %0 : 4, %0 : 10], %s
  yield
}
)");
}

TEST(Retile, InPlaceUpdatesAndSlices) {
    check_all(R"(func @f(%x: ref<i32[20, 30]>, %y: ref<i32[9, 12]>) {
  %0 = constant 0 : i64
  %t = load %x[%0 : 20, %0 : 30] : i32[20, 30]
  %u = slice %t starts [1, 2] sizes [9, 12] strides [2, 2] : i32[9, 12]
  store %y[%0 : 9, %0 : 12], %u
  %one = constant 1 : i32[20, 30]
  %v = add %t, %one : i32[20, 30]
  store %x[%0 : 20, %0 : 30], %v
  yield
}
)");
}

TEST(Retile, LoopCarriesReachAFixpoint) {
    // b feeds a in the next iteration: what a needs reaches b.
    check_all(R"(func @f(%x: ref<i32[5, 16, 20]>, %y: ref<i32[16, 20]>, %z: ref<i32[16, 20]>) {
  %0 = constant 0 : i64
  %1 = constant 1 : i64
  %5 = constant 5 : i64
  %init = constant 1 : i32[16, 20]
  %a, %b, %n = for_loop %i = %0, %5, %1 carry (%ca = %init, %cb = %init, %cn = %0) : i32[16, 20], i32[16, 20], i64 {
    %t = load %x[%i, %0 : 16, %0 : 20] : i32[16, 20]
    %k = cast %cn : i32
    %kb = broadcast %k : i32[16, 20]
    %na = add %ca, %cb : i32[16, 20]
    %m = mul %cb, %t : i32[16, 20]
    %nb = add %m, %kb : i32[16, 20]
    %nn = add %cn, %i : i64
    yield %na, %nb, %nn
  }
  store %y[%0 : 16, %0 : 20], %a
  store %z[%0 : 16, %0 : 20], %b
  yield
}
)");
}

TEST(Retile, StoresInsideLoopsAndBranches) {
    check_all(R"(func @f(%x: ref<i32[5, 16, 20]>, %y: ref<i32[5, 16, 20]>, %c: bool) {
  %0 = constant 0 : i64
  %1 = constant 1 : i64
  %5 = constant 5 : i64
  %w = load %x[%0, %0 : 16, %0 : 20] : i32[16, 20]
  for_loop %i = %0, %5, %1 {
    %t = load %x[%i, %0 : 16, %0 : 20] : i32[16, 20]
    %r = if_else %c : i32[16, 20] {
      %s = add %t, %w : i32[16, 20]
      yield %s
    } else {
      yield %t
    }
    if_else %c {
      store %y[%i, %0 : 16, %0 : 20], %r
      yield
    } else {
      %d = sub %w, %t : i32[16, 20]
      store %y[%i, %0 : 16, %0 : 20], %d
      yield
    }
    yield
  }
  yield
}
)");
}

TEST(Retile, SmallResultsOfLargeBlocks) {
    check_all(R"(func @f(%x: ref<i32[16, 20]>, %y: ref<i32>, %z: ref<i32>) {
  %0 = constant 0 : i64
  %t = load %x[%0 : 16, %0 : 20] : i32[16, 20]
  %r = reduce %t sum axis 1 : i32[16]
  %s = reduce %r max axis 0 : i32
  store %y[], %s
  %old = atomic_add %z[], %s : i32
  yield
}
)");
}

TEST(Retile, ScalarsOfLargeBlocksSteerControlFlow) {
    check_all(R"(func @f(%x: ref<i32[16, 20]>, %y: ref<i32[16, 20]>, %s: ref<i64>) {
  %0 = constant 0 : i64
  %1 = constant 1 : i64
  %t = load %x[%0 : 16, %0 : 20] : i32[16, 20]
  store %y[%0 : 16, %0 : 20], %t
  %r = reduce %t max axis 1 : i32[16]
  %m = reduce %r max axis 0 : i32
  %p = cast %m : i64
  %7 = constant 7 : i64
  %n = clamp %p, %0, %7 : i64
  %e = for_loop %i = %0, %n, %1 carry (%c = %n) : i64 {
    store %s[], %c
    %u = load %x[%0 : 16, %0 : 20] : i32[16, 20]
    %v = reduce %u sum axis 0 : i32[20]
    %w = reduce %v sum axis 0 : i32
    %k = cast %w : i64
    yield %k
  }
  store %s[], %e
  yield
}
)");
}

TEST(Retile, NothingBesideTheBlockIsWritten) {
    check_all(R"(func @f(%x: ref<i32[40, 40]>, %y: ref<i32[40, 40]>) {
  %3 = constant 3 : i64
  %t = load %x[%3 : 19, %3 : 26] : i32[19, 26]
  %u = add %t, %t : i32[19, 26]
  store %y[%3 : 19, %3 : 26], %u
  yield
}
)");
}

TEST(Retile, GridScheduleAddsAxes) {
    const ir::Function f = ir::parse(
        "func @f(%x: ref<i32[20, 30]>, %y: ref<i32[20, 30]>) grid [1] {\n  %0 = constant 0 : i64\n"
        "  %t = load %x[%0 : 20, %0 : 30] : i32[20, 30]\n  %u = add %t, %t : i32[20, 30]\n"
        "  store %y[%0 : 20, %0 : 30], %u\n  yield\n}\n");
    const auto report = check(f, {64, 8, 8, 8, RetileOptions::Schedule::grid}, 3);
    EXPECT_EQ(report.grid_axes, 2);
    EXPECT_EQ(report.stores, 1);
    EXPECT_EQ(check(f, {64, 8, 8, 8, RetileOptions::Schedule::loops}, 3).grid_axes, 0);
}

TEST(Retile, RefusesWithOpAndReason) {
    const std::string head =
        "func @f(%x: ref<i32[16, 16]>, %y: ref<i32[16, 16]>) {\n  %0 = constant 0 : i64\n  %one = "
        "constant 1 : i64\n  %t = load %x[%0 : 16, %0 : 16] : i32[16, 16]\n";
    const std::string store = "  store %y[%0 : 16, %0 : 16], %r\n  yield\n}\n";
    EXPECT_THAT(refusal(head +
                        "  %s = scan %t sum axis 0 : i32[16, 16]\n  %r = scan %s sum axis 1 : "
                        "i32[16, 16]\n" +
                        store),
                HasSubstr("expected a block that can be cut into tiles of at most 64 elements "
                          "but got scan of i32[16, 16]: a scan needs its axis whole"));
    EXPECT_THAT(refusal(head +
                        "  %s = sort %t axis 0 count 16 : i32[16, 16]\n"
                        "  %r = sort %s axis 1 count 16 descending : i32[16, 16]\n" +
                        store),
                HasSubstr("but got sort of i32[16, 16]: sorting needs its axis whole"));
    EXPECT_THAT(
        refusal(head + "  store %x[%0 : 16, %0 : 16], %t\n  %r = add %t, %t : i32[16, 16]\n" +
                store),
        HasSubstr("load of i32[16, 16]: its Ref is written between"));
    EXPECT_THAT(
        refusal(head + "  %r = transpose %t permutation [1, 0] : i32[16, 16]\n  store %x[%0 : "
                       "16, %0 : 16], %r\n  yield\n}\n"),
        HasSubstr("a store in parts writes what a later part would read"));
    EXPECT_THAT(refusal(head + "  debug_print %t text \"{}\"\n  yield\n}\n"),
                HasSubstr("load of i32[16, 16]: all of it is needed at once"));
    EXPECT_THAT(refusal(head + "  %r = atomic_add %y[%0 : 16, %0 : 16], %t : i32[16, 16]\n  store "
                               "%x[%0 : 16, %0 : 16], %r\n  yield\n}\n"),
                HasSubstr("no use of what atomic_add returns"));
    EXPECT_THAT(
        refusal(head +
                    "  %d = dot %t, %t transpose_b : i32[16, 16]\n  %m = reduce %d max axis "
                    "1 : i32[16]\n  %w = expand_dims %m axis 1 : i32[16, 1]\n  %b = "
                    "broadcast %w : i32[16, 16]\n  %p = sub %d, %b : i32[16, 16]\n  %r = "
                    "dot %p, %t : i32[16, 16]\n" +
                    store,
                32),
        HasSubstr("a dot contracts what a reduction over another dot gives"));
    EXPECT_THAT(refusal(head +
                            "  %c = reshape %t : i32[256]\n  %z = iota axis 0 : i32[256]\n  %q = "
                            "add %c, %z : i32[256]\n  %r = reshape %q : i32[16, 16]\n" +
                            store,
                        7),
                HasSubstr("reshape of"));
    // A later iteration of the loop would read what an earlier one wrote.
    EXPECT_THAT(
        refusal(head + "  %u = constant 1 : i32\n  for_loop %i = %0, %one, %one {\n"
                       "    %r = add %t, %t : i32[16, 16]\n    store %y[%0 : 16, %0 : 16], %r\n"
                       "    store %x[%i, %0], %u\n    yield\n  }\n  yield\n}\n"),
        HasSubstr("its Ref is written between"));
    // A loop's bound comes from a large block that is read after the array changed.
    EXPECT_THAT(
        refusal(head + "  %u = constant 1 : i32\n  store %x[%0, %0], %u\n"
                       "  %v = reduce %t max axis 1 : i32[16]\n  %m = reduce %v max axis 0 : i32\n"
                       "  %n = cast %m : i64\n  for_loop %i = %0, %n, %one {\n"
                       "    store %y[%0, %i], %m\n    yield\n  }\n  yield\n}\n"),
        HasSubstr("its Ref is written between"));
}

// Small tiles on random programs: most are refused, the others must agree.
TEST(Retile, RandomProgramsKeepTheirMeaning) {
    int rewritten = 0;
    for (std::uint64_t seed = 0; seed < 600; ++seed) {
        RandomProgramOptions kind;
        kind.exact = true;
        kind.instructions = 12;
        const ir::Function f = random_program(seed, kind);
        const auto schedule =
            seed % 2 == 0 ? RetileOptions::Schedule::loops : RetileOptions::Schedule::grid;
        const std::int64_t elements = 4 + static_cast<std::int64_t>(seed % 5) * 4;
        rewritten += check(f, {elements, 2, 3, 2, schedule}, seed).changed();
        if (HasFailure()) return;
    }
    EXPECT_GT(rewritten, 100);
}

}  // namespace
}  // namespace tilewright::testing
