// Host side of the Hopper forward kernel.
#include "attention/sm90/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention/sm90/combined_mod.h"
#include "attention/sm90/forward_parameters.h"
#include "attention/sm90/kernel_cache.h"
#include "attention/sm90/lists.h"
#include "attention/sm90/memory_parameters.h"
#include "attention/sm90/query_tiles.h"
#include "attention/sm90/wide_rows.h"
#include "cuda/codegen/wgmma_shapes.h"
#include "support/check.h"

namespace tilewright::attn::sm90 {

namespace {

constexpr int kSharedAlignment = 1024;  // the kernel aligns its base address to this

/// The workspace begins with the counter of the dynamic tile scheduler, followed by lists if the
/// device builds them.
bool builds_lists(const ForwardDesc& desc) {
    return desc.listed && !desc.mask_bits;
}

ListShape list_shape(const ForwardConfig& config) {
    return {.strips = config.warpgroups, .block = config.block_n};
}

std::int64_t tiles_of_rows(const ForwardDesc& desc, const ForwardConfig& config) {
    return ceil_div(desc.q_len * config.group, config.block_m());
}
std::int64_t tiles_of(const ForwardDesc& desc, const ForwardConfig& config) {
    return desc.batch * desc.heads / config.group * tiles_of_rows(desc, config);
}

/// The number of key blocks, counted as in the kernel, of the tile that visits the fewest.
std::int64_t fewest_blocks(const ForwardDesc& desc, const ForwardConfig& config) {
    const std::int64_t all = ceil_div(desc.kv_len, config.block_n);
    std::int64_t fewest = all;
    for (std::int64_t tile = 0; tile < tiles_of_rows(desc, config) && desc.upper_bound; ++tile) {
        const std::int64_t first = tile * config.block_m() / config.group;
        const std::int64_t last = ((tile + 1) * config.block_m() - 1) / config.group;
        const std::int64_t begin =
            desc.lower_bound
                ? std::max<std::int64_t>(0, first + desc.lower_diagonal) / config.block_n
                : 0;
        const std::int64_t keys = std::min(desc.kv_len, last + desc.upper_diagonal + 1);
        const std::int64_t end = keys > 0 ? ceil_div(keys, config.block_n) : 0;
        fewest = std::min(fewest, std::max<std::int64_t>(end - begin, 1));
    }
    return fewest;
}

/// f32 words for the results of all splits; the sums come first.
struct Splits {
    std::int64_t sums, out;
};
Splits splits_of(const ForwardDesc& desc, const ForwardConfig& config) {
    if (config.stream_k == 0) return {};
    const std::int64_t most = ceil_div(config.stream_k, tiles_of(desc, config)) + 1;  // per tile
    const std::int64_t rows = most * desc.batch * desc.heads * desc.q_len;
    return {ceil_div(2 * rows, 4) * 4, rows * desc.value_dim};  // aligns `out` to 16 bytes
}

/// The number of CTAs for stream-K, or 0. It pays where whole tiles would leave multiprocessors
/// idle at the end and no tiles that run at the same time share keys in L2. Costs are in blocks of
/// keys: two to begin and end a split, two to join the splits.
int choose_stream_k(const ForwardDesc& desc, const ForwardConfig& config, int multiprocessors) {
    const std::int64_t tiles = tiles_of(desc, config);
    const bool few = tiles <= multiprocessors || tiles_of_rows(desc, config) == 1;
    if (desc.row_maximum || tiles == 0 || !few) return 0;
    constexpr std::int64_t kEnds = 2, kJoining = 2, kMostSlots = 1 << 30;
    const std::int64_t blocks = fewest_blocks(desc, config), all = tiles * blocks;
    if (all > kMostSlots) return 0;
    const std::int64_t whole = ceil_div(tiles, multiprocessors) * (blocks + kEnds);
    const std::int64_t range = ceil_div(all, multiprocessors);
    const std::int64_t split = range + (range / blocks + 2) * kEnds + kJoining;
    return split < whole ? static_cast<int>(std::min<std::int64_t>(multiprocessors, all)) : 0;
}

/// Where copies of K and V begin in the workspace, but for their alignment.
constexpr std::size_t kWideAlignment = 128;
std::size_t wide_offset(const ForwardDesc& desc, const ForwardConfig& config) {
    const Splits splits = splits_of(desc, config);
    return kForwardWorkspaceBytes + static_cast<std::size_t>(4 * (splits.sums + splits.out)) +
           (builds_lists(desc) ? list_layout(desc, list_shape(config)).bytes : 0);
}

/// Tile shapes for heads up to some size. Three warpgroups share K and V among 192 rows and keep
/// the tensor cores busier, but waste more rows on short problems.
struct TileShapes {
    int query_dim, value_dim;  ///< largest number of columns
    ForwardConfig few_rows;    ///< one warpgroup
    ForwardConfig listed;      ///< blocks of one atom; a warpgroup skips those that it does not see
    /// The same where queries have at most `few_keys` keys: tiles of one warpgroup, whose CTAs hide
    /// each other's latencies.
    ForwardConfig listed_few = {};
    std::int64_t few_keys = 0;
    ForwardConfig two;
    ForwardConfig three = {}, three_causal = {};  ///< used if `has_three`
    bool has_three = false, three_in_windows = false;
    double two_utilisation = 1, three_utilisation = 1;  ///< of the tensor cores, as measured
    std::int64_t long_rows = 0;  ///< if causal, three warpgroups pay from this many rows on
    std::vector<ForwardConfig> trials = {};  ///< what `autotune` measures in addition to the choice
};

/// The first entry that fits both sizes.
const TileShapes& tile_shapes(int query_dim, int value_dim) {
    static const std::vector<TileShapes> rows = {
        {.query_dim = 64,
         .value_dim = 64,
         .few_rows = {.warpgroups = 1, .block_n = 128, .stages = 4},
         .listed = {.warpgroups = 3, .block_n = 64, .stages = 3},
         .listed_few = {.warpgroups = 1, .block_n = 64, .stages = 3, .ctas = 3},
         .few_keys = 512,
         .two = {.warpgroups = 2, .block_n = 128},
         .three = {.warpgroups = 3, .block_n = 112},
         .three_causal = {.warpgroups = 3, .block_n = 96, .stages = 3},
         .has_three = true,
         .three_in_windows = true,
         .two_utilisation = 0.58,
         .three_utilisation = 0.65,
         .long_rows = 1536,
         .trials = {{.warpgroups = 2, .block_n = 128},
                    {.warpgroups = 3, .block_n = 96, .stages = 3},
                    {.warpgroups = 3, .block_n = 64, .stages = 3},
                    {.warpgroups = 3, .block_n = 112}}},
        {.query_dim = 96,
         .value_dim = 96,
         .few_rows = {.warpgroups = 1, .block_n = 128, .stages = 3},
         .listed = {.warpgroups = 3, .block_n = 64, .stages = 3},
         .two = {.warpgroups = 2, .block_n = 128},
         .three = {.warpgroups = 3, .block_n = 96},
         .three_causal = {.warpgroups = 3, .block_n = 96},
         .has_three = true,
         .three_in_windows = true,
         .two_utilisation = 0.76,
         .three_utilisation = 0.78,
         .long_rows = 1536,
         .trials = {{.warpgroups = 2, .block_n = 128},
                    {.warpgroups = 3, .block_n = 96},
                    {.warpgroups = 3, .block_n = 64}}},
        {.query_dim = 128,
         .value_dim = 128,
         .few_rows = {.warpgroups = 1, .block_n = 128, .stages = 3},
         .listed = {.warpgroups = 3, .block_n = 64, .stages = 3},
         .two = {.warpgroups = 2, .block_n = 128},
         .three = {.warpgroups = 3, .block_n = 80},
         .three_causal = {.warpgroups = 3, .block_n = 80},
         .has_three = true,
         .two_utilisation = 0.93,
         .three_utilisation = 0.963,
         .long_rows = 6144,
         .trials = {{.warpgroups = 2, .block_n = 128},
                    {.warpgroups = 3, .block_n = 80},
                    {.warpgroups = 3, .block_n = 64}}},
        {.query_dim = 192,
         .value_dim = 128,
         .few_rows = {.warpgroups = 1, .block_n = 64},
         .listed = {.warpgroups = 2, .block_n = 64, .query_buffers = 1},
         .two = {.warpgroups = 2, .block_n = 128, .query_buffers = 1},
         .trials = {{.block_n = 128, .query_buffers = 1},
                    {.block_n = 112, .query_buffers = 1},
                    {.block_n = 96, .query_buffers = 1},
                    {.block_n = 80}}},
        {.query_dim = 192,
         .value_dim = 192,
         .few_rows = {.warpgroups = 1, .block_n = 64},
         .listed = {.warpgroups = 2, .block_n = 64, .query_buffers = 1},
         .two = {.warpgroups = 2, .block_n = 112, .query_buffers = 1},
         .trials = {{.block_n = 112, .query_buffers = 1},
                    {.block_n = 96, .query_buffers = 1},
                    {.block_n = 80}}},
        {.query_dim = 256,  // larger blocks spill
         .value_dim = 256,
         .few_rows = {.warpgroups = 1, .block_n = 64},
         .listed = {.warpgroups = 2, .block_n = 64, .query_buffers = 1},
         .two = {.warpgroups = 2, .block_n = 64, .query_buffers = 1}}};
    const auto fits = [&](const TileShapes& row) {
        return query_dim <= row.query_dim && value_dim <= row.value_dim;
    };
    return *std::find_if(rows.begin(), rows.end(), fits);
}

/// For few query rows: one warpgroup saves half of a tile's tensor work, and rows of all query
/// heads of a kv head share one read of its K and V.
ForwardConfig choose_few_rows(const ForwardDesc& desc, const ForwardConfig& many) {
    ForwardConfig config = many;
    const std::int64_t group = desc.heads / desc.kv_heads;
    const bool plain = desc.score_mod == nullptr && !desc.dropout && !desc.row_maximum;
    const bool power_of_two = (group & (group - 1)) == 0;
    if (plain && power_of_two && group <= 128) config.group = static_cast<int>(group);
    if (config.group * desc.q_len <= 64 && config.group <= 64) {
        // Data in flight hides the memory latency.
        const ForwardConfig& few = tile_shapes(desc.query_dim, desc.value_dim).few_rows;
        config.warpgroups = few.warpgroups;
        config.block_n = few.block_n;
        config.stages = few.stages;
    } else if (config.warpgroups == 3) {
        config = {.warpgroups = 2, .block_n = 128, .group = config.group};
    }
    return config;
}

/// About how many keys a query of packed sequences has; 0: they are not packed.
std::int64_t packed_keys(const ForwardDesc& desc) {
    if (desc.sequences == 0) return 0;
    const std::int64_t keys = ceil_div(desc.kv_len, desc.sequences);
    return desc.upper_bound ? ceil_div(keys, 2) : keys;
}

/// Mods and draws take registers that small tiles do not have.
bool fits_small_tiles(const ForwardDesc& desc) {
    return desc.score_mod == nullptr && !desc.dropout;
}

/// Adds the text of the mod, or returns the rule that is broken.
std::optional<Refusal> complete(ForwardDesc& desc, const std::shared_ptr<const ir::Function>& mod,
                                const std::vector<CaptureSpec>& captures) {
    if (desc.kv_len < 1) return refusal(rule_text("key", "from 1 to 2^29 rows", desc.kv_len));
    if (const std::string rule = broken_rule(desc); !rule.empty()) return refusal(rule);
    if (mod == nullptr) return std::nullopt;
    if (const std::string rule = broken_rule(*mod, captures); !rule.empty()) return refusal(rule);
    desc.score_mod = find_mod_text(mod, score_mod_facts(captures, desc.q_len, desc.kv_len));
    if (!desc.score_mod->refusal.empty()) return refusal(desc.score_mod->refusal);
    return std::nullopt;
}

/// Are K and V copied? A copy takes as long as L2 loses while 1,000 to 4,000 queries read each key.
bool wants_wide(const ForwardDesc& desc, const ForwardConfig& config) {
    constexpr std::int64_t kLeastQueries = 4096;
    if (desc.listed || desc.lower_bound || config.group > 1 || config.stream_k > 0) return false;
    const std::int64_t group = desc.heads / std::max<std::int64_t>(1, desc.kv_heads);
    const std::int64_t queries = desc.q_len * group / (desc.upper_bound ? 2 : 1);
    return (is_odd(desc.query_dim) || is_odd(desc.value_dim)) && queries >= kLeastQueries;
}

ForwardConfig choose_tiles(const ForwardDesc& desc, int multiprocessors) {
    const TileShapes& shapes = tile_shapes(desc.query_dim, desc.value_dim);
    if (shapes.has_three && desc.dropout) {
        // The draws take registers, which 192 rows have for small blocks alone.
        const bool is_long =
            desc.upper_bound && !desc.lower_bound && desc.q_len >= shapes.long_rows;
        return is_long ? ForwardConfig{.warpgroups = 3, .block_n = 64} : shapes.two;
    }
    if (!shapes.has_three || (desc.lower_bound && !shapes.three_in_windows)) return shapes.two;
    if (desc.upper_bound) {
        // Each row of tiles wastes part of its last blocks, more so with 192 rows.
        return desc.q_len >= shapes.long_rows ? shapes.three_causal : shapes.two;
    }
    const auto cost = [&](const ForwardConfig& config, double utilisation) {
        const std::int64_t tiles = desc.batch * desc.heads * ceil_div(desc.q_len, config.block_m());
        return static_cast<double>(ceil_div(tiles, multiprocessors) * config.block_m()) /
               utilisation;
    };
    return cost(shapes.three, shapes.three_utilisation) < cost(shapes.two, shapes.two_utilisation)
               ? shapes.three
               : shapes.two;
}

/// Registers of a thread of the producer and of a consumer.
struct Registers {
    int producer, consumer;
};

/// The registers that the producer gives up go to the consumers; all must fit into what the CTA has
/// at entry.
Registers registers_of(const ForwardDesc& desc, const ForwardConfig& config) {
    if (config.ctas > 1) {
        constexpr int kThreads = 256, kAll = 65536, kUnit = 8;  // the compiler rounds down to units
        const int at_entry = kAll / (kThreads * config.ctas) / kUnit * kUnit;
        constexpr int kProducer = 24;
        return {kProducer, 2 * at_entry - kProducer};
    }
    if (config.warpgroups == 3) return {32, 160};
    return desc.listed ? Registers{40, 232} : Registers{24, 240};
}

}  // namespace

std::size_t forward_workspace_bytes(const ForwardDesc& desc, const ForwardConfig& config) {
    return wide_offset(desc, config) +
           (config.wide ? kWideAlignment +
                              wide_bytes(desc.batch, desc.kv_heads, desc.kv_len, desc.query_dim) +
                              wide_bytes(desc.batch, desc.kv_heads, desc.kv_len, desc.value_dim)
                        : 0);
}

std::optional<Refusal> describe(const AttentionSpec& spec, ForwardDesc& desc) {
    describe(spec, static_cast<ProblemDesc&>(desc));
    desc.row_maximum = desc.exact_maximum = spec.max_scores;
    desc.positive_scale = spec.scale > 0;
    desc.listed_keys = desc.mask_bits ? spec.mask_keys : packed_keys(desc);
    return complete(desc, combined_mod(spec), combined_captures(spec));
}

ForwardDesc check_forward(const ForwardInputs& inputs) {
    ForwardDesc desc;
    describe(inputs, desc);
    desc.row_maximum = inputs.row_max != 0;
    desc.exact_maximum = inputs.exact_maximum || desc.row_maximum;
    desc.positive_scale = inputs.scale > 0;
    // Lists were made for one size of tiles.
    desc.listed_keys = packed_keys(desc);
    if (inputs.mask.has_value() && inputs.mask->strips == 1) desc.listed_keys = 1;
    if (const auto refused = complete(desc, inputs.score_mod, specs_of(inputs.captures))) {
        throw UserError(refused->reason);
    }
    check_arrays(inputs);
    return desc;
}

void check_arrays(const ForwardInputs& inputs) {
    check_problem_arrays(inputs);
    require(!inputs.mask.has_value() || !inputs.mask->by_key, "mask", "lists for tiles of queries",
            "lists for tiles of keys");
    require(inputs.workspace != 0 && inputs.workspace % 16 == 0, "workspace",
            "an address that is a multiple of 16", inputs.workspace);
    require(inputs.row_max % 4 == 0, "row_max", "an address that is a multiple of 4",
            inputs.row_max);
}

ForwardConfig choose_listed(int query_dim, int value_dim, std::int64_t keys) {
    const TileShapes& shapes = tile_shapes(query_dim, value_dim);
    return keys > 0 && keys <= shapes.few_keys ? shapes.listed_few : shapes.listed;
}

ForwardConfig choose_forward(const ForwardDesc& desc, int multiprocessors) {
    if (desc.listed) {
        return choose_listed(desc.query_dim, desc.value_dim,
                             fits_small_tiles(desc) ? desc.listed_keys : 0);
    }
    constexpr std::int64_t kFewRows = 64;
    ForwardConfig config = choose_tiles(desc, multiprocessors);
    if (desc.q_len <= kFewRows) config = choose_few_rows(desc, config);
    if (config.warpgroups < 3) config.stream_k = choose_stream_k(desc, config, multiprocessors);
    config.wide = wants_wide(desc, config);
    return config;
}

std::vector<ForwardConfig> forward_trials(const ForwardDesc& desc, int multiprocessors) {
    const ForwardConfig chosen = choose_forward(desc, multiprocessors);
    std::vector<ForwardConfig> trials = {chosen};
    const auto add = [&](const ForwardConfig& other) {
        if (std::find(trials.begin(), trials.end(), other) == trials.end()) trials.push_back(other);
    };
    if (desc.listed) {
        // How far loads run ahead, for tiles of the chosen size; and the other size.
        constexpr int kMostShared = 228 * 1024, kReserved = 1024;  // of a multiprocessor; by a CTA
        for (const int stages : {2, 3, 4}) {
            for (const int query_buffers : {2, 1}) {
                ForwardConfig other = chosen;
                other.stages = stages;
                other.query_buffers = query_buffers;
                const int bytes = other.ctas * (forward_shared_bytes(desc, other) + kReserved);
                if (bytes <= kMostShared) add(other);
            }
        }
        const TileShapes& shapes = tile_shapes(desc.query_dim, desc.value_dim);
        if (desc.listed_keys > 0 && shapes.few_keys > 0 && fits_small_tiles(desc)) {
            add(shapes.listed);
            add(shapes.listed_few);
        }
        return trials;
    }
    // The bounds of a window need the registers that these tiles take.
    if (desc.lower_bound || chosen.group > 1 || chosen.warpgroups == 1) return trials;
    for (ForwardConfig other : tile_shapes(desc.query_dim, desc.value_dim).trials) {
        if (other.warpgroups < 3) other.stream_k = choose_stream_k(desc, other, multiprocessors);
        other.wide = wants_wide(desc, other);
        add(other);
    }
    return trials;
}

int forward_shared_bytes(const ForwardDesc& desc, const ForwardConfig& config) {
    const twd::attn::QueryTileShape shape{.query_dim = desc.query_dim,
                                          .value_dim = desc.value_dim,
                                          .warpgroups = config.warpgroups,
                                          .block_n = config.block_n,
                                          .stages = config.stages,
                                          .value_stages = config.stages,
                                          .query_buffers = config.query_buffers,
                                          .query_gradient = false,
                                          .listed = desc.listed,
                                          .mask_bits = desc.mask_bits};
    return twd::attn::memory_of(shape).total + kSharedAlignment;
}

cuda::CompileRequest generate_forward(const ForwardDesc& desc, const ForwardConfig& config) {
    const auto [producer_registers, consumer_registers] = registers_of(desc, config);
    const cuda::WgmmaShape shapes[] = {
        {config.block_n, desc.dtype, /*a_in_registers=*/false, steps_of(desc.query_dim)},  // Q K^T
        {desc.value_dim, desc.dtype, /*a_in_registers=*/true, config.block_n / 16}};       // P V
    const std::string name = fmt::format(
        "attention_forward_{}_{}x{}{}{}.cu", variant_name(desc), config.block_m(), config.block_n,
        config.group > 1 ? "_grouped" : "", config.stream_k > 0 ? "_stream_k" : "");
    // Lists that the device builds cost a few words. Stream-K stores results in two ways after a
    // tile's last block.
    constexpr int kDropoutSpillBytes = 1024, kListSpillBytes = 256, kStreamKSpillBytes = 128;
    const int spills = desc.dropout          ? kDropoutSpillBytes
                       : builds_lists(desc)  ? kListSpillBytes
                       : config.stream_k > 0 ? kStreamKSpillBytes
                                             : 0;
    cuda::CompileRequest request = kernel_request(name, desc, shapes, spills);
    request.headers.push_back(config_header(
        "forward_config.cuh", "the configuration of one forward kernel", desc,
        fmt::format(R"(constexpr bool kScaleScores = {};
constexpr bool kRowMaximum = {};
constexpr bool kExactMaximum = {};
constexpr int kWarpgroups = {};
constexpr int kCtas = {};  ///< on a multiprocessor
constexpr int kBlockN = {};
constexpr int kStages = {};
constexpr int kValueStages = kStages;
constexpr int kQueryBuffers = {};
constexpr bool kQueryGradient = false;
constexpr int kGroup = {};
constexpr bool kStreamK = {};
constexpr int kProducerRegisters = {};
constexpr int kConsumerRegisters = {};
constexpr unsigned kReservedBytes = {};  ///< of shared memory, but for the base's alignment
)",
                    !desc.positive_scale, desc.row_maximum, desc.exact_maximum, config.warpgroups,
                    config.ctas, config.block_n, config.stages, config.query_buffers, config.group,
                    config.stream_k > 0, producer_registers, consumer_registers,
                    forward_shared_bytes(desc, config) - kSharedAlignment)));
    request.source = "#include \"attention/sm90/forward.cuh\"\n";
    if (config.stream_k > 0) request.source += "#include \"attention/sm90/forward_combine.cuh\"\n";
    return request;
}

ForwardKernels load_forward(const ForwardDesc& desc, const ForwardConfig& config, int device,
                            const FirstCall& call, const std::function<void()>& before) {
    const std::string key =
        fmt::format("{} {} {} {} {} {} {} {} {} {} {}", variant_key(desc), config.warpgroups,
                    config.ctas, config.block_n, config.stages, config.query_buffers, config.group,
                    config.stream_k > 0, desc.positive_scale, desc.row_maximum, desc.exact_maximum);
    const auto generate = [&] { return std::vector{generate_forward(desc, config)}; };
    const auto load = [&](const std::vector<cuda::CompileRequest>& units) {
        const cuda::CompileRequest& request = units.front();
        compile_ahead(units);  // first: what the call waits for longest
        before();
        if (builds_lists(desc)) cuda::compile_in_background(generate_lists());
        if (config.wide) cuda::compile_in_background(generate_wide_rows());
        ForwardKernels kernels;
        kernels.main = cuda::load_kernel(request, "attention_forward",
                                         forward_shared_bytes(desc, config), device);
        if (config.stream_k > 0) {
            kernels.combine = cuda::load_kernel(request, "attention_forward_combine", 0, device);
        }
        if (builds_lists(desc)) load_lists(device);
        return kernels;
    };
    const auto kernels = load_in_stages<ForwardKernels>(call, key, device, generate, load);
    if (config.wide) load_wide_rows(device);
    return kernels;
}

ForwardKernels load_forward(const ForwardDesc& desc, const ForwardConfig& config, int device,
                            const std::function<void()>& before) {
    return load_forward(desc, config, device, FirstCall{}, before);
}

void launch_forward(const ForwardInputs& inputs, const ForwardDesc& desc,
                    const ForwardConfig& config, const ForwardKernels& kernels,
                    cuda::StreamHandle stream) {
    const cuda::Kernel& kernel = kernels.main;
    twd::attn::ForwardParameters p =
        query_tile_parameters(inputs, desc, inputs.out, config.block_m(), config.group);
    const std::int64_t places = std::int64_t{p.batch_heads} * p.q_tiles;
    if (places == 0) return;
    const std::int64_t ctas =
        std::int64_t{cuda::device_info(kernel.device).multiprocessors} * config.ctas;
    p.profile = reinterpret_cast<unsigned long long*>(inputs.profile);
    p.row_max = reinterpret_cast<float*>(inputs.row_max);
    p.keys_once = p.q_tiles == 1 && p.heads_per_kv_head == 1;
    if (desc.mask_bits) p.mask = query_lists(*inputs.mask, config.warpgroups, config.block_n);
    const bool tiles_differ = desc.upper_bound || desc.listed;
    if (config.stream_k > 0) {
        p.stream_k = config.stream_k;
        p.slots = static_cast<int>(fewest_blocks(desc, config));
        p.all_slots = static_cast<int>(places * p.slots);
        p.group_heads = 1;
        p.late_q_tiles = 0;
        auto* const sums = reinterpret_cast<float*>(inputs.workspace + kForwardWorkspaceBytes);
        p.split_sums = reinterpret_cast<twd::attn::SplitSums*>(sums);
        p.split_out = sums + splits_of(desc, config).sums;
    }

    const cuda::ContextScope scope(kernel.device);
    const cuda::TensorMap query =
        config.group > 1
            ? grouped_tile_map(inputs.query, desc.dtype, config.block_m(), config.group, "query")
            : tile_map(inputs.query, desc.dtype, config.block_m(), "query");
    DeviceTensor keys = inputs.key, values = inputs.value;
    if (config.wide) {
        const cuda::DeviceAddress copies = inputs.workspace + wide_offset(desc, config);
        widen_rows({&keys, &values}, ceil_div(copies, kWideAlignment) * kWideAlignment,
                   kernel.device, stream);
    }
    const cuda::TensorMap key = tile_map(keys, desc.dtype, config.block_n, "key", p.keys_once);
    const cuda::TensorMap value =
        tile_map(values, desc.dtype, config.block_n, "value", p.keys_once);
    if (tiles_differ && places > ctas && config.stream_k == 0) {
        // Tiles differ in length, so CTAs claim the next one when they are free.
        p.next_tile = reinterpret_cast<unsigned*>(inputs.workspace);
        cuda::driver().check(cuda::driver().cuMemsetD32Async(inputs.workspace, 0, 1, stream),
                             "clearing the tile counter");
    }
    if (builds_lists(desc)) {
        require(config.block_n == 64, "config", "blocks of 64 keys where they are listed",
                config.block_n);
        p.mask = build_lists(inputs, desc, list_shape(config),
                             inputs.workspace + kForwardWorkspaceBytes, kernel.device, stream);
    }
    cuda::LaunchShape shape;
    shape.grid[0] =
        static_cast<unsigned>(config.stream_k > 0 ? config.stream_k : std::min(places, ctas));
    shape.block[0] = static_cast<unsigned>(128 * (config.warpgroups + 1));
    std::vector<std::uint64_t> words = score_mod_words(inputs.captures);
    void* const parameters[] = {const_cast<cuda::TensorMap*>(&query),
                                const_cast<cuda::TensorMap*>(&key),
                                const_cast<cuda::TensorMap*>(&value), &p, words.data()};
    cuda::launch(kernel, shape, parameters, stream);
    if (config.stream_k == 0) return;
    constexpr unsigned kThreads = 256, kRows = kThreads / 32;
    cuda::LaunchShape combine;
    combine.grid[0] = static_cast<unsigned>(ceil_div(desc.batch * desc.heads * desc.q_len, kRows));
    combine.block[0] = kThreads;
    void* const combined[] = {&p};
    cuda::launch(kernels.combine, combine, combined, stream);
}

void forward(const ForwardInputs& inputs, cuda::StreamHandle stream) {
    const ForwardDesc desc = check_forward(inputs);
    const int device = cuda::device_of(inputs.query.address, "query");
    const ForwardConfig config = choose_forward(desc, cuda::device_info(device).multiprocessors);
    launch_forward(inputs, desc, config, load_forward(desc, config, device), stream);
}

}  // namespace tilewright::attn::sm90
