// Memory stays bounded over many calls with mods, masks and lengths that are new each time. Runs on
// the stand-in for a GPU, with kernels that do nothing (tests/cuda/fake).
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <functional>

#include "tests/cuda/test_support.h"
#include "tilewright/attention.h"
#include "tilewright/run.h"

namespace tilewright {
namespace {

/// The resources that a process holds.
struct Held {
    int modules, blocks;     ///< of the GPU
    std::size_t heap_bytes;  ///< of the host
};

Held held() {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    const auto count =
        reinterpret_cast<int (*)(int)>(driver == nullptr ? nullptr : dlsym(driver, "cuFakeCount"));
    if (count == nullptr) return {};
    return {count(0), count(1), mallinfo2().uordblks};
}

class CudaCaches : public testing::Test {
  protected:
    void SetUp() override {
        if (std::getenv("TW_FAKE_EMPTY") == nullptr) GTEST_SKIP() << "NOT RUN: no stand-in";
        x = Tensor::zeros(bf16, {1, 1, 64, 64}).to(Device::cuda());
    }

    /// After `rounds` calls, half as many further calls need no more memory.
    static void expect_bounded(int rounds, const std::function<void(int)>& work) {
        for (int i = 0; i < rounds; ++i) work(i);
        const Held before = held();
        for (int i = 0; i < rounds / 2; ++i) work(rounds + i);
        const Held after = held();
        // Modules are unloaded in batches.
        EXPECT_LE(after.modules, before.modules + 64);
        EXPECT_LE(after.blocks, before.blocks + 8);
        EXPECT_LE(after.heap_bytes, before.heap_bytes + (std::size_t{8} << 20));
        EXPECT_GT(before.modules, 0);
    }

    Tensor x;
};

TEST_F(CudaCaches, OfTheHopperEngineWithNewMods) {
    expect_bounded(6700, [&](int i) {
        const AttentionOptions options{
            .score_mod = [i](auto s, auto, auto, auto, auto) { return s * (1.0 + i); },
            .engine = "sm90"};
        attention(x, x, x, options);
    });
    EXPECT_LE(held().modules, 4000);
}

TEST_F(CudaCaches, OfTheHopperEngineWithNewMasksAndSequences) {
    expect_bounded(6700, [&](int i) {
        attention(
            x, x, x,
            {.mask = [i](auto, auto, auto q, auto kv) { return (q * (i + 3) + kv) % 64 != i % 64; },
             .engine = "sm90"});
        AttentionOptions packed{.engine = "sm90"};
        packed.cu_seqlens =
            Tensor::from_vector(std::vector{0, i % 40, 40 + i / 40 % 20, 61 + i % 3, 64}, {5});
        attention(x, x, x, packed);
    });
}

TEST_F(CudaCaches, OfTilePrograms) {
    expect_bounded(600, [&](int i) {
        attention(x, x, x,
                  {.score_mod = [i](auto s, auto, auto, auto, auto) { return s * (1.0 + i); },
                   .engine = "tiles"});
    });
    EXPECT_LE(held().modules, 5000);
}

}  // namespace
}  // namespace tilewright
