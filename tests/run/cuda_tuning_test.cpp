// Kernels for GPUs that are chosen by measurement: what is measured, kept and left alone.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "run/tuning.h"
#include "tests/cuda/test_support.h"
#include "tests/run/scheduled_programs.h"
#include "tests/run/support.h"
#include "tilewright/program.h"

namespace tilewright {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Each test has its own cache folder and hears what is tuned.
class Tuning : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (const char* const old = std::getenv("TILEWRIGHT_CACHE_DIR")) old_ = old;
        folder_ = std::filesystem::temp_directory_path() /
                  fmt::format("tilewright_cuda_tuning_{}", ::getpid());
        std::filesystem::remove_all(folder_);
        ::setenv("TILEWRIGHT_CACHE_DIR", folder_.c_str(), 1);
        ::setenv("TILEWRIGHT_AUTOTUNE", "1", 1);
        run::listen_to_tuning([this](const run::Tuning& tuning) { heard_.push_back(tuning); });
    }
    void TearDown() override {
        run::listen_to_tuning({});
        ::unsetenv("TILEWRIGHT_AUTOTUNE");
        if (folder_.empty()) return;
        if (old_.empty()) {
            ::unsetenv("TILEWRIGHT_CACHE_DIR");
        } else {
            ::setenv("TILEWRIGHT_CACHE_DIR", old_.c_str(), 1);
        }
        std::filesystem::remove_all(folder_);
    }

    std::filesystem::path folder_;
    std::string old_;
    std::vector<run::Tuning> heard_;
};

using CudaCallsTuning = Tuning;

/// Adds x y to z, so that each run changes z.
Call adding() {
    const Kernel add =
        kernel("add", [](Ref x, Ref y, Ref z) { z.atomic_add(dot(x.load(), y.load())); });
    return call(add, {.out_type = {{f32, {32, 32}}}, .num_warps = 4});
}

TEST_F(CudaCallsTuning, MeasuresOnCopiesAndKeepsTheChoice) {
    const Tensor x = Tensor::full(f32, {32, 32}, 2, Device::cuda()),
                 y = Tensor::full(f32, {32, 32}, 3, Device::cuda());
    for (int time = 0; time < 2; ++time) {
        const Tensor z = Tensor::full(f32, {32, 32}, 1, Device::cuda());
        const Call tuned = adding();
        tuned.into({z}, {x, y});
        tuned.into({z}, {x, y});
        EXPECT_EQ(z.to(Device{}).get({31, 31}), 1 + 2 * 6 * 32) << "two runs, no more";
    }
    ASSERT_EQ(heard_.size(), 2u) << "once for each call, and the second knew";
    EXPECT_FALSE(heard_[0].remembered);
    EXPECT_TRUE(heard_[1].remembered);
    EXPECT_EQ(heard_[0].table, heard_[1].table);
    EXPECT_EQ(heard_[0].what, "kernel add f32[32, 32] f32[32, 32] f32[32, 32], autotune");
    EXPECT_THAT(heard_[0].table, HasSubstr("num_stages=0, num_warps=0"));
    EXPECT_THAT(heard_[0].table, HasSubstr("num_stages=4, num_warps=0"));
    EXPECT_THAT(heard_[0].table, Not(HasSubstr("num_warps=8"))) << "the call has a number";
}

TEST_F(CudaCallsTuning, OthersAreNotMeasured) {
    const Tensor x = Tensor::full(f32, {32, 32}, 2, Device::cuda());
    const Kernel square = kernel("square", [](Ref in, Ref out) {
        const Tile t = in.load();
        out.store(dot(t, t));
    });
    const Call in_place =
        call(square, {.out_type = {{f32, {32, 32}}}, .aliases = {{0, 0}}, .num_warps = 4});
    in_place.into({x}, {x});
    EXPECT_EQ(x.to(Device{}).get({31, 31}), 4 * 32) << "arrays that share memory";
    const Kernel twice = kernel("twice", [](Ref in, Ref out) { out.store(in.load() * 2); });
    EXPECT_EQ(call(twice, {.out_type = {{f32, {32, 32}}}})(x).to(Device{}).get({0, 0}), 8 * 32);
    EXPECT_TRUE(heard_.empty());
    ::setenv("TILEWRIGHT_AUTOTUNE", "0", 1);
    const Tensor z = Tensor::zeros(f32, {32, 32}, Device::cuda());
    adding().into({z}, {x, x});
    EXPECT_TRUE(heard_.empty()) << "nobody asked";
}

/// For stand-ins whose kernels do nothing and cost nothing to compile.
class CudaTuning : public Tuning {
  protected:
    void SetUp() override {
        if (std::getenv("TW_FAKE_EMPTY") == nullptr) GTEST_SKIP() << "NOT RUN: no stand-in";
        Tuning::SetUp();
    }
    void run(const std::string& text, int m, int n, int k) {
        const Program program(text, {.device = Device::cuda()});
        const std::vector<Tensor> arrays{Tensor::zeros(bf16, {m, k}, Device::cuda()),
                                         Tensor::zeros(bf16, {k, n}, Device::cuda()),
                                         Tensor::zeros(bf16, {m, n}, Device::cuda())};
        for (int i = 0; i < 2; ++i) program.run(arrays);
    }
};

TEST_F(CudaTuning, ProductsHaveTilesAndThenTheirOrderMeasured) {
    const std::string text = testing_support::product({"product", 1000, 1040, 520, 128, 256}).text;
    run(text, 1000, 1040, 520);
    ASSERT_EQ(heard_.size(), 2u);
    EXPECT_THAT(heard_[0].what, HasSubstr("bf16[1000, 520] bf16[520, 1040] bf16[1000, 1040]"));
    for (const char* const choice :
         {"columns=128, pairs=0, parts=1, rows=128", "columns=64, pairs=0, parts=1, rows=128",
          "columns=128, pairs=3, parts=1, rows=128"}) {
        EXPECT_THAT(heard_[0].table, HasSubstr(choice));
    }
    EXPECT_THAT(heard_[1].table, HasSubstr("group=32, stages=0"));
    EXPECT_FALSE(heard_[0].remembered || heard_[1].remembered);
    // Another program object takes the choices from the disk.
    run(text, 1000, 1040, 520);
    ASSERT_EQ(heard_.size(), 4u);
    EXPECT_TRUE(heard_[2].remembered && heard_[3].remembered);
    EXPECT_EQ(heard_[2].chosen, heard_[0].chosen);
    EXPECT_EQ(heard_[3].chosen, heard_[1].chosen);
}

TEST_F(CudaTuning, OtherProductsAreMeasuredAnew) {
    const auto text = [](const std::string& out, int k) {
        return testing_support::product({.name = "product",
                                         .m = 256,
                                         .n = 256,
                                         .k = k,
                                         .bm = 128,
                                         .bn = 128,
                                         .out = out})
            .text;
    };
    run(text("bf16", 512), 256, 256, 512);
    run(text("bf16", 576), 256, 256, 576);
    ASSERT_EQ(heard_.size(), 4u);
    EXPECT_FALSE(heard_[2].remembered);
    run(text("bf16", 512), 256, 256, 512);
    ASSERT_EQ(heard_.size(), 6u);
    EXPECT_TRUE(heard_[4].remembered) << "it is the same program";
}

TEST_F(CudaTuning, LongSumsAreSplit) {
    run(testing_support::product({"product", 256, 256, 8192, 128, 128}).text, 256, 256, 8192);
    ASSERT_GE(heard_.size(), 1u);
    EXPECT_THAT(heard_[0].table, HasSubstr("parts=8"));
    EXPECT_THAT(heard_[0].table, HasSubstr("parts=16"));
}

}  // namespace
}  // namespace tilewright
