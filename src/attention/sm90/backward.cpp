// Host side of the Hopper backward kernels.
#include "attention/sm90/backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "attention/sm90/backward_parameters.h"
#include "cuda/codegen/wgmma_shapes.h"

namespace tilewright::attn::sm90 {
namespace {

constexpr std::int64_t kGroupBytes = 32ll << 20;  // Q, dO and dQ of heads that run side by side
constexpr double kLateShare = 0.2;     // tiles this much shorter than the longest run last
constexpr unsigned kRowThreads = 256;  // of the kernels around the main one

/// Where the parts of the workspace begin, in bytes.
struct Workspace {
    std::size_t sums, row_lse, row_delta, turns, tickets, bytes;
};

/// Columns of the 64 rows of dQ, or of dQ^T, that a warpgroup multiplies (backward_layout.cuh).
std::int64_t grad_columns(const BackwardDesc& desc, const BackwardConfig& config) {
    return config.block_m == config.block_n() ? desc.query_dim : config.block_m;
}

Workspace workspace_of(const BackwardDesc& desc, const BackwardConfig& config) {
    const auto padded = [](std::int64_t bytes) {
        return static_cast<std::size_t>(ceil_div(bytes, 256) * 256);
    };
    const std::int64_t blocks = desc.batch * desc.heads * ceil_div(desc.q_len, config.block_m);
    Workspace parts{};
    parts.row_lse = padded(blocks * config.warpgroups * 64 * grad_columns(desc, config) * 4);
    parts.row_delta = parts.row_lse + padded(blocks * config.block_m * 4);
    parts.turns = parts.row_delta + padded(blocks * config.block_m * 4);
    parts.tickets = parts.turns + padded(blocks * config.warpgroups * 4);
    parts.bytes = parts.tickets + 256;
    return parts;
}

tw::attn::Rows rows_of(const DeviceTensor& tensor) {
    return {reinterpret_cast<void*>(tensor.address), tensor.strides[0], tensor.strides[1],
            tensor.strides[2]};
}

}  // namespace

BackwardDesc check_backward(const BackwardInputs& inputs) {
    require(inputs.dtype == DType::bf16 || inputs.dtype == DType::f16, "query",
            "bf16 or f16 elements", name(inputs.dtype));
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    const std::int64_t kv_heads = inputs.key.shape[1], kv_len = inputs.key.shape[2];
    const std::int64_t value_dim = inputs.value.shape[3];
    constexpr std::int64_t kMaxInt = 1 << 29;  // sums of two positions stay in an int
    require(batch >= 0 && heads >= 1, "query", "at least one head", heads);
    require(kv_heads >= 1 && heads % kv_heads == 0, "key", "a number of heads that divides query's",
            kv_heads);
    require(dim >= 8 && dim <= kMaxBackwardDim && dim % 8 == 0, "query",
            "a head dimension that is a multiple of 8 up to 128", dim);
    require(value_dim >= 8 && value_dim <= kMaxBackwardDim && value_dim % 8 == 0, "value",
            "a head dimension that is a multiple of 8 up to 128", value_dim);
    require(kv_len >= 0 && kv_len <= kMaxInt, "key", "at most 2^29 rows", kv_len);
    require(q_len >= 0 && q_len <= kMaxInt, "query", "at most 2^29 rows", q_len);
    require(batch * heads * ceil_div(std::max(q_len, kv_len), 64) <= kMaxInt, "query",
            "at most 2^29 tiles of 64 rows", batch * heads * ceil_div(std::max(q_len, kv_len), 64));
    require(std::isfinite(inputs.scale), "scale", "a finite number", inputs.scale);
    check_tensor(inputs.query, "query", {batch, heads, q_len, dim});
    check_tensor(inputs.key, "key", {batch, kv_heads, kv_len, dim});
    check_tensor(inputs.value, "value", {batch, kv_heads, kv_len, value_dim});
    check_tensor(inputs.out, "out", {batch, heads, q_len, value_dim});
    check_tensor(inputs.grad_out, "grad_out", {batch, heads, q_len, value_dim});
    check_tensor(inputs.grad_query, "grad_query", {batch, heads, q_len, dim});
    check_tensor(inputs.grad_key, "grad_key", {batch, kv_heads, kv_len, dim});
    check_tensor(inputs.grad_value, "grad_value", {batch, kv_heads, kv_len, value_dim});
    require(inputs.lse != 0 && inputs.lse % 4 == 0, "lse", "an address that is a multiple of 4",
            inputs.lse);
    require(inputs.grad_lse % 4 == 0, "grad_lse", "an address that is a multiple of 4",
            inputs.grad_lse);
    require(inputs.workspace != 0 && inputs.workspace % 256 == 0, "workspace",
            "an address that is a multiple of 256", inputs.workspace);

    BackwardDesc desc;
    desc.dtype = inputs.dtype;
    desc.query_dim = static_cast<int>(dim);
    desc.value_dim = static_cast<int>(value_dim);
    desc.deterministic = inputs.deterministic;
    desc.lower_bound = inputs.lower_diagonal.has_value();
    desc.upper_bound = desc.lower_bound || inputs.upper_diagonal.has_value();
    // Diagonals outside the rectangle mean what its corners mean.
    desc.lower_diagonal = std::clamp(inputs.lower_diagonal.value_or(-q_len), -q_len, kv_len);
    desc.upper_diagonal = std::clamp(inputs.upper_diagonal.value_or(kv_len), -q_len, kv_len);
    desc.batch = batch;
    desc.heads = heads;
    desc.kv_heads = kv_heads;
    desc.q_len = q_len;
    desc.kv_len = kv_len;
    return desc;
}

BackwardConfig choose_backward(const BackwardDesc& desc) {
    const int dim = std::max(desc.query_dim, desc.value_dim);
    if (dim <= 64) return {.block_m = 128};
    if (dim <= 96) return {.block_m = 64};
    return {.block_m = 80};
}

int backward_shared_bytes(const BackwardDesc& desc, const BackwardConfig& config) {
    const std::int64_t panels = ceil_div(desc.query_dim, kPanel) + ceil_div(desc.value_dim, kPanel);
    const std::int64_t key_value = panels * config.block_n() * 128;
    const std::int64_t blocks =
        config.stages * (panels * config.block_m * 128 + 8 * config.block_m);
    const std::int64_t scores = 2 * config.warpgroups * config.block_m * 128;
    const std::int64_t grads = config.warpgroups * 64 * grad_columns(desc, config) * 4;
    constexpr std::int64_t kBarriers = 256, kAlignment = 1024;
    return static_cast<int>(key_value + blocks + scores + grads + kBarriers + kAlignment);
}

std::size_t backward_workspace_bytes(const BackwardDesc& desc, const BackwardConfig& config) {
    return workspace_of(desc, config).bytes;
}

cuda::CompileRequest generate_backward(const BackwardDesc& desc, const BackwardConfig& config) {
    // (n, a in registers)
    const std::set<std::pair<int, bool>> products = {
        {config.block_m, false},                                 // K Q^T and V dO^T
        {desc.value_dim, true},                                  // P^T dO
        {desc.query_dim, true},                                  // dS^T Q
        {static_cast<int>(grad_columns(desc, config)), false}};  // dS K
    std::vector<cuda::WgmmaShape> shapes;
    for (const auto& [n, a_in_registers] : products) {
        shapes.push_back({n, desc.dtype, a_in_registers});
    }
    cuda::CompileRequest request;
    request.name =
        fmt::format("attention_backward_{}_d{}x{}{}{}_{}x{}.cu", name(desc.dtype), desc.query_dim,
                    desc.value_dim,
                    desc.lower_bound   ? "_window"
                    : desc.upper_bound ? "_causal"
                                       : "",
                    desc.deterministic ? "_ordered" : "", config.block_m, config.block_n());
    request.arch = "sm_90a";
    request.spill_limit_bytes = 0;
    request.headers = device_headers();
    request.headers.push_back({"wgmma_shapes.cuh", cuda::wgmma_shapes_header(shapes)});
    request.headers.push_back(
        {"backward_config.cuh",
         fmt::format(R"(// Generated: the configuration of one backward kernel.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::attn {{

using Element = {};
constexpr int kQueryDim = {};
constexpr int kValueDim = {};
constexpr bool kUpperBound = {};
constexpr bool kLowerBound = {};
constexpr int kWarpgroups = {};
constexpr int kBlockM = {};
constexpr int kStages = {};
constexpr bool kDeterministic = {};
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

}}  // namespace tw::attn
)",
                     desc.dtype == DType::f16 ? "F16" : "Bf16", desc.query_dim, desc.value_dim,
                     desc.upper_bound, desc.lower_bound, config.warpgroups, config.block_m,
                     config.stages, desc.deterministic)});
    request.source = "#include \"attention/sm90/backward.cuh\"\n";
    return request;
}

const BackwardKernels& load_backward(const BackwardDesc& desc, const BackwardConfig& config,
                                     int device) {
    using Key = std::tuple<DType, int, int, bool, bool, bool, int, int, int, int>;
    static std::mutex mutex;
    static auto* const kKernels =
        new std::map<Key, BackwardKernels>;  // loaded until the process ends
    const Key key{
        desc.dtype,         desc.query_dim,    desc.value_dim, desc.upper_bound, desc.lower_bound,
        desc.deterministic, config.warpgroups, config.block_m, config.stages,    device};
    {
        const std::lock_guard lock(mutex);
        if (const auto found = kKernels->find(key); found != kKernels->end()) return found->second;
    }
    const cuda::DeviceInfo& info = cuda::device_info(device);
    require(info.major == 9 && info.minor == 0, "device", "compute capability 9.0", info.arch());
    // Not under the lock: other kernels load meanwhile, and cubin_of lets one thread compile these.
    const cuda::CompileRequest request = generate_backward(desc, config);
    const BackwardKernels kernels{
        cuda::load_kernel(request, "attention_backward_prepare", 0, device),
        cuda::load_kernel(request, "attention_backward", backward_shared_bytes(desc, config),
                          device),
        cuda::load_kernel(request, "attention_backward_finish", 0, device)};
    const std::lock_guard lock(mutex);
    return kKernels->try_emplace(key, kernels).first->second;
}

void launch_backward(const BackwardInputs& inputs, const BackwardDesc& desc,
                     const BackwardConfig& config, const BackwardKernels& kernels,
                     cuda::StreamHandle stream) {
    const std::int64_t batch_kv_heads = desc.batch * desc.kv_heads;
    const std::int64_t q_blocks = ceil_div(desc.q_len, config.block_m);
    const std::int64_t kv_tiles = ceil_div(desc.kv_len, config.block_n());
    const std::int64_t places = batch_kv_heads * kv_tiles;
    const std::int64_t row_blocks = desc.batch * desc.heads * q_blocks;
    const int multiprocessors = cuda::device_info(kernels.main.device).multiprocessors;
    const Workspace parts = workspace_of(desc, config);

    tw::attn::BackwardParameters p{};
    p.out = rows_of(inputs.out);
    p.grad_out = rows_of(inputs.grad_out);
    p.grad_query = rows_of(inputs.grad_query);
    p.grad_key = rows_of(inputs.grad_key);
    p.grad_value = rows_of(inputs.grad_value);
    p.lse = reinterpret_cast<const float*>(inputs.lse);
    p.grad_lse = reinterpret_cast<const float*>(inputs.grad_lse);
    p.grad_query_sums = reinterpret_cast<float*>(inputs.workspace + parts.sums);
    p.row_lse = reinterpret_cast<float*>(inputs.workspace + parts.row_lse);
    p.row_delta = reinterpret_cast<float*>(inputs.workspace + parts.row_delta);
    p.turns = reinterpret_cast<unsigned*>(inputs.workspace + parts.turns);
    p.profile = reinterpret_cast<unsigned long long*>(inputs.profile);
    p.q_len = static_cast<int>(desc.q_len);
    p.kv_len = static_cast<int>(desc.kv_len);
    p.heads = static_cast<int>(desc.heads);
    p.kv_heads = static_cast<int>(desc.kv_heads);
    p.heads_per_kv_head = static_cast<int>(desc.heads / desc.kv_heads);
    p.batch_kv_heads = static_cast<int>(batch_kv_heads);
    p.q_blocks = static_cast<int>(q_blocks);
    p.kv_tiles = static_cast<int>(kv_tiles);
    p.group_heads = 1;
    p.upper_diagonal = static_cast<int>(desc.upper_diagonal);
    p.lower_diagonal = static_cast<int>(desc.lower_diagonal);
    p.scale = static_cast<float>(inputs.scale);
    p.scale_log2 = static_cast<float>(inputs.scale * 1.44269504088896340736);
    if (desc.upper_bound) {
        const std::int64_t head_bytes = std::max<std::int64_t>(
            1, desc.q_len * (2 * (desc.query_dim + desc.value_dim) + 4 * desc.query_dim) *
                   p.heads_per_kv_head);
        p.group_heads = static_cast<int>(std::clamp<std::int64_t>(
            kGroupBytes / head_bytes, 1, std::max<std::int64_t>(1, batch_kv_heads)));
    }
    if (desc.upper_bound && !desc.lower_bound && kv_tiles > 0) {
        // Tiles shrink by their keys; the last `late` of a head are shorter than the share.
        const double longest =
            static_cast<double>(std::min(desc.q_len, desc.q_len + desc.upper_diagonal));
        const double early =
            (static_cast<double>(desc.q_len + desc.upper_diagonal) - kLateShare * longest) /
            config.block_n();
        p.late_kv_tiles = static_cast<int>(
            kv_tiles - std::clamp<double>(std::ceil(early), 1.0, static_cast<double>(kv_tiles)));
    }

    const cuda::ContextScope scope(kernels.main.device);
    cuda::LaunchShape rows_shape;
    rows_shape.grid[0] = static_cast<unsigned>(row_blocks);
    rows_shape.block[0] = kRowThreads;
    void* const rows_parameters[] = {&p};
    if (row_blocks > 0) cuda::launch(kernels.prepare, rows_shape, rows_parameters, stream);
    if (places > 0) {
        const cuda::TensorMap query = tile_map(inputs.query, desc.dtype, config.block_m, "query");
        const cuda::TensorMap key = tile_map(inputs.key, desc.dtype, config.block_n(), "key");
        const cuda::TensorMap value = tile_map(inputs.value, desc.dtype, config.block_n(), "value");
        const cuda::TensorMap grad_out =
            tile_map(inputs.grad_out, desc.dtype, config.block_m, "grad_out");
        if (desc.upper_bound && places > multiprocessors) {
            // Tiles differ in length: CTAs take the next one when they are free.
            const cuda::DeviceAddress tickets = inputs.workspace + parts.tickets;
            p.tickets = reinterpret_cast<unsigned*>(tickets);
            cuda::driver().check(cuda::driver().cuMemsetD32Async(tickets, 0, 1, stream),
                                 "clearing the tickets");
        }
        cuda::LaunchShape shape;
        shape.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(places, multiprocessors));
        shape.block[0] = static_cast<unsigned>(128 * (config.warpgroups + 1));
        void* const parameters[] = {
            const_cast<cuda::TensorMap*>(&query), const_cast<cuda::TensorMap*>(&key),
            const_cast<cuda::TensorMap*>(&value), const_cast<cuda::TensorMap*>(&grad_out), &p};
        cuda::launch(kernels.main, shape, parameters, stream);
    }
    if (row_blocks > 0) cuda::launch(kernels.finish, rows_shape, rows_parameters, stream);
}

void backward(const BackwardInputs& inputs, cuda::StreamHandle stream) {
    const BackwardDesc desc = check_backward(inputs);
    const int device = cuda::device_of(inputs.query.address, "query");
    const BackwardConfig config = choose_backward(desc);
    launch_backward(inputs, desc, config, load_backward(desc, config, device), stream);
}

}  // namespace tilewright::attn::sm90
