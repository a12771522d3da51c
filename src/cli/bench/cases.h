// What `tilewright bench` measures: each case times our program, its roof and its baseline.
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

/// Sizes and choices; those not given are the case's own.
struct BenchOptions {
    DType dtype = f32;
    Device device = {};
    std::optional<std::int64_t> batch, heads, kv_heads, seq_len, kv_len, head_dim;
    std::optional<bool> causal;
    bool backward = false;
    bool check = true;            ///< compare with the reference at a smaller size
    std::string baseline;         ///< empty: none; auto: those of torch that are available
    std::string front_end;        ///< flex: torch also measures through tilewright.torch
    std::string only;             ///< flex: only this case; cpu, compile: names that contain this
    bool small = false;           ///< cpu: arrays of a few thousand elements
    std::string mask, score;      ///< attention, flex: these mods, as text
    bool picture = true;          ///< flex: draw the masks
    bool deterministic = true;    ///< attention on a GPU: for the backward pass
    std::string engine;           ///< attention on a GPU: its name; empty: the fastest
    std::string precision;        ///< attention of f32 on a GPU: of products; empty: ieee
    bool autotune = false;        ///< attention, flex on a GPU: choose blocks by measurement; cpu:
                                  ///< compare blocks as they are with the best tiles
    std::string arch;             ///< compile: kernels for it; empty: what the device runs
    bool once = false;            ///< compile on a GPU: only the first calls of this process
    std::ostream* out = nullptr;  ///< for pictures, tables, and what cannot be measured
    bool sweep = false;           ///< on a GPU: many lengths of attention, many widths of norms
    bool sweep_head_dim = false;  ///< attention on a GPU: head dimensions 8, 16, ... 256
    bool sustained = false;       ///< on a GPU: also a second of launches without pauses
    int graph_calls = 0;   ///< on a GPU: time graph replays of this many calls, ours and torch's
    double seconds = 1.5;  ///< for each case
    int least_rounds = 5;
};

void bench_attention(const BenchOptions& options, Report& report);
/// Many kinds of kernels compared with plain C++ loops.
void bench_cpu(const BenchOptions& options, Report& report);
void bench_decode(const BenchOptions& options, Report& report);
/// Building of masks of 2^20 tokens: causal, documents, window, prefix, neighbourhoods.
void bench_mask(const BenchOptions& options, Report& report);
/// Document masks whose ids are on the GPU, compared with the same on the CPU.
void bench_mask_gpu(const BenchOptions& options, Report& report);
/// The FlexAttention notebook: every case compared with causal attention, dense attention with the
/// mask as a table, and torch's flex_attention, forward and backward.
void bench_flex(const BenchOptions& options, Report& report);
/// On a GPU, compared with torch's attention by cuDNN and FlashAttention-2, and FlexAttention.
void bench_attention_gpu(const BenchOptions& options, Report& report);
/// Few query rows over many keys, in bytes of K and V per second.
void bench_decode_gpu(const BenchOptions& options, Report& report);
void bench_flex_gpu(const BenchOptions& options, Report& report);
void bench_matmul_gpu(const BenchOptions& options, Report& report);
/// First calls in new processes with an empty and a filled cache, and host times of warm calls.
void bench_compile_gpu(const BenchOptions& options, Report& report);
void bench_norm_gpu(const BenchOptions& options, Report& report);
void bench_matmul(const BenchOptions& options, Report& report);
/// RMSNorm, LayerNorm and softmax over 16384 rows of 4096, or seq-len rows of head-dim.
void bench_norm(const BenchOptions& options, Report& report);
/// Time to the first result of the attention kernel in a new process, and of a warm call.
void bench_compile(const BenchOptions& options, Report& report);

}  // namespace tilewright::cli
