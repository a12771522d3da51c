"""The kernels of `tilewright bench cpu` as Numba functions: loops over rows, in parallel."""

import math

import numba
import numpy as np
from numba import njit, prange

parallel = njit(parallel=True, fastmath=True)
one_thread = njit(fastmath=True)


@parallel
def add(x, r, bias, y):
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] + r[i, j]


@parallel
def scale_shift_relu(x, r, bias, y):
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            t = x[i, j] * np.float32(1.5) + bias[j]
            y[i, j] = max(t, np.float32(0)) + r[i, j]


@parallel
def bias_gelu_residual(x, r, bias, y):
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            t = x[i, j] + bias[j]
            inner = np.float32(0.7978845608) * (t + np.float32(0.044715) * t * t * t)
            y[i, j] = np.float32(0.5) * t * (np.float32(1) + math.tanh(inner)) + r[i, j]


@parallel
def softmax(x, y):
    n = x.shape[1]
    for i in prange(x.shape[0]):
        most = x[i, 0]
        for j in range(n):
            most = max(most, x[i, j])
        total = np.float32(0)
        for j in range(n):
            y[i, j] = math.exp(x[i, j] - most)
            total += y[i, j]
        factor = np.float32(1) / total
        for j in range(n):
            y[i, j] *= factor


@parallel
def layer_norm(x, weight, bias, y):
    n = x.shape[1]
    for i in prange(x.shape[0]):
        total, squares = np.float32(0), np.float32(0)
        for j in range(n):
            total += x[i, j]
        mean = total / np.float32(n)
        for j in range(n):
            squares += (x[i, j] - mean) * (x[i, j] - mean)
        factor = np.float32(1) / math.sqrt(squares / np.float32(n) + np.float32(1e-5))
        for j in range(n):
            y[i, j] = (x[i, j] - mean) * factor * weight[j] + bias[j]


@parallel
def group_norm(x, weight, bias, y, group):
    channels, n = x.shape[1], x.shape[2]
    groups = channels // group
    for unit in prange(x.shape[0] * groups):
        i, first = unit // groups, unit % groups * group
        total, squares = np.float32(0), np.float32(0)
        for c in range(first, first + group):
            for j in range(n):
                total += x[i, c, j]
        mean = total / np.float32(group * n)
        for c in range(first, first + group):
            for j in range(n):
                squares += (x[i, c, j] - mean) * (x[i, c, j] - mean)
        factor = np.float32(1) / math.sqrt(squares / np.float32(group * n) + np.float32(1e-5))
        for c in range(first, first + group):
            for j in range(n):
                y[i, c, j] = (x[i, c, j] - mean) * factor * weight[c] + bias[c]


@parallel
def rotary(x, cosines, sines, y):
    half = cosines.shape[1]
    for i in prange(x.shape[0]):
        for j in range(half):
            y[i, j] = x[i, j] * cosines[i, j] - x[i, half + j] * sines[i, j]
            y[i, half + j] = x[i, half + j] * cosines[i, j] + x[i, j] * sines[i, j]


@parallel
def transpose(x, y):
    for block in prange(x.shape[0] // 16):
        top = block * 16
        for left in range(0, x.shape[1], 16):
            for i in range(left, left + 16):
                for j in range(top, top + 16):
                    y[i, j] = x[j, i]


@parallel
def prefix_mask(scores, prefixes, y):
    queries, keys = scores.shape[1], scores.shape[2]
    for unit in prange(scores.shape[0] * queries):
        b, q = unit // queries, unit % queries
        for kv in range(keys):
            seen = (kv <= q) | (kv < prefixes[b])
            y[b, q, kv] = scores[b, q, kv] if seen else np.float32(-1e30)


@parallel
def cumsum(x, y):
    for i in prange(x.shape[0]):
        total = x[i, 0] - x[i, 0]
        for j in range(x.shape[1]):
            total += x[i, j]
            y[i, j] = total


@parallel
def cumsum_rows(x, y):
    for block in prange(x.shape[1] // 64):
        left = block * 64
        for j in range(left, left + 64):
            y[0, j] = x[0, j]
        for i in range(1, x.shape[0]):
            for j in range(left, left + 64):
                y[i, j] = y[i - 1, j] + x[i, j]


@parallel
def cummax(x, y):
    for i in prange(x.shape[0]):
        most = x[i, 0]
        for j in range(x.shape[1]):
            most = max(most, x[i, j])
            y[i, j] = most


@parallel
def cumlogsumexp(x, y):
    for i in prange(x.shape[0]):
        most, total = x[i, 0], np.float32(0)
        for j in range(x.shape[1]):
            if x[i, j] > most:
                total *= math.exp(most - x[i, j])
                most = x[i, j]
            total += math.exp(x[i, j] - most)
            y[i, j] = most + math.log(total)


@parallel
def top_k(x, y):
    count = y.shape[1]
    for i in prange(x.shape[0]):
        held = 0
        for j in range(x.shape[1]):
            value = x[i, j]
            if held == count and not value > y[i, count - 1]:
                continue
            at = held if held < count else count - 1
            held = min(held + 1, count)
            while at > 0 and value > y[i, at - 1]:
                y[i, at] = y[i, at - 1]
                at -= 1
            y[i, at] = value


@parallel
def sort(x, y):
    for i in prange(x.shape[0]):
        y[i] = np.sort(x[i])


@parallel
def sliding_sum(x, y):
    for i in prange(y.shape[0]):
        for j in range(y.shape[1]):
            total = np.float32(0)
            for k in range(9):
                total += x[i, j + k]
            y[i, j] = total


@parallel
def depthwise(x, weights, y):
    for plane in prange(y.shape[0]):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                total = np.float32(0)
                for di in range(3):
                    for dj in range(3):
                        total += weights[plane, di, dj] * x[plane, i + di, j + dj]
                y[plane, i, j] = total


@parallel
def stencil(x, y):
    for i in prange(y.shape[0]):
        for j in range(y.shape[1]):
            around = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
            y[i, j] = np.float32(0.5) * x[i + 1, j + 1] + np.float32(0.125) * around


@parallel
def jacobi(x, f, y):
    for i in prange(y.shape[0]):
        for j in range(y.shape[1]):
            around = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
            y[i, j] = np.float32(0.25) * (around - f[i, j])


@parallel
def blur(x, y):
    width = x.shape[1]
    four, six = np.float32(4), np.float32(6)
    for i in prange(y.shape[0]):
        s = np.empty(width, np.float32)
        for j in range(width):
            outer, inner = x[i, j] + x[i + 4, j], x[i + 1, j] + x[i + 3, j]
            s[j] = outer + four * inner + six * x[i + 2, j]
        for j in range(y.shape[1]):
            total = s[j] + s[j + 4] + four * (s[j + 1] + s[j + 3]) + six * s[j + 2]
            y[i, j] = total * np.float32(1 / 256)


@one_thread
def segment_sum(x, ids, zeros, y):
    for i in range(x.shape[0]):
        y[ids[i]] += x[i]


@one_thread
def histogram(x, zeros, y):
    for i in range(x.shape[0]):
        y[x[i]] += 1


@parallel
def embedding(table, ids, y):
    for i in prange(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = table[ids[i], j]


@one_thread
def embedding_gradient(dy, ids, zeros, y):
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            y[ids[i], j] += dy[i, j]


@parallel
def sparse_rows(x, columns, vector, y):
    for i in prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j] * vector[columns[i, j]]
        y[i] = total


@parallel
def cholesky(x, y):
    n = x.shape[1]
    for m in prange(x.shape[0]):
        y[m] = x[m]
        for k in range(n):
            root = math.sqrt(y[m, k, k])
            for i in range(n):
                y[m, i, k] = np.float32(0) if i < k else y[m, i, k] / root
            for i in range(k + 1, n):
                for j in range(k + 1, i + 1):
                    y[m, i, j] -= y[m, i, k] * y[m, j, k]


@parallel
def lu(x, y):
    n = x.shape[1]
    for m in prange(x.shape[0]):
        y[m] = x[m]
        for k in range(n):
            for i in range(k + 1, n):
                y[m, i, k] /= y[m, k, k]
                for j in range(k + 1, n):
                    y[m, i, j] -= y[m, i, k] * y[m, k, j]


@parallel
def int4_matmul(x, packed, scales, y):
    half, rows = packed.shape[0], x.shape[0]
    for unit in prange(packed.shape[1] // 64):
        left = unit * 64
        for i in range(rows):
            sums = np.zeros(64, np.float32)
            for k in range(half):
                low, high = x[i, k], x[i, half + k]
                for j in range(64):
                    word = np.int32(packed[k, left + j])
                    sums[j] += low * np.float32((word & 15) - 8)
                    sums[j] += high * np.float32((word >> 4) - 8)
            for j in range(64):
                y[i, left + j] = sums[j] * scales[left + j]


@parallel
def kmeans(x, centres, y):
    for i in prange(x.shape[0]):
        least, nearest = np.float32(0), 0
        for c in range(centres.shape[0]):
            total = np.float32(0)
            for j in range(x.shape[1]):
                total += (x[i, j] - centres[c, j]) * (x[i, j] - centres[c, j])
            if c == 0 or total < least:
                least, nearest = total, c
        y[i] = nearest


@parallel
def matmul_f32(x, w, y):
    for i in prange(x.shape[0]):
        y[i] = 0
        for k in range(x.shape[1]):
            for j in range(w.shape[1]):
                y[i, j] += x[i, k] * w[k, j]


@parallel
def matmul_integers(x, w, y):
    for i in prange(x.shape[0]):
        y[i] = 0
        for k in range(x.shape[1]):
            factor = np.int32(x[i, k])
            for j in range(w.shape[1]):
                y[i, j] += factor * np.int32(w[k, j])


FUNCTIONS = {
    function.__name__: function
    for function in (
        add, scale_shift_relu, bias_gelu_residual, softmax, layer_norm, group_norm, rotary,
        transpose, prefix_mask, cumsum, cumsum_rows, cummax, cumlogsumexp, top_k, sort, sliding_sum,
        depthwise, stencil, jacobi, blur, segment_sum, histogram, embedding, embedding_gradient,
        sparse_rows, cholesky, lu, int4_matmul, kmeans, matmul_f32,
    )
} | {"matmul_i8": matmul_integers, "matmul_i32": matmul_integers}  # fmt: skip


def prepare(job, arrays):
    """As prepare_torch of cpu_peers.py."""
    numba.set_num_threads(job["threads"])
    if job["kernel"] not in FUNCTIONS:
        raise NotImplementedError(job["kernel"])
    function = FUNCTIONS[job["kernel"]]
    _, dtype, shape = job["output"]
    y = np.zeros(shape, {"f32": np.float32, "i32": np.int32}[dtype])
    arguments = [*arrays, y]
    if job["kernel"] == "group_norm":
        arguments.append(job["sizes"][1])

    def run():
        function(*arguments)
        return y

    return run, lambda result: result
