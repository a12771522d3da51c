// Lists of key blocks from the plan of a mask.
#include "attention/sm90/mask_lists.h"

#include <algorithm>

namespace tilewright::attn::sm90 {

using tw::attn::MaskEntry;
using tw::attn::MaskTile;

namespace {

/// What each warpgroup sees of a tile of bits.
int states_of(const std::uint32_t* words, std::size_t warpgroups, std::size_t words_per_warpgroup) {
    int states = 0;
    for (std::size_t w = 0; w < warpgroups; ++w) {
        std::uint32_t any = 0, all = ~0u;
        for (std::size_t i = 0; i < words_per_warpgroup; ++i) {
            any |= words[w * words_per_warpgroup + i];
            all &= words[w * words_per_warpgroup + i];
        }
        const int state = any == 0     ? tw::attn::kBlockDead
                          : all == ~0u ? tw::attn::kBlockFull
                                       : tw::attn::kBlockPartial;
        states |= state << (2 * w);
    }
    return states;
}

}  // namespace

MaskLists lists_of(const mask::MaskPlan& plan) {
    const mask::PlanOptions& options = plan.options;
    const bool tiles_fit = options.block_q == 128 || options.block_q == 192;
    const bool blocks_fit = options.block_kv == 64 || options.block_kv == 128;
    require(tiles_fit && blocks_fit && options.bits == mask::BitOrder::wgmma && !options.by_kv &&
                !options.transpose_bits,
            "mask", "a plan for this engine", options.block_q);
    const auto warpgroups = static_cast<std::size_t>(options.block_q / 64);
    const std::size_t part = 128 * static_cast<std::size_t>(options.block_kv / 64);
    const std::size_t tile_words = warpgroups * part;

    MaskLists lists;
    lists.bits.assign(tile_words, 0);  // tile 0 has no bit; the plan's follow
    const auto* const bits = static_cast<const std::uint32_t*>(plan.bits.raw());
    const auto num_bits = static_cast<std::size_t>(plan.bits.dim(0));
    lists.bits.insert(lists.bits.end(), bits, bits + num_bits * tile_words);
    std::vector<int> states;
    for (std::size_t i = 0; i <= num_bits; ++i) {
        states.push_back(states_of(lists.bits.data() + i * tile_words, warpgroups, part));
    }
    int all_full = 0;
    for (std::size_t w = 0; w < warpgroups; ++w) all_full |= tw::attn::kBlockFull << (2 * w);

    const auto* const headers = plan.headers.data<std::int32_t>();
    const auto* const partial = plan.partial.data<std::int32_t>();
    const auto* const full = plan.full.data<std::int32_t>();
    for (std::int64_t plane = 0; plane < plan.batch * plan.heads; ++plane) {
        const std::size_t plane_begin = lists.tiles.size();
        // Of equal tiles the later ones come first, as in the kernel without lists.
        for (std::int64_t row = plan.rows - 1; row >= 0; --row) {
            const std::int32_t* const header = headers + 4 * (plane * plan.rows + row);
            MaskTile tile{static_cast<int>(row), static_cast<int>(lists.entries.size()), 0, 0};
            const auto add = [&](const MaskEntry& entry) {
                lists.entries.push_back(entry);
                tile.blocks += entry.count;
            };
            // From right to left: the diagonal comes first, where every row of a causal mask meets
            // a key, and the maximum of later blocks can be guessed.
            for (int i = header[1] - 1; i >= 0; --i) {
                const std::int32_t* const entry = partial + 2 * (header[0] + i);
                const int number = entry[1] + 1;
                add({entry[0], 1, states[static_cast<std::size_t>(number)], number});
            }
            for (int i = 0; i < header[3]; ++i) {
                const std::int32_t* const run = full + 2 * (header[2] + i);
                add({run[0], run[1], all_full, -1});
            }
            if (tile.blocks == 0) add({0, 1, states[0], 0});  // every tile stores its results
            lists.blocks += tile.blocks;
            lists.tiles.push_back(tile);
        }
        std::stable_sort(lists.tiles.begin() + static_cast<std::ptrdiff_t>(plane_begin),
                         lists.tiles.end(),
                         [](const MaskTile& a, const MaskTile& b) { return a.blocks > b.blocks; });
    }
    lists.entries.push_back({});
    return lists;
}

mask::PlanOptions plan_options(int query_dim, int value_dim) {
    const ForwardConfig config = choose_listed(query_dim, value_dim);
    return {.block_q = config.block_m(), .block_kv = config.block_n, .bits = mask::BitOrder::wgmma};
}

UploadedLists::UploadedLists(const mask::MaskPlan& plan, std::int64_t q_len, std::int64_t kv_len,
                             int device) {
    const MaskLists lists = lists_of(plan);
    const auto upload = [&](const auto& values) {
        const std::size_t bytes = values.size() * sizeof(values[0]);
        cuda::Buffer buffer(device, bytes);
        buffer.upload(values.data(), bytes);
        return buffer;
    };
    tiles_ = upload(lists.tiles);
    entries_ = upload(lists.entries);
    bits_ = upload(lists.bits);
    mask_ = {tiles_.address(),
             entries_.address(),
             bits_.address(),
             plan.batch,
             plan.heads,
             q_len,
             kv_len,
             static_cast<int>(plan.options.block_q / 64),
             static_cast<int>(plan.options.block_kv)};
}

}  // namespace tilewright::attn::sm90
