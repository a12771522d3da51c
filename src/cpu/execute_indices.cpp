// Runs gathers, scatters and masked stores: accesses that are not plain rectangles.
#include "cpu/execute_indices.h"

#include <algorithm>
#include <array>
#include <limits>

#include "cpu/index_walker.h"
#include "cpu/simd/index_kernels.h"

namespace tilewright::cpu {
namespace {

/// The rows as kernels take them, where the array's elements are contiguous.
TableRows table_rows(const Walker& walker, const Walker::IndexRows& rows) {
    TableRows result;
    result.indices = rows.first;
    result.rows = rows.rows;
    result.lanes = walker.row_length();
    result.index_row_stride = rows.row_stride;
    result.table = walker.data();
    result.extent = static_cast<std::uint32_t>(
        std::min(rows.extent, std::int64_t{1} + std::numeric_limits<std::int32_t>::max()));
    return result;
}

/// Elements of an array with one dimension, row by row of the tile of their indices.
template <typename Word>
void gather_rows(const Walker& walker, const Walker::IndexRows& rows, const Word* from,
                 const ResolvedTile& out, const ResolvedTile& rest) {
    const Run to = walker.run(out, kOrigin), missing = walker.run(rest, kOrigin);
    const std::int64_t count = walker.row_length(), out_stride = walker.row_stride(out),
                       rest_stride = walker.row_stride(rest);
    const auto extent = static_cast<std::uint64_t>(rows.extent);
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        const std::int32_t* const index = rows.first + row * rows.row_stride;
        Word* const o = reinterpret_cast<Word*>(to.first) + row * out_stride;
        const Word* const m = reinterpret_cast<const Word*>(missing.first) + row * rest_stride;
        if (all_inside(index, count, extent)) {
            if (rows.stride == 1) {
                for (std::int64_t i = 0; i < count; ++i) o[i] = from[index[i]];
            } else {
                for (std::int64_t i = 0; i < count; ++i) o[i] = from[index[i] * rows.stride];
            }
            continue;
        }
        for (std::int64_t i = 0; i < count; ++i) {
            const bool inside = static_cast<std::uint64_t>(std::int64_t{index[i]}) < extent;
            o[i] = inside ? from[index[i] * rows.stride] : m[i * missing.stride];
        }
    }
}

}  // namespace

void gather(const Frame& frame, const Access& access, const Tile& other, const ResolvedTile& out,
            bool streams) {
    const IndexKernels& kernels = index_kernels(frame.program->kernels->vector_bytes);
    static constexpr std::uint64_t kZero = 0;
    ResolvedTile rest;
    if (other.home == Home::none) {
        rest.data = reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(&kZero));
        rest.element = out.element;
    } else {
        rest = resolve(frame, other);
    }
    Walker walker(frame, access, best_axis(out, access));
    walker.with(out).with(rest);
    const int element = out.element;
    const Run start = walker.run(out, kOrigin);
    const auto rows = walker.array_rows(element);
    if (rows && start.stride == 1 && walker.has_rows(out) && walker.has_rows(rest)) {
        const Run missing = walker.run(rest, kOrigin);
        const std::int64_t count = walker.row_length(), to_row = walker.row_stride(out) * element,
                           missing_row = walker.row_stride(rest) * element;
        return rows->for_each([&](std::int64_t i, const std::byte* row, const std::byte* next) {
            std::byte* const to = start.first + i * to_row;
            if (row)
                kernels.copy_row(to, row, rows->wanted, next, streams);
            else
                copy_line(to, 1, missing.first + i * missing_row, missing.stride, count, element);
        });
    }
    if (walker.is_line()) {
        return walker.for_each_line(element, [&](const Coordinates& c, std::int64_t count,
                                                 const Line& line) {
            const Run to = walker.run(out, c), missing = walker.run(rest, c);
            const auto copy = [&](std::int64_t lo, std::int64_t hi, const std::byte* from,
                                  std::int64_t step) {
                if (lo < hi)
                    copy_line(to.bytes_at(lo, element), to.stride, from, step, hi - lo, element);
            };
            copy(0, line.lo, missing.first, missing.stride);
            copy(line.lo, line.hi, walker.data() + (line.offset + line.lo * line.step) * element,
                 line.step);
            copy(line.hi, count, missing.bytes_at(line.hi, element), missing.stride);
        });
    }
    with_word(element, [&](auto word) {
        using Word = decltype(word);
        const auto* from = reinterpret_cast<const Word*>(walker.data());
        if (const auto by = walker.index_rows(); by && walker.has_rows(out) &&
                                                 walker.has_rows(rest) &&
                                                 walker.run(out, kOrigin).stride == 1) {
            if (element == 4 && by->stride == 1) {
                const Run missing = walker.run(rest, kOrigin);
                TableRows table = table_rows(walker, *by);
                table.missing = missing.first;
                table.missing_row_stride = walker.row_stride(rest);
                table.missing_lane_stride = missing.stride;
                table.out = walker.run(out, kOrigin).first;
                table.out_row_stride = walker.row_stride(out);
                return kernels.gather(table);
            }
            return gather_rows(walker, *by, from, out, rest);
        }
        walker.for_each([&](const Coordinates& c, std::int64_t count) {
            const Run to = walker.run(out, c), missing = walker.run(rest, c);
            const auto copy = [&](auto&& place) {
                walker.each(
                    c, count, [&](std::int64_t i, std::int64_t offset) { place(i) = from[offset]; },
                    [&](std::int64_t i) { place(i) = missing.at<Word>(i); });
            };
            if (to.stride == 1) {
                auto* const p = reinterpret_cast<Word*>(to.first);
                copy([p](std::int64_t i) -> Word& { return p[i]; });
            } else {
                copy([&](std::int64_t i) -> Word& { return to.at<Word>(i); });
            }
        });
    });
}

void sum_gathered(const Frame& frame, const Load& load) {
    static constexpr float kZero = 0;
    constexpr int kLaneAxis = 1;
    const auto data = [&](const StripSource& source) {
        return reinterpret_cast<float*>(frame.address(source.home, source.index)) + source.offset;
    };
    const auto row_stride = [&](const StripSource& source) {
        if (source.view_row_axis < 0) return source.row_stride;
        return frame.views[source.index].stride[source.view_row_axis];
    };
    const Walker walker(frame, load.access, kLaneAxis);
    const float* const factor = data(load.factor);
    float* const sum = data(load.sum);
    const std::int64_t factor_row = row_stride(load.factor), sum_row = row_stride(load.sum);
    if (const auto by = walker.index_rows(); by && by->stride == 1) {
        TableRows table = table_rows(walker, *by);
        table.missing = &kZero;
        table.factor = factor;
        table.factor_row_stride = factor_row;
        table.out = sum;
        table.out_row_stride = sum_row;
        return index_kernels(frame.program->kernels->vector_bytes).dot(table);
    }
    for (std::int64_t row = 0; row < load.access.shape[0]; ++row) sum[row * sum_row] = 0;
    const auto* const from = reinterpret_cast<const float*>(walker.data());
    walker.for_each([&](const Coordinates& c, std::int64_t count) {
        const float* const row = factor + c[0] * factor_row + c[kLaneAxis];
        std::array<float, 8> sums{};  // in turn, so that additions seldom wait for each other
        const auto add = [&](std::int64_t i, float element) {
            sums[static_cast<std::size_t>(i) % sums.size()] += row[i] * element;
        };
        walker.each(
            c, count, [&](std::int64_t i, std::int64_t offset) { add(i, from[offset]); },
            [&](std::int64_t i) { add(i, kZero); });
        for (const float part : sums) sum[c[0] * sum_row] += part;
    });
}

void scatter(const Frame& frame, const Store& store) {
    const ResolvedTile value = resolve(frame, store.value), mask = resolve(frame, store.mask);
    const int axis =
        store.access.gathers ? last_axis(store.access) : best_axis(value, store.access);
    Walker walker(frame, store.access, axis);
    walker.with(value).with(mask);
    const int element = value.element;
    if (walker.is_line() && !mask.data) {
        return walker.for_each_line(
            element, [&](const Coordinates& c, std::int64_t, const Line& line) {
                const Run from = walker.run(value, c);
                if (line.lo >= line.hi) return;
                copy_line(walker.data() + (line.offset + line.lo * line.step) * element, line.step,
                          from.bytes_at(line.lo, element), from.stride, line.hi - line.lo, element);
            });
    }
    with_word(element, [&](auto word) {
        using Word = decltype(word);
        auto* to = reinterpret_cast<Word*>(walker.data());
        walker.for_each([&](const Coordinates& c, std::int64_t count) {
            const Run from = walker.run(value, c), allowed = walker.run(mask, c);
            walker.each(
                c, count,
                [&](std::int64_t i, std::int64_t offset) {
                    if (allowed.first && allowed.at<std::uint8_t>(i) == 0) return;
                    to[offset] = from.at<Word>(i);
                },
                [](std::int64_t) {});
        });
    });
}

}  // namespace tilewright::cpu
