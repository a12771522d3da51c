// Makes the kernels' lists of blocks from the plan of a mask.
#include "attention/sm90/mask_lists.h"

#include <algorithm>
#include <numeric>

#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"

namespace tilewright::attn::sm90 {

using twd::attn::MaskEntry;
using twd::attn::MaskTile;

namespace {

/// What each warpgroup sees of a tile of bits, two bits each.
int states_of(const std::uint32_t* words, std::size_t warpgroups, std::size_t words_per_warpgroup) {
    int states = 0;
    for (std::size_t w = 0; w < warpgroups; ++w) {
        std::uint32_t any = 0, all = ~0u;
        for (std::size_t i = 0; i < words_per_warpgroup; ++i) {
            any |= words[w * words_per_warpgroup + i];
            all &= words[w * words_per_warpgroup + i];
        }
        const int state = any == 0     ? twd::attn::kBlockDead
                          : all == ~0u ? twd::attn::kBlockFull
                                       : twd::attn::kBlockPartial;
        states |= state << (2 * w);
    }
    return states;
}

/// Which of the 64 columns some row of a tile of queries attends to.
std::uint64_t live_columns(const std::uint32_t* words, std::size_t warpgroups) {
    std::uint32_t of_lane[4] = {};  // by lane of a quad: their registers have different columns
    for (std::size_t thread = 0; thread < warpgroups * 128; ++thread)
        of_lane[thread % 4] |= words[thread];
    std::uint64_t live = 0;
    for (unsigned column = 0; column < 64; ++column) {
        const unsigned first = column / 8 * 4 + column % 2;
        const std::uint32_t both_rows = of_lane[column % 8 / 2] >> first;
        live |= std::uint64_t{(both_rows & 5) != 0} << column;
    }
    return live;
}

/// A run of blocks that one tile of keys visits.
struct Run {
    int first, count, states, bits;
};

/// The key in its strip that a register of a warpgroup's keys x queries belongs to.
int key_of_register(int thread, int r) {
    return thread / 32 * 16 + thread % 32 / 4 + 8 * (r % 4 / 2);
}

/// The bits of a tile in which every query attends to just the first `keys` keys.
std::vector<std::uint32_t> bits_of_keys(std::size_t strips, std::size_t words, std::int64_t keys) {
    std::vector<std::uint32_t> result;
    for (std::size_t strip = 0; strip < strips; ++strip) {
        for (int thread = 0; thread < 128; ++thread) {
            std::uint32_t word = 0;
            for (int r = 0; r < 32; ++r) {
                const std::int64_t key =
                    static_cast<std::int64_t>(strip) * 64 + key_of_register(thread, r);
                if (key < keys) word |= std::uint32_t{1} << r;
            }
            result.insert(result.end(), words, word);
        }
    }
    return result;
}

/// Lists for tiles of keys while they are built.
class KeyLists {
  public:
    KeyLists(const mask::MaskPlan& plan, std::int64_t kv_len)
        : plan_(plan),
          strips_(static_cast<std::size_t>(plan.options.block_kv / 64)),
          words_(static_cast<std::size_t>((plan.options.block_q + 63) / 64)),
          last_keys_(kv_len - (plan.rows - 1) * plan.options.block_kv) {
        const std::size_t tile_words = strips_ * 128 * words_;
        lists_.bits.assign(tile_words, 0);  // tile 0 has no bit set; the plan's tiles follow
        const auto* const bits = static_cast<const std::uint32_t*>(plan.bits.raw());
        const std::size_t num_bits = plan.bits.dim(0);
        lists_.bits.insert(lists_.bits.end(), bits, bits + num_bits * tile_words);
        // Keys past the end of the last tile must not take part in sums over keys.
        const std::vector<std::uint32_t> inside = bits_of_keys(strips_, words_, last_keys_);
        lists_.bits.insert(lists_.bits.end(), inside.begin(), inside.end());
        inside_ = static_cast<int>(num_bits) + 1;
        for (std::size_t i = 0; i <= num_bits + 1; ++i) {
            const std::uint32_t* const words = lists_.bits.data() + i * tile_words;
            states_.push_back(states_of(words, strips_, 128 * words_));
            for (std::size_t s = 0; s < strips_; ++s) {
                live_.push_back(live_keys(words + s * 128 * words_));
            }
        }
        for (std::size_t s = 0; s < strips_; ++s) all_full_ |= twd::attn::kBlockFull << (2 * s);
    }

    /// Adds planes that share one order of their tiles, the longest first.
    void add_planes(std::int64_t first_plane, std::int64_t planes) {
        std::vector<std::int64_t> order(plan_.rows);
        std::vector<std::int64_t> length(order.size(), 0);
        std::iota(order.begin(), order.end(), 0);
        for (std::int64_t plane = first_plane; plane < first_plane + planes; ++plane) {
            for (std::size_t i = 0; i < length.size(); ++i) {
                length[i] += plan_.row_tiles(plane * plan_.rows + static_cast<std::int64_t>(i));
            }
        }
        std::stable_sort(order.begin(), order.end(),
                         [&](std::int64_t a, std::int64_t b) { return length[a] > length[b]; });
        // The heads of a group share one K and V.
        std::vector<std::uint64_t> live(2 * order.size(), 0);
        for (std::int64_t plane = first_plane; plane < first_plane + planes; ++plane) {
            for (std::size_t rank = 0; rank < order.size(); ++rank) {
                for (const Run& run : runs_of(plane, order[rank])) {
                    for (std::size_t s = 0; s < strips_; ++s) live[2 * rank + s] |= live_of(run, s);
                }
            }
        }
        for (std::int64_t plane = first_plane; plane < first_plane + planes; ++plane) {
            lists_.live.insert(lists_.live.end(), live.begin(), live.end());
            // The predecessor of each block: 1 + the rank of the last tile so far that sees it, or
            // 0.
            std::vector<int> predecessors(plan_.columns, 0);
            for (std::size_t rank = 0; rank < order.size(); ++rank) {
                add_tile(plane, order[rank], static_cast<int>(rank), predecessors);
            }
        }
    }

    MaskLists take() {
        lists_.entries.push_back({});
        return std::move(lists_);
    }

  private:
    void add_tile(std::int64_t plane, std::int64_t row, int rank, std::vector<int>& predecessors) {
        MaskTile tile{static_cast<int>(row), static_cast<int>(lists_.entries.size()), 0, 0};
        for (const Run& run : runs_of(plane, row)) {
            // Entries, and the blocks of an entry, are visited from last to first.
            int end = run.first + run.count;
            while (end > run.first) {
                const int predecessor = predecessors[end - 1];
                int first = end;
                while (first > run.first && predecessors[first - 1] == predecessor) {
                    predecessors[--first] = rank + 1;
                }
                lists_.entries.push_back({first, end - first,
                                          run.states | predecessor << twd::attn::kPredecessorShift,
                                          run.bits});
                end = first;
            }
            tile.blocks += run.count;
        }
        lists_.blocks += tile.blocks;
        lists_.tiles.push_back(tile);
    }

    /// Which keys of a strip some query attends to.
    std::uint64_t live_keys(const std::uint32_t* words) const {
        std::uint64_t live = 0;
        for (int thread = 0; thread < 128; ++thread) {
            for (std::size_t i = 0; i < words_; ++i) {
                const std::uint32_t word = words[thread * words_ + i];
                constexpr std::uint32_t kFirstKey = 0x33333333;  // registers 4 j and 4 j + 1
                live |= std::uint64_t{(word & kFirstKey) != 0} << key_of_register(thread, 0);
                live |= std::uint64_t{(word & ~kFirstKey) != 0} << key_of_register(thread, 2);
            }
        }
        return live;
    }
    std::uint64_t live_of(const Run& run, std::size_t strip) const {
        if (run.bits < 0) return ~std::uint64_t{0};
        return live_[run.bits * strips_ + strip];
    }

    /// The runs of a tile, from the last block down.
    std::vector<Run> runs_of(std::int64_t plane, std::int64_t row) const {
        const std::int32_t* const header =
            plan_.headers.data<std::int32_t>() + 4 * (plane * plan_.rows + row);
        const bool whole = row + 1 < plan_.rows || last_keys_ == plan_.options.block_kv;
        std::vector<Run> runs;
        for (int i = 0; i < header[1]; ++i) {
            const std::int32_t* const entry =
                plan_.partial.data<std::int32_t>() + 2 * (header[0] + i);
            const int bits = entry[1] + 1;
            runs.push_back({entry[0], 1, states_[bits], bits});
        }
        for (int i = 0; i < header[3]; ++i) {
            const std::int32_t* const run = plan_.full.data<std::int32_t>() + 2 * (header[2] + i);
            runs.push_back(
                {run[0], run[1], whole ? all_full_ : states_[inside_], whole ? -1 : inside_});
        }
        std::sort(runs.begin(), runs.end(),
                  [](const Run& a, const Run& b) { return a.first > b.first; });
        return runs;
    }

    const mask::MaskPlan& plan_;
    std::size_t strips_, words_;
    std::int64_t last_keys_;  ///< keys of the last tile
    int inside_ = 0, all_full_ = 0;
    std::vector<int> states_;          ///< states of each tile of bits
    std::vector<std::uint64_t> live_;  ///< live keys of each of their strips
    MaskLists lists_;
};

}  // namespace

MaskLists lists_of(const mask::MaskPlan& plan) {
    const mask::PlanOptions& options = plan.options;
    const bool tiles_fit =
        options.block_q == 64 || options.block_q == 128 || options.block_q == 192;
    const bool blocks_fit = options.block_kv == 64;
    require(tiles_fit && blocks_fit && options.bits == mask::BitOrder::wgmma && !options.by_kv &&
                !options.transpose_bits,
            "mask", "a plan for this engine", options.block_q);
    const std::size_t warpgroups = options.block_q / 64;
    constexpr std::size_t part = 128;
    const std::size_t tile_words = warpgroups * part;

    MaskLists lists;
    lists.bits.assign(tile_words, 0);  // tile 0 has no bit set; the plan's tiles follow
    const auto* const bits = static_cast<const std::uint32_t*>(plan.bits.raw());
    const std::size_t num_bits = plan.bits.dim(0);
    lists.bits.insert(lists.bits.end(), bits, bits + num_bits * tile_words);
    std::vector<int> states;
    std::vector<std::uint64_t> live;  // for each tile of bits
    for (std::size_t i = 0; i <= num_bits; ++i) {
        const std::uint32_t* const words = lists.bits.data() + i * tile_words;
        states.push_back(states_of(words, warpgroups, part));
        live.push_back(live_columns(words, warpgroups));
        if (live.back() != ~std::uint64_t{0}) states.back() |= twd::attn::kHidesSome;
    }
    int all_full = 0;
    for (std::size_t w = 0; w < warpgroups; ++w) all_full |= twd::attn::kBlockFull << (2 * w);

    const auto* const headers = plan.headers.data<std::int32_t>();
    const auto* const partial = plan.partial.data<std::int32_t>();
    const auto* const full = plan.full.data<std::int32_t>();
    for (std::int64_t plane = 0; plane < plan.batch * plan.heads; ++plane) {
        const std::size_t plane_begin = lists.tiles.size();
        // Of equally long tiles the later ones come first, as in the kernel without lists.
        for (std::int64_t row = plan.rows - 1; row >= 0; --row) {
            const std::int32_t* const header = headers + 4 * (plane * plan.rows + row);
            MaskTile tile{static_cast<int>(row), static_cast<int>(lists.entries.size()), 0, 0};
            const auto add = [&](const MaskEntry& entry) {
                lists.entries.push_back(entry);
                lists.live.push_back(entry.bits < 0 ? ~std::uint64_t{0} : live[entry.bits]);
                tile.blocks += entry.count;
            };
            // From right to left: the diagonal of a causal mask comes first, where every row has an
            // unmasked key, so that later blocks take a speculative maximum.
            for (int i = header[1] - 1; i >= 0; --i) {
                const std::int32_t* const entry = partial + 2 * (header[0] + i);
                const int number = entry[1] + 1;
                add({entry[0], 1, states[number], number});
            }
            for (int i = 0; i < header[3]; ++i) {
                const std::int32_t* const run = full + 2 * (header[2] + i);
                add({run[0], run[1], all_full, -1});
            }
            if (tile.blocks == 0) add({0, 1, states[0], 0});  // every tile stores its results
            lists.blocks += tile.blocks;
            lists.tiles.push_back(tile);
        }
        std::stable_sort(lists.tiles.begin() + plane_begin, lists.tiles.end(),
                         [](const MaskTile& a, const MaskTile& b) { return a.blocks > b.blocks; });
    }
    lists.entries.push_back({});
    lists.live.push_back(0);
    return lists;
}

MaskLists key_lists_of(const mask::MaskPlan& plan, std::int64_t kv_len,
                       std::int64_t heads_per_kv_head) {
    const mask::PlanOptions& options = plan.options;
    require(options.by_kv && options.transpose_bits && options.bits == mask::BitOrder::wgmma &&
                (options.block_kv == 64 || options.block_kv == 128) && options.block_q <= 128,
            "mask", "a plan by keys for this engine", options.block_kv);
    const std::int64_t group = plan.heads == 1 ? 1 : heads_per_kv_head;
    require(plan.heads % group == 0, "mask", "heads in groups of a kv head", plan.heads);
    KeyLists lists(plan, kv_len);
    for (std::int64_t plane = 0; plane < plan.batch * plan.heads; plane += group) {
        lists.add_planes(plane, group);
    }
    return lists.take();
}

twd::attn::MaskLists lists_in(const DeviceMask& mask) {
    twd::attn::MaskLists lists{};
    lists.tiles = reinterpret_cast<const MaskTile*>(mask.tiles);
    lists.entries = reinterpret_cast<const MaskEntry*>(mask.entries);
    lists.bits = reinterpret_cast<const unsigned*>(mask.bits);
    lists.live = reinterpret_cast<const unsigned long long*>(mask.live);
    lists.batches = static_cast<int>(mask.batches);
    lists.heads = static_cast<int>(mask.heads);
    return lists;
}

mask::PlanOptions plan_options(const ForwardConfig& config) {
    return {.block_q = config.block_m(), .block_kv = config.block_n, .bits = mask::BitOrder::wgmma};
}

mask::PlanOptions plan_options(int query_dim, int value_dim) {
    return plan_options(choose_listed(query_dim, value_dim, /*keys=*/0));
}

mask::PlanOptions backward_plan_options(const BackwardConfig& config) {
    return {.block_q = config.block_m,
            .block_kv = config.block_n(),
            .by_kv = true,
            .transpose_bits = true,
            .bits = mask::BitOrder::wgmma};
}

UploadedLists::UploadedLists(const mask::MaskPlan& plan, std::int64_t q_len, std::int64_t kv_len,
                             int device, std::int64_t heads_per_kv_head) {
    const bool by_key = plan.options.by_kv;
    const MaskLists lists = by_key ? key_lists_of(plan, kv_len, heads_per_kv_head) : lists_of(plan);
    const auto upload = [&](const auto& values) {
        const std::size_t bytes = values.size() * sizeof(values[0]);
        cuda::Buffer buffer(device, bytes);
        buffer.upload(values.data(), bytes);
        return buffer;
    };
    tiles_ = upload(lists.tiles);
    entries_ = upload(lists.entries);
    bits_ = upload(lists.bits);
    live_ = upload(lists.live);
    mask_.tiles = tiles_.address();
    mask_.entries = entries_.address();
    mask_.bits = bits_.address();
    mask_.live = live_.address();
    mask_.batches = plan.batch;
    mask_.heads = plan.heads;
    mask_.q_len = q_len;
    mask_.kv_len = kv_len;
    mask_.by_key = by_key;
    mask_.strips = static_cast<int>((by_key ? plan.options.block_kv : plan.options.block_q) / 64);
    mask_.block = static_cast<int>(by_key ? plan.options.block_q : plan.options.block_kv);
    mask_.heads_per_order = heads_per_kv_head;
}

}  // namespace tilewright::attn::sm90
