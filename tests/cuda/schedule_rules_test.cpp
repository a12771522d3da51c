// The rules of the scheduled form: each broken once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

TEST(ScheduleRules, OfProductsAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V1", Level::laid_out, ": bf16[128, 256] @l0", ": bf16[128, 256]"},
        {"V2", Level::laid_out, "lane [2, 4, 256", "lane [4, 2, 256"},
        {"V3", Level::selected, "groups [2, 1]", "groups [1, 1]"},
        {"V4", Level::staged, "rows 128 columns 64", "rows 128 columns 32"},
        {"V5", Level::staged, "box [64, 64]", "box [64, 32]"},
        {"V5", Level::staged, "box [64, 64]", "box [512, 64]"},
        {"V5", Level::staged, "@y dtype @bf16 extents [4096, 4096] vectors tensor",
         "@y dtype @bf16 extents [4096, 4096] vectors"},
        {"V6", Level::specialised, "acquire", "await"},
        {"V6", Level::specialised, "await", "acquire"},
        {"V7", Level::specialised, "", ""},
        {"V8", Level::staged, "bytes 49152", "bytes 49136"},
        {"V8", Level::staged, "empty_arrivals 8", "empty_arrivals 7"},
        {"V9", Level::specialised, "", ""},
        {"V10", Level::waiting, "pending 0", "pending 1"},
        {"V11", Level::waiting, "wgmma_fence", "wgmma_commit"},
        {"V12", Level::placed, "at 65536", "at 65024"},
        {"V12", Level::placed, "at 65536", "at 64512"},
        {"V12", Level::placed, "full 229376", "full 229368"},
        {"V13", Level::specialised, "registers 232", "registers 240"},
        {"V14", Level::synchronised, "fence_async", "commit_stores"},
        {"V14", Level::synchronised, "group_sync", "commit_stores"},
        {"V14", Level::synchronised, "wait_stores pending 1", "commit_stores"},
        {"V14", Level::synchronised, "fence_async\n        group_sync", "fence_async"},
        {"V15", Level::synchronised, "role of @producer {", "role of @producer {\n    group_sync"},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        const std::string rule = breach.rule;
        const auto first_count = [&] {
            const std::size_t first = text.find(" = count"), begin = text.rfind('%', first);
            return text.substr(begin, first - begin);
        };
        if (rule == "V7") {
            // The count that the loop carries is replaced by the first one inside.
            const std::string count = first_count();
            const std::size_t at = text.find("acquire %") + 8;
            text.replace(at, text.find(' ', at) - at, count);
            return;
        }
        if (rule == "V9") {
            // The consumer starts from the producer's count.
            const std::string count = first_count();
            const std::size_t consumer = text.find("role of @consumer");
            const std::size_t programs = text.find("programs %", consumer);
            const std::size_t second = text.find(", %", programs);
            text.replace(second + 2, text.find(' ', second + 2) - second - 2, count);
            return;
        }
        if (rule == "V10") {
            // With two slots, the wait inside the iteration is the one that matters.
            ir::Function function = kernel_of(kMatmul);
            function.hints.num_stages = 2;
            text = print(schedule(function, dense_target(function), breach.level));
        }
        apply(breach, text);
    };
    expect_all_broken(
        breaches, [](Level level) { return program_of(kMatmul, level); }, change);
}

TEST(ScheduleRules, OfFragmentsAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V2", Level::laid_out, "shape [256, 128] reg [128, 1", "shape [256, 128] reg [1, 128"},
        {"V3", Level::selected, "groups [1, 2]", "groups [2, 1]"},
        {"V3", Level::selected, "registers transpose_b swapped", "registers transpose_b"},
        {"V4", Level::staged, "rows 32 columns 128", "rows 32 columns 64"},
        {"V4", Level::staged, "registers transpose_b", "registers"},
        {"V6", Level::specialised, "      await ", "      release "},
        {"V10", Level::waiting, "pending 0", "pending 1"},
        {"V16", Level::laid_out, " packed", ""},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        apply(breach, text);
        if (std::string(breach.rule) != "V10") return;
        // The slot is released in time, so that what remains is that fragments are read anew.
        const std::size_t release = text.find("channel @operands", text.find("release %"));
        text.insert(release + std::string("channel @operands").size(), " back 1");
    };
    expect_all_broken(
        breaches, [](Level level) { return program_of(kTf32, level); }, change);
    std::string plain = print(program_of(kMatmul, Level::selected));
    const Breach swapped = {"V3", Level::selected, "conditional", "conditional swapped"};
    apply(swapped, plain);
    expect_broken(plain, swapped);
}

/// A product and what is added to it, of which TMA loads panels ahead.
Program with_residual(Level level) {
    testing_support::Product options = kMatmul;
    options.rest = true;
    options.epilogue = testing_support::with_shapes(
        "%fr = cast %rest : f32TILE\n%s = add %d, %fr : f32TILE\n%q = cast %s : bf16TILE", 256,
        256);
    return program_of(options, level);
}

TEST(ScheduleRules, OfLoadsAheadAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V4", Level::split, "@r_ahead2 dtype @bf16 rows 128", "@r_ahead2 dtype @bf16 rows 64"},
        {"V4", Level::split, "@r_ahead2 dtype @bf16", "@r_ahead2 dtype @f16"},
        {"V6", Level::split, "await %82 channel @ahead1", "acquire %82 channel @ahead1"},
        {"V8", Level::split, "slots 2 bytes 16384 empty_arrivals 8",
         "slots 2 bytes 16384 empty_arrivals 4"},
    };
    expect_all_broken(breaches, with_residual,
                      [](const Breach& breach, std::string& text) { apply(breach, text); });
}

TEST(ScheduleRules, LoadsAreNotAheadWhereThreadsCopyOperands) {
    const auto is_ahead = [](int copy_bytes) {
        testing_support::Product options = kMatmul;
        options.rest = true;
        options.epilogue = testing_support::with_shapes(
            "%fr = cast %rest : f32TILE\n%s = add %d, %fr : f32TILE\n%q = cast %s : bf16TILE", 256,
            256);
        const ir::Function function = kernel_of(options);
        Target target = dense_target(function);
        if (copy_bytes > 0) target.facts[0] = {false, false, false, copy_bytes};
        return print(schedule(function, target)).find("read_panel") != std::string::npos;
    };
    EXPECT_TRUE(is_ahead(0));
    // The producer would wait for an epilogue that waits for its last copies.
    EXPECT_FALSE(is_ahead(4));
}

TEST(ScheduleRules, LoadsAreNotAheadWhereTheyTakeSlotsThatKeepProductsInFlight) {
    testing_support::Product options = kMatmul;
    options.rest = true;
    options.epilogue = testing_support::with_shapes(
        "%fr = cast %rest : f32TILE\n%s = add %d, %fr : f32TILE\n%p = cast %s : bf16TILE\n"
        "store %w[%i : 256, %j : 256], %p\n%e = tanh %s : f32TILE\n%q = cast %e : bf16TILE",
        256, 256);
    std::string text = testing_support::product(options).text;
    const std::string end = ") grid";
    text.replace(text.find(end), end.size(),
                 fmt::format(", %w: ref<bf16[{}, {}]>) grid", options.m, options.n));
    const ir::Function function = ir::parse(text);
    const std::string form = print(schedule(function, dense_target(function)));
    EXPECT_EQ(form.find("read_panel"), std::string::npos);
    EXPECT_NE(form.find("slots 3"), std::string::npos);
    EXPECT_NE(form.find("pending 1"), std::string::npos);
}

TEST(ScheduleRules, OfChainsAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V4", Level::staged, "@value_tile2 dtype @bf16 rows 128",
         "@value_tile2 dtype @bf16 rows 64"},
        {"V6", Level::specialised, "      await ", "      release "},
        {"V10", Level::waiting, "pending 1 finished", "pending 2 finished"},
        {"V10", Level::waiting, "packed = wgmma_wait", ""},
        {"V11", Level::waiting, "wgmma_fence %", "wgmma_commit %"},
        {"V16", Level::laid_out, " packed", ""},
        {"V17", Level::selected, "overwrite transpose_b", "transpose_b"},
        {"V21", Level::laid_out, "fma %l2, %f2, %row2", "fma %row2, %f2, %l2"},
    };
    const auto change = [](const Breach& breach, std::string& text) {
        if (std::string(breach.from).starts_with("packed = ")) {
            // The second product's wait in an iteration leaves one group unfinished.
            const std::size_t iteration = text.find("pending 1 finished");
            text[text.find("pending 0 finished", iteration) + 8] = '1';
            return;
        }
        apply(breach, text);
    };
    expect_all_broken(breaches, attention_of, change);
}

TEST(ScheduleRules, OfPingPongAreCheckedInProgramsThatBreakThem) {
    for (const char* removed : {"issue_begin\n", "issue_end\n", "issue_end first\n"}) {
        SCOPED_TRACE(removed);
        std::string text = print(gradients_of(Level::waiting));
        const std::size_t at = text.find(removed);
        ASSERT_NE(at, std::string::npos) << text;
        expect_broken(text.erase(at, std::string(removed).size()),
                      {"V20", Level::waiting, removed, ""});
    }
}

TEST(ScheduleRules, OfTurnsAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V20", Level::synchronised, "issue_end first turn 0", "group_sync"},
        {"V37", Level::synchronised, "by 64 channel @operands first",
         "by 63 channel @operands first"},
    };
    expect_all_broken(
        breaches, [](Level level) { return program_of(kMatmul, kAlternating, level); }, apply);
}

TEST(ScheduleRules, OfCopiesByThreadsAreCheckedInProgramsThatBreakThem) {
    const Breach breaches[] = {
        {"V6", Level::specialised, "publish_copies", "publish"},
        {"V6", Level::specialised, "acquire", "await"},
        {"V8", Level::specialised, "copied 49152", "copied 49168"},
        {"V18", Level::specialised, "lag 2", "lag 3"},
        {"V18", Level::specialised, "finish_copies", "publish"},
        {"V18", Level::specialised, "copied 49152", "copied 0"},
    };
    expect_all_broken(
        breaches, [](Level level) { return copied_program(8, level); }, apply);
}

}  // namespace
}  // namespace tilewright::cuda::schedule
