// How the Hopper backward kernels are configured for a problem.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/sm90/backward.h"
#include "attention/sm90/wide_rows.h"

namespace tilewright::attn::sm90 {
namespace {

/// What is applied to scores besides masks: nothing, an affine mod, which takes no registers of its
/// own, or more.
enum class ScoreWork : std::uint8_t { none, affine, crowded };

ScoreWork score_work(const BackwardDesc& desc) {
    if (desc.dropout || desc.segments) return ScoreWork::crowded;
    if (desc.score_mod == nullptr) return ScoreWork::none;
    return desc.score_mod->affine ? ScoreWork::affine : ScoreWork::crowded;
}

/// Query rows of a block for heads up to `dim` columns. Larger blocks would spill.
struct QueryBlocks {
    int dim;            ///< largest number of columns of Q, K and V
    int plain, window;  ///< without and with a lower bound of the mask
    int listed;         ///< for masks as data, lengths, affine mods
    int crowded;        ///< for score mods that take registers, segments, dropout
    int even_stages;  ///< stages of Q and dO without mods and dropout, which need S and dP at once;
                      ///< with three, where head_dim > 128, the warpgroups share the scores evenly
    std::vector<int> trials = {};  ///< what `autotune` measures
};

/// The first entry that fits.
const QueryBlocks& query_blocks(int dim) {
    static const std::vector<QueryBlocks> rows = {
        {64, 128, 128, 128, 64, 2, {64, 128}},
        {128, 80, 64, 64, 64, 2, {64, 80}},
        {192, 64, 64, 64, 64, 3},
        {256, 64, 64, 64, 64, 2},
    };
    return *std::find_if(rows.begin(), rows.end(),
                         [&](const QueryBlocks& row) { return dim <= row.dim; });
}

bool is_grouped(const BackwardDesc& desc) {
    return desc.heads != desc.kv_heads;
}

/// Into how many splits a group of query heads is cut. With few tiles, the longest would run long
/// after the others or leave multiprocessors idle. Lists have one order for all heads of a group.
/// Sums must not depend on the device, so this assumes the multiprocessors of an H100 or H200.
int choose_splits(const BackwardDesc& desc, const BackwardConfig& config) {
    constexpr std::int64_t kMostTiles = 512;  // enough for any GPU; splits of dK and dV stay small
    const auto group = static_cast<int>(desc.heads / desc.kv_heads);
    const std::int64_t tiles = ceil_div(desc.kv_len, config.block_n());
    if (group == 1 || desc.listed || tiles > kMostTiles) return 1;
    std::int64_t longest = 0, all = 0;  // in blocks of query rows, for one query head
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int64_t first = tile * config.block_n();
        const std::int64_t begin =
            desc.upper_bound ? std::max<std::int64_t>(0, first - desc.upper_diagonal) : 0;
        const std::int64_t last = std::min(first + config.block_n(), desc.kv_len) - 1;
        const std::int64_t end =
            desc.lower_bound ? std::min(desc.q_len, last - desc.lower_diagonal + 1) : desc.q_len;
        const std::int64_t blocks =
            end > begin ? ceil_div(end, config.block_m) - begin / config.block_m : 0;
        longest = std::max(longest, blocks);
        all += blocks;
    }
    constexpr double kMultiprocessors = 132, kLongestShare = 0.55;  // of the mean work of one
    const double mean = static_cast<double>(all * desc.batch * desc.heads) / kMultiprocessors;
    int splits = 1;
    while (splits < group && (group % splits != 0 || static_cast<double>(longest * group) / splits >
                                                         kLongestShare * mean)) {
        ++splits;
    }
    // Heads of a group that stay in step add to the same sums at the same time: two splits gain 7%.
    const bool crowds = static_cast<double>(longest * group) > kLongestShare / 2 * mean;
    if (splits == 1 && group % 2 == 0 && desc.upper_bound && crowds) return 2;
    return splits;
}

/// A causal mask without offset, in which every block ends with the tile at its diagonal.
bool is_causal(const BackwardDesc& desc) {
    return desc.upper_bound && desc.upper_diagonal == 0 && !desc.lower_bound &&
           desc.q_len == desc.kv_len;
}

/// Only these gain from smaller blocks of groups, and without a mask, where the last tile stores
/// dQ.
bool has_128_columns(const BackwardDesc& desc) {
    return desc.query_dim == 128 && desc.value_dim == 128;
}

BackwardConfig choose_tiles(const BackwardDesc& desc) {
    const QueryBlocks& rows = query_blocks(std::max(desc.query_dim, desc.value_dim));
    const ScoreWork work = score_work(desc);
    const bool plain = !desc.listed && desc.length_bytes == 0 && work == ScoreWork::none;
    BackwardConfig config =
        choose_listed_backward(desc.query_dim, desc.value_dim, work == ScoreWork::crowded);
    // Blocks at the diagonal are half masked: in short sequences these are many, and smaller blocks
    // waste less. With ordered sums each block costs a hand-over from tile to tile, which shows in
    // groups unless the last tile stores dQ.
    const bool costs = is_grouped(desc) && !(is_causal(desc) && has_128_columns(desc));
    const std::int64_t most = !desc.deterministic ? 4096 : costs ? 0 : 2048;
    const bool short_causal = desc.upper_bound && desc.q_len <= most;
    if (plain) config.block_m = desc.lower_bound || short_causal ? rows.window : rows.plain;
    if (!desc.dropout && desc.score_mod == nullptr) config.stages = rows.even_stages;
    return config;
}

/// Are Q and dO copied? A copy takes as long as L2 loses while 1,000 to 4,000 keys read each query.
bool wants_wide(const BackwardDesc& desc) {
    constexpr std::int64_t kLeastKeys = 4096;
    if (desc.listed || desc.lower_bound) return false;
    const std::int64_t keys = desc.kv_len / (desc.upper_bound ? 2 : 1);
    return (is_odd(desc.query_dim) || is_odd(desc.value_dim)) && keys >= kLeastKeys;
}

bool is_narrow(const BackwardDesc& desc) {
    return std::max(desc.query_dim, desc.value_dim) <= 64;
}

/// Up to here sums in order win with up to 64 columns.
constexpr std::int64_t kMostNarrowRows = 2048;
/// Up to here blocks of 64 rows win where tiles go upward.
constexpr std::int64_t kMostShortRows = 2048;

/// Without a mask the last tile of a head stores all of its dQ, which pays up to here.
bool wants_fused_without_mask(const BackwardDesc& desc) {
    constexpr std::int64_t kMostRows = 4096;
    return !desc.upper_bound && !desc.lower_bound && desc.kv_len > 0 && !is_grouped(desc) &&
           has_128_columns(desc) && desc.q_len <= kMostRows;
}

/// Are sums without an order faster in one? These need not be cleared and the last tile can store
/// dQ, which counts in short sequences and where query heads share keys, if there are so many tiles
/// that none waits for the one before it.
bool wants_order(const BackwardDesc& desc, const BackwardConfig& config) {
    constexpr std::int64_t kLeastTiles = 1024, kLeastGroupedTiles = 4096;
    constexpr std::int64_t kMostRows = 2048, kMostUpwardRows = 8192, kLeastGroupedRows = 2048;
    constexpr int kLeastUpwardColumns = 96, kLeastGroupedColumns = 112;
    const int columns = std::min(desc.query_dim, desc.value_dim);
    const std::int64_t tiles = desc.batch * desc.heads * ceil_div(desc.kv_len, config.block_n());
    if (desc.deterministic || is_described(desc, config) || desc.lower_bound || tiles < kLeastTiles)
        return false;
    if (is_narrow(desc))
        return !is_grouped(desc) && desc.upper_bound && desc.q_len <= kMostNarrowRows;
    if (is_grouped(desc))
        return is_causal(desc) && columns >= kLeastGroupedColumns &&
               desc.q_len >= kLeastGroupedRows && tiles >= kLeastGroupedTiles;
    if (is_causal(desc) && columns >= kLeastUpwardColumns) return desc.q_len <= kMostUpwardRows;
    return wants_fused_without_mask(desc) || (desc.upper_bound && desc.q_len <= kMostRows);
}

/// Does the last tile that adds to a block of dQ store it? With a causal mask these are the last
/// blocks that a tile visits.
bool wants_fused(const BackwardDesc& desc, const BackwardConfig& config) {
    if (!is_ordered(desc, config) || is_described(desc, config)) return false;
    if (is_narrow(desc))
        return is_causal(desc) && !is_grouped(desc) && desc.q_len <= kMostNarrowRows;
    return is_causal(desc) || wants_fused_without_mask(desc);
}

/// Upward, tiles of one head that run side by side are at different blocks, and none waits for the
/// one before it. The tiles of a group of query heads had better be at the same block, for L2.
bool wants_upward(const BackwardDesc& desc, const BackwardConfig& config) {
    return is_ordered(desc, config) && !is_described(desc, config) && is_causal(desc) &&
           !is_grouped(desc) && (!is_narrow(desc) || desc.q_len <= kMostNarrowRows);
}

/// Cuts the tiles of an incomplete last wave, so that no multiprocessor is idle. Costs are in
/// visits of a tile to a block: those that a piece's ends and the launch that adds up pieces take.
/// Sums must not depend on the device, so this assumes the multiprocessors of an H100 or H200.
void choose_pieces(const BackwardDesc& desc, BackwardConfig& config) {
    constexpr std::int64_t kMultiprocessors = 132, kMostPieces = 2 * kMultiprocessors;
    constexpr std::int64_t kEnds = 8, kJoining = 5;
    const std::int64_t keys = ceil_div(desc.kv_len, config.block_n());
    const std::int64_t tiles = desc.batch * desc.kv_heads * keys;
    const std::int64_t rest = tiles % kMultiprocessors;
    if (!cuts_tiles(desc, config) || config.splits > 1 || rest == 0) return;
    const std::int64_t blocks = ceil_div(desc.q_len, config.block_m);
    const std::int64_t group = desc.heads / desc.kv_heads;
    std::int64_t least = blocks * group;
    for (std::int64_t pieces = 2; pieces <= std::min(blocks, kMostPieces / rest); ++pieces) {
        const std::int64_t waves = ceil_div(rest * pieces, kMultiprocessors);
        const std::int64_t cost = waves * (ceil_div(blocks, pieces) * group + kEnds) + kJoining;
        if (cost >= least) continue;
        least = cost;
        config.cut_tiles = rest;
        config.pieces = static_cast<int>(pieces);
    }
}

}  // namespace

bool cuts_tiles(const BackwardDesc& desc, const BackwardConfig& config) {
    return !desc.upper_bound && !desc.lower_bound && !is_described(desc, config);
}

bool is_ordered(const BackwardDesc& desc, const BackwardConfig& config) {
    return (desc.deterministic || config.ordered) && !config.over_128;
}

bool is_described(const BackwardDesc& desc, const BackwardConfig& config) {
    return config.over_128 || desc.listed || desc.length_bytes > 0 || desc.dropout ||
           desc.score_mod != nullptr;
}

BackwardConfig choose_listed_backward(int query_dim, int value_dim, bool crowded) {
    const QueryBlocks& rows = query_blocks(std::max(query_dim, value_dim));
    return {.over_128 = is_over_128(query_dim, value_dim),
            .block_m = crowded ? rows.crowded : rows.listed};
}

BackwardConfig choose_backward(const BackwardDesc& desc) {
    BackwardConfig config = choose_tiles(desc);
    config.ordered = wants_order(desc, config);
    config.splits = choose_splits(desc, config);
    config.fused = wants_fused(desc, config);
    config.upward = wants_upward(desc, config);
    if (config.upward && desc.q_len > kMostShortRows) {
        config.block_m = query_blocks(std::max(desc.query_dim, desc.value_dim)).plain;
    }
    config.ahead = is_narrow(desc) && is_causal(desc) && !is_grouped(desc) && desc.q_len > 0 &&
                   !is_described(desc, config);
    config.wide = wants_wide(desc);
    choose_pieces(desc, config);
    return config;
}

std::vector<BackwardConfig> backward_trials(const BackwardDesc& desc) {
    std::vector<BackwardConfig> trials = {choose_backward(desc)};
    const bool plain = score_work(desc) == ScoreWork::none;
    if (desc.listed || desc.length_bytes > 0 || desc.lower_bound || !plain || desc.over_128()) {
        return trials;
    }
    for (const int block_m : query_blocks(std::max(desc.query_dim, desc.value_dim)).trials) {
        BackwardConfig other = trials.front();
        other.block_m = block_m;
        other.cut_tiles = 0;
        other.pieces = 1;
        choose_pieces(desc, other);
        if (other != trials.front()) trials.push_back(other);
    }
    return trials;
}

}  // namespace tilewright::attn::sm90
