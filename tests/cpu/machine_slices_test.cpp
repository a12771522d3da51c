// Slices and scattered sums on the tile machine agree with the reference interpreter.
#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Reduction;
using ir::Value;

/// The sum of the nine parts of `x` that are two rows and two columns smaller.
Value sum_of_neighbours(ir::Builder& b, Value x) {
    const ir::Shape shape = b.type(x).shape;
    const std::int64_t rows = shape[0] - 2, columns = shape[1] - 2;
    Value sum;
    for (std::int64_t i = 0; i < 9; ++i) {
        const Value part = b.slice(x, {{i / 3, i % 3}, {rows, columns}, {1, 1}});
        sum = i == 0 ? part : b.binary(Op::add, sum, part);
    }
    return sum;
}

TEST(Machine, SlicesOfLoads) {
    using enum DType;
    for (const DType dtype : {f32, f64, bf16, i32, u8, i64}) {
        for (const auto& [rows, columns] :
             {std::pair<std::int64_t, std::int64_t>{5, 9}, {19, 115}, {18, 66}, {9, 1300}}) {
            Agreement test;
            Kernel& k = test.k;
            ir::Builder& b = k.b;
            const Value array = test.array(dtype, {rows, columns});
            // The array itself, and a rectangle that extends past it on every side.
            for (const std::int64_t border : {0, 1}) {
                const Value x = k.load(array, {k.slice(-border, rows + 2 * border),
                                               k.slice(-border, columns + 2 * border)});
                const Value sum = sum_of_neighbours(b, x);
                test.keep(sum);
                // Also for a value in a buffer.
                test.keep(sum_of_neighbours(b, sum));
                test.keep(b.slice(x, {{1, 0}, {rows / 2, columns}, {2, 1}}));
                test.keep(b.slice(x, {{0, 1}, {rows, columns / 3}, {1, 3}}));
                const Value inner = b.slice(x, {{1, 1}, {rows - 1, columns - 1}, {1, 1}});
                test.keep(b.slice(inner, {{1, 2}, {rows - 3, columns - 4}, {1, 1}}));
                test.keep(b.transpose(inner, std::array{1, 0}));
                test.keep(b.reduce(Reduction::max, inner, 0));
                test.keep(b.reduce(Reduction::max, inner, 1));
            }
            test.check(dtype == bf16 ? 2e-2 : 1e-5);
        }
    }
}

TEST(Machine, SlicesOfLoadsAreViews) {
    Kernel k("neighbours");
    const Value x = k.ref("x", DType::f32, {34, 200}), y = k.ref("y", DType::f32, {32, 198});
    const Value loaded = k.load(x, {k.slice(0, 34), k.slice(0, 200)});
    k.store(y, {k.slice(0, 32), k.slice(0, 198)}, sum_of_neighbours(k.b, loaded));
    k.done();
    const std::string listing = to_string(*compile(k.function));
    EXPECT_THAT(listing, testing::HasSubstr("= part of v")) << listing;
    EXPECT_THAT(listing, testing::Not(testing::HasSubstr("= move"))) << listing;
}

TEST(Machine, SlicesThatDotsMultiply) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
        Agreement test;
        ir::Builder& b = test.k.b;
        const Value x = test.load_all(test.array(dtype, {21, 45}));
        const Value y = test.load_all(test.array(dtype, {43, 71}));
        const Value left = b.slice(x, {{1, 1}, {20, 42}, {1, 1}});
        const Value right = b.slice(y, {{1, 3}, {42, 68}, {1, 1}});
        test.keep(b.dot(left, right, {}));
        test.keep(left);
        test.check(1e-4);
    }
}

// Threads add to private copies of small arrays, and to large ones by atomics.
TEST(Machine, SumsOfScatteredIntegers) {
    for (const DType dtype : {DType::i32, DType::u32, DType::i64, DType::u64}) {
        for (const std::int64_t length : {7, 40000}) {
            for (const Op op : {Op::atomic_add, Op::atomic_max, Op::atomic_min}) {
                Agreement test({23});
                Kernel& k = test.k;
                ir::Builder& b = k.b;
                const Value ids = test.load_all(test.array(DType::i32, {150}));
                const Value bins = test.array_of_bits(dtype, {length}),
                            rows = test.array(dtype, {9, 33});
                const Value values = test.load_all(test.array_of_bits(dtype, {150}));
                b.atomic(op, bins, std::vector{IndexOperand::tile(ids)}, values);
                b.atomic(op, rows, std::vector{IndexOperand::tile(ids), k.slice(-2, 36)},
                         test.load_all(test.array(dtype, {150, 36})));
                test.check();
            }
        }
    }
}

TEST(Machine, SumsOfScatteredFloatsAndOldValues) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        Agreement test({5});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const Value ids = test.load_all(test.array(DType::i64, {40}));
        const Value rows = test.array(dtype, {7, 70}), bins = test.array(dtype, {7});
        const Value values = test.load_all(test.array(dtype, {40, 75}));
        b.atomic(Op::atomic_add, rows, std::vector{IndexOperand::tile(ids), k.slice(-3, 75)},
                 values);
        b.atomic(Op::atomic_add, bins, std::vector{IndexOperand::tile(ids)},
                 test.load_all(test.array(dtype, {40})));
        const Value counts = test.array(DType::i32, {7});
        const Value mask = test.load_all(test.array(DType::boolean, {40}));
        const Value old = b.atomic(Op::atomic_add, counts, std::vector{IndexOperand::tile(ids)},
                                   test.load_all(test.array(DType::i32, {40})), mask);
        test.keep(old);
        test.check();
    }
}

TEST(Machine, GathersOfRowsThatLeaveTheArray) {
    for (const DType dtype : {DType::f32, DType::u8, DType::f64}) {
        Agreement test;
        Kernel& k = test.k;
        const Value table = test.array(dtype, {6, 90});
        const Value ids = test.load_all(test.array(DType::i32, {30}));
        test.keep(k.load(table, {IndexOperand::tile(ids), k.slice(0, 90)}));
        test.keep(k.load(table, {IndexOperand::tile(ids), k.slice(-5, 100)}));
        test.keep(k.load(table, {IndexOperand::tile(ids), k.slice(80, 70)}));
        const Value target = test.array(dtype, {6, 80});
        k.store(target, {IndexOperand::tile(ids), k.slice(-4, 90)},
                k.load(table, {IndexOperand::tile(ids), k.slice(0, 90)}));
        test.check();
    }
}

}  // namespace
}  // namespace tilewright::cpu
