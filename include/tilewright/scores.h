// The library of score mods. Each maps the current score s to a new one; `compose` chains them.
#pragma once

#include <string>

#include "tilewright/compiler.h"
#include "tilewright/mod.h"

namespace TW_API tilewright {

/// outer(inner(score)): `compose(scores::softcap(20), scores::alibi(slopes))`.
Mod compose(const Mod& outer, const Mod& inner);

namespace scores {

/// s + slope[h] * (kv - q) with slope[h] = 2^(-8 (h + 1) / heads) (Press et al., 2022).
Mod alibi(std::int64_t heads);
/// s + slopes[h] * (kv - q); `slopes`: floats (heads).
Mod alibi(const Capture& slopes);
/// cap * tanh(s / cap) (Gemma 2, 2024); `approx` allows the hardware's approximate tanh.
Mod softcap(double cap, bool approx = false);
/// s + (q - kv).
Mod relative_position();
/// s + table, of shape (q, kv), (h, q, kv) or (b, h, q, kv); extents of 1 broadcast.
Mod bias(const Capture& table);
/// The bias of T5 (Raffel et al., 2020): s + table[bucket(kv - q), h]; `table`: (buckets, heads).
/// Short distances have a bucket each, longer ones share logarithmic buckets up to `max_distance`.
Mod t5(const Capture& table, bool bidirectional = true, std::int64_t max_distance = 128);
/// Sandwich (Chi et al., 2023): s + heads / (8 (h + 1)) * sum over i < dim / 2 of cos(d / 10000^(2i
/// / dim)), where d is |q - kv|, but at most max_length - 1.
Mod sandwich(std::int64_t heads, std::int64_t max_length, std::int64_t dim = 128);
/// Graphormer (Ying et al., 2021): s + bias[h, distance[b, q, kv]]; `bias`: (heads, buckets),
/// `distance`: integers (batch, q, kv).
Mod graphormer_spatial(const Capture& bias, const Capture& distance);
/// Graphormer: s + the mean over the first lengths[b, q, kv] edges n of edge_bias[h, n, types[b, q,
/// kv, n]]; `edge_bias`: (heads, edges, types), `types`: (batch, q, kv, edges), `lengths`: (batch,
/// q, kv).
Mod graphormer_edge(const Capture& edge_bias, const Capture& types, const Capture& lengths);
/// log(f(s) + n), with which softmax normalises f(s) + n; `f` is one of relu, sigmoid, softplus,
/// exp, square.
Mod activation(const std::string& f, double n = 0);
/// The rotary part of multi-head latent attention (DeepSeek-V2, 2024): s + scale * <q_rope[b, h,
/// q], k_rope[b, h / group, kv]>, with group = heads of q_rope / heads of k_rope.
Mod mla_rope(const Capture& q_rope, const Capture& k_rope, double scale);
/// s * even where |kv - q| is even, else s * odd.
Mod checkerboard(double even = 1, double odd = 0.5);

}  // namespace scores
}  // namespace tilewright
