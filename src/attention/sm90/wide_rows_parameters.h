// What the kernel that widens rows gets: compiled by the host and by NVRTC.
#pragma once

namespace twd::attn {

constexpr int kWideRows = 64;      ///< rows that a CTA copies
constexpr int kWideThreads = 256;  ///< of a CTA
constexpr int kMostWide = 4;       ///< arrays of one launch

/// An array of 16-bit elements, (batch, head, row, column), and where its copy goes.
struct WideRows {
    const void* source;
    void* target;
    long long batch_stride, head_stride, row_stride;  ///< of the source, in elements
    int batch_heads, heads, rows;
    int vectors;  ///< of 8 columns in a row
    int copied;   ///< the same in a row of the copy; what the source lacks is 0
    int pitch;    ///< elements from one row of the copy to the next
};

struct WideRowsParameters {
    WideRows arrays[kMostWide];
};

}  // namespace twd::attn
