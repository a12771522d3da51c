// Elements between memory and registers: vectors, bounds, atomics.
#pragma once

#include "cuda/device/ptx/cp_async.cuh"
#include "cuda/device/tile/scalar.cuh"

namespace twd {

/// An array of the caller: base address, extents, and strides in elements.
template <class S, int kRank>
struct Array {
    S* data;
    i64 extent[kRank == 0 ? 1 : kRank];
    i64 stride[kRank == 0 ? 1 : kRank];
};

/// The induction variable of the next iteration, or `end` after the last one: it must not wrap.
TW_DEVICE i64 next_index(i64 at, i64 end, i64 step) {
    const u64 rest = static_cast<u64>(end) - static_cast<u64>(at);
    return at < end && rest > static_cast<u64>(step) ? at + step : end;
}

/// Which of `size` consecutive positions from `start` on lie inside an extent.
struct Window {
    int first;
    u32 count;
    TW_DEVICE bool contains(int position) const {
        return static_cast<u32>(position - first) < count;
    }
    /// The number of positions inside, from `position` on without a gap; below 1, none.
    TW_DEVICE int left(int position) const {
        return position < first ? 0 : first + static_cast<int>(count) - position;
    }
    /// The same among the next `length` positions.
    TW_DEVICE int valid(int position, int length) const {
        const int inside = ops::max(left(position), 0);
        return inside < length ? inside : length;
    }
};
TW_DEVICE Window window(i64 start, i64 extent, int size) {
    if (start <= -size || start >= extent) return {0, 0};
    const int first = start < 0 ? static_cast<int>(-start) : 0;
    const i64 rest = extent - start;
    const int last = rest < size ? static_cast<int>(rest) : size;
    return {first, static_cast<u32>(last - first)};
}

/// The number of `size` positions from `start` (not negative) on that lie within an extent.
TW_DEVICE int count_inside(i64 start, i64 extent, int size) {
    const i64 rest = extent - start;
    return rest >= size ? size : rest > 0 ? static_cast<int>(rest) : 0;
}

template <int kBytes>
struct Words;
template <>
struct Words<1> {
    using Type = u8;
};
template <>
struct Words<2> {
    using Type = u16;
};
template <>
struct Words<4> {
    using Type = u32;
};
template <>
struct Words<8> {
    using Type = uint2;
};
template <>
struct Words<16> {
    using Type = uint4;
};

/// Neighbouring elements with one access; the address is aligned to all of them.
template <class S, class... R>
TW_DEVICE void load_vector(const S* from, R&... values) {
    constexpr int kCount = sizeof...(R);
    using Word = typename Words<kCount* static_cast<int>(sizeof(S))>::Type;
    union {
        Word word;
        S elements[kCount];
    } bits;
    bits.word = *reinterpret_cast<const Word*>(from);
    int i = 0;
    ((values = widen(bits.elements[i++])), ...);
}
/// Loads the first `left` of them, or all; the others become `other`.
template <class S, class... R>
TW_DEVICE void load_vector_part(const S* from, int left, Register<S> other, R&... values) {
    if (left >= static_cast<int>(sizeof...(R))) {
        load_vector(from, values...);
    } else {
        int i = 0;
        ((values = i < left ? widen(from[i]) : other, ++i), ...);
    }
}

/// Elements in their memory form, loaded ahead of use: unpacked<S, i> widens one.
template <class S>
TW_DEVICE void load_raw(const S* from, uint4& raw) {
    raw = *reinterpret_cast<const uint4*>(from);
}
template <class S, int kIndex>
TW_DEVICE Register<S> unpacked(const uint4& raw) {
    union {
        uint4 word;
        u32 words[4];
        S elements[16 / sizeof(S)];
    } bits;
    bits.word = raw;
    // The upper element takes one instruction this way; the compiler would cut it out and shift it.
    if constexpr (ops::kSame<S, bf16> && kIndex % 2 == 1) {
        return ptx::high(Bf16{}, bits.words[kIndex / 2]);
    } else {
        return widen(bits.elements[kIndex]);
    }
}

template <class S, class... R>
TW_DEVICE void store_vector(S* to, R... values) {
    constexpr int kCount = sizeof...(R);
    using Word = typename Words<kCount* static_cast<int>(sizeof(S))>::Type;
    if constexpr ((ops::kSame<S, f16> || ops::kSame<S, bf16>)&&kCount % 2 == 0) {
        const float wide[kCount] = {values...};
        union {
            Word word;
            u32 pairs[kCount / 2];
        } bits;
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) {
            if constexpr (ops::kSame<S, f16>) {
                bits.pairs[i] = ptx::pack(F16{}, wide[2 * i], wide[2 * i + 1]);
            } else {
                bits.pairs[i] = ptx::pack(Bf16{}, wide[2 * i], wide[2 * i + 1]);
            }
        }
        *reinterpret_cast<Word*>(to) = bits.word;
    } else {
        union {
            Word word;
            S elements[kCount];
        } bits;
        int i = 0;
        ((bits.elements[i++] = narrow(S{}, values)), ...);
        *reinterpret_cast<Word*>(to) = bits.word;
    }
}
template <class S, class... R>
TW_DEVICE void store_vector_part(S* to, int left, R... values) {
    if (left >= static_cast<int>(sizeof...(R))) {
        store_vector(to, values...);
    } else {
        int i = 0;
        ((i < left ? (void)(to[i] = narrow(S{}, values)) : (void)0, ++i), ...);
    }
}

/// One element of a tile in shared memory.
template <class S>
TW_DEVICE Register<S> shared_element(const u8* memory, u32 offset) {
    return widen(*reinterpret_cast<const S*>(memory + offset));
}

/// Four bytes in shared memory as a word, the first one in the lowest place.
TW_DEVICE u32 shared_bytes(const u8* memory, u32 o0, u32 o1, u32 o2, u32 o3) {
    return memory[o0] | memory[o1] << 8 | memory[o2] << 16 | static_cast<u32>(memory[o3]) << 24;
}

/// Byte offset in a tile of rows of kRowBytes whose 16-byte pieces are permuted within groups of
/// kGroup bytes, so that eight rows of one column lie in different banks.
template <u32 kRowBytes, u32 kGroup>
TW_DEVICE u32 swizzled(u32 row, u32 byte) {
    constexpr u32 kShift = kGroup == 128 ? 0 : kGroup == 64 ? 1 : 2;
    constexpr u32 kMask = kGroup / 16 - 1;
    if constexpr (kGroup <= 16) return row * kRowBytes + byte;
    return row * kRowBytes + (byte ^ ((row >> kShift & kMask) << 4));
}

// ---- Atomics: relaxed, atomic on the whole device; they return the value before.

/// Applies f to an element, repeated until no other thread writes in between.
template <class S, class F>
TW_DEVICE Register<S> atomic_update(S* at, F f) {
    if constexpr (sizeof(S) == 8) {
        auto* word = reinterpret_cast<u64*>(at);
        u64 seen = *reinterpret_cast<volatile u64*>(word);
        while (true) {
            const S before = *reinterpret_cast<S*>(&seen);
            S after = narrow(S{}, f(widen(before)));
            const u64 found = atomicCAS(word, seen, *reinterpret_cast<u64*>(&after));
            if (found == seen) return widen(before);
            seen = found;
        }
    } else if constexpr (sizeof(S) == 4) {
        auto* word = reinterpret_cast<u32*>(at);
        u32 seen = *reinterpret_cast<volatile u32*>(word);
        while (true) {
            const S before = *reinterpret_cast<S*>(&seen);
            S after = narrow(S{}, f(widen(before)));
            const u32 found = atomicCAS(word, seen, *reinterpret_cast<u32*>(&after));
            if (found == seen) return widen(before);
            seen = found;
        }
    } else {  // half of an aligned word
        const u64 address = reinterpret_cast<u64>(at);
        auto* word = reinterpret_cast<u32*>(address & ~u64{3});
        const u32 shift = (address & 2) * 8;
        u32 seen = *reinterpret_cast<volatile u32*>(word);
        while (true) {
            const S before{static_cast<u16>(seen >> shift)};
            const S after = narrow(S{}, f(widen(before)));
            const u32 next = (seen & ~(0xffffu << shift)) | static_cast<u32>(after.bits) << shift;
            const u32 found = atomicCAS(word, seen, next);
            if (found == seen) return widen(before);
            seen = found;
        }
    }
}

template <class S>
TW_DEVICE Register<S> atomic_add(S* at, Register<S> value) {
    if constexpr (ops::kSame<S, i64>) {
        return static_cast<i64>(atomicAdd(reinterpret_cast<u64*>(at), static_cast<u64>(value)));
    } else if constexpr (sizeof(S) == 2) {
        return atomic_update(at, [&](float a) { return a + value; });
    } else {
        return atomicAdd(at, value);
    }
}
template <class S>
TW_DEVICE Register<S> atomic_max(S* at, Register<S> value) {
    if constexpr (ops::kIsFloat<S>) {
        return atomic_update(at, [&](S a) { return ops::max(a, value); });
    } else {
        return atomicMax(at, value);
    }
}
template <class S>
TW_DEVICE Register<S> atomic_min(S* at, Register<S> value) {
    if constexpr (ops::kIsFloat<S>) {
        return atomic_update(at, [&](S a) { return ops::min(a, value); });
    } else {
        return atomicMin(at, value);
    }
}
template <class S>
TW_DEVICE Register<S> atomic_xchg(S* at, Register<S> value) {
    if constexpr (sizeof(S) == 8) {
        const u64 old = atomicExch(reinterpret_cast<u64*>(at), *reinterpret_cast<u64*>(&value));
        return *reinterpret_cast<const S*>(&old);
    } else {
        const u32 old = atomicExch(reinterpret_cast<u32*>(at), *reinterpret_cast<u32*>(&value));
        return *reinterpret_cast<const S*>(&old);
    }
}
template <class S>
TW_DEVICE Register<S> atomic_cas(S* at, Register<S> expected, Register<S> desired) {
    if constexpr (sizeof(S) == 8) {
        const u64 old = atomicCAS(reinterpret_cast<u64*>(at), *reinterpret_cast<u64*>(&expected),
                                  *reinterpret_cast<u64*>(&desired));
        return *reinterpret_cast<const S*>(&old);
    } else {
        const u32 old = atomicCAS(reinterpret_cast<u32*>(at), *reinterpret_cast<u32*>(&expected),
                                  *reinterpret_cast<u32*>(&desired));
        return *reinterpret_cast<const S*>(&old);
    }
}

}  // namespace twd
