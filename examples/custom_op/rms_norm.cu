// RMSNorm over rows, forward and backward, for any mix of dtypes. T: the dtype of x, W: of the
// weight and y, A: of sums (double for double, else float).
#include <tilewright.cuh>

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps). One block per row.
template <typename T, typename W, typename A>
__global__ void rms_norm(const T* x, const W* weight, W* y, A* rstd, long long columns, double eps) {
    __shared__ A partial[32];
    x += blockIdx.x * columns;
    y += blockIdx.x * columns;
    A sum = 0;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        const A value = tw::widen(x[c]);
        sum += value * value;
    }
    sum = tw::block_sum(sum, partial);
    const A r = A(1) / sqrt(sum / A(columns) + A(eps));
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        y[c] = tw::to<W>(A(tw::widen(x[c])) * r * A(tw::widen(weight[c])));
    }
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

// dx = rstd * (g - x * rstd^2 * mean(x * g)) with g = dy * weight. A few blocks share the rows;
// each sums its part of dweight = sum over rows of dy * x * rstd.
template <typename T, typename W, typename A>
__global__ void rms_norm_backward(const W* dy, const T* x, const W* weight, const A* rstd, T* dx,
                                  W* dweight, A* parts, long long rows, long long columns) {
    __shared__ A partial[32];
    A* const part = parts + blockIdx.x * columns;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* const x_row = x + row * columns;
        const W* const dy_row = dy + row * columns;
        const A r = rstd[row];
        A sum = 0;
        for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
            const A value = tw::widen(x_row[c]), d = tw::widen(dy_row[c]);
            sum += value * d * A(tw::widen(weight[c]));
            part[c] += d * value * r;
        }
        const A mean = tw::block_sum(sum, partial) / A(columns);
        for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
            const A value = tw::widen(x_row[c]);
            const A g = A(tw::widen(dy_row[c])) * A(tw::widen(weight[c]));
            dx[row * columns + c] = tw::to<T>(r * (g - value * r * r * mean));
        }
    }
}

// dweight: the sum of those parts, with one thread per column.
template <typename T, typename W, typename A, int kParts>
__global__ void rms_norm_weight(const W* dy, const T* x, const W* weight, const A* rstd, T* dx,
                                W* dweight, A* parts, long long rows, long long columns) {
    const long long c = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (c >= columns) return;
    A sum = 0;
    for (int i = 0; i < kParts; ++i) sum += parts[i * columns + c];
    dweight[c] = tw::to<W>(sum);
}
