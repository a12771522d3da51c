// The tile machine against the reference interpreter: every op, layout and control flow.
#include "cpu/machine.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/cpu/agreement.h"
#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Reduction;
using ir::Shape;
using ir::Type;
using ir::Value;
using testing::throws;

TEST(Machine, ElementwiseOverShapesThatEndWithinAPanel) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1},
                                                   {63},
                                                   {64},
                                                   {130},
                                                   {5, 7},
                                                   {3, 65},
                                                   {70, 3},
                                                   {2, 3, 66},
                                                   {2, 1, 3, 9},
                                                   {0},
                                                   {3, 0}}) {
        Agreement test;
        const Value x = test.load_all(test.array(DType::f32, shape));
        const Value y = test.load_all(test.array(DType::f32, shape));
        ir::Builder& b = test.k.b;
        test.keep(b.binary(Op::add, b.binary(Op::mul, x, y), x));
        test.keep(b.binary(Op::lt, x, y));
        test.keep(b.select(b.binary(Op::lt, x, y), x, y));
        test.check(1e-6);
    }
}

TEST(Machine, BroadcastsOfEveryAxis) {
    Agreement test;
    ir::Builder& b = test.k.b;
    const Value full = test.load_all(test.array(DType::f32, {3, 5, 70}));
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1, 1, 70},
                                                   {1, 5, 1},
                                                   {3, 1, 1},
                                                   {3, 5, 1},
                                                   {3, 1, 70},
                                                   {1, 5, 70}}) {
        const Value part = test.load_all(test.array(DType::f32, shape));
        test.keep(b.binary(Op::add, full, b.broadcast(part, {3, 5, 70})));
    }
    test.check();
}

TEST(Machine, MovesOfTiles) {
    Agreement test;
    ir::Builder& b = test.k.b;
    const Value x = test.load_all(test.array(DType::i32, {6, 70}));
    const int swap[] = {1, 0};
    const Value t = b.transpose(x, swap);
    test.keep(t);
    test.keep(b.binary(Op::add, b.reshape(x, {70, 6}), t));
    test.keep(b.reshape(x, {2, 3, 70}));
    test.keep(b.reshape(x, {420}));
    test.keep(b.slice(x, {{1, 3}, {4, 33}, {1, 2}}));
    test.keep(b.slice(t, {{0, 1}, {35, 3}, {2, 2}}));
    const Value parts[] = {x, b.slice(x, {{0, 0}, {6, 65}, {1, 1}})};
    test.keep(b.concatenate(parts, 1));
    const Value rows[] = {x, b.slice(x, {{0, 0}, {3, 70}, {2, 1}})};
    test.keep(b.concatenate(rows, 0));
    test.keep(b.expand_dims(b.binary(Op::mul, x, x), 1));
    test.check();
}

TEST(Machine, ReductionsAndScansAlongEveryAxis) {
    for (const DType dtype : {DType::f32, DType::i32, DType::bf16, DType::f64, DType::u8}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(dtype, {3, 5, 67}));
        for (int axis = 0; axis < 3; ++axis) {
            for (const Reduction kind : {Reduction::sum, Reduction::max, Reduction::min,
                                         Reduction::argmax, Reduction::argmin}) {
                test.keep(b.reduce(kind, x, axis));
            }
            test.keep(b.scan(Reduction::sum, x, axis));
            test.keep(b.scan(Reduction::max, x, axis, true));
            test.keep(b.scan(Reduction::sum, x, axis, true, true));
        }
        test.keep(b.reduce(Reduction::sum,
                           b.reduce(Reduction::max, b.reduce(Reduction::max, x, 1), 0), 0));
        test.check(dtype == DType::bf16 ? 1e-2 : 1e-5);
    }
}

TEST(Machine, TilesOfManyDimensions) {
    for (const std::vector<std::int64_t>& dims :
         {std::vector<std::int64_t>{2, 1, 3, 1, 2, 1, 2, 35},
          {1, 1, 70, 1, 1, 5, 1, 1},
          {3, 2, 2, 3, 2, 5},
          {1, 2, 1, 2, 66}}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(DType::i32, dims));
        const int rank = static_cast<int>(dims.size());
        std::vector<int> backwards(dims.size());
        for (int axis = 0; axis < rank; ++axis) {
            backwards[static_cast<std::size_t>(axis)] = rank - 1 - axis;
            test.keep(b.reduce(Reduction::sum, x, axis));
            test.keep(b.reduce(Reduction::argmax, x, axis));
            test.keep(b.scan(Reduction::sum, x, axis));
            test.keep(b.scan(Reduction::max, x, axis, true, true));
            const Value parts[] = {x, x};
            test.keep(b.concatenate(parts, axis));
            const Value narrow = b.expand_dims(b.reduce(Reduction::max, x, axis), axis);
            test.keep(b.binary(Op::sub, x, b.broadcast(narrow, b.type(x).shape)));
        }
        test.keep(b.binary(Op::mul, b.transpose(x, backwards), b.transpose(x, backwards)));
        test.keep(b.reshape(x, {b.type(x).shape.size()}));
        // A gather, a masked store and one past the end of its array.
        const ir::Shape shape = b.type(x).shape;
        const Value flat = test.array(DType::i32, {shape.size() - 7});
        const Value places = b.reshape(b.iota({DType::i32, {shape.size()}}, 0), shape);
        test.keep(test.k.load(flat, {IndexOperand::tile(places)}));
        const Value out = test.array(DType::i32, dims);
        std::vector<IndexOperand> moved;
        for (const std::int64_t extent : dims) {
            moved.push_back(test.k.slice(extent > 2 ? -1 : 0, extent));
        }
        const Value odd = b.binary(Op::gt, x, b.constant_int(b.type(x), 3));
        test.k.store(out, moved, x, odd);
        test.check();
    }
}

TEST(Machine, DotsInEveryForm) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32}) {
        for (const bool ta : {false, true}) {
            for (const bool tb : {false, true}) {
                for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{5, 7, 9},
                                              {70, 130, 65},
                                              {66, 70, 130},
                                              {1, 66, 4},
                                              {1, 66, 3},
                                              {67, 1, 70}}) {
                    Agreement test;
                    ir::Builder& b = test.k.b;
                    const auto shape = [](std::int64_t r, std::int64_t c, bool t) {
                        return t ? std::vector<std::int64_t>{c, r}
                                 : std::vector<std::int64_t>{r, c};
                    };
                    const Value x = test.load_all(test.array(dtype, shape(m, k, ta)));
                    const Value y = test.load_all(test.array(dtype, shape(k, n, tb)));
                    const Value d = b.dot(x, y, {}, {ta, tb});
                    test.keep(d);
                    test.keep(b.dot(b.binary(Op::mul, x, x), y, d, {ta, tb}));
                    test.check(1e-4);
                }
            }
        }
    }
    Agreement test;
    const Value x = test.load_all(test.array(DType::f32, {3, 5, 70}));
    const Value y = test.load_all(test.array(DType::f32, {3, 70, 66}));
    test.keep(test.k.b.dot(x, y));
    test.check(1e-4);
    // Few columns make a layout with lanes along the batch attractive.
    for (const std::int64_t columns : {1, 2, 4}) {
        Agreement narrow;
        ir::Builder& b = narrow.k.b;
        const Value matrices = narrow.load_all(narrow.array(DType::f32, {3, 8, 16}));
        const Value others = narrow.load_all(narrow.array(DType::f32, {3, 16, columns}));
        const Value product = b.dot(matrices, others);
        narrow.keep(product);
        narrow.keep(b.dot(b.binary(Op::mul, matrices, matrices), others, product));
        narrow.check(1e-4);
    }
}

bool scales_in_dot(const Agreement& test) {
    return to_string(*compile(test.k.function)).find("scaled by") != std::string::npos;
}

TEST(Machine, DotsScaleWhatTheyAddTo) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        const DType sums = dtype == DType::bf16 ? DType::f32 : dtype;
        for (const int axis : {0, 1}) {  // a factor for each row, for each column
            for (const bool swapped : {false, true}) {
                for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{5, 7, 9},
                                              {64, 70, 130},
                                              {130, 140, 300},
                                              {70, 66, 2}}) {
                    Agreement test;
                    ir::Builder& b = test.k.b;
                    const Shape shape{m, n};
                    const Value x = test.load_all(test.array(dtype, {m, k}));
                    const Value y = test.load_all(test.array(dtype, {k, n}));
                    const Value z = test.load_all(test.array(sums, {m, n}));
                    const Value line = test.load_all(test.array(sums, {axis == 0 ? m : n}));
                    const Value init[] = {b.binary(Op::add, z, z), b.binary(Op::mul, line, line)};
                    const auto state = b.for_loop(
                        test.k.index(0), test.k.index(3), test.k.index(1), init,
                        [&](Value, std::span<const Value> c) {
                            const Value factor = b.binary(
                                Op::mul, c[1], b.constant({sums, Shape{shape[axis]}}, 0.25));
                            const Value column =
                                b.broadcast(b.expand_dims(factor, 1 - axis), shape);
                            const Value scaled = swapped ? b.binary(Op::mul, column, c[0])
                                                         : b.binary(Op::mul, c[0], column);
                            return std::vector{b.dot(x, y, scaled), factor};
                        });
                    test.keep(state[0]);
                    test.check(1e-4);
                    EXPECT_TRUE(scales_in_dot(test)) << to_string(*compile(test.k.function));
                }
            }
        }
    }
}

TEST(Machine, DotsOfBatchesScaleWhatTheyAddTo) {
    for (const int axis : {0, 1}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Shape shape{3, 20, 70};
        const Value x = test.load_all(test.array(DType::f32, {3, 20, 9}));
        const Value y = test.load_all(test.array(DType::f32, {3, 9, 70}));
        const Value z = test.load_all(test.array(DType::f32, {3, 20, 70}));
        const Value line = test.load_all(test.array(DType::f32, {shape[axis + 1]}));
        const Value factor =
            b.expand_dims(b.expand_dims(b.binary(Op::add, line, line), 1 - axis), 0);
        test.keep(
            b.dot(x, y, b.binary(Op::mul, b.binary(Op::add, z, z), b.broadcast(factor, shape))));
        test.check(1e-4);
        EXPECT_TRUE(scales_in_dot(test)) << to_string(*compile(test.k.function));
    }
}

TEST(Machine, DotsScaleNothingThatOthersRead) {
    constexpr std::int64_t n = 66;
    const Shape shape{n, n};
    enum class Case { read_again, two_factors, in_a_loop, matrix, operand, integers };
    for (const Case which : {Case::read_again, Case::two_factors, Case::in_a_loop, Case::matrix,
                             Case::operand, Case::integers}) {
        SCOPED_TRACE(static_cast<int>(which));
        const DType dtype = which == Case::integers ? DType::i32 : DType::f32;
        Agreement test;
        ir::Builder& b = test.k.b;
        const auto matrix = [&] {
            const Value x = test.load_all(test.array(dtype, {n, n}));
            return b.binary(Op::add, x, x);
        };
        const Value x = matrix(), y = matrix(), z = matrix();
        const Value line = test.load_all(test.array(dtype, {n}));
        const Value doubled = b.binary(Op::add, line, line);
        const Value factor =
            which == Case::matrix ? matrix() : b.broadcast(b.expand_dims(doubled, 1), shape);
        const Value scaled = b.binary(Op::mul, z, factor);
        if (which == Case::two_factors) {
            // The inner multiplication is a separate operation, the outer one is part of the dot.
            test.keep(b.dot(x, y, b.binary(Op::mul, scaled, factor)));
        } else if (which == Case::in_a_loop) {
            const Value init[] = {z};
            test.keep(b.for_loop(test.k.index(0), test.k.index(2), test.k.index(1), init,
                                 [&](Value, std::span<const Value> c) {
                                     const Value sum = b.dot(x, y, scaled);
                                     return std::vector{b.binary(Op::add, c[0], sum)};
                                 })[0]);
        } else if (which == Case::operand) {
            test.keep(b.dot(scaled, y, scaled));
        } else {
            test.keep(b.dot(x, y, scaled));
        }
        if (which == Case::read_again) test.keep(scaled);
        test.keep(z);
        test.check(1e-4);
        // The multiplication may move into a loop, where the dot then performs it.
        if (which == Case::in_a_loop) continue;
        EXPECT_EQ(scales_in_dot(test), which == Case::two_factors);
    }
}

TEST(Machine, LargeDotsOfRowsFarApart) {
    constexpr std::int64_t m = 130, n = 140, k = 300, stride = 1100;
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f8e4m3, DType::f8e5m2,
                              DType::i8, DType::u8, DType::i16, DType::u16, DType::i32}) {
        for (const bool transposed : {false, true}) {
            for (const std::int64_t start : {7, 8}) {  // only one of them is aligned to words
                Agreement test;
                const auto part = [&](std::int64_t rows, std::int64_t columns) {
                    const Value array = test.array(dtype, {rows, stride});
                    return test.k.load(array,
                                       {test.k.slice(0, rows), test.k.slice(start, columns)});
                };
                const Value x = transposed ? part(k, m) : part(m, k), y = part(k, n);
                const Value d = test.k.b.dot(x, y, {}, {transposed, false});
                test.keep(d);
                test.keep(test.k.b.dot(x, y, d, {transposed, false}));
                test.check(1e-4);
            }
        }
    }
}

TEST(Machine, DotsOfIntegersWrapAround) {
    for (const DType dtype : {DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32,
                              DType::i64, DType::u64}) {
        for (const std::int64_t k : {1, 2, 3, 4, 6, 8, 24, 67, 132}) {
            const std::int64_t m = 3 + k % 5 * 4, n = 5 + k % 7 * 9;
            for (const bool ta : {false, true}) {
                for (const bool tb : {false, true}) {
                    SCOPED_TRACE(std::string(name(dtype)) + " k " + std::to_string(k));
                    Agreement test;
                    const auto matrix = [&](bool transposed, std::int64_t r, std::int64_t c) {
                        if (transposed) std::swap(r, c);
                        return test.load_all(test.array_of_bits(dtype, {r, c}));
                    };
                    ir::Builder& b = test.k.b;
                    const Value x = matrix(ta, m, k), y = matrix(tb, k, n);
                    const Value d = b.dot(x, y, {}, {ta, tb});
                    test.keep(d);
                    // Operands that are computed, not loaded, and an accumulator.
                    const Value made = b.binary(Op::mul, b.binary(Op::add, x, x), x);
                    test.keep(b.dot(made, y, d, {ta, tb}));
                    test.check();
                }
            }
        }
    }
}

TEST(Machine, DotsOfBytesWithAndWithoutASign) {
    for (const DType first : {DType::i8, DType::u8}) {
        const DType second = first == DType::i8 ? DType::u8 : DType::i8;
        for (const std::int64_t k : {3, 6, 8, 132}) {
            for (const bool transposed : {false, true}) {
                Agreement test;
                const Value x = test.load_all(test.array_of_bits(first, {20, k}));
                const Value y = test.load_all(
                    test.array_of_bits(second, {transposed ? 70 : k, transposed ? k : 70}));
                test.keep(test.k.b.dot(x, y, {}, {false, transposed}));
                test.check();
            }
        }
    }
}

TEST(Machine, BatchedDotsOfIntegers) {
    for (const DType dtype : {DType::i8, DType::u8, DType::i16, DType::i32}) {
        for (const std::int64_t k : {3, 8}) {
            Agreement test;
            const Value x = test.load_all(test.array_of_bits(dtype, {3, 20, k}));
            const Value y = test.load_all(test.array_of_bits(dtype, {3, k, 70}));
            test.keep(test.k.b.dot(x, y));
            test.keep(test.k.b.dot(y, x, {}, {true, true}));
            const Value ones = test.k.b.constant({dtype, {3, k, 70}}, 127);
            test.keep(test.k.b.dot(x, ones));
            test.check();
        }
    }
}

TEST(Machine, AccessesThatLeaveTheArray) {
    for (const std::int64_t start : {-70, -3, 0, 5, 66, 200}) {
        Agreement test;
        Kernel& k = test.k;
        const Value ref = test.array(DType::f32, {9, 67});
        const Value out = test.array(DType::f32, {9, 67});
        const Value seven = k.b.constant({DType::f32, {}}, 7);
        const Value tile = k.load(ref, {k.slice(start / 9, 6), k.slice(start, 66)});
        test.keep(tile);
        test.keep(k.load(ref, {k.slice(-1, 6, 2), k.slice(start, 30, 3)}));
        test.keep(k.load(ref, {k.at(start), k.slice(0, 67)}));
        const Value mask = k.b.binary(Op::lt, tile, k.b.constant({DType::f32, {6, 66}}, 0));
        const Value other = k.b.broadcast(seven, {6, 66});
        test.keep(k.load(ref, {k.slice(start / 9, 6), k.slice(start, 66)}, mask, other));
        k.store(out, {k.slice(start / 9, 6), k.slice(start, 66)}, tile);
        k.store(out, {k.slice(2, 6), k.slice(start, 66)}, tile, mask);
        test.check();
    }
}

TEST(Machine, GathersScattersAndAtomics) {
    Agreement test({4});
    Kernel& k = test.k;
    ir::Builder& b = k.b;
    const Value table = test.array(DType::f32, {9, 6});
    const Value rows = test.load_all(test.array(DType::i32, {5, 1}));
    const Value columns = test.load_all(test.array(DType::i64, {1, 7}));
    const Value picked = k.load(table, {IndexOperand::tile(rows), IndexOperand::tile(columns)});
    const Value bins = test.array(DType::i32, {10});
    const Value counts = test.array(DType::f32, {10});
    const Value flat = b.reshape(rows, {5});
    b.atomic(Op::atomic_add, bins, std::vector{IndexOperand::tile(flat)}, flat);
    b.atomic(Op::atomic_max, bins, std::vector{IndexOperand::tile(flat)}, flat);
    b.atomic(Op::atomic_add, counts, std::vector{IndexOperand::tile(flat)},
             b.constant({DType::f32, {5}}, 0.1));
    const Value out = test.array(DType::f32, {4, 5, 7});
    k.store(out, {IndexOperand::scalar(b.program_id(0)), k.slice(0, 5), k.slice(0, 7)}, picked);
    const Value target = test.array(DType::f32, {12, 6});
    k.store(target, {IndexOperand::tile(flat), k.slice(0, 6)},
            k.load(table, {IndexOperand::tile(flat), k.slice(0, 6)}));
    test.check();
}

// Runs of a gather end where panels end, and within one some indices are outside the array.
TEST(Machine, LongGathersAndMaskedStores) {
    for (const DType index : {DType::i32, DType::i64, DType::u8}) {
        for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
            Agreement test;
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const Value table = test.array(dtype, {7, 5});
            const Value rows = test.load_all(test.array(index, {4, 150}));
            const Value columns = test.load_all(test.array(index, {150}));
            const Value picked =
                k.load(table, {IndexOperand::tile(rows), IndexOperand::tile(rows)});
            test.keep(picked);
            test.keep(b.transpose(picked, std::array{1, 0}));
            test.keep(k.load(table, {k.at(2), IndexOperand::tile(columns)}));
            test.keep(k.load(table, {k.slice(-1, 4), IndexOperand::tile(columns)}));
            const Value mask = test.load_all(test.array(DType::boolean, {4, 150}));
            const Value out = test.array(dtype, {3, 140}), scattered = test.array(dtype, {7, 5});
            k.store(out, {k.slice(0, 4), k.slice(3, 150)}, picked, mask);
            k.store(scattered, {IndexOperand::tile(rows), IndexOperand::tile(rows)}, picked, mask);
            test.check();
        }
    }
}

TEST(Machine, RandomBits) {
    for (const std::int64_t n : {1, 3, 64, 70, 1100}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value key = b.constant_int({DType::u64, {}}, 0x123456789abcdef);
        const Value counters = test.load_all(test.array(DType::u64, {5, n}));
        const Value high = b.constant_int({DType::u64, {5, n}}, std::int64_t{0x9876543} << 32);
        test.keep(b.random_bits(key, b.binary(Op::add, counters, high)));
        test.keep(b.random_bits(key, test.load_all(test.array(DType::u64, {n}))));
        const Value rows = test.load_all(test.array(DType::u64, {5}));
        test.keep(b.random_bits(key, b.broadcast(b.expand_dims(rows, 1), {5, n})));
        test.check();
    }
}

TEST(Machine, CarriesOfLoopsAndBranches) {
    Agreement test({3});
    Kernel& k = test.k;
    ir::Builder& b = k.b;
    const Value x = test.load_all(test.array(DType::f32, {6, 66}));
    const Value y = test.load_all(test.array(DType::f32, {6, 66}));
    const Value out = test.array(DType::f32, {3, 2, 6, 66});
    const Value p = b.program_id(0);
    const Value init[] = {x, y, k.index(0)};
    // The carries are swapped in every iteration.
    const auto swapped = b.for_loop(k.index(0), b.binary(Op::add, p, k.index(1)), k.index(1), init,
                                    [&](Value iv, std::span<const Value> c) {
                                        const Value next =
                                            b.binary(Op::add, c[0], b.binary(Op::mul, c[1], y));
                                        return std::vector{c[1], next, b.binary(Op::add, c[2], iv)};
                                    });
    const auto chosen = b.if_else(
        b.binary(Op::eq, swapped[2], k.index(1)), [&] { return std::vector{swapped[0]}; },
        [&] { return std::vector{b.binary(Op::mul, swapped[0], swapped[1])}; });
    const auto halved = b.while_loop(
        std::vector{chosen[0], k.index(9)},
        [&](std::span<const Value> c) { return b.binary(Op::gt, c[1], p); },
        [&](std::span<const Value> c) {
            const Value half = b.constant({DType::f32, {6, 66}}, 0.5);
            return std::vector{b.binary(Op::mul, c[0], half), b.binary(Op::sub, c[1], k.index(2))};
        });
    for (int i = 0; i < 2; ++i) {
        k.store(out, {IndexOperand::scalar(p), k.at(i), k.slice(0, 6), k.slice(0, 66)},
                i ? swapped[1] : halved[0]);
    }
    test.check(1e-5);
}

TEST(Machine, ScratchIsPrivateToAProgram) {
    Agreement test({5});
    Kernel& k = test.k;
    const Value scratch = k.scratch("scratch", DType::f32, {4, 70});
    const Value x = test.array(DType::f32, {5, 4, 70});
    const Value out = test.array(DType::f32, {5, 70, 4});
    const Value p = k.b.program_id(0);
    const Value tile = k.load(x, {IndexOperand::scalar(p), k.slice(0, 4), k.slice(0, 70)});
    k.store(scratch, {k.slice(0, 4), k.slice(0, 70)}, tile);
    k.store(scratch, {k.at(1), k.slice(3, 10)}, k.load(scratch, {k.at(2), k.slice(5, 10)}));
    const int swap[] = {1, 0};
    k.store(out, {IndexOperand::scalar(p), k.slice(0, 70), k.slice(0, 4)},
            k.b.transpose(k.load(scratch, {k.slice(0, 4), k.slice(0, 70)}), swap));
    test.check();
}

/// Causal attention over `length` keys, whose last block may be partial.
void build_attention(Agreement& test, DType dtype, std::int64_t length, std::int64_t dim) {
    constexpr std::int64_t kBlock = 64, kKeys = 32;
    Kernel& k = test.k;
    ir::Builder& b = k.b;
    const Value query = test.array(dtype, {length, dim}), key = test.array(dtype, {length, dim}),
                value = test.array(dtype, {length, dim}),
                out = test.array(DType::f32, {length, dim});
    const Value first = b.binary(Op::mul, b.program_id(0), k.index(kBlock));
    const std::vector rows{IndexOperand::slice(first, kBlock), k.slice(0, dim)};
    const Value q = k.load(query, rows);
    const Shape scores{kBlock, kKeys}, outs{kBlock, dim}, stats{kBlock};
    const auto splat = [&](const Shape& shape, double x) {
        return b.constant({DType::f32, shape}, x);
    };
    const auto column = [&](Value v, const Shape& shape) {
        return b.broadcast(b.expand_dims(v, 1), shape);
    };
    const auto positions = [&](Value start, std::int64_t count) {
        const Value base = b.broadcast(b.cast(start, DType::i32), {count});
        return b.binary(Op::add, base, b.iota({DType::i32, {count}}, 0));
    };
    const Value init[] = {splat(stats, -1e30), splat(stats, 0), splat(outs, 0)};
    const Value end = b.binary(Op::add, first, k.index(kBlock));
    const auto state = b.for_loop(
        k.index(0), end, k.index(kKeys), init, [&](Value start, std::span<const Value> c) {
            const std::vector block{IndexOperand::slice(start, kKeys), k.slice(0, dim)};
            const Value score = b.dot(q, k.load(key, block), {}, {false, true});
            const Value at = b.broadcast(b.expand_dims(positions(start, kKeys), 0), scores);
            const Value below = b.binary(Op::ge, column(positions(first, kBlock), scores), at);
            const Value inside = b.binary(Op::lt, at, b.constant_int({DType::i32, scores}, length));
            const Value masked =
                b.select(b.binary(Op::bitwise_and, below, inside), score, splat(scores, -INFINITY));
            const Value high = b.binary(Op::max, c[0], b.reduce(Reduction::max, masked, 1));
            const Value p = b.unary(Op::exp2, b.binary(Op::sub, masked, column(high, scores)));
            const Value alpha = b.unary(Op::exp2, b.binary(Op::sub, c[0], high));
            const Value sum = b.fma(c[1], alpha, b.reduce(Reduction::sum, p, 1));
            const Value scaled = b.binary(Op::mul, c[2], column(alpha, outs));
            return std::vector{high, sum, b.dot(b.cast(p, dtype), k.load(value, block), scaled)};
        });
    k.store(out, rows, b.binary(Op::div, state[2], column(state[1], outs)));
}

TEST(Machine, AttentionKeepsQueriesInLanesAndKeysInPlace) {
    Agreement test({3});
    build_attention(test, DType::f32, 150, 24);
    test.check(2e-5);
    const std::string listing = to_string(*compile(test.k.function));
    EXPECT_NE(listing.find("= view r1"), std::string::npos) << listing;
    EXPECT_EQ(listing.find("= load"), std::string::npos) << listing;
    EXPECT_NE(listing.find("affine_select"), std::string::npos) << listing;
    EXPECT_NE(listing.find("exp2_sum"), std::string::npos) << listing;
    Agreement narrow({3});
    build_attention(narrow, DType::bf16, 150, 24);
    narrow.check(2e-2);
    if (kernels().gemm_bf16_pairs == nullptr) return;
    const std::string pairs = to_string(*compile(narrow.k.function));
    EXPECT_NE(pairs.find("= exp2_sum_pairs"), std::string::npos) << pairs;
    EXPECT_EQ(pairs.find("= interleave b"), std::string::npos) << pairs;
    EXPECT_EQ(pairs.find("= cast b"), std::string::npos) << pairs;
}

TEST(Machine, AttentionTransposesValuesWhereProductsWantContiguousKeys) {
    Agreement test({3});
    build_attention(test, DType::bf16, 150, 64);
    test.check(2e-2);
    if (!kernels().wants_k_contiguous) return;
    // The probabilities, of which there are more, are not.
    const std::string listing = to_string(*compile(test.k.function));
    EXPECT_NE(listing.find("= exp2_sum_pairs"), std::string::npos) << listing;
    EXPECT_NE(listing.find("= move v2"), std::string::npos) << listing;
}

TEST(Machine, UnevenProgramsKeepTheirNeighboursButForTheLast) {
    // For two threads, the last programs, whose total cost is four times the longest, are sorted.
    EXPECT_EQ(uneven_order({1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}, 2),
              (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 7, 11, 6, 10, 9, 8}));
    EXPECT_EQ(uneven_order({5, 1, 1, 7}, 16), (std::vector<std::int64_t>{3, 0, 1, 2}));
    EXPECT_EQ(uneven_order({0, 0, 0}, 2), (std::vector<std::int64_t>{0, 1, 2}));
}

TEST(Machine, RefusesWrongArguments) {
    Kernel k("kernel", {2});
    k.ref("x", DType::f32, {4});
    const auto program = compile(k.done());
    EXPECT_THAT([&] { run(*program, arguments({}, {2})); },
                throws("expected 1 arrays and 0 scalars but got 0 and 0"));
    Array<float> wrong(std::vector<float>(5));
    EXPECT_THAT([&] { run(*program, arguments({wrong.argument()}, {2})); },
                throws("expected extent 0 of x to be 4 but got 5"));
    Array<float> right(std::vector<float>(4));
    EXPECT_THAT([&] { run(*program, arguments({right.argument()}, {3})); },
                throws("expected grid axis 0 to be 2 but got 3"));
    EXPECT_THAT([&] { set_num_threads(-1); }, throws("expected at least 0 threads but got -1"));
}

}  // namespace
}  // namespace tilewright::cpu
