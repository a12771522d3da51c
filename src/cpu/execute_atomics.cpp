// Runs atomics.
#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "cpu/index_walker.h"
#include "cpu/simd/element.h"
#include "cpu/simd/index_kernels.h"
#include "cpu/simd/scalar_ops.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

ir::Op combining(ir::Op atomic) {
    return atomic == ir::Op::atomic_max   ? ir::Op::max
           : atomic == ir::Op::atomic_min ? ir::Op::min
                                          : ir::Op::add;
}

/// Replaces the element at `memory` by combine(old) atomically; returns the old bits.
template <typename Word, typename Combine>
std::uint64_t exchange(DType dtype, std::byte* memory, Combine&& combine) {
    std::atomic_ref<Word> word(*reinterpret_cast<Word*>(memory));
    Word old = word.load(std::memory_order_relaxed);
    while (true) {
        const std::uint64_t old_bits = ir::read_element(dtype, &old);
        Word desired = 0;
        ir::write_element(dtype, &desired, combine(old_bits));
        if (word.compare_exchange_weak(old, desired, std::memory_order_acq_rel)) return old_bits;
    }
}

template <typename Combine>
std::uint64_t exchange(DType dtype, std::byte* memory, Combine&& combine) {
    switch (size_of(dtype)) {
        case 1:
            return exchange<std::uint8_t>(dtype, memory, combine);
        case 2:
            return exchange<std::uint16_t>(dtype, memory, combine);
        case 4:
            return exchange<std::uint32_t>(dtype, memory, combine);
        default:
            return exchange<std::uint64_t>(dtype, memory, combine);
    }
}

/// The tiles of an atomic, and the walk over its elements.
struct AtomicAccess {
    const Atomic& atomic;
    DType dtype;
    int element;
    ResolvedTile value, desired, mask, out;
    Walker walker;

    AtomicAccess(const Frame& frame, const Atomic& a)
        : atomic(a),
          dtype(a.access.dtype),
          element(size_of(a.access.dtype)),
          value(resolve(frame, a.value)),
          desired(resolve(frame, a.desired)),
          mask(resolve(frame, a.mask)),
          out(resolve(frame, a.out)),
          walker(frame, a.access, last_axis(a.access)) {
        walker.with(value).with(desired).with(mask).with(out);
        walker.own(frame.owned);
    }
    bool combines() const {
        return atomic.op != ir::Op::atomic_xchg && atomic.op != ir::Op::atomic_cas;
    }
    /// Only the sum, the maximum or the minimum of every element is needed.
    bool is_plain() const { return combines() && !mask.data && !out.data; }
};

/// Combines rows of the array with rows of the value by a kernel. Only where no other thread
/// accesses the array.
void combine_rows(const AtomicAccess& a, StripFunction function, const IndexKernels& kernels) {
    Strip strip;
    strip.rows = 1;
    const Run start = a.walker.run(a.value, kOrigin);
    const auto rows = a.walker.array_rows(a.element);
    if (rows && start.stride <= 1 && a.walker.has_rows(a.value)) {
        const std::int64_t value_row = a.walker.row_stride(a.value) * a.element;
        if (a.dtype == DType::f32 && a.atomic.op == ir::Op::atomic_add && start.stride == 1) {
            return rows->for_each([&](std::int64_t i, std::byte* row, const std::byte* next) {
                if (!row) return;
                kernels.add_row(reinterpret_cast<float*>(row),
                                reinterpret_cast<const float*>(start.first + i * value_row),
                                a.walker.row_length(), reinterpret_cast<const float*>(next));
            });
        }
        strip.lanes = a.walker.row_length();
        strip.in[0] = {nullptr, 0, 1};
        strip.in[1] = {nullptr, 0, start.stride};
        return rows->for_each([&](std::int64_t i, std::byte* row, const std::byte* next) {
            if (!row) return;
            constexpr std::int64_t kMostBytes = 1024, kCacheLine = 64;
            for (std::int64_t at = 0; at < std::min(rows->wanted, kMostBytes); at += kCacheLine)
                __builtin_prefetch(next + at);
            strip.in[0].data = strip.out = row;
            strip.in[1].data = start.first + i * value_row;
            function(strip);
        });
    }
    a.walker.for_each_line(a.element, [&](const Coordinates& c, std::int64_t, const Line& line) {
        const Run values = a.walker.run(a.value, c);
        if (line.lo >= line.hi) return;
        std::byte* const to = a.walker.data() + (line.offset + line.lo * line.step) * a.element;
        strip.in[0] = {to, 0, 1};
        strip.in[1] = {values.bytes_at(line.lo, a.element), 0, values.stride};
        strip.out = to;
        // One element at a time where they are not contiguous.
        const bool together = line.step == 1 && (values.stride == 0 || values.stride == 1);
        strip.lanes = together ? line.hi - line.lo : 1;
        const std::int64_t strips = together ? 1 : line.hi - line.lo;
        for (std::int64_t i = 0; i < strips; ++i) {
            std::byte* const at = to + i * line.step * a.element;
            strip.in[0].data = strip.out = at;
            strip.in[1].data = values.bytes_at(line.lo + i, a.element);
            function(strip);
        }
    });
}

/// Adds one number to elements of a small array: in four tables in turn, so that an addition seldom
/// waits for the one before it. False where the run is too short for that.
bool count_indices(std::uint32_t* to, const Walker::IndexRows& rows, std::int64_t count,
                   std::uint32_t value, const IndexKernels& kernels) {
    constexpr std::int64_t kTables = 4, kMostBins = 1024;
    const std::int64_t bins = rows.extent;
    if (rows.rows != 1 || rows.stride != 1 || bins > kMostBins || count < kTables * bins)
        return false;
    std::array<std::array<std::uint32_t, kMostBins>, kTables> tables;
    for (auto& table : tables) std::fill_n(table.begin(), bins, 0);
    const auto extent = static_cast<std::uint32_t>(bins);
    // Groups are few enough indices to be in the cache when they are counted. Others are fetched
    // meanwhile: counting leaves the processor no room to look as far ahead.
    constexpr std::int64_t kGroup = 64, kInLine = 16, kAhead = 16 * kGroup;
    for (std::int64_t begin = 0; begin < count; begin += kGroup) {
        const std::int32_t* const group = rows.first + begin;
        for (std::int64_t i = 0; i < kGroup; i += kInLine) __builtin_prefetch(group + kAhead + i);
        if (count - begin < kGroup || !kernels.all_inside(group, kGroup, extent)) {
            for (std::int64_t i = 0; i < std::min(kGroup, count - begin); ++i) {
                const auto bin = static_cast<std::uint32_t>(group[i]);
                if (bin < extent) ++tables[0][bin];
            }
            continue;
        }
        for (std::int64_t i = 0; i < kGroup; i += kTables) {
            for (std::size_t t = 0; t < tables.size(); ++t)
                ++tables[t][static_cast<std::size_t>(group[i + static_cast<std::int64_t>(t)])];
        }
    }
    for (std::int64_t bin = 0; bin < bins; ++bin) {
        std::uint32_t sum = 0;
        for (const auto& table : tables) sum += table[static_cast<std::size_t>(bin)];
        to[bin] += value * sum;
    }
    return true;
}

/// Adds to the elements that this thread owns, of an array with one dimension. False where indices
/// or values do not lie in rows.
template <typename Storage>
bool add_owned(const AtomicAccess& a, Storage* to, const IndexKernels& kernels) {
    const auto rows = a.walker.index_rows();
    if (!rows || !a.walker.is_whole() || !a.walker.has_rows(a.value)) return false;
    const Run values = a.walker.run(a.value, kOrigin);
    const std::int64_t value_row = a.walker.row_stride(a.value), count = a.walker.row_length();
    const auto extent = static_cast<std::uint32_t>(
        std::min(rows->extent, std::int64_t{1} + std::numeric_limits<std::int32_t>::max()));
    constexpr std::int64_t kGroup = 256;
    std::array<std::uint32_t, kGroup + IndexKernels::kMostLanes> places;
    for (std::int64_t row = 0; row < rows->rows; ++row) {
        for (std::int64_t first = 0; first < count; first += kGroup) {
            const std::int32_t* const indices = rows->first + row * rows->row_stride + first;
            const auto* const value = reinterpret_cast<const Storage*>(values.first) +
                                      row * value_row + first * values.stride;
            const std::size_t chosen =
                kernels.choose({indices, std::min(kGroup, count - first), extent,
                                a.walker.owned().sets, a.walker.owned().shift},
                               places.data());
            const auto add = [&](std::int64_t to_stride, std::int64_t value_stride) {
                for (std::size_t j = 0; j < chosen; ++j) {
                    const std::int64_t i = places[j];
                    Storage& sum = to[indices[i] * to_stride];
                    sum = apply<ir::Op::add>(sum, value[i * value_stride]);
                }
            };
            if (rows->stride == 1 && values.stride == 1)
                add(1, 1);
            else
                add(rows->stride, values.stride);
        }
    }
    return true;
}

/// Adds to elements at arbitrary places. `alone`: no other thread accesses them.
template <DType dtype>
void add_elements(const AtomicAccess& a, bool alone, const IndexKernels& kernels) {
    using E = Element<dtype>;
    using Storage = typename E::Storage;
    auto* const to = reinterpret_cast<Storage*>(a.walker.data());
    if constexpr (dtype == DType::u32) {
        const Run values = a.walker.run(a.value, kOrigin);
        const auto rows = alone && values.stride == 0 ? a.walker.index_rows() : std::nullopt;
        if (rows && count_indices(to, *rows, a.walker.row_length(), values.at<Storage>(0), kernels))
            return;
    }
    if (!a.walker.owned().all() && add_owned(a, to, kernels)) return;
    const auto none = [](std::int64_t) {};
    a.walker.for_each([&](const Coordinates& c, std::int64_t count) {
        const Run values = a.walker.run(a.value, c);
        const auto add_all = [&](auto&& add) {
            if (values.stride == 0) {
                const Storage value = values.at<Storage>(0);
                return a.walker.each(
                    c, count, [&](std::int64_t, std::int64_t at) { add(at, value); }, none);
            }
            a.walker.each(
                c, count, [&](std::int64_t i, std::int64_t at) { add(at, values.at<Storage>(i)); },
                none);
        };
        if (alone) {
            return add_all([to](std::int64_t at, Storage value) {
                to[at] = apply<ir::Op::add>(to[at], value);
            });
        }
        add_all([to](std::int64_t at, Storage value) {
            std::atomic_ref<Storage>(to[at]).fetch_add(value, std::memory_order_relaxed);
        });
    });
}

/// The function above, for the dtypes that it is compiled for.
bool add_elements(const AtomicAccess& a, bool alone, const IndexKernels& kernels) {
    switch (a.dtype) {
        case DType::f32:
            return alone && (add_elements<DType::f32>(a, alone, kernels), true);
        case DType::f64:
            return alone && (add_elements<DType::f64>(a, alone, kernels), true);
        case DType::i32:
        case DType::u32:
            return add_elements<DType::u32>(a, alone, kernels), true;
        case DType::i64:
        case DType::u64:
            return add_elements<DType::u64>(a, alone, kernels), true;
        default:
            return false;
    }
}

void exchange_elements(const AtomicAccess& a) {
    const DType dtype = a.dtype;
    const ir::Op op = combining(a.atomic.op);
    a.walker.for_each([&](const Coordinates& c, std::int64_t count) {
        const Run values = a.walker.run(a.value, c), wanted = a.walker.run(a.desired, c),
                  allowed = a.walker.run(a.mask, c), results = a.walker.run(a.out, c);
        const auto bits = [&](const Run& run, std::int64_t i) {
            return ir::read_element(dtype, run.bytes_at(i, a.element));
        };
        const auto keep = [&](std::int64_t i, std::uint64_t old) {
            if (results.first) ir::write_element(dtype, results.bytes_at(i, a.element), old);
        };
        a.walker.each(
            c, count,
            [&](std::int64_t i, std::int64_t offset) {
                if (allowed.first && allowed.at<std::uint8_t>(i) == 0) return keep(i, 0);
                const std::uint64_t operand = bits(values, i);
                std::byte* memory = a.walker.data() + offset * a.element;
                keep(i, exchange(dtype, memory, [&](std::uint64_t before) {
                         if (a.atomic.op == ir::Op::atomic_xchg) return operand;
                         if (a.atomic.op == ir::Op::atomic_cas) {
                             return before == operand ? bits(wanted, i) : before;
                         }
                         const std::uint64_t operands[2] = {before, operand};
                         return ir::evaluate(op, dtype, dtype, operands);
                     }));
            },
            [&](std::int64_t i) { keep(i, 0); });
    });
}

}  // namespace

void execute(Frame& frame, const Atomic& atomic) {
    const AtomicAccess a(frame, atomic);
    if (a.is_plain()) {
        const StripFunction function =
            frame.program->kernels->elementwise(combining(atomic.op), a.dtype, a.dtype, false);
        const bool rows = frame.alone && a.walker.is_line() && function != nullptr;
        const IndexKernels& kernels = index_kernels(frame.program->kernels->vector_bytes);
        if (rows) return combine_rows(a, function, kernels);
        if (atomic.op == ir::Op::atomic_add && add_elements(a, frame.alone, kernels)) return;
    }
    exchange_elements(a);
}

}  // namespace tilewright::cpu
