// Shared by the tests of the Hopper kernels: problems, device arrays between guard bytes, errors.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "attention/sm90/forward.h"
#include "cuda/runtime/memory.h"
#include "ir/evaluate.h"
#include "support/accuracy.h"
#include "support/array.h"
#include "support/small_float.h"
#include "tests/cuda/test_support.h"

namespace tilewright::attn::sm90 {

using cuda::Buffer;

struct Problem {
    DType dtype = DType::bf16;
    std::int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, dim = 128,
                 value_dim = 128;
    bool causal = false;
    std::int64_t diagonal = 0;  ///< upper, of causal problems
    std::int64_t window = -1;   ///< keys further back than this are masked; -1: none are
    double scale = 0.0;         ///< 0: 1 / sqrt(dim)
    bool rows_before_heads = false;
};

inline DeviceTensor contiguous(cuda::DeviceAddress address, std::int64_t batch, std::int64_t heads,
                               std::int64_t rows, std::int64_t dim, bool rows_before_heads) {
    DeviceTensor tensor{address, {batch, heads, rows, dim}, {}};
    if (rows_before_heads) {
        tensor.strides = {rows * heads * dim, dim, heads * dim, 1};
    } else {
        tensor.strides = {heads * rows * dim, rows * dim, dim, 1};
    }
    return tensor;
}

/// Inputs with made-up addresses, for tests without a GPU.
inline ForwardInputs inputs_of(const Problem& p) {
    ForwardInputs inputs;
    inputs.dtype = p.dtype;
    const bool rbh = p.rows_before_heads;
    inputs.query = contiguous(1 << 20, p.batch, p.heads, p.q_len, p.dim, rbh);
    inputs.key = contiguous(2 << 20, p.batch, p.kv_heads, p.kv_len, p.dim, rbh);
    inputs.value = contiguous(3 << 20, p.batch, p.kv_heads, p.kv_len, p.value_dim, rbh);
    inputs.out = contiguous(4 << 20, p.batch, p.heads, p.q_len, p.value_dim, rbh);
    inputs.lse = 5 << 20;
    inputs.workspace = 6 << 20;
    inputs.scale = p.scale != 0.0 ? p.scale : 1.0 / std::sqrt(static_cast<double>(p.dim));
    if (p.causal) inputs.upper_diagonal = p.diagonal;
    if (p.window >= 0) inputs.lower_diagonal = -p.window;
    return inputs;
}

/// Normal random values rounded to the dtype, as the kernel reads them and as the reference does.
struct Sample {
    Array exact;
    std::vector<std::uint16_t> bits;

    Sample(const Problem& p, std::int64_t heads, std::int64_t rows, std::int64_t dim, unsigned seed)
        : exact({p.batch, heads, rows, dim}) {
        std::mt19937 generator(seed);
        std::normal_distribution<double> normal;
        for (double& value : exact.data) value = round_to(normal(generator), p.dtype);
    }
};

inline std::uint16_t to_bits(double value, DType dtype) {
    return dtype == DType::bf16 ? f64_to_bf16(value) : f64_to_f16(value);
}

inline double from_bits(std::uint16_t bits, DType dtype) {
    return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// Visits (b, h, row, column) of a BHSD array with the offset of that element in the device layout.
template <typename Visit>
void for_each(const DeviceTensor& tensor, Visit visit) {
    std::size_t index = 0;
    for (std::int64_t b = 0; b < tensor.shape[0]; ++b) {
        for (std::int64_t h = 0; h < tensor.shape[1]; ++h) {
            for (std::int64_t s = 0; s < tensor.shape[2]; ++s) {
                for (std::int64_t d = 0; d < tensor.shape[3]; ++d) {
                    const std::int64_t at = b * tensor.strides[0] + h * tensor.strides[1] +
                                            s * tensor.strides[2] + d * tensor.strides[3];
                    visit(index++, static_cast<std::size_t>(at));
                }
            }
        }
    }
}

inline constexpr std::size_t kGuard =
    256;  ///< bytes before and after every buffer that must stay as they are
inline constexpr unsigned char kPoison = 0xff;  ///< NaN in every float format

/// A tensor in device memory between guard bytes.
struct Guarded {
    Buffer buffer;
    explicit Guarded(std::size_t bytes) : buffer(0, bytes + 2 * kGuard) { buffer.fill(kPoison); }
    cuda::DeviceAddress address() const { return buffer.address() + kGuard; }
    bool intact() const {
        for (std::size_t offset : {std::size_t{0}, buffer.bytes() - kGuard}) {
            std::vector<unsigned char> bytes(kGuard);
            buffer.download(bytes.data(), kGuard, offset);
            for (unsigned char byte : bytes) {
                if (byte != kPoison) return false;
            }
        }
        return true;
    }
};

/// Runs a pass without and with copies of the rows that TMA reads slowly (`config.wide`), and
/// expects the same bits in its results: products take the same numbers in the same order.
/// `memory_of(config)` is the bytes of workspace, whose address goes to `workspace`.
template <typename Config, typename MemoryOf, typename Launch>
void expect_copies_change_no_bit(Config config, const std::vector<Guarded*>& results,
                                 cuda::DeviceAddress& workspace, MemoryOf&& memory_of,
                                 Launch&& launch) {
    std::vector<std::vector<unsigned char>> bits[2];
    for (const bool wide : {false, true}) {
        config.wide = wide;
        const Guarded memory(memory_of(config));
        workspace = memory.address();
        for (Guarded* result : results) result->buffer.fill(kPoison);
        const cuda::Stream stream(0);
        launch(config, stream.handle());
        stream.synchronize();
        EXPECT_TRUE(memory.intact());
        for (const Guarded* result : results) {
            EXPECT_TRUE(result->intact());
            auto& read = bits[wide].emplace_back(result->buffer.bytes() - 2 * kGuard);
            result->buffer.download(read.data(), read.size(), kGuard);
        }
    }
    EXPECT_EQ(bits[0], bits[1]);
}

struct Device {
    Guarded query, key, value, out, lse;
    ForwardInputs inputs;
    Buffer workspace;

    Device(const Problem& p, const Array& q, const Array& k, const Array& v)
        : query(q.data.size() * 2),
          key(k.data.size() * 2),
          value(v.data.size() * 2),
          out(static_cast<std::size_t>(p.batch * p.heads * p.q_len * p.value_dim) * 2),
          lse(static_cast<std::size_t>(p.batch * p.heads * p.q_len) * 4),
          inputs(inputs_of(p)),
          workspace(0, workspace_bytes(inputs)) {
        upload(q, query, inputs.query, p.dtype);
        upload(k, key, inputs.key, p.dtype);
        upload(v, value, inputs.value, p.dtype);
        inputs.out.address = out.address();
        inputs.lse = lse.address();
        inputs.workspace = workspace.address();
    }

    /// For the configuration chosen for the GPU's number of multiprocessors.
    static std::size_t workspace_bytes(const ForwardInputs& inputs) {
        const ForwardDesc desc = check_forward(inputs);
        const int multiprocessors = cuda::device_info(0).multiprocessors;
        return forward_workspace_bytes(desc, choose_forward(desc, multiprocessors));
    }

    static void upload(const Array& array, Guarded& target, DeviceTensor& tensor, DType dtype) {
        tensor.address = target.address();
        std::vector<std::uint16_t> bits(array.data.size());
        for_each(tensor, [&](std::size_t index, std::size_t at) {
            bits[at] = to_bits(array.data[index], dtype);
        });
        target.buffer.upload(bits.data(), bits.size() * 2, kGuard);
    }

    bool guards_intact() const {
        return query.intact() && key.intact() && value.intact() && out.intact() && lse.intact();
    }
};

inline double relative_error(const std::vector<double>& got, const std::vector<double>& truth) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) {
        difference += (got[i] - truth[i]) * (got[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
}

/// The allowed error by the rule of support/accuracy.h, given the plain computation in `dtype`;
/// without one (`plain` empty), only that of a few roundings.
inline double largest_allowed(const std::vector<double>& plain, const std::vector<double>& truth,
                              DType dtype) {
    const auto array = [](const std::vector<double>& values) {
        Array result({static_cast<std::int64_t>(values.size())});
        result.data = values;
        return result;
    };
    const Array exact = array(truth);
    return allowed_error(plain.empty() ? exact : array(plain), exact, dtype);
}

/// Expects both the error's norm, relative to the truth's, and the error of every element to be
/// small: one wrong element among thousands hardly changes the norm.
inline void expect_near(const char* what, const std::vector<double>& got,
                        const std::vector<double>& truth, double norm_allowed,
                        double element_allowed) {
    const double error = relative_error(got, truth);
    EXPECT_TRUE(error <= norm_allowed) << what << ": " << error << " against " << norm_allowed;
    ASSERT_EQ(got.size(), truth.size()) << what;
    std::size_t worst = 0;
    double largest = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) {
        const double difference = std::abs(got[i] - truth[i]);
        if (difference <= largest) continue;
        worst = i;
        largest = std::isnan(difference) ? INFINITY : difference;
    }
    EXPECT_TRUE(largest <= element_allowed)
        << what << ", element " << worst << ": " << got[worst] << " against " << truth[worst]
        << ", allowed " << element_allowed;
}

/// The error allowed in one element of sums whose norm may be off by `norm_allowed`: fewer than one
/// in a million sums of n errors of one size and random sign exceeds five standard deviations, and
/// the largest element is at least the root mean square.
inline double sum_allowed(const std::vector<double>& truth, double norm_allowed) {
    double largest = 0;
    for (const double x : truth) largest = std::max(largest, std::abs(x));
    return 5 * norm_allowed * largest;
}

/// The same relative to the plain computation in `dtype`: at most twice its errors.
inline void expect_near_as_plain(const char* what, const std::vector<double>& got,
                                 const std::vector<double>& truth, const std::vector<double>& plain,
                                 DType dtype) {
    expect_near(what, got, truth, 2 * relative_error(plain, truth) + 1e-6,
                largest_allowed(plain, truth, dtype));
}

}  // namespace tilewright::attn::sm90
