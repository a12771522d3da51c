// 1 + erf(x) as kernels for GPUs compute it, against f64.
#include "ir/passes/error_functions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "cpu/interpreter.h"
#include "cuda/codegen/generate.h"
#include "ir/evaluate.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "tests/run/scheduled_case.h"
#include "tests/support/sources.h"

namespace tilewright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A function of %x whose result is %r, both of f32, for arguments that are rounded
/// to `in`, with results that are rounded to `out`. The text is that of the kernel for GPUs.
class Rounded {
  public:
    Rounded(DType in, DType out, const std::string& text, std::size_t size)
        : in_(in), out_(out), size_(size) {
        std::string body =
            "func @rounded(%a: ref<IN[N]>, %z: ref<OUT[N]>) grid [] {\n"
            "%o = constant 0 : i64\n%l = load %a[%o : N] : IN[N]\n"
            "%x = cast %l : f32[N]\n%one = constant 1 : f32[N]\n"
            "%half = constant 0.5 : f32[N]\n"
            "%root = constant 0.70710678118654752 : f32[N]\n" +
            text + "%q = cast %r : OUT[N]\nstore %z[%o : N], %q\nyield\n}\n";
        const auto replace = [&](const std::string& word, const std::string& by) {
            for (std::size_t at; (at = body.find(word)) != std::string::npos;)
                body.replace(at, word.size(), by);
        };
        replace("IN", std::string(name(in)));
        replace("OUT", std::string(name(out)));
        replace("[N]", "[" + std::to_string(size) + "]");
        replace(": N]", ": " + std::to_string(size) + "]");
        function_ = ir::parse(body);
    }
    std::string text() const { return ir::print(cuda::prepare(function_)); }

    std::vector<double> operator()(const std::vector<double>& x) {
        std::vector<std::byte> a(size_ * 4), z(size_ * 4);
        for (std::size_t i = 0; i < size_; ++i)
            ir::write_element(in_, a.data() + i * bytes(in_), ir::encode(in_, x[i]));
        ir::Arguments arguments;
        for (std::byte* const data : {a.data(), z.data()}) {
            ir::RefArgument ref;
            ref.data = data;
            ref.extents[0] = static_cast<std::int64_t>(size_);
            ref.strides[0] = 1;
            arguments.refs.push_back(ref);
        }
        ir::Function rewritten = function_;
        ir::error_functions(rewritten);
        cpu::interpret(rewritten, arguments);
        std::vector<double> results;
        for (std::size_t i = 0; i < size_; ++i)
            results.push_back(ir::decode(out_, ir::read_element(out_, z.data() + i * bytes(out_))));
        return results;
    }

  private:
    static std::size_t bytes(DType dtype) { return static_cast<std::size_t>(size_of(dtype)); }

    DType in_, out_;
    std::size_t size_;
    ir::Function function_;
};

const std::string kSum = "%e = erf %x : f32[N]\n%s = add %e, %one : f32[N]\n";
const std::string kGelu =
    "%y = mul %x, %root : f32[N]\n%e = erf %y : f32[N]\n%s = add %e, %one : f32[N]\n"
    "%h = mul %x, %half : f32[N]\n%r = mul %h, %s : f32[N]\n";
/// Phi(x) + x phi(x).
const std::string kSlope =
    "%y = mul %x, %root : f32[N]\n%e = erf %y : f32[N]\n%s = add %one, %e : f32[N]\n"
    "%p = mul %s, %half : f32[N]\n%y2 = mul %y, %y : f32[N]\n%m = neg %y2 : f32[N]\n"
    "%g = exp %m : f32[N]\n%c = constant 0.3989422804014327 : f32[N]\n%d = mul %g, %c : f32[N]\n"
    "%f = mul %d, %x : f32[N]\n%r = add %p, %f : f32[N]\n";

double sum(double x) {
    return std::erfc(-x);
}
double gelu(double x) {
    return x / 2 * std::erfc(-x * std::numbers::sqrt2 / 2);
}
double slope(double x) {
    return std::erfc(-x * std::numbers::sqrt2 / 2) / 2 +
           x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}

std::vector<double> all_of_bf16() {
    std::vector<double> x;
    for (std::uint64_t bits = 0; bits < 0x10000; ++bits) {
        if (std::isfinite(ir::decode(DType::bf16, bits)))
            x.push_back(ir::decode(DType::bf16, bits));
    }
    return x;
}
std::vector<double> fine_f32() {
    std::vector<double> x;
    for (int i = -300000; i <= 300000; ++i)
        x.push_back(static_cast<double>(static_cast<float>(i * 4e-5 + 1e-6)));
    return x;
}

/// Half of the distance of numbers of a type around a value.
double rounding(DType dtype, double value) {
    const bool is_bf16 = dtype == DType::bf16;
    const int exponent = std::max(value == 0 ? -200 : std::ilogb(value), is_bf16 ? -126 : -14);
    return std::ldexp(1.0, exponent - (is_bf16 ? 8 : 11));
}

void expect_near(DType in, DType out, const std::string& text, double (*exact)(double),
                 const std::vector<double>& x, const std::function<double(double)>& error) {
    Rounded function(in, out, text, x.size());
    ASSERT_EQ(function.text().find("erf"), std::string::npos) << function.text();
    const std::vector<double> got = function(x);
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double want = exact(x[i]);
        if (std::abs(want) > 3e38) continue;
        const double allowed = error(x[i]) + rounding(out, std::abs(want) + error(x[i]));
        if (std::abs(got[i] - want) <= allowed) continue;
        if (out == DType::f16 && std::abs(want) > 65000) continue;
        if (++wrong < 5) ADD_FAILURE() << x[i] << ": " << got[i] << ", not " << want;
    }
    EXPECT_EQ(wrong, 0);
}

// The bounds of docs/explanation/numerics.md.
constexpr double kAbsolute = 0x1p-20, kRelative = 0x1p-10;

TEST(ErrorFunctions, SumsAreWithinTheirBounds) {
    for (const DType out : {DType::bf16, DType::f16}) {
        for (const auto& [in, x] :
             {std::pair(DType::bf16, all_of_bf16()), {DType::f32, fine_f32()}}) {
            expect_near(in, out, kSum + "%r = mul %s, %one : f32[N]\n", sum, x, [](double at) {
                return at < -4.2 ? kAbsolute * 1e-3 : std::min(kAbsolute, kRelative * sum(at));
            });
        }
    }
}

TEST(ErrorFunctions, GeluAndItsSlopeAreWithinTheirBounds) {
    constexpr double kF32 = 0x1p-21;  // roundings of the other operations
    for (const DType out : {DType::bf16, DType::f16}) {
        for (const auto& [in, x] :
             {std::pair(DType::bf16, all_of_bf16()), {DType::f32, fine_f32()}}) {
            expect_near(in, out, kGelu, gelu, x, [](double at) {
                const double of_sum =
                    at / std::numbers::sqrt2 < -4.2
                        ? kAbsolute * 1e-3
                        : std::min(kAbsolute, 2 * kRelative * std::abs(gelu(at) / at));
                return std::abs(at) / 2 * (at < -14 ? 0 : of_sum) + kF32 * std::abs(gelu(at)) +
                       1e-38;
            });
            expect_near(in, out, kSlope, slope, x, [](double) { return kAbsolute / 2 + 0x1p-22; });
        }
    }
}

TEST(ErrorFunctions, SpecialValuesStay) {
    const std::vector<double> x = {0.0,  kInfinity, -kInfinity, std::nan(""),
                                   1e30, -1e30,     -1e-30,     20};
    Rounded function(DType::f32, DType::bf16, kGelu, x.size());
    const std::vector<double> got = function(x);
    EXPECT_EQ(got[0], 0);
    EXPECT_EQ(got[1], kInfinity);
    EXPECT_TRUE(std::isnan(got[2]));  // -inf * 0, as written
    EXPECT_TRUE(std::isnan(got[3]));
    EXPECT_NEAR(got[4], 1e30, 1e28);
    EXPECT_EQ(got[5], 0);
    EXPECT_NEAR(got[6], -5e-31, 1e-32);
    EXPECT_EQ(got[7], 20);
}

// Epilogues of products, by wgmma and by mma.sync, on the host emulation.
TEST(ErrorFunctions, EpiloguesHaveThem) {
    TW_REQUIRE_SOURCES();
    const std::string epilogue = testing_support::with_shapes(
        "%mean = constant 16 : f32TILE\n%x1 = sub %d, %mean : f32TILE\n"
        "%root = constant 0.70710678118654752 : f32TILE\n%half = constant 0.5 : f32TILE\n"
        "%one = constant 1 : f32TILE\n%y1 = mul %x1, %root : f32TILE\n%e = erf %y1 : f32TILE\n"
        "%s = add %one, %e : f32TILE\n%h = mul %x1, %half : f32TILE\n%g = mul %h, %s : f32TILE\n"
        "%q = cast %g : bf16TILE",
        128, 128);
    testing_support::Product product{"gelu", 200, 136, 64, 128, 128};
    product.epilogue = epilogue;
    for (const bool without_wgmma : {false, true}) {
        testing_support::Case made(testing_support::product(product), false, std::nullopt,
                                   without_wgmma);
        EXPECT_EQ(made.kernel.source.find("erf("), std::string::npos);
        EXPECT_NE(made.kernel.source.find("exp2_approx"), std::string::npos);
        const testing_support::EmulatedKernels emulated({made.kernel});
        EXPECT_LE(made.error(emulated, 0, 1), made.program.relative);
    }
}

// Results of f32, sums that another term may cancel, and other uses of erf keep the function.
TEST(ErrorFunctions, WhatIsNotRoundedKeepsTheFunction) {
    const auto keeps = [](DType out, const std::string& text) {
        return Rounded(DType::f32, out, text, 8).text().find("erf") != std::string::npos;
    };
    EXPECT_FALSE(keeps(DType::bf16, kGelu));
    EXPECT_FALSE(keeps(DType::f8e4m3, kGelu));
    EXPECT_TRUE(keeps(DType::f32, kGelu));
    EXPECT_TRUE(keeps(DType::f64, kGelu));
    EXPECT_TRUE(keeps(DType::bf16, kSum + "%r = sub %s, %half : f32[N]\n"));
    // The same for steps, whose elements are one of a few constants.
    EXPECT_TRUE(keeps(DType::bf16, kSum + "%g = sign %x : f32[N]\n%r = sub %s, %g : f32[N]\n"));
    const std::string positive = kSum + "%p = lt %half, %x : bool[N]\n";
    EXPECT_TRUE(keeps(DType::bf16, positive + "%u = select %p, %one, %half : f32[N]\n"
                                              "%v = neg %u : f32[N]\n%r = add %v, %s : f32[N]\n"));
    EXPECT_TRUE(keeps(DType::bf16, positive + "%u = cast %p : f32[N]\n%r = sub %s, %u : f32[N]\n"));
    EXPECT_TRUE(
        keeps(DType::bf16, positive + "%u = cast %p : f32[N]\n%r = fma %x, %s, %u : f32[N]\n"));
    EXPECT_FALSE(keeps(DType::bf16,
                       positive + "%u = select %p, %one, %x : f32[N]\n%r = add %s, %u : f32[N]\n"));
    EXPECT_TRUE(keeps(DType::bf16, kSum + "%r = log %s : f32[N]\n"));
    EXPECT_TRUE(keeps(DType::bf16, kSum + "%r = mul %s, %e : f32[N]\n"));
    EXPECT_TRUE(keeps(DType::bf16, "%e = erf %x : f32[N]\n%r = add %e, %half : f32[N]\n"));
}

}  // namespace
}  // namespace tilewright
