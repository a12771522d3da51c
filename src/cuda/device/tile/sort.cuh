// Sorting of lines in shared memory by a bitonic network of all threads of the block.
//
// What is sorted are words: the key of an element, an unsigned integer in the order of elements,
// with its place below it, so that equal elements keep their order.
#pragma once

#include "cuda/device/tile/scalar.cuh"

namespace twd::sorting {

/// A key of 64 bits leaves no room for the place.
struct alignas(16) Wide {
    u64 key;
    u64 low;
};
TW_DEVICE bool comes_before(u32 a, u32 b) {
    return a < b;
}
TW_DEVICE bool comes_before(u64 a, u64 b) {
    return a < b;
}
TW_DEVICE bool comes_before(const Wide& a, const Wide& b) {
    return a.key != b.key ? a.key < b.key : a.low < b.low;
}

// ---- Keys: equal for zeros of both signs; every NaN comes last.

constexpr u32 kSign = 0x80000000u;
constexpr u64 kSign64 = u64{1} << 63;

TW_DEVICE u32 key_of(float x) {
    const u32 bits = __float_as_uint(x), size = bits & ~kSign;
    if (size > 0x7f800000u) return ~0u;
    return (bits & kSign) != 0 ? kSign - size : bits | kSign;
}
TW_DEVICE u64 key_of(double x) {
    const u64 bits = static_cast<u64>(__double_as_longlong(x)), size = bits & ~kSign64;
    if (size > 0x7ff0000000000000ull) return ~u64{0};
    return (bits & kSign64) != 0 ? kSign64 - size : bits | kSign64;
}
TW_DEVICE u64 key_of(i64 x) {
    return static_cast<u64>(x) ^ kSign64;
}
TW_DEVICE u64 key_of(u64 x) {
    return x;
}
template <class X>
TW_DEVICE u32 key_of(X x) {
    if constexpr (X(-1) < X(0)) return static_cast<u32>(static_cast<int>(x)) ^ kSign;
    return static_cast<u32>(x);
}

template <class X>
struct Element {
    template <class Key>
    static TW_DEVICE X of(Key key, bool) {
        if constexpr (X(-1) < X(0)) return static_cast<X>(key ^ (Key(1) << (8 * sizeof(Key) - 1)));
        return static_cast<X>(key);
    }
    static TW_DEVICE bool is_negative_zero(X) { return false; }
};
template <>
struct Element<float> {
    static TW_DEVICE float of(u32 key, bool negative_zero) {
        if (negative_zero) return -0.0f;
        return __uint_as_float(key == ~0u     ? 0x7fffffffu
                               : key >= kSign ? key & ~kSign
                                              : (kSign - key) | kSign);
    }
    static TW_DEVICE bool is_negative_zero(float x) { return __float_as_uint(x) == kSign; }
};
template <>
struct Element<double> {
    static TW_DEVICE double of(u64 key, bool negative_zero) {
        if (negative_zero) return -0.0;
        return __longlong_as_double(
            static_cast<long long>(key >= kSign64 ? key & ~kSign64 : (kSign64 - key) | kSign64));
    }
    static TW_DEVICE bool is_negative_zero(double x) {
        return static_cast<u64>(__double_as_longlong(x)) == kSign64;
    }
};

// ---- Words. The lowest bit says that the element is a negative zero.

template <class Word>
struct Words;
template <>
struct Words<u32> {
    static TW_DEVICE u32 make(u32 key, u32) { return key; }
    static TW_DEVICE u32 key(u32 word) { return word; }
    static TW_DEVICE u32 low(u32) { return 0; }
};
template <>
struct Words<u64> {
    static TW_DEVICE u64 make(u32 key, u32 low) { return static_cast<u64>(key) << 32 | low; }
    static TW_DEVICE u32 key(u64 word) { return static_cast<u32>(word >> 32); }
    static TW_DEVICE u32 low(u64 word) { return static_cast<u32>(word); }
};
template <>
struct Words<Wide> {
    static TW_DEVICE Wide make(u64 key, u32 low) { return {key, low}; }
    static TW_DEVICE u64 key(const Wide& word) { return word.key; }
    static TW_DEVICE u32 low(const Wide& word) { return static_cast<u32>(word.low); }
};

template <class Word, bool descending, class X>
TW_DEVICE Word word_of(X x, int place) {
    const auto key = key_of(x);
    return Words<Word>::make(descending ? ~key : key,
                             static_cast<u32>(place) << 1 | Element<X>::is_negative_zero(x));
}
/// After every element.
template <class Word>
TW_DEVICE Word last_word() {
    return Words<Word>::make(static_cast<decltype(Words<Word>::key(Word()))>(~u64{0}), ~0u);
}
template <class X, bool descending, class Word>
TW_DEVICE X element_of(const Word& word) {
    const auto key = Words<Word>::key(word);
    return Element<X>::of(static_cast<decltype(key)>(descending ? ~key : key),
                          (Words<Word>::low(word) & 1) != 0);
}
template <class Word>
TW_DEVICE i32 place_of(const Word& word) {
    return static_cast<i32>(Words<Word>::low(word) >> 1);
}

// ---- The network.

/// Where a word lies: neighbours of one thread and the same ones of all threads meet few bank
/// conflicts.
template <class Word>
TW_DEVICE int slot(int index) {
    constexpr int kBits = sizeof(Word) == 4 ? 5 : sizeof(Word) == 8 ? 4 : 3;
    return index ^ ((index >> kBits) & ((1 << kBits) - 1));
}

template <class Word>
TW_DEVICE void order(Word& a, Word& b, bool ascending) {
    if (comes_before(b, a) == ascending) {
        const Word kept = a;
        a = b;
        b = kept;
    }
}

/// Orders a bitonic sequence.
template <int kGroup, class Word>
TW_DEVICE void merge(Word (&held)[kGroup], bool ascending) {
#pragma unroll
    for (int distance = kGroup / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            if ((i & distance) == 0) order(held[i], held[i + distance], ascending);
        }
    }
}

/// Compares words `stride`, `stride` / 2, ... apart, kBits distances, in lines of kLength words.
/// Runs of `size` words alternate in direction.
template <int kBits, int kLength, int kTotal, int kThreads, class Word>
TW_DEVICE void compare(Word* words, int size, int stride) {
    constexpr int kGroup = 1 << kBits;
    const int least = stride >> (kBits - 1);
    for (int group = static_cast<int>(threadIdx.x); group < kTotal / kGroup; group += kThreads) {
        const int first = (group & -least) << kBits | (group & (least - 1));
        const bool ascending = (first & (kLength - 1) & size) == 0;
        Word held[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) held[i] = words[slot<Word>(first + i * least)];
        merge(held, ascending);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) words[slot<Word>(first + i * least)] = held[i];
    }
    __syncthreads();
}

/// Runs of 8 words in order, alternately up and down.
template <int kLength, int kTotal, int kThreads, class Word>
TW_DEVICE void order_runs_of_8(Word* words) {
    for (int group = static_cast<int>(threadIdx.x); group < kTotal / 8; group += kThreads) {
        const int first = group * 8;
        Word held[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) held[i] = words[slot<Word>(first + i)];
#pragma unroll
        for (int size = 2; size <= 8; size *= 2) {
#pragma unroll
            for (int distance = size / 2; distance > 0; distance /= 2) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if ((i & distance) != 0) continue;
                    order(held[i], held[i + distance], ((first + i) & (kLength - 1) & size) == 0);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) words[slot<Word>(first + i)] = held[i];
    }
    __syncthreads();
}

/// Sorts each kRun words of lines of kLength, powers of two, kTotal in all, alternately up and down
/// where a line has several runs. To be called by all threads of the block after a barrier; ends
/// with one.
template <int kRun, int kLength, int kTotal, int kThreads, class Word>
TW_DEVICE void sort_runs(Word* words) {
    if constexpr (kLength >= 8) order_runs_of_8<kLength, kTotal, kThreads>(words);
    for (int size = kLength >= 8 ? 16 : 2; size <= kRun; size *= 2) {
        int stride = size / 2;
        for (; stride >= 4; stride /= 8) {
            compare<3, kLength, kTotal, kThreads>(words, size, stride);
        }
        if (stride == 2) compare<2, kLength, kTotal, kThreads>(words, size, stride);
        if (stride == 1) compare<1, kLength, kTotal, kThreads>(words, size, stride);
    }
}

/// Compares words as `compare` does, in the runs of kKept words that are left after `level` rounds
/// of `keep_first`: every 2^level-th run of a line. With kHalve, these are first made of pairs of
/// runs: of a run that ascends and one that descends, the lesser of the words at each place are the
/// first kKept words of both, and a bitonic sequence.
template <int kBits, bool kHalve, int kKept, int kLength, int kTotal, int kThreads, class Word>
TW_DEVICE void compare_kept(Word* words, int level, int stride) {
    constexpr int kGroup = 1 << kBits;
    const int least = stride >> (kBits - 1);
    for (int group = static_cast<int>(threadIdx.x); group < (kTotal >> level) / kGroup;
         group += kThreads) {
        const int first = (group & -least) << kBits | (group & (least - 1));
        const bool ascending = (first & ((kLength >> level) - 1) & kKept) == 0;
        const int at = (first & -kKept) << level | (first & (kKept - 1));
        Word held[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            held[i] = words[slot<Word>(at + i * least)];
            if constexpr (kHalve) {
                const Word other = words[slot<Word>(at + (kKept << (level - 1)) + i * least)];
                if (comes_before(other, held[i])) held[i] = other;
            }
        }
        merge(held, ascending);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) words[slot<Word>(at + i * least)] = held[i];
    }
    __syncthreads();
}

/// Sorts the first kKept words (8 or a larger power of two) of each line to its beginning; the
/// others are lost. Half the runs of a line are left after each round. (Shanbhag, Pirk and Madden,
/// "Efficient Top-K Query Processing on Massively Parallel Hardware", 2018.)
template <int kKept, int kLength, int kTotal, int kThreads, class Word>
TW_DEVICE void keep_first(Word* words) {
    sort_runs<kKept, kLength, kTotal, kThreads>(words);
    for (int level = 1; kKept << level <= kLength; ++level) {
        int stride = kKept / 2;
        compare_kept<3, true, kKept, kLength, kTotal, kThreads>(words, level, stride);
        for (stride /= 8; stride >= 4; stride /= 8) {
            compare_kept<3, false, kKept, kLength, kTotal, kThreads>(words, level, stride);
        }
        if (stride == 2) {
            compare_kept<2, false, kKept, kLength, kTotal, kThreads>(words, level, stride);
        }
        if (stride == 1) {
            compare_kept<1, false, kKept, kLength, kTotal, kThreads>(words, level, stride);
        }
    }
}

}  // namespace twd::sorting
