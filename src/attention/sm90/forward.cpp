// Host side of the Hopper forward kernel.
#include "attention/sm90/forward.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "attention/sm90/forward_parameters.h"
#include "cuda/codegen/wgmma_shapes.h"
#include "support/check.h"

namespace tilewright::attn::sm90 {

namespace {

constexpr std::int64_t kGroupBytes = 32ll << 20;  // K and V of heads that run side by side, in L2
constexpr const char* kNoScoreMod = R"(// Generated: no score mod.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::attn {

struct ModArguments {
    u64 words[1];
};

struct ScoreMod {
    const ModArguments& arguments;
    float scale;
    struct Columns {};
    TW_DEVICE void enter_tile(int, int) {}
    TW_DEVICE void enter_rows(int) {}
    TW_DEVICE void enter_block(int) {}
    TW_DEVICE Columns columns_at(int) const { return {}; }
    TW_DEVICE float exponent(float score, int, int, int, Columns, float) const { return score; }
};

}  // namespace tw::attn
)";
constexpr double kLateShare = 0.2;  // tiles this much shorter than the longest run last

/// The generated text of a mod under these facts, made once.
std::shared_ptr<const std::string> mod_text(const std::shared_ptr<const ir::Function>& mod,
                                            const ScoreModFacts& facts) {
    struct Entry {
        std::shared_ptr<const ir::Function> mod;  // keeps the key's address taken
        std::shared_ptr<const std::string> text;
    };
    static std::mutex mutex;
    static auto* const kTexts = new std::map<std::pair<const ir::Function*, ScoreModFacts>, Entry>;
    const std::lock_guard lock(mutex);
    Entry& entry = (*kTexts)[{mod.get(), facts}];
    if (entry.text == nullptr) {
        entry = {mod, std::make_shared<const std::string>(score_mod_header(*mod, facts))};
    }
    return entry.text;
}

void check_mask(const DeviceMask& mask, const ForwardInputs& inputs) {
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    require(mask.batches == 1 || mask.batches == batch, "mask", "one batch or the query's",
            mask.batches);
    require(mask.heads == 1 || mask.heads == heads, "mask", "one head or the query's", mask.heads);
    require(mask.q_len == q_len, "mask", "as many rows as the query", mask.q_len);
    require(mask.kv_len == inputs.key.shape[2], "mask", "as many columns as the key has rows",
            mask.kv_len);
    require(!inputs.lower_diagonal && !inputs.upper_diagonal, "mask",
            "lists that hold the diagonals too", "diagonals beside lists");
}

void check_segments(const ForwardInputs& inputs) {
    const bool packed = inputs.sequences > 0;
    require((inputs.q_segments != 0) == (inputs.kv_segments != 0), "kv_segments",
            "ids for keys as for queries", inputs.kv_segments);
    require(inputs.q_segments % 4 == 0 && inputs.kv_segments % 4 == 0, "segments",
            "addresses that are multiples of 4", inputs.q_segments);
    require(packed == (inputs.q_starts != 0) && packed == (inputs.kv_starts != 0), "q_starts",
            "starts of queries and keys with a number of sequences", inputs.sequences);
    require(!packed || inputs.query.shape[0] == 1, "query", "a batch of 1 of packed sequences",
            inputs.query.shape[0]);
    require(!(packed || inputs.q_segments != 0) || !inputs.mask.has_value(), "mask",
            "lists without segments and packed sequences", "both");
    require(inputs.dropout >= 0 && inputs.dropout < 1, "dropout", "a share in [0, 1)",
            inputs.dropout);
}

/// Where a launch's workspace holds what: tickets first.
struct WorkspaceLayout {
    std::size_t tiles = kForwardWorkspaceBytes, sequences = 0, entries = 0, bytes = 0;
    std::int64_t q_tiles = 0, blocks = 0, batches = 0;
};

WorkspaceLayout workspace_layout(const ForwardDesc& desc, const ForwardConfig& config) {
    WorkspaceLayout layout;
    layout.q_tiles = ceil_div(desc.q_len, config.block_m()) + desc.sequences;
    if (!desc.listed || desc.mask_bits) {
        layout.bytes = kForwardWorkspaceBytes;
        return layout;
    }
    layout.blocks = ceil_div(desc.kv_len, 64);
    layout.batches = desc.batch;
    const auto tiles = static_cast<std::size_t>(layout.batches * layout.q_tiles);
    layout.sequences = layout.tiles + tiles * sizeof(tw::attn::MaskTile);
    layout.entries =
        layout.sequences + (desc.sequences > 0 ? tiles * sizeof(tw::attn::SequenceRows) : 0);
    const std::size_t entries = tiles * static_cast<std::size_t>(layout.blocks) + 1;  // and a spare
    layout.bytes = layout.entries + entries * sizeof(tw::attn::MaskEntry);
    return layout;
}

}  // namespace

std::size_t forward_workspace_bytes(const ForwardDesc& desc, const ForwardConfig& config) {
    return workspace_layout(desc, config).bytes;
}

ForwardDesc check_forward(const ForwardInputs& inputs) {
    require(inputs.dtype == DType::bf16 || inputs.dtype == DType::f16, "query",
            "bf16 or f16 elements", name(inputs.dtype));
    const auto [batch, heads, q_len, dim] = inputs.query.shape;
    const std::int64_t kv_heads = inputs.key.shape[1], kv_len = inputs.key.shape[2];
    const std::int64_t value_dim = inputs.value.shape[3];
    constexpr std::int64_t kMaxInt = 1 << 29;  // sums of two positions stay in an int
    require(batch >= 0 && heads >= 1, "query", "at least one head", heads);
    require(kv_heads >= 1 && heads % kv_heads == 0, "key", "a number of heads that divides query's",
            kv_heads);
    require(dim >= 8 && dim <= 256 && dim % 8 == 0, "query",
            "a head dimension that is a multiple of 8 up to 256", dim);
    require(value_dim >= 8 && value_dim <= 256 && value_dim % 8 == 0, "value",
            "a head dimension that is a multiple of 8 up to 256", value_dim);
    require(kv_len >= 1 && kv_len <= kMaxInt, "key", "from 1 to 2^29 rows", kv_len);
    require(q_len >= 0 && q_len <= kMaxInt, "query", "at most 2^29 rows", q_len);
    require(batch * heads * ceil_div(q_len, 64) <= kMaxInt, "query",
            "at most 2^29 tiles of 64 rows", batch * heads * ceil_div(q_len, 64));
    require(std::isfinite(inputs.scale), "scale", "a finite number", inputs.scale);
    check_tensor(inputs.query, "query", {batch, heads, q_len, dim});
    check_tensor(inputs.key, "key", {batch, kv_heads, kv_len, dim});
    check_tensor(inputs.value, "value", {batch, kv_heads, kv_len, value_dim});
    check_tensor(inputs.out, "out", {batch, heads, q_len, value_dim});
    require(inputs.lse != 0 && inputs.lse % 4 == 0, "lse", "an address that is a multiple of 4",
            inputs.lse);
    require(inputs.workspace != 0 && inputs.workspace % 4 == 0, "workspace",
            "an address that is a multiple of 4", inputs.workspace);

    require(inputs.row_max % 4 == 0, "row_max", "an address that is a multiple of 4",
            inputs.row_max);
    require(inputs.sinks % 4 == 0, "sinks", "an address that is a multiple of 4", inputs.sinks);
    if (inputs.mask.has_value()) check_mask(*inputs.mask, inputs);

    check_segments(inputs);

    ForwardDesc desc;
    desc.mask_bits = inputs.mask.has_value();
    desc.segments = inputs.q_segments != 0;
    desc.sequences = inputs.sequences;
    desc.listed = desc.mask_bits || desc.segments || desc.sequences > 0;
    desc.dropout = inputs.dropout > 0;
    desc.sinks = inputs.sinks != 0;
    desc.row_maximum = inputs.row_max != 0;
    desc.exact_maximum = inputs.exact_maximum || desc.row_maximum;
    if (inputs.score_mod != nullptr) {
        desc.score_mod = mod_text(
            inputs.score_mod, score_mod_facts(*inputs.score_mod, inputs.captures, q_len, kv_len));
        desc.mod_words = static_cast<int>(score_mod_words(inputs.captures).size());
    }
    desc.dtype = inputs.dtype;
    desc.query_dim = static_cast<int>(dim);
    desc.value_dim = static_cast<int>(value_dim);
    desc.lower_bound = inputs.lower_diagonal.has_value();
    desc.upper_bound = desc.lower_bound || inputs.upper_diagonal.has_value();
    // Diagonals outside the rectangle mean what its corners mean.
    desc.lower_diagonal = std::clamp(inputs.lower_diagonal.value_or(-q_len), -q_len, kv_len);
    desc.upper_diagonal = std::clamp(inputs.upper_diagonal.value_or(kv_len), -q_len, kv_len);
    desc.positive_scale = inputs.scale > 0;
    desc.batch = batch;
    desc.heads = heads;
    desc.kv_heads = kv_heads;
    desc.q_len = q_len;
    desc.kv_len = kv_len;
    return desc;
}

ForwardConfig choose_listed(int query_dim, int value_dim) {
    // Blocks of one atom: a warpgroup passes those it does not see.
    if (std::max(query_dim, value_dim) > 128) {
        return {.warpgroups = 2, .block_n = 64, .query_buffers = 1};
    }
    return {.warpgroups = 3, .block_n = 64, .stages = 3};
}

ForwardConfig choose_forward(const ForwardDesc& desc, int multiprocessors) {
    if (desc.listed) return choose_listed(desc.query_dim, desc.value_dim);
    const int dim = std::max(desc.query_dim, desc.value_dim);
    if (dim > 192) return {.warpgroups = 2, .block_n = 64, .query_buffers = 1};
    if (desc.query_dim > 128 && desc.value_dim <= 128) {
        return {.warpgroups = 2, .block_n = 128, .query_buffers = 1};
    }
    if (dim > 128) return {.warpgroups = 2, .block_n = 112, .query_buffers = 1};

    // Three warpgroups read K and V for 192 rows at once and keep the tensor cores busier, but
    // round short problems up to more rows.
    const ForwardConfig two{.warpgroups = 2, .block_n = 128};
    ForwardConfig three{.warpgroups = 3, .block_n = dim > 96 ? 80 : 96};
    double two_utilisation = 0.93, three_utilisation = 0.963;
    if (dim <= 64) {
        three = desc.upper_bound ? ForwardConfig{.warpgroups = 3, .block_n = 96, .stages = 3}
                                 : ForwardConfig{.warpgroups = 3, .block_n = 112};
        two_utilisation = 0.58, three_utilisation = 0.65;
    } else if (dim <= 96) {
        two_utilisation = 0.76, three_utilisation = 0.78;
    }
    if (desc.lower_bound && dim > 96) return two;
    if (desc.upper_bound) {
        // Each row of tiles wastes a part of its last blocks, more so with 192 rows.
        const std::int64_t long_enough = dim > 96 ? 6144 : 1536;
        return desc.q_len >= long_enough ? three : two;
    }
    const auto cost = [&](const ForwardConfig& config, double utilisation) {
        const std::int64_t tiles = desc.batch * desc.heads * ceil_div(desc.q_len, config.block_m());
        return static_cast<double>(ceil_div(tiles, multiprocessors) * config.block_m()) /
               utilisation;
    };
    return cost(three, three_utilisation) < cost(two, two_utilisation) ? three : two;
}

int forward_shared_bytes(const ForwardDesc& desc, const ForwardConfig& config) {
    const std::int64_t query_panels = ceil_div(desc.query_dim, kPanel);
    const std::int64_t value_panels = ceil_div(desc.value_dim, kPanel);
    const std::int64_t query = config.query_buffers * query_panels * config.block_m() * 128;
    const std::int64_t key_value =
        config.stages * (query_panels + value_panels) * config.block_n * 128;
    const std::int64_t bits =
        desc.mask_bits ? config.stages * config.warpgroups * 128 * (config.block_n / 64) * 4 : 0;
    const std::int64_t barriers = desc.listed ? 384 : 256;
    constexpr std::int64_t kAlignment = 1024;
    return static_cast<int>(query + key_value + bits + barriers + kAlignment);
}

cuda::CompileRequest generate_forward(const ForwardDesc& desc, const ForwardConfig& config) {
    // What the producer gives back goes to the consumers; all must fit in what the CTA has at
    // entry.
    const bool three = config.warpgroups == 3;
    const int producer_registers = three ? 32 : desc.listed ? 40 : 24;
    const int consumer_registers = three ? 160 : desc.listed ? 232 : 240;
    const cuda::WgmmaShape shapes[] = {
        {config.block_n, desc.dtype, /*a_in_registers=*/false},  // Q K^T
        {desc.value_dim, desc.dtype, /*a_in_registers=*/true}};  // P V
    cuda::CompileRequest request;
    request.name =
        fmt::format("attention_forward_{}_d{}x{}{}{}_{}x{}.cu", name(desc.dtype), desc.query_dim,
                    desc.value_dim,
                    desc.listed        ? "_listed"
                    : desc.lower_bound ? "_window"
                    : desc.upper_bound ? "_causal"
                                       : "",
                    desc.score_mod != nullptr ? "_mod" : "", config.block_m(), config.block_n);
    request.arch = "sm_90a";
    // What a user's score mod needs is not ours to limit; the other checks of the compiler's log
    // hold.
    // Random bits of many pairs at once need more registers than there are.
    constexpr int kModSpillBytes = 4096, kDropoutSpillBytes = 1024;
    request.spill_limit_bytes = desc.score_mod != nullptr ? kModSpillBytes
                                : desc.dropout            ? kDropoutSpillBytes
                                                          : 0;
    request.headers = device_headers();
    request.headers.push_back({"wgmma_shapes.cuh", cuda::wgmma_shapes_header(shapes)});
    request.headers.push_back(
        {"score_mod.cuh", desc.score_mod != nullptr ? *desc.score_mod : kNoScoreMod});
    request.headers.push_back(
        {"forward_config.cuh",
         fmt::format(R"(// Generated: the configuration of one forward kernel.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace tw::attn {{

using Element = {};
constexpr int kQueryDim = {};
constexpr int kValueDim = {};
constexpr bool kUpperBound = {};
constexpr bool kLowerBound = {};
constexpr bool kScaleScores = {};
constexpr bool kListedBlocks = {};
constexpr bool kMaskBits = {};
constexpr bool kSegments = {};
constexpr bool kPacked = {};
constexpr bool kDropout = {};
constexpr bool kScoreMod = {};
constexpr bool kSinks = {};
constexpr bool kRowMaximum = {};
constexpr bool kExactMaximum = {};
constexpr int kWarpgroups = {};
constexpr int kBlockN = {};
constexpr int kStages = {};
constexpr int kQueryBuffers = {};
constexpr int kProducerRegisters = {};
constexpr int kConsumerRegisters = {};

}}  // namespace tw::attn
)",
                     desc.dtype == DType::f16 ? "F16" : "Bf16", desc.query_dim, desc.value_dim,
                     desc.upper_bound, desc.lower_bound, !desc.positive_scale, desc.listed,
                     desc.mask_bits, desc.segments, desc.sequences > 0, desc.dropout,
                     desc.score_mod != nullptr, desc.sinks, desc.row_maximum, desc.exact_maximum,
                     config.warpgroups, config.block_n, config.stages, config.query_buffers,
                     producer_registers, consumer_registers)});
    request.source = "#include \"attention/sm90/forward.cuh\"\n";
    return request;
}

cuda::CompileRequest generate_lists() {
    cuda::CompileRequest request;
    request.name = "attention_lists.cu";
    request.arch = "sm_90a";
    request.spill_limit_bytes = 0;
    request.headers = device_headers();
    request.source = "#include \"attention/sm90/list_builder.cuh\"\n";
    return request;
}

namespace {

const cuda::Kernel& load_lists(int device) {
    static std::mutex mutex;
    static auto* const kKernels = new std::map<int, cuda::Kernel>;
    const std::lock_guard lock(mutex);
    if (const auto found = kKernels->find(device); found != kKernels->end()) return found->second;
    return kKernels
        ->emplace(device, cuda::load_kernel(generate_lists(), "attention_lists", 0, device))
        .first->second;
}

/// Queues the kernel that writes the lists into the workspace, and lets `p` read them.
void build_lists(const ForwardInputs& inputs, const ForwardDesc& desc, const ForwardConfig& config,
                 const WorkspaceLayout& layout, tw::attn::ForwardParameters& p, int device,
                 cuda::StreamHandle stream) {
    constexpr int kOutOfReach = 1 << 30;
    tw::attn::ListParameters lists{};
    lists.tiles = reinterpret_cast<tw::attn::MaskTile*>(inputs.workspace + layout.tiles);
    lists.sequences =
        reinterpret_cast<tw::attn::SequenceRows*>(inputs.workspace + layout.sequences);
    lists.entries = reinterpret_cast<tw::attn::MaskEntry*>(inputs.workspace + layout.entries);
    lists.segments = p.segments;
    lists.q_starts = reinterpret_cast<const int*>(inputs.q_starts);
    lists.kv_starts = reinterpret_cast<const int*>(inputs.kv_starts);
    lists.packed = static_cast<int>(desc.sequences);
    lists.q_len = p.q_len;
    lists.kv_len = p.kv_len;
    lists.q_tiles = static_cast<int>(layout.q_tiles);
    lists.blocks = static_cast<int>(layout.blocks);
    lists.warpgroups = config.warpgroups;
    lists.upper_diagonal = desc.upper_bound ? p.upper_diagonal : kOutOfReach;
    lists.lower_diagonal = desc.lower_bound ? p.lower_diagonal : -kOutOfReach;
    p.mask = {lists.tiles, lists.entries,  nullptr, static_cast<int>(layout.batches),
              1,           lists.sequences};
    cuda::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(layout.q_tiles);
    shape.grid[1] = static_cast<unsigned>(layout.batches);
    shape.block[0] = 32;
    void* const parameters[] = {&lists};
    cuda::launch(load_lists(device), shape, parameters, stream);
}

}  // namespace

const cuda::Kernel& load_forward(const ForwardDesc& desc, const ForwardConfig& config, int device) {
    using Key =
        std::tuple<DType, std::array<int, 6>, std::array<bool, 11>, const std::string*, int>;
    static std::mutex mutex;
    static auto* const kKernels = new std::map<Key, cuda::Kernel>;  // loaded until the process ends
    // Texts of score mods are kept for ever, so that their address is a key.
    const Key key{desc.dtype,
                  {desc.query_dim, desc.value_dim, config.warpgroups, config.block_n, config.stages,
                   config.query_buffers},
                  {desc.upper_bound, desc.lower_bound, desc.positive_scale, desc.listed,
                   desc.mask_bits, desc.segments, desc.sequences > 0, desc.dropout, desc.sinks,
                   desc.row_maximum, desc.exact_maximum},
                  desc.score_mod.get(),
                  device};
    {
        const std::lock_guard lock(mutex);
        if (const auto found = kKernels->find(key); found != kKernels->end()) return found->second;
    }
    const cuda::DeviceInfo& info = cuda::device_info(device);
    require(info.major == 9 && info.minor == 0, "device", "compute capability 9.0", info.arch());
    if (desc.listed && !desc.mask_bits) load_lists(device);
    // Not under the lock: other kernels load meanwhile, and cubin_of lets one thread compile this
    // one.
    const cuda::Kernel kernel =
        cuda::load_kernel(generate_forward(desc, config), "attention_forward",
                          forward_shared_bytes(desc, config), device);
    const std::lock_guard lock(mutex);
    return kKernels->try_emplace(key, kernel).first->second;
}

void launch_forward(const ForwardInputs& inputs, const ForwardDesc& desc,
                    const ForwardConfig& config, const cuda::Kernel& kernel,
                    cuda::StreamHandle stream) {
    const std::int64_t batch_heads = desc.batch * desc.heads;
    const WorkspaceLayout workspace = workspace_layout(desc, config);
    const std::int64_t q_tiles = workspace.q_tiles;
    const std::int64_t places = batch_heads * q_tiles;
    if (places == 0) return;
    const int multiprocessors = cuda::device_info(kernel.device).multiprocessors;

    tw::attn::ForwardParameters p{};
    p.out = reinterpret_cast<void*>(inputs.out.address);
    p.out_batch_stride = inputs.out.strides[0];
    p.out_head_stride = inputs.out.strides[1];
    p.out_row_stride = inputs.out.strides[2];
    p.lse = reinterpret_cast<float*>(inputs.lse);
    p.profile = reinterpret_cast<unsigned long long*>(inputs.profile);
    p.q_len = static_cast<int>(desc.q_len);
    p.kv_len = static_cast<int>(desc.kv_len);
    p.heads = static_cast<int>(desc.heads);
    p.heads_per_kv_head = static_cast<int>(desc.heads / desc.kv_heads);
    p.batch_heads = static_cast<int>(batch_heads);
    p.q_tiles = static_cast<int>(q_tiles);
    p.group_heads = 1;
    p.upper_diagonal = static_cast<int>(desc.upper_diagonal);
    p.lower_diagonal = static_cast<int>(desc.lower_diagonal);
    p.scale_log2 = static_cast<float>(inputs.scale * 1.44269504088896340736);
    p.scale = static_cast<float>(inputs.scale);
    p.sinks = reinterpret_cast<const float*>(inputs.sinks);
    p.row_max = reinterpret_cast<float*>(inputs.row_max);
    p.segments = {reinterpret_cast<const int*>(inputs.q_segments),
                  reinterpret_cast<const int*>(inputs.kv_segments)};
    p.seed = inputs.seed;
    p.dropout_threshold =
        static_cast<unsigned>(std::min(std::llround(inputs.dropout * 0x1p32), 0xffffffffLL));
    p.keep_scale = static_cast<float>(1 / (1 - inputs.dropout));
    if (desc.mask_bits) {
        const DeviceMask& mask = *inputs.mask;
        if (mask.warpgroups != config.warpgroups || mask.block_n != config.block_n) {
            user_error(kOperation, "mask: expected lists of tiles of {} x {} but got {} x {}",
                       config.block_m(), config.block_n, 64 * mask.warpgroups, mask.block_n);
        }
        p.mask.tiles = reinterpret_cast<const tw::attn::MaskTile*>(mask.tiles);
        p.mask.entries = reinterpret_cast<const tw::attn::MaskEntry*>(mask.entries);
        p.mask.bits = reinterpret_cast<const unsigned*>(mask.bits);
        p.mask.batches = static_cast<int>(mask.batches);
        p.mask.heads = static_cast<int>(mask.heads);
    }
    const bool tiles_differ = desc.upper_bound || desc.listed;
    if (tiles_differ) {
        const std::int64_t head_bytes = desc.kv_len * (desc.query_dim + desc.value_dim) * 2;
        const std::int64_t group =
            std::max<std::int64_t>(1, kGroupBytes / head_bytes) * p.heads_per_kv_head;
        p.group_heads = static_cast<int>(std::min(group, batch_heads));
    }
    if (desc.upper_bound && !desc.lower_bound && !desc.listed) {
        // Tiles grow by their rows; the first `late` of a head are shorter than the share.
        const double longest = static_cast<double>(
            std::min(desc.kv_len, q_tiles * config.block_m() + desc.upper_diagonal));
        const double late =
            (kLateShare * longest - static_cast<double>(desc.upper_diagonal)) / config.block_m();
        p.late_q_tiles = static_cast<int>(
            std::clamp<double>(std::floor(late), 0.0, static_cast<double>(q_tiles - 1)));
    }

    const cuda::ContextScope scope(kernel.device);
    const cuda::TensorMap query = tile_map(inputs.query, desc.dtype, config.block_m(), "query");
    const cuda::TensorMap key = tile_map(inputs.key, desc.dtype, config.block_n, "key");
    const cuda::TensorMap value = tile_map(inputs.value, desc.dtype, config.block_n, "value");
    if (tiles_differ && places > multiprocessors) {
        // Tiles differ in length: CTAs take the next one when they are free.
        p.tickets = reinterpret_cast<unsigned*>(inputs.workspace);
        cuda::driver().check(cuda::driver().cuMemsetD32Async(inputs.workspace, 0, 1, stream),
                             "clearing the tickets");
    }
    if (desc.listed && !desc.mask_bits) {
        require(config.block_n == 64, "config", "blocks of 64 keys where they are listed",
                config.block_n);
        build_lists(inputs, desc, config, workspace, p, kernel.device, stream);
    }
    cuda::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(places, multiprocessors));
    shape.block[0] = static_cast<unsigned>(128 * (config.warpgroups + 1));
    std::vector<std::uint64_t> words = score_mod_words(inputs.captures);
    void* const parameters[] = {const_cast<cuda::TensorMap*>(&query),
                                const_cast<cuda::TensorMap*>(&key),
                                const_cast<cuda::TensorMap*>(&value), &p, words.data()};
    cuda::launch(kernel, shape, parameters, stream);
}

void forward(const ForwardInputs& inputs, cuda::StreamHandle stream) {
    const ForwardDesc desc = check_forward(inputs);
    const int device = cuda::device_of(inputs.query.address, "query");
    const ForwardConfig config = choose_forward(desc, cuda::device_info(device).multiprocessors);
    launch_forward(inputs, desc, config, load_forward(desc, config, device), stream);
}

}  // namespace tilewright::attn::sm90
