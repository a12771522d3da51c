// Reductions of every table against folds in long double or wrapping integers.
#include "hwy/cache_control.h"
#include "tests/cpu/simd_support.h"

namespace tilewright::cpu {
namespace {

using ir::Reduction;

class Lanes : public testing::TestWithParam<const Kernels*> {};

bool carries_f32(DType dtype) {
    return is_float(dtype) && size_of(dtype) <= 2;
}

// `edges`: keeps infinities and NaN, which make sums, but not maxima, meaningless.
void check_reduction(const Kernels& table, Reduction kind, DType dtype, bool rows_axis,
                     std::int64_t rows, std::int64_t lanes, std::int64_t lane_stride) {
    const StripFunction f =
        rows_axis ? table.reduce_rows(kind, dtype) : table.reduce_lanes(kind, dtype);
    const bool exists = dtype == DType::boolean ? kind != Reduction::sum && kind != Reduction::prod
                                                : kind <= Reduction::min;
    ASSERT_EQ(f != nullptr, exists) << table.name << ir::name(kind) << name(dtype);
    if (f == nullptr) return;
    const DType carrier = carries_f32(dtype) ? DType::f32 : dtype;
    std::mt19937_64 random(static_cast<std::uint64_t>(rows * 100 + lanes));
    Elements x = random_elements(dtype, rows * (lanes + 3), random);
    const bool arithmetic = kind == Reduction::sum || kind == Reduction::prod;
    if (arithmetic && is_float(dtype)) {
        for (std::int64_t i = 0; i < rows * (lanes + 3); ++i) {
            const double v = std::uniform_real_distribution<double>(0.5, 1.5)(random);
            x.set(i, ir::encode(dtype, ir::round_to(dtype, random() % 2 == 0 ? v : -v)));
        }
    }
    const std::int64_t count = rows_axis ? lanes : rows;
    const std::int64_t length = rows_axis ? rows : lanes;
    Elements out(carrier, count * 2);
    for (std::int64_t i = 0; i < 2 * count; ++i) out.set(i, ir::identity(kind, carrier));
    Strip s;
    s.rows = rows;
    s.lanes = lanes;
    s.in[0] = {x.data(), lanes + 3, lane_stride};
    s.out = out.data();
    s.out_row_stride = rows_axis ? 1 : 2;
    f(s);
    for (std::int64_t i = 0; i < count; ++i) {
        const auto at = [&](std::int64_t j) {
            return x.get(rows_axis ? j * (lanes + 3) + i * lane_stride
                                   : i * (lanes + 3) + j * lane_stride);
        };
        const std::uint64_t got = out.get(rows_axis ? i : 2 * i);
        if (is_float(dtype) && arithmetic) {
            long double want = kind == Reduction::sum ? 0 : 1;
            long double magnitude = want;
            for (std::int64_t j = 0; j < length; ++j) {
                const long double v = ir::decode(dtype, at(j));
                want = kind == Reduction::sum ? want + v : want * v;
                magnitude = kind == Reduction::sum ? magnitude + std::fabs(v) : std::fabs(want);
            }
            const double epsilon = carrier == DType::f64 ? 0x1p-53 : 0x1p-24;
            const long double error = std::fabs(ir::decode(carrier, got) - want);
            ASSERT_TRUE(error <= static_cast<long double>(length + 1) * epsilon * magnitude)
                << table.name << " " << ir::name(kind) << " " << name(dtype) << " " << rows << "x"
                << lanes << ": " << ir::decode(carrier, got) << " for " << want;
        } else {
            std::uint64_t want = ir::identity(kind, dtype);
            for (std::int64_t j = 0; j < length; ++j) want = ir::combine(kind, dtype, want, at(j));
            if (carries_f32(dtype)) want = ir::encode(carrier, ir::decode(dtype, want));
            ASSERT_TRUE(agrees(carrier, got, want, 0))
                << table.name << " " << ir::name(kind) << " " << name(dtype) << " " << rows << "x"
                << lanes << ": " << ir::decode(carrier, got) << " for "
                << ir::decode(carrier, want);
        }
    }
}

TEST_P(Lanes, EveryReduction) {
    for (Reduction kind : {Reduction::sum, Reduction::prod, Reduction::max, Reduction::min,
                           Reduction::any, Reduction::all}) {
        for (int i = 0; i < kDTypes; ++i) {
            // The f8 formats represent neither large products nor, in one case, infinity.
            if (size_of(dtype_at(i)) == 1 && is_float(dtype_at(i))) continue;
            for (bool rows_axis : {false, true}) {
                check_reduction(*GetParam(), kind, dtype_at(i), rows_axis, 5, 64, 1);
                check_reduction(*GetParam(), kind, dtype_at(i), rows_axis, 6, 139, 1);
                check_reduction(*GetParam(), kind, dtype_at(i), rows_axis, 4, 21, 0);
            }
        }
    }
}

TEST_P(Lanes, EveryLength) {
    for (std::int64_t n = 1; n <= 140; ++n) {
        check_reduction(*GetParam(), Reduction::sum, f32, false, 2, n, 1);
        check_reduction(*GetParam(), Reduction::max, f32, true, 3, n, 1);
        check_reduction(*GetParam(), Reduction::sum, bf16, false, 2, n, 1);
    }
}

TEST_P(Lanes, ArgReductions) {
    std::mt19937_64 random(5);
    for (DType dtype : {f32, i32, bf16, u8}) {
        for (Reduction kind : {Reduction::argmax, Reduction::argmin}) {
            for (bool rows_axis : {false, true}) {
                const Elements x = random_elements(dtype, 9 * 20, random);
                const std::int64_t count = rows_axis ? 20 : 9;
                Elements best(dtype, count);
                std::vector<std::int32_t> index(static_cast<std::size_t>(count), -1);
                Strip s;
                s.rows = 9;
                s.lanes = 20;
                s.in[0] = {x.data(), 20, 1};
                s.out = best.data();
                s.out_row_stride = 1;
                s.accumulator = index.data();
                (rows_axis ? GetParam()->arg_reduce_rows : GetParam()->arg_reduce_lanes)(kind,
                                                                                         dtype)(s);
                for (std::int64_t i = 0; i < count; ++i) {
                    std::int32_t want = 0;
                    const auto at = [&](std::int64_t j) {
                        return x.get(rows_axis ? j * 20 + i : i * 20 + j);
                    };
                    for (std::int32_t j = 1; j < (rows_axis ? 9 : 20); ++j) {
                        if (ir::replaces_extreme(kind, dtype, at(want), at(j))) want = j;
                    }
                    ASSERT_EQ(index[static_cast<std::size_t>(i)], want)
                        << GetParam()->name << " " << ir::name(kind) << " " << name(dtype);
                }
            }
        }
    }
}

TEST_P(Lanes, StoresTouchNothingElse) {
    std::mt19937_64 random(6);
    for (DType dtype : {u8, bf16, f32, f64}) {
        for (const std::int64_t lanes : {1, 5, 64, 163}) {
            for (const std::int64_t step : {0, 1}) {
                const std::int64_t stride = lanes + 7, count = 3 * stride + 70;
                const Elements x = random_elements(dtype, count, random);
                Elements mask(boolean, count);
                for (std::int64_t i = 0; i < count; ++i) mask.set(i, random() % 2);
                for (int kind = 0; kind < 3; ++kind) {
                    for (const std::int64_t start : {0, 1, 31}) {
                        Elements out = random_elements(dtype, count + start, random);
                        Elements want = out;
                        Strip s;
                        s.rows = 3;
                        s.lanes = lanes;
                        s.in[0] = {x.data(), stride, step};
                        s.in[1] = {mask.data(), stride, 1};
                        s.out = out.bytes.data() + start * size_of(dtype);
                        s.out_row_stride = stride;
                        for (std::int64_t i = 0; i < 3 * lanes; ++i) {
                            const std::int64_t r = i / lanes, l = i % lanes;
                            if (kind == 1 && mask.get(r * stride + l) == 0) continue;
                            want.set(start + r * stride + l, x.get(r * stride + l * step));
                        }
                        (kind == 2 ? GetParam()->stream(dtype)
                                   : GetParam()->store(dtype, kind == 1))(s);
                        hwy::FlushStream();
                        ASSERT_EQ(out.bytes, want.bytes)
                            << GetParam()->name << " " << name(dtype) << " " << lanes;
                    }
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, Lanes, testing::ValuesIn(available_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
