// Memory stays bounded over many calls with mods, masks and lengths that are new each time. Runs on
// the stand-in for a GPU, with kernels that do nothing (tests/cuda/fake).
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "cuda/runtime/kernel.h"
#include "cuda/runtime/memory.h"
#include "run/cuda_memory.h"
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

/// A graph, ready to run.
class Graph {
  public:
    /// Captures what `work` queues on a stream.
    explicit Graph(const std::function<void(cuda::StreamHandle)>& work) {
        const cuda::Driver& driver = cuda::driver();
        const cuda::Stream stream(0);
        const CudaScope scope(stream.handle());
        void* graph = nullptr;
        driver.check(driver.cuStreamBeginCapture_v2(stream.handle(), 0), "capturing");
        work(stream.handle());
        driver.check(driver.cuStreamEndCapture(stream.handle(), &graph), "capturing");
        driver.check(driver.cuGraphInstantiateWithFlags(&graph_, graph, 0), "instantiating");
        driver.cuGraphDestroy(graph);
    }
    ~Graph() {
        if (graph_ != nullptr) cuda::driver().cuGraphExecDestroy(graph_);
    }
    Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
    Graph& operator=(Graph&&) = delete;

  private:
    void* graph_ = nullptr;
};

/// A graph that runs a kernel of its own and reads and writes arrays of its own.
Graph new_graph(int number) {
    const cuda::Kernel kernel = new_kernel();
    const std::int64_t values[] = {number, -1};
    run::constant(values, Device::cuda());  // on the GPU before the capture
    return Graph([&](cuda::StreamHandle stream) {
        run::constant(values, Device::cuda());
        Tensor::empty(f32, {16}, Device::cuda());
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
    EXPECT_GE(held().blocks, before.blocks + kGraphs);
    graphs.clear();
    for (int i = 0; i < 65; ++i) new_kernel();
    EXPECT_LE(held().modules, before.modules + 130);
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
                Graph([&](cuda::StreamHandle) { attention_into(result, x, x, x, options); }));
        }
        return held().blocks - before.blocks;
    };
    const int shared = blocks(false);
    EXPECT_GE(blocks(true), shared + kGraphs - 1);
}

TEST_F(CudaCaches, OfKernelsAreEmptiedWhileAnotherStreamIsCaptured) {
    const Held before = held();
    Graph([&](cuda::StreamHandle stream) {
        const CudaScope uncaptured(nullptr);
        for (int i = 0; i < 300; ++i) new_kernel();
        EXPECT_LE(held().modules, before.modules + 65);
        cuda::launch(new_kernel(), {}, {}, stream);
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
