// The loops of plain_loops.h, compiled once for each level, which TW_PLAIN_LEVEL names. They use
// nothing from the standard library: the linker might keep the highest level's copy of its inline
// functions for all levels.
#include "cli/bench/plain_loops.h"

namespace tilewright::cli {
namespace {

using i64 = std::int64_t;
using i32 = std::int32_t;

template <typename T>
const T* in(const PlainArgs& a, int i) {
    return static_cast<const T*>(a.in[i]);
}
template <typename T>
T* out(const PlainArgs& a, int i = 0) {
    return static_cast<T*>(a.out[i]);
}

// ---- Rows. in: x, r, bias; size: columns.

void add(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    const float* __restrict x = in<float>(a, 0), * __restrict r = in<float>(a, 1);
    float* __restrict y = out<float>(a);
    for (i64 i = begin * n; i < end * n; ++i) y[i] = x[i] + r[i];
}

void scale_shift_relu(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    const float* __restrict b = in<float>(a, 2);
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n, * __restrict r =
                                                                   in<float>(a, 1) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        for (i64 i = 0; i < n; ++i) {
            const float t = x[i] * 1.5F + b[i];
            y[i] = (t > 0 ? t : 0) + r[i];
        }
    }
}

void bias_gelu_residual(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    const float* __restrict b = in<float>(a, 2);
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n, * __restrict r =
                                                                   in<float>(a, 1) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        for (i64 i = 0; i < n; ++i) {
            const float t = x[i] + b[i];
            const float inner = 0.7978845608F * (t + 0.044715F * t * t * t);
            y[i] = 0.5F * t * (1 + __builtin_tanhf(inner)) + r[i];
        }
    }
}

void softmax(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        float most = x[0], sum = 0;
        for (i64 i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
        for (i64 i = 0; i < n; ++i) sum += y[i] = __builtin_expf(x[i] - most);
        const float factor = 1 / sum;
        for (i64 i = 0; i < n; ++i) y[i] *= factor;
    }
}

/// in: x, weight, bias.
void layer_norm(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    const float* __restrict w = in<float>(a, 1), * __restrict b = in<float>(a, 2);
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        float sum = 0, squares = 0;
        for (i64 i = 0; i < n; ++i) sum += x[i];
        const float mean = sum / static_cast<float>(n);
        for (i64 i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const float factor = 1 / __builtin_sqrtf(squares / static_cast<float>(n) + 1e-5F);
        for (i64 i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * w[i] + b[i];
    }
}

/// A unit is a group; size: n, channels in a group, channels. in: x (.., channels, n), weight,
/// bias.
void group_norm(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0], group = a.size[1], groups = a.size[2] / group;
    for (i64 unit = begin; unit < end; ++unit) {
        const float* __restrict x = in<float>(a, 0) + unit * group * n;
        const float* __restrict w = in<float>(a, 1) + unit % groups * group;
        const float* __restrict b = in<float>(a, 2) + unit % groups * group;
        float* __restrict y = out<float>(a) + unit * group * n;
        const auto count = static_cast<float>(group * n);
        float sum = 0, squares = 0;
        for (i64 i = 0; i < group * n; ++i) sum += x[i];
        const float mean = sum / count;
        for (i64 i = 0; i < group * n; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const float factor = 1 / __builtin_sqrtf(squares / count + 1e-5F);
        for (i64 c = 0; c < group; ++c)
            for (i64 i = c * n; i < (c + 1) * n; ++i) y[i] = (x[i] - mean) * factor * w[c] + b[c];
    }
}

/// in: scores (batch, n, n), prefixes (batch); a unit is a row.
void prefix_mask(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        const i64 q = row % n, prefix = in<i32>(a, 1)[row / n];
        const i64 seen = q + 1 > prefix ? q + 1 : prefix;
        for (i64 kv = 0; kv < seen; ++kv) y[kv] = x[kv];
        for (i64 kv = seen; kv < n; ++kv) y[kv] = -1e30F;
    }
}

/// in: x (rows, 2 n), cosines (rows, n), sines (rows, n).
void rotary(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * 2 * n, * __restrict c = in<float>(a, 1) + row * n, * __restrict s = in<float>(a, 2) + row * n;
        float* __restrict y = out<float>(a) + row * 2 * n;
        for (i64 i = 0; i < n; ++i) {
            y[i] = x[i] * c[i] - x[n + i] * s[i];
            y[n + i] = x[n + i] * c[i] + x[i] * s[i];
        }
    }
}

/// Blocks of 16 rows; size: columns, rows.
void transpose(const PlainArgs& a, i64 begin, i64 end) {
    constexpr i64 kBlock = 16;
    const i64 columns = a.size[0], rows = a.size[1];
    const float* __restrict x = in<float>(a, 0);
    float* __restrict y = out<float>(a);
    for (i64 top = begin * kBlock; top < end * kBlock; top += kBlock)
        for (i64 left = 0; left < columns; left += kBlock)
            for (i64 i = left; i < left + kBlock; ++i)
                for (i64 j = top; j < top + kBlock; ++j) y[i * rows + j] = x[j * columns + i];
}

// ---- Scans.

template <typename T>
void cumsum(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const T* __restrict x = in<T>(a, 0) + row * n;
        T* __restrict y = out<T>(a) + row * n;
        T sum = 0;
        for (i64 i = 0; i < n; ++i) y[i] = sum += x[i];
    }
}

/// Along columns; a unit is 64 columns. size: columns, rows.
void cumsum_rows(const PlainArgs& a, i64 begin, i64 end) {
    const i64 columns = a.size[0], rows = a.size[1];
    const float* __restrict x = in<float>(a, 0);
    float* __restrict y = out<float>(a);
    for (i64 i = begin * 64; i < end * 64; ++i) y[i] = x[i];
    for (i64 row = 1; row < rows; ++row)
        for (i64 i = begin * 64; i < end * 64; ++i)
            y[row * columns + i] = y[(row - 1) * columns + i] + x[row * columns + i];
}

void cummax(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        float most = x[0];
        for (i64 i = 0; i < n; ++i) y[i] = most = x[i] > most ? x[i] : most;
    }
}

void cumlogsumexp(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        float most = x[0], sum = 0;
        for (i64 i = 0; i < n; ++i) {
            if (x[i] > most) {
                sum *= __builtin_expf(most - x[i]);
                most = x[i];
            }
            sum += __builtin_expf(x[i] - most);
            y[i] = most + __builtin_logf(sum);
        }
    }
}

/// y[i] = a[i] y[i - 1] + b[i].
void linear_recurrence(const PlainArgs& args, i64 begin, i64 end) {
    const i64 n = args.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict a = in<float>(args, 0) + row * n;
        const float* __restrict b = in<float>(args, 1) + row * n;
        float* __restrict y = out<float>(args) + row * n;
        float state = 0;
        for (i64 i = 0; i < n; ++i) y[i] = state = a[i] * state + b[i];
    }
}

/// The largest elements, in order, by insertion. size: columns, count.
void top_k(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0], count = a.size[1];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * count;
        i64 held = 0;
        for (i64 i = 0; i < n; ++i) {
            if (held == count && !(x[i] > y[count - 1])) continue;
            i64 at = held < count ? held++ : count - 1;
            for (; at > 0 && x[i] > y[at - 1]; --at) y[at] = y[at - 1];
            y[at] = x[i];
        }
    }
}

/// Quicksort by the median of three, and insertion where few are left.
void sort_row(float* y, i64 n) {
    while (n > 16) {
        const float a = y[0], b = y[n / 2], c = y[n - 1];
        const float pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        i64 low = 0, high = n - 1;
        while (low <= high) {
            while (y[low] < pivot) ++low;
            while (pivot < y[high]) --high;
            if (low > high) break;
            const float kept = y[low];
            y[low++] = y[high];
            y[high--] = kept;
        }
        sort_row(y + low, n - low);
        n = high + 1;
    }
    for (i64 i = 1; i < n; ++i) {
        const float value = y[i];
        i64 at = i;
        for (; at > 0 && value < y[at - 1]; --at) y[at] = y[at - 1];
        y[at] = value;
    }
}

/// Rows in ascending order. size: columns.
void sort(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + row * n;
        for (i64 i = 0; i < n; ++i) y[i] = x[i];
        sort_row(y, n);
    }
}

/// y[i] = x[i] + ... + x[i + 8]; size: results in a row, which has 8 more of x.
void sliding_sum(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * (n + 8);
        float* __restrict y = out<float>(a) + row * n;
        for (i64 i = 0; i < n; ++i) {
            float sum = 0;
            for (i64 k = 0; k < 9; ++k) sum += x[i + k];
            y[i] = sum;
        }
    }
}

// ---- Stencils: results have the size of the input without its borders.

/// in: x (planes, height + 2, width + 2), weights (planes, 3, 3); size: height, width.
void depthwise(const PlainArgs& a, i64 begin, i64 end) {
    const i64 height = a.size[0], width = a.size[1];
    for (i64 plane = begin; plane < end; ++plane) {
        const float* __restrict x = in<float>(a, 0) + plane * (height + 2) * (width + 2);
        const float* __restrict w = in<float>(a, 1) + plane * 9;
        float* __restrict y = out<float>(a) + plane * height * width;
        for (i64 i = 0; i < height; ++i) {
            for (i64 j = 0; j < width; ++j) {
                float sum = 0;
                for (i64 di = 0; di < 3; ++di)
                    for (i64 dj = 0; dj < 3; ++dj)
                        sum += w[di * 3 + dj] * x[(i + di) * (width + 2) + j + dj];
                y[i * width + j] = sum;
            }
        }
    }
}

/// in: x (rows + 2, width + 2); size: width.
void stencil(const PlainArgs& a, i64 begin, i64 end) {
    const i64 width = a.size[0], pitch = width + 2;
    for (i64 i = begin; i < end; ++i) {
        const float* __restrict x = in<float>(a, 0) + (i + 1) * pitch + 1;
        float* __restrict y = out<float>(a) + i * width;
        for (i64 j = 0; j < width; ++j)
            y[j] = 0.5F * x[j] + 0.125F * (x[j - pitch] + x[j + pitch] + x[j - 1] + x[j + 1]);
    }
}

/// The same, with a right-hand side in[1] (rows, width).
void jacobi(const PlainArgs& a, i64 begin, i64 end) {
    const i64 width = a.size[0], pitch = width + 2;
    for (i64 i = begin; i < end; ++i) {
        const float* __restrict x = in<float>(a, 0) + (i + 1) * pitch + 1;
        const float* __restrict f = in<float>(a, 1) + i * width;
        float* __restrict y = out<float>(a) + i * width;
        for (i64 j = 0; j < width; ++j)
            y[j] = 0.25F * (x[j - pitch] + x[j + pitch] + x[j - 1] + x[j + 1] - f[j]);
    }
}

/// Weights 1 4 6 4 1 in both directions, with a row of column sums. in: x (rows + 4, width + 4).
void blur(const PlainArgs& a, i64 begin, i64 end) {
    const i64 width = a.size[0], pitch = width + 4;
    for (i64 i = begin; i < end; ++i) {
        const float* __restrict x = in<float>(a, 0) + i * pitch;
        float* __restrict y = out<float>(a) + i * width;
        float sums[4096 + 4];
        for (i64 j = 0; j < pitch; ++j)
            sums[j] = x[j] + x[j + 4 * pitch] + 4 * (x[j + pitch] + x[j + 3 * pitch]) +
                      6 * x[j + 2 * pitch];
        for (i64 j = 0; j < width; ++j)
            y[j] = (sums[j] + sums[j + 4] + 4 * (sums[j + 1] + sums[j + 3]) + 6 * sums[j + 2]) *
                   (1.0F / 256);
    }
}

// ---- Indices.

/// out[ids[i]] += x[i], where ids are sorted; a part has whole segments. size: elements.
void segment_sum(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    const float* __restrict x = in<float>(a, 0);
    const i32* __restrict ids = in<i32>(a, 1);
    float* __restrict y = out<float>(a);
    while (begin > 0 && begin < n && ids[begin] == ids[begin - 1]) ++begin;
    while (end < n && ids[end] == ids[end - 1]) ++end;
    for (i64 i = begin; i < end; ++i) y[ids[i]] += x[i];
}

/// ++out[x[i]], counted for each part before the counts are added; size: bins, at most 4096.
void histogram(const PlainArgs& a, i64 begin, i64 end) {
    const i32* __restrict x = in<i32>(a, 0);
    i32* __restrict y = out<i32>(a);
    i32 counts[4096] = {};
    for (i64 i = begin; i < end; ++i) ++counts[x[i]];
    for (i64 bin = 0; bin < a.size[0]; ++bin)
        __atomic_fetch_add(y + bin, counts[bin], __ATOMIC_RELAXED);
}

/// in: table (.., n), ids.
void embedding(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + in<i32>(a, 1)[row] * n;
        float* __restrict y = out<float>(a) + row * n;
        for (i64 i = 0; i < n; ++i) y[i] = x[i];
    }
}

/// in: gradient (rows, n), ids; out: gradient of the table. A unit is a column; size: n, rows.
void embedding_gradient(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0], rows = a.size[1];
    for (i64 row = 0; row < rows; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float* __restrict y = out<float>(a) + in<i32>(a, 1)[row] * n;
        for (i64 i = begin; i < end; ++i) y[i] += x[i];
    }
}

/// A sparse matrix with n elements per row times a vector. in: elements (rows, n), columns, vector.
void sparse_rows(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0];
    const float* __restrict vector = in<float>(a, 2);
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        const i32* __restrict columns = in<i32>(a, 1) + row * n;
        float sum = 0;
        for (i64 i = 0; i < n; ++i) sum += x[i] * vector[columns[i]];
        out<float>(a)[row] = sum;
    }
}

// ---- Products.

template <typename T>
T widened(T value) {
    return value;
}
inline i32 widened(std::int8_t value) {
    return value;
}
/// f8e4m3, which is no NaN here: its bits as those of a float, whose exponent is then corrected.
struct Float8 {
    std::uint8_t bits;
};
inline float widened(Float8 value) {
    const std::uint32_t bits = (value.bits & 0x80U) << 24 | (value.bits & 0x7FU) << 20;
    float result;
    __builtin_memcpy(&result, &bits, sizeof(result));
    return result * 0x1p120F;
}

/// y (rows, n) = x (rows, k) w (k, n). A unit is 8 rows, added to in 256 columns at once; size: n,
/// k.
template <typename In, typename Out>
void matmul(const PlainArgs& a, i64 begin, i64 end) {
    constexpr i64 kRows = 8, kColumns = 256;
    const i64 n = a.size[0], depth = a.size[1];
    for (i64 unit = begin; unit < end; ++unit) {
        const In* __restrict x = in<In>(a, 0) + unit * kRows * depth;
        Out* __restrict y = out<Out>(a) + unit * kRows * n;
        for (i64 left = 0; left < n; left += kColumns) {
            const i64 columns = n - left < kColumns ? n - left : kColumns;
            Out sums[kRows][kColumns] = {};
            for (i64 k = 0; k < depth; ++k) {
                const In* __restrict w = in<In>(a, 1) + k * n + left;
                for (i64 j = 0; j < columns; ++j) {
                    const Out element = widened(w[j]);
                    for (i64 row = 0; row < kRows; ++row)
                        sums[row][j] += static_cast<Out>(widened(x[row * depth + k])) * element;
                }
            }
            for (i64 row = 0; row < kRows; ++row)
                for (i64 j = 0; j < columns; ++j) y[row * n + left + j] = sums[row][j];
        }
    }
}

/// in: x (matrices, 16, 16); out: lower factors.
void cholesky(const PlainArgs& a, i64 begin, i64 end) {
    constexpr i64 n = 16;
    for (i64 m = begin; m < end; ++m) {
        const float* __restrict x = in<float>(a, 0) + m * n * n;
        float* __restrict l = out<float>(a) + m * n * n;
        for (i64 i = 0; i < n * n; ++i) l[i] = x[i];
        for (i64 k = 0; k < n; ++k) {
            const float root = __builtin_sqrtf(l[k * n + k]);
            for (i64 i = 0; i < n; ++i) l[i * n + k] = i < k ? 0 : l[i * n + k] / root;
            for (i64 i = k + 1; i < n; ++i)
                for (i64 j = k + 1; j <= i; ++j) l[i * n + j] -= l[i * n + k] * l[j * n + k];
        }
    }
}

/// Without pivots: L below the diagonal, which is 1 there, and U from the diagonal on.
void lu(const PlainArgs& a, i64 begin, i64 end) {
    constexpr i64 n = 16;
    for (i64 m = begin; m < end; ++m) {
        const float* __restrict x = in<float>(a, 0) + m * n * n;
        float* __restrict l = out<float>(a) + m * n * n;
        for (i64 i = 0; i < n * n; ++i) l[i] = x[i];
        for (i64 k = 0; k < n; ++k) {
            for (i64 i = k + 1; i < n; ++i) {
                const float factor = l[i * n + k] /= l[k * n + k];
                for (i64 j = k + 1; j < n; ++j) l[i * n + j] -= factor * l[k * n + j];
            }
        }
    }
}

/// y (rows, n) = x (rows, k) * ((packed - 8) * scale); in: x, packed (k / 2, n), whose low nibbles
/// are rows 0 to k / 2 - 1, scales (n). A unit is 64 columns; size: n, k, rows.
void int4_matmul(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0], depth = a.size[1], rows = a.size[2], half = depth / 2;
    const float* __restrict x = in<float>(a, 0), * __restrict scales = in<float>(a, 2);
    const std::uint8_t* __restrict packed = in<std::uint8_t>(a, 1);
    float* __restrict y = out<float>(a);
    for (i64 unit = begin; unit < end; ++unit) {
        for (i64 row = 0; row < rows; ++row) {
            float sums[64] = {};
            for (i64 k = 0; k < half; ++k) {
                const float low = x[row * depth + k], high = x[row * depth + half + k];
                const std::uint8_t* __restrict words = packed + k * n + unit * 64;
                for (i64 j = 0; j < 64; ++j) {
                    sums[j] += low * static_cast<float>((words[j] & 15) - 8) +
                               high * static_cast<float>((words[j] >> 4) - 8);
                }
            }
            for (i64 j = 0; j < 64; ++j)
                y[row * n + unit * 64 + j] = sums[j] * scales[unit * 64 + j];
        }
    }
}

/// The nearest of `count` centres. in: points (rows, n), centres (count, n); size: n, count.
void kmeans(const PlainArgs& a, i64 begin, i64 end) {
    const i64 n = a.size[0], count = a.size[1];
    for (i64 row = begin; row < end; ++row) {
        const float* __restrict x = in<float>(a, 0) + row * n;
        float least = 0;
        i32 nearest = 0;
        for (i64 c = 0; c < count; ++c) {
            const float* __restrict y = in<float>(a, 1) + c * n;
            float sum = 0;
            for (i64 i = 0; i < n; ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
            if (c == 0 || sum < least) {
                least = sum;
                nearest = static_cast<i32>(c);
            }
        }
        out<i32>(a)[row] = nearest;
    }
}

constexpr PlainLoops kLoopsOfThisLevel = {
    .level = TW_PLAIN_LEVEL,
    .add = add,
    .scale_shift_relu = scale_shift_relu,
    .bias_gelu_residual = bias_gelu_residual,
    .softmax = softmax,
    .layer_norm = layer_norm,
    .group_norm = group_norm,
    .rotary = rotary,
    .transpose = transpose,
    .prefix_mask = prefix_mask,
    .cumsum_f32 = cumsum<float>,
    .cumsum_i32 = cumsum<std::uint32_t>,
    .cumsum_rows = cumsum_rows,
    .cummax = cummax,
    .cumlogsumexp = cumlogsumexp,
    .linear_recurrence = linear_recurrence,
    .top_k = top_k,
    .sort = sort,
    .sliding_sum = sliding_sum,
    .depthwise = depthwise,
    .stencil = stencil,
    .blur = blur,
    .jacobi = jacobi,
    .segment_sum = segment_sum,
    .histogram = histogram,
    .embedding = embedding,
    .embedding_gradient = embedding_gradient,
    .sparse_rows = sparse_rows,
    .matmul_f32 = matmul<float, float>,
    .matmul_i8 = matmul<std::int8_t, i32>,
    .matmul_i32 = matmul<std::uint32_t, std::uint32_t>,
    .matmul_f8 = matmul<Float8, float>,
    .cholesky = cholesky,
    .lu = lu,
    .int4_matmul = int4_matmul,
    .kmeans = kmeans,
};

}  // namespace
}  // namespace tilewright::cli
