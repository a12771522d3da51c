// First calls of the Hopper engine: when they run compact kernels, and that these give the results
// of the others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "attention/sm90/first_call.h"
#include "attention/sm90/kernel_cache.h"
#include "cuda/runtime/stream.h"
#include "tests/attention/sm90_support.h"
#include "tilewright/attention.h"
#include "tilewright/first_calls.h"
#include "tilewright/recording.h"
#include "tilewright/run.h"
#include "tilewright/scores.h"
#include "tilewright/system.h"

namespace tilewright {
namespace {

/// A variable of the environment while this lives.
class Setting {
  public:
    Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~Setting() { ::unsetenv(name_); }
    Setting(const Setting&) = delete;
    Setting& operator=(const Setting&) = delete;

  private:
    const char* name_;
};

/// Entries that a cache has had so far, dropped ones included.
std::size_t entries_of(const std::string& name) {
    for (const CacheCount& count : cache_counts()) {
        if (count.name == name) return count.entries + count.evictions;
    }
    return 0;
}

struct Counts {
    std::size_t first = entries_of("first calls of the Hopper engine");  ///< with compact kernels
    std::size_t kept = entries_of("kernels of the Hopper engine");
};

/// On the stand-in for a GPU, whose kernels do nothing and which compiles any text.
class CudaFirstCalls : public testing::Test {
  protected:
    void SetUp() override {
        if (std::getenv("TW_FAKE_EMPTY") == nullptr) GTEST_SKIP() << "NOT RUN: no stand-in";
        x = Tensor::zeros(bf16, {1, 1, 64, 64}).to(Device::cuda());
    }

    /// A mod that no other call has, and no earlier run, whose kernels are on disk.
    static AttentionOptions new_mod() {
        static int count = 0;
        const double factor = 1000.5 + ++count;
        const auto run = static_cast<double>(::time(nullptr) % 1000000);
        return {.score_mod = [=](auto s, auto, auto, auto, auto) { return s * factor + run; },
                .engine = "sm90"};
    }

    /// What a call adds to the counts.
    static void expect(const std::function<void()>& call, std::size_t first, std::size_t kept) {
        const Counts before;
        call();
        const Counts after;
        EXPECT_EQ(after.first - before.first, first);
        EXPECT_EQ(after.kept - before.kept, kept);
    }

    Tensor x;
};

/// Calls until full kernels are loaded; false if they never are.
bool becomes_full(const std::function<void()>& call) {
    const Counts before;
    constexpr int kMostTries = 1000;
    for (int i = 0; i < kMostTries; ++i) {
        call();
        if (Counts().kept > before.kept) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

TEST_F(CudaFirstCalls, RunCompactKernelsUntilTheOthersAreCompiled) {
    const Setting on("TILEWRIGHT_COMPACT", "1"), slow("TW_FAKE_COMPILE_SECONDS", "1");
    AttentionOptions options = new_mod();
    options.gradient = true;
    AttentionOutput output;
    const auto forward = [&] { output = attention(x, x, x, options); };
    const auto backward = [&] { attention_backward(x, x, x, output, x, options); };
    const auto start = std::chrono::steady_clock::now();
    expect(forward, 1, 0);
    expect(forward, 0, 0);
    expect(forward, 0, 0);
    expect(backward, 1, 0);
    expect(backward, 0, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(900));
    EXPECT_TRUE(becomes_full(forward));
    expect(forward, 0, 0);
    EXPECT_TRUE(becomes_full(backward));
    expect(backward, 0, 0);
}

TEST_F(CudaFirstCalls, OfTwoThreadsWaitForTheSameCompactKernel) {
    const Setting on("TILEWRIGHT_COMPACT", "1"), slow("TW_FAKE_COMPILE_SECONDS", "2");
    const AttentionOptions options = new_mod();
    const Counts before;
    const auto start = std::chrono::steady_clock::now();
    const auto first = std::async(std::launch::async, [&] { attention(x, x, x, options); });
    while (Counts().first == before.first) std::this_thread::yield();  // it compiles for 0.2 s
    attention(x, x, x, options);
    first.wait();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1500));
    EXPECT_EQ(Counts().kept, before.kept);
    EXPECT_EQ(Counts().first, before.first + 1);
}

TEST_F(CudaFirstCalls, OfCompactKernelsAreRecordedLater) {
    const Setting on("TILEWRIGHT_COMPACT", "1"), slow("TW_FAKE_COMPILE_SECONDS", "1");
    const AttentionOptions options = new_mod();
    const std::vector arrays{x, Tensor::empty(bf16, {1, 1, 64, 64}, Device::cuda())};
    const auto record = [&] {
        return Recording::of(arrays, [&](const std::vector<Tensor>& a) {
            attention_into({a[1], {}, {}}, a[0], a[0], a[0], options);
        });
    };
    for (int i = 0; i < 2; ++i) {
        const Recording early = record();
        EXPECT_TRUE(early.is_early());
        EXPECT_FALSE(early.complete());
    }
    EXPECT_TRUE(becomes_full([&] { record(); }));
    const Recording later = record();
    EXPECT_FALSE(later.is_early());
    EXPECT_TRUE(later.complete());
}

TEST_F(CudaFirstCalls, QueueCompactKernelsForAMomentOnly) {
    const Setting on("TILEWRIGHT_COMPACT", "1"), slow("TW_FAKE_COMPILE_SECONDS", "1");
    const Tensor large = Tensor::empty(bf16, {1, 1, 1 << 17, 64}, Device::cuda());  // 2.2e12
    const AttentionOptions options = new_mod();
    expect([&] { attention(large, large, large, options); }, 1, 0);
    expect([&] { attention(large, large, large, options); }, 0, 1);
}

TEST_F(CudaFirstCalls, WaitOnceTheyAreAskedTo) {
    const Setting on("TILEWRIGHT_COMPACT", "1"), slow("TW_FAKE_COMPILE_SECONDS", "1");
    const AttentionOptions options = new_mod();
    expect([&] { attention(x, x, x, options); }, 1, 0);
    const NoCompactKernels full;
    expect([&] { attention(x, x, x, options); }, 0, 1);
}

TEST_F(CudaFirstCalls, WaitWhereAskedTo) {
    const Setting off("TILEWRIGHT_COMPACT", "0");
    const AttentionOptions options = new_mod();
    const AttentionOutput output = attention(x, x, x, options);
    expect([&] { attention(x, x, x, new_mod()); }, 0, 1);
    expect([&] { attention_backward(x, x, x, output, x, options); }, 0, 1);
}

TEST_F(CudaFirstCalls, WaitWhileAnObjectAsksForIt) {
    const Setting on("TILEWRIGHT_COMPACT", "1");
    {
        const NoCompactKernels outer;
        { const NoCompactKernels inner; }
        expect([&] { attention(x, x, x, new_mod()); }, 0, 1);
    }
    expect([&] { attention(x, x, x, new_mod()); }, 1, 0);
}

TEST_F(CudaFirstCalls, WaitDuringCapture) {
    const Setting on("TILEWRIGHT_COMPACT", "1");
    attention(x, x, x, {.engine = "sm90"});
    const cuda::Driver& driver = cuda::driver();
    const cuda::Stream stream(0);
    const CudaScope scope(stream.handle());
    void* graph = nullptr;
    expect(
        [&] {
            driver.check(driver.cuStreamBeginCapture_v2(stream.handle(), 0), "capturing");
            attention(x, x, x, new_mod());
            driver.check(driver.cuStreamEndCapture(stream.handle(), &graph), "capturing");
        },
        0, 1);
    driver.cuGraphDestroy(graph);
}

TEST_F(CudaFirstCalls, WaitWhereCompactKernelsWouldTakeLong) {
    const Setting on("TILEWRIGHT_COMPACT", "1");
    const Tensor large = Tensor::empty(bf16, {1, 1, 1 << 18, 64}, Device::cuda());
    expect([&] { attention(large, large, large, new_mod()); }, 0, 1);
    AttentionOptions window = new_mod();
    window.window = {512, 0};
    expect([&] { attention(large, large, large, window); }, 1, 0);
}

/// What one call loads where compact kernels do not compile: names of units, in order.
struct Loads {
    std::vector<std::string> names;
    bool full_fails = false;

    int operator()(const std::vector<cuda::CompileRequest>& units) {
        names.push_back(units.front().name);
        const bool is_compact = names.back().starts_with("compact_");
        if (is_compact || full_fails) throw InternalError("no " + names.back());
        return 1;
    }
};

TEST_F(CudaFirstCalls, RunFullKernelsWhereCompactOnesDoNotCompile) {
    const Setting on("TILEWRIGHT_COMPACT", "1");
    attn::AttentionSpec spec;
    spec.batch = spec.query_heads = spec.query_length = spec.kv_length = 1;
    const attn::sm90::FirstCall call{&spec, nullptr};
    const auto load = [&](const std::string& name, Loads& loads) {
        const auto generate = [&] {
            cuda::CompileRequest unit;
            unit.name = name;
            unit.arch = "sm_90a";
            return std::vector{unit};
        };
        return attn::sm90::load_in_stages<int>(call, name, 0, generate, std::ref(loads));
    };
    const std::vector<std::string> both = {"compact_good.cu", "good.cu"};
    Loads good, bad;
    bad.full_fails = true;
    EXPECT_EQ(load("good.cu", good), 1);
    EXPECT_EQ(good.names, both);
    EXPECT_EQ(load("good.cu", good), 1);
    EXPECT_EQ(good.names, both);  // they are kept
    try {
        load("bad.cu", bad);
        FAIL() << "it loaded";
    } catch (const InternalError& error) {
        EXPECT_STREQ(error.what(), "no bad.cu");
    }
}

}  // namespace

namespace attn::sm90 {
namespace {

bool equal_bits(const Tensor& a, const Tensor& b) {
    const Tensor x = a.to(tilewright::Device()).contiguous(),
                 y = b.to(tilewright::Device()).contiguous();
    std::int64_t bytes = size_of(x.dtype());
    for (const std::int64_t extent : x.shape()) bytes *= extent;
    return std::memcmp(x.raw(), y.raw(), static_cast<std::size_t>(bytes)) == 0;
}

Tensor random_on_gpu(const Tensor::Dims& shape, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    const Tensor values = Tensor::empty(f32, shape);
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) values.data<float>()[i] = normal(generator);
    return values.to(bf16).to(tilewright::Device::cuda());
}

TEST(Sm90FirstCalls, CompactKernelsGiveTheSameBits) {
    TW_REQUIRE_GPU();
    if (cuda::device_info(0).arch() != "sm_90a") GTEST_SKIP() << "NOT RUN: no Hopper GPU";
    const Setting on("TILEWRIGHT_COMPACT", "1");
    for (const std::int64_t dim : {64, 104, 128, 192}) {
        // A mod with factors of the time, so that no kernel is on disk.
        const double factor = 1 + 1e-9 * static_cast<double>(::time(nullptr) % 100000000);
        AttentionOptions options;
        options.causal = true;
        options.gradient = true;
        options.score_mod = [factor](auto s, auto, auto, auto q, auto kv) {
            return s * factor + s * s * 0.01 - (q - kv) * 0.02;
        };
        const Tensor q = random_on_gpu({1, 2, 1500, dim}, 1),
                     k = random_on_gpu({1, 2, 1500, dim}, 2),
                     v = random_on_gpu({1, 2, 1500, dim}, 3);
        const auto both = [&] {
            const AttentionOutput out = attention(q, k, v, options);
            const AttentionGradients gradients = attention_backward(q, k, v, out, v, options);
            return std::vector{out.out, out.lse, gradients.query, gradients.key, gradients.value};
        };
        const Counts before;
        const std::vector<Tensor> compact = both();
        EXPECT_GE(Counts().first - before.first, 1U);
        const NoCompactKernels full;
        const std::vector<Tensor> later = both();
        for (std::size_t i = 0; i < compact.size(); ++i) {
            EXPECT_TRUE(equal_bits(compact[i], later[i])) << dim << " " << i;
        }
    }
}

TEST(Sm90FirstCalls, CompactKernelsCompileForEveryKindOfCall) {
    TW_REQUIRE_NVRTC();
    std::vector<cuda::CompileRequest> units;
    for (const std::int64_t dim : {64, 96, 128, 256}) {
        ForwardInputs inputs = inputs_of({.heads = 16,
                                          .kv_heads = 16,
                                          .q_len = 2048,
                                          .kv_len = 2048,
                                          .dim = dim,
                                          .value_dim = dim,
                                          .causal = true});
        if (dim == 64) inputs.dropout = 0.1;
        if (dim == 128) inputs.q_segments = inputs.kv_segments = 7 << 20;
        const ForwardDesc desc = check_forward(inputs);
        units.push_back(compact({generate_forward(desc, choose_forward(desc, 132))}).front());
        BackwardInputs backward;
        static_cast<ProblemInputs&>(backward) = inputs;
        backward.grad_query = inputs.query;
        backward.grad_key = inputs.key;
        backward.grad_value = inputs.value;
        backward.grad_out = inputs.out;
        const BackwardDesc of = check_backward(backward);
        for (cuda::CompileRequest& unit : compact(generate_backward(of, choose_backward(of)))) {
            const bool rows = unit.name.starts_with("rows_of_");
            EXPECT_EQ(unit.name.starts_with("compact_"), !rows) << unit.name;
            units.push_back(std::move(unit));
        }
    }
    for (const cuda::CompileRequest& unit : units) {
        EXPECT_NO_THROW(cuda::compile(unit)) << unit.name;
    }
}

}  // namespace
}  // namespace attn::sm90
}  // namespace tilewright
