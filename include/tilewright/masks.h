// The library of masks: who attends to whom.
#pragma once

#include "tilewright/compiler.h"
#include "tilewright/mod.h"

namespace TW_API tilewright {
namespace masks {

// Positions q and kv count from 0 and are i64, so no length overflows. Of an image, row = i / width
// and column = i % width.

/// Every pair.
Mod noop();
/// q >= kv.
Mod causal();
/// 0 <= q - kv <= w.
Mod sliding_window(std::int64_t w);
/// q - left <= kv <= q + right; -1 leaves a side open.
Mod window(std::int64_t left, std::int64_t right);
/// |q - kv| <= w, every d-th of them: (q - kv) % d == 0.
Mod dilated_window(std::int64_t w, std::int64_t d);
/// Causal: the last `stride` keys, and before them every stride-th.
Mod strided(std::int64_t stride);
/// |q - kv| <= w, or either position is flagged; `flags` bool (position).
Mod global_tokens(std::int64_t w, const Capture& flags);
/// kv < p or q >= kv.
Mod prefix_lm(std::int64_t p);
/// The same with a length for each batch: `lengths` integers (batch).
Mod prefix_lm(const Capture& lengths);

/// Positions with equal ids; `ids` of rank 1 (position) or 2 (batch, position). Not causal.
Mod document(const Capture& ids);
/// Queries and keys with equal ids, both (position) or (batch, position).
Mod segment(const Capture& q_ids, const Capture& kv_ids);
/// Sequences packed one after the other: `offsets` (sequences + 1), ascending from 0. The sequences
/// must match, and `mask` sees positions that restart in each. Positions past the last offset
/// attend to nothing.
Mod jagged(const Mod& mask, const Capture& offsets);
/// Causal within each packed sequence, as one interval of keys for each query.
Mod packed_causal(const Capture& offsets);
/// Packed sequences of `n` positions each.
Mod batchify(const Mod& mask, std::int64_t n);
/// mask(q + q_offset, kv + kv_offset): bottom-right causal is offset(causal(), kv_len - q_len, 0).
Mod offset(const Mod& mask, std::int64_t q_offset, std::int64_t kv_offset);
/// The same with offsets of rank 0 that may change without tracing again.
Mod offset(const Mod& mask, const Capture& q_offset, const Capture& kv_offset);
/// Packed sequences (`offsets`), causal, that also see all of a prefix sequence: `prefix`
/// (sequences) holds its number, or -1 for none.
Mod shared_prefix(const Capture& offsets, const Capture& prefix);
/// Block diffusion over 2n positions, n noised and then n clean, in blocks: the own block of the
/// own half; noised queries also earlier clean blocks; clean queries clean blocks up to their own.
Mod block_diffusion(std::int64_t n, std::int64_t block);
/// A tree of drafted tokens after a prefix: kv < prefix, or `ancestors` (tokens, tokens) of bool
/// says that key kv - prefix is an ancestor of query q, or q itself.
Mod tree(const Capture& ancestors, std::int64_t prefix);
/// Training such a drafter: kv < prefix, or key kv - prefix lies in the query's group of n at or
/// before its place.
Mod tree_training(std::int64_t prefix, std::int64_t n);

/// Stand-alone self-attention: rows and columns at most `window` apart.
Mod sasa(std::int64_t width, std::int64_t window);
/// Neighbourhood attention: keys within a kernel_w x kernel_h window around the query, whose centre
/// is moved so that the window stays on the canvas.
Mod natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w, std::int64_t kernel_h);
/// The same with positions counted tile by tile of tile_w x tile_h, which divide the canvas.
Mod tiled_natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                 std::int64_t kernel_h, std::int64_t tile_w, std::int64_t tile_h);
/// The same with positions in Z-order: even bits are the column, odd bits the row.
Mod morton_natten(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                  std::int64_t kernel_h);
/// Sliding tile attention on a canvas of tiles (positions tile by tile), followed by `text` text
/// tokens: whole tiles within a kernel, text is seen by all, text queries see everything. Kernels
/// are in pixels and multiples of the tiles, which divide the canvas.
Mod sliding_tile_2d(std::int64_t width, std::int64_t height, std::int64_t kernel_w,
                    std::int64_t kernel_h, std::int64_t tile_w, std::int64_t tile_h,
                    std::int64_t text = 0);
/// The same over frames, rows and columns.
Mod sliding_tile_3d(std::int64_t width, std::int64_t height, std::int64_t frames,
                    std::int64_t kernel_w, std::int64_t kernel_h, std::int64_t kernel_f,
                    std::int64_t tile_w, std::int64_t tile_h, std::int64_t tile_f,
                    std::int64_t text = 0);
/// Text attends to image tokens: `intervals` (images, 2): queries [start, end) see image kv /
/// image_len.
Mod vision_cross_attention(const Capture& intervals, std::int64_t image_len);

/// Video: prompt tokens see and are seen by all; else |q - kv| below width frames, rounded down to
/// `round` tokens. With `sink` the first frame is seen, too.
Mod spatial_head(std::int64_t prompt, std::int64_t frame_tokens, std::int64_t width = 2,
                 bool sink = false, std::int64_t round = 128);
/// Video: prompt tokens see and are seen by all; else the places within the frames are less than
/// width * frame_tokens / frames apart.
Mod temporal_head(std::int64_t prompt, std::int64_t frames, std::int64_t frame_tokens,
                  std::int64_t width = 2);
/// Video sparse attention: the tile of the key is one of `topk` (b, h, tile of the query, k), and
/// its place is below the tile's size; `sizes` (tiles) may be left out.
Mod selected_tiles(const Capture& topk, std::int64_t tile);
Mod selected_tiles(const Capture& topk, std::int64_t tile, const Capture& sizes);

}  // namespace masks
}  // namespace tilewright
