// The library of score mods. Each takes the current score; compose them with `compose`.
#pragma once

#include <string>

#include "tilewright/compiler.h"
#include "tilewright/mod.h"

namespace TW_API tilewright {

/// outer(inner(score)): `compose(scores::softcap(20), scores::alibi(slopes))`.
Mod compose(const Mod& outer, const Mod& inner);

namespace scores {

/// s + slope[h] * (kv - q), slope[h] = 2^(-8 (h + 1) / heads).
Mod alibi(std::int64_t heads);
/// s + slopes[h] * (kv - q).
Mod alibi(const Capture& slopes);
/// cap * tanh(s / cap); `approx` allows the hardware's tanh.
Mod softcap(double cap, bool approx = false);
/// s + (q - kv).
Mod relative_position();
/// s + table, of shape (q, kv), (h, q, kv) or (b, h, q, kv); extents of 1 broadcast.
Mod bias(const Capture& table);
/// T5's bias: s + table[bucket(kv - q), h]; `table` (buckets, heads). Distances fall into exact
/// buckets first, then into logarithmic ones up to `max_distance`.
Mod t5(const Capture& table, bool bidirectional = true, std::int64_t max_distance = 128);
/// Sandwich: s + heads / (8 (h + 1)) * sum over i < dim / 2 of cos(|q - kv| / 10000^(2i / dim)),
/// for distances below `max_length`; farther ones count as that.
Mod sandwich(std::int64_t heads, std::int64_t max_length, std::int64_t dim = 128);
/// Graphormer: s + bias[h, distance[b, q, kv]]; `bias` (heads, buckets), `distance` of integers.
Mod graphormer_spatial(const Capture& bias, const Capture& distance);
/// Graphormer: s + mean over the first lengths[b, q, kv] edges n of edge_bias[h, n, types[b, q, kv,
/// n]]; `edge_bias` (heads, edges, types), `types` (b, q, kv, edges), `lengths` (b, q, kv).
Mod graphormer_edge(const Capture& edge_bias, const Capture& types, const Capture& lengths);
/// log(f(s) + n), with which softmax becomes a normalised f: `f` is one of relu, sigmoid, softplus,
/// exp, square.
Mod activation(const std::string& f, double n = 0);
/// Latent attention's rotary part: s + scale * <q_rope[b, h, q], k_rope[b, h / group, kv]>, with
/// group = heads of q_rope / heads of k_rope.
Mod mla_rope(const Capture& q_rope, const Capture& k_rope, double scale);
/// Where |kv - q| is even s * even, else s * odd.
Mod checkerboard(double even = 1, double odd = 0.5);

}  // namespace scores
}  // namespace tilewright
