// Blocks that attention's tile programs take on GPUs fit the shared memory of each, for every dtype
// and head dimension.
#include <gtest/gtest.h>

#include "attention/tiles/backward.h"
#include "attention/tiles/forward.h"
#include "attention/tiles/options.h"
#include "cuda/codegen/generate.h"
#include "ir/parse.h"

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
            }
        }
    }
}

}  // namespace
}  // namespace tilewright::attn::tiles
