// Gathers, counts and scans that read and write arrays directly agree with the interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/divided_atomics.h"
#include "cpu/neighbours.h"
#include "cpu/simd/index_kernels.h"
#include "cpu/simd/kernels.h"
#include "hwy/cache_control.h"
#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Value;

int gathers_to_arrays(const Program& program) {
    return static_cast<int>(
        std::count_if(program.code.begin(), program.code.end(), [](const Instruction& i) {
            const auto* load = std::get_if<Load>(&i);
            return load && load->access.gathers && load->out.home == Home::view;
        }));
}

// Rows of a table, some of which are outside it, stored to rows of which the last are outside.
TEST(MachineGathers, GoToTheArrayThatTheyAreStoredTo) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::u8, DType::f64, DType::boolean}) {
        for (const std::int64_t columns : {70, 64, 200}) {
            Agreement test({3});
            Kernel& k = test.k;
            const Value table = test.array(dtype, {7, columns});
            const Value all_ids = test.array(DType::i32, {60});
            const Value out = test.array(dtype, {50, columns});
            const Value first = k.b.binary(Op::mul, k.b.program_id(0), k.index(20));
            const Value ids = k.load(all_ids, {IndexOperand::slice(first, 20, 1)});
            k.store(out, {IndexOperand::slice(first, 20, 1), k.slice(0, columns)},
                    k.load(table, {IndexOperand::tile(ids), k.slice(0, columns)}));
            test.check();
            EXPECT_EQ(gathers_to_arrays(*compile(k.function)), dtype != DType::boolean);
        }
    }
}

TEST(MachineGathers, AreTilesWhereTheirArrayOrTheResultIsNeeded) {
    for (const bool same_array : {true, false}) {
        Agreement test;
        Kernel& k = test.k;
        const Value table = test.array(DType::f32, {9, 40});
        const Value out = same_array ? table : test.array(DType::f32, {9, 40});
        const Value ids = test.load_all(test.array(DType::i32, {9}));
        const Value rows = k.load(table, {IndexOperand::tile(ids), k.slice(0, 40)});
        k.store(out, {k.slice(0, 9), k.slice(0, 40)}, rows);
        if (!same_array) test.keep(rows);
        test.check();
        EXPECT_EQ(gathers_to_arrays(*compile(k.function)), 0);
    }
}

TEST(MachineGathers, OfElementsByRowsOfIndices) {
    for (const DType dtype : {DType::f32, DType::u8, DType::f64}) {
        for (const std::int64_t columns : {32, 5, 64, 130}) {
            for (const std::int64_t length : {6, 300}) {
                Agreement test;
                Kernel& k = test.k;
                const Value table = test.array(dtype, {length}),
                            ids = test.load_all(test.array(DType::i32, {20, columns})),
                            other = test.load_all(test.array(dtype, {20, columns}));
                test.keep(k.load(table, {IndexOperand::tile(ids)}));
                test.keep(k.b.load(table, std::vector{IndexOperand::tile(ids)}, {}, other));
                test.check();
            }
        }
    }
}

int gathers_that_sum(const Program& program) {
    return static_cast<int>(
        std::count_if(program.code.begin(), program.code.end(), [](const Instruction& i) {
            const auto* load = std::get_if<Load>(&i);
            return load && load->factor.home != Home::none;
        }));
}

// Rows of a sparse matrix times a vector, some of whose elements are outside it; the last block of
// rows leaves the matrix.
TEST(MachineGathers, SumProductsAlongRows) {
    for (const DType indices : {DType::i32, DType::i64}) {
        for (const std::int64_t columns : {32, 5, 16, 64, 130}) {
            for (const std::int64_t length : {6, 300}) {
                for (const bool first : {false, true}) {
                    Agreement test({3});
                    Kernel& k = test.k;
                    const Value table = test.array(DType::f32, {length}),
                                all_ids = test.array(indices, {50, columns}),
                                all_factors = test.array(DType::f32, {50, columns});
                    const std::vector block{
                        IndexOperand::slice(k.b.binary(Op::mul, k.b.program_id(0), k.index(20)), 20,
                                            1),
                        k.slice(0, columns)};
                    const Value factors = k.load(all_factors, block),
                                elements =
                                    k.load(table, {IndexOperand::tile(k.load(all_ids, block))}),
                                product = first ? k.b.binary(Op::mul, elements, factors)
                                                : k.b.binary(Op::mul, factors, elements);
                    test.keep(k.b.reduce(ir::Reduction::sum, product, 1));
                    test.check();
                    EXPECT_EQ(gathers_that_sum(*compile(k.function)), 1);
                }
            }
        }
    }
}

TEST(MachineGathers, DoNotSumWhatElseIsNeeded) {
    for (const int kind : {0, 1, 2, 3}) {
        Agreement test;
        Kernel& k = test.k;
        const Value table = test.array(DType::f32, {9}),
                    ids = test.load_all(test.array(DType::i32, {20, 32})),
                    factors = test.load_all(test.array(DType::f32, {20, 32})),
                    elements = k.load(table, {IndexOperand::tile(ids)}),
                    product = k.b.binary(kind == 1 ? Op::add : Op::mul, elements,
                                         kind == 3 ? elements : factors);
        test.keep(k.b.reduce(kind == 2 ? ir::Reduction::max : ir::Reduction::sum, product, 1));
        if (kind == 0) test.keep(elements);
        test.check();
        EXPECT_EQ(gathers_that_sum(*compile(k.function)), 0);
    }
}

TEST(MachineGathers, SumBeforeTheirTableIsStoredTo) {
    Agreement test;
    Kernel& k = test.k;
    const Value table = test.array(DType::f32, {30}),
                ids = test.load_all(test.array(DType::i32, {20, 32})),
                factors = test.load_all(test.array(DType::f32, {20, 32})),
                elements = k.load(table, {IndexOperand::tile(ids)}),
                product = k.b.binary(Op::mul, elements, factors);
    k.store(table, {k.slice(3, 20)}, k.b.reduce(ir::Reduction::sum, product, 1));
    test.check();
}

// The kernels of every instruction set, on rows whose starts and lengths fit no vector.
TEST(MachineGathers, RowsOfEveryLength) {
    for (const Kernels* table : available_kernels()) {
        const IndexKernels& kernels = index_kernels(table->vector_bytes);
        for (const std::int64_t count : {0, 1, 15, 16, 17, 70, 256, 301}) {
            const auto n = static_cast<std::size_t>(count);
            for (const std::size_t first : {0, 1, 12}) {
                std::vector<float> from(n + 40), to(n + 40, -1), sums(n + 40, 2);
                for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
                for (const bool streams : {false, true}) {
                    std::ranges::fill(to, -1.0F);
                    const auto* const row = reinterpret_cast<const std::byte*>(from.data() + 3);
                    kernels.copy_row(reinterpret_cast<std::byte*>(to.data() + first), row,
                                     4 * count, row, streams);
                    hwy::FlushStream();
                    for (std::size_t i = 0; i < to.size(); ++i) {
                        const bool inside = i >= first && i < first + n;
                        ASSERT_EQ(to[i], inside ? from[3 + i - first] : -1) << table->name;
                    }
                }
                kernels.add_row(sums.data() + first, from.data() + 3, count, from.data());
                for (std::size_t i = 0; i < sums.size(); ++i) {
                    const bool inside = i >= first && i < first + n;
                    ASSERT_EQ(sums[i], inside ? from[3 + i - first] + 2 : 2) << table->name;
                }
            }
            std::vector<std::int32_t> indices(n, 4);
            EXPECT_TRUE(kernels.all_inside(indices.data(), count, 5)) << table->name;
            EXPECT_TRUE(kernels.all_inside(indices.data(), count, 1U << 31)) << table->name;
            for (std::size_t i = 0; i < n; ++i) {
                for (const std::int32_t outside : {5, -1, -2147483647}) {
                    indices[i] = outside;
                    EXPECT_FALSE(kernels.all_inside(indices.data(), count, 5)) << table->name;
                    indices[i] = 4;
                }
            }
        }
    }
}

// Floats are added row by row, also where rows repeat, are outside or short.
TEST(MachineGathers, AddRowsInOrder) {
    for (const DType dtype : {DType::f32, DType::f64, DType::i32, DType::bf16}) {
        for (const std::int64_t columns : {70, 64, 5}) {
            Agreement test({3});
            Kernel& k = test.k;
            const Value table = test.array(dtype, {7, columns}),
                        all_ids = test.array(DType::i32, {60}),
                        all_rows = test.array(dtype, {60, columns}),
                        first = k.b.binary(Op::mul, k.b.program_id(0), k.index(20)),
                        ids = k.load(all_ids, {IndexOperand::slice(first, 20, 1)});
            k.b.atomic(Op::atomic_add, table,
                       std::vector{IndexOperand::tile(ids), k.slice(0, columns)},
                       k.load(all_rows, {IndexOperand::slice(first, 20, 1), k.slice(0, columns)}));
            test.check();
        }
    }
}

// As many elements as fill tables of their counts, of which some are outside in the second case.
TEST(MachineGathers, CountsOfManyElementsInFewBins) {
    for (const std::int64_t bins : {9, 6, 200}) {
        for (const DType dtype : {DType::i32, DType::u32}) {
            Agreement test({4});
            Kernel& k = test.k;
            const Value ids = test.array(DType::i32, {4 * 1023});
            const Value first = k.b.binary(Op::mul, k.b.program_id(0), k.index(1023));
            k.b.atomic(
                Op::atomic_add, test.array(dtype, {bins}),
                std::vector{IndexOperand::tile(k.load(ids, {IndexOperand::slice(first, 1023, 1)}))},
                k.b.constant_int({dtype, {1023}}, 3));
            test.check();
        }
    }
}

enum class Beside { nothing, store, load, old_values };

/// Programs that add rounded floats, so that another order would give other sums, to elements or
/// rows of an array at indices of which some are outside and many the same.
struct OrderedSums {
    Agreement test{{30}};
    Value out;

    /// `near`: those of one program are close to each other.
    OrderedSums(DType dtype, DType index, std::int64_t columns, bool scaled, Beside beside,
                bool near = true) {
        Kernel& k = test.k;
        const bool rows = columns > 1;
        const std::int64_t count = rows ? 100 : 300, all = 30 * count;
        const std::int64_t length = rows ? kRows : kElements;
        out = test.array(dtype, rows ? std::vector{length, columns} : std::vector{length});
        const Value ids = test.array_of_bits(DType::u16, {all}),
                    x = test.array(dtype, rows ? std::vector{all, columns} : std::vector{all}),
                    first = k.b.binary(Op::mul, k.b.program_id(0), k.index(count));
        const auto lines = IndexOperand::slice(first, count, 1);
        const ir::Type type{index, {count}};
        const Value start = k.b.binary(
            Op::sub, k.b.binary(Op::mul, k.b.program_id(0), k.index(near ? length / 33 : 0)),
            k.index(3));
        const Value range = k.b.constant_int(type, near ? 97 : length + 7),
                    within = k.b.binary(Op::rem, k.b.cast(k.load(ids, {lines}), index), range);
        const Value at =
            k.b.binary(Op::add, within, k.b.broadcast(k.b.cast(start, index), type.shape));
        Value values = rows ? k.load(x, {lines, k.slice(0, columns)}) : k.load(x, {lines});
        if (scaled) values = k.b.binary(Op::mul, values, k.b.constant(k.b.type(values), 0.1));
        auto to = std::vector{IndexOperand::tile(at)};
        if (rows) to.push_back(k.slice(0, columns));
        const Value old = k.b.atomic(Op::atomic_add, out, to, values);
        if (beside == Beside::old_values) test.keep(old);
        if (beside == Beside::store) test.keep(at);
        if (beside == Beside::load)
            k.b.atomic(Op::atomic_add, out, to,
                       rows ? k.load(out, {k.slice(0, count), k.slice(0, columns)})
                            : k.load(out, {k.slice(0, count)}));
    }
    static constexpr std::int64_t kRows = 500, kElements = 5000;
};

TEST(MachineDividedAtomics, GiveTheSumsOfOneThread) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        for (const DType index : {DType::i32, DType::i64}) {
            for (const std::int64_t columns : {1, 40, 64}) {
                for (const bool scaled : {true, false}) {
                    OrderedSums sums(dtype, index, columns, scaled, Beside::nothing, scaled);
                    sums.test.check();
                    const auto program = compile(sums.test.k.function);
                    // A pass over rows takes as long as adding them.
                    EXPECT_EQ(program->divided.has_value(), columns == 1 || !scaled)
                        << to_string(*program);
                }
            }
        }
    }
}

TEST(MachineDividedAtomics, AreAllThatProgramsDo) {
    for (const std::int64_t columns : {1, 40}) {
        for (const Beside beside : {Beside::store, Beside::load, Beside::old_values}) {
            OrderedSums sums(DType::f32, DType::i32, columns, false, beside);
            sums.test.check();
            EXPECT_FALSE(compile(sums.test.k.function)->divided);
        }
    }
}

TEST(MachineDividedAtomics, ArePartsOfDistinctElements) {
    for (int n = 1; n <= Ownership::kSets; ++n) {
        std::uint32_t owned = 0;
        for (int i = 0; i < n; ++i) {
            const std::uint32_t sets = Division{n, 4}.of(i).sets;
            EXPECT_NE(sets, 0U);
            EXPECT_EQ(owned & sets, 0U);
            owned |= sets;
        }
        EXPECT_EQ(owned, ~std::uint32_t{0});
    }
    const auto shared = [](std::int64_t length, std::int64_t columns, std::int64_t stride,
                           std::int64_t programs) {
        OrderedSums sums(DType::f32, DType::i32, columns, false, Beside::nothing);
        const auto program = compile(sums.test.k.done());
        ir::RefArgument out;
        out.extents = {length, columns};
        out.strides = {stride, 1};
        ir::Arguments arguments;
        arguments.refs = {out};
        const Division division = divide(*program, arguments, programs, 8);
        return std::pair(division.threads, division.shift);
    };
    constexpr std::int64_t kMany = 1 << 20;
    EXPECT_EQ(shared(500, 40, 40, kMany), std::pair(8, 5));  // 4 KiB or more
    EXPECT_EQ(shared(500, 40, -41, kMany), std::pair(8, 5));
    EXPECT_EQ(shared(500, 40, 40, 1).first, 1);      // not worth a thread
    EXPECT_EQ(shared(500, 40, 39, kMany).first, 1);  // rows share elements
    EXPECT_EQ(shared(500, 40, 0, kMany).first, 1);
    EXPECT_EQ(shared(5000, 1, 1, kMany), std::pair(4, 10));
    EXPECT_EQ(shared(5000, 1, 0, kMany).first, 1);
    EXPECT_EQ(shared(2047, 1, 1, kMany).first, 1);  // too close to each other
}

/// Whether the first of two programs adds to scattered elements, with `index(i)` as its indices.
template <typename Index>
bool adds_to_scattered_elements(std::int64_t length, std::int64_t columns, const Index& index) {
    constexpr std::int64_t kCount = 300;
    Kernel k("sums", {2});
    const auto rows = [columns](std::int64_t n) {
        return columns > 1 ? std::vector{n, columns} : std::vector{n};
    };
    Array<float> sums(std::vector<float>(length * columns), rows(length));
    Array<float> x(std::vector<float>(2 * kCount * columns), rows(2 * kCount));
    Array<std::int32_t> ids(std::vector<std::int32_t>(2 * kCount));
    for (std::size_t i = 0; i < kCount; ++i)
        ids.data[i] = static_cast<std::int32_t>(index(static_cast<std::int64_t>(i)));
    const Value to = k.ref("sums", DType::f32, sums.extents),
                values = k.ref("x", DType::f32, x.extents),
                at = k.ref("ids", DType::i32, ids.extents);
    const auto lines =
        IndexOperand::slice(k.b.binary(Op::mul, k.b.program_id(0), k.index(kCount)), kCount, 1);
    std::vector<IndexOperand> from{lines}, at_ids{IndexOperand::tile(k.load(at, {lines}))};
    if (columns > 1) {
        from.push_back(k.slice(0, columns));
        at_ids.push_back(k.slice(0, columns));
    }
    k.b.atomic(Op::atomic_add, to, at_ids, k.load(values, from));
    const auto program = compile(k.done());
    EXPECT_TRUE(program->divided);

    std::vector<std::uint64_t> slots = program->initial_slots;
    std::vector<View> views(program->num_views);
    std::vector<ir::RefArgument> refs{sums.argument(), x.argument(), ids.argument()};
    constexpr std::size_t kAlignment = 64;
    std::vector<std::byte> memory(static_cast<std::size_t>(program->arena_bytes) + kAlignment);
    void* arena = memory.data();
    std::size_t space = memory.size();
    Frame frame{};
    frame.program = program.get();
    frame.arena = static_cast<std::byte*>(
        std::align(kAlignment, static_cast<std::size_t>(program->arena_bytes), arena, space));
    const std::vector<std::int64_t> grid{2};
    frame.grid = grid.data();
    frame.slots = slots.data();
    frame.views = views.data();
    frame.refs = refs.data();
    return is_scattered(frame);
}

TEST(MachineDividedAtomics, OfScatteredElementsAreForOneThread) {
    constexpr std::int64_t kSmall = 5000, kLarge = 300'000;  // 5 and 293 pieces of 4 KiB
    const auto sorted = [](std::int64_t i) { return i / 3; };
    const auto scattered = [](std::int64_t i) { return i * 1777 % kSmall; };
    const auto outside = [](std::int64_t i) { return i % 2 == 0 ? -1 - i : 3; };
    EXPECT_FALSE(adds_to_scattered_elements(kSmall, 1, sorted));
    EXPECT_TRUE(adds_to_scattered_elements(kSmall, 1, scattered));
    EXPECT_FALSE(adds_to_scattered_elements(kSmall, 1, outside));
    // Memory is what large arrays wait for, and rows take longer than finding them.
    EXPECT_FALSE(adds_to_scattered_elements(kLarge, 1, scattered));
    EXPECT_FALSE(adds_to_scattered_elements(kSmall, 40, scattered));
    // Now and then another piece.
    EXPECT_FALSE(adds_to_scattered_elements(
        kSmall, 1, [&](std::int64_t i) { return i % 10 == 0 ? scattered(i) : 7; }));
    EXPECT_TRUE(adds_to_scattered_elements(
        kSmall, 1, [&](std::int64_t i) { return i % 3 == 0 ? scattered(i) : 7; }));
}

TEST(MachineGathers, NeighboursScanDownTheirRowsTogether) {
    for (const DType dtype : {DType::f32, DType::i32, DType::f64}) {
        for (const bool reverse : {false, true}) {
            for (const std::int64_t missing : {0, 30}) {
                Agreement test({26});
                Kernel& k = test.k;
                const std::int64_t columns = 26 * 64 - missing;
                const Value x = test.array(dtype, {40, columns}),
                            y = test.array(dtype, {40, columns});
                const Value first = k.b.binary(Op::mul, k.b.program_id(0), k.index(64));
                const std::vector block{k.slice(0, 40), IndexOperand::slice(first, 64, 1)};
                k.store(y, block,
                        k.b.scan(ir::Reduction::sum, k.load(x, block), 0, reverse, !reverse));
                test.check();
                EXPECT_EQ(Neighbours(*compile(k.function)).most(26, 1), 26);
            }
        }
    }
}

TEST(MachineGathers, BytesAreShiftedInVectors) {
    for (const DType dtype : {DType::u8, DType::i8, DType::u16, DType::i16}) {
        for (const Op op : {Op::shift_left, Op::shift_right}) {
            Agreement test;
            const Value a = test.load_all(test.array_of_bits(dtype, {9, 200}));
            test.keep(test.k.b.binary(op, a, test.load_all(test.array_of_bits(dtype, {9, 200}))));
            test.keep(test.k.b.binary(op, a, test.load_all(test.array(dtype, {9, 200}))));
            test.check();
            const Kernels& best = *available_kernels().front();
            if (best.name == "scalar") continue;
            EXPECT_NE(best.elementwise(op, dtype, dtype, false),
                      find_kernels("scalar")->elementwise(op, dtype, dtype, false));
        }
    }
}

}  // namespace
}  // namespace tilewright::cpu
