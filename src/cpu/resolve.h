// Addresses and strides of the operands of strips while a program runs.
#pragma once

#include <cstring>

#include "cpu/execute.h"

namespace tilewright::cpu {

/// A StripSource with its address and strides filled in.
struct Resolved {
    // No initialisers: a chain builds a table of these each time it runs.
    std::byte* data;
    std::int64_t panel_bytes;
    std::int64_t row_bytes;  ///< from one strip to the next, per row
    std::int64_t row_stride;
    std::int64_t lane_stride;

    std::byte* at(std::int64_t panel, std::int64_t row) const {
        return data + panel * panel_bytes + row * row_bytes;
    }
};

/// Fills in `result` in place: copying it would wait for the stores to its parts.
inline void resolve_source(const Frame& frame, const StripSource& source, Resolved& result) {
    const std::int64_t element = size_of(source.dtype);
    result.data = frame.address(source.home, source.index) + source.offset * element;
    result.panel_bytes = source.panel_stride * element;
    result.row_stride = source.row_stride;
    if (source.view_row_axis >= 0) {
        result.row_stride = frame.views[source.index].stride[source.view_row_axis];
    }
    result.row_bytes = source.home == Home::strip ? 0 : result.row_stride * element;
    result.lane_stride = source.lane_stride;
}

inline Resolved resolve_source(const Frame& frame, const StripSource& source) {
    Resolved result;
    resolve_source(frame, source, result);
    return result;
}

template <typename T>
void fill_with(std::byte* data, std::int64_t count, std::uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(data + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
    }
}

/// Writes the low bits of `bits` to `count` elements.
inline void fill(std::byte* data, std::int64_t count, int element, std::uint64_t bits) {
    switch (element) {
        case 1:
            return fill_with<std::uint8_t>(data, count, bits);
        case 2:
            return fill_with<std::uint16_t>(data, count, bits);
        case 4:
            return fill_with<std::uint32_t>(data, count, bits);
        default:
            return fill_with<std::uint64_t>(data, count, bits);
    }
}

/// Blocks that steps of a fused run keep for later ones.
struct alignas(64) Temporaries {
    std::array<std::array<float, kPanelLanes>, FusedRun::kMaxTemporaries> blocks;
};

}  // namespace tilewright::cpu
