// The scheduled form of chained products, as in attention: the result of each pass.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/schedule.h"
#include "tests/cuda/schedule_support.h"

namespace tilewright::cuda::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Schedule, ChainedProductsTakeTheirLeftOperandFromRegisters) {
    const std::string text = print(attention_of(Level::selected));
    EXPECT_THAT(text, HasSubstr("= fresh : f32[128, 128]"));
    EXPECT_THAT(text, HasSubstr("overwrite transpose_b"));
    EXPECT_THAT(text, HasSubstr(": bf16[128, 128] packed"));
    EXPECT_THAT(text, HasSubstr(" registers : f32[128, 128]"));
}

TEST(Schedule, MasksAreGuardedByTheEndsOfPositions) {
    const std::string text = print(attention_of(Level::laid_out));
    EXPECT_THAT(text, HasSubstr(" guarded : f32[128, 128]"));
    EXPECT_THAT(text, HasSubstr("group_start axis 0 step 64"));
}

TEST(Schedule, KeysAndValuesHaveRingsAndQueriesOneSlot) {
    const Program program = attention_of(Level::staged);
    ASSERT_EQ(program.channels.size(), 3U);
    EXPECT_EQ(program.channels[0].slots, 1);
    EXPECT_EQ(program.channels[1].slots, 2);
    EXPECT_EQ(program.channels[2].slots, 2);
}

TEST(Schedule, OfUnequalProgramsOnlyTheLastHaveABlockEach) {
    const Program program = attention_of();
    EXPECT_TRUE(program.order.unequal);
    EXPECT_FALSE(program.order.irregular);
    EXPECT_EQ(program.order.inner, std::vector<int>{0});
    const Generated generated = print_cuda(program);
    EXPECT_FALSE(generated.is_persistent);
    EXPECT_TRUE(generated.has_rows);
}

TEST(Schedule, ProgramsWhoseLengthIsLoadedHaveABlockEach) {
    std::string text =
        testing_support::attention({"lengths", 16, 4096, 4096, 128, 128, 128, true}).text;
    const std::string end = "%end = min %reach, %all : i64\n";
    const std::size_t at = text.find(end);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, end.size(),
                 "%id = load %ids[%h] : i32\n%given = cast %id : i64\n"
                 "%end = min %reach, %given : i64\n");
    const ir::Function function = ir::parse(text);
    const Program program = schedule(function, dense_target(function));
    EXPECT_TRUE(program.order.irregular);
    EXPECT_EQ(print(parse(print(program))), print(program));
    const Generated generated = print_cuda(program);
    EXPECT_FALSE(generated.is_persistent);
    EXPECT_FALSE(generated.has_rows);
}

TEST(Schedule, WarpgroupsAlternateWhereSumsHave128Columns) {
    const auto text = [](int dim, bool adds) {
        const ir::Function function =
            ir::parse(testing_support::gradients_of_keys(512, 512, dim, adds).text);
        return print(schedule(function, dense_target(function)));
    };
    const std::string issues = text(128, false);
    const auto at = [&](const char* word) { return issues.find(word); };
    EXPECT_LT(at("issue_end first"), issues.find("programs %", at("role of @consumer")));
    EXPECT_LT(at("issue_begin"), at("wgmma_fence"));
    // Both products are issued, and neither is waited for.
    EXPECT_LT(issues.rfind("wgmma_commit", issues.rfind("issue_end")), issues.rfind("issue_end"));
    EXPECT_LT(issues.rfind("issue_end"), at("wgmma_wait"));
    EXPECT_THAT(text(64, false), Not(HasSubstr("issue_")));
    EXPECT_THAT(text(128, true), Not(HasSubstr("issue_")));
}

TEST(Schedule, SumsOfRowsStayInPartsUntilTheLoopIsDone) {
    const std::string text = print(attention_of(Level::laid_out));
    EXPECT_THAT(text, HasSubstr("reduce %p2 sum axis 1 partial"));
    EXPECT_LT(text.rfind("yield %n2"), text.find("join_lanes"));
    EXPECT_LT(text.find("join_lanes"), text.find("store"));
    // The second of two loops starts from the sum of the first.
    const ir::Function split = ir::parse(
        testing_support::attention({"split", 16, 4096, 4096, 128, 128, 128, true, true}).text);
    const std::string both = print(schedule(split, dense_target(split), Level::laid_out));
    EXPECT_NE(both.find("axis 1 partial"), std::string::npos);
    EXPECT_EQ(both.find("axis 1 partial"), both.rfind("axis 1 partial"));
}

TEST(Schedule, SumsStayInPartsOnlyIfTheyAreAddedToWhatTheLoopCarries) {
    const std::string attention =
        testing_support::attention({"one loop", 16, 4096, 4096, 128, 128, 128}).text;
    const std::regex sum(R"(%ln(\w+) = fma %l\w+, %f\w+, (%row\w+) : (\S+))");
    const auto with = [&](const char* replacement) {
        const ir::Function function = ir::parse(std::regex_replace(attention, sum, replacement));
        return print(schedule(function, dense_target(function), Level::laid_out));
    };
    EXPECT_THAT(with("%ln$1 = add %l$1, $2 : $3"), HasSubstr("axis 1 partial"));
    EXPECT_THAT(with("%ln$1 = add $2, %l$1 : $3"), HasSubstr("axis 1 partial"));
    EXPECT_THAT(with("%g$1 = exp2 %l$1 : $3\n%ln$1 = add $2, %g$1 : $3"),
                Not(HasSubstr("partial")));
}

TEST(Schedule, SoftCapsAreOneOperationWhereOnlyTheAbsoluteErrorMatters) {
    const auto text = [](const std::string& score) {
        const ir::Function function = ir::parse(
            testing_support::attention({.name = "capped", .block_k = 64, .score = score}).text);
        return print(schedule(function, dense_target(function), Level::laid_out));
    };
    const std::string cap = R"(%factorX = constant 0.5 : f32TILE
%aX = constant 4 : f32TILE
%offX = constant -2 : f32TILE
%yX = mul %sX, %factorX : f32TILE
%capX = logistic %yX approx : f32TILE
%tX = fma %capX, %aX, %offX : f32TILE
)";
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string changed = cap;
        const std::size_t at = changed.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return text(changed.replace(at, from.size(), to));
    };
    EXPECT_THAT(text(cap), HasSubstr("soft_cap"));
    EXPECT_THAT(text(cap), Not(HasSubstr("logistic")));
    // The function's relative error may matter; it is wanted to the last bit; it is read again.
    EXPECT_THAT(with("constant -2", "constant 0.5"), Not(HasSubstr("soft_cap")));
    EXPECT_THAT(with("logistic %yX approx", "logistic %yX"), Not(HasSubstr("soft_cap")));
    EXPECT_THAT(with("%tX = fma %capX, %aX, %offX : f32TILE\n",
                     "%againX = fma %capX, %aX, %offX : f32TILE\n"
                     "%tX = mul %againX, %capX : f32TILE\n"),
                Not(HasSubstr("soft_cap")));
}

TEST(Schedule, RefusesChainedDotsThatAllAddToACarry) {
    const ir::Function function = ir::parse(R"(
func @powers(%x: ref<bf16[128, 4096]>, %y: ref<bf16[4096, 64]>, %z: ref<bf16[128, 64]>) grid [] {
%zero = constant 0 : i64
%step = constant 64 : i64
%all = constant 4096 : i64
%none = constant 0 : f32[128, 64]
%ar, %br = for_loop %k = %zero, %all, %step carry (%a = %none, %b = %none) : f32[128, 64], f32[128, 64] {
%xs = load %x[%zero : 128, %k : 64] : bf16[128, 64]
%ys = load %y[%k : 64, %zero : 64] : bf16[64, 64]
%an = dot %xs, %ys, %a : f32[128, 64]
%w = cast %an : bf16[128, 64]
%bn = dot %w, %ys, %b : f32[128, 64]
yield %an, %bn
}
%q = cast %br : bf16[128, 64]
store %z[%zero : 128, %zero : 64], %q
yield
})");
    EXPECT_THAT(refusal(function, dense_target(function)),
                HasSubstr("none of them starts at zero"));
}

TEST(Schedule, TheSecondProductIsDelayedWhereRegistersSuffice) {
    const std::string text = print(attention_of(Level::waiting));
    EXPECT_THAT(text, HasSubstr("pending 1 finished"));
    const ir::Function wide =
        ir::parse(testing_support::attention({"wide", 1, 256, 512, 256, 128, 128, true}).text);
    EXPECT_THAT(refusal(wide, dense_target(wide)), HasSubstr("no room for two slots"));
}

/// The operations that order products, in the order of the consumers' code.
std::vector<std::string> order_of_products(const std::string& text) {
    std::vector<std::string> found;
    std::istringstream lines(text.substr(text.find("role of @consumer")));
    for (std::string line; std::getline(lines, line);) {
        for (const char* word : {"wgmma_wait pending", " wgmma %", "pending", "release"}) {
            const std::size_t at = line.find(word);
            if (at == std::string::npos) continue;
            const bool waits = std::string(word) == "pending";
            found.push_back(waits                            ? "wait " + line.substr(at + 8, 1)
                            : std::string(word) == "release" ? "release"
                                                             : "product");
            break;
        }
    }
    return found;
}

TEST(Schedule, ProductsOfALoopAreWaitedForWhereTheyAreWanted) {
    // S, dP; dV only needs S and runs while dS is computed. Slots are released at the end, those of
    // keys and values after the loop.
    const std::vector<std::string> expected{"product", "product", "wait 1", "product",
                                            "wait 1",  "product", "wait 0", "release",
                                            "release", "release", "release"};
    EXPECT_EQ(order_of_products(print(gradients_of(Level::waiting))), expected);
    const std::string text = print(gradients_of(Level::waiting));
    std::string early = text;
    early.replace(early.find("pending 1 finished"), 9, "pending 2");
    expect_broken(early, {"V10", Level::waiting, "", ""});
}

TEST(Schedule, ATransposedOperandThatIsComputedIsShared) {
    const std::string staged = print(gradients_of(Level::staged, true));
    EXPECT_THAT(staged, HasSubstr("transpose_a shared a @shared0 groups [1, 2] b @key_tile1 : "
                                  "f32[64, 128]"));
    const Breach breaches[] = {
        {"V3", Level::selected, "shared a @shared0 groups [1, 2]",
         "shared a @shared0 groups [1, 1]"},
        {"V2", Level::laid_out, "shared a @shared0 groups [1, 2]",
         "shared a @shared0 groups [1, 1]"},
        {"V4", Level::staged, "@shared0 dtype @bf16 rows 128", "@shared0 dtype @bf16 rows 64"},
        {"V14", Level::synchronised, "all_sync\n", ""},
        {"V14", Level::synchronised, "fence_async\n        all_sync\n", "all_sync\n"},
        {"V14", Level::synchronised, "fence_async\n        all_sync\n", "fence_async\n"},
        {"V15", Level::synchronised, "role of @producer {\n",
         "role of @producer {\n    all_sync\n"},
    };
    for (const Breach& breach : breaches) {
        SCOPED_TRACE(fmt::format("{}: {} -> {}", breach.rule, breach.from, breach.to));
        std::string text = print(gradients_of(breach.level, true));
        const std::size_t at = text.find(breach.from);
        ASSERT_NE(at, std::string::npos) << text;
        text.replace(at, std::string(breach.from).size(), breach.to);
        expect_broken(text, breach);
    }
    // It is written again while the product reads it.
    std::string text = print(gradients_of(Level::waiting, true));
    const std::size_t share = text.rfind('\n', text.find("share %")) + 1;
    const std::string line = text.substr(share, text.find('\n', share) + 1 - share);
    const std::size_t product = text.find("shared a @shared0");
    text.insert(text.rfind('\n', text.find("wgmma_wait", product)) + 1, line);
    expect_broken(text, {"V10", Level::waiting, "", ""});
}

TEST(Schedule, LinesThatLieInsideOfTheirArrayAreTestedOnce) {
    const std::string source = print_cuda(gradients_of(Level::synchronised, true)).source;
    EXPECT_THAT(source, HasSubstr("load_vector(ref_sums.data + at0"));
    EXPECT_THAT(source, HasSubstr("ptx::reduce_add_pair(ref_dq.data + at0"));
}

}  // namespace
}  // namespace tilewright::cuda::schedule
