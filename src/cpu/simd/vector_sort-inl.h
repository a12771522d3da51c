// Sorting of unsigned integers of 32 and 64 bits: quicksort whose partitions compress vectors, and
// sorting networks for what is short.
#if defined(TILEWRIGHT_VECTOR_SORT_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_VECTOR_SORT_TOGGLE
#undef TILEWRIGHT_VECTOR_SORT_TOGGLE
#else
#define TILEWRIGHT_VECTOR_SORT_TOGGLE
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sorts the elements of 16 vectors: first the columns, one for each lane, then runs of 1, 2, 4,
/// ... columns are merged.
template <typename T>
class SortNetwork {
  public:
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    static constexpr int kRows = 16;
    static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
    static constexpr std::size_t kElements = kRows * kLanes;

    /// Sorts x[0, n), n <= kElements. A vector after the end may be read.
    static void sort(T* x, std::size_t n) {
        const D d;
        const V last = hn::Set(d, std::numeric_limits<T>::max());
        V v[kRows];
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kRows; ++r) {
            const std::size_t first = r * kLanes;
            v[r] = last;
            if (first >= n) continue;
            v[r] = hn::LoadU(d, x + first);
            if (first + kLanes > n) v[r] = hn::IfThenElse(hn::FirstN(d, n - first), v[r], last);
        }
        columns(v, std::make_index_sequence<kPairs.size()>());
        if constexpr (kLanes >= 2) merge<1>(v);
        if constexpr (kLanes >= 4) merge<2>(v);
        if constexpr (kLanes >= 8) merge<4>(v);
        if constexpr (kLanes >= 16) merge<8>(v);
        HWY_ALIGN T sorted[kElements];
        transpose<kLanes / 2>(v);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            hn::Store(v[r], d, sorted + r % kLanes * kRows + r / kLanes * kLanes);
        }
        std::memcpy(x, sorted, n * sizeof(T));
    }

  private:
    static HWY_INLINE void order(V& a, V& b) {
        const V low = hn::Min(a, b);
        b = hn::Max(a, b);
        a = low;
    }

    /// Batcher's odd-even merge sort of 16 elements: pairs to be put in order.
    static constexpr auto batcher() {
        std::array<std::pair<int, int>, 63> pairs{};
        std::size_t next = 0;
        for (int p = 1; p < kRows; p *= 2) {
            for (int k = p; k >= 1; k /= 2) {
                for (int j = k % p; j + k < kRows; j += 2 * k) {
                    for (int i = j; i < j + k && i + k < kRows; ++i) {
                        if (i / (2 * p) == (i + k) / (2 * p)) pairs[next++] = {i, i + k};
                    }
                }
            }
        }
        return pairs;
    }
    static constexpr auto kPairs = batcher();

    /// Column by column: element c * 16 + r is lane c of vector r.
    template <std::size_t... i>
    static HWY_INLINE void columns(V (&v)[kRows], std::index_sequence<i...>) {
        (order(v[kPairs[i].first], v[kPairs[i].second]), ...);
    }

    /// The lane l ^ x of each.
    template <int x>
    static HWY_INLINE V swapped(V v) {
        const hn::RebindToSigned<D> di;
        const auto lane = hn::Xor(hn::Iota(di, 0), hn::Set(di, x));
        return hn::TableLookupLanes(v, hn::IndicesFromVec(D(), lane));
    }
    /// The lanes whose number has this bit.
    template <int bit>
    static HWY_INLINE hn::Mask<D> lanes_with() {
        const D d;
        return hn::Ne(hn::And(hn::Iota(d, 0), hn::Set(d, bit)), hn::Zero(d));
    }

    /// Compares with lanes `distance` away, then half as far, ...
    template <int distance>
    static HWY_INLINE void between_columns(V (&v)[kRows]) {
        const auto upper = lanes_with<distance>();
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            const V other = swapped<distance>(v[r]);
            v[r] = hn::IfThenElse(upper, hn::Max(v[r], other), hn::Min(v[r], other));
        }
        if constexpr (distance > 1) between_columns<distance / 2>(v);
    }

    /// Merges pairs of runs of `width` columns; the second of each is read from its end.
    template <int width>
    static HWY_INLINE void merge(V (&v)[kRows]) {
        const auto upper = lanes_with<width>();
#pragma GCC unroll 8
        for (int r = 0; r < kRows / 2; ++r) {
            const V a = v[r], b = v[kRows - 1 - r];
            const V from_b = swapped<2 * width - 1>(b), from_a = swapped<2 * width - 1>(a);
            v[r] = hn::IfThenElse(upper, hn::Max(a, from_b), hn::Min(a, from_b));
            v[kRows - 1 - r] = hn::IfThenElse(upper, hn::Max(b, from_a), hn::Min(b, from_a));
        }
        if constexpr (width > 1) between_columns<width / 2>(v);
#pragma GCC unroll 4
        for (int k = kRows / 2; k >= 1; k /= 2) {
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                if ((r & k) == 0) order(v[r], v[r + k]);
            }
        }
    }

    /// Transposes each block of kLanes vectors, by swapping halves, quarters, ... across the
    /// diagonal.
    template <int distance>
    static HWY_INLINE void transpose(V (&v)[kRows]) {
        if constexpr (distance > 0) {
            const auto upper = lanes_with<distance>();
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                if ((r & distance) != 0) continue;
                const V a = v[r], b = v[r + distance];
                v[r] = hn::IfThenElse(upper, swapped<distance>(b), a);
                v[r + distance] = hn::IfThenElse(upper, b, swapped<distance>(a));
            }
            transpose<distance / 2>(v);
        }
    }
};

/// Parts vectors: elements below a limit to one place, the others to another.
template <typename T>
class Splitter {
  public:
    using D = hn::ScalableTag<T>;
    using V = hn::Vec<D>;
    static constexpr std::size_t kLanes = hn::MaxLanes(D());

    explicit Splitter(T limit) : limit_(hn::Set(D(), limit)) {}

    /// Writes a vector at each place, which move on by what belongs there.
    HWY_INLINE void split(V v, T*& below, T*& others) const {
        const D d;
        const auto mask = hn::Lt(v, limit_);
        std::size_t count = 0;
        if constexpr (kLanes == 16) {
            count = hn::CountTrue(d, mask);
            hn::StoreU(hn::Compress(v, mask), d, below);
            hn::StoreU(hn::Compress(v, hn::Not(mask)), d, others);
        } else {
            // Highway's tables for these are copied to the stack at every use by GCC.
            std::uint8_t bits[8];
            hn::StoreMaskBits(d, mask, bits);
            const unsigned set = bits[0];
            count = static_cast<std::size_t>(std::popcount(set));
            hn::StoreU(hn::TableLookupLanes(v, order(kFirst[set].data())), d, below);
            hn::StoreU(hn::TableLookupLanes(v, order(kFirst[set ^ kAll].data())), d, others);
        }
        below += count;
        others += kLanes - count;
    }

  private:
    static HWY_INLINE auto order(const std::uint8_t* lanes) {
        const hn::Rebind<std::int32_t, D> d32;
        const auto narrow = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<std::uint8_t, D>(), lanes));
        if constexpr (sizeof(T) == 4) {
            return hn::IndicesFromVec(D(), narrow);
        } else {
            return hn::IndicesFromVec(D(), hn::PromoteTo(hn::RebindToSigned<D>(), narrow));
        }
    }

    static constexpr unsigned kAll = (1U << std::min<std::size_t>(kLanes, 8)) - 1;
    /// For each set of lanes these lanes, then the others.
    static constexpr auto first() {
        std::array<std::array<std::uint8_t, 8>, kAll + 1> result{};
        for (unsigned set = 0; set <= kAll; ++set) {
            std::size_t next = 0;
            for (const unsigned wanted : {1U, 0U}) {
                for (unsigned lane = 0; lane < 8 && kAll >> lane != 0; ++lane) {
                    if ((set >> lane & 1) == wanted)
                        result[set][next++] = static_cast<std::uint8_t>(lane);
                }
            }
        }
        return result;
    }
    static constexpr auto kFirst = first();

    V limit_;
};

/// Quicksort with room for as many elements beside it.
template <typename T>
class VectorSort {
  public:
    using Network = SortNetwork<T>;
    static constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());

    /// Puts the `count` smallest of x[0, n) at its front in order; the others follow in any order.
    /// A vector after x may be read; the room is for n elements and a vector.
    static void sort(T* x, std::size_t n, std::size_t count, T* room) {
        recurse(x, n, count, room, 2 * static_cast<int>(std::bit_width(n)) + 4);
    }

  private:
    static void recurse(T* x, std::size_t n, std::size_t count, T* room, int depth) {
        while (n > Network::kElements) {
            if (depth-- == 0) return std::sort(x, x + n);
            const T pivot = choose(x, n);
            std::size_t below = partition(x, n, pivot, room);
            if (below == 0) {
                // The pivot is the smallest element: those that equal it are in order.
                below = pivot == std::numeric_limits<T>::max()
                            ? n
                            : partition(x, n, static_cast<T>(pivot + 1), room);
            } else {
                recurse(x, below, std::min(count, below), room, depth);
            }
            if (count <= below) return;
            x += below;
            n -= below;
            count -= below;
        }
        n <= kInserted ? insert(x, n) : Network::sort(x, n);
    }

    static T middle(T a, T b, T c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }
    static T choose(const T* x, std::size_t n) {
        T of[9];
        const std::size_t step = n / 9;
        for (std::size_t i = 0; i < 9; ++i) of[i] = x[i * step + i * 7 % step];
        return middle(middle(of[0], of[1], of[2]), middle(of[3], of[4], of[5]),
                      middle(of[6], of[7], of[8]));
    }

    /// Moves what is below the pivot to the front; how many that are.
    static std::size_t partition(T* x, std::size_t n, T pivot, T* room) {
        const hn::ScalableTag<T> d;
        const Splitter<T> splitter(pivot);
        T *front = x, *back = room;
        std::size_t i = 0;
        for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
            // All are read first: what is written may overwrite what follows.
            const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + kLanes),
                       c = hn::LoadU(d, x + i + 2 * kLanes), e = hn::LoadU(d, x + i + 3 * kLanes);
            splitter.split(a, front, back);
            splitter.split(b, front, back);
            splitter.split(c, front, back);
            splitter.split(e, front, back);
        }
        for (; i < n; ++i) {
            const T value = x[i];
            const bool below = value < pivot;
            *front = value;
            *back = value;
            front += below;
            back += !below;
        }
        std::memcpy(front, room, static_cast<std::size_t>(back - room) * sizeof(T));
        return static_cast<std::size_t>(front - x);
    }

    static constexpr std::size_t kInserted = 12;
    static void insert(T* x, std::size_t n) {
        for (std::size_t i = 1; i < n; ++i) {
            const T value = x[i];
            std::size_t at = i;
            for (; at > 0 && value < x[at - 1]; --at) x[at] = x[at - 1];
            x[at] = value;
        }
    }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();
#endif
