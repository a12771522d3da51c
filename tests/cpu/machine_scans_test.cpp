// The tile machine's scans, which are ops of strip chains, agree with the reference interpreter.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Reduction;
using ir::Value;

TEST(Machine, ScansOfEveryDtypeInBothDirections) {
    using enum DType;
    for (const DType dtype : {f32, f64, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        // A little more than a panel, many rows, and one row of several panels.
        const std::vector<std::vector<std::int64_t>> shapes = {{5, 77}, {37, 9}, {1, 2100}};
        for (const std::vector<std::int64_t>& shape : shapes) {
            const Value x = test.load_all(is_float(dtype) ? test.array(dtype, shape)
                                                          : test.array_of_bits(dtype, shape));
            for (const int axis : {0, 1}) {
                for (const bool reverse : {false, true}) {
                    for (const bool exclusive : {false, true}) {
                        for (const Reduction kind :
                             {Reduction::sum, Reduction::max, Reduction::min})
                            test.keep(b.scan(kind, x, axis, reverse, exclusive));
                        // Products of floats soon overflow.
                        if (!is_float(dtype))
                            test.keep(b.scan(Reduction::prod, x, axis, reverse, exclusive));
                    }
                }
            }
        }
        test.check(dtype == f16 || dtype == bf16 ? 2e-2 : is_float(dtype) ? 1e-4 : 0);
    }
}

TEST(Machine, ScansOfTruth) {
    Agreement test;
    ir::Builder& b = test.k.b;
    const Value x = test.load_all(test.array(DType::boolean, {9, 130}));
    for (const int axis : {0, 1}) {
        test.keep(b.scan(Reduction::any, x, axis, true));
        test.keep(b.scan(Reduction::all, x, axis, false, true));
    }
    test.check();
}

// Values near each other, far apart (most exponentials vanish beside the largest), rows that begin
// with or consist of minus infinity, and rows with infinity and NaN.
TEST(Machine, LogSumExpScans) {
    using enum DType;
    for (const DType dtype : {f32, f64, f16, bf16}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const std::vector<std::vector<std::int64_t>> shapes = {{5, 77}, {37, 9}, {1, 2100}};
        for (const std::vector<std::int64_t>& shape : shapes) {
            const Value x = test.load_all(test.array(dtype, shape));
            const auto splat = [&](double value) { return b.constant(b.type(x), value); };
            const Value rows = b.cast(b.iota({i32, b.type(x).shape}, 0), dtype);
            const Value far = b.binary(Op::mul, b.binary(Op::add, x, rows), splat(60));
            const double infinity = std::numeric_limits<double>::infinity();
            const Value some = b.select(b.binary(Op::lt, x, splat(0.5)), splat(-infinity), far);
            const Value special = b.select(b.binary(Op::gt, x, splat(1.75)), splat(infinity), x);
            const Value nan = b.select(b.binary(Op::gt, x, splat(1.75)),
                                       splat(std::numeric_limits<double>::quiet_NaN()), x);
            for (const Value operand : {x, far, some, special, nan, splat(-infinity)}) {
                for (const int axis : {0, 1}) {
                    for (const bool reverse : {false, true}) {
                        for (const bool exclusive : {false, true}) {
                            test.keep(
                                b.scan(Reduction::logsumexp, operand, axis, reverse, exclusive));
                        }
                    }
                }
            }
        }
        test.check(dtype == f64 ? 1e-13 : dtype == f32 ? 2e-6 : dtype == f16 ? 1e-3 : 8e-3);
    }
}

// Scans in different directions do not share a chain; ops that fit both are shared.
TEST(Machine, ScansInChains) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{3, 1300}, {70, 130}, {200, 40}}) {
        Agreement test({2});
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(DType::i32, shape));
        const Value doubled = b.binary(Op::add, x, x);
        for (const int axis : {0, 1}) {
            const Value up = b.scan(Reduction::sum, doubled, axis);
            const Value down = b.scan(Reduction::sum, doubled, axis, true);
            const Value both = b.binary(Op::sub, b.binary(Op::add, up, down), doubled);
            test.keep(both);
            test.keep(b.scan(Reduction::max, b.binary(Op::mul, up, down), 1 - axis, true, true));
            test.keep(b.reduce(Reduction::sum, up, axis));
            test.keep(b.reduce(Reduction::max, down, 1 - axis));
        }
        test.check();
    }
}

// Sums down arrays of many shapes: rows that follow each other, rows of several pieces, with and
// without a rest, few and many of them; from 32 MiB on, results go past the caches.
TEST(Machine, ScansDownLargeArrays) {
    struct Shape {
        std::int64_t rows, lanes;
    };
    constexpr std::size_t kVector = 16;
    for (const auto& [rows, lanes] :
         {Shape{700, 608}, {301, 5000}, {2051, 4096}, {301, 28656}, {101, 90112}, {2050, 4097}}) {
        for (const auto& [reverse, exclusive] :
             {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
            Kernel k("running");
            const std::vector<std::int64_t> extents = {rows, lanes};
            const Value x = k.ref("x", DType::i32, extents), y = k.ref("y", DType::i32, extents);
            const std::vector<ir::IndexOperand> all = {k.slice(0, rows), k.slice(0, lanes)};
            k.store(y, all, k.b.scan(Reduction::sum, k.load(x, all), 0, reverse, exclusive));
            k.done();
            const auto size = static_cast<std::size_t>(rows * lanes);
            std::vector<std::uint32_t> elements(size + kVector), results(size + kVector);
            const auto aligned = [](std::vector<std::uint32_t>& array) {
                const auto bytes = reinterpret_cast<std::uintptr_t>(array.data()) % 64;
                return array.data() + (64 - bytes) % 64 / sizeof(std::uint32_t);
            };
            std::uint32_t* const in = aligned(elements);
            const std::uint32_t* const out = aligned(results);
            for (std::size_t i = 0; i < size; ++i) in[i] = static_cast<std::uint32_t>(i * 40503U);
            ir::Arguments arguments;
            for (auto* array : {&elements, &results}) {
                ir::RefArgument ref;
                ref.data = aligned(*array);
                ref.extents = {rows, lanes};
                ref.strides = {lanes, 1};
                arguments.refs.push_back(ref);
            }
            run(*compile(k.function), arguments);
            std::vector<std::uint32_t> sums(static_cast<std::size_t>(lanes));
            std::int64_t wrong = 0;
            for (std::int64_t step = 0; step < rows; ++step) {
                const std::int64_t row = reverse ? rows - 1 - step : step;
                for (std::int64_t lane = 0; lane < lanes; ++lane) {
                    const auto i = static_cast<std::size_t>(row * lanes + lane);
                    std::uint32_t& sum = sums[static_cast<std::size_t>(lane)];
                    const std::uint32_t before = sum;
                    sum += in[i];
                    wrong += out[i] != (exclusive ? before : sum);
                }
            }
            EXPECT_EQ(wrong, 0) << rows << " x " << lanes << reverse << exclusive;
        }
    }
}

// Vectors with and without NaN, and with carries that are NaN.
TEST(Machine, ExtremesOfNotANumber) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        for (const auto& shape : {std::vector<std::int64_t>{5, 77}, {37, 9}, {1, 2100}}) {
            Agreement test({2});
            ir::Builder& b = test.k.b;
            const Value x = test.load_all(test.array(dtype, shape));
            const int longer = shape[0] < shape[1] ? 1 : 0;
            const Value places = b.iota({DType::i32, ir::Shape(shape)}, longer);
            const Value late = b.binary(Op::gt, places, b.constant_int(b.type(places), 40));
            const Value large = b.binary(Op::gt, x, b.constant(b.type(x), 1.96875));
            const Value nan =
                b.select(b.binary(Op::bitwise_and, late, large),
                         b.constant(b.type(x), std::numeric_limits<double>::quiet_NaN()), x);
            const Value own = test.own_tile(dtype, shape);
            for (const int axis : {0, 1}) {
                for (const bool reverse : {false, true}) {
                    for (const Reduction kind : {Reduction::max, Reduction::min}) {
                        test.keep(b.scan(kind, nan, axis, reverse));
                        test.keep(b.scan(kind, own, axis, reverse, true));
                    }
                }
            }
            test.check();
        }
    }
}

TEST(Machine, LongScansWriteToTheArray) {
    Kernel k("running");
    const Value x = k.ref("x", DType::f32, {4096}), y = k.ref("y", DType::f32, {4096});
    const Value loaded = k.load(x, {k.slice(0, 4096)});
    k.store(y, {k.slice(0, 4096)}, k.b.scan(Reduction::sum, loaded, 0));
    k.done();
    const std::string listing = to_string(*compile(k.function));
    EXPECT_THAT(listing, testing::HasSubstr("t0 = scan v")) << listing;
    EXPECT_THAT(listing, testing::HasSubstr("_ = store t0")) << listing;
}

}  // namespace
}  // namespace tilewright::cpu
