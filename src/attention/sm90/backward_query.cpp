// Host side of the kernel that computes dQ where head_dim > 128.
#include "attention/sm90/backward_query.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/sm90/lists.h"
#include "attention/sm90/memory_parameters.h"
#include "attention/sm90/query_tiles.h"
#include "cuda/codegen/wgmma_shapes.h"

namespace tilewright::attn::sm90 {
namespace {

// The tile sizes of the forward's lists where head_dim > 128 (choose_listed).
constexpr int kWarpgroups = 2, kRows = 64 * kWarpgroups, kBlock = 64, kKeyStages = 2;
constexpr std::size_t kCounterBytes = 16;
constexpr int kMostShared = 227 << 10;

bool builds_lists(const BackwardDesc& desc) {
    return desc.listed && !desc.mask_bits;
}

constexpr ListShape kListShape{.strips = kWarpgroups, .block = kBlock};

int shared_bytes(const BackwardDesc& desc, int value_stages) {
    const twd::attn::QueryTileShape shape{.query_dim = desc.query_dim,
                                          .value_dim = desc.value_dim,
                                          .warpgroups = kWarpgroups,
                                          .block_n = kBlock,
                                          .stages = kKeyStages,
                                          .value_stages = value_stages,
                                          .query_buffers = 1,
                                          .query_gradient = true,
                                          .listed = desc.listed,
                                          .mask_bits = desc.mask_bits};
    return twd::attn::memory_of(shape).total;
}

int value_stages(const BackwardDesc& desc) {
    return shared_bytes(desc, 2) <= kMostShared ? 2 : 1;
}

}  // namespace

int backward_query_shared_bytes(const BackwardDesc& desc) {
    return shared_bytes(desc, value_stages(desc));
}

std::size_t backward_query_workspace_bytes(const BackwardDesc& desc) {
    return kCounterBytes + (builds_lists(desc) ? list_layout(desc, kListShape).bytes : 0);
}

cuda::CompileRequest generate_backward_query(const BackwardDesc& desc) {
    std::vector<cuda::WgmmaShape> shapes = {
        {kBlock, desc.dtype, /*a_in_registers=*/false, steps_of(desc.query_dim)},  // Q K^T
        {desc.query_dim, desc.dtype, /*a_in_registers=*/true, kBlock / 16}};       // dS K
    if (steps_of(desc.value_dim) != shapes[0].steps) {
        shapes.push_back({kBlock, desc.dtype, false, steps_of(desc.value_dim)});  // dO V^T
    }
    constexpr int kDropoutSpillBytes = 4096, kListSpillBytes = 256;
    const int spills = desc.dropout ? kDropoutSpillBytes : desc.listed ? kListSpillBytes : 0;
    // A producer that walks lists needs 40 registers, but dQ of 256 columns leaves it only 24.
    const bool many_registers = !desc.listed || desc.query_dim > 192;
    ProblemDesc by_query = desc;  // here the mod's columns are keys
    by_query.score_mod = desc.query_score_mod;
    cuda::CompileRequest request =
        kernel_request(fmt::format("attention_backward_query_{}.cu", variant_name(desc)), by_query,
                       shapes, spills);
    request.headers.push_back(
        config_header("forward_config.cuh", "the configuration of one kernel for dQ", desc,
                      fmt::format(R"(constexpr bool kScaleScores = {};
constexpr bool kRowMaximum = false;
constexpr bool kExactMaximum = false;
constexpr int kWarpgroups = {};
constexpr int kBlockN = {};
constexpr int kStages = {};
constexpr int kValueStages = {};
constexpr int kQueryBuffers = 1;
constexpr bool kQueryGradient = true;
constexpr int kGroup = 1;
constexpr bool kStreamK = false;
constexpr int kProducerRegisters = {};
constexpr int kConsumerRegisters = {};
constexpr unsigned kReservedBytes = {};  ///< of shared memory
)",
                                  !desc.positive_scale, kWarpgroups, kBlock, kKeyStages,
                                  value_stages(desc), many_registers ? 24 : 40,
                                  many_registers ? 240 : 232, backward_query_shared_bytes(desc))));
    request.source = "#include \"attention/sm90/backward_query.cuh\"\n";
    return request;
}

void launch_backward_query(const BackwardInputs& inputs, const BackwardDesc& desc,
                           const cuda::Kernel& kernel, cuda::DeviceAddress delta,
                           cuda::DeviceAddress workspace, cuda::StreamHandle stream) {
    twd::attn::ForwardParameters p =
        query_tile_parameters(inputs, desc, inputs.grad_query, kRows, 1);
    const std::int64_t places = std::int64_t{p.batch_heads} * p.q_tiles;
    if (places == 0) return;
    const int multiprocessors = cuda::device_info(kernel.device).multiprocessors;
    p.delta = reinterpret_cast<const float*>(delta);
    if (desc.mask_bits) {
        p.mask = query_lists(*inputs.query_mask, kWarpgroups, kBlock);
    } else if (desc.listed) {
        p.mask =
            build_lists(inputs, desc, kListShape, workspace + kCounterBytes, kernel.device, stream);
    }
    const cuda::ContextScope scope(kernel.device);
    const cuda::TensorMap query = tile_map(inputs.query, desc.dtype, kRows, "query");
    const cuda::TensorMap key = tile_map(inputs.key, desc.dtype, kBlock, "key");
    const cuda::TensorMap value = tile_map(inputs.value, desc.dtype, kBlock, "value");
    const cuda::TensorMap grad_out = tile_map(inputs.grad_out, desc.dtype, kRows, "grad_out");
    if ((desc.upper_bound || desc.listed) && places > multiprocessors) {
        p.next_tile = reinterpret_cast<unsigned*>(workspace);
        cuda::driver().check(cuda::driver().cuMemsetD32Async(workspace, 0, 1, stream),
                             "clearing the tile counter");
    }
    cuda::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(places, multiprocessors));
    shape.block[0] = 128 * (kWarpgroups + 1);
    std::vector<std::uint64_t> words = score_mod_words(inputs.captures);
    void* const parameters[] = {const_cast<cuda::TensorMap*>(&query),
                                const_cast<cuda::TensorMap*>(&key),
                                const_cast<cuda::TensorMap*>(&value),
                                const_cast<cuda::TensorMap*>(&grad_out),
                                &p,
                                words.data()};
    cuda::launch(kernel, shape, parameters, stream);
}

}  // namespace tilewright::attn::sm90
