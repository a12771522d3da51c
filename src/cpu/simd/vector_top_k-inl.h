// The first few elements of long lines: a list of them in order, which few elements enter.
#if defined(TILEWRIGHT_VECTOR_TOP_K_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_VECTOR_TOP_K_TOGGLE
#undef TILEWRIGHT_VECTOR_TOP_K_TOGGLE
#else
#define TILEWRIGHT_VECTOR_TOP_K_TOGGLE
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The least of the numbers that it is given, in order, in registers.
template <int kVectors>
class SortedList {
  public:
    using D = hn::ScalableTag<std::uint64_t>;
    using V = hn::Vec<D>;
    static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

    SortedList() {
        for (V& part : list_) part = hn::Set(D(), ~std::uint64_t{0});
    }

    /// Element i becomes min(i, max(i - 1, x)): those after x move on by one.
    HWY_INLINE void insert(std::uint64_t value) {
        const D d;
        const V x = hn::Set(d, value);
        const auto lane = hn::Iota(hn::RebindToSigned<D>(), kLanes - 1);
        const auto from =
            hn::IndicesFromVec(d, hn::And(lane, hn::Set(hn::RebindToSigned<D>(), kLanes - 1)));
        const auto first = hn::FirstN(d, 1);
        V before = hn::Zero(d);
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
            const V own = list_[i], rotated = hn::TableLookupLanes(own, from);
            const V moved = hn::IfThenElse(first, before, rotated);
            before = rotated;
            list_[i] = hn::Min(own, hn::Max(moved, x));
        }
    }
    HWY_INLINE void store(std::uint64_t* to) const {
        for (int i = 0; i < kVectors; ++i) hn::Store(list_[i], D(), to + i * kLanes);
    }

  private:
    V list_[kVectors];
};

/// Finds the least `count` of n keys; an element of the list is a key above its place.
class FirstFew {
  public:
    static constexpr std::size_t kMost = 16, kLeastLength = 128;
    using D = hn::ScalableTag<std::uint32_t>;
    using V = hn::Vec<D>;
    static constexpr std::size_t kLanes = hn::MaxLanes(D());
    /// Elements that are looked at together. A line's keys are followed by as many others.
    static constexpr std::size_t kGroup = 4 * kLanes;

    /// Writes the list to `first`.
    static void find(std::uint32_t* keys, std::size_t n, std::size_t count, std::uint64_t* first) {
        std::fill_n(keys + n, kGroup, std::numeric_limits<std::uint32_t>::max());
        constexpr int kListLanes = SortedList<1>::kLanes;
        if (count <= kListLanes)
            scan<1>(keys, n, count, first);
        else
            scan<static_cast<int>(kMost) / std::min<int>(kListLanes, kMost)>(keys, n, count, first);
    }

  private:
    /// Vectors of the least keys: of kMost lanes and more.
    static constexpr std::size_t kRows = kLanes < 8 ? 4 : 2;

    template <int kVectors>
    static void scan(const std::uint32_t* keys, std::size_t n, std::size_t count,
                     std::uint64_t* first) {
        const D d;
        SortedList<kVectors> list;
        HWY_ALIGN std::uint64_t in_order[kVectors * SortedList<1>::kLanes];
        std::uint32_t most = limit(keys, n, count);
        std::size_t held = 0;
        for (std::size_t i = 0; i < n; i += kGroup) {
            const V low = hn::Min(hn::Min(load(keys, i, 0), load(keys, i, 1)),
                                  hn::Min(load(keys, i, 2), load(keys, i, 3)));
            if (hn::AllTrue(d, hn::Gt(low, hn::Set(d, most)))) continue;
            for (std::size_t at = i; at < i + kGroup; at += kLanes) {
                std::uint8_t bytes[8] = {};
                hn::StoreMaskBits(d, hn::Not(hn::Gt(hn::LoadU(d, keys + at), hn::Set(d, most))),
                                  bytes);
                std::uint64_t lanes = 0;
                std::memcpy(&lanes, bytes, sizeof(lanes));
                for (; lanes != 0; lanes &= lanes - 1, ++held) {
                    const std::size_t place =
                        at + static_cast<std::size_t>(std::countr_zero(lanes));
                    list.insert(std::uint64_t{keys[place]} << 32 | place);
                }
            }
            if (held < count) continue;
            // What equals the last one comes after it.
            list.store(in_order);
            const auto last = static_cast<std::uint32_t>(in_order[count - 1] >> 32);
            if (last == 0) break;
            most = std::min(most, last - 1);
        }
        list.store(in_order);
        std::copy_n(in_order, count, first);
    }
    static HWY_INLINE V load(const std::uint32_t* keys, std::size_t i, std::size_t vector) {
        return hn::LoadU(D(), keys + i + vector * kLanes);
    }

    /// A key that at least `count` elements do not exceed: that many of the least keys of some
    /// lanes are not greater.
    static std::uint32_t limit(const std::uint32_t* keys, std::size_t n, std::size_t count) {
        const D d;
        const V last = hn::Set(d, std::numeric_limits<std::uint32_t>::max());
        V least[4] = {last, last, last, last};
        for (std::size_t i = 0; i < n; i += kGroup) {
            for (std::size_t r = 0; r < 4; ++r)
                least[r % kRows] = hn::Min(least[r % kRows], load(keys, i, r));
        }
        HWY_ALIGN std::uint32_t of[kRows * kLanes];
        for (std::size_t r = 0; r < kRows; ++r) hn::Store(least[r], d, of + r * kLanes);
        V smaller[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
        for (const std::uint32_t key : of) {
            for (std::size_t r = 0; r < kRows; ++r) {
                const auto one = hn::VecFromMask(d, hn::Gt(least[r], hn::Set(d, key)));
                smaller[r] = hn::Sub(smaller[r], one);
            }
        }
        V result = hn::Zero(d);
        const V wanted = hn::Set(d, static_cast<std::uint32_t>(count));
        for (std::size_t r = 0; r < kRows; ++r) {
            const auto among = hn::Lt(smaller[r], wanted);
            result = hn::Max(result, hn::IfThenElseZero(among, least[r]));
        }
        return hn::GetLane(hn::MaxOfLanes(d, result));
    }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();
#endif
