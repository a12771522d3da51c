// Score mods, listed masks, sinks and exact maxima of the Hopper forward kernel on a Hopper GPU:
// results against a dense computation in f64.
#include "tests/attention/sm90_programmable.h"

#include <gtest/gtest.h>

#include "tilewright/scores.h"

namespace tilewright::attn::sm90 {
namespace {

class Sm90ProgrammableGpu : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (cuda::device_info(0).major != 9) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
        TW_REQUIRE_NVRTC();
    }

    static void check(const Problem& p, const Dense& dense, const ProgramOptions& options) {
        SCOPED_TRACE(fmt::format("{} B{} H{}/{} L{} S{} D{} {}{}", name(p.dtype), p.batch, p.heads,
                                 p.kv_heads, p.q_len, p.kv_len, p.dim,
                                 options.mod ? options.mod.name() : "no mod",
                                 options.listed ? " listed"
                                 : p.causal     ? " causal"
                                                : ""));
        const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
        const Array k = growing_keys(p, options.key_growth);
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
        Programmed problem(p, dense, options, q, k, v);
        Device& device = problem.device;
        const auto rows = static_cast<std::size_t>(p.batch * p.heads * p.q_len);

        const cuda::Stream stream(0);
        std::vector<std::uint16_t> bits(rows * static_cast<std::size_t>(p.value_dim)), again = bits;
        for (std::vector<std::uint16_t>* target : {&bits, &again}) {
            device.out.buffer.fill(kPoison);
            forward(device.inputs, stream.handle());
            stream.synchronize();
            device.out.buffer.download(target->data(), bits.size() * 2, kGuard);
        }
        EXPECT_EQ(bits, again) << "two runs differ";
        EXPECT_TRUE(device.guards_intact() && problem.row_max.intact());
        std::vector<float> lse(rows), largest(rows);
        device.lse.buffer.download(lse.data(), rows * 4, kGuard);
        problem.row_max.buffer.download(largest.data(), rows * 4, kGuard);
        compare(p, dense, q, k, v, bits, lse, options.row_max ? largest : std::vector<float>{});
    }

    static void compare(const Problem& p, const Dense& dense, const Array& q, const Array& k,
                        const Array& v, const std::vector<std::uint16_t>& bits,
                        const std::vector<float>& lse, const std::vector<float>& largest) {
        const double scale = p.scale != 0 ? p.scale : 1 / std::sqrt(static_cast<double>(p.dim));
        const std::int64_t group = p.heads / p.kv_heads;
        std::vector<double> got, truth;
        std::size_t row_index = 0;
        for (std::int64_t b = 0; b < p.batch; ++b) {
            for (std::int64_t h = 0; h < p.heads; ++h) {
                for (std::int64_t i = 0; i < p.q_len; ++i, ++row_index) {
                    std::vector<double> scores;
                    double top = -kInfinity;
                    for (std::int64_t j = 0; j < p.kv_len; ++j) {
                        double sum = 0;
                        for (std::int64_t d = 0; d < p.dim; ++d) {
                            sum += q.row(b, h, i)[d] * k.row(b, h / group, j)[d];
                        }
                        const bool alive = dense.alive(h, i, j) && (!p.causal || j <= i);
                        scores.push_back(alive ? dense.score(sum * scale, b, h, i, j) : -kInfinity);
                        top = std::max(top, scores.back());
                    }
                    const double sink =
                        dense.sinks.empty() ? -kInfinity : dense.sinks[static_cast<std::size_t>(h)];
                    const double base = std::max(top, sink);
                    double total = std::exp(sink - base);
                    if (base == -kInfinity) total = 0;
                    std::vector<double> row(static_cast<std::size_t>(p.value_dim), 0.0);
                    for (std::int64_t j = 0; j < p.kv_len && top > -kInfinity; ++j) {
                        const double weight = std::exp(scores[static_cast<std::size_t>(j)] - base);
                        total += weight;
                        const double kept = dense.keep(b, h, i, j);
                        for (std::int64_t d = 0; d < p.value_dim; ++d) {
                            row[static_cast<std::size_t>(d)] +=
                                weight * kept * v.row(b, h / group, j)[d];
                        }
                    }
                    const double expected = base == -kInfinity ? base : base + std::log(total);
                    const bool same = lse[row_index] == expected ||
                                      std::abs(lse[row_index] - expected) <=
                                          dense.lse_tolerance + 1e-5 * std::abs(expected);
                    ASSERT_TRUE(same) << "lse of row " << row_index << ": " << lse[row_index]
                                      << " against " << expected;
                    if (!largest.empty()) {
                        const bool as_large =
                            largest[row_index] == top ||
                            std::abs(largest[row_index] - top) <= 1e-3 + 1e-5 * std::abs(top);
                        ASSERT_TRUE(as_large) << "largest score of row " << row_index << ": "
                                              << largest[row_index] << " against " << top;
                    }
                    for (std::size_t d = 0; d < row.size(); ++d) {
                        truth.push_back(total > 0 ? row[d] / total : 0);
                        got.push_back(from_bits(bits[row_index * row.size() + d], p.dtype));
                    }
                }
            }
        }
        expect_near("out", got, truth, dense.tolerance, largest_allowed({}, truth, p.dtype));
    }
};

TEST_F(Sm90ProgrammableGpu, AlibiAgreesComputedAndRead) {
    Dense dense;
    dense.score = [](double s, auto, auto h, auto q, auto kv) {
        return s + slope_of(h, 4) * static_cast<double>(kv - q);
    };
    std::vector<float> table;
    for (std::int64_t h = 0; h < 4; ++h) table.push_back(static_cast<float>(slope_of(h, 4)));
    const Mod read = scores::alibi(capture(Tensor::from_vector(table, {4})));
    for (std::int64_t dim : {64, 128, 256}) {
        for (bool causal : {false, true}) {
            Problem p{.heads = 4,
                      .kv_heads = 2,
                      .q_len = 300,
                      .kv_len = 450,
                      .dim = dim,
                      .value_dim = dim,
                      .causal = causal};
            check(p, dense, {.mod = scores::alibi(4)});
            p.batch = 2;
            check(p, dense, {.mod = read});
        }
    }
}

TEST_F(Sm90ProgrammableGpu, SoftCapAgreesExactAndApproximate) {
    Dense dense;
    dense.score = [](double s, auto, auto, auto, auto) { return 2 * std::tanh(s / 2); };
    const Problem p{.heads = 2, .kv_heads = 2, .q_len = 300, .kv_len = 450, .causal = true};
    check(p, dense, {.mod = scores::softcap(2)});
    check(p, dense, {.mod = scores::softcap(2), .exact = true});
    dense.tolerance = dense.lse_tolerance = 1e-2;  // tanh.approx is good to 2^-11 of the cap
    check(p, dense, {.mod = scores::softcap(2, true)});
}

TEST_F(Sm90ProgrammableGpu, TablesByColumnByRowAndByPair) {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal;
    constexpr std::int64_t kRows = 300, kColumns = 450;
    std::vector<float> values(2 * kRows * kColumns);
    for (float& value : values) value = normal(generator);
    const auto at = [&](std::int64_t i) {
        return static_cast<double>(values[static_cast<std::size_t>(i)]);
    };
    const Problem p{.heads = 2, .kv_heads = 2, .q_len = kRows, .kv_len = kColumns};
    const Capture flat = capture(Tensor::from_vector(values, {2 * kRows * kColumns}));
    const Capture wide = capture(Tensor::from_vector(values, {2, kRows, kColumns}));
    const Capture columns = capture(Tensor::from_vector(
        std::vector<float>(values.begin(), values.begin() + 2 * kColumns), {2, kColumns}));

    Dense dense;
    dense.score = [&](double s, auto, auto h, auto, auto kv) { return s + at(h * kColumns + kv); };
    check(p, dense,
          {.mod = Mod([=](auto s, auto, auto h, auto, auto kv) { return s + columns(h, kv); })});
    dense.score = [&](double s, auto, auto, auto q, auto) { return s * (1 + at(q)); };
    check(p, dense,
          {.mod = Mod([=](auto s, auto, auto, auto q, auto) { return s * (1.0f + flat[q]); })});
    dense.score = [&](double s, auto, auto h, auto q, auto kv) {
        return s + at((h * kRows + q) * kColumns + kv);
    };
    check(p, dense, {.mod = scores::bias(wide)});
    // Negative indices count from the end.
    dense.score = [&](double s, auto, auto, auto q, auto kv) {
        const std::int64_t index = q - kv + 7;
        return s + at(index < 0 ? index + 2 * kRows * kColumns : index);
    };
    check(p, dense,
          {.mod = Mod([=](auto s, auto, auto, auto q, auto kv) { return s + flat[q - kv + 7]; })});
}

// A mod may mask: rows whose first keys, or all keys, are masked, and conditions on positions.
TEST_F(Sm90ProgrammableGpu, ModsThatGiveMinusInfinity) {
    Dense dense;
    dense.attends = [](auto q, auto kv) { return kv >= q + 100; };
    const Problem p{.heads = 2, .kv_heads = 2, .q_len = 400, .kv_len = 450};
    const Mod mod([](auto s, auto, auto, auto q, auto kv) {
        return tilewright::where(kv >= q + 100, s, -INFINITY);
    });
    check(p, dense, {.mod = mod});
    const ir::Function mask =
        *mod::trace(Mod([](auto, auto, auto q, auto kv) { return kv >= q + 100; })).function;
    EXPECT_EQ(with_mask(nullptr, mask).parameters().size(), 5u);
}

TEST_F(Sm90ProgrammableGpu, ListedMasks) {
    Dense dense;
    const auto check_all = [&] {
        for (std::int64_t dim : {64, 128, 192, 256}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 450,
                   .kv_len = 450,
                   .dim = dim,
                   .value_dim = dim},
                  dense, {.listed = true});
        }
        for (const bool small_tiles : {false, true}) {
            check({.batch = 2,
                   .heads = 20,
                   .kv_heads = 10,
                   .q_len = 200,
                   .kv_len = 300,
                   .dim = 64,
                   .value_dim = 64},
                  dense, {.listed = true, .small_tiles = small_tiles});
        }
    };
    dense.attends = [](auto q, auto kv) { return kv <= q; };
    check_all();
    dense.attends = [](auto q, auto kv) { return kv <= q && q - kv <= 150; };
    check_all();
    dense.attends = [](auto q, auto kv) { return q / 130 == kv / 130 && kv <= q; };
    check_all();
}

// Masked blocks in long rows, single ones and all of them, for one warpgroup and for all.
TEST_F(Sm90ProgrammableGpu, ListedMasksWithHoles) {
    std::mt19937 generator(9);
    for (double density : {0.02, 0.3, 0.9}) {
        std::vector<bool> alive(64 * 64), pairs(7919);
        for (std::size_t i = 0; i < alive.size(); ++i)
            alive[i] = generator() % 1000 < density * 1000;
        for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = generator() % 2 == 0;
        Dense dense;
        dense.attends = [&](auto q, auto kv) {
            const bool block = alive[static_cast<std::size_t>(q / 64 * 64 + kv / 64)];
            const auto pair = static_cast<std::size_t>((q * 4001 + kv) % 7919);
            return block && (q / 64 % 3 == 1 || pairs[pair]);
        };
        for (std::int64_t dim : {64, 256}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 400,
                   .kv_len = 2500,
                   .dim = dim,
                   .value_dim = dim},
                  dense, {.listed = true});
        }
    }
}

TEST_F(Sm90ProgrammableGpu, ListsAndModsTogether) {
    Dense dense;
    dense.score = [](double s, auto, auto h, auto q, auto kv) {
        return s + slope_of(h, 4) * static_cast<double>(kv - q);
    };
    dense.attends = [](auto q, auto kv) { return q / 130 == kv / 130 || kv < 20; };
    for (std::int64_t dim : {64, 128}) {
        check(
            {.heads = 4, .kv_heads = 4, .q_len = 700, .kv_len = 700, .dim = dim, .value_dim = dim},
            dense, {.mod = scores::alibi(4), .listed = true});
    }
}

TEST_F(Sm90ProgrammableGpu, SinksAndMaxima) {
    Dense dense;
    dense.sinks = {-100.0, 0.5, 3.0, 200.0};
    const Problem p{.heads = 4, .kv_heads = 4, .q_len = 200, .kv_len = 300, .causal = true};
    check(p, dense, {});
    check(p, dense, {.row_max = true});
    dense.attends = [](auto q, auto) { return q > 150; };  // some rows have only a sink
    Problem full = p;
    full.causal = false;
    check(full, dense, {.listed = true, .row_max = true});
}

// Few query rows with split-KV: sinks are added once, mods and dropout apply to every split.
TEST_F(Sm90ProgrammableGpu, FewRowsOverManyKeys) {
    const Problem p{.heads = 8, .kv_heads = 2, .q_len = 3, .kv_len = 3000};
    Dense dense;
    dense.sinks = {-100.0, 0.5, 3.0, 6.0, 200.0, 1.0, 2.0, 8.0};
    check(p, dense, {});
    check(p, dense, {.row_max = true});
    dense.sinks.clear();
    dense.score = [](double s, auto, auto h, auto q, auto kv) {
        return s + slope_of(h, 8) * static_cast<double>(kv - q);
    };
    check(p, dense, {.mod = scores::alibi(8)});
    dense = Dense{};
    dense.keep = [](auto b, auto h, auto q, auto kv) { return kept_by_bits(0.25, b, h, q, kv); };
    check(p, dense, {.dropout = 0.25});
}

TEST_F(Sm90ProgrammableGpu, ScoresThatJumpUnderAMod) {
    Dense dense;
    dense.score = [](double s, auto, auto h, auto q, auto kv) {
        return s + slope_of(h, 2) * static_cast<double>(kv - q);
    };
    for (double growth : {5.0, 100.0}) {
        for (bool listed : {false, true}) {
            check({.heads = 2, .kv_heads = 2, .q_len = 200, .kv_len = 900}, dense,
                  {.mod = scores::alibi(2), .listed = listed, .key_growth = growth});
        }
    }
}

// Ids in any order; sorted ones mask whole blocks.
TEST_F(Sm90ProgrammableGpu, Segments) {
    constexpr std::int64_t kLength = 420;
    for (std::int64_t width : {1, 37, 130, 1000}) {
        for (bool sorted : {true, false}) {
            std::vector<std::int32_t> ids(2 * kLength);
            for (std::int64_t i = 0; i < 2 * kLength; ++i) {
                const std::int64_t at = i % kLength;
                ids[static_cast<std::size_t>(i)] =
                    static_cast<std::int32_t>(sorted ? at / width : at * 7919 % kLength / width);
            }
            Dense dense;
            dense.attends = [&](auto q, auto kv) {
                return ids[static_cast<std::size_t>(q)] == ids[static_cast<std::size_t>(kv)];
            };
            for (std::int64_t dim : {64, 128, 256}) {
                check({.batch = 2,
                       .heads = 2,
                       .kv_heads = 2,
                       .q_len = kLength,
                       .kv_len = kLength,
                       .dim = dim,
                       .value_dim = dim,
                       .causal = width != 37},
                      dense, {.segments = ids});
            }
        }
    }
}

TEST_F(Sm90ProgrammableGpu, DropoutDropsThePairsOfItsBits) {
    constexpr double kRate = 0.25;
    Dense dense;
    dense.keep = [](auto b, auto h, auto q, auto kv) { return kept_by_bits(kRate, b, h, q, kv); };
    for (std::int64_t dim : {64, 128}) {
        check({.batch = 2,
               .heads = 2,
               .kv_heads = 1,
               .q_len = 200,
               .kv_len = 300,
               .dim = dim,
               .value_dim = dim,
               .causal = true},
              dense, {.dropout = kRate});
    }
}

// Packed sequences give the same results as each alone; one has no rows, one has no keys.
TEST_F(Sm90ProgrammableGpu, PackedSequences) {
    const std::vector<std::int32_t> q_starts{0, 100, 100, 350, 351, 700};
    const std::vector<std::int32_t> kv_starts{0, 130, 200, 200, 500, 800};
    const auto count = static_cast<std::int64_t>(q_starts.size()) - 1;
    for (std::int64_t dim : {64, 128, 256}) {
        const Problem p{.heads = 4,
                        .kv_heads = 2,
                        .q_len = 700,
                        .kv_len = 800,
                        .dim = dim,
                        .value_dim = dim,
                        .causal = true};
        const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
        const Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
        Device device(p, q, k, v);
        Buffer starts(0, 4096);
        starts.upload(q_starts.data(), 4 * q_starts.size());
        starts.upload(kv_starts.data(), 4 * kv_starts.size(), 2048);
        device.inputs.q_starts = starts.address();
        device.inputs.kv_starts = starts.address() + 2048;
        device.inputs.sequences = count;
        const ForwardDesc desc = check_forward(device.inputs);
        Buffer workspace(0, forward_workspace_bytes(desc, choose_forward(desc, 132)));
        device.inputs.workspace = workspace.address();
        const cuda::Stream stream(0);
        forward(device.inputs, stream.handle());
        stream.synchronize();
        std::vector<std::uint16_t> bits(q.data.size());
        std::vector<float> lse(static_cast<std::size_t>(p.heads * p.q_len));
        device.out.buffer.download(bits.data(), bits.size() * 2, kGuard);
        device.lse.buffer.download(lse.data(), lse.size() * 4, kGuard);
        EXPECT_TRUE(device.guards_intact());
        for (std::size_t n = 0; n + 1 < q_starts.size(); ++n) {
            const std::int64_t rows = q_starts[n + 1] - q_starts[n];
            const std::int64_t keys = kv_starts[n + 1] - kv_starts[n];
            if (rows == 0) continue;
            std::vector<double> got, truth;
            for (std::int64_t h = 0; h < p.heads; ++h) {
                for (std::int64_t i = 0; i < rows; ++i) {
                    const std::int64_t row = q_starts[n] + i;
                    std::vector<double> sum(static_cast<std::size_t>(dim), 0.0);
                    double total = 0;
                    for (std::int64_t j = 0; j < keys && j <= i; ++j) {
                        double score = 0;
                        for (std::int64_t d = 0; d < dim; ++d) {
                            score += q.row(0, h, row)[d] * k.row(0, h / 2, kv_starts[n] + j)[d];
                        }
                        const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
                        total += weight;
                        for (std::int64_t d = 0; d < dim; ++d) {
                            sum[static_cast<std::size_t>(d)] +=
                                weight * v.row(0, h / 2, kv_starts[n] + j)[d];
                        }
                    }
                    const auto index = static_cast<std::size_t>(h * p.q_len + row);
                    const double expected = std::log(total);  // -inf without a key
                    const bool same =
                        lse[index] == expected || std::abs(lse[index] - expected) <= 1e-3;
                    ASSERT_TRUE(same) << "lse of sequence " << n << ", row " << i << ": "
                                      << lse[index] << " against " << expected;
                    for (std::size_t d = 0; d < sum.size(); ++d) {
                        truth.push_back(total > 0 ? sum[d] / total : 0);
                        got.push_back(from_bits(bits[index * sum.size() + d], p.dtype));
                    }
                }
            }
            SCOPED_TRACE(fmt::format("sequence {}", n));
            expect_near("out", got, truth, 1.0 / 256, largest_allowed({}, truth, p.dtype));
        }
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
