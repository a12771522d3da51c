// Chains of the tile machine, their fused runs and their stores, against the reference interpreter.
#include <gmock/gmock.h>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Reduction;
using ir::Shape;
using ir::Type;
using ir::Value;

TEST(Machine, StripsReadRowsOfArraysInPlace) {
    for (const std::int64_t n : {70, 1000, 2100}) {
        Agreement test({2});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const Value x = test.array(DType::f32, {7, n}), bias = test.array(DType::f32, {n}),
                    y = test.array(DType::f32, {7, n});
        const Value row = b.binary(Op::mul, b.program_id(0), k.index(4));
        const std::vector rows{IndexOperand::slice(row, 4), k.slice(0, n)};
        const Shape shape{4, n};
        const Value tile = k.load(x, rows);
        const Value shift = b.broadcast(b.expand_dims(k.load(bias, {k.slice(0, n)}), 0), shape);
        const Value moved = b.binary(Op::add, tile, shift);
        const Value total = b.reduce(Reduction::sum, b.binary(Op::mul, moved, tile), 1);
        k.store(y, rows, b.binary(Op::mul, moved, b.broadcast(b.expand_dims(total, 1), shape)));
        test.check(1e-4);
        EXPECT_EQ(to_string(*compile(k.function)).find("= load"), std::string::npos);
    }
}

TEST(Machine, ChainsStoreToTheArray) {
    for (const std::int64_t n : {5, 70, 1100}) {
        for (const std::int64_t start : {0, 3, -2}) {
            Agreement test({2});
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const Value x = test.array(DType::f32, {7, n}), y = test.array(DType::f32, {7, n}),
                        z = test.array(DType::bf16, {7, n}), w = test.array(DType::f64, {7, n});
            const Value row = b.binary(Op::mul, b.program_id(0), k.index(4));
            const std::vector rows{IndexOperand::slice(row, 4), k.slice(start, n)};
            const Value tile = k.load(x, {IndexOperand::slice(row, 4), k.slice(0, n)});
            const Value sum = b.binary(Op::add, tile, tile);
            const Value product = b.binary(Op::mul, sum, tile);
            k.store(y, rows, product);
            k.store(z, rows, b.cast(product, DType::bf16));
            const Value mask = b.binary(Op::lt, tile, b.constant({DType::f32, {4, n}}, 0));
            k.store(w, rows, b.cast(sum, DType::f64), mask);
            test.check();
            const std::string listing = to_string(*compile(k.function));
            EXPECT_NE(listing.find(" = store t"), std::string::npos) << listing;
        }
    }
}

// A body unrolled many times: chains of 64 ops, each using several others and sums of rows.
TEST(Machine, UnrolledBodiesAgree) {
    Agreement test({1});
    Kernel& k = test.k;
    ir::Builder& b = k.b;
    const Shape shape{5, 40};
    std::vector<Value> values;
    for (int i = 0; i < 4; ++i) values.push_back(test.load_all(test.array(DType::f32, {5, 40})));
    for (std::size_t i = 0; i < 1500; ++i) {
        const Value& recent = values.back();
        const Value& older = values[values.size() - 1 - i * i % std::min<std::size_t>(i + 1, 90)];
        if (i % 7 == 3) {
            const Value sum = b.reduce(Reduction::max, older, 1);
            values.push_back(b.binary(Op::min, recent, b.broadcast(b.expand_dims(sum, 1), shape)));
        } else {
            values.push_back(b.binary(i % 3 == 0 ? Op::sub : Op::max, recent, older));
        }
    }
    const Value y = test.array(DType::f32, {5, 40});
    k.store(y, {k.slice(0, 5), k.slice(0, 40)}, values.back());
    test.check(0);
}

// Chains of many ops run on blocks of lanes in registers; panels end within a block.
TEST(Machine, LongChainsAgree) {
    for (const std::int64_t n : {64, 100, 1300}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32}) {
            Agreement test({2});
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const Shape shape{5, n};
            const auto load = [&](DType type, std::vector<std::int64_t> extents) {
                return test.load_all(test.array(type, std::move(extents)));
            };
            const auto row = [&](Value v) { return b.broadcast(b.expand_dims(v, 0), shape); };
            const auto column = [&](Value v) { return b.broadcast(b.expand_dims(v, 1), shape); };
            const auto splat = [&](double x) { return b.constant({dtype, shape}, x); };
            const Value x = load(dtype, {5, n}), y = load(dtype, {5, n});
            const Value lanes = row(load(dtype, {n})), rows = column(load(dtype, {5}));
            const Value flags = load(DType::boolean, {5, n});
            Value v = b.binary(Op::mul, b.binary(Op::add, x, y), splat(2));
            const Value square = b.binary(Op::mul, v, v);
            v = b.binary(Op::sub, square, b.binary(Op::min, lanes, v));
            v = b.binary(Op::max, v, rows);
            const Value above = b.binary(Op::gt, v, x), other = b.binary(Op::le, y, lanes);
            const Value mask = b.binary(Op::bitwise_xor, b.binary(Op::bitwise_or, above, flags),
                                        b.unary(Op::bitwise_not, other));
            v = b.select(mask, v, b.unary(Op::neg, square));
            v = b.select(flags, b.unary(Op::abs, v), y);
            test.keep(mask);
            test.keep(b.select(other, lanes, v));
            test.keep(b.cast(above, DType::f32));
            test.keep(b.cast(v, DType::f32));
            if (is_float(dtype)) {
                test.keep(b.fma(x, v, y));
                test.keep(b.clamp(v, splat(-1), rows));
                test.keep(b.reduce(Reduction::max, v, 1));
            }
            test.keep(v);
            test.check(dtype == DType::i32 ? 0 : 1e-2);
        }
    }
}

// A run ends where it would need more operands than it has; the places of the op that did not fit
// must not stay with the first step of the next attempt.
TEST(Machine, RunsOfTooManyOperandsAreDivided) {
    for (const std::size_t back : {1, 2, 5}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const auto load = [&] { return test.load_all(test.array(DType::f32, {6, 128})); };
        const auto splat = [&](double x) { return b.constant({DType::f32, {6, 128}}, x); };
        std::vector<Value> values{load()};
        for (int i = 0; i < 40; ++i) {
            const Value older = values[values.size() - std::min(values.size(), back)];
            const Value next = b.fma(values.back(), i % 3 == 0 ? load() : older, older);
            values.push_back(b.binary(Op::min, b.binary(Op::max, next, splat(-2)), splat(2)));
        }
        test.keep(values.back());
        test.check(1e-3);
    }
}

// The ops of a run alternate block by block: results must not overwrite what it still reads.
TEST(Machine, FusedRunsKeepWhatTheyRead) {
    Agreement test;
    ir::Builder& b = test.k.b;
    const auto load = [&](DType dtype) { return test.load_all(test.array(dtype, {40, 128})); };
    const Value x = load(DType::f32), y = load(DType::f32), flags = load(DType::boolean);
    const Value later = b.binary(Op::ge, load(DType::i64), load(DType::i64));
    const Value both = b.binary(Op::bitwise_and, later, flags);
    const Value product = b.binary(Op::mul, x, y);
    const Value sine = b.unary(Op::sin, product);
    test.keep(b.select(both, sine, b.binary(Op::add, product, y)));
    test.check(1e-5);
}

// Positions are computed, not stored: base + row * a + lane * b.
TEST(Machine, ComparisonsOfTruthInChains) {
    for (const std::int64_t n : {64, 100}) {
        for (const Op op : {Op::lt, Op::le, Op::gt, Op::ge, Op::eq, Op::ne}) {
            Agreement test;
            ir::Builder& b = test.k.b;
            const Value x = test.load_all(test.array(DType::f32, {5, n})),
                        y = test.load_all(test.array(DType::f32, {5, n}));
            const Value zero = b.constant({DType::f32, {5, n}}, 0);
            const Value p = b.binary(Op::lt, x, zero), q = b.binary(Op::lt, y, zero);
            const Value chosen = b.binary(op, p, q);
            const Value sum = b.binary(Op::add, x, y), product = b.binary(Op::mul, sum, y);
            test.keep(b.select(chosen, b.binary(Op::sub, product, x), sum));
            test.check();
        }
    }
}

TEST(Machine, PositionsInChains) {
    for (const DType dtype : {DType::i32, DType::i64}) {
        for (const std::int64_t base : {std::int64_t{0}, std::int64_t{1} << 40}) {
            if (base > 0 && dtype == DType::i32) continue;
            Agreement test({3});
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const Shape shape{40, 70};
            const Type type{dtype, shape};
            const Value x = test.load_all(test.array(DType::f32, {40, 70}));
            const Value start = b.cast(b.binary(Op::mul, b.program_id(0), k.index(7)), dtype);
            const auto splat = [&](double c) { return b.constant({dtype, shape}, c); };
            const Value q = b.binary(Op::add, b.iota(type, 1), b.broadcast(start, shape));
            const Value kv = b.binary(Op::add, b.iota(type, 0), b.constant_int(type, base));
            const Value distance = b.binary(Op::sub, q, b.binary(Op::mul, kv, splat(2)));
            const Value slope = b.constant({DType::f32, shape}, 0.5);
            Value score =
                b.binary(Op::add, x, b.binary(Op::mul, b.cast(distance, DType::f32), slope));
            score = b.select(b.binary(Op::eq, distance, splat(3)), x, score);
            score = b.select(b.binary(Op::ne, q, splat(5)), score, slope);
            score = b.select(b.binary(Op::bitwise_or, b.binary(Op::lt, distance, splat(20)),
                                      b.binary(Op::ge, kv, q)),
                             score, b.binary(Op::mul, score, x));
            const Value out = test.array(DType::f32, {3, 40, 70});
            const Value kept = test.array(dtype, {3, 40, 70});
            const std::vector all{IndexOperand::scalar(b.program_id(0)), k.slice(0, 40),
                                  k.slice(0, 70)};
            k.store(out, all, score);
            k.store(kept, all, distance);
            test.check();
        }
    }
}

// Rows much longer than a block: passes that reduce, recompute and store, with totals in place.
TEST(Machine, WideRowsInALoop) {
    for (const std::int64_t n : {64, 130, 1000, 4096, 5000}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
            Agreement test({2});
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const DType wide = dtype == DType::f64 ? dtype : DType::f32;
            const Shape shape{n};
            const Value x = test.array(dtype, {7, n}), y = test.array(dtype, {7, n});
            const Value sums = test.array(wide, {2, n}), spans = test.array(wide, {7});
            const Value weight = test.load_all(test.array(wide, {n}));
            const Value first = b.binary(Op::mul, b.program_id(0), k.index(4));
            const Value last = b.binary(Op::min, b.binary(Op::add, first, k.index(4)), k.index(7));
            const auto totals = b.for_loop(
                first, last, k.index(1), std::vector{b.constant({wide, shape}, 0)},
                [&](Value r, std::span<const Value> carried) {
                    const std::vector row{IndexOperand::scalar(r), k.slice(0, n)};
                    const Value value = b.cast(k.load(x, row), wide);
                    const Value mean = b.binary(Op::div, b.reduce(Reduction::sum, value, 0),
                                                b.constant({wide, {}}, static_cast<double>(n)));
                    const Value centred = b.binary(Op::sub, value, b.broadcast(mean, shape));
                    const Value scaled = b.binary(Op::mul, value, weight);
                    const Value squares =
                        b.reduce(Reduction::sum, b.binary(Op::mul, centred, scaled), 0);
                    const Value span = b.binary(Op::sub, b.reduce(Reduction::max, centred, 0),
                                                b.reduce(Reduction::min, scaled, 0));
                    const Value ratio = b.binary(Op::div, squares, span);
                    const Value result = b.binary(
                        Op::sub, b.binary(Op::mul, centred, b.broadcast(ratio, shape)), scaled);
                    k.store(y, row, b.cast(result, dtype));
                    k.store(spans, {IndexOperand::scalar(r)}, span);
                    return std::vector{b.fma(centred, value, carried[0])};
                });
            k.store(sums, {IndexOperand::scalar(b.program_id(0)), k.slice(0, n)}, totals[0]);
            // f32 sums of n terms, and bf16 results next to a rounding boundary.
            test.check(dtype == DType::bf16 ? 1e-2 : 1e-4);
            const std::string listing = to_string(*compile(k.function));
            const std::string loop = listing.substr(listing.find("jump"));
            EXPECT_EQ(loop.find(" = move"), std::string::npos) << listing;
            if (kernels().fused.run && n == 4096 && wide == DType::f32) {
                EXPECT_THAT(loop, ::testing::ContainsRegex("[|#] v")) << listing;
                EXPECT_THAT(
                    loop,
                    ::testing::Not(::testing::ContainsRegex("\n *b[0-9]")));  // a separate step
            }
        }
    }
}

// The result depends on the order of stores and loads of one array.
TEST(Machine, StoresKeepTheirOrder) {
    for (const std::int64_t n : {70, 2100}) {
        Agreement test;
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const Value x = test.array(DType::f32, {4, n}), y = test.array(DType::f32, {6, n + 1});
        const std::vector all{k.slice(0, 4), k.slice(0, n)};
        const Value tile = k.load(x, all);
        const Value sum = b.binary(Op::add, tile, tile);
        k.store(y, {k.slice(0, 4), k.slice(0, n)}, sum);
        k.store(y, {k.slice(1, 4), k.slice(1, n)}, b.binary(Op::mul, sum, tile));
        const Value again = k.load(y, {k.slice(0, 4), k.slice(1, n)});
        k.store(y, {k.slice(2, 4), k.slice(0, n)}, b.binary(Op::add, again, sum));
        k.store(x, all, b.binary(Op::sub, sum, again));
        test.check();
    }
}

// Halves of rows, as a rotation writes them: they are disjoint. Overlapping ones keep their order.
TEST(Machine, StoresToOtherPartsShareAChain) {
    for (const std::int64_t second : {70, 69, -1}) {
        Agreement test({2});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const Value x = test.array(DType::f32, {6, 140}), y = test.array(DType::f32, {6, 140});
        const Value row = b.binary(Op::mul, b.program_id(0), k.index(3));
        const auto part = [&](std::int64_t start) {
            return std::vector{IndexOperand::slice(row, 3), k.slice(start, 70)};
        };
        const Value left = k.load(x, part(0)), right = k.load(x, part(70));
        const Value product = b.binary(Op::mul, left, right);
        k.store(y, part(0), b.binary(Op::sub, left, product));
        k.store(y, part(second), b.binary(Op::add, right, product));
        test.check();
        const std::string listing = to_string(*compile(k.function));
        const std::size_t chain = listing.find("strips");
        EXPECT_EQ(listing.find("strips", chain + 1) == std::string::npos, second == 70) << listing;
    }
}

TEST(Machine, LongArraysAreWrittenPastTheCaches) {
    constexpr std::int64_t kRows = 4096;
    const std::int64_t n = StoreView::kStreamedBytes / kRows / 4 + 3;  // rows are not aligned
    std::vector<float> x(static_cast<std::size_t>(3 * n)), y(static_cast<std::size_t>(kRows * n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1000);
    Array<float> in(x, {3, n}), out(y, {kRows, n});
    Kernel k("stream", {3});
    const Value source = k.ref("x", DType::f32, {3, n}), to = k.ref("y", DType::f32, {kRows, n});
    const IndexOperand row = IndexOperand::scalar(k.b.program_id(0));
    const Value tile = k.load(source, {row, k.slice(0, n)});
    k.store(to, {row, k.slice(0, n)}, k.b.binary(Op::add, tile, tile));
    k.done();
    run(*compile(k.function), arguments({in.argument(), out.argument()}, {3}));
    for (std::size_t i = 0; i < out.data.size(); ++i) {
        ASSERT_EQ(out.data[i], i < x.size() ? 2 * x[i] : 0) << i;
    }
}

/// P = exp2(S - m), where wanted below a diagonal, dS = P * (dP - delta), and their products.
void build_gradients(Agreement& test, std::int64_t keys, bool causal) {
    constexpr std::int64_t kQueries = 160, kDim = 48;
    Kernel& k = test.k;
    ir::Builder& b = k.b;
    const DType bf16 = DType::bf16;
    const auto load = [&](std::int64_t rows) {
        return test.load_all(test.array(bf16, {rows, kDim}));
    };
    const Value q = load(kQueries), d_out = load(kQueries), key = load(keys), value = load(keys);
    const Shape scores{kQueries, keys};
    const Value shift = b.binary(Op::add, test.load_all(test.array(DType::f32, {kQueries})),
                                 b.constant({DType::f32, {kQueries}}, 4)),
                delta = test.load_all(test.array(DType::f32, {kQueries}));
    const auto column = [&](Value v) { return b.broadcast(b.expand_dims(v, 1), scores); };
    const Value s = b.dot(q, key, {}, {false, true}), dp = b.dot(d_out, value, {}, {false, true});
    Value p = b.unary(Op::exp2, b.fma(s, b.constant({DType::f32, scores}, 0.125),
                                      column(b.unary(Op::neg, shift))));
    if (causal) {
        const Value row = b.iota({DType::i32, scores}, 0), lane = b.iota({DType::i32, scores}, 1);
        const Value ahead = b.constant_int({DType::i32, scores}, 20);
        p = b.select(b.binary(Op::le, lane, b.binary(Op::add, row, ahead)), p,
                     b.constant({DType::f32, scores}, 0));
    }
    const Value ds = b.cast(b.binary(Op::mul, p, b.binary(Op::sub, dp, column(delta))), bf16),
                weights = b.cast(p, bf16);
    const auto store = [&](std::int64_t rows, Value result) {
        k.store(test.array(DType::f32, {rows, kDim}), {k.slice(0, rows), k.slice(0, kDim)}, result);
    };
    store(kQueries, b.dot(ds, key));
    store(keys, b.dot(ds, q, {}, {true, false}));
    store(keys, b.dot(weights, d_out, {}, {true, false}));
}

TEST(Machine, GradientsOfAttentionBecomePairsInOneRun) {
    for (const std::int64_t keys : {64, 80, 128}) {
        for (const bool causal : {false, true}) {
            Agreement test({1});
            build_gradients(test, keys, causal);
            // The exponential of the run differs from that of the ops by up to 2^-18, so that a few
            // numbers round to bf16 the other way: by 2^-4 if they are between 8 and 16. Sums may
            // be near 0, so this bounds the difference itself.
            test.check(0.1);
            // Products of AMX take other operands, which the chain does not write.
            if (kernels().super.gradient_pairs == nullptr || kernels().name == "amx") continue;
            const std::string listing = to_string(*compile(test.k.function));
            EXPECT_NE(listing.find("# t0 = exp2_sum"), std::string::npos) << listing;
            EXPECT_EQ(listing.find("= interleave b"), std::string::npos) << listing;
        }
    }
}

TEST(Machine, ProductsFindMaxima) {
    for (const std::int64_t columns : {64, 70, 150}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(DType::bf16, {40, 32})),
                    y = test.load_all(test.array(DType::bf16, {32, columns}));
        const Value scores = b.dot(x, y), high = b.reduce(Reduction::max, scores, 0);
        const Value below = b.broadcast(b.expand_dims(high, 0), {40, columns});
        test.keep(b.unary(Op::exp2, b.binary(Op::sub, scores, below)));
        test.check(1e-5);
        if (!kernels().finds_maxima) continue;
        const std::string listing = to_string(*compile(test.k.function));
        EXPECT_NE(listing.find(", max b"), std::string::npos) << listing;
        EXPECT_EQ(listing.find("= reduce"), std::string::npos) << listing;
    }
}

}  // namespace
}  // namespace tilewright::cpu
