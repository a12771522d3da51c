// Trees of minima and maxima over arrays.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ir/evaluate.h"
#include "ir/passes/intervals.h"
#include "ir/passes/range_ops.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::ir {
namespace {

/// Most rows of a box that are examined one by one; more are covered by one stretch of the array.
constexpr std::int64_t kMaxRows = 256;

template <typename T>
Interval range_of(const std::byte* data, std::int64_t first, std::int64_t last) {
    const T* values = reinterpret_cast<const T*>(data);
    T low = values[first], high = values[first];
    for (std::int64_t i = first + 1; i <= last; ++i) {
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
    }
    if constexpr (std::is_same_v<T, std::uint64_t>) {
        if (high >> 63 != 0) return Interval::all(DType::u64);
    }
    return Interval::integers(static_cast<std::int64_t>(low), static_cast<std::int64_t>(high));
}

/// Element by element, for any dtype: used for floats and bool.
Interval generic_range(DType dtype, const std::byte* data, std::int64_t first, std::int64_t last) {
    Interval range;
    if (dtype == DType::boolean) {
        range = Interval::integers(1, 0);
        for (std::int64_t i = first; i <= last; ++i) {
            const std::int64_t value = data[i] != std::byte{0};
            range = Interval::integers(std::min(range.low, value), std::max(range.high, value));
        }
        return range;
    }
    range = Interval::floats(INFINITY, -INFINITY);
    for (std::int64_t i = first; i <= last; ++i) {
        const std::uint64_t bits = read_element(dtype, data + i * size_of(dtype));
        const auto value = std::bit_cast<double>(bits);
        range.nan |= std::isnan(value);
        if (value < range.float_low) range.float_low = value;
        if (value > range.float_high) range.float_high = value;
    }
    // Only NaN: there are no bounds, but a range must not be empty.
    return range.float_low > range.float_high ? Interval::all(dtype) : range;
}

Interval elements_range(DType dtype, const std::byte* data, std::int64_t first, std::int64_t last) {
    switch (dtype) {
        case DType::i8:
            return range_of<std::int8_t>(data, first, last);
        case DType::u8:
            return range_of<std::uint8_t>(data, first, last);
        case DType::i16:
            return range_of<std::int16_t>(data, first, last);
        case DType::u16:
            return range_of<std::uint16_t>(data, first, last);
        case DType::i32:
            return range_of<std::int32_t>(data, first, last);
        case DType::u32:
            return range_of<std::uint32_t>(data, first, last);
        case DType::i64:
            return range_of<std::int64_t>(data, first, last);
        case DType::u64:
            return range_of<std::uint64_t>(data, first, last);
        default:
            return generic_range(dtype, data, first, last);
    }
}

/// A dense row-major copy of a strided array.
std::shared_ptr<const void> dense_copy(DType dtype, const RefArgument& array,
                                       const std::vector<std::int64_t>& extents,
                                       std::int64_t size) {
    const std::size_t element = size_of(dtype);
    std::shared_ptr<std::byte[]> copy(new std::byte[static_cast<std::size_t>(size) * element]);
    std::vector<std::int64_t> index(extents.size());
    const auto* from = static_cast<const std::byte*>(array.data);
    for (std::int64_t i = 0; i < size; ++i) {
        std::int64_t offset = 0;
        for (std::size_t d = 0; d < extents.size(); ++d) offset += index[d] * array.strides[d];
        std::memcpy(copy.get() + static_cast<std::size_t>(i) * element,
                    from + offset * static_cast<std::int64_t>(element), element);
        for (std::size_t d = extents.size(); d-- > 0 && ++index[d] == extents[d];) index[d] = 0;
    }
    return {copy, copy.get()};
}

}  // namespace

RangeTree::RangeTree(DType dtype, const RefArgument& array, int rank) : dtype_(dtype) {
    bool dense = true;
    for (int d = rank; d-- > 0;) {
        const std::size_t dim = d;
        dense &= array.strides[dim] == size_ || array.extents[dim] == 1;
        size_ *= array.extents[dim];
        extents_.insert(extents_.begin(), array.extents[dim]);
    }
    if (!dense && size_ > 0) owner_ = dense_copy(dtype, array, extents_, size_);
    data_ = static_cast<const std::byte*>(owner_ ? owner_.get() : array.data);
    std::vector<Interval> blocks;
    for (std::int64_t first = 0; first < size_; first += kBlock) {
        blocks.push_back(elements_range(dtype_, data_, first, std::min(first + kBlock, size_) - 1));
    }
    reduce(std::move(blocks));
}

RangeTree::RangeTree(DType dtype, std::vector<std::int64_t> extents, std::vector<Interval> blocks)
    : dtype_(dtype), extents_(std::move(extents)) {
    for (const std::int64_t extent : extents_) size_ *= extent;
    TW_ASSERT(std::ssize(blocks) == ceil_div(size_, kBlock), "{} blocks of {} elements",
              blocks.size(), size_);
    reduce(std::move(blocks));
}

void RangeTree::reduce(std::vector<Interval> blocks) {
    if (blocks.empty()) return;
    while (blocks.size() > 1) {
        std::vector<Interval> above;
        for (std::size_t i = 0; i + 1 < blocks.size(); i += 2)
            above.push_back(joined(dtype_, blocks[i], blocks[i + 1]));
        if (blocks.size() % 2 != 0) above.push_back(blocks.back());
        levels_.push_back(std::move(blocks));
        blocks = std::move(above);
    }
    levels_.push_back(std::move(blocks));
}

// Elements first to last: ragged ends one by one, whole blocks from the tree, bottom up.
Interval RangeTree::elements(std::int64_t first, std::int64_t last) const {
    std::int64_t begin = ceil_div(first, kBlock), end = (last + 1) / kBlock;
    if (last + 1 == size_) end = ceil_div(size_, kBlock);  // the last block may be short
    if (data_ == nullptr) {
        begin = first / kBlock;
        end = last / kBlock + 1;
    }
    Interval range;
    bool some = false;
    const auto add = [&](const Interval& part) {
        range = some ? joined(dtype_, range, part) : part;
        some = true;
    };
    if (begin >= end) return elements_range(dtype_, data_, first, last);
    if (first < begin * kBlock) add(elements_range(dtype_, data_, first, begin * kBlock - 1));
    if (last >= end * kBlock) add(elements_range(dtype_, data_, end * kBlock, last));
    for (std::size_t level = 0; begin < end; ++level, begin /= 2, end /= 2) {
        if (begin % 2 != 0) add(levels_[level][begin++]);
        if (begin < end && end % 2 != 0) add(levels_[level][--end]);
    }
    return range;
}

Interval RangeTree::query(std::span<const std::int64_t> low,
                          std::span<const std::int64_t> high) const {
    const std::size_t rank = extents_.size();
    std::int64_t rows = 1, first = 0, last = 0;
    for (std::size_t d = 0; d < rank; ++d) {
        TW_ASSERT(0 <= low[d] && low[d] <= high[d] && high[d] < extents_[d]);
        first = first * extents_[d] + low[d];
        last = last * extents_[d] + high[d];
        if (d + 1 < rank && rows <= kMaxRows) rows *= high[d] - low[d] + 1;
    }
    if (rank < 2 || rows == 1 || rows > kMaxRows) return elements(first, last);
    // Each row by itself: the stretch between rows holds elements outside the box.
    std::vector<std::int64_t> index(low.begin(), low.end());
    Interval range;
    for (std::int64_t row = 0; row < rows; ++row) {
        std::int64_t start = 0;
        for (std::size_t d = 0; d < rank; ++d) start = start * extents_[d] + index[d];
        const Interval part = elements(start, start + high[rank - 1] - low[rank - 1]);
        range = row == 0 ? part : joined(dtype_, range, part);
        for (std::size_t d = rank - 1; d-- > 0 && ++index[d] > high[d];) index[d] = low[d];
    }
    return range;
}

}  // namespace tilewright::ir
