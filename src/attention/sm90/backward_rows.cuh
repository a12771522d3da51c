// The kernels before and after the main backward kernel that process the query rows once.
#pragma once

#include "attention/sm90/backward_layout.cuh"
#include "attention/sm90/row_lse.cuh"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "score_mod.cuh"

namespace twd::attn {

constexpr int kRowThreads = 256;

TW_DEVICE u16* row_of(const Rows& rows, int batch_head, int row, const BackwardParameters& p) {
    const int batch = batch_head / p.heads, head = batch_head - batch * p.heads;
    return static_cast<u16*>(rows.data) + batch * rows.batch_stride + head * rows.head_stride +
           row * rows.row_stride;
}

/// Sum of the products of eight pairs of elements.
TW_DEVICE float dot8(uint4 a, uint4 b) {
    const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum += ptx::low(Element{}, x[i]) * ptx::low(Element{}, y[i]);
        sum += ptx::high(Element{}, x[i]) * ptx::high(Element{}, y[i]);
    }
    return sum;
}

/// The tensor's rows that a block of one head holds.
TW_DEVICE BlockRows rows_of_block(int block, const BackwardParameters& p) {
    if constexpr (kPacked) {
        const int2 rows = __ldg(reinterpret_cast<const int2*>(p.block_rows) + block);
        return {rows.x, rows.y};
    }
    return {block * kBlockM, min(kBlockM, p.q_len - block * kBlockM)};
}

/// Stores eight columns of dQ from their f32 sums; `row` counts in the tensor.
TW_DEVICE void store8(const float (&sums)[8], int batch_head, int row, int column,
                      const BackwardParameters& p) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = ptx::pack(Element{}, sums[2 * i] * p.scale, sums[2 * i + 1] * p.scale);
    }
    *reinterpret_cast<uint4*>(row_of(p.grad_query, batch_head, row, p) + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
}

/// Calls `visit` for all accumulators of captures, if the mod has any.
template <typename Mod, typename Visit>
TW_DEVICE void each_sum(const Mod& mod, Visit visit) {
    if constexpr (Mod::kGathers > 0) mod.each_sum(visit);
}

/// The sum of every thread's value, in thread 0, always added in the same order.
TW_DEVICE float sum_over_block(float value) {
    __shared__ float of_warps[kRowThreads / 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < kRowThreads / 32; ++i) total += of_warps[i];
    __syncthreads();
    return total;
}

}  // namespace twd::attn

/// One CTA per (batch, head, block of rows): lse in log2 units, delta = rowsum(dO * out) - dlse,
/// zeros in the sums of dQ (or in last_added, if sums are ordered) and in the tile counter, and the
/// block's part of the sinks' gradient. Rows without a key, rows whose lse allows no gradient, and
/// rows past the end get an lse of +inf, so that their P is 0.
extern "C" __global__ void __launch_bounds__(twd::attn::kRowThreads)
    attention_backward_prepare(const __grid_constant__ twd::attn::BackwardParameters p) {
    using namespace twd;
    using namespace twd::attn;
    const int batch_head = blockIdx.x / p.q_blocks, block = blockIdx.x - batch_head * p.q_blocks;
    if (p.next_tile != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.next_tile = 0;
    constexpr int kLanes = 8;  // threads per row
    const int lane = threadIdx.x % kLanes;
    const i64 padded = static_cast<i64>(blockIdx.x) * kBlockM;
    const BlockRows rows = rows_of_block(block, p);
    constexpr float kLog2e = 1.4426950408889634f;
    float of_sink = 0;
    for (int i = threadIdx.x / kLanes; i < kBlockM; i += kRowThreads / kLanes) {
        const int row = rows.first + i;
        const bool exists = i < rows.count;
        float sum = 0;
        if (exists) {
            const u16* const out = row_of(p.out, batch_head, row, p);
            const u16* const grad = row_of(p.grad_out, batch_head, row, p);
            for (int column = 8 * lane; column < kValueDim; column += 8 * kLanes) {
                sum += dot8(ptx::load_once_128(out + column), ptx::load_once_128(grad + column));
            }
        }
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(~0u, sum, offset);
        }
        if (lane == 0) {
            const float kInfinity = __int_as_float(0x7f800000);
            const i64 at = static_cast<i64>(batch_head) * p.q_len + row;
            const float lse = exists ? p.lse[at] : -kInfinity;
            const bool empty = !has_gradient(lse);
            const float grad_lse = p.grad_lse != nullptr && !empty ? p.grad_lse[at] : 0.0f;
            p.row_lse[padded + i] = empty ? kInfinity : lse * kLog2e;
            p.row_delta[padded + i] = empty ? 0.0f : sum - grad_lse;
            if (kOver128 && exists) p.query_delta[at] = empty ? 0.0f : sum - grad_lse;
            if constexpr (kSinks) {
                const float sink = p.sinks[batch_head % p.heads];
                if (!empty) of_sink -= ptx::exp2_approx((sink - lse) * kLog2e) * (sum - grad_lse);
            }
        }
    }
    if constexpr (kSinks) {
        const float total = sum_over_block(of_sink);
        if (threadIdx.x == 0) p.sink_parts[blockIdx.x] = total;
    }
    if constexpr (kOver128) return;
    if constexpr (kDeterministic) {  // the first tile stores, no zeros needed
        if (threadIdx.x < kGradParts) {
            p.last_added[static_cast<i64>(blockIdx.x) * kGradParts + threadIdx.x] = 0;
        }
        return;
    }
    constexpr u32 kVectors = kGradBytes / 16;
    for (u32 part = 0; part < kGradParts; ++part) {
        float4* const sums = reinterpret_cast<float4*>(p.grad_query_sums) +
                             (static_cast<i64>(blockIdx.x) * kGradParts + part) * kVectors;
        for (u32 i = threadIdx.x; i < grad_bytes(part) / 16; i += kRowThreads) {
            sums[i] = make_float4(0, 0, 0, 0);
        }
    }
}

/// One CTA per (batch, head, block of rows): dQ = scale * sums, from the order of accumulator
/// registers to rows.
extern "C" __global__ void __launch_bounds__(twd::attn::kRowThreads)
    attention_backward_finish(const __grid_constant__ twd::attn::BackwardParameters p) {
    using namespace twd;
    using namespace twd::attn;
    const int batch_head = blockIdx.x / p.q_blocks, block = blockIdx.x - batch_head * p.q_blocks;
    constexpr u32 kVectors = kGradParts * kGradBytes / 16;
    const BlockRows rows = rows_of_block(block, p);
    const float4* const sums = reinterpret_cast<const float4*>(p.grad_query_sums) +
                               static_cast<i64>(blockIdx.x) * kVectors;
    // The first tile stores, so blocks that no tile visits have no sum: their dQ is 0.
    const bool summed =
        !kDeterministic || p.last_added[static_cast<i64>(blockIdx.x) * kGradParts] != 0;
    // A thread gathers two rows of eight columns from the registers of four threads, or of eight
    // threads if dQ is transposed and its rows are columns.
    constexpr int kColumnBlocks = kQueryDim / 8;
    for (int i = threadIdx.x; i < kBlockM / 2 * kColumnBlocks; i += kRowThreads) {
        int column, row, next_row;
        float first[8], second[8];
        if constexpr (kGradTransposed) {
            const int quad_lane = i % 4;
            column = i / 4 % kColumnBlocks * 8;
            row = i / 4 / kColumnBlocks * 8 + 2 * quad_lane;
            next_row = row + 1;
            const int warp = column % 64 / 16, half = column / 8 % 2;
            const float2* const source = reinterpret_cast<const float2*>(
                sums + column / 64 * (kVectors / kGradParts) + warp * (kGradWarpBytes / 16) +
                row / 8 * (kGradQuadBytes / 16) + quad_lane);
#pragma unroll
            for (int g = 0; g < 8; ++g) {
                const float2 v = summed ? source[8 * g + half] : make_float2(0, 0);
                first[g] = v.x;
                second[g] = v.y;
            }
        } else {
            column = i % kColumnBlocks * 8;
            const int pair = i / kColumnBlocks;
            row = pair / 8 * 16 + pair % 8;
            next_row = row + 8;
            const float4* const source = sums + row / 64 * (kVectors / kGradParts) +
                                         column / 8 * 128 + row % 64 / 16 * 32 + row % 8 * 4;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const float4 v = summed ? source[t] : make_float4(0, 0, 0, 0);
                first[2 * t] = v.x;
                first[2 * t + 1] = v.y;
                second[2 * t] = v.z;
                second[2 * t + 1] = v.w;
            }
        }
        if (row < rows.count) store8(first, batch_head, rows.first + row, column, p);
        if (next_row < rows.count) store8(second, batch_head, rows.first + next_row, column, p);
    }
}

namespace twd::attn {

/// Eight columns of dK or dV: the sum of parts that are `stride` floats apart, from first to last.
TW_DEVICE void join(const float* parts, i64 stride, int count, u16* target) {
    float4 low = make_float4(0, 0, 0, 0), high = low;
    for (int i = 0; i < count; ++i, parts += stride) {
        const float4* const part = reinterpret_cast<const float4*>(parts);
        const float4 a = part[0], b = part[1];
        low = make_float4(low.x + a.x, low.y + a.y, low.z + a.z, low.w + a.w);
        high = make_float4(high.x + b.x, high.y + b.y, high.z + b.z, high.w + b.w);
    }
    *reinterpret_cast<uint4*>(target) =
        make_uint4(ptx::pack(Element{}, low.x, low.y), ptx::pack(Element{}, low.z, low.w),
                   ptx::pack(Element{}, high.x, high.y), ptx::pack(Element{}, high.z, high.w));
}

/// The same of the splits of a kv head's query heads.
template <int kColumns>
TW_DEVICE void join_splits(const float* splits, const Rows& to, int batch, int kv_head, int vector,
                           const BackwardParameters& p) {
    const int row = vector / (kColumns / 8), column = vector % (kColumns / 8) * 8;
    const i64 first = static_cast<i64>(batch) * p.kv_heads + kv_head * p.splits;
    join(splits + (first * p.kv_len + row) * kColumns + column,
         static_cast<i64>(p.kv_len) * kColumns, p.splits,
         static_cast<u16*>(to.data) + batch * to.batch_stride + kv_head * to.head_stride +
             row * to.row_stride + column);
}

/// The same of the pieces of a tile; `tile` counts those that were cut.
template <int kColumns>
TW_DEVICE void join_pieces(const float* pieces, const Rows& to, int tile, int vector,
                           const BackwardParameters& p) {
    const KeyTile cut = tile_at(place_at(p.whole_places + tile, p), p);
    const int row = vector / (kColumns / 8), column = vector % (kColumns / 8) * 8;
    const int key = cut.index * kBlockN + row;
    if (key >= p.kv_len) return;
    join(pieces + (static_cast<i64>(tile) * p.pieces * kBlockN + row) * kColumns + column,
         kBlockN * kColumns, p.pieces,
         static_cast<u16*>(to.data) + cut.batch * to.batch_stride + cut.kv_head * to.head_stride +
             key * to.row_stride + column);
}

}  // namespace twd::attn

/// dK and dV from the splits of query heads: one thread per eight columns, consecutive CTAs per kv
/// head.
extern "C" __global__ void __launch_bounds__(twd::attn::kRowThreads)
    attention_backward_join(const __grid_constant__ twd::attn::BackwardParameters p) {
    using namespace twd::attn;
    const int keys = p.kv_len * (kQueryDim / 8), values = p.kv_len * (kValueDim / 8);
    const int ctas = (keys + values + kRowThreads - 1) / kRowThreads;
    const int index = blockIdx.x / ctas, kv_heads = p.kv_heads / p.splits;
    const int batch = index / kv_heads, kv_head = index - batch * kv_heads;
    const int vector = (blockIdx.x - index * ctas) * kRowThreads + threadIdx.x;
    if (vector < keys) {
        join_splits<kQueryDim>(p.key_splits, p.grad_key, batch, kv_head, vector, p);
    } else if (vector < keys + values) {
        join_splits<kValueDim>(p.value_splits, p.grad_value, batch, kv_head, vector - keys, p);
    }
}

/// dK and dV of the tiles that were cut: one thread per eight columns, consecutive CTAs per tile.
extern "C" __global__ void __launch_bounds__(twd::attn::kRowThreads)
    attention_backward_join_pieces(const __grid_constant__ twd::attn::BackwardParameters p) {
    using namespace twd::attn;
    if constexpr (!kCutsTiles) return;
    constexpr int kKeys = kBlockN * (kQueryDim / 8), kValues = kBlockN * (kValueDim / 8);
    constexpr int kCtas = (kKeys + kValues + kRowThreads - 1) / kRowThreads;
    const int tile = blockIdx.x / kCtas;
    const int vector = (blockIdx.x - tile * kCtas) * kRowThreads + threadIdx.x;
    if (vector < kKeys) {
        join_pieces<kQueryDim>(p.key_splits, p.grad_key, tile, vector, p);
    } else if (vector < kKeys + kValues) {
        join_pieces<kValueDim>(p.value_splits, p.grad_value, tile, vector - kKeys, p);
    }
}

/// One CTA per head: the gradient of its sink, summed over the blocks in a fixed order.
extern "C" __global__ void __launch_bounds__(twd::attn::kRowThreads)
    attention_backward_sinks(const __grid_constant__ twd::attn::BackwardParameters p) {
    using namespace twd::attn;
    float sum = 0;
    for (int batch = 0; batch < p.batches; ++batch) {
        const float* const parts =
            p.sink_parts + static_cast<twd::i64>(batch * p.heads + blockIdx.x) * p.q_blocks;
        for (int i = threadIdx.x; i < p.q_blocks; i += kRowThreads) sum += parts[i];
    }
    sum = sum_over_block(sum);
    if (threadIdx.x == 0) p.grad_sinks[blockIdx.x] = sum;
}

namespace twd::attn {

/// The tiles of a kv head in the order in which gradients of captures are added: which tile, of
/// which batch or sequence, and how many keys that has.
struct SumTile {
    int index, batch, kv_len;  ///< index -1: no tile
};
TW_DEVICE SumTile sum_tile(int batch, int rank, const BackwardParameters& p) {
    if constexpr (kPacked) {
        const MaskTile tile = p.mask.tiles[rank];
        return {tile.index, tile.sequence, p.mask.sequences[rank].kv_len};
    }
    return {rank, batch, p.kv_len};
}

/// Sums per head and key: a thread per key, with batches, heads and tiles in a fixed order.
template <typename Mod>
TW_DEVICE void add_key_sums(Mod& mod, const BackwardParameters& p) {
    const int key = blockIdx.x * kRowThreads + threadIdx.x;
    const int own = key / kBlockN;
    for (int batch = 0; batch < p.batches; ++batch) {
        for (int rank = kPacked ? 0 : own; rank < (kPacked ? p.kv_tiles : own + 1); ++rank) {
            const SumTile tile = sum_tile(batch, rank, p);
            if (tile.index != own || key >= tile.kv_len) continue;
            for (int head = 0; head < p.heads; ++head) {
                mod.enter_tile(tile.batch, head);
                mod.enter_rows(key);
                const i64 first =
                    (static_cast<i64>(batch * p.heads + head) * p.kv_tiles + rank) * kBlockN;
                each_sum(mod, [&](i64 place, const float* sums, float* array, bool of_heads) {
                    if (!of_heads && place >= 0) {
                        ptx::reduce_add(array + place, sums[first + key % kBlockN]);
                    }
                });
            }
        }
    }
}

/// Sums per head, in one CTA: tiles in parallel, but added one after another so that the order is
/// fixed.
template <typename Mod>
TW_DEVICE void add_head_sums(Mod& mod, const BackwardParameters& p) {
    __shared__ i64 places[kRowThreads];
    __shared__ float values[kRowThreads];
    for (int batch = 0; batch < p.batches; ++batch) {
        for (int head = 0; head < p.heads; ++head) {
            for (int chunk = 0; chunk < p.kv_tiles; chunk += kRowThreads) {
                const int rank = chunk + threadIdx.x;
                const bool exists = rank < p.kv_tiles;
                const SumTile tile = exists ? sum_tile(batch, rank, p) : SumTile{-1, 0, 0};
                mod.enter_tile(tile.batch, head);
                const i64 first =
                    (static_cast<i64>(batch * p.heads + head) * p.kv_tiles + rank) * (kStrips * 4);
                each_sum(mod, [&](i64 place, const float* sums, float* array, bool of_heads) {
                    if (!of_heads) return;
                    float sum = 0;
                    for (int warp = 0; tile.index >= 0 && warp < kStrips * 4; ++warp) {
                        sum += sums[first + warp];
                    }
                    places[threadIdx.x] = tile.index >= 0 ? place : -1;
                    values[threadIdx.x] = sum;
                    __syncthreads();
                    if (threadIdx.x == 0) {
                        float run = 0;
                        i64 at = -1;
                        for (int i = 0; i < kRowThreads; ++i) {
                            if (places[i] < 0) continue;
                            if (places[i] != at) {
                                if (at >= 0) ptx::reduce_add(array + at, run);
                                at = places[i];
                                run = 0;
                            }
                            run += values[i];
                        }
                        if (at >= 0) ptx::reduce_add(array + at, run);
                    }
                    __syncthreads();
                });
            }
        }
    }
}

}  // namespace twd::attn

/// The gradients of captures from sums per head and key; the last CTA handles sums per head.
extern "C" __global__ void __launch_bounds__(twd::attn::kRowThreads)
    attention_backward_captures(const __grid_constant__ twd::attn::BackwardParameters p,
                                const __grid_constant__ twd::attn::ModArguments mod_arguments) {
    using namespace twd::attn;
    ScoreMod mod{mod_arguments, p.scale};
    mod.enter_block(0);
    mod.enter_rows(0);
    if (blockIdx.x + 1 == gridDim.x) {
        add_head_sums(mod, p);
    } else {
        add_key_sums(mod, p);
    }
}
