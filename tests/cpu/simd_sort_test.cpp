// Sorting of every kernel table against the scalar one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {
namespace {

/// Bytes at random, so that floats are NaN, infinite, subnormal and zeros of both signs, too.
std::vector<std::byte> random_bytes(std::size_t count, bool is_few, DType dtype) {
    std::vector<std::byte> bytes(count * static_cast<std::size_t>(size_of(dtype)));
    std::mt19937_64 random(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t bits = random();
        if (dtype == DType::boolean) bits &= 1;
        if (is_few) {
            // A few exponents with a few leading digits, both signs.
            bits = dtype == DType::boolean ? bits : (random() % 7) << (8 * size_of(dtype) - 3);
        }
        std::memcpy(bytes.data() + i * static_cast<std::size_t>(size_of(dtype)), &bits,
                    static_cast<std::size_t>(size_of(dtype)));
    }
    return bytes;
}

struct Sorted {
    std::vector<std::byte> elements;
    std::vector<std::int32_t> places;
};

Sorted sorted(const Kernels& table, DType dtype, const std::vector<std::byte>& in,
              std::int64_t count, bool descending, bool with_elements, bool with_places) {
    const auto size = static_cast<std::size_t>(size_of(dtype));
    const auto guarded = static_cast<std::size_t>(count) + 1;
    Sorted result{std::vector<std::byte>(guarded * size, std::byte{0x5A}),
                  std::vector<std::int32_t>(guarded, -7)};
    SortLine line;
    line.in = in.data();
    line.length = static_cast<std::int64_t>(in.size() / size);
    line.count = count;
    line.descending = descending;
    std::vector<std::uint64_t> work(static_cast<std::size_t>(sort_work(line.length)) / 8);
    line.work = work.data();
    if (with_elements) line.out = result.elements.data();
    if (with_places) line.places = result.places.data();
    table.sort(dtype)(line);
    return result;
}

TEST(SimdSort, AgreesWithTheStandardLibrary) {
    const Kernels& scalar = *find_kernels("scalar");
    for (const Kernels* table : available_kernels()) {
        for (const DType dtype :
             {DType::boolean, DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32,
              DType::i64, DType::u64, DType::f16, DType::bf16, DType::f32, DType::f64,
              DType::f8e4m3, DType::f8e5m2}) {
            for (const std::size_t n : {1, 2, 5, 13, 64, 128, 257, 1000, 4099, 70000}) {
                const bool is_few = n % 2 == 0;
                const auto in = random_bytes(n, is_few, dtype);
                const auto length = static_cast<std::int64_t>(n);
                for (const std::int64_t most :
                     {length, (length + 8) / 9, length / 2, std::int64_t{1}, std::int64_t{8},
                      std::int64_t{9}, std::int64_t{16}}) {
                    const std::int64_t count = std::min(length, most);
                    for (const bool descending : {false, true}) {
                        SCOPED_TRACE(std::string(table->name) + " " + std::string(name(dtype)) +
                                     " " + std::to_string(n) + " " + std::to_string(count));
                        const Sorted want =
                            sorted(scalar, dtype, in, count, descending, true, true);
                        const Sorted both =
                            sorted(*table, dtype, in, count, descending, true, true);
                        ASSERT_EQ(both.elements, want.elements);
                        ASSERT_EQ(both.places, want.places);
                        ASSERT_EQ(
                            sorted(*table, dtype, in, count, descending, true, false).elements,
                            want.elements);
                        ASSERT_EQ(sorted(*table, dtype, in, count, descending, false, true).places,
                                  want.places);
                    }
                }
            }
        }
    }
}

// Orders that make quicksorts slow, and keys that are all equal.
TEST(SimdSort, OrdersOfEveryKind) {
    const Kernels& scalar = *find_kernels("scalar");
    const std::int64_t n = 20000;
    for (const Kernels* table : available_kernels()) {
        for (const std::int64_t period : {std::int64_t{1}, std::int64_t{2}, n / 2, n}) {
            for (const std::int64_t sign : {1, -1}) {
                std::vector<std::int32_t> values;
                for (std::int64_t i = 0; i < n; ++i) {
                    values.push_back(static_cast<std::int32_t>(sign * (i % period)));
                }
                std::vector<std::byte> in(values.size() * 4);
                std::memcpy(in.data(), values.data(), in.size());
                for (const std::int64_t count :
                     {n, std::int64_t{50}, std::int64_t{16}, std::int64_t{3}}) {
                    SCOPED_TRACE(std::string(table->name) + " " + std::to_string(period));
                    const Sorted want = sorted(scalar, DType::i32, in, count, false, true, true);
                    const Sorted got = sorted(*table, DType::i32, in, count, false, true, true);
                    ASSERT_EQ(got.places, want.places);
                    ASSERT_EQ(sorted(*table, DType::i32, in, count, false, true, false).elements,
                              want.elements);
                }
            }
        }
    }
}

}  // namespace
}  // namespace tilewright::cpu
