// The blocks of attention's tile programs fit the shared memory of each GPU, for every dtype and
// head dimension.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attention/tiles/backward.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/forward.h"
#include "attention/tiles/options.h"
#include "cuda/codegen/generate.h"
#include "ir/parse.h"
#include "tests/cuda/test_support.h"

namespace tilewright::attn::tiles {
namespace {

void expect_to_fit(const Call& call, std::vector<Tensor> inputs, int shared_bytes) {
    inputs.resize(call.options().in.size());
    cuda::Target target = cuda::target_of("sm_80");
    target.shared_bytes = shared_bytes;
    const ir::Function program = cuda::prepare(ir::parse(call.ir(inputs)));
    target.facts.assign(program.parameters().size(), {.vectors = true, .dense = true});
    EXPECT_NO_THROW(cuda::generate(program, target));
}

TEST(GpuBlocks, FitTheSharedMemoryOfEveryGpu) {
    struct Inputs {
        DType dtype;
        Products products;
    };
    for (const auto& [dtype, products] : {Inputs{bf16, Products::ieee},
                                          {f32, Products::ieee},
                                          {f32, Products::tf32},
                                          {f32, Products::bf16x3},
                                          {f64, Products::ieee}}) {
        for (const std::int64_t dim : {16, 40, 64, 96, 128, 192, 256, 512}) {
            const Tensor x = Tensor::zeros(dtype, {1, 2, 256, dim});
            const Tensor row = Tensor::zeros(dtype == f64 ? f64 : f32, {1, 2, 256});
            for (const int kilobytes : {99, 163, 227}) {
                SCOPED_TRACE(name(dtype));
                SCOPED_TRACE(name(products));
                SCOPED_TRACE(dim);
                SCOPED_TRACE(kilobytes);
                const GpuProblem problem{.dtype = dtype,
                                         .head_dim = dim,
                                         .value_dim = dim,
                                         .query_length = 256,
                                         .kv_length = 256,
                                         .tested = false,
                                         .deterministic = true,
                                         .shared_bytes = kilobytes * 1024,
                                         .products = products};
                Options options{.scale = 1, .causal = true, .products = products};
                use_gpu_blocks(options, problem);
                expect_to_fit(forward(options, {}, true), {x, x, x}, problem.shared_bytes);
                use_gpu_backward_blocks(options, problem);
                expect_to_fit(backward(options, {}, {}), {x, x, x, x, row, row},
                              problem.shared_bytes);
                GpuProblem few = problem;
                few.query_length = 1;
                for (const std::int64_t group : {1, 8, 32, 64, 128}) {
                    SCOPED_TRACE(group);
                    Options split{.scale = 1, .group = group, .products = products};
                    use_gpu_blocks(split, few);
                    if (!use_gpu_decode_blocks(split, few, group)) {
                        // The rows alone are about as large as shared memory.
                        EXPECT_GT(group * dim * size_of(dtype) * 4 / 3, problem.shared_bytes);
                        continue;
                    }
                    const Tensor rows = Tensor::zeros(dtype, {1, 2, group, dim});
                    expect_to_fit(decode(split, {}), {rows, x, x}, problem.shared_bytes);
                }
            }
        }
    }
}

/// The CUDA of a program for this GPU.
cuda::CompileRequest request_of(const Call& call, std::vector<Tensor> inputs,
                                const cuda::Target& target) {
    inputs.resize(call.options().in.size());
    cuda::Target with_facts = target;
    const ir::Function program = cuda::prepare(ir::parse(call.ir(inputs)));
    with_facts.facts.assign(program.parameters().size(), {.vectors = true, .dense = true});
    cuda::CompileRequest request;
    request.source = cuda::generate(program, with_facts).source;
    request.arch = target.arch;
    request.spill_limit_bytes = 0;
    return request;
}

TEST(GpuBlocks, OfEarlierGpusCompileWithoutSpills) {
    TW_REQUIRE_NVRTC();
    std::vector<cuda::CompileRequest> requests;
    for (const char* arch : {"sm_80", "sm_86", "sm_89"}) {
        const cuda::Target target = cuda::target_of(arch);
        for (const std::int64_t dim : {64, 128}) {
            const Tensor x = Tensor::zeros(bf16, {1, 2, 4096, dim});
            const Tensor row = Tensor::zeros(f32, {1, 2, 4096});
            const auto add = [&](const char* name, const Call& call, std::vector<Tensor> inputs) {
                requests.push_back(request_of(call, std::move(inputs), target));
                requests.back().name = std::string(name) + "_" + std::to_string(dim) + ".cu";
            };
            GpuProblem problem{.dtype = bf16,
                               .heads = 64,
                               .head_dim = dim,
                               .value_dim = dim,
                               .query_length = 4096,
                               .kv_length = 4096,
                               .shared_bytes = target.shared_bytes};
            Options options{.scale = 1, .causal = true};
            use_gpu_blocks(options, problem);
            Options of_split = options;
            of_split.causal = false;
            of_split.split_k = 512;
            add("split", forward(of_split, {}, true), {x, x, x});
            use_gpu_queries(options, problem);
            EXPECT_EQ(options.block_q, dim == 64 ? 128 : 64);
            add("forward", forward(options, {}, true), {x, x, x});
            for (const bool deterministic : {false, true}) {
                problem.deterministic = deterministic;
                Options backwards{.scale = 1, .causal = true};
                use_gpu_blocks(backwards, problem);
                use_gpu_backward_blocks(backwards, problem);
                backwards.fragments = true;
                backwards.unordered = !deterministic;
                const Call call = backward(backwards, {}, {});
                std::vector<Tensor> inputs{x, x, x, x, row, row};
                inputs.resize(call.options().in.size());
                const std::int64_t parts = deterministic ? num_splits(true, 1, 2, 4096) : 1;
                inputs.back() = Tensor::zeros(
                    f32, {parts, 1, 2, 4096 / backwards.block_q, backwards.block_q * dim});
                add(deterministic ? "backward" : "backward_unordered", call, inputs);
            }
        }
    }
    testing_support::expect_to_compile(requests);
}

TEST(GpuBlocks, OfF32HaveFewerQueriesWhereAllProgramsRunAtTheSameTime) {
    const auto queries = [](std::int64_t heads, std::int64_t length, std::int64_t dim,
                            Products products) {
        Options options;
        use_gpu_blocks(options, {.dtype = f32,
                                 .heads = heads,
                                 .head_dim = dim,
                                 .value_dim = dim,
                                 .query_length = length,
                                 .kv_length = 4096,
                                 .shared_bytes = 227 * 1024,
                                 .multiprocessors = 132,
                                 .products = products});
        return options.block_q;
    };
    EXPECT_EQ(queries(16, 1024, 128, Products::tf32), 128);  // 64 blocks of 128, 256 of 64
    EXPECT_EQ(queries(16, 512, 128, Products::tf32), 64);    // 128 of 64
    EXPECT_EQ(queries(16, 256, 128, Products::tf32), 32);    // 128 of 32
    EXPECT_EQ(queries(64, 256, 128, Products::tf32), 128);
    EXPECT_EQ(queries(64, 256, 128, Products::ieee), 64);
    EXPECT_EQ(queries(16, 256, 64, Products::bf16x3), 32);
    EXPECT_EQ(queries(16, 512, 64, Products::bf16x3), 64);
    // They fit in one block of 32, however many programs there are.
    EXPECT_EQ(queries(1024, 20, 128, Products::tf32), 32);
    EXPECT_EQ(queries(1024, 40, 128, Products::tf32), 64);
}

}  // namespace
}  // namespace tilewright::attn::tiles
