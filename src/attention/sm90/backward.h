// Attention backward on Hopper: check the inputs, choose a configuration, generate the kernels,
// launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "attention/sm90/device_tensor.h"
#include "cuda/runtime/kernel.h"
#include "tilewright/dtype.h"

namespace tilewright::attn::sm90 {

inline constexpr std::int64_t kMaxBackwardDim = 128;  ///< of D and of Dv

/// What a caller gives. Everything lies on one device and stays alive until the launches are done.
struct BackwardInputs {
    DType dtype = DType::bf16;         ///< bf16 or f16, of all tensors
    DeviceTensor query;                ///< (B, H, Lq, D)
    DeviceTensor key;                  ///< (B, Hkv, Lk, D), H a multiple of Hkv
    DeviceTensor value;                ///< (B, Hkv, Lk, Dv)
    DeviceTensor out;                  ///< (B, H, Lq, Dv), of the forward
    cuda::DeviceAddress lse = 0;       ///< f32 (B, H, Lq) contiguous, of the forward: natural log
    DeviceTensor grad_out;             ///< (B, H, Lq, Dv)
    cuda::DeviceAddress grad_lse = 0;  ///< f32 (B, H, Lq) contiguous, or 0
    DeviceTensor grad_query, grad_key, grad_value;  ///< written; shapes of query, key and value
    double scale = 1.0;
    /// Row q sees keys from q + lower to q + upper; causal is an upper diagonal of 0.
    std::optional<std::int64_t> lower_diagonal, upper_diagonal;
    bool deterministic = true;  ///< dQ is summed in a fixed order: the same bits in every run
    cuda::DeviceAddress workspace = 0;  ///< backward_workspace_bytes of scratch, aligned to 256,
                                        ///< for one call at a time
    cuda::DeviceAddress profile = 0;  ///< 3 u64 per multiprocessor: cycles, start and end ns; or 0
};

/// The problem, checked; every quantity that configuration and kernels depend on.
struct BackwardDesc {
    DType dtype = DType::bf16;
    int query_dim = 0;         ///< D
    int value_dim = 0;         ///< Dv
    bool upper_bound = false;  ///< keys end at a diagonal (causal)
    bool lower_bound = false;  ///< and begin at one (window); implies upper_bound
    bool deterministic = true;
    std::int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
    std::int64_t lower_diagonal = 0, upper_diagonal = 0;
};

/// How the kernels are built: one cubin per (BackwardConfig, dtype, dims, bounds).
struct BackwardConfig {
    int warpgroups = 2;  ///< consumers of 64 keys each
    int block_m = 64;    ///< query rows of a block, a multiple of 16
    int stages = 2;      ///< buffers of Q and of dO

    int block_n() const { return 64 * warpgroups; }
    bool operator==(const BackwardConfig&) const = default;
};

/// The three kernels of one configuration, from one cubin.
struct BackwardKernels {
    cuda::Kernel prepare, main, finish;
};

/// Refuses by name what this engine cannot serve: UserError with the argument, the rule and the
/// value.
BackwardDesc check_backward(const BackwardInputs& inputs);

/// The configuration that measured fastest for such problems (docs/benchmarks-gpu.md).
BackwardConfig choose_backward(const BackwardDesc& desc);

/// Bytes of shared memory the main kernel of a configuration takes.
int backward_shared_bytes(const BackwardDesc& desc, const BackwardConfig& config);

/// Bytes of scratch: f32 sums of dQ, two numbers per query row, counters.
std::size_t backward_workspace_bytes(const BackwardDesc& desc, const BackwardConfig& config);

/// The kernels' translation unit, compilable without a GPU.
cuda::CompileRequest generate_backward(const BackwardDesc& desc, const BackwardConfig& config);

/// Compiles and loads; to be called before a launch is captured in a graph. Kernels stay loaded.
const BackwardKernels& load_backward(const BackwardDesc& desc, const BackwardConfig& config,
                                     int device);

/// Launches loaded kernels: nothing allocated, nothing waited for.
void launch_backward(const BackwardInputs& inputs, const BackwardDesc& desc,
                     const BackwardConfig& config, const BackwardKernels& kernels,
                     cuda::StreamHandle stream);

/// All four steps. The workspace is that of check_backward's and choose_backward's results.
void backward(const BackwardInputs& inputs, cuda::StreamHandle stream);

}  // namespace tilewright::attn::sm90
