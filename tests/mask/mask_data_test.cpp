// The canonical form of masks against dense ones.
#include "mask/mask_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mask/dense.h"
#include "tests/mask/random_mask.h"

namespace tilewright::mask {
namespace {

using tilewright::testing::random_dense_mask;

struct Sizes {
    std::int64_t batch, heads, q_len, kv_len;
};
const Sizes kSizes[] = {{1, 1, 1, 1},    {1, 1, 64, 64},   {2, 1, 65, 130},
                        {1, 3, 200, 64}, {1, 1, 300, 700}, {2, 2, 129, 63}};

Tensor random_of(const Sizes& sizes, std::uint64_t seed) {
    return random_dense_mask(seed, sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len);
}

std::vector<bool> bits(const Tensor& dense) {
    return dense.to_vector<bool>();
}

// Every mask that an operation returns must be in the canonical form.
void expect_equal(const MaskData& data, const Tensor& dense) {
    ASSERT_EQ(bits(to_dense(data, dense.dim(0), dense.dim(1))), bits(dense));
    const MaskData canonical = from_dense(to_dense(data, data.batch, data.heads));
    ASSERT_EQ(data.row_begin, canonical.row_begin);
    for (std::size_t i = 0; i < data.runs.size(); ++i) {
        const Run &run = data.runs[i], &want = canonical.runs[i];
        ASSERT_EQ(run.first, want.first);
        ASSERT_EQ(run.count, want.count);
        ASSERT_EQ(run.full(), want.full());
        for (std::int32_t j = 0; !run.full() && j < run.count; ++j) {
            ASSERT_EQ(data.atoms[data.ids[static_cast<std::size_t>(run.atoms + j)]],
                      canonical.atoms[canonical.ids[static_cast<std::size_t>(want.atoms + j)]]);
        }
    }
}

template <typename F>
Tensor elementwise(const Tensor& a, const Tensor& b, F f) {
    Tensor result = Tensor::zeros(boolean, a.shape());
    const auto* x = static_cast<const unsigned char*>(a.raw());
    const auto* y = static_cast<const unsigned char*>(b.raw());
    auto* out = static_cast<unsigned char*>(result.raw());
    for (std::int64_t i = 0; i < a.size(); ++i) out[i] = f(x[i] != 0, y[i] != 0);
    return result;
}

TEST(MaskData, DenseRoundTrip) {
    for (const Sizes& sizes : kSizes) {
        for (std::uint64_t seed = 0; seed < 10; ++seed) {
            const Tensor dense = random_of(sizes, seed);
            const MaskData data = from_dense(dense);
            expect_equal(data, dense);
            EXPECT_EQ(data.get(sizes.batch - 1, 0, sizes.q_len / 2, sizes.kv_len / 2),
                      dense.get({sizes.batch - 1, 0, sizes.q_len / 2, sizes.kv_len / 2}) != 0);
        }
    }
}

TEST(MaskData, StoresEqualAtomsOnce) {
    const MaskData data = from_dense(Tensor::full(boolean, {1, 1, 1280, 1280}, 1));
    EXPECT_EQ(data.atoms.atoms().size(), 2u);
    EXPECT_EQ(data.runs.size(), 20u);
    EXPECT_TRUE(data.ids.empty());
}

TEST(MaskData, TransposesAtoms) {
    Atom atom{};
    for (std::size_t i = 0; i < 64; ++i) atom[i] = 0x9E3779B97F4A7C15u * (i + 1);
    const Atom flipped = transposed(atom);
    for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t j = 0; j < 64; ++j) EXPECT_EQ(atom[i] >> j & 1, flipped[j] >> i & 1);
    }
}

TEST(MaskData, Transposes) {
    for (const Sizes& sizes : kSizes) {
        for (std::uint64_t seed = 0; seed < 10; ++seed) {
            const Tensor dense = random_of(sizes, seed);
            expect_equal(transposed(from_dense(dense)), dense.transpose({0, 1, 3, 2}).contiguous());
        }
    }
}

TEST(MaskData, CombinesAndComplements) {
    for (const Sizes& sizes : kSizes) {
        for (std::uint64_t seed = 0; seed < 10; ++seed) {
            const Tensor a = random_of(sizes, seed), b = random_of(sizes, seed + 100);
            const MaskData x = from_dense(a), y = from_dense(b);
            expect_equal(combined(x, y, Combine::both),
                         elementwise(a, b, [](bool p, bool q) { return p && q; }));
            expect_equal(combined(x, y, Combine::either),
                         elementwise(a, b, [](bool p, bool q) { return p || q; }));
            expect_equal(complement(x), elementwise(a, a, [](bool p, bool) { return !p; }));
        }
    }
}

TEST(MaskData, CombinesOverBroadcastHeads) {
    const Tensor one = random_dense_mask(1, 1, 3, 100, 150);
    const Tensor other = random_dense_mask(2, 2, 1, 100, 150);
    const MaskData both = combined(from_dense(one), from_dense(other), Combine::both);
    EXPECT_EQ(both.batch, 2);
    EXPECT_EQ(both.heads, 3);
    expect_equal(both, elementwise(one.broadcast_to({2, 3, 100, 150}).contiguous(),
                                   other.broadcast_to({2, 3, 100, 150}).contiguous(),
                                   [](bool p, bool q) { return p && q; }));
}

TEST(MaskData, CutsHeads) {
    const Tensor dense = random_dense_mask(3, 3, 4, 100, 150);
    const std::int64_t batches[] = {1, 2}, heads[] = {2};
    expect_equal(selected_heads(from_dense(dense), batches, heads),
                 dense.slice(0, 1, 2).slice(1, 2, 1).contiguous());
    const Tensor shared = random_dense_mask(4, 1, 1, 100, 150);
    EXPECT_EQ(selected_heads(from_dense(shared), batches, heads).batch, 1);
}

TEST(MaskData, CutsAndShiftsWindows) {
    std::mt19937_64 random(7);
    const auto between = [&](std::int64_t low, std::int64_t high) {
        return low +
               static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
    };
    for (int round = 0; round < 100; ++round) {
        const Tensor dense = random_dense_mask(random(), 1, 2, between(1, 300), between(1, 300));
        const std::int64_t q_start = between(-150, 350), kv_start = between(-150, 350);
        const std::int64_t q_len = between(1, 300), kv_len = between(1, 300);
        Tensor want = Tensor::zeros(boolean, {1, 2, q_len, kv_len});
        for (std::int64_t h = 0; h < 2; ++h) {
            for (std::int64_t q = 0; q < q_len; ++q) {
                for (std::int64_t kv = 0; kv < kv_len; ++kv) {
                    const std::int64_t i = q + q_start, j = kv + kv_start;
                    if (i >= 0 && i < dense.dim(2) && j >= 0 && j < dense.dim(3))
                        want.set({0, h, q, kv}, dense.get({0, h, i, j}));
                }
            }
        }
        expect_equal(window(from_dense(dense), q_start, q_len, kv_start, kv_len), want);
    }
}

}  // namespace
}  // namespace tilewright::mask
