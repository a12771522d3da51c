// What kernels of the scheduled form share: slots of channels, the order of tiles, accumulators.
#pragma once

#include "cuda/device/ptx/matrix_move.cuh"
#include "cuda/device/ptx/mbarrier.cuh"
#include "cuda/device/ptx/sync.cuh"
#include "cuda/device/ptx/tma.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/tile/memory.cuh"

#define TW_UNROLL _Pragma("unroll")
#define TW_ROLLED _Pragma("unroll 1")

namespace twd {

/// The slot that a count of a channel names, and the parity of its phase.
template <int kCount>
struct Slot {
    u32 at, parity;
    TW_DEVICE void next() {
        if (++at == kCount) at = 0, parity ^= 1;
    }
    TW_DEVICE u32 before() const { return at == 0 ? kCount - 1 : at - 1; }
};

struct TilePlace {
    u32 row, column;
};

/// Tile `t` of rows x columns, where groups of kGroup rows come one after the other, column by
/// column, so that programs that run together read the same rows and few columns.
template <int kGroup>
TW_DEVICE TilePlace tile_order(u32 t, u32 rows, u32 columns) {
    const u32 first = t / (kGroup * columns) * kGroup;
    const u32 height = rows - first < kGroup ? rows - first : kGroup;
    const u32 in = t - first * columns;
    return {first + in % height, in / height};
}

template <class T, int kCount>
TW_DEVICE void set_zero(T (&x)[kCount]) {
    TW_UNROLL for (int i = 0; i < kCount; ++i) x[i] = 0;
}

/// A coordinate of TMA. What lies far outside of every array stays outside.
TW_DEVICE int coordinate(i64 at) {
    constexpr i64 kFar = 1 << 30;
    return static_cast<int>(at < -kFar ? -kFar : at > kFar ? kFar : at);
}

TW_DEVICE bool is_inside(i64 at, i64 extent) {
    return static_cast<u64>(at) < static_cast<u64>(extent);
}

/// Two neighbouring elements of an array that is aligned to 16 bytes; those that are not inside are
/// 0, and are not stored.
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

/// One row of panels of 64 16-bit columns in the swizzle of 128 bytes: accumulators of a
/// warpgroup's 64 rows, rounded, two panels of memory in turn at `panels`.
template <class Element, int kCount>
TW_DEVICE void store_panel(Element element, u32 panels, u32 slot, const float (&x)[kCount]) {
    static_assert(kCount >= 32, "a panel is 32 registers");
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 place =
        panels + slot * 8192 + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    u32 words[16];
    TW_UNROLL for (int i = 0; i < 16; ++i) words[i] = ptx::pack(element, x[2 * i], x[2 * i + 1]);
    TW_UNROLL for (int j = 0; j < 4; ++j) {
        const u32 four[4] = {words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]};
        ptx::stmatrix(place ^ 32 * j, four);
    }
}

}  // namespace twd
