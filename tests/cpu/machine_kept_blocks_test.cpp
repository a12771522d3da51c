// Operands of dots that threads interleave once for several programs.
#include <gtest/gtest.h>

#include "cpu/kept_blocks.h"
#include "support/small_float.h"
#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Value;

constexpr std::int64_t kKeptBatches = 2, kKeptPrograms = 5, kKeptRows = 16, kKeptDepth = 32,
                       kKeptLoops = 3, kKeptColumns = 48;
constexpr const char* kKept = "and keep";

/// Program (n, i) multiplies rows of x[n] by the blocks of y[n] in turn, from `first` on.
struct KeptProducts {
    Kernel k{"products", {kKeptBatches, kKeptPrograms}};
    Value x, y, out;

    template <typename More>
    explicit KeptProducts(const More& more) {
        ir::Builder& b = k.b;
        x = k.ref("x", DType::bf16,
                  {kKeptBatches, kKeptPrograms * kKeptRows, kKeptLoops * kKeptDepth});
        y = k.ref("y", DType::bf16, {kKeptBatches, kKeptLoops * kKeptDepth, kKeptColumns});
        out = k.ref("out", DType::f32, {kKeptBatches, kKeptPrograms * kKeptRows, kKeptColumns});
        const auto n = IndexOperand::scalar(b.program_id(0));
        const Value row = b.binary(Op::mul, b.program_id(1), k.index(kKeptRows));
        const Value zero[] = {b.constant({DType::f32, {kKeptRows, kKeptColumns}}, 0)};
        const auto sum = b.for_loop(
            k.index(0), k.index(kKeptLoops * kKeptDepth), k.index(kKeptDepth), zero,
            [&](Value j, std::span<const Value> c) {
                const Value p = k.load(x, {n, IndexOperand::slice(row, kKeptRows),
                                           IndexOperand::slice(j, kKeptDepth)});
                const Value v =
                    k.load(y, {n, IndexOperand::slice(j, kKeptDepth), k.slice(0, kKeptColumns)});
                more(*this, v, j);
                return std::vector{b.dot(p, v, c[0])};
            });
        k.store(out, {n, IndexOperand::slice(row, kKeptRows), k.slice(0, kKeptColumns)}, sum[0]);
        k.done();
    }
    std::string listing() const { return to_string(*compile(k.function)); }
};

const auto kNothingMore = [](KeptProducts&, Value, Value) {};

Array<std::uint16_t> bf16_numbers(std::vector<std::int64_t> shape, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(shape[0] * shape[1] * shape[2]));
    for (std::uint16_t& x : bits) {
        x = f32_to_bf16(static_cast<float>(random() % 17) / 4 - 2);
    }
    return {bits, shape};
}

// Between the two calls the array changes, and its address does not.
TEST(KeptBlocks, AreThoseOfTheCallAndOfTheRowOfTheGrid) {
    KeptProducts products(kNothingMore);
    const auto program = compile(products.k.function);
    if (kernels().gemm_bf16_pairs != nullptr) {
        EXPECT_NE(to_string(*program).find(kKept), std::string::npos) << to_string(*program);
    }
    Array<std::uint16_t> x = bf16_numbers(
                             {kKeptBatches, kKeptPrograms * kKeptRows, kKeptLoops * kKeptDepth}, 1),
                         y = bf16_numbers({kKeptBatches, kKeptLoops * kKeptDepth, kKeptColumns}, 2);
    const std::vector<std::int64_t> shape{kKeptBatches, kKeptPrograms * kKeptRows, kKeptColumns};
    const std::vector<float> nothing(static_cast<std::size_t>(shape[0] * shape[1] * shape[2]));
    for (const int threads : {1, 2}) {
        set_num_threads(threads);
        for (unsigned call = 0; call < 2; ++call) {
            const auto values = bf16_numbers(y.extents, 3 + call);
            std::copy(values.data.begin(), values.data.end(), y.data.begin());
            Array<float> want(nothing, shape), have(nothing, shape);
            const auto with = [&](Array<float>& out) {
                ir::Arguments all = arguments({x.argument(), y.argument(), out.argument()});
                all.grid = products.k.function.grid;
                return all;
            };
            interpret(products.k.function, with(want));
            run(*program, with(have));
            EXPECT_EQ(have.data, want.data) << threads << " threads, call " << call;
        }
    }
    set_num_threads(0);
}

TEST(KeptBlocks, AreOfArraysThatAreReadOnlyForThem) {
    if (kernels().gemm_bf16_pairs == nullptr) GTEST_SKIP() << "this table has no bf16 product";
    EXPECT_NE(KeptProducts(kNothingMore).listing().find(kKept), std::string::npos);
    const KeptProducts stores([](KeptProducts& p, Value v, Value j) {
        const auto n = IndexOperand::scalar(p.k.b.program_id(0));
        p.k.store(p.y, {n, IndexOperand::slice(j, kKeptDepth), p.k.slice(0, kKeptColumns)}, v);
    });
    EXPECT_EQ(stores.listing().find(kKept), std::string::npos) << stores.listing();
    const KeptProducts reads([](KeptProducts& p, Value v, Value j) {
        const auto n = IndexOperand::scalar(p.k.b.program_id(0));
        const Value largest = p.k.b.reduce(ir::Reduction::max, v, 1);
        const Value sum = p.k.b.cast(p.k.b.reduce(ir::Reduction::max, largest, 0), DType::f32);
        p.k.store(p.out, {n, IndexOperand::scalar(j), p.k.at(0)}, sum);
    });
    EXPECT_EQ(reads.listing().find(kKept), std::string::npos) << reads.listing();
}

TEST(KeptBlocks, BeginWithTheSecondUse) {
    constexpr std::int64_t kBytes = std::int64_t{1} << 19;  // four blocks fit
    std::vector<std::byte> array(1024);
    KeptBlocks kept(kBytes);
    for (const int row : {0, 1}) {
        for (std::size_t i = 0; i < 6; ++i) {
            EXPECT_FALSE(kept.find(&array[i])) << row;
            EXPECT_EQ(kept.current(), nullptr) << row;
        }
        std::vector<std::byte*> blocks;
        for (std::size_t i = 0; i < 6; ++i) {
            EXPECT_FALSE(kept.find(&array[i])) << row;
            blocks.push_back(kept.current());
            EXPECT_EQ(kept.current() != nullptr, i < 4) << row << ", " << i;
        }
        for (std::size_t i = 0; i < 6; ++i) {
            EXPECT_EQ(kept.find(&array[i]), i < 4) << row << ", " << i;
            EXPECT_EQ(kept.current(), blocks[i]) << row << ", " << i;
        }
        kept.leave();
        EXPECT_EQ(kept.current(), nullptr);
        // More places than there are entries: these are not kept, and the others stay.
        for (int use = 0; use < 3; ++use) {
            for (std::size_t i = 6; i < array.size(); ++i) EXPECT_FALSE(kept.find(&array[i]));
        }
        EXPECT_TRUE(kept.find(array.data()));
        kept.clear();
    }
}

}  // namespace
}  // namespace tilewright::cpu
