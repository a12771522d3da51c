// Plans: spans of tiles, and the distinct tiles in the bit order of a kernel.
#include "mask/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "mask/tiles.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::mask {
namespace {

constexpr std::int64_t kMaxTile = 4096;

void check(const PlanOptions& options) {
    for (const auto& [name, size] :
         {std::pair{"block_q", options.block_q}, std::pair{"block_kv", options.block_kv}}) {
        if (size < 1 || size > kMaxTile)
            user_error("mask_plan", "expected {} of 1 to {} but got {}", name, kMaxTile, size);
    }
    const std::int64_t rows = options.transpose_bits ? options.block_kv : options.block_q;
    const std::int64_t columns = options.transpose_bits ? options.block_q : options.block_kv;
    if (options.bits == BitOrder::atoms && (rows % kAtom != 0 || columns % kAtom != 0))
        user_error("mask_plan", "expected tiles of whole 64 x 64 atoms but got {} x {}", rows,
                   columns);
    if (options.bits == BitOrder::wgmma && (rows % kAtom != 0 || columns % 8 != 0))
        user_error("mask_plan",
                   "expected wgmma tiles with rows % 64 == 0 and columns % 8 == 0 but got {} x {}",
                   rows, columns);
}

struct Entry {
    std::int32_t first, second;
};

Tensor entries_tensor(const std::vector<Entry>& entries) {
    Tensor result = Tensor::zeros(i32, {std::max<std::int64_t>(1, std::ssize(entries)), 2});
    std::copy_n(entries.data(), entries.size(),
                reinterpret_cast<Entry*>(result.data<std::int32_t>()));
    return result;
}

Tensor row_words(const std::vector<const TileBits*>& tiles, const TileBits& shape) {
    Tensor result = Tensor::zeros(u64, {std::ssize(tiles), shape.rows, shape.stride()});
    std::uint64_t* out = result.data<std::uint64_t>();
    for (const TileBits* tile : tiles) out = std::copy(tile->words.begin(), tile->words.end(), out);
    return result;
}

Tensor row_bytes(const std::vector<const TileBits*>& tiles, const TileBits& shape) {
    Tensor result = Tensor::zeros(boolean, {std::ssize(tiles), shape.rows, shape.columns});
    bool* out = result.data<bool>();
    for (const TileBits* tile : tiles) {
        for (std::int64_t i = 0; i < shape.rows; ++i) {
            for (std::int64_t j = 0; j < shape.columns; ++j) *out++ = tile->get(i, j);
        }
    }
    return result;
}

// Register 4j + e of thread t of a warpgroup holds row 16 * (t / 32) + (t % 32) / 4 + 8 * (e / 2),
// column 8j + 2 * (t % 4) + e % 2.
Tensor register_words(const std::vector<const TileBits*>& tiles, const TileBits& shape) {
    constexpr std::int64_t kThreads = 128;
    const std::int64_t words = (shape.columns + 63) / 64, groups = shape.rows / 64;
    Tensor result = Tensor::zeros(u32, {std::ssize(tiles), groups, kThreads, words});
    std::uint32_t* out = result.data<std::uint32_t>();
    for (const TileBits* tile : tiles) {
        for (std::int64_t group = 0; group < groups; ++group) {
            for (std::int64_t t = 0; t < kThreads; ++t, out += words) {
                for (std::int64_t r = 0; r < shape.columns / 2; ++r) {
                    const std::int64_t e = r % 4;
                    const std::int64_t row = group * 64 + t / 32 * 16 + t % 32 / 4 + 8 * (e / 2);
                    const std::int64_t column = r / 4 * 8 + 2 * (t % 4) + e % 2;
                    if (tile->get(row, column)) out[r / 32] |= std::uint32_t{1} << (r % 32);
                }
            }
        }
    }
    return result;
}

Tensor atom_numbers(const std::vector<const TileBits*>& tiles, const TileBits& shape,
                    Tensor& atoms) {
    AtomPool pool;
    Tensor result = Tensor::zeros(i32, {std::ssize(tiles), shape.rows / 64, shape.columns / 64});
    std::int32_t* out = result.data<std::int32_t>();
    for (const TileBits* tile : tiles) {
        for (std::int64_t i = 0; i < shape.rows; i += kAtom) {
            for (std::int64_t c = 0; c < shape.stride(); ++c) {
                Atom atom;
                for (std::int64_t r = 0; r < kAtom; ++r) {
                    atom[r] = tile->words[(i + r) * shape.stride() + c];
                }
                *out++ = static_cast<std::int32_t>(pool.intern(atom));
            }
        }
    }
    atoms = Tensor::zeros(u64, {std::ssize(pool.atoms()), kAtom});
    std::uint64_t* words = atoms.data<std::uint64_t>();
    for (const Atom& atom : pool.atoms()) words = std::copy(atom.begin(), atom.end(), words);
    return result;
}

void encode_bits(const TileTable& table, const std::vector<std::int64_t>& used, MaskPlan& plan) {
    const PlanOptions& options = plan.options;
    const bool flip = options.by_kv != options.transpose_bits;
    std::vector<TileBits> flipped;
    std::vector<const TileBits*> tiles;
    const TileBits shape = options.transpose_bits ? TileBits(options.block_kv, options.block_q)
                                                  : TileBits(options.block_q, options.block_kv);
    if (flip) {
        flipped.reserve(used.size());
        for (const std::int64_t number : used) {
            flipped.push_back(table.tiles()[number].transposed());
        }
        for (const TileBits& tile : flipped) tiles.push_back(&tile);
    } else {
        for (const std::int64_t number : used) {
            tiles.push_back(&table.tiles()[number]);
        }
    }
    if (tiles.empty()) tiles.push_back(&shape);  // kernels must get a non-empty array
    switch (options.bits) {
        case BitOrder::rows:
            plan.bits = row_words(tiles, shape);
            break;
        case BitOrder::bytes:
            plan.bits = row_bytes(tiles, shape);
            break;
        case BitOrder::atoms:
            plan.bits = atom_numbers(tiles, shape, plan.atoms);
            break;
        case BitOrder::wgmma:
            plan.bits = register_words(tiles, shape);
            break;
    }
}

}  // namespace

MaskPlan make_plan(const MaskData& mask, const PlanOptions& options) {
    check(options);
    std::optional<MaskData> by_kv;
    if (options.by_kv) by_kv = transposed(mask);
    const MaskData& data = by_kv ? *by_kv : mask;
    const std::int64_t height = options.by_kv ? options.block_kv : options.block_q;
    const std::int64_t width = options.by_kv ? options.block_q : options.block_kv;

    MaskPlan plan;
    plan.options = options;
    plan.batch = data.batch;
    plan.heads = data.heads;
    plan.rows = ceil_div(data.q_len, height);
    plan.columns = ceil_div(data.kv_len, width);

    TileTable table(data, height, width);
    std::vector<std::int64_t> used;      // tiles whose bits are in the plan
    std::vector<std::int32_t> position;  // for each tile its index in `used`, or -1
    std::vector<Entry> partial, full;
    const std::int64_t total_rows = plan.batch * plan.heads * plan.rows;
    plan.headers = Tensor::zeros(i32, {total_rows, 4});
    std::int32_t* header = plan.headers.data<std::int32_t>();
    const auto add_full = [&](std::int64_t first, std::int64_t count, std::size_t row_start) {
        plan.full_tiles += count;
        if (full.size() > row_start && full.back().first + full.back().second == first) {
            full.back().second += static_cast<std::int32_t>(count);
        } else {
            full.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(count)});
        }
    };
    for (std::int64_t i = 0; i < total_rows; ++i, header += 4) {
        const TileRow row{i / plan.rows, i % plan.rows * height, height, width};
        const std::int64_t rows_inside = std::min(height, data.q_len - row.q);
        const std::size_t first_partial = partial.size(), first_full = full.size();
        for (const TileSpan& span : tile_spans(data, row)) {
            if (span.full) {
                add_full(span.first, span.count, first_full);
                continue;
            }
            const std::int64_t number = table.number(row, span.first);
            const std::int64_t bits = table.popcount(number);
            if (bits == 0) continue;
            if (bits == rows_inside * width) {
                add_full(span.first, 1, first_full);
                continue;
            }
            position.resize(table.tiles().size(), -1);
            std::int32_t& at = position[number];
            if (at < 0) {
                at = static_cast<std::int32_t>(used.size());
                used.push_back(number);
            }
            partial.push_back({static_cast<std::int32_t>(span.first), at});
        }
        if (partial.size() > INT32_MAX || full.size() > INT32_MAX)
            user_error("mask_plan", "expected fewer than 2^31 tiles in a plan; use larger tiles");
        header[0] = static_cast<std::int32_t>(first_partial);
        header[1] = static_cast<std::int32_t>(partial.size() - first_partial);
        header[2] = static_cast<std::int32_t>(first_full);
        header[3] = static_cast<std::int32_t>(full.size() - first_full);
    }
    plan.partial_tiles = std::ssize(partial);
    plan.partial = entries_tensor(partial);
    plan.full = entries_tensor(full);
    encode_bits(table, used, plan);
    return plan;
}

std::int64_t MaskPlan::row_tiles(std::int64_t row) const {
    const std::int32_t* header = headers.data<std::int32_t>() + row * 4;
    const std::int32_t* runs = full.data<std::int32_t>();
    std::int64_t tiles = header[1];
    for (std::int32_t i = 0; i < header[3]; ++i) tiles += runs[(header[2] + i) * 2 + 1];
    return tiles;
}

Tensor MaskPlan::work_list(std::int64_t batches, std::int64_t num_heads) const {
    if ((batch != 1 && batch != batches) || (heads != 1 && heads != num_heads))
        user_error("mask_plan", "expected batches {} and heads {} (1 broadcasts) but got {} and {}",
                   batch, heads, batches, num_heads);
    std::vector<std::int64_t> tiles(batch * heads * rows);
    for (std::size_t i = 0; i < tiles.size(); ++i)
        tiles[i] = row_tiles(static_cast<std::int64_t>(i));
    Tensor list = Tensor::empty(i32, {batches * num_heads * rows});
    std::int32_t* out = list.data<std::int32_t>();
    std::iota(out, out + list.size(), 0);
    const auto length = [&](std::int32_t work) {
        const std::int64_t head = work / rows;
        const std::int64_t stored =
            (batch == 1 ? 0 : head / num_heads) * heads + (heads == 1 ? 0 : head % num_heads);
        return tiles[stored * rows + work % rows];
    };
    std::stable_sort(out, out + list.size(),
                     [&](std::int32_t a, std::int32_t b) { return length(a) > length(b); });
    return list;
}

std::int64_t MaskPlan::nbytes() const {
    return headers.nbytes() + partial.nbytes() + full.nbytes() + bits.nbytes() +
           (atoms.defined() ? atoms.nbytes() : 0);
}

}  // namespace tilewright::mask
