// Masks as data, segments, packed sequences, sinks and dropout of the Hopper backward kernels on a
// Hopper GPU: gradients against a dense computation in f64.
#include "tests/attention/sm90_programmable_backward.h"

namespace tilewright::attn::sm90 {
namespace {

TEST_F(Sm90ProgrammableBackwardGpu, ListedMasks) {
    Dense dense;
    bool deterministic = false;
    const auto check_all = [&] {
        for (std::int64_t dim : dims()) {
            deterministic = !deterministic;
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 450,
                   .kv_len = 450,
                   .dim = dim,
                   .value_dim = dim},
                  dense, {.listed = true, .deterministic = deterministic});
        }
        check({.batch = 2,
               .heads = 6,
               .kv_heads = 2,
               .q_len = 200,
               .kv_len = 300,
               .dim = 64,
               .value_dim = 64},
              dense, {.listed = true, .deterministic = true});
    };
    dense.attends = [](auto q, auto kv) { return kv <= q; };
    check_all();
    dense.attends = [](auto q, auto kv) { return kv <= q && q - kv <= 150; };
    check_all();
    dense.attends = [](auto q, auto kv) { return q / 130 == kv / 130 && kv <= q; };
    check_all();
    dense.attends = [](auto q, auto kv) { return kv < 70 || q > 400; };
    check_all();
    dense.head_attends = [](auto h, auto q, auto kv) { return kv + 60 * h <= q; };
    check_all();
}

TEST_F(Sm90ProgrammableBackwardGpu, ListedMasksWithHoles) {
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
        for (std::int64_t dim : {std::int64_t{64}, std::int64_t{128}, std::int64_t{256}}) {
            for (bool deterministic : {false, true}) {
                check({.heads = 2,
                       .kv_heads = 1,
                       .q_len = 1500,
                       .kv_len = 400,
                       .dim = dim,
                       .value_dim = dim},
                      dense, {.listed = true, .deterministic = deterministic});
            }
        }
    }
}

// Ids in any order; sorted ones mask whole blocks.
TEST_F(Sm90ProgrammableBackwardGpu, Segments) {
    constexpr std::int64_t kLength = 420;
    bool deterministic = false;
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
            // With segments of one pair, dQ and dK are nothing but rounding errors.
            if (width == 1)
                dense.attends = [](auto, auto) { return true; }, ids.assign(ids.size(), 3);
            for (std::int64_t dim : dims()) {
                deterministic = !deterministic;
                check({.batch = 2,
                       .heads = 2,
                       .kv_heads = 2,
                       .q_len = kLength,
                       .kv_len = kLength,
                       .dim = dim,
                       .value_dim = dim,
                       .causal = width != 37},
                      dense, {.segments = ids, .deterministic = deterministic});
            }
        }
    }
}

TEST_F(Sm90ProgrammableBackwardGpu, Sinks) {
    Dense dense;
    dense.sinks = {-100.0, 0.5, 3.0, 10.0};
    for (std::int64_t dim : dims()) {
        const Problem p{.batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 200,
                        .kv_len = 300,
                        .dim = dim,
                        .value_dim = dim,
                        .causal = true};
        check(p, dense, {.deterministic = true});
    }
}

TEST_F(Sm90ProgrammableBackwardGpu, DropoutDropsThePairsOfTheForward) {
    constexpr double kRate = 0.25;
    Dense dense;
    dense.keep = [](auto b, auto h, auto q, auto kv) { return kept_by_bits(kRate, b, h, q, kv); };
    for (std::int64_t dim : dims()) {
        check({.batch = 2,
               .heads = 2,
               .kv_heads = 1,
               .q_len = 200,
               .kv_len = 300,
               .dim = dim,
               .value_dim = dim,
               .causal = true},
              dense, {.dropout = kRate, .deterministic = dim == 64});
    }
}

// Packed sequences give the same results as each sequence alone.
TEST_F(Sm90ProgrammableBackwardGpu, PackedSequences) {
    const PackedRows rows;
    for (std::int64_t dim : dims()) {
        for (bool deterministic : {false, true}) {
            SCOPED_TRACE(fmt::format("D{}{}", dim, deterministic ? " ordered" : ""));
            Problem p = rows.problem(dim);
            p.causal = true;
            const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
            const Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
            const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
            const Array dout = Sample(p, p.heads, p.q_len, p.value_dim, 4).exact;
            Dense dense;
            Run run(p, dense, {.deterministic = deterministic}, q, k, v, dout,
                    [&](Programmed& problem) { rows.apply(problem); });
            run.launch();
            dense.attends = [&](auto row, auto kv) {
                return rows.together(row, kv) && rows.key(kv) <= rows.query(row);
            };
            p.causal = false;
            run.compare(p, dense_gradients(p, dense, q, k, v, dout), kTolerance);
        }
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
