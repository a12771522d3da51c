// How calls of `attention` on GPU tensors run: the choice of engine, hints, caches, graphs, memory
// of the caller, recordings, bad input. On a GPU or the stand-in for one (tests/cuda/fake).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "cuda/runtime/memory.h"
#include "tests/attention/cuda_calls.h"
#include "tests/cuda/graph.h"
#include "tests/support/throws.h"
#include "tilewright/attention.h"
#include "tilewright/masks.h"
#include "tilewright/recording.h"
#include "tilewright/run.h"
#include "tilewright/scores.h"

namespace tilewright {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::throws;

using namespace cuda_calls;

TEST(CudaCalls, TheEngineIsChosenVisiblyAndRefusedByName) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(f32, {1, 1, 16, 16}, 1).to(kGpu);
    const auto message = [&](const std::string& engine, const Tensor& x) {
        try {
            attention(x, x, x, {.engine = engine});
        } catch (const UserError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_THAT(message("fast", q),
                AllOf(HasSubstr("expected engine `tiles` or `sm90`"), HasSubstr("but got `fast`")));
    EXPECT_THAT(message("sm90", q),
                HasSubstr("expected a forward pass that engine `sm90` can run"));
    EXPECT_THAT(message("sm90", q.to(Device{})), HasSubstr("the tensors are in CPU memory"));
    EXPECT_THAT(logged([&] { attention(q, q, q); }),
                HasSubstr("slow path: forward: tile programs, since "));
    EXPECT_THAT(logged([&] { attention(q.to(Device{}), q.to(Device{}), q.to(Device{})); }),
                HasSubstr("forward: tile programs, since the tensors are in CPU memory"));
    if (!has_sm90()) return;
    const Tensor x = q.to(bf16);
    EXPECT_THAT(logged([&] { attention(x, x, x); }), HasSubstr("sm90 forward: tiles of"));
    EXPECT_THAT(logged([&] { attention(x, x, x, {.engine = "tiles"}); }),
                HasSubstr("tile programs, as asked for"));
}

TEST(CudaCalls, BlocksAreHintsAndMayBeMeasured) {
    TW_REQUIRE_GPU();
    if (!has_sm90()) return;
    const Tensor q = random_tensor(bf16, {1, 1, 2000, 64}, 1).to(kGpu);
    const auto log_of = [&](const AttentionOptions& options) {
        return logged([&] {
            const AttentionOutput out = attention(q, q, q, options);
            attention_backward(q, q, q, out, q, options);
        });
    };
    const std::string by_itself = log_of({.causal = true});
    EXPECT_THAT(by_itself, HasSubstr("sm90 forward: tiles of 192 x 96"));
    EXPECT_THAT(by_itself, HasSubstr("sm90 backward: tiles of 128 x 128"));
    const std::string hinted = log_of(
        {.causal = true, .forward_blocks = {.q = 100, .kv = 200}, .backward_blocks = {.q = 32}});
    EXPECT_THAT(hinted, HasSubstr("sm90 forward: tiles of 128 x 128"));
    EXPECT_THAT(hinted, HasSubstr("sm90 backward: tiles of 64 x 128"));

    const std::string folder =
        ::testing::TempDir() + "/tilewright_tune_" + std::to_string(::getpid());
    ::setenv("TILEWRIGHT_CACHE_DIR", folder.c_str(), 1);
    const AttentionOptions tuned{.causal = true, .autotune = true};
    const std::string measured = log_of(tuned);
    EXPECT_THAT(measured, HasSubstr("forward bf16 q 1x1x2000x64 kv 1x1x2000x64 on cuda:0"));
    EXPECT_THAT(measured, HasSubstr(" is the fastest of 4"));
    EXPECT_THAT(measured, HasSubstr(" is the fastest of 2"));
    EXPECT_THAT(log_of(tuned), Not(HasSubstr("is the fastest")));
    ::unsetenv("TILEWRIGHT_CACHE_DIR");
    std::filesystem::remove_all(folder);

    for (const AttentionOptions& options :
         {tuned, AttentionOptions{.causal = true, .forward_blocks = {.q = 192, .kv = 64}}}) {
        check({.name = "blocks",
               .heads = 1,
               .length = 2000,
               .kv_length = 2000,
               .dim = 64,
               .options = [&](Device) { return options; }},
              "sm90");
    }
}

/// Equal up to the rounding of bf16: other accesses to the inputs may change the order of a sum.
void expect_same(const Tensor& a, const Tensor& b) {
    EXPECT_THAT(a.to_vector<float>(),
                ::testing::Pointwise(::testing::FloatNear(0.03F), b.to_vector<float>()));
}

TEST(CudaCalls, TileProgramsHaveTheWarpsAndStagesAskedFor) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(bf16, {1, 1, 70, 64}, 1).to(kGpu);
    const AttentionOutput want = attention(q, q, q, {.engine = "tiles"});
    const auto run = [&](const AttentionBlocks& forward, const AttentionBlocks& backward) {
        const AttentionOptions options{
            .engine = "tiles", .forward_blocks = forward, .backward_blocks = backward};
        const AttentionOutput out = attention(q, q, q, options);
        expect_same(want.out, out.out);
        attention_backward(q, q, q, out, q, options);
    };
    const auto error_of = [&](const AttentionBlocks& forward, const AttentionBlocks& backward) {
        try {
            run(forward, backward);
        } catch (const UserError& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    };
    // At most 16 warps are supported, and wgmma needs warpgroups; both are logged.
    EXPECT_THAT(logged([&] { run({.num_warps = 32}, {}); }),
                AnyOf(HasSubstr("attention: num_warps 32 is rounded down to 16"),
                      HasSubstr("attention: num_warps 32 is not used: wgmma has 8")));
    EXPECT_THAT(logged([&] { run({}, {.num_warps = 64}); }),
                HasSubstr("attention_backward: num_warps 64 is rounded down to 16"));
    EXPECT_THAT(error_of({.num_warps = 3}, {}),
                HasSubstr("expected num_warps to be a power of two but got 3"));
    EXPECT_THAT(error_of({.num_stages = 1000}, {}), HasSubstr("for 1000 stages"));
    EXPECT_THAT(error_of({}, {.num_stages = 1000}), HasSubstr("for 1000 stages"));
    EXPECT_THAT(error_of({.num_warps = -1}, {}),
                HasSubstr("expected num_warps of 0 to 1024 but got -1"));
}

TEST(CudaCalls, AMaskIsCopiedOnce) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(bf16, {1, 2, 70, 16}, 1).to(kGpu);
    const auto call = [&] {
        // A lambda with the same code gives the same mask.
        attention(q, q, q,
                  {.mask = [](auto, auto, auto i, auto j) { return i >= j && i < j + 40; }});
    };
    EXPECT_THAT(logged(call), HasSubstr("is copied to cuda:0"));
    EXPECT_THAT(logged(call), Not(HasSubstr("is copied to cuda:0")));
}

TEST(CudaCalls, MisalignedViewsAreSlowerNeverWrong) {
    TW_REQUIRE_GPU();
    const Tensor wide = random_tensor(bf16, {1, 2, 70, 40}, 1),
                 dense = wide.slice(3, 3, 16).clone();
    const Tensor view = wide.to(kGpu).slice(3, 3, 16), x = dense.to(kGpu);
    AttentionOutput got;
    EXPECT_THAT(logged([&] { got = attention(view, view, view); }), HasSubstr("slow path: "));
    expect_same(got.out, attention(x, x, x).out);
    const Tensor every_other = wide.to(kGpu).slice(3, 1, 16, 2);
    const Tensor same = wide.slice(3, 1, 16, 2).clone().to(kGpu);
    expect_same(attention(every_other, every_other, every_other).out,
                attention(same, same, same).out);
}

/// Captures `work` in a graph and launches it after `change`.
void replay(const cuda::Stream& stream, const std::function<void()>& work,
            const std::function<void()>& change) {
    const testing_support::Graph graph(stream, work);
    change();
    graph.launch(stream);
    synchronize(kGpu);
}

TEST(CudaCalls, GraphsCaptureBothPasses) {
    TW_REQUIRE_GPU();
    const cuda::Stream stream(0);
    const CudaScope scope(stream.handle());
    const Tensor q = random_tensor(bf16, {1, 2, 70, 16}, 1).to(kGpu),
                 other = random_tensor(bf16, {1, 2, 70, 16}, 2).to(kGpu),
                 dout = random_tensor(bf16, {1, 2, 70, 16}, 3).to(kGpu);
    const Tensor x = q.clone();
    const BlockMask mask = create_block_mask(masks::sliding_window(20), 1, 1, 70, 70);
    const AttentionOptions plain{.causal = true, .dropout = 0.25, .seed = 77},
        listed{.causal = true, .block_mask = mask};
    for (AttentionOptions options : {plain, listed}) {
        for (const char* engine : {"tiles", ""}) {
            SCOPED_TRACE(engine);
            options.engine = engine;
            AttentionOutput forward;
            AttentionGradients gradients;
            const auto work = [&] {
                forward = attention(x, x, x, options);
                gradients = attention_backward(x, x, x, forward, dout, options);
            };
            x.copy_from(q);
            work();  // compiles and loads
            replay(stream, work, [&] { x.copy_from(other); });
            const AttentionOutput want = attention(other, other, other, options);
            const AttentionGradients want_gradients =
                attention_backward(other, other, other, want, dout, options);
            EXPECT_EQ(forward.out.to_vector<float>(), want.out.to_vector<float>());
            EXPECT_EQ(gradients.query.to_vector<float>(), want_gradients.query.to_vector<float>());
            EXPECT_EQ(gradients.value.to_vector<float>(), want_gradients.value.to_vector<float>());
        }
    }
}

TEST(CudaCalls, ACaptureLoadsTheKernelsThatItNeeds) {
    TW_REQUIRE_GPU();
    const cuda::Stream stream(0);
    const CudaScope scope(stream.handle());
    const Tensor q = random_tensor(f16, {1, 1, 20, 48}, 1).to(kGpu),
                 other = random_tensor(f16, {1, 1, 20, 48}, 2).to(kGpu);
    for (const char* engine : {"tiles", ""}) {
        SCOPED_TRACE(engine);
        const AttentionOptions options{.window = {3, 2}, .engine = engine};
        const Tensor x = q.clone();
        AttentionGradients gradients;
        const auto work = [&] {
            gradients = attention_backward(x, x, x, attention(x, x, x, options), x, options);
        };
        replay(stream, work, [&] { x.copy_from(other); });
        const Tensor replayed = gradients.query;
        work();
        EXPECT_EQ(replayed.to_vector<float>(), gradients.query.to_vector<float>());
    }
}

TEST(CudaCalls, MemoryOfTheCallerIsUsed) {
    TW_REQUIRE_GPU();
    const Tensor q = random_tensor(bf16, {1, 2, 70, 16}, 1).to(kGpu);
    const AttentionOutput want = attention(q, q, q, {.causal = true});
    const AttentionOutput into{
        Tensor::zeros(bf16, q.shape(), kGpu), Tensor::zeros(f32, {1, 2, 70}, kGpu), {}};
    std::int64_t asked = 0;
    {
        const CudaScope scope(nullptr, [&](std::int64_t bytes) {
            asked += bytes;
            auto buffer = std::make_shared<cuda::Buffer>(0, static_cast<std::size_t>(bytes));
            void* const memory = reinterpret_cast<void*>(buffer->address());
            return std::shared_ptr<void>(std::move(buffer), memory);
        });
        attention_into(into, q, q, q, {.causal = true});
        EXPECT_EQ(asked, 0) << "little scratch memory is the library's own";
        const AttentionOutput returned = attention(q, q, q, {.causal = true});
        EXPECT_GE(asked, q.size() * 2);
        EXPECT_EQ(returned.out.to_vector<float>(), want.out.to_vector<float>());
    }
    EXPECT_EQ(into.out.to_vector<float>(), want.out.to_vector<float>());
    EXPECT_EQ(into.lse.to_vector<float>(), want.lse.to_vector<float>());
    EXPECT_THAT(
        [&] {
            attention_into({Tensor::zeros(f32, q.shape(), kGpu), into.lse, {}}, q, q, q);
        },
        throws("expected out.out"));
    EXPECT_THAT(
        [&] {
            attention_into({into.out, Tensor::zeros(f32, {1, 2, 70}), {}}, q, q, q);
        },
        throws("expected out.lse"));
}

TEST(CudaCalls, RecordingsRepeatBothPassesOnOtherArrays) {
    TW_REQUIRE_GPU();
    for (const DType dtype : {bf16, f32}) {
        const auto arrays = [&](unsigned seed) {
            std::vector<Tensor> made;
            for (unsigned i = 0; i < 4; ++i)
                made.push_back(random_tensor(dtype, {1, 2, 70, 16}, seed + i).to(kGpu));
            made.push_back(random_tensor(f32, {2}, seed + 4).to(kGpu));
            for (int i = 0; i < 4; ++i)
                made.push_back(Tensor::full(dtype, {1, 2, 70, 16}, NAN, kGpu));
            made.push_back(Tensor::full(f32, {1, 2, 70}, NAN, kGpu));
            made.push_back(Tensor::full(f32, {2}, NAN, kGpu));
            return made;
        };
        const auto run = [](const std::vector<Tensor>& a) {
            AttentionOptions options{.causal = true};
            options.score_mod = scores::alibi(capture(a[4], "slopes"));
            attention_into({a[5], a[9], {}}, a[0], a[1], a[2], options);
            AttentionGradients gradients{a[6], a[7], a[8], {}, {a[10]}};
            attention_backward_into(gradients, a[0], a[1], a[2], {a[5], a[9], {}}, a[3], options);
        };
        const std::vector first = arrays(1), direct = arrays(7), repeated = arrays(7);
        run(first);
        Recording recording = Recording::of(first, run);
        // Compact kernels run until the full ones are compiled.
        for (int i = 0; i < 600 && recording.is_early(); ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            recording = Recording::of(first, run);
        }
        ASSERT_FALSE(recording.is_early());
        // Only those of the engine for Hopper GPUs.
        const bool repeats = dtype == bf16 && cuda::device_info(0).major == 9;
        ASSERT_EQ(recording.complete(), repeats);
        if (!repeats) continue;
        run(direct);
        std::vector<void*> addresses;
        for (const Tensor& array : repeated) addresses.push_back(array.raw());
        EXPECT_TRUE(recording.repeat(addresses));
        for (std::size_t i = 5; i < direct.size(); ++i)
            EXPECT_EQ(repeated[i].to_vector<float>(), direct[i].to_vector<float>()) << i;
    }
}

TEST(CudaCalls, BadInputIsRefusedByName) {
    TW_REQUIRE_GPU();
    const Tensor host = random_tensor(f32, {1, 1, 16, 16}, 1), q = host.to(kGpu);
    const auto message = [](const std::function<void()>& call) {
        try {
            call();
        } catch (const std::exception& error) {
            return std::string(error.what());
        }
        return std::string("nothing was thrown");
    };
    EXPECT_THAT(message([&] { attention(q, host, q); }),
                HasSubstr("expected key on cuda:0, where the query is, but got f32[1, 1, 16, 16] "
                          "on cpu"));
    EXPECT_THAT(message([&] { attention(q, q, q, {.sinks = Tensor::zeros(f32, {1})}); }),
                HasSubstr("expected sinks on cuda:0"));
    const Tensor far_table = Tensor::zeros(f32, {1}, kGpu);
    const AttentionOptions reads_gpu{.score_mod = scores::alibi(capture(far_table, "table"))};
    EXPECT_THAT(message([&] { attention(host, host, host, reads_gpu); }),
                HasSubstr("expected capture `table` of the score_mod on cpu"));
    EXPECT_THAT(message([&] { attention(q, q, q, {.checked = true}); }),
                HasSubstr("expected inputs in CPU memory in the checked mode"));
    const Tensor lie = Tensor::from_data(host.raw(), f32, host.shape(), {}, {}, kGpu);
    EXPECT_THAT(message([&] { attention(lie, lie, lie); }), HasSubstr("host address"));
    if (cuda::device_count() > 1) {
        const Tensor far = host.to(Device::cuda(1));
        EXPECT_THAT(message([&] { attention(q, far, q); }), HasSubstr("on cuda:1"));
        const Tensor wrong = Tensor::from_data(far.raw(), f32, far.shape(), {}, {}, kGpu);
        EXPECT_THAT(message([&] { attention(wrong, wrong, wrong); }),
                    HasSubstr("expected query in the memory of cuda:0 but it is in cuda:1's"));
    }
    EXPECT_THAT(message([&] { Tensor::empty(f32, {std::int64_t{1} << 42}, kGpu); }),
                HasSubstr("out of memory"));
    // Calls still work after all of these errors.
    EXPECT_EQ(attention(q, q, q).out.device(), kGpu);
}

}  // namespace
}  // namespace tilewright
