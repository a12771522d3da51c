// The choice of blocks for tile programs.
#include "attention/tiles/config.h"

#include <algorithm>
#include <bit>

#include "attention/tiles/backward.h"
#include "run/machine.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "support/integer.h"

namespace tilewright::attn::tiles {
namespace {

/// Gradients of captured arrays may take this many elements in addition to the arrays themselves.
/// Beyond it, batches and heads that would need copies of their own run one after another.
constexpr std::int64_t kMostCopied = std::int64_t{1} << 24;

/// Long enough, in a type with fast products, that longer blocks pay on a CPU.
bool is_long(const AttentionSpec& s) {
    constexpr std::int64_t kLong = 2048;
    return std::min(s.query_length, s.kv_length) >= kLong &&
           (s.dtype == DType::bf16 || s.dtype == DType::f32);
}

/// Most keys of a block on a CPU. Longer blocks spread the fixed cost of a block over more
/// products, but where a mask cuts through them they cover more masked pairs, which costs least if
/// products are cheap.
std::int64_t most_keys(const AttentionSpec& s) {
    const bool is_cut = (s.right() >= 0 && s.dtype != DType::bf16) || s.window_left >= 0 ||
                        s.segment_ids || s.block_mask;
    return is_long(s) && !is_cut ? 256 : 128;
}

bool is_hopper(const AttentionSpec& s) {
    return run::arch(s.device.index) == "sm_90a";
}

/// Operations that a program repeats for each pair; with its derivative a score mod has about three
/// times its own.
std::int64_t operations_of_pair(const AttentionSpec& s) {
    constexpr std::int64_t kOfDerivative = 3;
    const std::int64_t score = num_operations(s.score);
    return num_operations(s.mask) + (s.pass == Pass::backward ? kOfDerivative * score : score);
}

/// Every operation on pairs becomes text for each pair of a thread, and GPU compilers take more
/// than proportionally longer for more of it. So programs of long mods have small blocks.
bool is_long_mod(const AttentionSpec& s) {
    constexpr std::int64_t kMost = 256;
    return s.on_gpu() && operations_of_pair(s) > kMost;
}

/// May warpgroups multiply in the forward pass? Programs that gather, mask loads or draw random
/// bits are generated for warps.
bool takes_warpgroups(const AttentionSpec& s, const Features& of) {
    return is_hopper(s) && !of.mask && !of.lengths && of.dropout == 0 && !is_long_mod(s) &&
           reads_by_head(of.score);
}

/// What the choice of blocks on a GPU depends on.
GpuProblem gpu_problem(const AttentionSpec& s, const Features& of) {
    return {.dtype = s.dtype,
            .heads = s.batch * s.query_heads,
            .head_dim = s.head_dim,
            .value_dim = s.value_dim,
            .query_length = s.query_length,
            .kv_length = s.kv_length,
            .tested = of.positions() || s.block_mask,
            .deterministic = s.deterministic,
            .shared_bytes = run::shared_bytes_per_block(s.device.index),
            .multiprocessors = run::multiprocessors(s.device.index),
            // With diagonals, few queries attend to few keys, or to a part of them.
            .splits = s.right() < 0 && s.window_left < 0 && !s.checked,
            .wgmma = takes_warpgroups(s, of) && !s.block_mask,
            .hopper = is_hopper(s),
            .products = s.products};
}

/// Halves blocks until a thread's part of a program with long mods is short.
void fit_long_mods(const AttentionSpec& s, Options& options) {
    constexpr std::int64_t kLeast = 16, kMost = 4096;
    if (!is_long_mod(s)) return;
    options.num_warps = std::max(options.num_warps, 4);
    const std::int64_t threads = std::int64_t{options.num_warps} * 32;
    std::int64_t &q = options.block_q, &k = options.block_k;
    while (q * k * operations_of_pair(s) > kMost * threads && std::max(q, k) > kLeast) {
        (q >= k ? q : k) /= 2;
    }
}

/// The mod with its plain loads as block loads, except in decode, where the heads of a group are
/// the rows, and in the checked mode, which needs every index.
InlinedMod inlined(const AttentionSpec& spec, const ModSpec& mod, bool is_score) {
    if (!mod) return {};
    if (spec.query_length == 1 || spec.checked) return InlinedMod{mod.function, {}, mod.text};
    std::vector<Tensor::Dims> shapes;
    for (const CaptureSpec& capture : mod.captures) shapes.push_back(capture.shape);
    const std::int64_t batch = spec.packed() ? spec.sequences : spec.batch;
    return with_block_loads(mod.text, *mod.function, is_score, shapes,
                            {batch + spec.origin[0], spec.query_heads + spec.origin[1],
                             spec.query_length, spec.kv_length});
}

/// The options with the blocks that both passes start from.
Options options_of(const AttentionSpec& spec, const Features& features) {
    Options options;
    options.scale = spec.scale;
    options.causal = spec.causal;
    options.window_left = spec.window_left;
    options.window_right = spec.window_right;
    options.group = spec.group();
    options.interpret = spec.checked;
    options.products = spec.products;
    options.narrow_inputs = size_of(spec.dtype) == 2;
    // In narrow types the scaled operand would be rounded.
    options.scale_operand = features.score && !spec.on_gpu() && size_of(spec.dtype) >= 4;
    if (spec.on_gpu()) {
        use_gpu_blocks(options, gpu_problem(spec, features));
        fit_long_mods(spec, options);
        return options;
    }
    // Queries past the end read 0, so a short problem has one block of its own length.
    options.block_q = std::clamp<std::int64_t>(spec.query_length, 1, 64);
    options.block_k = 16;
    const std::int64_t most = most_keys(spec);
    while (options.block_k < most && options.block_k < spec.kv_length) options.block_k *= 2;
    return options;
}

/// Replaces blocks for warpgroups by blocks for warps.
void use_warp_blocks(const AttentionSpec& spec, const Features& features, Options& options) {
    if (!options.guarded) return;
    GpuProblem problem = gpu_problem(spec, features);
    problem.wgmma = false;
    use_gpu_blocks(options, problem);
}

/// The same on a GPU: powers of two that fit shared memory. Warpgroups have blocks of one size
/// only, so any other size means a program for warps.
void use_gpu_hints(const AttentionSpec& spec, const Features& features, Options& options) {
    const AttentionBlocks& wish = spec.blocks();
    const auto size = [](std::int64_t wanted, std::int64_t chosen) {
        constexpr std::int64_t kLeast = 16, kMost = 256;
        if (wanted == 0) return chosen;
        const std::int64_t inside = std::clamp(wanted, kLeast, kMost);
        return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(inside)));
    };
    const std::int64_t q = size(wish.q, options.block_q), k = size(wish.kv, options.block_k);
    if (q != options.block_q || k != options.block_k) {
        use_warp_blocks(spec, features, options);
        options.block_q = size(wish.q, options.block_q);
        options.block_k = size(wish.kv, options.block_k);
        fit_gpu_blocks(options, gpu_problem(spec, features), spec.pass == Pass::backward);
    }
    if (wish.num_warps > 0) options.num_warps = wish.num_warps;
    if (wish.num_stages > 0) options.num_stages = wish.num_stages;
}

/// Takes the caller's block sizes, as far as lengths and the machine allow.
void use_hints(const AttentionSpec& spec, const Features& features, Options& options) {
    constexpr std::int64_t kLargest = 512, kGrain = 16;  // keys fill whole vectors
    const AttentionBlocks& wish = spec.blocks();
    if (spec.on_gpu()) return use_gpu_hints(spec, features, options);
    if (wish.q > 0) {
        options.block_q =
            std::clamp<std::int64_t>(std::min(wish.q, spec.query_length), 1, kLargest);
    }
    if (wish.kv > 0) {
        const std::int64_t keys =
            std::clamp<std::int64_t>(std::min(wish.kv, spec.kv_length), 1, kLargest);
        options.block_k = ceil_div(keys, kGrain) * kGrain;
    }
}

/// Queries of a program on a CPU: as many as can share each block of keys while they fit a core's
/// cache and there are still many programs. Depends only on shapes, so that results do not depend
/// on the machine.
std::int64_t forward_block(const AttentionSpec& s, std::int64_t block) {
    constexpr std::int64_t kMostElements = 16384, kPrograms = 128;
    const std::int64_t widest = std::max(s.head_dim, s.value_dim);
    const auto fits = [&](std::int64_t rows) {
        return rows <= s.query_length && rows * widest <= kMostElements &&
               s.batch * s.query_heads * (s.query_length / rows) >= kPrograms;
    };
    while (block >= 64 && block < 256 && fits(2 * block)) block *= 2;
    return block;
}

/// With diagonals, long sequences on a CPU have long blocks inside and shorter ones where a
/// diagonal cuts through them; fewer queries at once then leave fewer masked pairs in those.
void use_edges(const AttentionSpec& s, Options& options) {
    constexpr std::int64_t kEdge = 128, kMostQueries = 128;
    const bool diagonals = s.right() >= 0 || s.window_left >= 0;
    if (s.on_gpu() || s.block_mask || s.segment_ids || !diagonals || !is_long(s)) return;
    options.edge_k = kEdge;
    options.block_k = 2 * kEdge;
    options.block_q = std::min(options.block_q, kMostQueries);
}

/// True if few queries attend to every key. The keys are then split over programs, and all queries
/// of a group of heads, which have one common stride, are the rows of one block.
bool is_decode(const AttentionSpec& s, const Features& features) {
    constexpr std::int64_t kFewQueries = 15, kMostRows = 64;
    if (s.right() >= 0 || features.segments || features.plan) return false;
    if (features.dropout != 0 || loads_blocks(features)) return false;
    if (s.query_length == 1) return true;
    const bool plain = s.window_left < 0 && !features.score && !features.mask && !s.sinks;
    return plain && s.query_length <= kFewQueries && s.group() * s.query_length <= kMostRows &&
           s.joined_rows;
}

/// Queries of a program, and blocks of keys at a diagonal, unless the caller wants others.
void choose_queries(const AttentionSpec& spec, TilesConfig& config) {
    Options& options = config.options;
    const AttentionBlocks& wish = spec.forward_blocks;
    if (wish.q == 0) {
        Options wider = options;
        if (spec.on_gpu()) {
            use_gpu_queries(wider, gpu_problem(spec, config.features));
        } else {
            wider.block_q = forward_block(spec, options.block_q);
        }
        // With 128 columns and the bits of a mask, registers do not hold two tiles of 16 rows per
        // warp.
        const bool over_64 = spec.on_gpu() && std::max(spec.head_dim, spec.value_dim) > 64;
        if (!spec.block_mask) {
            options = wider;
        } else if (!over_64) {
            config.most_queries = wider.block_q;
        }
    }
    if (wish.q == 0 && wish.kv == 0) use_edges(spec, options);
}

/// Splits the keys over programs where there are few queries. Programs of warpgroups do not split,
/// so blocks are chosen anew for warps, unless the caller asked for these or they would not split
/// either.
void use_split(const AttentionSpec& spec, const Features& features, Options& options) {
    const GpuProblem problem = gpu_problem(spec, features);
    if (split_of(options, problem) == 0) return;
    const AttentionBlocks& wish = spec.forward_blocks;
    if (options.guarded && (wish.q > 0 || wish.kv > 0)) return;
    Options split = options;
    use_warp_blocks(spec, features, split);
    split.split_k = split_of(split, problem);
    if (split.split_k > 0) options = split;
}

/// With a mask as data: programs of warpgroups as well, where there are enough to fill the GPU
/// twice and nothing but the mask is tested.
void choose_warpgroups(const AttentionSpec& spec, TilesConfig& config) {
    if (!spec.block_mask || spec.checked || spec.forward_blocks != AttentionBlocks{} ||
        config.features.segments || spec.right() >= 0 || spec.window_left >= 0 ||
        !takes_warpgroups(spec, config.features)) {
        return;
    }
    GpuProblem problem = gpu_problem(spec, config.features);
    problem.wgmma = true;
    Options options = config.options;
    use_gpu_blocks(options, problem);
    const std::int64_t programs = problem.heads * ceil_div(spec.query_length, options.block_q);
    if (options.guarded && programs >= 2 * std::int64_t{problem.multiprocessors}) {
        config.warpgroups = options;
    }
}

void choose_forward(const AttentionSpec& spec, TilesConfig& config) {
    Options& options = config.options;
    config.decode = is_decode(spec, config.features);
    if (config.decode && spec.on_gpu()) {
        config.decode = use_gpu_decode_blocks(options, gpu_problem(spec, config.features),
                                              spec.group() * spec.query_length);
        fit_long_mods(spec, options);
    }
    use_hints(spec, config.features, options);
    if (config.decode) return;
    if (!loads_blocks(config.features) && !is_long_mod(spec)) choose_queries(spec, config);
    if (!spec.on_gpu()) return;
    use_split(spec, config.features, options);
    if (options.split_k == 0) choose_warpgroups(spec, config);
}

/// Elements that gradients of captures take in addition to the arrays themselves.
std::int64_t copied(const AttentionSpec& spec, const TilesConfig& config, std::int64_t batch,
                    std::int64_t heads) {
    std::int64_t most = 0;
    for (const GradientBuffer& buffer : config.derivative.buffers) {
        std::int64_t size = 1;
        for (const std::int64_t extent : spec.score.captures[buffer.capture].shape) size *= extent;
        const std::int64_t splits = num_splits(config.options.gpu, batch, heads, spec.kv_length);
        most += size * (buffer.copies(batch, heads, splits) - 1);
    }
    return most;
}

void differentiate(const AttentionSpec& spec, TilesConfig& config) {
    const ModSpec& mod = spec.score;
    std::vector<Tensor::Dims> shapes;
    std::vector<bool> differentiable;
    for (const CaptureSpec& capture : mod.captures) {
        shapes.push_back(capture.shape);
        differentiable.push_back(capture.differentiable);
    }
    const InlinedMod plain{mod.plain_function,
                           {},
                           spec.checked ? mod.plain_text : mod.text,
                           mod.derivative,
                           mod.gathers};
    config.derivative =
        differentiate_score(plain, differentiable, shapes,
                            {spec.origin[0] + spec.batch, spec.origin[1] + spec.query_heads,
                             spec.query_length, spec.kv_length});
    config.derivative_key = config.derivative.key();
    for (const GradientBuffer& buffer : config.derivative.buffers) {
        // The buffer has one more dimension, for its copies.
        const CaptureSpec& capture = mod.captures[buffer.capture];
        if (capture.shape.size() < ir::kMaxRefRank) continue;
        user_error("attention",
                   "expected captures with a gradient of at most {} dimensions but got {}",
                   ir::kMaxRefRank - 1, to_string(TensorType{capture.dtype, capture.shape}));
    }
}

/// Does a mod read a block of an array of pairs?
bool reads_pairs(const InlinedMod& mod) {
    const auto has = [](const BlockLoad& load, Coordinate wanted) {
        return std::any_of(load.indices.begin(), load.indices.end(),
                           [&](const auto& index) { return index.coordinate == wanted; });
    };
    return std::any_of(mod.loads.begin(), mod.loads.end(), [&](const BlockLoad& load) {
        return has(load, Coordinate::query) && has(load, Coordinate::key);
    });
}

/// Separate programs for warpgroups. Returns why there are none; empty: there are.
std::string choose_separate(const AttentionSpec& spec, const TilesConfig& config,
                            Options& options) {
    if (!config.derivative.buffers.empty()) return "captured arrays have gradients";
    if (spec.checked) return "the call is checked";
    if (is_long_mod(spec)) return "mods have many operations";
    // Two programs read it, one of them across its rows.
    if (reads_pairs(config.features.score) || reads_pairs(config.features.mask)) {
        return "a mod reads an array of pairs";
    }
    // Two programs draw the bits of dropout, which costs more than the products gain.
    constexpr std::int64_t kNarrow = 64;
    if (config.features.dropout > 0 && std::max(spec.head_dim, spec.value_dim) <= kNarrow) {
        return fmt::format("there is dropout, and heads have at most {} columns", kNarrow);
    }
    GpuProblem problem = gpu_problem(spec, config.features);
    problem.wgmma = is_hopper(spec);
    Options separate = options;
    std::string reason = use_separate_blocks(separate, problem);
    if (!reason.empty()) return reason;
    const AttentionBlocks& wish = spec.backward_blocks;
    const auto differs = [](std::int64_t wanted, std::int64_t given) {
        return wanted > 0 && wanted != given;
    };
    constexpr int kWarps = 8;
    if (differs(wish.q, separate.block_q) || differs(wish.kv, separate.block_k) ||
        differs(wish.num_warps, kWarps)) {
        return fmt::format(
            "its blocks are {} x {} with {} warps, and {} x {} with {} are asked for",
            separate.block_q, separate.block_k, kWarps, wish.q, wish.kv, wish.num_warps);
    }
    options = separate;
    return {};
}

void choose_backward(const AttentionSpec& spec, TilesConfig& config) {
    Options& options = config.options;
    if (spec.score) differentiate(spec, config);
    std::string reason;
    if (spec.on_gpu()) {
        reason = choose_separate(spec, config, options);
        debug_log("attention", "{}",
                  reason.empty() ? "backward: programs by wgmma for keys and for queries"
                                 : "backward: one program, not by wgmma: " + reason);
    }
    if (options.separate) {
        // Blocks that both programs share.
    } else if (spec.on_gpu()) {
        use_warp_blocks(spec, config.features, options);
        GpuProblem problem = gpu_problem(spec, config.features);
        problem.wgmma = false;
        use_gpu_backward_blocks(options, problem);
        fit_long_mods(spec, options);
    } else if (options.block_k > 128) {
        options.block_q = 128;  // fewer passes over the longer dK and dV
    }
    use_hints(spec, config.features, options);
    // What a mod's derivative needs, reads or draws for each pair takes registers.
    const Features& of = config.features;
    const bool derives = config.derivative.function && !config.derivative.is_identity;
    const bool reads = of.plan || of.score.captures() + of.mask.captures() > 0;
    if (options.separate && (derives || reads || of.dropout > 0)) {
        options.step_k = std::min<std::int64_t>(options.step_k, 64);
    }
    config.batches_at_once = spec.batch;
    config.heads_at_once = spec.kv_heads;
    if (copied(spec, config, spec.batch, spec.kv_heads) > kMostCopied) config.batches_at_once = 1;
    if (copied(spec, config, config.batches_at_once, spec.kv_heads) > kMostCopied)
        config.heads_at_once = 1;
}

/// Blocks worth measuring, the usual ones first; 0 means the default choice.
std::vector<AttentionBlocks> trial_blocks(const AttentionSpec& spec, const Features& features) {
    constexpr std::int64_t kFewQueries = 16;
    if (!spec.on_gpu()) {
        if (!spec.packed() && spec.query_length < kFewQueries) return {{}};
        return {{64, 128}, {64, 64}, {128, 128}, {256, 128}, {128, 256}, {32, 128}};
    }
    if (spec.pass == Pass::backward) {
        return {{},           {64, 64, 4},  {64, 64, 8}, {64, 32, 8},
                {64, 128, 8}, {128, 64, 8}, {32, 64, 8}, {32, 32, 4}};
    }
    if (!spec.packed() && is_decode(spec, features)) {
        return {{}, {0, 32, 4}, {0, 64, 4}, {0, 128, 4}, {0, 64, 8}, {0, 128, 8}};
    }
    if (!spec.packed() && spec.query_length <= kFewQueries) {
        return {{}, {16, 64, 4}, {16, 128, 4}, {16, 128, 8}, {16, 32, 2}};
    }
    return {{},           {64, 64, 4},  {64, 32, 4}, {128, 64, 8},
            {128, 32, 8}, {64, 128, 8}, {32, 64, 4}, {32, 32, 4}};
}

}  // namespace

Features features_of(const AttentionSpec& spec) {
    Features features;
    features.segments = spec.segment_ids.has_value();
    features.plan = spec.block_mask;
    features.lengths = spec.kv_lengths.has_value();
    features.sinks = spec.sinks.has_value();
    features.dropout = spec.dropout;
    features.score = inlined(spec, spec.score, true);
    features.mask = inlined(spec, spec.mask, false);
    features.long_positions =
        features.positions() && std::max(spec.query_length, spec.kv_length) > kShortPositions;
    return features;
}

std::shared_ptr<TilesConfig> choose(const AttentionSpec& spec, const Features& features) {
    auto config = std::make_shared<TilesConfig>();
    config->features = features;
    config->options.interpret = spec.checked;
    if (spec.packed()) config->each_sequence = spec.blocks();
    if (spec.packed() || !spec.has_work()) return config;
    config->options = options_of(spec, features);
    if (spec.pass == Pass::forward) {
        choose_forward(spec, *config);
    } else {
        choose_backward(spec, *config);
    }
    return config;
}

std::vector<ConfigPtr> trials(const AttentionSpec& spec) {
    const Features features = features_of(spec);
    const AttentionBlocks& wish = spec.blocks();
    const bool given = wish.q > 0 && wish.kv > 0 && (!spec.on_gpu() || wish.num_warps > 0);
    if (given) return {choose(spec, features)};
    std::vector<ConfigPtr> configs;
    for (const AttentionBlocks& trial : trial_blocks(spec, features)) {
        AttentionSpec sized = spec;
        (spec.pass == Pass::forward ? sized.forward_blocks : sized.backward_blocks) = {
            wish.q > 0 ? wish.q : trial.q, wish.kv > 0 ? wish.kv : trial.kv,
            wish.num_warps > 0 ? wish.num_warps : trial.num_warps, wish.num_stages};
        ConfigPtr config = choose(sized, features);
        const bool known = std::any_of(configs.begin(), configs.end(), [&](const ConfigPtr& other) {
            return other->numbers().values() == config->numbers().values();
        });
        if (!known) configs.push_back(std::move(config));
    }
    return configs;
}

Config TilesConfig::numbers() const {
    const std::int64_t q = each_sequence ? each_sequence->q : options.block_q;
    const std::int64_t kv = each_sequence ? each_sequence->kv : options.block_k;
    if (!each_sequence && !options.gpu) return Config{{"q", q}, {"kv", kv}};
    const int warps = each_sequence ? each_sequence->num_warps : options.num_warps;
    const int stages = each_sequence ? each_sequence->num_stages : options.num_stages;
    if (options.split_k == 0) {
        return Config{{"q", q}, {"kv", kv}, {"warps", warps}, {"stages", stages}};
    }
    return Config{
        {"q", q}, {"kv", kv}, {"warps", warps}, {"stages", stages}, {"split", options.split_k}};
}

Options backward_options(const AttentionSpec& spec, const TilesConfig& config) {
    Options options = config.options;
    options.query_gradient = spec.query_gradient;
    options.key_gradient = spec.key_gradient;
    options.value_gradient = spec.value_gradient;
    if (options.separate) return options;
    options.fragments = options.query_gradient && spec.on_gpu() && options.block_q % 8 == 0 &&
                        spec.head_dim % 8 == 0;
    // With gradients of captures, programs must loop over keys in order, since each adds to a copy
    // of its own. Without dQ no two programs add to one place.
    options.unordered = spec.on_gpu() && config.derivative.buffers.empty() &&
                        (!options.query_gradient || (options.fragments && !spec.deterministic));
    return options;
}

Options repair_options(const AttentionSpec& spec, const Features& features) {
    Options options = options_of(spec, features);
    use_hints(spec, features, options);
    use_warp_blocks(spec, features, options);
    options.isolation = Isolation::repair;
    return options;
}

}  // namespace tilewright::attn::tiles
