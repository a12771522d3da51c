// Vector kernels that put lines in order: keys as unsigned integers, with places below them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_sort.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/sort_keys.h"
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_sort-inl.h"
#include "cpu/simd/vector_top_k-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

template <class Keys>
class LineSort {
  public:
    explicit LineSort(const SortLine& line)
        : line_(line),
          in_(static_cast<const Bits*>(line.in)),
          n_(static_cast<std::size_t>(line.length)),
          count_(static_cast<std::size_t>(line.count)),
          flip_(line.descending ? Keys::kLast : Key{0}) {}

    void run() {
        if (count_ == 0) return;
        if (line_.places == nullptr && count_ == n_ && sort_elements()) return;
        // The places make keys differ, and say where elements with one key stood.
        const auto bits = static_cast<int>(std::bit_width(n_ - 1));
        if constexpr (sizeof(Bits) == 8) {
            sort_halves();
        } else if (count_ <= FirstFew::kMost && n_ >= FirstFew::kLeastLength && count_ <= n_ / 8) {
            find_few();
        } else if (Keys::kWidth + bits <= 32) {
            sort_packed<std::uint32_t>(bits);
        } else {
            if (count_ <= n_ / 8 && n_ >= kFiltered)
                filter();
            else
                sort_packed<std::uint64_t>(32);
        }
    }

  private:
    using Bits = typename Keys::Bits;
    using Key = typename Keys::Key;
    static constexpr std::size_t kSlack = 64;
    static constexpr std::size_t kFiltered = 512, kChunk = 256;

    /// In the order that is wanted.
    HWY_INLINE Key key(std::size_t i) const { return Keys::key(in_[i]) ^ flip_; }
    template <typename T>
    T* work(std::size_t half) const {
        return static_cast<T*>(line_.work) + half * (n_ + kSlack);
    }

    /// Sorts the keys alone; false where that would lose which of equal elements came first.
    bool sort_elements() {
        Key* keys = work<Key>(0);
        bool only = true;
        for (std::size_t i = 0; i < n_; ++i) {
            keys[i] = key(i);
            only &= Keys::is_only(in_[i]);
        }
        if (!only) return false;
        VectorSort<Key>::sort(keys, n_, n_, work<Key>(1));
        Bits* out = static_cast<Bits*>(line_.out);
        for (std::size_t i = 0; i < n_; ++i) out[i] = Keys::element(keys[i] ^ flip_);
        return true;
    }

    template <typename T>
    void sort_packed(int bits) {
        T* packed = work<T>(0);
        for (std::size_t i = 0; i < n_; ++i) {
            packed[i] = static_cast<T>(static_cast<T>(key(i)) << bits | i);
        }
        VectorSort<T>::sort(packed, n_, count_, work<T>(1));
        write(packed, static_cast<T>((T{1} << bits) - 1));
    }

    template <typename T>
    void write(const T* packed, T mask) {
        Bits* out = static_cast<Bits*>(line_.out);
        for (std::size_t i = 0; line_.places != nullptr && i < count_; ++i) {
            line_.places[i] = static_cast<std::int32_t>(packed[i] & mask);
        }
        for (std::size_t i = 0; out != nullptr && i < count_; ++i) out[i] = in_[packed[i] & mask];
    }

    /// A handful of many.
    void find_few() {
        std::uint32_t* keys = work<std::uint32_t>(0);
        write_keys(keys);
        std::uint64_t* first = work<std::uint64_t>(1);
        FirstFew::find(keys, n_, count_, first);
        write(first, std::uint64_t{0xFFFFFFFF});
    }
    HWY_INLINE void write_keys(std::uint32_t* keys) const {
        std::size_t i = 0;
        if constexpr (sizeof(Bits) == 4) {
            const hn::ScalableTag<std::uint32_t> d;
            constexpr std::size_t kLanes = hn::MaxLanes(d);
            const auto flip = hn::Set(d, flip_);
            for (; i + kLanes <= n_; i += kLanes)
                hn::StoreU(hn::Xor(keys_of(hn::LoadU(d, in_ + i)), flip), d, keys + i);
        }
        for (; i < n_; ++i) keys[i] = static_cast<std::uint32_t>(key(i));
    }
    /// Keys::key on vectors.
    template <class V>
    static HWY_INLINE V keys_of(V x) {
        const hn::DFromV<V> d;
        const V sign = hn::Set(d, Keys::kSign);
        if constexpr (!Keys::kFloat) return Keys::kSigned ? hn::Xor(x, sign) : x;
        const V size = hn::AndNot(sign, x);
        const V ordered = hn::IfThenElse(hn::Eq(size, x), hn::Or(x, sign), hn::Sub(sign, size));
        const auto is_nan = hn::Gt(size, hn::Set(d, Keys::kMagnitude));
        return hn::IfThenElse(is_nan, hn::Set(d, Keys::kLast), ordered);
    }

    /// Few of many: of what follows only elements that come before the last of those found so far
    /// are kept, until there are too many.
    void filter() {
        using D = hn::ScalableTag<std::uint32_t>;
        constexpr std::size_t kLanes = hn::MaxLanes(D());
        std::uint64_t* kept = work<std::uint64_t>(0);
        std::uint64_t* room = work<std::uint64_t>(1);
        const std::size_t most = std::min(n_, std::max<std::size_t>(4 * count_, 128));
        HWY_ALIGN std::uint32_t keys[kChunk];
        std::size_t held = 0, i = 0;
        for (; i < most; ++i) kept[held++] = std::uint64_t{key(i)} << 32 | i;
        std::uint32_t last = select(kept, held, room);
        while (i < n_) {
            const std::size_t chunk = std::min(kChunk, n_ - i);
            for (std::size_t k = 0; k < chunk; ++k) keys[k] = key(i + k);
            std::fill(keys + chunk, keys + kChunk, std::numeric_limits<std::uint32_t>::max());
            for (std::size_t k = 0; k < chunk; k += kLanes) {
                const auto before = hn::Lt(hn::Load(D(), keys + k), hn::Set(D(), last));
                if (hn::AllFalse(D(), before)) continue;
                for (std::size_t lane = k; lane < k + kLanes; ++lane) {
                    kept[held] = std::uint64_t{keys[lane]} << 32 | (i + lane);
                    held += keys[lane] < last;
                }
                if (held + kLanes > most) last = select(kept, held, room);
            }
            i += chunk;
        }
        select(kept, held, room);
        write(kept, std::uint64_t{0xFFFFFFFF});
    }
    /// The first `count` of those held; the key of the last one.
    std::uint32_t select(std::uint64_t* kept, std::size_t& held, std::uint64_t* room) const {
        VectorSort<std::uint64_t>::sort(kept, held, count_, room);
        held = count_;
        return static_cast<std::uint32_t>(kept[count_ - 1] >> 32);
    }

    /// Keys of 64 bits: by the upper half, then what is equal by the lower half.
    void sort_halves() {
        if constexpr (sizeof(Bits) == 8) {
            using T = std::uint64_t;
            constexpr T kPlace = 0xFFFFFFFF;
            T *packed = work<T>(0), *room = work<T>(1);
            for (std::size_t i = 0; i < n_; ++i) packed[i] = (key(i) & ~kPlace) | i;
            VectorSort<T>::sort(packed, n_, count_, room);
            // What equals the last of them in its upper half may stand anywhere after them.
            const T last = packed[count_ - 1] >> 32;
            T* const end =
                std::partition(packed + count_, packed + n_, [&](T x) { return x >> 32 == last; });
            for (T* first = packed; first < packed + count_;) {
                T* next = first + 1;
                while (next < end && *next >> 32 == *first >> 32) ++next;
                if (next - first > 1) {
                    for (T* x = first; x < next; ++x) {
                        const T place = *x & kPlace;
                        *x = key(place) << 32 | place;
                    }
                    const auto length = static_cast<std::size_t>(next - first);
                    VectorSort<T>::sort(first, length, length, room);
                }
                first = next;
            }
            write(packed, kPlace);
        }
    }

    const SortLine& line_;
    const Bits* in_;
    const std::size_t n_, count_;
    const Key flip_;
};

template <class Keys>
void sort_line(const SortLine& line) {
    LineSort<Keys>(line).run();
}

SortFunction sort_function(DType dtype) {
    return with_sort_keys(dtype,
                          [](auto keys) -> SortFunction { return sort_line<decltype(keys)>; });
}

}  // namespace

SortFunction sort(DType dtype) {
    return sort_function(dtype);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

SortFunction vector_sort(Target target, DType dtype) {
    TW_RETURN_FROM_TARGET(target, sort(dtype))
}

}  // namespace tilewright::cpu
#endif
