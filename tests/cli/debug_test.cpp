// TILEWRIGHT_DEBUG=1: slow paths on the CPU are named with their reasons.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/cli/run_program.h"
#include "tilewright/attention.h"
#include "tilewright/error.h"
#include "tilewright/lang.h"
#include "tilewright/mask.h"
#include "tilewright/norm.h"
#include "tilewright/run.h"
#include "tilewright/system.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string log_of(const std::function<void()>& work) {
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    testing::internal::CaptureStderr();
    work();
    ::unsetenv("TILEWRIGHT_DEBUG");
    return testing::internal::GetCapturedStderr();
}

TEST(DebugLog, SaysNothingUnlessAsked) {
    testing::internal::CaptureStderr();
    const Tensor x = Tensor::zeros(f32, {4, 6}).transpose({1, 0});
    rms_norm(x, Tensor::zeros(f32, {4}));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(DebugLog, CopiesOfStridedInputs) {
    const Tensor x = Tensor::zeros(f32, {4, 6}).transpose({1, 0});
    EXPECT_THAT(log_of([&] { rms_norm(x, Tensor::zeros(f32, {4})); }),
                HasSubstr("[tilewright] norm: slow path: f32[6, 4] is copied, since its rows"));
    const Tensor q = Tensor::zeros(f32, {1, 2, 16, 8}).transpose({0, 1, 3, 2});
    EXPECT_THAT(log_of([&] { attention(q, q, q); }),
                HasSubstr("slow path: query is copied, since its last stride is 8"));
    const auto twice = kernel("twice", [](Ref in, Ref out) { out.store(in.load() * 2.0F); });
    const Call doubled = call(twice, {.out_type = {{f32, {6, 4}}}});
    EXPECT_THAT(log_of([&] { doubled(x); }),
                HasSubstr("[tilewright] twice: slow path: tiles of array 0 are copied element by "
                          "element, since its last stride is 6"));
}

TEST(DebugLog, CompiledKernelsAndElementLoops) {
    const auto quotients =
        kernel("quotients", [](Ref a, Ref b, Ref out) { out.store(a.load() / b.load()); });
    const Tensor a = Tensor::zeros(i8, {8, 8});
    const std::string text = log_of([&] { call(quotients, {.out_type = {{i8, {8, 8}}}})(a, a); });
    EXPECT_THAT(text, HasSubstr("[tilewright] quotients: compiled for `"));
    EXPECT_THAT(text, HasSubstr("slow path: div of i8 element by element, since `"));
    const auto pick =
        kernel("pick", [](Ref table, Ref at, Ref out) { out.store(table.at(at.load()).load()); });
    EXPECT_THAT(log_of([&] {
                    call(pick, {.out_type = {{f32, {8}}}})(Tensor::zeros(f32, {20}),
                                                           Tensor::zeros(i32, {8}));
                }),
                HasSubstr("element by element, since the indices are tiles or a mask chooses"));
}

TEST(DebugLog, ScansInSteps) {
    int line = 0;
    const auto largest = kernel("largest", [&](Ref x, Ref y) {
        y.store(associative_scan(
            [&](Tile a, Tile b) {
                line = __LINE__ + 1;
                return a + max(b, 0, true);
            },
            x.load(), 1));
    });
    const auto nine = kernel("nine", [&](Ref x, Ref y) {
        std::vector<Tile> values;
        for (int i = 0; i < 9; ++i) values.push_back(x.load() + i);
        y.store(associative_scan(
            [](const std::vector<Tile>& a, const std::vector<Tile>& b) {
                std::vector<Tile> sums;
                for (std::size_t i = 0; i < a.size(); ++i) sums.push_back(a[i] + b[i]);
                return sums;
            },
            values, 1)[8]);
    });
    const Tensor x = Tensor::zeros(f32, {4, 20});
    const auto log = [&](const auto& scan) {
        return log_of([&] { call(scan, {.out_type = {{f32, {4, 20}}}})(x); });
    };
    const std::string of_largest = log(largest);  // sets the line
    EXPECT_THAT(of_largest,
                HasSubstr(fmt::format("[tilewright] largest: slow path: associative_scan in 5 "
                                      "steps, since its function has `reduce`, which is not "
                                      "elementwise (at {}:{})",
                                      __FILE__, line)));
    EXPECT_THAT(log(nine),
                HasSubstr(fmt::format("[tilewright] nine: slow path: associative_scan in steps, "
                                      "since it combines 9 values, more than 8 (at {}:",
                                      __FILE__)));
    const auto sums = kernel("sums", [](Ref a, Ref out) {
        out.store(associative_scan([](Tile f, Tile g) { return f + g; }, a.load(), 1));
    });
    EXPECT_THAT(log(sums), Not(HasSubstr("slow path")));
}

TEST(DebugLog, FastKernelsHaveNoSlowPath) {
    const auto add = kernel("add", [](Ref a, Ref b, Ref out) { out.store(a.load() + b.load()); });
    const Tensor a = Tensor::zeros(f32, {64, 64});
    const std::string text = log_of([&] { call(add, {.out_type = {{f32, {64, 64}}}})(a, a); });
    EXPECT_THAT(text, HasSubstr("compiled for `"));
    EXPECT_THAT(text, Not(HasSubstr("slow path")));
}

TEST(DebugLog, TheCheckedMode) {
    const Tensor q = Tensor::zeros(f32, {1, 1, 16, 8});
    EXPECT_THAT(log_of([&] { attention(q, q, q, {.checked = true}); }),
                HasSubstr("slow path: interpreted element by element, since the checked mode"));
}

TEST(DebugLog, MasksThatAreEvaluatedPairByPair) {
    const Mod scattered = [](auto, auto, auto q, auto kv) { return (q * kv) % 7 == 3; };
    EXPECT_THAT(log_of([&] { create_block_mask(scattered, 1, 1, 2048, 2048); }),
                HasSubstr("slow path: 1024 of 1024 pieces of 64 x 64 are evaluated pair by pair"));
    const Mod causal = [](auto, auto, auto q, auto kv) { return q >= kv; };
    EXPECT_THAT(log_of([&] { create_block_mask(causal, 1, 1, 2048, 2048); }),
                Not(HasSubstr("slow path")));
}

TEST(DebugLogDeathTest, ScalarKernels) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // runs it in its own process
    ::setenv("TILEWRIGHT_TARGET", "scalar", 1);
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    EXPECT_EXIT(
        std::exit(run_program({"attention", "--help"}).status +
                  run_program({"bench", "matmul", "--seq-len", "16", "--seconds", "0.01"}).status),
        ::testing::ExitedWithCode(0),
        "slow path: scalar kernels, since TILEWRIGHT_TARGET=scalar asks for them");
    ::unsetenv("TILEWRIGHT_TARGET");
    ::unsetenv("TILEWRIGHT_DEBUG");
}

TEST(ThreadsDeathTest, TheEnvironmentSaysHowMany) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    const auto threads = [] { std::exit(40 + num_threads()); };
    ::setenv("TILEWRIGHT_THREADS", "1", 1);
    EXPECT_EXIT(threads(), ::testing::ExitedWithCode(41), "");
    ::setenv("TILEWRIGHT_THREADS", "many", 1);
    EXPECT_EXIT(std::exit(run_program({"bench", "norm"}).status), ::testing::ExitedWithCode(2), "");
    const auto one_program = [] {
        try {
            (void)rms_norm(Tensor::full(f32, {1, 8}, 1.0));
        } catch (const UserError& error) {
            std::fprintf(stderr, "%s\n", error.what());
            std::exit(2);
        }
        std::exit(0);
    };
    EXPECT_EXIT(one_program(), ::testing::ExitedWithCode(2),
                "TILEWRIGHT_THREADS. expected a number of threads, at least 1, but got .many.");
    ::unsetenv("TILEWRIGHT_THREADS");
}

}  // namespace
}  // namespace tilewright::cli
