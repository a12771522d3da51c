// Plain C entry points of the CUDA attention kernels, for benchmarks that drive them through
// ctypes.
#include "attention_cuda_library.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "attention/sm90/forward.h"
#include "cuda/runtime/device.h"

namespace {

using tilewright::DType;
using tilewright::attn::sm90::DeviceTensor;
using tilewright::attn::sm90::ForwardConfig;
using tilewright::attn::sm90::ForwardDesc;
using tilewright::attn::sm90::ForwardInputs;
using tilewright::bench::guarded;
using tilewright::bench::last_error;

}  // namespace

extern "C" {

/// One forward problem: shapes and strides, in elements, over (batch, head, row, column).
struct TwBenchForward {
    std::int64_t is_f16;
    std::uint64_t query, key, value, out, lse, workspace, profile;
    std::int64_t shapes[4][4];  ///< query, key, value, out
    std::int64_t strides[4][4];
    double scale;
    std::int64_t causal, window;  ///< window: causal, at most this many keys back
    std::int64_t warpgroups, block_n, stages,
        query_buffers;  ///< 0 warpgroups: chosen by the heuristic
};

/// The text of this thread's last failure.
const char* tw_bench_error() {
    return last_error().c_str();
}

/// What doctor prints about CUDA.
const char* tw_bench_probe() {
    static const std::string text = tilewright::cuda::probe().text();
    return text.c_str();
}

/// Without a workspace, returns the bytes it must have, -1 on failure. Otherwise compiles at the
/// first call of a configuration and launches on `stream`; returns 0 on success.
std::int64_t tw_bench_forward(const TwBenchForward* call, void* stream) {
    std::int64_t bytes = 0;
    const int failed = guarded([&] {
        namespace sm90 = tilewright::attn::sm90;
        ForwardInputs inputs;
        inputs.dtype = call->is_f16 != 0 ? DType::f16 : DType::bf16;
        const auto tensor = [&](std::uint64_t address, int index) {
            DeviceTensor result;
            result.address = address;
            std::copy_n(call->shapes[index], 4, result.shape.begin());
            std::copy_n(call->strides[index], 4, result.strides.begin());
            return result;
        };
        inputs.query = tensor(call->query, 0);
        inputs.key = tensor(call->key, 1);
        inputs.value = tensor(call->value, 2);
        inputs.out = tensor(call->out, 3);
        inputs.lse = call->lse;
        inputs.workspace = call->workspace != 0 ? call->workspace : 256;
        inputs.profile = call->profile;
        inputs.scale = call->scale;
        if (call->causal != 0) inputs.upper_diagonal = 0;
        if (call->window != 0) inputs.lower_diagonal = -call->window;
        const ForwardDesc desc = sm90::check_forward(inputs);
        const int device = tilewright::cuda::device_of(inputs.query.address, "query");
        ForwardConfig config =
            sm90::choose_forward(desc, tilewright::cuda::device_info(device).multiprocessors);
        if (call->warpgroups != 0) {
            config.stream_k = 0;
            config.group = 1;
            config.warpgroups = static_cast<int>(call->warpgroups);
            config.block_n = static_cast<int>(call->block_n);
            config.stages = static_cast<int>(call->stages);
            config.query_buffers = static_cast<int>(call->query_buffers);
        }
        if (call->workspace == 0) {
            bytes = static_cast<std::int64_t>(sm90::forward_workspace_bytes(desc, config));
            return;
        }
        sm90::launch_forward(inputs, desc, config, sm90::load_forward(desc, config, device),
                             stream);
    });
    return failed != 0 ? -1 : bytes;
}

}  // extern "C"
