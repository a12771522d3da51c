// Host side of the Hopper backward kernels.
#include "attention/sm90/backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "attention/sm90/backward_parameters.h"
#include "attention/sm90/backward_query.h"
#include "attention/sm90/kernel_cache.h"
#include "attention/sm90/lists.h"
#include "attention/sm90/mask_lists.h"
#include "attention/sm90/memory_parameters.h"
#include "attention/sm90/wide_rows.h"
#include "cuda/codegen/wgmma_shapes.h"

namespace tilewright::attn::sm90 {
namespace {

// Bytes of Q, dO and dQ in a group of heads that run at the same time. With ordered accumulation a
// larger group puts more heads between two tiles of one head, so that the second waits less; tiles
// of equal length keep their distance anyway and need a smaller group.
constexpr std::int64_t kGroupBytes = 32ll << 20, kOrderedGroupBytes = 64ll << 20;
constexpr std::int64_t kOrderedAlikeGroupBytes = 16ll << 20;
constexpr double kLateShare = 0.2;     // tiles shorter than this share of the longest run last
constexpr unsigned kRowThreads = 256;  // threads per CTA of the kernels that process rows
constexpr int kWarpgroups = 2;
constexpr int kSharedAlignment = 1024;  // the kernel aligns its base address to this

twd::attn::KeyTileMemory memory_of(const BackwardDesc& desc, const BackwardConfig& config) {
    return twd::attn::memory_of(twd::attn::KeyTileShape{.query_dim = desc.query_dim,
                                                        .value_dim = desc.value_dim,
                                                        .warpgroups = kWarpgroups,
                                                        .over_128 = config.over_128,
                                                        .block_m = config.block_m,
                                                        .stages = config.stages,
                                                        .listed = desc.listed,
                                                        .mask_bits = desc.mask_bits,
                                                        .key_buffers = config.ahead ? 2 : 1});
}

bool builds_lists(const BackwardDesc& desc) {
    return desc.listed && !desc.mask_bits;
}

ListShape list_shape(const BackwardDesc& desc, const BackwardConfig& config) {
    return {.strips = config.strips(),
            .block = config.block_m,
            .rows_are_keys = true,
            .ordered = is_ordered(desc, config)};
}

/// Blocks of query rows and tiles of keys in one head. Each packed sequence may add a partial one.
std::int64_t q_blocks_of(const BackwardDesc& desc, const BackwardConfig& config) {
    return ceil_div(desc.q_len, config.block_m) + desc.sequences;
}
std::int64_t kv_tiles_of(const BackwardDesc& desc, const BackwardConfig& config) {
    return ceil_div(desc.kv_len, config.block_n()) + desc.sequences;
}

/// Byte offsets of the parts of the workspace.
struct Workspace {
    std::size_t sums, row_lse, row_delta, query_delta, last_added, next_tile, sinks, block_rows,
        lists;
    std::size_t query, key_splits, value_splits, wide, bytes;
    std::vector<std::size_t> captures;  ///< accumulators for each capture's gradient; of size 0
                                        ///< where it needs none
    std::size_t captures_begin, captures_end;
};

using Spread = CaptureGradient::Spread;

/// The number of f32 partial sums that the main kernel leaves for a capture's gradient.
std::int64_t capture_sums(const BackwardDesc& desc, const BackwardConfig& config, Spread spread) {
    const std::int64_t tiles = desc.batch * desc.heads * kv_tiles_of(desc, config);
    if (spread == Spread::tile) return tiles * config.strips() * 4;
    return spread == Spread::row ? tiles * config.block_n() : 0;
}

std::span<const CaptureGradient> capture_gradients(const BackwardDesc& desc) {
    if (desc.score_mod == nullptr) return {};
    return desc.score_mod->gradients;
}

/// Of copies of Q and dO and, where dQ has a kernel of its own, of K and V.
std::size_t wide_bytes_of(const BackwardDesc& desc) {
    const auto bytes = [&](std::int64_t heads, std::int64_t rows) {
        return wide_bytes(desc.batch, heads, rows, desc.query_dim) +
               wide_bytes(desc.batch, heads, rows, desc.value_dim);
    };
    return bytes(desc.heads, desc.q_len) +
           (desc.over_128() ? bytes(desc.kv_heads, desc.kv_len) : 0);
}

Workspace workspace_of(const BackwardDesc& desc, const BackwardConfig& config) {
    const std::int64_t q_blocks = q_blocks_of(desc, config);
    const std::int64_t blocks = desc.batch * desc.heads * q_blocks;
    std::size_t at = 0;
    const auto take = [&](std::int64_t bytes) {
        const std::size_t begin = at;
        at += static_cast<std::size_t>(ceil_div(bytes, 256) * 256);
        return begin;
    };
    Workspace layout{};
    const std::int64_t grad_bytes = kWarpgroups * memory_of(desc, config).grad;
    layout.sums = take(config.over_128 ? 0 : blocks * grad_bytes);
    layout.row_lse = take(blocks * config.block_m * 4);
    layout.row_delta = take(blocks * config.block_m * 4);
    layout.query_delta = take(config.over_128 ? desc.batch * desc.heads * desc.q_len * 4 : 0);
    layout.last_added = take(blocks * kWarpgroups * 4);
    layout.next_tile = take(4);
    layout.sinks = take(desc.sinks ? blocks * 4 : 0);
    layout.block_rows = take(desc.sequences > 0 ? q_blocks * 8 : 0);
    layout.lists =
        take(builds_lists(desc)
                 ? static_cast<std::int64_t>(list_layout(desc, list_shape(desc, config)).bytes)
                 : 0);
    layout.query =
        take(config.over_128 ? static_cast<std::int64_t>(backward_query_workspace_bytes(desc)) : 0);
    const std::int64_t split_rows =
        config.pieces > 1   ? config.cut_tiles * config.pieces * config.block_n()
        : config.splits > 1 ? desc.batch * desc.kv_heads * config.splits * desc.kv_len
                            : 0;
    layout.key_splits = take(split_rows * desc.query_dim * 4);
    layout.value_splits = take(split_rows * desc.value_dim * 4);
    layout.wide = take(config.wide ? static_cast<std::int64_t>(wide_bytes_of(desc)) : 0);
    layout.captures_begin = at;
    for (const CaptureGradient& gradient : capture_gradients(desc)) {
        layout.captures.push_back(take(4 * capture_sums(desc, config, gradient.spread)));
    }
    layout.captures_end = layout.bytes = at;
    return layout;
}

twd::attn::Rows rows_of(const DeviceTensor& tensor) {
    return {reinterpret_cast<void*>(tensor.address), tensor.strides[0], tensor.strides[1],
            tensor.strides[2]};
}

/// The inputs with copies in the workspace, from `offset` on, of what many tiles read.
BackwardInputs widened(const BackwardInputs& given, const BackwardDesc& desc, std::size_t offset,
                       int device, cuda::StreamHandle stream) {
    const cuda::ContextScope scope(device);
    BackwardInputs inputs = given;
    const cuda::DeviceAddress copies = inputs.workspace + offset;
    if (desc.over_128()) {
        widen_rows({&inputs.query, &inputs.grad_out, &inputs.key, &inputs.value}, copies, device,
                   stream);
    } else {
        widen_rows({&inputs.query, &inputs.grad_out}, copies, device, stream);
    }
    return inputs;
}

/// May a tile finish more of dQ than its last two visits, or does the number depend on the tile?
bool finishes_many(const BackwardDesc& desc, const BackwardConfig& config) {
    return config.fused &&
           (config.upward || !desc.upper_bound || desc.heads != desc.kv_heads * config.splits ||
            config.block_n() % config.block_m != 0);
}

void clear(cuda::DeviceAddress address, std::int64_t words, cuda::StreamHandle stream) {
    if (words == 0) return;
    cuda::driver().check(
        cuda::driver().cuMemsetD32Async(address, 0, static_cast<std::size_t>(words), stream),
        "clearing what a backward pass counts and adds up");
}

/// Clears the gradients of captures and their accumulators.
void clear_captures(const BackwardInputs& inputs, const BackwardDesc& desc, const Workspace& layout,
                    cuda::StreamHandle stream) {
    for (std::size_t i = 0; i < inputs.grad_captures.size(); ++i) {
        std::int64_t size = 1;
        for (std::int64_t extent : inputs.captures[i].shape) size *= extent;
        if (inputs.grad_captures[i] != 0) clear(inputs.grad_captures[i], size, stream);
    }
    if (desc.score_mod == nullptr) return;
    clear(inputs.workspace + layout.captures_begin,
          static_cast<std::int64_t>(layout.captures_end - layout.captures_begin) / 4, stream);
}

}  // namespace

int backward_shared_bytes(const BackwardDesc& desc, const BackwardConfig& config) {
    return memory_of(desc, config).total + kSharedAlignment;
}

std::size_t backward_workspace_bytes(const BackwardDesc& desc, const BackwardConfig& config) {
    return workspace_of(desc, config).bytes;
}

std::vector<cuda::CompileRequest> generate_backward(const BackwardDesc& desc,
                                                    const BackwardConfig& config) {
    const int rows = config.block_m / 16, keys = config.block_n() / 16;
    const int columns = memory_of(desc, config).grad_columns;
    const std::set<cuda::WgmmaShape> products = {
        {config.block_m, desc.dtype, false, steps_of(desc.query_dim)},  // K Q^T
        {config.block_m, desc.dtype, false, steps_of(desc.value_dim)},  // V dO^T
        {desc.value_dim, desc.dtype, true, rows},                       // P^T dO,
        {desc.value_dim, desc.dtype, false, rows},                      // also from shared memory
        {desc.query_dim, desc.dtype, true, rows},                       // dS^T Q
        {columns, desc.dtype, false, keys},                             // dS K
    };
    const std::vector<cuda::WgmmaShape> shapes(products.begin(), products.end());
    // The producer needs more registers if it describes blocks one by one.
    const bool described = is_described(desc, config);
    const std::string name =
        fmt::format("attention_backward_{}{}_{}x{}.cu", variant_name(desc),
                    is_ordered(desc, config) ? "_ordered" : "", config.block_m, config.block_n());
    constexpr int kDropoutSpillBytes = 8192, kSegmentSpillBytes = 64;
    const int spills = desc.dropout ? kDropoutSpillBytes : desc.segments ? kSegmentSpillBytes : 0;
    cuda::CompileRequest request = kernel_request(name, desc, shapes, spills);
    request.headers.push_back(config_header(
        "backward_config.cuh", "the configuration of one backward kernel", desc,
        fmt::format(R"(constexpr bool kOver128 = {};
constexpr int kWarpgroups = {};
constexpr int kBlockM = {};
constexpr int kStages = {};
constexpr bool kDeterministic = {};
constexpr bool kFused = {}, kFinishesMany = {};
constexpr bool kAhead = {}, kUpward = {}, kCutsTiles = {};
constexpr int kProducerRegisters = {};
constexpr int kConsumerRegisters = {};
constexpr unsigned kReservedBytes = {};  ///< of shared memory, but for the base's alignment
)",
                    config.over_128, kWarpgroups, config.block_m, config.stages,
                    is_ordered(desc, config), config.fused, finishes_many(desc, config),
                    config.ahead, config.upward, cuts_tiles(desc, config), described ? 40 : 24,
                    described ? 232 : 240,
                    backward_shared_bytes(desc, config) - kSharedAlignment)));
    cuda::CompileRequest rows_request = request;
    request.source = "#include \"attention/sm90/backward.cuh\"\n";
    rows_request.name = "rows_of_" + rows_request.name;
    rows_request.source = "#include \"attention/sm90/backward_rows.cuh\"\n";
    std::vector<cuda::CompileRequest> units = {std::move(request), std::move(rows_request)};
    if (config.over_128) units.push_back(generate_backward_query(desc));
    return units;
}

std::string backward_key(const BackwardDesc& desc, const BackwardConfig& config) {
    return fmt::format("{} {} {} {} {} {} {} {} {} {}", variant_key(desc), config.over_128,
                       config.block_m, config.stages, is_ordered(desc, config), config.fused,
                       finishes_many(desc, config), desc.positive_scale, config.ahead,
                       config.upward);
}

BackwardKernels load_backward(const BackwardDesc& desc, const BackwardConfig& config, int device,
                              const FirstCall& call) {
    const auto generate = [&] { return generate_backward(desc, config); };
    const auto load_units = [&](const std::vector<cuda::CompileRequest>& units) {
        compile_ahead(units);  // the main kernel first, which takes longest
        if (builds_lists(desc)) cuda::compile_in_background(generate_lists());
        if (config.wide) cuda::compile_in_background(generate_wide_rows());
        const auto load = [&](std::size_t unit, const char* entry, int shared_bytes = 0) {
            return cuda::load_kernel(units[unit], entry, shared_bytes, device);
        };
        BackwardKernels kernels;
        kernels.main = load(0, "attention_backward", backward_shared_bytes(desc, config));
        kernels.prepare = load(1, "attention_backward_prepare");
        kernels.finish = load(1, "attention_backward_finish");
        kernels.join = load(1, "attention_backward_join");
        if (cuts_tiles(desc, config)) {
            kernels.join_pieces = load(1, "attention_backward_join_pieces");
        }
        kernels.sinks = load(1, "attention_backward_sinks");
        kernels.captures = load(1, "attention_backward_captures");
        if (config.over_128) {
            kernels.query = load(2, "attention_backward_query", backward_query_shared_bytes(desc));
        }
        if (builds_lists(desc)) load_lists(device);
        return kernels;
    };
    const auto loaded_kernels = load_in_stages<BackwardKernels>(call, backward_key(desc, config),
                                                                device, generate, load_units);
    if (config.wide) load_wide_rows(device);
    return loaded_kernels;
}

BackwardKernels load_backward(const BackwardDesc& desc, const BackwardConfig& config, int device) {
    return load_backward(desc, config, device, FirstCall{});
}

void launch_backward(const BackwardInputs& given, const BackwardDesc& desc,
                     const BackwardConfig& config, const BackwardKernels& kernels,
                     cuda::StreamHandle stream) {
    std::optional<BackwardInputs> copied;
    if (config.wide) {
        copied = widened(given, desc, workspace_of(desc, config).wide, kernels.main.device, stream);
    }
    const BackwardInputs& inputs = copied ? *copied : given;
    require((desc.heads / desc.kv_heads) % config.splits == 0, "config",
            "splits that divide the query heads of a kv head", config.splits);
    require(config.pieces == 1 || (cuts_tiles(desc, config) && config.splits == 1), "config",
            "pieces of tiles without a mask and without splits", config.pieces);
    const std::int64_t batch_kv_heads = desc.batch * desc.kv_heads * config.splits;
    const std::int64_t q_blocks = q_blocks_of(desc, config);
    const std::int64_t kv_tiles = kv_tiles_of(desc, config);
    const std::int64_t all_tiles = batch_kv_heads * kv_tiles;
    const std::int64_t places = all_tiles + config.cut_tiles * (config.pieces - 1);
    const std::int64_t row_blocks = desc.batch * desc.heads * q_blocks;
    const int multiprocessors = cuda::device_info(kernels.main.device).multiprocessors;
    const Workspace layout = workspace_of(desc, config);

    twd::attn::BackwardParameters p{};
    p.out = rows_of(inputs.out);
    p.grad_out = rows_of(inputs.grad_out);
    p.grad_query = rows_of(inputs.grad_query);
    p.grad_key = rows_of(inputs.grad_key);
    p.grad_value = rows_of(inputs.grad_value);
    p.lse = reinterpret_cast<const float*>(inputs.lse);
    p.grad_lse = reinterpret_cast<const float*>(inputs.grad_lse);
    p.grad_query_sums = reinterpret_cast<float*>(inputs.workspace + layout.sums);
    p.row_lse = reinterpret_cast<float*>(inputs.workspace + layout.row_lse);
    p.row_delta = reinterpret_cast<float*>(inputs.workspace + layout.row_delta);
    p.query_delta = reinterpret_cast<float*>(inputs.workspace + layout.query_delta);
    p.last_added = reinterpret_cast<unsigned*>(inputs.workspace + layout.last_added);
    p.profile = reinterpret_cast<unsigned long long*>(inputs.profile);
    p.q_len = static_cast<int>(desc.q_len);
    p.kv_len = static_cast<int>(desc.kv_len);
    p.batches = static_cast<int>(desc.batch);
    p.heads = static_cast<int>(desc.heads);
    p.splits = config.splits;
    p.kv_heads = static_cast<int>(desc.kv_heads * config.splits);
    p.heads_per_kv_head = static_cast<int>(desc.heads / p.kv_heads);
    p.key_splits = reinterpret_cast<float*>(inputs.workspace + layout.key_splits);
    p.value_splits = reinterpret_cast<float*>(inputs.workspace + layout.value_splits);
    p.batch_kv_heads = static_cast<int>(batch_kv_heads);
    p.whole_places = static_cast<int>(all_tiles - config.cut_tiles);
    p.pieces = config.pieces;
    p.q_blocks = static_cast<int>(q_blocks);
    p.kv_tiles = static_cast<int>(kv_tiles);
    p.group_heads = 1;
    p.upper_diagonal = static_cast<int>(desc.upper_diagonal);
    p.lower_diagonal = static_cast<int>(desc.lower_diagonal);
    p.scale = static_cast<float>(inputs.scale);
    p.scale_log2 = static_cast<float>(inputs.scale * 1.44269504088896340736);
    p.segments = {reinterpret_cast<const int*>(inputs.q_segments),
                  reinterpret_cast<const int*>(inputs.kv_segments)};
    p.kv_lengths = reinterpret_cast<const void*>(inputs.kv_lengths);
    p.seed = inputs.seed;
    p.dropout_threshold = dropout_threshold(inputs.dropout);
    p.keep_scale = static_cast<float>(1 / (1 - inputs.dropout));
    p.sinks = reinterpret_cast<const float*>(inputs.sinks);
    p.sink_parts = reinterpret_cast<float*>(inputs.workspace + layout.sinks);
    p.grad_sinks = reinterpret_cast<float*>(inputs.grad_sinks);
    const bool tiles_differ = desc.upper_bound || desc.listed;
    const bool ordered = is_ordered(desc, config);
    if (tiles_differ || ordered) {
        // All query heads of a group visit a block before the next one, so their tiles stay in
        // step.
        const bool together = p.heads_per_kv_head > 1 && !is_described(desc, config);
        const std::int64_t group_bytes = together       ? kOrderedAlikeGroupBytes
                                         : !ordered     ? kGroupBytes
                                         : tiles_differ ? kOrderedGroupBytes
                                                        : kOrderedAlikeGroupBytes;
        const std::int64_t head_bytes = std::max<std::int64_t>(
            1, desc.q_len * (2 * (desc.query_dim + desc.value_dim) + 4 * desc.query_dim));
        // Ordered sums of short sequences have heads enough between two tiles without more bytes.
        constexpr std::int64_t kEnoughHeads = 16;
        std::int64_t group_heads = group_bytes / head_bytes;
        if (ordered && tiles_differ && !together && !desc.listed) {
            group_heads = std::min(group_heads, std::max(kEnoughHeads, kGroupBytes / head_bytes));
        }
        p.group_heads = static_cast<int>(
            std::clamp<std::int64_t>(group_heads, 1, std::max<std::int64_t>(1, batch_kv_heads)));
    }
    if (config.upward) {
        // Upward, the longest tiles come last, so the last heads go downward.
        constexpr std::int64_t kLastTiles = 256;
        p.upward_heads = static_cast<int>(std::max<std::int64_t>(
            0, batch_kv_heads - ceil_div(kLastTiles, std::max<std::int64_t>(1, kv_tiles))));
        // With more than 64 columns a step takes longer than a hand-over from tile to tile, and one
        // head after the other stays in L2.
        if (std::max(desc.query_dim, desc.value_dim) > 64) p.group_heads = 1;
    } else if (desc.upper_bound && !desc.lower_bound && !desc.listed && kv_tiles > 0) {
        // Tiles shrink as their keys advance; the last `late` of a head are shorter than
        // kLateShare.
        const double longest =
            static_cast<double>(std::min(desc.q_len, desc.q_len + desc.upper_diagonal));
        const double early =
            (static_cast<double>(desc.q_len + desc.upper_diagonal) - kLateShare * longest) /
            config.block_n();
        const auto tiles = static_cast<double>(kv_tiles);
        p.late_kv_tiles = static_cast<int>(tiles - std::clamp(std::ceil(early), 1.0, tiles));
    }

    const int device = kernels.main.device;
    const cuda::ContextScope scope(device);
    if (desc.mask_bits) {
        const DeviceMask& mask = *inputs.mask;
        if (mask.strips != config.strips() || mask.block != config.block_m ||
            (mask.heads > 1 && mask.heads_per_order != p.heads_per_kv_head)) {
            user_error(kOperation,
                       "mask: expected lists of tiles of {} x {}, {} heads in one order, but got "
                       "{} x {}, {}",
                       config.block_n(), config.block_m, p.heads_per_kv_head, 64 * mask.strips,
                       mask.block, mask.heads_per_order);
        }
        p.mask = lists_in(mask);
    } else if (desc.listed && places > 0) {
        p.mask = build_lists(inputs, desc, list_shape(desc, config),
                             inputs.workspace + layout.lists, device, stream);
    }
    if (desc.sequences > 0) {
        const cuda::DeviceAddress rows = inputs.workspace + layout.block_rows;
        p.block_rows = reinterpret_cast<const twd::attn::BlockRows*>(rows);
        build_block_rows(inputs, config.block_m, q_blocks, rows, device, stream);
    }
    std::vector<std::uint64_t> words = score_mod_words(inputs.captures);
    clear_captures(inputs, desc, layout, stream);
    if (!capture_gradients(desc).empty()) {
        if (inputs.captures.empty()) words.clear();
        for (std::size_t n = 0; n < layout.captures.size(); ++n) {
            words.push_back(inputs.workspace + layout.captures[n]);
            words.push_back(inputs.grad_captures[capture_gradients(desc)[n].capture]);
        }
    }
    // Tiles that differ in length: CTAs claim the next one when they are free.
    if (tiles_differ && places > multiprocessors) {
        p.next_tile = reinterpret_cast<unsigned*>(inputs.workspace + layout.next_tile);
        if (row_blocks == 0) clear(inputs.workspace + layout.next_tile, 1, stream);
    }
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
        cuda::LaunchShape shape;
        shape.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(places, multiprocessors));
        shape.block[0] = static_cast<unsigned>(128 * (kWarpgroups + 1));
        void* const parameters[] = {const_cast<cuda::TensorMap*>(&query),
                                    const_cast<cuda::TensorMap*>(&key),
                                    const_cast<cuda::TensorMap*>(&value),
                                    const_cast<cuda::TensorMap*>(&grad_out),
                                    &p,
                                    words.data()};
        cuda::launch(kernels.main, shape, parameters, stream);
    }
    if (config.pieces > 1) {
        const std::int64_t vectors = config.block_n() * ((desc.query_dim + desc.value_dim) / 8);
        cuda::LaunchShape join_shape;
        join_shape.grid[0] =
            static_cast<unsigned>(config.cut_tiles * ceil_div(vectors, kRowThreads));
        join_shape.block[0] = kRowThreads;
        cuda::launch(kernels.join_pieces, join_shape, rows_parameters, stream);
    }
    if (config.splits > 1 && places > 0) {
        const std::int64_t vectors = desc.kv_len * ((desc.query_dim + desc.value_dim) / 8);
        cuda::LaunchShape join_shape;
        join_shape.grid[0] =
            static_cast<unsigned>(desc.batch * desc.kv_heads * ceil_div(vectors, kRowThreads));
        join_shape.block[0] = kRowThreads;
        cuda::launch(kernels.join, join_shape, rows_parameters, stream);
    }
    if (config.over_128) {
        launch_backward_query(inputs, desc, kernels.query, inputs.workspace + layout.query_delta,
                              inputs.workspace + layout.query, stream);
    } else if (row_blocks > 0 && !config.fused) {
        cuda::launch(kernels.finish, rows_shape, rows_parameters, stream);
    }
    if (!capture_gradients(desc).empty() && places > 0) {
        rows_shape.grid[0] = static_cast<unsigned>(ceil_div(desc.kv_len, kRowThreads) + 1);
        void* const parameters[] = {&p, words.data()};
        cuda::launch(kernels.captures, rows_shape, parameters, stream);
    }
    if (desc.sinks) {
        rows_shape.grid[0] = static_cast<unsigned>(desc.heads);
        cuda::launch(kernels.sinks, rows_shape, rows_parameters, stream);
    }
}

void backward(const BackwardInputs& inputs, cuda::StreamHandle stream) {
    const BackwardDesc desc = check_backward(inputs);
    const int device = cuda::device_of(inputs.query.address, "query");
    const BackwardConfig config = choose_backward(desc);
    launch_backward(inputs, desc, config, load_backward(desc, config, device), stream);
}

}  // namespace tilewright::attn::sm90
