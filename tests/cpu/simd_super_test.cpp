// Superinstructions, transposes and interleaving of every table against the scalar table.
#include <gmock/gmock.h>

#include "ir/evaluate.h"
#include "support/small_float.h"
#include "tests/cpu/simd_support.h"

namespace tilewright::cpu {
namespace {

class Super : public testing::TestWithParam<const Kernels*> {};

struct Tile {
    std::int64_t rows, lanes, stride;
    std::vector<float> x;
    Tile(std::int64_t r, std::int64_t l, unsigned seed, float scale = 4)
        : rows(r), lanes(l), stride(l + 3), x(static_cast<std::size_t>(r * stride)) {
        std::mt19937 random(seed);
        for (float& v : x) v = std::uniform_real_distribution<float>(-scale, scale)(random);
    }
    float at(std::int64_t r, std::int64_t l) const {
        return x[static_cast<std::size_t>(r * stride + l)];
    }
};

Strip strip_of(const Tile& t) {
    Strip s;
    s.rows = t.rows;
    s.lanes = t.lanes;
    s.in[0] = {t.x.data(), t.stride, 1};
    s.out_row_stride = t.stride;
    return s;
}

// Runs both tables' functions on copies of `out` and of the accumulator; everything, including gaps
// between rows, must agree within the relative error.
void compare(StripFunction f, StripFunction reference, Strip s, std::vector<float> out,
             std::vector<float> accumulator, double relative, double absolute) {
    std::vector<float> want_out = out;
    std::vector<float> want_accumulator = accumulator;
    const bool has_accumulator = !accumulator.empty();
    s.out = out.data();
    s.accumulator = has_accumulator ? accumulator.data() : nullptr;
    f(s);
    s.out = want_out.data();
    s.accumulator = has_accumulator ? want_accumulator.data() : nullptr;
    reference(s);
    const auto check = [&](const std::vector<float>& got, const std::vector<float>& want,
                           const char* what) {
        for (std::size_t i = 0; i < got.size(); ++i) {
            if (std::isnan(want[i]) && std::isnan(got[i])) continue;
            if (got[i] == want[i]) continue;  // infinities
            const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
            ASSERT_TRUE(error <= relative * std::fabs(static_cast<double>(want[i])) + absolute)
                << what << " element " << i << ": " << got[i] << " for " << want[i];
        }
    };
    check(out, want_out, "out");
    check(accumulator, want_accumulator, "accumulator");
}

const Superinstructions& scalar() {
    return find_kernels("scalar")->super;
}

constexpr std::int64_t kLaneCounts[] = {1, 7, 16, 37, 64, 100};

TEST_P(Super, Exp2Sum) {
    for (std::int64_t lanes : kLaneCounts) {
        Tile t(5, lanes, 1, 60);
        t.x[0] = -kInf;
        t.x[static_cast<std::size_t>(t.stride)] = -1e30F;
        const Tile m(5, lanes, 2, 1), c(5, lanes, 3, 2);
        for (int form = 0; form < 8; ++form) {
            Strip s = strip_of(t);
            const std::int64_t along_rows = form / 2 % 2, along_lanes = 1 - form % 2;
            s.in[1] = {m.x.data(), along_rows, along_lanes};
            if (form >= 4) s.in[2] = {c.x.data(), along_rows, along_lanes};
            s.immediate[0] = 1.44269504;
            const std::vector<float> out(t.x.size(), 7.0F);
            const std::vector<float> sums(static_cast<std::size_t>(lanes), 0.5F);
            compare(GetParam()->super.exp2_sum, scalar().exp2_sum, s, out, sums, 0x1p-20, 1e-37);
            compare(GetParam()->super.exp2_sum, scalar().exp2_sum, s, out, {}, 0x1p-20, 1e-37);
        }
    }
}

TEST_P(Super, Exp2IsAccurate) {
    std::vector<float> x;
    for (float v = -126; v < 127; v += 0.0073F) x.push_back(v);
    const std::vector<float> zero(1, 0.0F);
    std::vector<float> y(x.size());
    Strip s;
    s.rows = 1;
    s.lanes = static_cast<std::int64_t>(x.size());
    s.in[0] = {x.data(), 0, 1};
    s.in[1] = {zero.data(), 0, 0};
    s.immediate[0] = 1;
    s.out = y.data();
    GetParam()->super.exp2_sum(s);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double want = std::exp2(static_cast<double>(x[i]));
        ASSERT_TRUE(std::fabs(y[i] - want) <= 0x1p-22 * want) << "exp2(" << x[i] << ")";
    }
}

TEST_P(Super, Exp2AtTheEnds) {
    const std::vector<float> x = {-kInf,  -1e30F, -200, 0,
                                  127.5F, 200,    kInf, std::numeric_limits<float>::quiet_NaN()};
    const std::vector<float> zero(1, 0.0F);
    std::vector<float> y(x.size());
    std::vector<float> sums(x.size(), 0.0F);
    Strip s;
    s.rows = 1;
    s.lanes = 8;
    s.in[0] = {x.data(), 0, 1};
    s.in[1] = {zero.data(), 0, 0};
    s.immediate[0] = 1;
    s.out = y.data();
    s.accumulator = sums.data();
    GetParam()->super.exp2_sum(s);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0.0F) << x[i];
    EXPECT_EQ(y[3], 1.0F);
    EXPECT_NEAR(y[4] / std::exp2(127.5), 1, 1e-6);
    EXPECT_EQ(y[5], kInf);
    EXPECT_EQ(y[6], kInf);
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_TRUE(std::isnan(sums[7]));
}

TEST_P(Super, MulSubMul) {
    for (std::int64_t lanes : kLaneCounts) {
        const Tile p(4, lanes, 5), dp(4, lanes, 6), delta(4, lanes, 7);
        Strip s = strip_of(p);
        s.in[1] = {dp.x.data(), dp.stride, 1};
        s.in[2] = {delta.x.data(), 0, 1};
        s.immediate[0] = 0.125;
        compare(GetParam()->super.mul_sub_mul, scalar().mul_sub_mul, s,
                std::vector<float>(p.x.size(), 7.0F), {}, 0, 0);
    }
}

// Expects the bits of the table's f32 results after rounding, and nothing written between rows.
void expect_rounded(StripFunction rounding, StripFunction f, Strip s, DType dtype) {
    const auto size = static_cast<std::size_t>(s.rows * s.out_row_stride);
    std::vector<float> wide(size, 7.0F), sums(static_cast<std::size_t>(s.lanes)), wide_sums = sums;
    std::vector<std::uint16_t> narrow(size, 0x1234);
    s.out = wide.data();
    s.accumulator = wide_sums.data();
    f(s);
    s.out = narrow.data();
    s.accumulator = sums.data();
    rounding(s);
    EXPECT_EQ(sums, wide_sums);
    for (std::int64_t row = 0; row < s.rows; ++row) {
        for (std::int64_t lane = 0; lane < s.out_row_stride; ++lane) {
            const auto i = static_cast<std::size_t>(row * s.out_row_stride + lane);
            std::uint16_t want = 0x1234;
            if (lane < s.lanes) ir::write_element(dtype, &want, ir::encode(dtype, wide[i]));
            ASSERT_EQ(narrow[i], want) << "row " << row << ", lane " << lane << ": " << wide[i];
        }
    }
}

TEST_P(Super, ResultsAreRoundedToSixteenBits) {
    const Superinstructions& super = GetParam()->super;
    for (std::int64_t lanes : kLaneCounts) {
        Tile t(37, lanes, 15, 20);
        t.x[0] = -kInf;
        const Tile delta(37, lanes, 16), scores(37, lanes, 17);
        Strip s = strip_of(t);
        s.in[1] = {delta.x.data(), 0, 1};
        s.immediate[0] = 0.5;
        expect_rounded(super.exp2_sum_bf16, super.exp2_sum, s, DType::bf16);
        expect_rounded(super.exp2_sum_f16, super.exp2_sum, s, DType::f16);
        s.in[1] = {scores.x.data(), scores.stride, 1};
        s.in[2] = {delta.x.data(), 0, 1};
        t.x[0] = 0;
        expect_rounded(super.mul_sub_mul_bf16, super.mul_sub_mul, s, DType::bf16);
        expect_rounded(super.mul_sub_mul_f16, super.mul_sub_mul, s, DType::f16);
    }
}

/// bf16 bits without the differences that pairs may have: any NaN, subnormal numbers as zeros.
std::uint16_t plain_bits(std::uint16_t x) {
    if ((x & 0x7fff) > 0x7f80) return 0x7fc0;
    return (x & 0x7fff) < 0x80 ? 0 : x;
}

/// Is `bits` x, rounded to bf16, or a number that differs from it by the error of an exponential
/// that is rounded to bf16 at once?
bool is_rounded(std::uint16_t bits, float x) {
    const float error = std::isfinite(x) ? x * 0x1p-18F : 0;
    const auto rounded = [](float y) { return plain_bits(f32_to_bf16(y)); };
    return plain_bits(bits) == rounded(x - error) || plain_bits(bits) == rounded(x + error);
}

TEST_P(Super, Exp2SumWritesPairsOfRows) {
    const Superinstructions& super = GetParam()->super;
    if (super.exp2_sum_pairs == nullptr) GTEST_SKIP() << "this table has no bf16 product";
    for (std::int64_t lanes : kLaneCounts) {
        for (const std::int64_t rows : {2, 4, 38, 64}) {
            Tile t(rows, lanes, 15, 20);
            t.x[0] = -kInf;
            t.x[1] = NAN;
            const Tile shift(rows, lanes, 16), scale(rows, lanes, 17);
            Strip s = strip_of(t);
            s.immediate[0] = 0.5;
            for (const bool vector : {true, false}) {
                // One shift for all rows, or one shift and one scale for each row.
                s.in[1] = {shift.x.data(), vector ? 0 : shift.stride, vector ? 1 : 0};
                s.in[2] = {vector ? nullptr : scale.x.data(), scale.stride, 1};
                const auto size = static_cast<std::size_t>(rows * s.out_row_stride);
                std::vector<float> sums(static_cast<std::size_t>(lanes), 0.5F), want_sums = sums;
                std::vector<float> p(size);
                std::vector<std::uint16_t> pairs(size, 0x1234);
                s.out = p.data();
                s.accumulator = want_sums.data();
                super.exp2_sum(s);
                s.out = pairs.data();
                s.accumulator = sums.data();
                super.exp2_sum_pairs(s);
                for (std::int64_t row = 0; row < rows; ++row) {
                    for (std::int64_t lane = 0; lane < s.out_row_stride; ++lane) {
                        const auto at = static_cast<std::size_t>(
                            (row / 2 * s.out_row_stride + lane) * 2 + row % 2);
                        if (lane >= lanes) {
                            ASSERT_EQ(pairs[at], 0x1234) << "row " << row << ", lane " << lane;
                            continue;
                        }
                        const float want =
                            p[static_cast<std::size_t>(row * s.out_row_stride + lane)];
                        ASSERT_PRED2(is_rounded, pairs[at], want)
                            << "row " << row << ", lane " << lane;
                    }
                }
                for (std::size_t lane = 0; lane < sums.size(); ++lane) {
                    const float want = want_sums[lane];
                    if (!std::isfinite(want)) {
                        ASSERT_THAT(sums[lane], testing::NanSensitiveFloatEq(want)) << lane;
                    } else {
                        ASSERT_LE(std::fabs(sums[lane] - want), 0x1p-18F * want) << lane;
                    }
                }
            }
        }
    }
}

TEST_P(Super, GradientPairsAreThoseOfSeparateOps) {
    const Superinstructions& super = GetParam()->super;
    if (super.gradient_pairs == nullptr) GTEST_SKIP() << "this table has no bf16 product";
    for (const std::int64_t lanes : {64, 80, 128}) {
        for (const int form : {0, 1, 2}) {  // one shift for each row, for each lane; a diagonal
            constexpr std::int64_t kFewRows = 6;
            const std::int64_t width = lanes + 3;
            Tile score(kFewRows, lanes, 31, 40), derivative(kFewRows, lanes, 32);
            const Tile shift(kFewRows, lanes, 33), delta(kFewRows, lanes, 34);
            score.x[0] = -kInf;
            score.x[1] = NAN;
            score.x[2] = 290;  // far from overflow only with the factor
            score.x[3] = -260;
            const StripOperand lane_shift{shift.x.data(), form == 1 ? 0 : width, form == 1 ? 1 : 0},
                lane_delta{delta.x.data(), form == 1 ? 0 : width, form == 1 ? 1 : 0};
            const auto size = static_cast<std::size_t>(kFewRows * width);
            Strip s = strip_of(score);
            s.immediate[0] = 0.5;
            s.in[1] = lane_shift;
            std::vector<float> p(size), d(size);
            s.out = p.data();
            super.exp2_sum(s);
            const FusedCall::Index diagonal{-50, 5, 1};
            if (form == 2) {
                Strip select = s;
                select.in[0] = {p.data(), width, 1};
                select.immediate[0] = diagonal.base;
                select.immediate[1] = diagonal.row;
                select.immediate[2] = diagonal.lane;
                select.immediate[3] = 0;
                super.affine_select(select);
            }
            Strip product = s;
            product.immediate[0] = 1;
            product.in[0] = {p.data(), width, 1};
            product.in[1] = {derivative.x.data(), width, 1};
            product.in[2] = lane_delta;
            product.out = d.data();
            super.mul_sub_mul(product);
            // What the run reads of hidden pairs may be anything.
            for (std::int64_t i = 0; form == 2 && i < kFewRows * lanes; ++i) {
                const std::int64_t row = i / lanes, lane = i % lanes;
                if (diagonal.base + row * diagonal.row + lane * diagonal.lane >= 0) continue;
                const auto at = static_cast<std::size_t>(row * width + lane);
                score.x[at] = derivative.x[at] = lane % 2 == 0 ? NAN : kInf;
            }

            std::vector<std::uint16_t> p_pairs(2 * size), rows(size), d_pairs(2 * size);
            FusedStep step;
            step.immediate = 0.5F;
            FusedCall call;
            call.steps = &step;
            call.rows = kFewRows;
            call.lanes = lanes;
            call.blocks = lanes / 64;
            call.num_operands = 7;
            call.num_affine = form == 2 ? 1 : 0;
            call.affine[0] = diagonal;
            call.num_reductions = call.num_prefetches = 0;
            const auto operand = [](const auto* data, std::int64_t row_stride,
                                    std::int64_t lane_stride) {
                const auto bytes = static_cast<std::int64_t>(sizeof(*data));
                auto* const first = reinterpret_cast<std::byte*>(
                    const_cast<std::remove_cvref_t<decltype(*data)>*>(data));
                return FusedOperand{first, row_stride * bytes, lane_stride * bytes, false};
            };
            call.operands[0] = operand(score.x.data(), width, 1);
            call.operands[1] =
                operand(shift.x.data(), lane_shift.row_stride, lane_shift.lane_stride);
            call.operands[2] = operand(derivative.x.data(), width, 1);
            call.operands[3] =
                operand(delta.x.data(), lane_delta.row_stride, lane_delta.lane_stride);
            call.operands[4] = operand(p_pairs.data(), width, 1);  // a row of pairs fills two
            call.operands[5] = operand(rows.data(), width, 1);
            call.operands[6] = operand(d_pairs.data(), width, 1);
            super.gradient_pairs(call);

            for (std::int64_t row = 0; row < kFewRows; ++row) {
                for (std::int64_t lane = 0; lane < lanes; ++lane) {
                    const auto at = static_cast<std::size_t>(row * width + lane);
                    const auto pair =
                        static_cast<std::size_t>((row / 2 * width + lane) * 2 + row % 2);
                    ASSERT_PRED2(is_rounded, p_pairs[pair], p[at]) << row << ", " << lane;
                    ASSERT_PRED2(is_rounded, rows[at], d[at]) << row << ", " << lane;
                    ASSERT_EQ(plain_bits(d_pairs[pair]), plain_bits(rows[at]))
                        << row << ", " << lane;
                }
            }
        }
    }
}

TEST_P(Super, AffineSelect) {
    const double far = 1e15;
    const double cases[][3] = {{0, 1, -1},  {-3, -1, 1},  {5, 0, -2},      {-20, 4, 3},
                               {0, 0, 0},   {-1, 0, 0},   {far, 1, -1},    {-far, 1, -1},
                               {-37, 0, 1}, {36, -1, -1}, {-far, far, -1}, {2, -1, far}};
    for (std::int64_t lanes : kLaneCounts) {
        const Tile t(6, lanes, 8);
        for (const auto& c : cases) {
            Strip s = strip_of(t);
            for (int i = 0; i < 3; ++i) s.immediate[i] = c[i];
            s.immediate[3] = -kInf;
            compare(GetParam()->super.affine_select, scalar().affine_select, s,
                    std::vector<float>(t.x.size(), 7.0F), {}, 0, 0);
            // In place: rows that are kept whole are not written.
            std::vector<float> got = t.x;
            std::vector<float> want(t.x.size());
            s.in[0].data = got.data();
            s.out = got.data();
            GetParam()->super.affine_select(s);
            want = t.x;
            s.in[0].data = want.data();
            s.out = want.data();
            scalar().affine_select(s);
            ASSERT_EQ(got, want);
        }
    }
}

TEST_P(Super, AffineAddAgreesInEveryForm) {
    for (std::int64_t lanes : kLaneCounts) {
        Tile t(70, lanes, 9);
        const Tile slope(70, lanes, 10, 0.5F);
        t.x[static_cast<std::size_t>(37 * t.stride)] = std::numeric_limits<float>::quiet_NaN();
        for (int form = 0; form < 8; ++form) {
            Strip s = strip_of(t);
            s.in[1] = {slope.x.data(), form & 2 ? 1 : 0, form & 1 ? 0 : 1};
            s.immediate[1] = 3;
            s.immediate[2] = -1;
            s.immediate[3] = form & 4 ? 1 : 0.3;
            // The second base exceeds the integers that f32 represents exactly.
            for (const double base : {-1000000.0, 1e9 + 1}) {
                s.immediate[0] = base;
                for (const std::size_t sums : {std::size_t{0}, static_cast<std::size_t>(lanes)}) {
                    compare(GetParam()->super.affine_add, scalar().affine_add, s,
                            std::vector<float>(t.x.size(), 7.0F), std::vector<float>(sums, -1e30F),
                            0x1p-23, 0);
                }
            }
        }
    }
}

TEST_P(Super, Softcap) {
    for (std::int64_t lanes : kLaneCounts) {
        const Tile t(3, lanes, 11, 200);
        Strip s = strip_of(t);
        s.immediate[0] = 30;
        s.immediate[1] = 0.04;
        compare(GetParam()->super.softcap, scalar().softcap, s,
                std::vector<float>(t.x.size(), 7.0F), {}, 6 * 0x1p-23, 0);
    }
}

void check_transpose(const Kernels& table, DType in, DType out, std::int64_t rows,
                     std::int64_t lanes) {
    const StripFunction f = table.transpose(in, out);
    ASSERT_EQ(f != nullptr, find_kernels("scalar")->transpose(in, out) != nullptr);
    if (f == nullptr) return;
    std::mt19937_64 random(13);
    const Elements x = random_elements(in, rows * (lanes + 2), random);
    Elements y(out, lanes * (rows + 3));
    const Elements before = y;
    Strip s;
    s.rows = rows;
    s.lanes = lanes;
    s.in[0] = {x.data(), lanes + 2, 1};
    s.out = y.data();
    s.out_row_stride = rows + 3;
    f(s);
    for (std::int64_t l = 0; l < lanes; ++l) {
        for (std::int64_t r = 0; r < rows + 3; ++r) {
            const std::int64_t at = l * (rows + 3) + r;
            std::uint64_t want = before.get(at);
            if (r < rows) {
                const std::uint64_t element = x.get(r * (lanes + 2) + l);
                want = in == out ? element : ir::evaluate(ir::Op::cast, in, out, &element);
            }
            ASSERT_TRUE(agrees(out, y.get(at), want, 0))
                << table.name << " " << name(in) << " -> " << name(out) << " row " << r << " lane "
                << l;
        }
    }
}

TEST_P(Super, TransposesAgreeForEveryPairOfDtypes) {
    for (int i = 0; i < kDTypes; ++i) {
        for (int j = 0; j < kDTypes; ++j) {
            check_transpose(*GetParam(), dtype_at(i), dtype_at(j), 16, 32);
            check_transpose(*GetParam(), dtype_at(i), dtype_at(j), 21, 37);
            check_transpose(*GetParam(), dtype_at(i), dtype_at(j), 3, 1);
        }
    }
}

TEST_P(Super, InterleavePairs) {
    // The hardware's rounding flushes subnormal numbers to 0, as its products do.
    const bool flushes = GetParam()->name == "avx512_bf16" || GetParam()->name == "amx";
    for (DType in : {f32, bf16}) {
        for (std::int64_t rows : {1, 2, 7}) {
            for (std::int64_t lanes : kLaneCounts) {
                std::mt19937_64 random(14);
                const Elements x = random_elements(in, rows * lanes, random);
                const std::int64_t stride = lanes + 1;
                std::vector<std::uint16_t> got(
                    static_cast<std::size_t>(rows + 1) * static_cast<std::size_t>(stride), 0x1234);
                std::vector<std::uint16_t> want = got;
                Strip s;
                s.rows = rows;
                s.lanes = lanes;
                s.in[0] = {x.data(), lanes, 1};
                s.out_row_stride = stride;
                s.out = got.data();
                GetParam()->interleave_pairs(in)(s);
                s.out = want.data();
                find_kernels("scalar")->interleave_pairs(in)(s);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const bool subnormal = (want[i] & 0x7f80) == 0;
                    if (flushes && subnormal && got[i] == (want[i] & 0x8000)) continue;
                    ASSERT_EQ(ulp_distance(bf16, got[i], want[i]), 0) << i;
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, Super, testing::ValuesIn(available_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
