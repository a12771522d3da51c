// Score mods, listed masks, sinks and exact maxima of the Hopper forward kernel: their text, that
// they compile cleanly, and, on a Hopper GPU, results against a dense computation in f64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "attention/sm90/mask_lists.h"
#include "mask/dense.h"
#include "mod/traced.h"
#include "tests/attention/sm90_support.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::attn::sm90 {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<CaptureView> views_of(const std::vector<Capture>& captures,
                                  const std::vector<cuda::DeviceAddress>& addresses) {
    std::vector<CaptureView> views;
    for (std::size_t i = 0; i < captures.size(); ++i) {
        const Tensor& tensor = captures[i].tensor();
        views.push_back({addresses[i], tensor.dtype(), tensor.shape(), tensor.strides()});
    }
    return views;
}

std::string text_of(const Mod& mod, std::int64_t length = 8192) {
    const mod::Traced& traced = mod::trace(mod);
    const std::vector<cuda::DeviceAddress> addresses(traced.captures.size(), 1 << 20);
    const std::vector<CaptureView> views = views_of(traced.captures, addresses);
    return score_mod_header(*traced.function,
                            score_mod_facts(*traced.function, views, length, length));
}

/// The text of `exponent`, which runs for every score.
std::string exponent_of(const Mod& mod) {
    const std::string text = text_of(mod);
    return text.substr(text.find("float exponent("));
}

TEST(Sm90ScoreMod, AffinePartsJoinTheExponent) {
    // One multiply-add for the position, one for the score; the slope is read once for a tile.
    const Tensor slopes = Tensor::zeros(f32, {16});
    const std::string whole = text_of(scores::alibi(capture(slopes)));
    EXPECT_THAT(whole.substr(0, whole.find("enter_rows")), HasSubstr("__ldg"));
    const std::string text = exponent_of(scores::alibi(capture(slopes)));
    EXPECT_THAT(text,
                HasSubstr("fmaf(score, (1.442695f * scale), fmaf(static_cast<float>(offset),"));
    EXPECT_THAT(text, Not(HasSubstr("__ldg")));
    // A cap's division and both its factors are constants.
    EXPECT_THAT(exponent_of(scores::softcap(20, true)), HasSubstr("ptx::tanh_approx"));
    EXPECT_THAT(exponent_of(scores::softcap(20, true)), Not(HasSubstr(" / ")));
    EXPECT_THAT(exponent_of(scores::softcap(20)), HasSubstr("tanhf"));
}

TEST(Sm90ScoreMod, PositionsBeyondF32AreConvertedOneByOne) {
    const Mod mod = scores::alibi(8);
    EXPECT_THAT(text_of(mod, 1 << 21), HasSubstr("static_cast<float>(offset)"));
    EXPECT_THAT(text_of(mod, 1 << 25), Not(HasSubstr("static_cast<float>(offset)")));
}

TEST(Sm90ScoreMod, ColumnsAreReadInPairsWhereThatIsSafe) {
    const auto mod = [](std::int64_t extent) {
        return Mod(
            [table = capture(Tensor::zeros(bf16, {4, extent}))](
                auto s, auto, auto h, auto, auto kv) { return s + cast(table(h, kv), f32); });
    };
    EXPECT_THAT(text_of(mod(8192)), HasSubstr("load_pair"));
    EXPECT_THAT(text_of(mod(8193)), Not(HasSubstr("load_pair")));  // the last pair leaves the array
    EXPECT_THAT(text_of(mod(4096)), Not(HasSubstr("load_pair")));  // columns beyond it are clamped
}

TEST(Sm90ScoreMod, ReadsNothingOfAnEmptyArray) {
    const Mod mod([table = capture(Tensor::zeros(f32, {0}))](auto s, auto, auto h, auto, auto) {
        return s + table[h];
    });
    EXPECT_THAT(text_of(mod), Not(HasSubstr("__ldg")));
}

TEST(Sm90ScoreMod, RefusesByName) {
    const Mod mod([table = capture(Tensor::zeros(f8e5m2, {4}))](auto s, auto, auto h, auto, auto) {
        return s + cast(table[h], f32);
    });
    try {
        text_of(mod);
        FAIL() << "accepted";
    } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("f8e5m2"));
    }
}

// ---- lists

mask::MaskData mask_data(std::int64_t q_len, std::int64_t kv_len,
                         const std::function<bool(std::int64_t, std::int64_t)>& attends) {
    const Tensor dense = Tensor::empty(boolean, {1, 1, q_len, kv_len});
    auto* const values = dense.data<bool>();
    for (std::int64_t q = 0; q < q_len; ++q) {
        for (std::int64_t kv = 0; kv < kv_len; ++kv) values[q * kv_len + kv] = attends(q, kv);
    }
    return mask::from_dense(dense);
}

TEST(Sm90MaskLists, CausalTilesPutTheDiagonalFirst) {
    const auto plan = mask::make_plan(mask_data(500, 500, [](auto q, auto kv) { return kv <= q; }),
                                      plan_options(128, 128));
    const MaskLists lists = lists_of(plan);
    ASSERT_EQ(lists.tiles.size(), 3u);
    EXPECT_EQ(lists.tiles[0].q_tile, 2);
    EXPECT_EQ(lists.tiles[0].blocks, 8);
    EXPECT_EQ(lists.tiles[2].blocks, 3);
    const tw::attn::MaskEntry* const first = lists.entries.data() + lists.tiles[2].first_entry;
    EXPECT_EQ(first[0].first, 2);  // the diagonal of the lowest warpgroup alone
    EXPECT_EQ(first[0].states, tw::attn::kBlockPartial << 4);
    EXPECT_EQ(first[2].first, 0);
    EXPECT_EQ(first[2].states,
              tw::attn::kBlockPartial | tw::attn::kBlockFull << 2 | tw::attn::kBlockFull << 4);
}

TEST(Sm90MaskLists, ATileWithoutAKeyHasOneEmptyBlock) {
    const auto plan = mask::make_plan(mask_data(200, 100, [](auto, auto) { return false; }),
                                      plan_options(256, 256));
    const MaskLists lists = lists_of(plan);
    for (const tw::attn::MaskTile& tile : lists.tiles) {
        EXPECT_EQ(tile.blocks, 1);
        EXPECT_EQ(lists.entries[static_cast<std::size_t>(tile.first_entry)].states, 0);
    }
}

// ---- compiling

TEST(Sm90Programmable, VariantsCompileCleanly) {
    TW_REQUIRE_NVRTC();
    const auto compile = [](ForwardInputs inputs) {
        const ForwardDesc desc = check_forward(inputs);
        const cuda::CompileRequest request = generate_forward(desc, choose_forward(desc, 132));
        EXPECT_NO_THROW(cuda::compile(request)) << request.name;
    };
    const Problem problem{
        .heads = 64, .kv_heads = 64, .q_len = 8192, .kv_len = 8192, .causal = true};
    for (const Mod& mod : {scores::alibi(16), scores::softcap(20, true)}) {
        ForwardInputs inputs = inputs_of(problem);
        inputs.score_mod = mod::trace(mod).function;
        compile(inputs);
    }
    ForwardInputs listed = inputs_of(problem);
    listed.upper_diagonal.reset();
    listed.mask = DeviceMask{.q_len = 8192, .kv_len = 8192};
    compile(listed);
    ForwardInputs segments = inputs_of(problem);
    segments.q_segments = segments.kv_segments = 7 << 20;
    segments.dropout = 0.1;
    compile(segments);
    EXPECT_NO_THROW(cuda::compile(generate_lists()));
    ForwardInputs exact = inputs_of(problem);
    exact.row_max = 7 << 20;
    exact.sinks = 8 << 20;
    compile(exact);
}

// ---- on a Hopper GPU

/// What a dense computation needs to know.
struct Dense {
    std::function<double(double, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv)>
        score = [](double s, auto, auto, auto, auto) { return s; };
    std::function<bool(std::int64_t q, std::int64_t kv)> attends = [](auto, auto) { return true; };
    /// What a probability is multiplied with: dropout.
    std::function<double(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv)> keep =
        [](auto, auto, auto, auto) { return 1.0; };
    std::vector<double> sinks;     ///< per head, or none
    double tolerance = 1.0 / 256;  ///< relative: p and out are each rounded to 8 bits
    double lse_tolerance = 1e-3;
};

class Sm90ProgrammableGpu : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        if (cuda::device_info(0).major != 9) GTEST_SKIP() << "NOT RUN: no Hopper GPU";
        TW_REQUIRE_NVRTC();
    }

    struct Options {
        Mod mod = {};
        bool listed = false;
        bool row_max = false;
        bool exact = false;
        std::vector<std::int32_t> segments = {};  ///< of queries and keys
        double dropout = 0;
        double key_growth = 0;  ///< scores rise from key to key by this much over all
    };

    static void check(const Problem& p, const Dense& dense, const Options& options) {
        SCOPED_TRACE(fmt::format("{} B{} H{}/{} L{} S{} D{} {}{}", name(p.dtype), p.batch, p.heads,
                                 p.kv_heads, p.q_len, p.kv_len, p.dim,
                                 options.mod ? options.mod.name() : "no mod",
                                 options.listed ? " listed"
                                 : p.causal     ? " causal"
                                                : ""));
        const Array q = Sample(p, p.heads, p.q_len, p.dim, 1).exact;
        Array k = Sample(p, p.kv_heads, p.kv_len, p.dim, 2).exact;
        const Array v = Sample(p, p.kv_heads, p.kv_len, p.value_dim, 3).exact;
        const auto stretch = [&](std::int64_t kv) {
            return options.key_growth * static_cast<double>(kv) / static_cast<double>(p.kv_len);
        };
        for (std::size_t i = 0; i < k.data.size(); ++i) {
            const auto row = static_cast<std::int64_t>(i) / p.dim % p.kv_len;
            k.data[i] = round_to(k.data[i] * (1 + stretch(row)), p.dtype);
        }
        Device device(p, q, k, v);
        std::vector<Buffer> arrays;
        if (options.mod) {
            const mod::Traced& traced = mod::trace(options.mod);
            std::vector<cuda::DeviceAddress> addresses;
            for (const Capture& capture : traced.captures) {
                const auto bytes = static_cast<std::size_t>(capture.tensor().nbytes());
                arrays.emplace_back(0, bytes + 16);
                arrays.back().upload(capture.tensor().raw(), bytes);
                addresses.push_back(arrays.back().address());
            }
            device.inputs.score_mod = traced.function;
            device.inputs.captures = views_of(traced.captures, addresses);
        }
        std::optional<UploadedLists> lists;
        if (options.listed) {
            const auto plan = mask::make_plan(
                mask_data(p.q_len, p.kv_len, dense.attends),
                plan_options(static_cast<int>(p.dim), static_cast<int>(p.value_dim)));
            lists.emplace(plan, p.q_len, p.kv_len, 0);
            device.inputs.mask = lists->mask();
            device.inputs.upper_diagonal.reset();
        }
        const auto rows = static_cast<std::size_t>(p.batch * p.heads * p.q_len);
        Guarded row_max(rows * 4);
        if (options.row_max) device.inputs.row_max = row_max.address();
        Buffer sinks(0, 4096);
        if (!dense.sinks.empty()) {
            const std::vector<float> values(dense.sinks.begin(), dense.sinks.end());
            sinks.upload(values.data(), values.size() * 4);
            device.inputs.sinks = sinks.address();
        }
        device.inputs.exact_maximum = options.exact;
        Buffer segments(0, 4 * options.segments.size() + 16);
        if (!options.segments.empty()) {
            segments.upload(options.segments.data(), 4 * options.segments.size());
            device.inputs.q_segments = device.inputs.kv_segments = segments.address();
        }
        device.inputs.dropout = options.dropout;
        device.inputs.seed = 11;
        const ForwardDesc desc = check_forward(device.inputs);
        Buffer workspace(0, forward_workspace_bytes(desc, choose_forward(desc, 132)));
        device.inputs.workspace = workspace.address();

        const cuda::Stream stream(0);
        std::vector<std::uint16_t> bits(rows * static_cast<std::size_t>(p.value_dim)), again = bits;
        for (std::vector<std::uint16_t>* target : {&bits, &again}) {
            device.out.buffer.fill(kPoison);
            forward(device.inputs, stream.handle());
            stream.synchronize();
            device.out.buffer.download(target->data(), bits.size() * 2, kGuard);
        }
        EXPECT_EQ(bits, again) << "two runs differ";
        EXPECT_TRUE(device.guards_intact() && row_max.intact());
        std::vector<float> lse(rows), largest(rows);
        device.lse.buffer.download(lse.data(), rows * 4, kGuard);
        row_max.buffer.download(largest.data(), rows * 4, kGuard);
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
                        const bool alive = dense.attends(i, j) && (!p.causal || j <= i);
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
        const double error = relative_error(got, truth);
        EXPECT_TRUE(error <= dense.tolerance) << error << " against " << dense.tolerance;
    }
};

double slope_of(std::int64_t h, std::int64_t heads) {
    return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads));
}

TEST_F(Sm90ProgrammableGpu, Alibi) {
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

TEST_F(Sm90ProgrammableGpu, SoftCap) {
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
    // Clamped below 0 and beyond the end.
    dense.score = [&](double s, auto, auto, auto q, auto kv) {
        return s + at(std::clamp<std::int64_t>(q - kv + 7, 0, 2 * kRows * kColumns - 1));
    };
    check(p, dense,
          {.mod = Mod([=](auto s, auto, auto, auto q, auto kv) { return s + flat[q - kv + 7]; })});
}

// A mod may mask: rows whose first keys, or all of them, are dead, and conditions on positions.
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
        check({.batch = 2,
               .heads = 20,
               .kv_heads = 10,
               .q_len = 200,
               .kv_len = 300,
               .dim = 64,
               .value_dim = 64},
              dense, {.listed = true});
    };
    dense.attends = [](auto q, auto kv) { return kv <= q; };
    check_all();
    dense.attends = [](auto q, auto kv) { return kv <= q && q - kv <= 150; };
    check_all();
    dense.attends = [](auto q, auto kv) { return q / 130 == kv / 130 && kv <= q; };
    check_all();
}

// Dead blocks in long rows, one by one and all together, for one warpgroup and for all.
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
    dense.attends = [](auto q, auto) { return q > 150; };  // rows with nothing but a sink
    Problem full = p;
    full.causal = false;
    check(full, dense, {.listed = true, .row_max = true});
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

// Ids in any order; sorted ones leave out whole blocks.
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
    dense.keep = [](auto b, auto h, auto q, auto kv) {
        const std::uint64_t pair =
            (static_cast<std::uint64_t>(b) << 32 | static_cast<std::uint64_t>(h)) << 1;
        const std::uint64_t key =
            static_cast<std::uint64_t>(ir::philox(11, pair | 1)) << 32 | ir::philox(11, pair);
        const std::uint32_t bits =
            ir::philox(key, static_cast<std::uint64_t>(q) << 32 | static_cast<std::uint64_t>(kv));
        return bits < kRate * 0x1p32 ? 0.0 : 1 / (1 - kRate);
    };
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

// Packed sequences give what each gives alone; one has no rows, one no keys.
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
            const double error = relative_error(got, truth);
            EXPECT_TRUE(error <= 1.0 / 256) << "sequence " << n << ": " << error;
        }
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
