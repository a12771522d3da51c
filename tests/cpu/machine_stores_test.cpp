// Dots that write to an array, or add to it, without a tile of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Value;

std::string listing(const Agreement& test) {
    return to_string(*compile(test.k.function));
}
bool adds_in_place(const Agreement& test) {
    return listing(test).find("to add to") != std::string::npos;
}

constexpr std::int64_t kTileRows = 70, kColumns = 66;

/// A product that is added to kTileRows x kColumns elements of an array from (row, column) on.
struct Sum {
    Agreement test;
    Value array, x, y;
    std::int64_t row, column;

    explicit Sum(std::int64_t at_row = 0, std::int64_t at_column = 0, DType dtype = DType::f32,
                 std::int64_t k = 20)
        : row(at_row), column(at_column) {
        array = test.array(dtype == DType::bf16 ? DType::f32 : dtype, {90, 80});
        x = test.load_all(test.array(dtype, {kTileRows, k}));
        y = test.load_all(test.array(dtype, {k, kColumns}));
    }
    std::vector<IndexOperand> place(std::int64_t down = 0) {
        return {test.k.slice(row + down, kTileRows), test.k.slice(column, kColumns)};
    }
};

TEST(Machine, DotsAreStoredAtPlacesComputedLater) {
    Agreement test({1});
    ir::Builder& b = test.k.b;
    const Value x = test.load_all(test.array(DType::f32, {20, 20}));
    const Value out = test.array(DType::f32, {30, 25});
    const Value product = b.dot(x, x);
    const Value row = b.binary(Op::add, b.program_id(0), test.k.index(3));
    test.k.store(out, {IndexOperand::slice(row, 20), test.k.slice(0, 20)}, product);
    const Value loaded = test.k.load(out, {test.k.slice(-1, 20), test.k.slice(0, 20)});
    test.keep(loaded);
    test.check(1e-4);
}

// Their sums have 32 bits: these are no elements of the array.
TEST(Machine, DotsOf16BitsAreNarrowedBeforeTheyAreStored) {
    for (const DType dtype : {DType::i16, DType::u16}) {
        for (const bool adds : {false, true}) {
            Agreement test;
            ir::Builder& b = test.k.b;
            const Value x = test.load_all(test.array_of_bits(dtype, {20, 20}));
            const Value out = test.array(dtype, {20, 20});
            const std::vector<IndexOperand> all = {test.k.slice(0, 20), test.k.slice(0, 20)};
            const Value before = test.k.load(out, all);
            test.k.store(out, all, adds ? b.dot(x, x, before) : b.dot(x, x));
            test.keep(test.load_all(out));
            test.check();
        }
    }
}

TEST(Machine, DotsAddToArraysInPlace) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        for (const std::int64_t k : {20, 300}) {
            // Inside of the array, and past each of its ends.
            for (const auto& [row, column] : {std::array<std::int64_t, 2>{3, 5},
                                              {0, 0},
                                              {60, 5},
                                              {3, 40},
                                              {-4, -7},
                                              {85, 79},
                                              {90, 0}}) {
                Sum sum(row, column, dtype, k);
                ir::Builder& b = sum.test.k.b;
                const auto place = sum.place();
                const Value other = b.constant_int(
                    {b.type(sum.x).dtype == DType::f64 ? DType::f64 : DType::f32, {}}, 2);
                const Value before = sum.test.k.load(sum.array, place, {}, other);
                sum.test.k.store(sum.array, place, b.dot(sum.x, sum.y, before));
                sum.test.check(1e-4);
                EXPECT_TRUE(adds_in_place(sum.test)) << listing(sum.test);
            }
        }
    }
}

TEST(Machine, DotsWriteToArraysThatAreRead) {
    for (const std::int64_t row : {0, 60}) {
        Sum sum(row, 5);
        const auto place = sum.place();
        sum.test.keep(sum.test.k.load(sum.array, {sum.test.k.at(0), sum.test.k.at(70)}));
        sum.test.k.store(sum.array, place, sum.test.k.b.dot(sum.x, sum.y));
        sum.test.keep(sum.test.load_all(sum.array));
        sum.test.check(1e-4);
        EXPECT_THAT(listing(sum.test), testing::ContainsRegex("v[0-9]+:f32[^=]*= dot"));
    }
}

TEST(Machine, DotsAddInPlaceOnlyWhereNothingElseCanTell) {
    enum class Case { read_again, kept, stored_before, elsewhere, transposed, masked, overlap };
    for (const Case which : {Case::read_again, Case::kept, Case::stored_before, Case::elsewhere,
                             Case::transposed, Case::masked, Case::overlap}) {
        SCOPED_TRACE(static_cast<int>(which));
        Sum sum(3, 5);
        Kernel& k = sum.test.k;
        ir::Builder& b = k.b;
        const auto place = sum.place();
        const Value before = k.load(sum.array, place);
        if (which == Case::read_again) sum.test.keep(before);
        if (which == Case::stored_before)
            k.store(sum.array, sum.place(1), b.binary(Op::mul, before, before));
        const Value result = b.dot(sum.x, sum.y, before);
        if (which == Case::kept) sum.test.keep(result);
        if (which == Case::overlap) sum.test.keep(k.load(sum.array, sum.place(2)));
        if (which == Case::transposed) {
            const Value tall = sum.test.array(DType::f32, {kColumns, kTileRows});
            const int backwards[] = {1, 0};
            k.store(tall, {k.slice(0, kColumns), k.slice(0, kTileRows)},
                    b.transpose(result, backwards));
        } else if (which == Case::masked) {
            k.store(sum.array, place, result,
                    b.binary(Op::gt,
                             sum.test.load_all(sum.test.array(DType::f32, {kTileRows, kColumns})),
                             b.constant({DType::f32, {kTileRows, kColumns}}, 0)));
        } else {
            k.store(sum.array, sum.place(which == Case::elsewhere ? 2 : 0), result);
        }
        sum.test.keep(sum.test.load_all(sum.array));
        sum.test.check(1e-4);
        EXPECT_FALSE(adds_in_place(sum.test)) << listing(sum.test);
    }
}

/// In a loop, each product is added to what the one before it wrote.
TEST(Machine, DotsAddInPlaceAgainAndAgain) {
    Sum sum;
    Kernel& k = sum.test.k;
    ir::Builder& b = k.b;
    b.for_loop(k.index(0), k.index(6), k.index(1), {}, [&](Value i, std::span<const Value>) {
        const Value first = b.binary(Op::mul, i, k.index(5));
        const std::vector<IndexOperand> place{IndexOperand::slice(first, kTileRows, 1),
                                              k.slice(5, kColumns)};
        k.store(sum.array, place, b.dot(sum.x, sum.y, k.load(sum.array, place)));
        return std::vector<Value>();
    });
    sum.test.keep(sum.test.load_all(sum.array));
    sum.test.check(1e-3);
    EXPECT_TRUE(adds_in_place(sum.test)) << listing(sum.test);
}

}  // namespace
}  // namespace tilewright::cpu
