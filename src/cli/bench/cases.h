// What `tilewright bench` measures: each case times our program, its roof and its baseline in turn.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/measure.h"
#include "cli/bench/roofs.h"
#include "tilewright/dtype.h"
#include "tilewright/tensor.h"

namespace tilewright::cli {

/// Sizes and choices; what is not given takes the values of the case.
struct BenchOptions {
    DType dtype = f32;
    Device device = {};
    std::optional<std::int64_t> batch, heads, kv_heads, seq_len, kv_len, head_dim;
    std::optional<bool> causal;
    bool backward = false;
    bool check = true;            ///< compare with the reference at a smaller size
    std::string baseline;         ///< empty: none; auto: what is there of torch's
    std::string front_end;        ///< flex: torch measures through tilewright.torch, too
    std::string only;             ///< flex: this case alone; cpu: cases whose names have this part
    bool small = false;           ///< cpu: arrays of some thousand elements
    std::string mask, score;      ///< attention, flex: these mods, as texts
    bool picture = true;          ///< flex: draw the masks
    bool deterministic = true;    ///< attention on a GPU: of the backward pass
    std::string engine;           ///< attention on a GPU: tiles, sm90; empty: the fastest
    bool autotune = false;        ///< attention, flex on a GPU: blocks by measurement
    bool once = false;            ///< compile on a GPU: the first calls of this process alone
    std::ostream* out = nullptr;  ///< pictures and tables go here, and what cannot be measured
    bool sweep = false;           ///< on a GPU: attention of many lengths, norms of many widths
    bool sustained = false;       ///< on a GPU: also a second of launches without a rest
    int graph_calls = 0;   ///< on a GPU: time replays of graphs of so many calls, ours and torch's
    double seconds = 1.5;  ///< of each case
    int least_rounds = 5;
};

void bench_attention(const BenchOptions& options, Report& report);
/// Kernels of many kinds beside plain C++ loops.
void bench_cpu(const BenchOptions& options, Report& report);
void bench_decode(const BenchOptions& options, Report& report);
/// Building masks of 2^20 tokens: causal, documents, window, prefix, neighbourhoods.
void bench_mask(const BenchOptions& options, Report& report);
/// Documents whose ids are on the GPU, beside the same on the CPU.
void bench_mask_gpu(const BenchOptions& options, Report& report);
/// The FlexAttention notebook: every case beside causal attention, dense attention with the mask as
/// a table and torch's flex_attention, forward and backward.
void bench_flex(const BenchOptions& options, Report& report);
/// The same on a GPU, beside cuDNN's and FlashAttention-2's attention and FlexAttention as torch
/// has them, torch's matmul and norms.
void bench_attention_gpu(const BenchOptions& options, Report& report);
/// Few query rows over many keys: bytes of K and V per second.
void bench_decode_gpu(const BenchOptions& options, Report& report);
void bench_flex_gpu(const BenchOptions& options, Report& report);
void bench_matmul_gpu(const BenchOptions& options, Report& report);
/// First calls in processes of their own with an empty and with a filled cache, and what warm calls
/// cost the host.
void bench_compile_gpu(const BenchOptions& options, Report& report);
void bench_norm_gpu(const BenchOptions& options, Report& report);
void bench_matmul(const BenchOptions& options, Report& report);
/// RMSNorm, LayerNorm and softmax over 16384 rows of 4096, or seq-len rows of head-dim.
void bench_norm(const BenchOptions& options, Report& report);
/// Time from nothing to the first result of the attention kernel, and of a warm call.
void bench_compile(const BenchOptions& options, Report& report);

}  // namespace tilewright::cli
