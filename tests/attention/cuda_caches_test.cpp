// Memory stays bounded over many calls with mods, masks and lengths that are new each time. Runs on
// the stand-in for a GPU, with kernels that do nothing (tests/cuda/fake).
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/runtime/graph.h"
#include "cuda/runtime/kernel.h"
#include "cuda/runtime/memory.h"
#include "run/cuda_memory.h"
#include "tests/cuda/graph.h"
#include "tests/cuda/test_support.h"
#include "tests/support/throws.h"
#include "tilewright/attention.h"
#include "tilewright/recording.h"
#include "tilewright/run.h"
#include "tilewright/system.h"

namespace tilewright {
namespace {

using testing_support::Graph;

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

/// A kernel of its own, loaded.
cuda::Kernel new_kernel() {
    static int count = 0;
    cuda::CompileRequest request;
    request.name = "empty.cu";
    request.arch = "sm_90a";
    request.source = fmt::format(
        "extern \"C\" __global__ void __launch_bounds__(32) empty() {{}}  // {}", count++);
    return cuda::load_kernel(request, "empty", 0, 0);
}

/// What `work` queues on a stream of its own, captured.
Graph graph_of(const std::function<void(cuda::StreamHandle)>& work) {
    const cuda::Stream stream(0);
    const CudaScope scope(stream.handle());
    return Graph(
        stream, [&] { work(stream.handle()); }, testing_support::Capture::all_threads);
}

TEST_F(CudaCaches, OfTheHopperEngineWithNewMods) {
    expect_bounded(6700, [&](int i) {
        const AttentionOptions options{
            .score_mod = [i](auto s, auto, auto, auto, auto) { return s * (1.0 + i); },
            .engine = "sm90"};
        attention(x, x, x, options);
    });
    EXPECT_LE(held().modules, 4000);
}

TEST_F(CudaCaches, OfRecordingsEndWithTheKernels) {
    const AttentionOutput result = attention(x, x, x, {.engine = "sm90"});
    const std::vector arrays{x, result.out, result.lse};
    const Recording recording = Recording::of(arrays, [](const std::vector<Tensor>& a) {
        attention_into({a[1], a[2], {}}, a[0], a[0], a[0], {.engine = "sm90"});
    });
    ASSERT_TRUE(recording.complete());
    std::vector<void*> addresses{x.raw(), result.out.raw(), result.lse.raw()};
    EXPECT_TRUE(recording.repeat(addresses));
    addresses[0] = static_cast<std::byte*>(x.raw()) + 2;
    EXPECT_FALSE(recording.repeat(addresses));
    addresses[0] = x.raw();
    graph_of([&](cuda::StreamHandle) { EXPECT_FALSE(recording.repeat(addresses)); });
    EXPECT_TRUE(recording.repeat(addresses));
    for (int i = 0; i < 6700 && recording.complete(); ++i) {
        const AttentionOptions options{
            .score_mod = [i](auto s, auto, auto, auto, auto) { return s * (2.5 + i); },
            .engine = "sm90"};
        attention(x, x, x, options);
    }
    EXPECT_FALSE(recording.complete());
    EXPECT_FALSE(recording.repeat(addresses));
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

/// A graph that runs a kernel of its own and reads and writes arrays of its own.
Graph new_graph(int number) {
    const cuda::Kernel kernel = new_kernel();
    const std::int64_t values[] = {number, -1};
    run::constant(values, Device::cuda());  // on the GPU before the capture
    return graph_of([&](cuda::StreamHandle stream) {
        run::constant(values, Device::cuda());
        Tensor::empty(f32, {16}, Device::cuda());
        cached_cuda_memory(64, 0);
        cuda::launch(kernel, {}, {}, stream);
    });
}

TEST_F(CudaCaches, OfGraphsThatAreGone) {
    expect_bounded(1600, [](int i) { new_graph(i); });
}

TEST_F(CudaCaches, KeepWhatGraphsUse) {
    const Held before = held();
    std::vector<Graph> graphs;
    constexpr int kGraphs = 1200;  // more than the memo of small arrays has entries
    for (int i = 0; i < kGraphs; ++i) graphs.push_back(new_graph(i));
    EXPECT_GE(held().modules, kGraphs);
    EXPECT_GE(held().blocks, before.blocks + 2 * kGraphs);
    graphs.clear();
    for (int i = 0; i < 65; ++i) new_kernel();
    EXPECT_LE(held().modules, before.modules + 130);
    EXPECT_LE(held().blocks, before.blocks + 1024 + 8);
}

TEST_F(CudaCaches, LetGoOfWhatNoGraphTakes) {
    auto object = std::make_shared<const int>(1);
    const std::weak_ptr<const int> left = object;
    const cuda::Stream stream(0);
    EXPECT_THAT([&] { cuda::keep_for_graph(stream.handle(), std::move(object)); },
                testing::throws<CudaError>("keeping an object for a graph"));
    cuda::drop_gone_graphs();
    EXPECT_TRUE(left.expired());
}

TEST_F(CudaCaches, OfMemoryOfStreamsThatAreGone) {
    const Held before = held();
    std::vector<std::unique_ptr<cuda::Stream>> streams;  // so that all have different handles
    for (int i = 0; i < 500; ++i) {
        streams.push_back(std::make_unique<cuda::Stream>(0));
        const CudaScope scope(streams.back()->handle());
        Tensor::empty(f32, {16}, Device::cuda());
        Tensor::empty(f32, {4096}, Device::cuda());
    }
    EXPECT_LE(held().blocks, before.blocks + 2 * 64);
    const auto counts = cache_counts();
    const auto pool = std::find_if(counts.begin(), counts.end(), [](const CacheCount& each) {
        return each.name == "unused memory of GPUs by stream";
    });
    ASSERT_NE(pool, counts.end());
    EXPECT_EQ(pool->entries, 64U);
    EXPECT_GE(*pool->bytes, std::size_t{64} * 16384);
    const CudaScope scope(streams.back()->handle());
    const int blocks = held().blocks;
    Tensor::empty(f32, {4096}, Device::cuda());  // memory that is there
    EXPECT_EQ(held().blocks, blocks);
}

TEST_F(CudaCaches, KeepTheMasksOfGraphs) {
    constexpr int kGraphs = 150;  // more than the memos of masks have entries
    /// Blocks of memory that graphs of attention have, each with a mask of its own or all with one.
    const auto blocks = [&](bool own) {
        const Held before = held();
        std::vector<Graph> graphs;
        for (int i = 0; i < kGraphs; ++i) {
            const int number = own ? i : 0;
            const AttentionOptions options{
                .mask = [number](auto, auto, auto q,
                                 auto kv) { return (q * number + kv) % 64 != 5; },
                .engine = "sm90"};
            const AttentionOutput result = attention(x, x, x, options);
            graphs.push_back(
                graph_of([&](cuda::StreamHandle) { attention_into(result, x, x, x, options); }));
        }
        return held().blocks - before.blocks;
    };
    const int shared = blocks(false);
    EXPECT_GE(blocks(true), shared + kGraphs - 1);
}

TEST_F(CudaCaches, OfKernelsAreEmptiedWhileAnotherStreamIsCaptured) {
    const Held before = held();
    graph_of([&](cuda::StreamHandle stream) {
        const CudaScope uncaptured(nullptr);
        for (int i = 0; i < 300; ++i) new_kernel();
        EXPECT_LE(held().modules, before.modules + 65);
        cuda::launch(new_kernel(), {}, {}, stream);
    });
}

TEST_F(CudaCaches, OfMasksAreEmptiedWhileAnotherStreamIsCaptured) {
    graph_of([&](cuda::StreamHandle) {
        const CudaScope uncaptured(nullptr);
        const auto call = [&](int i) {
            for (const char* const engine : {"tiles", "sm90"}) {
                const auto mask = [i](auto, auto, auto q, auto kv) {
                    return (q * i + kv) % 64 != 5;
                };
                attention(x, x, x, {.mask = mask, .engine = engine});
            }
        };
        for (int i = 0; i < 100; ++i) call(i);
        const Held before = held();
        for (int i = 100; i < 300; ++i) call(i);
        EXPECT_LE(held().blocks, before.blocks + 8);
    });
}

TEST_F(CudaCaches, OfTilePrograms) {
    expect_bounded(6700, [&](int i) {
        attention(x, x, x,
                  {.score_mod = [i](auto s, auto, auto, auto, auto) { return s * (1.0 + i); },
                   .engine = "tiles"});
    });
    EXPECT_LE(held().modules, 5000);
}

}  // namespace
}  // namespace tilewright
