// Plain C entry points of the CUDA attention backward kernels, for benchmarks that drive them
// through ctypes.
#include <algorithm>
#include <cstdint>

#include "attention/sm90/backward.h"
#include "attention_cuda_library.h"
#include "cuda/runtime/device.h"

namespace {

using tilewright::DType;
namespace sm90 = tilewright::attn::sm90;

}  // namespace

extern "C" {

/// One backward problem: shapes and strides, in elements, over (batch, head, row, column).
struct TwBenchBackward {
    std::int64_t is_f16;
    std::uint64_t query, key, value, out, grad_out, grad_query, grad_key, grad_value;
    std::uint64_t lse, grad_lse, workspace, profile;
    std::int64_t shapes[8][4];  ///< in the order above, from query to grad_value
    std::int64_t strides[8][4];
    double scale;
    std::int64_t causal, window;  ///< window: causal, at most this many keys back
    std::int64_t deterministic;
    std::int64_t block_m, stages;  ///< 0 rows per block: chosen by the heuristic
};

/// Without a workspace, returns the bytes it must have, -1 on failure. Otherwise compiles at the
/// first call of a configuration and launches on `stream`; returns 0 on success.
std::int64_t tw_bench_backward(const TwBenchBackward* call, void* stream) {
    std::int64_t bytes = 0;
    const int failed = tilewright::bench::guarded([&] {
        sm90::BackwardInputs inputs;
        inputs.dtype = call->is_f16 != 0 ? DType::f16 : DType::bf16;
        const std::uint64_t* const addresses = &call->query;
        sm90::DeviceTensor* const tensors[] = {
            &inputs.query,    &inputs.key,        &inputs.value,    &inputs.out,
            &inputs.grad_out, &inputs.grad_query, &inputs.grad_key, &inputs.grad_value};
        for (int i = 0; i < 8; ++i) {
            tensors[i]->address = addresses[i];
            std::copy_n(call->shapes[i], 4, tensors[i]->shape.begin());
            std::copy_n(call->strides[i], 4, tensors[i]->strides.begin());
        }
        inputs.lse = call->lse;
        inputs.grad_lse = call->grad_lse;
        inputs.workspace = call->workspace != 0 ? call->workspace : 256;
        inputs.profile = call->profile;
        inputs.scale = call->scale;
        inputs.deterministic = call->deterministic != 0;
        if (call->causal != 0) inputs.upper_diagonal = 0;
        if (call->window != 0) inputs.lower_diagonal = -call->window;
        const sm90::BackwardDesc desc = sm90::check_backward(inputs);
        const int device = tilewright::cuda::device_of(inputs.query.address, "query");
        sm90::BackwardConfig config = sm90::choose_backward(desc);
        if (call->block_m != 0) {
            config.block_m = static_cast<int>(call->block_m);
            config.stages = static_cast<int>(call->stages);
        }
        if (call->workspace == 0) {
            bytes = static_cast<std::int64_t>(sm90::backward_workspace_bytes(desc, config));
            return;
        }
        sm90::launch_backward(inputs, desc, config, sm90::load_backward(desc, config, device),
                              stream);
    });
    return failed != 0 ? -1 : bytes;
}

}  // extern "C"
