// Vector kernels for accesses by indices.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_indices.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector_indices.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd/vector_lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Indices = hn::ScalableTag<std::int32_t>;
using Bounds = hn::ScalableTag<std::uint32_t>;
using Floats = hn::ScalableTag<float>;
constexpr std::int64_t kIndices = hn::MaxLanes(Indices());

bool all_inside(const std::int32_t* indices, std::int64_t count, std::uint32_t extent) {
    const Bounds d;
    const auto bound = hn::Set(d, extent);
    const auto* const at = reinterpret_cast<const std::uint32_t*>(indices);
    auto inside = hn::MaskFromVec(hn::Set(d, ~std::uint32_t{0}));
    std::int64_t i = 0;
    for (; i + kIndices <= count; i += kIndices)
        inside = hn::And(inside, hn::Lt(hn::LoadU(d, at + i), bound));
    bool all = hn::AllTrue(d, inside);
    for (; i < count; ++i) all &= at[i] < extent;
    return all;
}

/// The table's elements at the first `n` indices from `at` on; 0 in the lanes after them.
template <class D>
HWY_INLINE hn::Vec<D> elements(D d, const TableRows& rows, const std::int32_t* at,
                               hn::Vec<Bounds> bound, std::int64_t n,
                               const hn::TFromD<D>* missing) {
    using T = hn::TFromD<D>;
    const auto* const table = static_cast<const T*>(rows.table);
    if (n == kIndices) {
        const auto index = hn::LoadU(Indices(), at);
        if (HWY_LIKELY(hn::AllTrue(Bounds(), hn::Lt(hn::BitCast(Bounds(), index), bound))))
            return hn::GatherIndex(d, table, index);
    }
    HWY_ALIGN T lanes[kIndices] = {};
    for (std::int64_t i = 0; i < n; ++i) {
        const bool inside = static_cast<std::uint32_t>(at[i]) < rows.extent;
        lanes[i] = inside ? table[at[i]] : missing[i * rows.missing_lane_stride];
    }
    return hn::Load(d, lanes);
}

void gather(const TableRows& rows) {
    const Indices d;
    const auto bound = hn::Set(Bounds(), rows.extent);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
        const std::int32_t* const at = rows.indices + r * rows.index_row_stride;
        const auto* const missing =
            static_cast<const std::int32_t*>(rows.missing) + r * rows.missing_row_stride;
        auto* const out = static_cast<std::int32_t*>(rows.out) + r * rows.out_row_stride;
        for (std::int64_t l = 0; l < rows.lanes; l += kIndices) {
            const std::int64_t n = std::min(kIndices, rows.lanes - l);
            const auto v =
                elements(d, rows, at + l, bound, n, missing + l * rows.missing_lane_stride);
            store_first(v, d, out + l, static_cast<std::size_t>(n));
        }
    }
}

void dot(const TableRows& rows) {
    const Floats d;
    const auto bound = hn::Set(Bounds(), rows.extent);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
        const std::int32_t* const at = rows.indices + r * rows.index_row_stride;
        const auto* const missing =
            static_cast<const float*>(rows.missing) + r * rows.missing_row_stride;
        const float* const factor = rows.factor + r * rows.factor_row_stride;
        auto sum = hn::Zero(d);
        std::int64_t l = 0;
        for (; l + kIndices <= rows.lanes; l += kIndices) {
            const auto v =
                elements(d, rows, at + l, bound, kIndices, missing + l * rows.missing_lane_stride);
            sum = hn::MulAdd(v, hn::LoadU(d, factor + l), sum);
        }
        if (l < rows.lanes) {
            const std::int64_t n = rows.lanes - l;
            const auto v =
                elements(d, rows, at + l, bound, n, missing + l * rows.missing_lane_stride);
            sum = hn::MulAdd(v, load_first(d, factor + l, static_cast<std::size_t>(n)), sum);
        }
        static_cast<float*>(rows.out)[r * rows.out_row_stride] =
            hn::GetLane(hn::SumOfLanes(d, sum));
    }
}

/// Vectors of at most 32 bytes: from caches other than the first, AMD's processors load rows in
/// them faster than in longer ones.
template <typename T>
using Short = hn::CappedTag<T, 32 / sizeof(T)>;
constexpr std::int64_t kLine = 64;

void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes, const std::byte* next,
              bool streams) {
    const Short<std::uint8_t> d;
    constexpr auto kBytes = static_cast<std::int64_t>(hn::MaxLanes(d));
    auto* const out = reinterpret_cast<std::uint8_t*>(to);
    const auto* const in = reinterpret_cast<const std::uint8_t*>(from);
    std::int64_t at = 0;
    if (streams) {
        const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) %
                                                          static_cast<std::uintptr_t>(kLine));
        at = misaligned == 0 ? 0 : std::min(kLine - misaligned, bytes);
        if (at > 0) std::memcpy(to, from, static_cast<std::size_t>(at));
        for (; at + kLine <= bytes; at += kLine) {
            hwy::Prefetch(next + at);
            for (std::int64_t i = at; i < at + kLine; i += kBytes)
                hn::Stream(hn::LoadU(d, in + i), d, out + i);
        }
    }
    for (; at + kLine <= bytes; at += kLine) {
        hwy::Prefetch(next + at);
        for (std::int64_t i = at; i < at + kLine; i += kBytes)
            hn::StoreU(hn::LoadU(d, in + i), d, out + i);
    }
    if (at < bytes) {
        hwy::Prefetch(next + at);
        std::memcpy(to + at, from + at, static_cast<std::size_t>(bytes - at));
    }
}

void add_row(float* to, const float* from, std::int64_t count, const float* next) {
    const Short<float> d;
    constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
    constexpr std::int64_t kInLine = kLine / static_cast<std::int64_t>(sizeof(float));
    std::int64_t at = 0;
    for (; at + kInLine <= count; at += kInLine) {
        hwy::Prefetch(next + at);
        for (std::int64_t i = at; i < at + kInLine; i += kLanes)
            hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
    }
    if (at < count) hwy::Prefetch(next + at);
    for (; at < count; ++at) to[at] += from[at];
}

std::size_t choose(const ChosenIndices& from, std::uint32_t* places) {
    const Bounds d;
    const auto extent = hn::Set(d, from.extent), sets = hn::Set(d, from.sets),
               one = hn::Set(d, std::uint32_t{1}), last = hn::Set(d, std::uint32_t{31});
    const auto* const at = reinterpret_cast<const std::uint32_t*>(from.indices);
    std::size_t n = 0;
    std::int64_t i = 0;
    for (; i + kIndices <= from.count; i += kIndices) {
        const auto index = hn::LoadU(d, at + i);
        const auto set = hn::Shl(one, hn::And(hn::ShiftRightSame(index, from.shift), last));
        const auto chosen = hn::And(hn::Lt(index, extent), hn::Ne(hn::And(set, sets), hn::Zero(d)));
        // Not CompressStore, which is slow on AMD's processors.
        hn::StoreU(hn::Compress(hn::Iota(d, static_cast<std::uint32_t>(i)), chosen), d, places + n);
        n += hn::CountTrue(d, chosen);
    }
    for (; i < from.count; ++i) {
        places[n] = static_cast<std::uint32_t>(i);
        n += at[i] < from.extent ? from.sets >> (at[i] >> from.shift) % 32 & 1 : 0;
    }
    return n;
}

constexpr IndexKernels kKernels = {all_inside, gather, dot, copy_row, add_row, choose};

}  // namespace

const IndexKernels* index_kernels_of_target() {
    return &kKernels;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

const IndexKernels* vector_index_kernels(Target target) {
    TW_RETURN_FROM_TARGET(target, index_kernels_of_target())
}

}  // namespace tilewright::cpu
#endif
