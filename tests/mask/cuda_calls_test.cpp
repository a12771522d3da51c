// Masks that read arrays on a GPU: built there, equal to those built on the CPU. Runs on a GPU, or
// on the stand-in for one (tests/cuda/fake).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "cuda/runtime/memory.h"
#include "ir/print.h"
#include "mask/block_mask.h"
#include "mask/build.h"
#include "tests/cuda/test_support.h"
#include "tests/support/random_mod.h"
#include "tests/support/seeds.h"
#include "tilewright/lang.h"
#include "tilewright/mask.h"
#include "tilewright/masks.h"
#include "tilewright/run.h"

namespace tilewright::mask {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Device kGpu = Device::cuda();

/// What TILEWRIGHT_DEBUG prints while `work` runs.
std::string debug_lines(const std::function<void()>& work) {
    ::setenv("TILEWRIGHT_DEBUG", "1", 1);
    ::testing::internal::CaptureStderr();
    work();
    ::unsetenv("TILEWRIGHT_DEBUG");
    return ::testing::internal::GetCapturedStderr();
}

template <typename T>
Tensor numbers(const std::vector<std::int64_t>& shape,
               const std::function<std::int64_t(std::int64_t)>& at) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    std::vector<T> values;
    for (std::int64_t i = 0; i < size; ++i) values.push_back(static_cast<T>(at(i)));
    return Tensor::from_vector(values, shape);
}

struct Case {
    const char* name;
    std::int64_t batch, heads, q_len, kv_len;
    /// The mask with its arrays on a device.
    std::function<Mod(Device)> mod;
};

std::vector<Case> cases() {
    const auto documents = [](Device device) {
        return capture(numbers<std::int32_t>({300}, [](auto i) { return i / 70; }).to(device));
    };
    const auto shuffled = [](Device device) {
        return capture(
            numbers<std::int32_t>({300}, [](auto i) { return i * 7919 % 300 / 60; }).to(device));
    };
    return {
        {"documents", 1, 1, 300, 300, [=](Device d) { return masks::document(documents(d)); }},
        {"causal documents", 2, 4, 300, 300,
         [=](Device d) { return masks::causal() & masks::document(documents(d)); }},
        {"shuffled documents", 1, 1, 193, 300,
         [=](Device d) { return masks::document(shuffled(d)) | masks::sliding_window(9); }},
        {"documents of every batch", 2, 1, 130, 100,
         [](Device d) {
             const Capture ids = capture(numbers<std::int16_t>({2, 130}, [](auto i) {
                                             return i / 130 + i % 130 / 50;
                                         }).to(d));
             return masks::causal() &
                    Mod([ids](auto b, auto, auto q, auto kv) { return ids(b, q) == ids(b, kv); });
         }},
        {"prefix of every batch", 3, 1, 200, 200,
         [](Device d) {
             return masks::prefix_lm(
                 capture(numbers<std::int32_t>({3}, [](auto i) { return 20 + 63 * i; }).to(d)));
         }},
        {"groups of heads", 1, 4, 70, 150,
         [](Device d) {
             const Capture widths =
                 capture(numbers<std::uint8_t>({2}, [](auto i) { return 30 + 200 * i; }).to(d));
             return Mod([widths](auto, auto h, auto q, auto kv) {
                 return abs(q - kv) <= widths[h / 2].to(i64);
             });
         }},
        {"arrays indexed by arrays", 1, 1, 140, 300,
         [=](Device d) {
             const Capture ids = shuffled(d);
             const Capture links = capture(
                 numbers<std::int64_t>({5}, [](auto i) { return i * 90 - 40; }).to(d), "links");
             return Mod([ids, links](auto, auto, auto q, auto kv) {
                 return links[ids[q]] <= kv && kv < links[ids[kv]] + 100;
             });
         }},
        {"a strided view, flags and a scalar", 1, 2, 100, 128,
         [](Device d) {
             const Tensor wide =
                 numbers<std::int32_t>({128, 4}, [](auto i) { return i * 31 % 11; }).to(d);
             const Capture view = capture(wide.slice(1, 0, 2, 2), "view");
             const Capture flags =
                 capture(numbers<bool>({128}, [](auto i) { return i % 5 == 0; }).to(d), "flags");
             const Capture least = capture(Tensor::scalar(i64, 17).to(d), "least");
             return Mod([view, flags, least](auto, auto h, auto q, auto kv) {
                 return (view(q, h) > view(kv, h) || flags[kv]) && q + kv >= least();
             });
         }},
        {"floats", 1, 1, 90, 90,
         [](Device d) {
             std::vector<float> values;
             for (int i = 0; i < 90; ++i) values.push_back(i % 13 == 0 ? NAN : float(i % 17) / 4);
             const Tensor table = Tensor::from_vector(values, {90});
             const Capture single = capture(table.to(d)), half = capture(table.to(f16).to(d)),
                           brain = capture(table.to(bf16).to(d)),
                           twice = capture(table.to(f64).to(d));
             return Mod([=](auto, auto, auto q, auto kv) {
                 return single[q] / 3.0f < single[kv] && half[q] + half[kv] >= half[q] &&
                        brain[kv] - brain[q] < brain[q] && twice[q] * 0.3 != twice[kv];
             });
         }},
        {"NaN alone", 1, 1, 130, 130,
         [](Device d) {
             std::vector<float> values(130, 2.0f);
             std::fill_n(values.begin(), 64, NAN);
             const Capture table = capture(Tensor::from_vector(values, {130}).to(d));
             return Mod([table](auto, auto, auto q, auto kv) {
                 return table[q] < 3.0f || (table[kv] > 1.0f && q > kv);
             });
         }},
        {"integers that wrap", 1, 1, 128, 128,
         [](Device d) {
             const auto near = [](auto i) { return i * 0x123456789abcdef; };
             const Capture a = capture(numbers<std::int8_t>({128}, near).to(d)),
                           b = capture(numbers<std::uint16_t>({128}, near).to(d)),
                           c = capture(numbers<std::uint32_t>({128}, near).to(d)),
                           e = capture(numbers<std::uint64_t>({128}, near).to(d));
             return Mod([=](auto, auto, auto q, auto kv) {
                 return (a[q] * a[kv] < a[q] - a[kv]) ^ ((b[q] << b[kv] % 20) > b[kv]) ^
                        (c[q] / c[kv] + c[kv] % 7 == 2) ^ ((e[q] >> 3) + e[kv] > e[q]);
             });
         }},
    };
}

TEST(MaskKernels, CompileForEveryGeneration) {
    TW_REQUIRE_NVRTC();
    if (std::getenv("TW_FAKE_GPU") != nullptr) GTEST_SKIP() << "NOT RUN: the stand-in for NVRTC";
    for (const char* arch : {"sm_80", "sm_90a"}) {
        SCOPED_TRACE(arch);
        for (const MaskKernel kernel : {MaskKernel::pieces, MaskKernel::ranges})
            EXPECT_EQ(cuda::compile(kernel_request(kernel, arch)).spill_bytes, 0);
    }
}

TEST(CudaCalls, MasksOfArraysOnAGpuEqualThoseOfTheCpu) {
    TW_REQUIRE_GPU();
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.name);
        for (const BlockSize size : {BlockSize{64, 64}, BlockSize{128, 128}}) {
            const auto build_on = [&](Device device) {
                return create_block_mask(c.mod(device), c.batch, c.heads, c.q_len, c.kv_len, size);
            };
            const BlockMask want = build_on(Device{});
            BlockMask got;
            EXPECT_THAT(debug_lines([&] { got = build_on(kGpu); }), Not(HasSubstr("slow path")));
            EXPECT_EQ(got, want);
            EXPECT_EQ(got.shape(), want.shape());
            EXPECT_EQ(got.nbytes(), want.nbytes());
            for (const bool full : {false, true}) {
                const BlockLists a = full ? got.full_kv_blocks() : got.kv_blocks(),
                                 b = full ? want.full_kv_blocks() : want.kv_blocks();
                EXPECT_EQ(a.num_blocks.to_vector<int>(), b.num_blocks.to_vector<int>());
                EXPECT_EQ(a.indices.to_vector<int>(), b.indices.to_vector<int>());
            }
        }
        EXPECT_EQ(
            create_mask(c.mod(kGpu), c.batch, c.heads, c.q_len, c.kv_len).to_vector<bool>(),
            create_mask(c.mod(Device{}), c.batch, c.heads, c.q_len, c.kv_len).to_vector<bool>());
    }
}

// Ranges of the arrays decide blocks: few pieces are evaluated, and as few as on the CPU if
// documents end between pieces.
TEST(CudaCalls, RangesOfArraysOnAGpuDecideBlocks) {
    TW_REQUIRE_GPU();
    const Tensor ids = numbers<std::int32_t>({1 << 14}, [](auto i) { return i / 640; });
    BuildReport on_cpu, on_gpu;
    for (const auto& [device, report] : {std::pair(Device{}, &on_cpu), std::pair(kGpu, &on_gpu)}) {
        const Mod mod = masks::causal() & masks::document(capture(ids.to(device)));
        build(MaskFunction::of("test", mod), 1, 1, 1 << 14, 1 << 14, report);
    }
    EXPECT_EQ(on_gpu.boxes, on_cpu.boxes);
    EXPECT_EQ(on_gpu.pieces, on_cpu.pieces);
    EXPECT_EQ(on_gpu.evaluated, on_cpu.evaluated);
}

TEST(CudaCalls, RandomFunctionsOnAGpuEqualTheTileMachine) {
    TW_REQUIRE_GPU();
    std::int64_t evaluated = 0;
    const auto seeds = testing::seeds(1500);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        MaskFunction mask;
        mask.function = std::make_shared<ir::Function>(testing::random_mod(seed, true));
        mask.arrays = testing::random_mod_arrays(seed % 5);
        MaskFunction there = mask;
        there.bytecode =
            std::make_shared<const Bytecode>(Bytecode::of(*mask.function, mask.arrays));
        if (!there.bytecode->refusal.empty()) continue;  // uses what the interpreter lacks
        for (Tensor& array : there.arrays) array = array.to(kGpu);
        BuildReport report;
        const MaskData got = build(there, 2, 2, 100, 70, &report);
        ASSERT_TRUE(equal(got, build(mask, 2, 2, 100, 70))) << "seed " << seed << "\n"
                                                            << ir::print(*mask.function);
        evaluated += report.evaluated;
    }
    if (seeds.normal) {
        EXPECT_GT(evaluated, 50);
    }
}

TEST(CudaCalls, ArraysOfTheCpuFollowThoseOfAGpu) {
    TW_REQUIRE_GPU();
    const Tensor ids = numbers<std::int32_t>({200}, [](auto i) { return i / 30; }),
                 flags = numbers<bool>({200}, [](auto i) { return i % 40 == 3; });
    const auto mod_on = [&](Device first, Device second) {
        return masks::document(capture(ids.to(first))) |
               masks::global_tokens(5, capture(flags.to(second)));
    };
    const auto build_on = [&](Device first, Device second) {
        return create_block_mask(mod_on(first, second), 1, 1, 200, 200);
    };
    for (const Tensor& array : MaskFunction::of("test", mod_on(Device{}, kGpu)).arrays)
        EXPECT_EQ(array.device(), kGpu);
    const BlockMask want = build_on(Device{}, Device{});
    EXPECT_EQ(build_on(Device{}, kGpu), want);
    EXPECT_EQ(build_on(kGpu, Device{}), want);
}

TEST(CudaCalls, WhatIsNotExactIsBuiltOnTheCpu) {
    TW_REQUIRE_GPU();
    const Tensor table = numbers<float>({80}, [](auto i) { return i % 9; });
    const auto build_on = [&](Device device) {
        const Capture values = capture(table.to(device));
        return create_block_mask(
            Mod([values](auto, auto, auto q, auto kv) { return exp(values[q]) > values[kv] * 9; }),
            1, 1, 80, 80);
    };
    BlockMask got;
    EXPECT_THAT(debug_lines([&] { got = build_on(kGpu); }),
                HasSubstr("slow path: the mask is built on the CPU: expected operations "
                          "that a GPU's interpreter has but got exp of f32"));
    EXPECT_EQ(got, build_on(Device{}));
}

TEST(CudaCalls, MasksOfArraysOnAGpuAreNotBuiltDuringACapture) {
    TW_REQUIRE_GPU();
    const cuda::Stream stream(0);
    const CudaScope scope(stream.handle());
    const Capture ids = capture(numbers<std::int32_t>({80}, [](auto i) { return i; }).to(kGpu));
    const auto& driver = cuda::driver();
    const cuda::ContextScope context(0);
    driver.check(driver.cuStreamBeginCapture_v2(stream.handle(), 1), "capturing");
    std::string text;
    try {
        create_block_mask(masks::document(ids), 1, 1, 80, 80);
    } catch (const UserError& error) {
        text = error.what();
    }
    void* graph = nullptr;
    driver.cuStreamEndCapture(stream.handle(), &graph);
    if (graph != nullptr) driver.cuGraphDestroy(graph);
    EXPECT_THAT(text, HasSubstr("[create_block_mask] expected masks that read arrays of a GPU to "
                                "be built before a CUDA graph is captured"));
}

}  // namespace
}  // namespace tilewright::mask
