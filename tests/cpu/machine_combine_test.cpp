// The tile machine's scans with functions of the user's agree with the reference interpreter.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::Value;
using Mod = std::shared_ptr<const ir::Function>;

/// A mod of so many elements before and after and captured scalars.
template <typename Body>
Mod mod_of(const std::vector<DType>& elements, const std::vector<DType>& captured, Body&& body) {
    auto mod = std::make_shared<ir::Function>();
    mod->name = "combine";
    std::vector<Value> parameters;
    for (const auto& types : {elements, elements, captured}) {
        for (const DType dtype : types)
            parameters.push_back(mod->add_parameter(ir::Type{dtype, {}}, ""));
    }
    ir::Builder builder(*mod);
    builder.yield(body(builder, parameters));
    return mod;
}

/// Affine maps x -> m x + c, one after the other: they do not commute.
Mod recurrence(DType dtype) {
    return mod_of({dtype, dtype}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
        return std::vector{b.binary(Op::mul, p[0], p[2]),
                           b.binary(Op::add, b.binary(Op::mul, p[1], p[2]), p[3])};
    });
}

Mod product(DType dtype) {
    return mod_of({dtype}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
        return std::vector{b.binary(Op::mul, p[0], p[1])};
    });
}

/// Linear maps of the max-plus algebra.
Mod max_plus(DType dtype) {
    return mod_of({dtype, dtype}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
        return std::vector{b.binary(Op::add, p[0], p[2]),
                           b.binary(Op::max, b.binary(Op::add, p[1], p[2]), p[3])};
    });
}

/// Lengths of one and several pieces, segments and vectors, with and without rests.
const std::vector<std::vector<std::int64_t>> kShapes = {{5, 77},   {37, 9},  {1, 2100}, {3, 2048},
                                                        {70, 130}, {2, 300}, {130, 3}};

TEST(Machine, CombinesEveryDtypeInBothDirections) {
    using enum DType;
    for (const DType dtype : {f32, f64, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64}) {
        SCOPED_TRACE(name(dtype));
        for (const auto& shape : kShapes) {
            Agreement test;
            ir::Builder& b = test.k.b;
            // Factors of at most 1, so that products of floats stay small.
            Value m = test.load_all(is_float(dtype) ? test.array(dtype, shape)
                                                    : test.array_of_bits(dtype, shape));
            if (is_float(dtype)) m = b.binary(Op::mul, m, b.constant(b.type(m), 0.5));
            const Value c = test.load_all(test.array(dtype, shape));
            for (const int axis : {0, 1}) {
                for (const bool reverse : {false, true}) {
                    for (const Value result :
                         b.associative_scan(recurrence(dtype), std::array{m, c}, axis, reverse))
                        test.keep(result);
                    // Sums of narrow numbers overflow, or round differently.
                    if (size_of(dtype) < 4 || dtype == u32 || dtype == u64) continue;
                    for (const Value result :
                         b.associative_scan(max_plus(dtype), std::array{c, c}, axis, reverse))
                        test.keep(result);
                }
            }
            test.check(dtype == f16 || dtype == bf16 ? 5e-2 : is_float(dtype) ? 1e-4 : 0);
        }
    }
}

TEST(Machine, CombinesOnlyWhatIsKept) {
    for (const auto& shape : kShapes) {
        for (const bool reverse : {false, true}) {
            Agreement test({2});
            ir::Builder& b = test.k.b;
            const Value m = test.own_tile(DType::i32, shape), c = test.own_tile(DType::i32, shape);
            for (const int axis : {0, 1}) {
                const auto both =
                    b.associative_scan(recurrence(DType::i32), std::array{m, c}, axis, reverse);
                test.keep(b.binary(Op::add, both[1], both[1]));
                const auto first =
                    b.associative_scan(max_plus(DType::i32), std::array{m, c}, axis, reverse);
                test.keep(first[0]);
            }
            test.check();
        }
    }
}

// Operands that are one element for all rows, all lanes, or both; scalars captured; three axes.
TEST(Machine, CombinesBroadcastOperands) {
    using enum DType;
    // Maps x -> scale m x + c.
    const Mod mod = mod_of({i32, i32}, {i32}, [](ir::Builder& b, const std::vector<Value>& p) {
        const Value factor = b.binary(Op::mul, p[2], p[4]);
        return std::vector{b.binary(Op::mul, p[0], factor),
                           b.binary(Op::add, b.binary(Op::mul, p[1], factor), p[3])};
    });
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{20, 150}, {3, 2500}, {2, 7001}, {4, 6, 70}, {4, 70, 6}}) {
        Agreement test({2});
        ir::Builder& b = test.k.b;
        const Value c = test.load_all(test.array(i32, shape));
        const Value scale = b.cast(b.program_id(0), i32);
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            std::vector<std::int64_t> short_shape(shape.size(), 1);
            short_shape[axis] = shape[axis];
            const Value lanes =
                b.broadcast(test.load_all(test.array(i32, short_shape)), ir::Shape(shape));
            const Value all = b.constant_int(b.type(c), -1);
            for (const Value factor : {lanes, all}) {
                for (const bool reverse : {false, true}) {
                    const std::vector<Value> results = b.associative_scan(
                        mod, std::array{factor, c, scale}, static_cast<int>(axis), reverse);
                    for (const Value result : results) test.keep(result);
                }
            }
        }
        test.check();
    }
}

// Sums that start anew at flags: three values, one of them a boolean; selects and comparisons.
TEST(Machine, CombinesSegmentsAndPlaces) {
    using enum DType;
    const Mod segments =
        mod_of({boolean, f32}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
            return std::vector{b.binary(Op::bitwise_or, p[0], p[2]),
                               b.select(p[2], p[3], b.binary(Op::add, p[1], p[3]))};
        });
    const Mod largest = mod_of({f32, i32}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
        const Value before = b.binary(Op::ge, p[0], p[2]);
        return std::vector{b.select(before, p[0], p[2]), b.select(before, p[1], p[3])};
    });
    for (const auto& shape : kShapes) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(f32, shape));
        const Value flags = test.load_all(test.array(boolean, shape));
        for (const int axis : {0, 1}) {
            const Value places = b.iota({i32, ir::Shape(shape)}, axis);
            for (const Value result : b.associative_scan(segments, std::array{flags, x}, axis))
                test.keep(result);
            for (const Value result : b.associative_scan(largest, std::array{x, places}, axis))
                test.keep(result);
        }
        test.check(1e-5);
    }
}

// Minima and maxima give NaN where either operand is.
TEST(Machine, CombinesNotANumber) {
    using enum DType;
    const Mod mod = mod_of({f32, f32, f32}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
        return std::vector{b.binary(Op::max, p[0], p[3]), b.binary(Op::min, p[4], p[1]),
                           b.binary(Op::min, p[2], p[5])};
    });
    for (const auto& shape : kShapes) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(f32, shape));
        const Value places = b.iota({i32, ir::Shape(shape)}, shape[0] == 1 ? 1 : 0);
        const Value late = b.binary(Op::gt, places, b.constant_int(b.type(places), 20));
        const Value large = b.binary(Op::gt, x, b.constant(b.type(x), 1.75));
        const Value nan =
            b.select(b.binary(Op::bitwise_and, late, large),
                     b.constant(b.type(x), std::numeric_limits<double>::quiet_NaN()), x);
        for (const int axis : {0, 1}) {
            for (const bool reverse : {false, true}) {
                for (const Value result :
                     b.associative_scan(mod, std::array{nan, nan, x}, axis, reverse))
                    test.keep(result);
            }
        }
        test.check();
    }
}

// Results go past the caches: whole vectors where they are aligned, the rest not. Rows that follow
// each other, rows of several pieces, few and many.
TEST(Machine, CombinedRowsAreStreamed) {
    struct Case {
        bool down;
        std::int64_t rows, lanes;
    };
    for (const auto& [down, rows, lanes] : {Case{false, 2, 4500001},
                                            {true, 3000, 3001},
                                            {true, 2051, 4096},
                                            {true, 301, 28656},
                                            {true, 101, 90112}}) {
        for (const bool reverse : {false, true}) {
            Kernel k("running");
            const std::vector<std::int64_t> extents = {rows, lanes};
            const Value m = k.ref("m", DType::i32, extents), c = k.ref("c", DType::i32, extents),
                        y = k.ref("y", DType::i32, extents), z = k.ref("z", DType::i32, extents);
            const std::vector<ir::IndexOperand> all = {k.slice(0, rows), k.slice(0, lanes)};
            const std::vector<Value> both = {k.load(m, all), k.load(c, all)};
            const int axis = down ? 0 : 1;
            k.store(y, all, k.b.associative_scan(recurrence(DType::i32), both, axis, reverse)[1]);
            k.store(
                z, all,
                k.b.associative_scan(product(DType::i32), std::array{both[0]}, axis, reverse)[0]);
            k.done();
            const auto size = static_cast<std::size_t>(rows * lanes);
            constexpr std::size_t kVector = 16;
            using Array = std::vector<std::uint32_t>;
            Array factors(size + kVector), terms(size + kVector), states(size + kVector),
                products(size + kVector);
            const auto aligned = [](Array& array) {
                const auto bytes = reinterpret_cast<std::uintptr_t>(array.data()) % 64;
                return array.data() + (64 - bytes) % 64 / sizeof(std::uint32_t);
            };
            for (std::size_t i = 0; i < size; ++i) {
                aligned(factors)[i] = static_cast<std::uint32_t>(i * 2654435761U >> 7) | 1;
                aligned(terms)[i] = static_cast<std::uint32_t>(i * 40503U);
            }
            ir::Arguments arguments;
            for (auto* array : {&factors, &terms, &states, &products}) {
                ir::RefArgument ref;
                ref.data = aligned(*array);
                ref.extents = {rows, lanes};
                ref.strides = {lanes, 1};
                arguments.refs.push_back(ref);
            }
            run(*compile(k.function), arguments);
            const auto length = down ? rows : lanes;
            std::int64_t wrong = 0;
            for (std::int64_t line = 0; line < (down ? lanes : rows); ++line) {
                std::uint32_t state = 0, factor = 1;
                for (std::int64_t step = 0; step < length; ++step) {
                    const std::int64_t at = reverse ? length - 1 - step : step;
                    const auto i =
                        static_cast<std::size_t>(down ? at * lanes + line : line * lanes + at);
                    state = state * aligned(factors)[i] + aligned(terms)[i];
                    factor *= aligned(factors)[i];
                    wrong += aligned(states)[i] != state || aligned(products)[i] != factor;
                }
            }
            EXPECT_EQ(wrong, 0) << rows << " x " << lanes << down << reverse;
        }
    }
}

TEST(Machine, CombinedRowsGoToTheArray) {
    Kernel k("running");
    const Value m = k.ref("m", DType::f32, {4, 4096}), c = k.ref("c", DType::f32, {4, 4096}),
                y = k.ref("y", DType::f32, {4, 4096});
    const std::vector<ir::IndexOperand> all = {k.slice(0, 4), k.slice(0, 4096)};
    const std::vector<Value> both = {k.load(m, all), k.load(c, all)};
    k.store(y, all, k.b.associative_scan(recurrence(DType::f32), both, 1)[1]);
    k.done();
    const std::string listing = to_string(*compile(k.function));
    EXPECT_THAT(listing,
                testing::ContainsRegex("_, v[0-9]+ = combine v[0-9]+, v[0-9]+ along lanes"))
        << listing;
}

// Functions that are no list of ops on elements are scanned in steps.
TEST(Machine, BranchesAreCombinedInSteps) {
    using enum DType;
    const Mod mod = mod_of({i32}, {}, [](ir::Builder& b, const std::vector<Value>& p) {
        return b.if_else(
            b.binary(Op::lt, p[0], p[1]), [&] { return std::vector{p[1]}; },
            [&] { return std::vector{p[0]}; });
    });
    Agreement test;
    const Value x = test.load_all(test.array(i32, {3, 70})),
                y = test.load_all(test.array(i32, {3, 70}));
    test.keep(test.k.b.associative_scan(mod, std::array{x}, 1)[0]);
    test.keep(test.k.b.associative_scan(mod, std::array{y}, 0, true)[0]);
    test.check();
}

}  // namespace
}  // namespace tilewright::cpu
