// What kernels of the scheduled form share: slots of channels, accumulators, stores.
#pragma once

#include "cuda/device/ptx/cp_async.cuh"
#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mbarrier.cuh"
#include "cuda/device/ptx/reduce.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/tma.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/tile/memory.cuh"
#include "cuda/device/tile/order.cuh"

#define TW_UNROLL _Pragma("unroll")
#define TW_ROLLED _Pragma("unroll 1")

namespace twd {

/// The slot that a channel's count names, and the parity of its phase.
template <int kCount>
struct Slot {
    u32 at, parity;
    TW_DEVICE void next() {
        if (++at == kCount) at = 0, parity ^= 1;
    }
    /// `by` steps on.
    TW_DEVICE void skip(u32 by) {
        const u32 n = at + by;
        at = n % kCount;
        parity ^= n / kCount & 1;
    }
    TW_DEVICE u32 before() const { return at == 0 ? kCount - 1 : at - 1; }
    /// The slot `steps` before, at most kCount.
    TW_DEVICE u32 back(u32 steps) const { return at >= steps ? at - steps : at + kCount - steps; }
};

template <class T, int kCount>
TW_DEVICE void set_zero(T (&x)[kCount]) {
    TW_UNROLL
    for (int i = 0; i < kCount; ++i) x[i] = 0;
}

/// A coordinate for TMA. What lies far outside of every array stays outside.
TW_DEVICE int coordinate(i64 at) {
    constexpr i64 kFar = 1 << 30;
    return static_cast<int>(at < -kFar ? -kFar : at > kFar ? kFar : at);
}

TW_DEVICE bool is_inside(i64 at, i64 extent) {
    return static_cast<u64>(at) < static_cast<u64>(extent);
}

template <int kBytes>
TW_DEVICE void copy_piece(u32 target, const u8* source, u32 valid) {
    if constexpr (kBytes == 8) ptx::cp_async_8(target, source, valid);
    if constexpr (kBytes == 4) ptx::cp_async_4(target, source, valid);
}

/// Copies kRows rows of kPanels * 128 bytes of an array, from (row, column) on, to a slot in the
/// 128-byte swizzle, by the 128 threads of a warpgroup, kBytes at a time; elements outside are
/// zero. The array's rows are `stride` elements apart; they and `column` are aligned to kBytes.
template <int kRows, int kPanels, int kBytes, class S>
TW_DEVICE void copy_box(u32 slot, const S* data, i64 stride, i64 row, i64 rows, i64 column,
                        i64 columns) {
    constexpr int kPieces = 128 / kBytes, kStep = 128 / kPieces, kSize = sizeof(S);
    static_assert(kRows % kStep == 0, "threads have whole rows");
    const u32 thread = threadIdx.x % 128, first = thread / kPieces;
    const u32 in_row = thread % kPieces * kBytes;
    const i64 row_bytes = stride * kSize;
    const u8* from =
        reinterpret_cast<const u8*>(data) + (row + first) * row_bytes + column * kSize + in_row;
    const bool inside = row >= 0 && row + kRows <= rows && column >= 0 &&
                        column + kPanels * (128 / kSize) <= columns;
    const u32 to = slot + first * 128;
    const auto swizzled = [&](int i) { return in_row ^ ((first + i * kStep) % 8 << 4); };
    if (inside) {
        // Each scheduler has only one warp that copies: the unrolled loop hides latencies.
        _Pragma("unroll 4") for (int i = 0; i < kRows / kStep; ++i) {
            TW_UNROLL
            for (int p = 0; p < kPanels; ++p) {
                copy_piece<kBytes>(to + i * kStep * 128 + swizzled(i) + p * kRows * 128,
                                   from + i * kStep * row_bytes + p * 128, kBytes);
            }
        }
        return;
    }
    TW_ROLLED for (int i = 0; i < kRows / kStep; ++i) {
        const bool has_row = is_inside(row + first + i * kStep, rows);
        TW_ROLLED for (int p = 0; p < kPanels; ++p) {
            const i64 begin = column * kSize + in_row + p * 128;
            const i64 left = has_row && begin >= 0 ? columns * kSize - begin : 0;
            const i64 valid = left < 0 ? 0 : left > kBytes ? kBytes : left;
            copy_piece<kBytes>(to + i * kStep * 128 + swizzled(i) + p * kRows * 128,
                               from + i * kStep * row_bytes + p * 128, static_cast<u32>(valid));
        }
    }
}

/// Ends this thread's copies to slot n; those to the slot kLag before are complete, and the tensor
/// cores may read them. `open` slots, at most kLag, still have copies under way.
template <int kLag, int kCount>
TW_DEVICE void publish_copies(u32 full, const Slot<kCount>& n, u32& open) {
    static_assert(kLag < kCount, "a slot is published before it is used again");
    ptx::cp_async_commit();
    if (open < kLag) {
        ++open;
        return;
    }
    ptx::cp_async_wait<kLag>();
    ptx::fence_async_shared();
    ptx::mbarrier_arrive(full + 8 * n.back(kLag));
}

/// The same for all open slots before n.
template <int kCount>
TW_DEVICE void finish_copies(u32 full, const Slot<kCount>& n, u32 open) {
    ptx::cp_async_wait<0>();
    ptx::fence_async_shared();
    for (; open > 0; --open) ptx::mbarrier_arrive(full + 8 * n.back(open));
}

/// x <- a logistic(f x) + b. The function's error is below 2^-20: a polynomial where all of the
/// warp's arguments are small, else exponentials, of which four share a reciprocal. They stop at
/// 2^30, so that the product of four denominators is finite; NaN of one does not reach the others.
template <int kCount>
TW_DEVICE void soft_cap(float (&x)[kCount], float f, float a, float b) {
    static_assert(kCount % 4 == 0, "four at once");
    constexpr float kSmall = 1.2f;
    float most[4] = {};
    TW_UNROLL
    for (int i = 0; i < kCount; ++i) most[i % 4] = ::fmaxf(most[i % 4], ::fabsf(x[i]));
    const float largest = ::fmaxf(::fmaxf(most[0], most[1]), ::fmaxf(most[2], most[3]));
    if (__all_sync(~0u, largest * ::fabsf(f) <= kSmall)) {
        // logistic(y) = 1/2 + tanh(y/2) / 2; the best odd polynomial of degree 7 up to |y/2| = 0.6.
        const float h = f / 2, g = h * h, c = a / 2 * h;
        TW_UNROLL
        for (int i = 0; i < kCount; ++i) {
            const float y = x[i] * x[i];
            float p = ::fmaf(y, c * g * g * g * -0.03961128f, c * g * g * 0.12974554f);
            p = ::fmaf(::fmaf(p, y, c * g * -0.33298974f), y, c * 0.99999102f);
            x[i] = ::fmaf(p, x[i], a / 2 + b);
        }
        return;
    }
    TW_UNROLL
    for (int i = 0; i < kCount; i += 4) {
        float whole[4], d[4];
        TW_UNROLL
        for (int j = 0; j < 4; ++j) {
            whole[j] = 1.0f + ptx::exp2_approx(x[i + j] * (f * -1.4426950408889634f));
            d[j] = ::fminf(whole[j], 1073741824.0f);
        }
        const float first = d[0] * d[1], second = d[2] * d[3];
        const float inverse = ptx::reciprocal_approx(first * second);
        const float of_first = inverse * second, of_second = inverse * first;
        const float l[4] = {of_first * d[1], of_first * d[0], of_second * d[3], of_second * d[2]};
        TW_UNROLL
        for (int j = 0; j < 4; ++j) {
            x[i + j] = ::fmaf(ptx::min_nan(l[j], whole[j]), a, b);
        }
    }
}

/// Two neighbouring elements of an array that is aligned to 16 bytes; elements outside load as 0
/// and are not stored.
template <class S>
TW_DEVICE void load_pair(const S* data, i64 at, bool first, bool second, Register<S>& a,
                         Register<S>& b) {
    if (first && second && at % 2 == 0) {
        load_vector(data + at, a, b);
    } else {
        a = first ? widen(data[at]) : Register<S>{};
        b = second ? widen(data[at + 1]) : Register<S>{};
    }
}
template <class S>
TW_DEVICE void store_pair(S* data, i64 at, bool first, bool second, Register<S> a, Register<S> b) {
    if (first && second && at % 2 == 0) {
        store_vector(data + at, a, b);
    } else {
        if (first) data[at] = narrow(S{}, a);
        if (second) data[at + 1] = narrow(S{}, b);
    }
}

/// Two neighbouring elements are added to an array that is aligned to 16 bytes.
template <class S>
TW_DEVICE void add_pair(S* data, i64 at, bool first, bool second, Register<S> a, Register<S> b) {
    if constexpr (ops::kSame<S, float>) {
        if (first && second && at % 2 == 0) return ptx::reduce_add_pair(data + at, a, b);
    }
    if (first) atomic_add(data + at, a);
    if (second) atomic_add(data + at + 1, b);
}

/// A left operand of tf32 products, 64 rows for the warpgroup: columns of a tile of 4-byte
/// elements, whose rows lie along the inner dimension, in the swizzle of 128 bytes. Neighbouring
/// columns are rows that one thread has; the 16 threads that read at once, four of the tile's rows
/// and columns whose bits 1 and 4 differ, meet no other in a bank. The sums' rows are the columns
/// in this order.
template <int kCount>
TW_DEVICE void read_fragments(u32 (&a)[kCount], u32 tile) {
    constexpr int kSteps = kCount / 4, kStepBytes = 8 * 128;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane % 4;
    const u32 piece = lane / 16 + warp % 2 * 2 + lane / 8 % 2 * 4;  // of 16 bytes
    const u32 first = tile + warp / 2 * (kSteps * kStepBytes) + row * 128 + ((piece ^ row) << 4) +
                      lane / 4 % 2 * 8;
    const u32 second = (first ^ 64) + 4 * 128;  // four rows further on
    TW_UNROLL
    for (int i = 0; i < kSteps; ++i) {
        ptx::load_fragment_pair(a[4 * i], a[4 * i + 1], first + i * kStepBytes);
        ptx::load_fragment_pair(a[4 * i + 2], a[4 * i + 3], second + i * kStepBytes);
    }
}

/// One row of panels of 64 16-bit columns in the swizzle of 128 bytes: accumulators of a
/// warpgroup's 64 rows, rounded, two panels of memory in turn at `panels`.
template <class Element, int kCount>
TW_DEVICE void store_panel(Element element, u32 panels, u32 slot, const float (&x)[kCount]) {
    static_assert(kCount >= 32, "a panel is 32 registers");
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 place =
        panels + slot * 8192 + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    u32 words[16];
    TW_UNROLL
    for (int i = 0; i < 16; ++i) words[i] = ptx::pack(element, x[2 * i], x[2 * i + 1]);
    TW_UNROLL
    for (int j = 0; j < 4; ++j) {
        const u32 four[4] = {words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]};
        ptx::stmatrix(place ^ 32 * j, four);
    }
}

/// A panel of 64 16-bit columns of a warpgroup's 64 rows, in the swizzle of 128 bytes, as
/// accumulators hold it.
template <class Element>
TW_DEVICE void load_panel(Element element, u32 panel, float (&x)[32]) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 place = panel + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    u32 words[16];
    TW_UNROLL
    for (int j = 0; j < 4; ++j) {
        ptx::ldmatrix(words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3],
                      place ^ 32 * j);
    }
    TW_UNROLL
    for (int i = 0; i < 16; ++i) {
        x[2 * i] = ptx::low(element, words[i]);
        x[2 * i + 1] = ptx::high(element, words[i]);
    }
}

}  // namespace twd
