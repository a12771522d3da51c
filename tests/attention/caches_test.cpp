// Memory stays bounded over many calls with mods and masks that are new each time.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <functional>
#include <string>

#include "tilewright/attention.h"
#include "tilewright/mask.h"
#include "tilewright/mod.h"
#include "tilewright/system.h"

namespace tilewright {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;  // the sanitizers have their own heap, and are slow
#else
constexpr bool kCountsMemory = true;
#endif

/// Once every cache is full, `work` needs no more memory: most caches keep 512 mods, some 1024.
void expect_bounded(int rounds, const std::function<void(int)>& work) {
    if (!kCountsMemory) GTEST_SKIP() << "NOT RUN: the heap is the sanitizer's";
    constexpr int kWarm = 1100;
    for (int i = 0; i < kWarm; ++i) work(i);
    const std::size_t before = mallinfo2().uordblks;
    for (int i = kWarm; i < rounds; ++i) work(i);
    EXPECT_LE(mallinfo2().uordblks, before + (std::size_t{8} << 20));
    for (const CacheCount& count : cache_counts()) {
        EXPECT_LE(count.entries, count.most) << count.name;
    }
}

/// The counts of the caches of this name since the process started.
CacheCount count_of(const std::string& name) {
    for (CacheCount& count : cache_counts()) {
        if (count.name == name) return count;
    }
    return {};
}

TEST(Caches, OfCallsWithNewMods) {
    const Tensor x = Tensor::zeros(f32, {1, 1, 8, 8});
    expect_bounded(2200, [&](int i) {
        attention(x, x, x,
                  {.score_mod = [i](auto s, auto, auto, auto, auto) { return s * (1.0 + i); }});
    });
    EXPECT_GT(count_of("calls of tile programs").evictions, 1600);
    EXPECT_GT(count_of("mods of tile programs").evictions, 1100);
}

TEST(Caches, OfGradientsOfNewMods) {
    const Tensor x = Tensor::zeros(f32, {1, 1, 8, 8});
    expect_bounded(1600, [&](int i) {
        const AttentionOptions options{
            .score_mod = [i](auto s, auto, auto, auto, auto) { return s * (1.0 + i); }};
        const AttentionOutput forward = attention(x, x, x, options);
        attention_backward(x, x, x, forward, x, options);
    });
    EXPECT_GT(count_of("derivatives of score mods").evictions, 500);
}

TEST(Caches, OfNewMasks) {
    const Tensor x = Tensor::zeros(f32, {1, 1, 8, 8});
    expect_bounded(10000, [&](int i) {
        const Mod mask([i](auto, auto, auto q, auto kv) { return (q * (i + 3) + kv) % 64 != 1; });
        const BlockMask data = create_block_mask(mask, 1, 1, 8, 8);
        if (i % 64 == 0) attention(x, x, x, {.block_mask = data});
    });
    EXPECT_GT(count_of("masks built").evictions, 9000);
    EXPECT_GT(count_of("programs that build masks").evictions, 9000);
}

TEST(Caches, OfModsGivenAsText) {
    expect_bounded(10000, [&](int i) {
        const std::string number = std::to_string(i) + ".5";
        Mod::from_ir(
            "func @f(%score: f32, %b: i64, %h: i64, %q: i64, %kv: i64) {\n  %0 = constant " +
                number + " : f32\n  %1 = add %score, %0 : f32\n  yield %1\n}\n",
            {});
    });
    EXPECT_GT(count_of("mods given as IR").evictions, 8000);
}

}  // namespace
}  // namespace tilewright
