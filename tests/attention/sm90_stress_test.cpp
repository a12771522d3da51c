// The Hopper kernels under stress, on a Hopper GPU: a thousand runs with the same bits, tensors
// beyond 32-bit offsets, scores with spikes, infinities and NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/reference.h"
#include "tests/attention/sm90_backward_support.h"

namespace tilewright::attn::sm90 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Sm90Stress : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (cuda::device_info(0).major != 9) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
        TW_REQUIRE_NVRTC();
    }

    struct Arrays {
        Array q, k, v;
    };
    static Arrays random(const Problem& p) {
        return {Sample(p, p.heads, p.q_len, p.dim, 1).exact,
                Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact,
                Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact};
    }

    static std::vector<std::uint16_t> download(Guarded& from, std::size_t elements) {
        std::vector<std::uint16_t> bits(elements);
        from.buffer.download(bits.data(), bits.size() * 2, kGuard);
        return bits;
    }

    /// The forward pass's result as numbers, row by row.
    static std::vector<double> run(const Problem& p, const Arrays& in) {
        Device device(p, in.q, in.k, in.v);
        const cuda::Stream stream(0);
        forward(device.inputs, stream.handle());
        stream.synchronize();
        EXPECT_TRUE(device.guards_intact());
        const std::vector<std::uint16_t> bits = download(
            device.out, static_cast<std::size_t>(p.batch * p.heads * p.q_len * p.value_dim));
        std::vector<double> out(bits.size());
        for_each(device.inputs.out, [&](std::size_t index, std::size_t at) {
            out[index] = from_bits(bits[at], p.dtype);
        });
        return out;
    }

    static ReferenceOutput reference(const Problem& p, DType arithmetic, const Arrays& in) {
        ReferenceOptions options;
        options.scale = 1.0 / std::sqrt(static_cast<double>(p.dim));
        options.arithmetic = arithmetic;
        if (p.causal) options.window_right = p.diagonal;
        return reference_forward(in.q, in.k, in.v, options);
    }

    /// Expects NaN exactly where the reference has NaN, and elsewhere at most twice the errors of
    /// the plain computation in the same dtype.
    static void check(const Problem& p, const Arrays& in) {
        const std::vector<double> got = run(p, in);
        const std::vector<double> truth = reference(p, DType::f64, in).out.data;
        const std::vector<double> plain = reference(p, p.dtype, in).out.data;
        std::vector<double> left[3];
        for (std::size_t i = 0; i < truth.size(); ++i) {
            ASSERT_EQ(std::isnan(got[i]), std::isnan(truth[i])) << "element " << i;
            if (std::isnan(truth[i])) continue;
            left[0].push_back(got[i]);
            left[1].push_back(truth[i]);
            left[2].push_back(plain[i]);
        }
        if (left[0].empty()) return;  // it reached every row
        expect_near_as_plain("out", left[0], left[1], left[2], p.dtype);
    }
};

constexpr int kRuns = 1000;

// Causal, without a mask, head_dim > 128, and stream-K, whose splits a second kernel joins.
TEST_F(Sm90Stress, AThousandForwardRunsGiveTheSameBits) {
    const Problem problems[] = {
        {.heads = 30, .kv_heads = 30, .q_len = 1000, .kv_len = 1000, .causal = true},
        {.heads = 20, .kv_heads = 10, .q_len = 900, .kv_len = 700, .dim = 64, .value_dim = 64},
        {.heads = 16, .kv_heads = 16, .q_len = 500, .kv_len = 500, .dim = 256, .value_dim = 256},
        {.heads = 32, .kv_heads = 4, .q_len = 3, .kv_len = 9000},
    };
    for (const Problem& p : problems) {
        SCOPED_TRACE(fmt::format("D{} L{} S{}", p.dim, p.q_len, p.kv_len));
        const Arrays in = random(p);
        Device device(p, in.q, in.k, in.v);
        const cuda::Stream stream(0);
        std::vector<std::uint16_t> first;
        for (int i = 0; i < kRuns; ++i) {
            device.out.buffer.fill(kPoison);
            forward(device.inputs, stream.handle());
            stream.synchronize();
            const auto bits =
                download(device.out, static_cast<std::size_t>(p.heads * p.q_len * p.value_dim));
            if (i == 0) first = bits;
            ASSERT_EQ(bits, first) << "run " << i;
        }
    }
}

TEST_F(Sm90Stress, AThousandDeterministicBackwardRunsGiveTheSameBits) {
    const Problem problems[] = {
        {.heads = 16, .kv_heads = 8, .q_len = 1000, .kv_len = 1000, .causal = true},
        {.heads = 16, .kv_heads = 16, .q_len = 600, .kv_len = 900, .dim = 64, .value_dim = 64},
        {.heads = 8, .kv_heads = 8, .q_len = 500, .kv_len = 500, .dim = 256, .value_dim = 256},
        {.heads = 16, .kv_heads = 8, .q_len = 500, .kv_len = 500, .dim = 192, .causal = true},
    };
    for (const Problem& p : problems) {
        SCOPED_TRACE(fmt::format("D{} L{} S{}", p.dim, p.q_len, p.kv_len));
        const Arrays in = random(p);
        const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, 4).exact;
        BackwardDevice device(p, in.q, in.k, in.v, dout, {}, /*deterministic=*/true);
        const cuda::Stream stream(0);
        std::vector<std::uint16_t> first[3];
        for (int run = 0; run < kRuns; ++run) {
            for (Guarded* out : {&device.grad_query, &device.grad_key, &device.grad_value}) {
                out->buffer.fill(kPoison);
            }
            backward(device.inputs, stream.handle());
            stream.synchronize();
            const std::vector<std::uint16_t> bits[] = {
                device.bits(device.grad_query, device.inputs.grad_query),
                device.bits(device.grad_key, device.inputs.grad_key),
                device.bits(device.grad_value, device.inputs.grad_value)};
            for (int i = 0; i < 3; ++i) {
                if (run == 0) first[i] = bits[i];
                ASSERT_EQ(bits[i], first[i]) << "run " << run << ", gradient " << i;
            }
        }
    }
}

/// A tensor whose second batch is more than 4 GiB after its first.
struct Far {
    Buffer buffer;
    DeviceTensor tensor;
    std::size_t part;  ///< bytes of a batch

    static constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 4096;  // in elements

    explicit Far(const DeviceTensor& near)
        : buffer(0, static_cast<std::size_t>(2 * (kStride + near.strides[0]))),
          tensor(near),
          part(static_cast<std::size_t>(2 * near.strides[0])) {
        tensor.address = buffer.address();
        tensor.strides[0] = kStride;
    }
    void upload(Guarded& from) {
        std::vector<unsigned char> bytes(2 * part);
        from.buffer.download(bytes.data(), bytes.size(), kGuard);
        buffer.upload(bytes.data(), part);
        buffer.upload(bytes.data() + part, part, static_cast<std::size_t>(2 * kStride));
    }
    std::vector<unsigned char> download() const {
        std::vector<unsigned char> bytes(2 * part);
        buffer.download(bytes.data(), part);
        buffer.download(bytes.data() + part, part, static_cast<std::size_t>(2 * kStride));
        return bytes;
    }
};

// The same values near and far give the same bits: no offset is truncated to 32 bits.
TEST_F(Sm90Stress, TensorsBeyondFourGigabytes) {
    for (std::int64_t dim : {128, 256}) {
        SCOPED_TRACE(dim);
        const Problem p{.batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 300,
                        .kv_len = 300,
                        .dim = dim,
                        .value_dim = dim,
                        .causal = true};
        const Arrays in = random(p);
        const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, 4).exact;
        BackwardDevice device(p, in.q, in.k, in.v, dout, {}, /*deterministic=*/true);
        const cuda::Stream stream(0);
        backward(device.inputs, stream.handle());
        stream.synchronize();

        BackwardInputs inputs = device.inputs;
        struct Read {
            Guarded* near;
            DeviceTensor BackwardInputs::*tensor;
        };
        Device& given = device.forward_device;
        std::vector<Far> far;
        for (const auto& [near, member] :
             {Read{&given.query, &BackwardInputs::query}, Read{&given.key, &BackwardInputs::key},
              Read{&given.value, &BackwardInputs::value}, Read{&given.out, &BackwardInputs::out},
              Read{&device.grad_out, &BackwardInputs::grad_out},
              Read{&device.grad_query, &BackwardInputs::grad_query},
              Read{&device.grad_key, &BackwardInputs::grad_key},
              Read{&device.grad_value, &BackwardInputs::grad_value}}) {
            far.emplace_back(inputs.*member);
            inputs.*member = far.back().tensor;
            if (far.size() != 4 && far.size() < 6) far.back().upload(*near);
        }
        // The forward pass writes what the backward pass reads, also far away.
        ForwardInputs far_forward = given.inputs;
        far_forward.query = inputs.query;
        far_forward.key = inputs.key;
        far_forward.value = inputs.value;
        far_forward.out = inputs.out;
        forward(far_forward, stream.handle());
        backward(inputs, stream.handle());
        stream.synchronize();
        const auto expect_same = [&](const char* what, Guarded& near, const Far& beyond) {
            std::vector<unsigned char> bytes(2 * beyond.part);
            near.buffer.download(bytes.data(), bytes.size(), kGuard);
            EXPECT_TRUE(bytes == beyond.download()) << what;
        };
        expect_same("out", given.out, far[3]);
        expect_same("dQ", device.grad_query, far[5]);
        expect_same("dK", device.grad_key, far[6]);
        expect_same("dV", device.grad_value, far[7]);
    }
}

// One score far above all others, first, last and inside of a block: speculative row maxima fail
// once.
TEST_F(Sm90Stress, ScoresThatSpike) {
    for (std::int64_t dim : {64, 128, 256}) {
        for (std::int64_t at : {0, 63, 200, 447, 599}) {
            for (double height : {20.0, 3000.0}) {
                SCOPED_TRACE(fmt::format("D{} key {} height {}", dim, at, height));
                const Problem p{.q_len = 200,
                                .kv_len = 600,
                                .dim = dim,
                                .value_dim = dim,
                                .causal = at == 200,
                                .diagonal = 400};
                Arrays in = random(p);
                for (std::int64_t row = 0; row < p.q_len; ++row) {
                    in.q.row(0, 0, row)[0] = 4.0;
                }
                in.k.row(0, 0, at)[0] = height;
                check(p, in);
            }
        }
    }
}

// From one block to the next scores jump about as far as multiplying by a reciprocal can repair: p
// is 2^124.8 or 2^125, 2^126.1, 2^126.2. A thread's second row, eight rows further, does not jump.
TEST_F(Sm90Stress, ScoresThatJumpAsFarAsARepairReaches) {
    struct Jump {
        std::int64_t dim;
        double query, key;  ///< their product over the root of `dim` is the jump
    };
    const Jump jumps[] = {{64, 4, 173},  {64, 3, 233},  {64, 4, 175},  {128, 10, 98},
                          {128, 23, 43}, {128, 9, 110}, {256, 6, 233}, {256, 10, 140}};
    for (const Jump& jump : jumps) {
        for (const std::int64_t at : {0, 200}) {
            for (const bool causal : {false, true}) {
                SCOPED_TRACE(fmt::format("D{} {} key {} {}", jump.dim, jump.query * jump.key, at,
                                         causal ? "causal" : "full"));
                const Problem p{.q_len = 300,
                                .kv_len = 600,
                                .dim = jump.dim,
                                .value_dim = jump.dim,
                                .causal = causal,
                                .diagonal = 300};
                Arrays in = random(p);
                std::fill(in.q.data.begin(), in.q.data.end(), 0.0);
                for (std::int64_t row = 0; row < p.q_len; ++row) {
                    if (row / 8 % 2 == 0) in.q.row(0, 0, row)[0] = jump.query;
                }
                for (std::int64_t row = 0; row < p.kv_len; ++row) in.k.row(0, 0, row)[0] = 0.0;
                in.k.row(0, 0, at)[0] = jump.key;
                check(p, in);
            }
        }
    }
}

// A NaN or infinity in a query stays in its row, one in a key stays in the rows that attend to it.
TEST_F(Sm90Stress, InfinityAndNanStayWhereTheyBelong) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {nan, kInfinity, -kInfinity}) {
        for (std::int64_t dim : {64, 128, 256}) {
            for (const bool causal : {false, true}) {
                SCOPED_TRACE(fmt::format("{} D{} {}", bad, dim, causal ? "causal" : "full"));
                const Problem p{
                    .q_len = 300, .kv_len = 300, .dim = dim, .value_dim = dim, .causal = causal};
                Arrays of_query = random(p);
                of_query.q.row(0, 0, 77)[3] = bad;
                check(p, of_query);
                Arrays of_key = random(p);
                of_key.k.row(0, 0, 150)[5] = bad;
                check(p, of_key);
            }
        }
    }
    // Few rows, whose tiles are split: NaN and infinity also pass through the second kernel.
    for (const double bad : {nan, kInfinity}) {
        const Problem p{.heads = 4, .kv_heads = 2, .q_len = 2, .kv_len = 5000};
        Arrays in = random(p);
        in.k.row(0, 0, 4000)[5] = bad;
        check(p, in);
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
