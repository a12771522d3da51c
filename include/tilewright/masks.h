// The library of mask mods: functions that say which queries attend to which keys.
#pragma once

#include "tilewright/compiler.h"
#include "tilewright/mod.h"

namespace TW_API tilewright {
namespace masks {

// Positions q and kv count from 0 and are i64, so no length overflows. In an image, position i is
// in row i / width and column i % width. Arguments out of range and arrays of another rank or dtype
// than stated throw a UserError.

/// Every pair attends.
Mod noop();
/// q >= kv.
Mod causal();
/// 0 <= q - kv <= w.
Mod sliding_window(std::int64_t w);
/// q - left <= kv <= q + right; -1 leaves a side open.
Mod window(std::int64_t left, std::int64_t right);
/// |q - kv| <= w and (q - kv) % d == 0: every d-th key of a window (Beltagy et al., 2020).
Mod dilated_window(std::int64_t w, std::int64_t d);
/// Causal: the last `stride` keys, and every stride-th key before them (Child et al., 2019).
Mod strided(std::int64_t stride);
/// |q - kv| <= w, or either position is flagged; `flags`: bool (position) (Beltagy et al., 2020).
Mod global_tokens(std::int64_t w, const Capture& flags);
/// kv < p or q >= kv (Raffel et al., 2020).
Mod prefix_lm(std::int64_t p);
/// The same with a prefix length for each batch; `lengths`: integers (batch).
Mod prefix_lm(const Capture& lengths);

/// Positions with equal ids; `ids`: integers (position) or (batch, position). Not causal.
Mod document(const Capture& ids);
/// Queries and keys with equal ids; each array: integers (position) or (batch, position).
Mod segment(const Capture& q_ids, const Capture& kv_ids);
/// Sequences packed one after another; `offsets`: integers (sequences + 1), ascending from 0. A
/// query attends only within its sequence, where `mask` sees positions that count from its start.
/// Positions past the last offset attend to nothing.
Mod jagged(const Mod& mask, const Capture& offsets);
/// Causal within each packed sequence, as one interval of keys for each query.
Mod packed_causal(const Capture& offsets);
/// Packed sequences of `n` positions each; `mask` sees positions that count from their start.
Mod batchify(const Mod& mask, std::int64_t n);
/// q >= kv and floor(q / n) == floor(kv / n): causal within chunks of n positions, as in Llama 4.
Mod chunked(std::int64_t n);
/// mask(q + q_offset, kv + kv_offset): bottom-right causal is offset(causal(), kv_len - q_len, 0).
Mod offset(const Mod& mask, std::int64_t q_offset, std::int64_t kv_offset);
/// The same with offsets in integer arrays of rank 0, which may change without a new trace.
Mod offset(const Mod& mask, const Capture& q_offset, const Capture& kv_offset);
/// Causal packed sequences (`offsets` as in `jagged`) that also see all of a prefix sequence;
/// `prefix`: integers (sequences), the number of that sequence, or -1 for none.
Mod shared_prefix(const Capture& offsets, const Capture& prefix);
/// Block diffusion (Arriola et al., 2025) over 2n positions, n noised and then n clean, in blocks.
/// Every query sees its own block in its own half; noised queries also see earlier clean blocks,
/// clean queries all clean blocks up to their own.
Mod block_diffusion(std::int64_t n, std::int64_t block);
/// A tree of drafted tokens after a prefix (Miao et al., 2024): kv < prefix, or key kv - prefix is
/// query q or one of its ancestors; `ancestors`: bool (query, key).
Mod tree(const Capture& ancestors, std::int64_t prefix);
/// Training of such a drafter: kv < prefix, or key kv - prefix is in the query's group of n tokens
/// and not after the query.
Mod tree_training(std::int64_t prefix, std::int64_t n);

/// Stand-alone self-attention (Ramachandran et al., 2019): rows and columns at most `window` apart.
Mod sasa(std::int64_t width, std::int64_t window);
/// Neighborhood attention (Hassani et al., 2023): keys in a kernel_w x kernel_h window around the
/// query, which is shifted at the borders so that it stays inside the image.
Mod natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w, std::int64_t kernel_h);
/// The same with positions counted tile by tile; tile_w and tile_h divide the image's extents.
Mod tiled_natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                 std::int64_t kernel_h, std::int64_t tile_w, std::int64_t tile_h);
/// The same with positions in Z-order: even bits are the column, odd bits the row.
Mod morton_natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                  std::int64_t kernel_h);
/// Sliding tile attention (Zhang et al., 2025) on an image with positions counted tile by tile,
/// followed by `text` text tokens. Image queries see whole tiles within a kernel, and all text;
/// text queries see everything. Kernel sizes are in pixels, multiples of the tile sizes, which
/// divide the image's extents.
Mod sliding_tile_2d(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                    std::int64_t kernel_h, std::int64_t tile_w, std::int64_t tile_h,
                    std::int64_t text = 0);
/// The same over frames, rows and columns.
Mod sliding_tile_3d(std::int64_t width, std::int64_t height, std::int64_t frames,
                    std::int64_t kernel_w, std::int64_t kernel_h, std::int64_t kernel_f,
                    std::int64_t tile_w, std::int64_t tile_h, std::int64_t tile_f,
                    std::int64_t text = 0);
/// Text that attends to image tokens: queries in [start, end) of an image see it, where key kv
/// belongs to image kv / image_len; `intervals`: integers (images, 2).
Mod vision_cross_attention(const Capture& intervals, std::int64_t image_len);

/// Spatial head of Sparse VideoGen (Xi et al., 2025): prompt tokens see everything and are seen by
/// all; other pairs attend where |q - kv| is less than `width` frames, rounded down to a multiple
/// of `round` tokens. With `sink` all queries see the first frame, too.
Mod spatial_head(std::int64_t prompt, std::int64_t frame_tokens, std::int64_t width = 2,
                 bool sink = false, std::int64_t round = 128);
/// Temporal head of the same: prompt tokens see everything and are seen by all; other pairs attend
/// where their places within a frame are less than width * frame_tokens / frames apart.
Mod temporal_head(std::int64_t prompt, std::int64_t frames, std::int64_t frame_tokens,
                  std::int64_t width = 2);
/// Tiles of keys chosen for each tile of queries, as in video sparse attention (Zhang et al.,
/// 2025); `topk`: integers (batch, head, query tile, k), numbers of key tiles of `tile` positions.
/// With `sizes`, integers (tiles), only the first sizes[t] keys of tile t are seen.
Mod selected_tiles(const Capture& topk, std::int64_t tile);
Mod selected_tiles(const Capture& topk, std::int64_t tile, const Capture& sizes);

}  // namespace masks
}  // namespace tilewright
