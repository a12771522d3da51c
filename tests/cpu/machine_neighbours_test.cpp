// Neighbouring programs that run as one give what each of them gives.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "cpu/neighbours.h"
#include "cpu/simd/executable_code.h"
#include "tests/cpu/agreement.h"

namespace tilewright::cpu {
namespace {

using ir::IndexOperand;
using ir::Op;
using ir::Type;
using ir::Value;

constexpr std::int64_t kDown = 2, kAcross = 26;

/// Where the block of a program begins along each axis.
using Start = Value (*)(Kernel& k, Value program, std::int64_t size);

Value in_order(Kernel& k, Value program, std::int64_t size) {
    return k.b.binary(Op::mul, program, k.index(size));
}
Value backwards(Kernel& k, Value program, std::int64_t size) {
    return in_order(k, k.b.binary(Op::sub, k.index(kAcross - 1), program), size);
}
Value twice_each(Kernel& k, Value program, std::int64_t size) {
    return in_order(k, k.b.binary(Op::div, program, k.index(2)), size);
}

/// As in order for programs 0, 1 and the last.
Value in_order_at_the_ends(Kernel& k, Value program, std::int64_t size) {
    const Value square = k.b.binary(Op::mul, program, program);
    return in_order(k, k.b.binary(Op::rem, square, k.index(30)), size);
}

struct Blocks {
    std::int64_t rows, lanes;
    std::int64_t missing = 0;  ///< lanes that the arrays lack
    std::int64_t halo = 0;
    Start across = in_order;
};

class Elementwise {
  public:
    explicit Elementwise(const Blocks& blocks, DType dtype = DType::f32)
        : test({kDown, kAcross}), blocks_(blocks) {
        if (blocks.across == twice_each || blocks.across == in_order_at_the_ends)
            test.threads = {1};
        Kernel& k = test.k;
        const std::int64_t height = kDown * blocks.rows,
                           width = kAcross * blocks.lanes - blocks.missing;
        x_ = test.array(dtype, {height + 2 * blocks.halo, width + 2 * blocks.halo});
        y_ = test.array(dtype, {height, width});
        bias_ = test.array(dtype, {width});
        down_ = in_order(k, k.b.program_id(0), blocks.rows);
        across_ = blocks.across(k, k.b.program_id(1), blocks.lanes);
    }

    Value x() {
        const std::int64_t more = 2 * blocks_.halo;
        return test.k.load(x_, {IndexOperand::slice(down_, blocks_.rows + more, 1),
                                IndexOperand::slice(across_, blocks_.lanes + more, 1)});
    }
    Value bias() {
        ir::Builder& b = test.k.b;
        const Value row = test.k.load(bias_, {IndexOperand::slice(across_, blocks_.lanes, 1)});
        return b.broadcast(b.expand_dims(row, 0), {blocks_.rows, blocks_.lanes});
    }
    void store(Value value) {
        test.k.store(y_,
                     {IndexOperand::slice(down_, blocks_.rows, 1),
                      IndexOperand::slice(across_, blocks_.lanes, 1)},
                     value);
    }
    /// How many programs may run as one; without fused runs, each runs alone.
    std::int64_t most() const {
        return Neighbours(*compile(test.k.function)).most(kDown * kAcross, 1);
    }

    Agreement test;

  private:
    Blocks blocks_;
    Value x_, y_, bias_, down_, across_;
};

/// Each program adds 1 to an element of its own.
TEST(MachineNeighbours, EveryProgramRunsOnce) {
    std::vector<std::vector<std::int64_t>> grids{{1000}, {7, 11}, {40, 64}, {2, 3, 5}, {200, 1}};
    for (std::int64_t n = 1; n < 40; ++n) grids.push_back({n});
    for (const auto& grid : grids) {
        Agreement test(grid);
        Kernel& k = test.k;
        std::vector<IndexOperand> own;
        for (std::size_t axis = 0; axis < grid.size(); ++axis)
            own.push_back(IndexOperand::scalar(k.b.program_id(static_cast<int>(axis))));
        const Value counts = test.array(DType::i32, grid);
        k.store(counts, own,
                k.b.binary(Op::add, k.load(counts, own), k.b.constant_int({DType::i32, {}}, 1)));
        test.check();
    }
}

TEST(MachineNeighbours, BlocksOfManyShapes) {
    for (const Blocks& blocks : {Blocks{17, 64},
                                 {17, 24},
                                 {40, 100},
                                 {1, 64},
                                 {1, 200},
                                 {3, 8},
                                 {17, 64, 5},
                                 {1, 100, 60},
                                 {17, 64, 0, 0, backwards},
                                 {1, 64, 0, 0, backwards},
                                 {17, 64, 0, 0, twice_each},
                                 {1, 64, 0, 0, twice_each},
                                 {17, 64, 0, 0, in_order_at_the_ends},
                                 {1, 64, 0, 0, in_order_at_the_ends}}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::f64}) {
            Elementwise kernel(blocks, dtype);
            ir::Builder& b = kernel.test.k.b;
            const Value x = kernel.x();
            kernel.store(
                b.binary(Op::max, b.binary(Op::mul, x, x), b.binary(Op::add, x, kernel.bias())));
            kernel.test.check();
        }
    }
}

// Waking a thread takes longer than a small call does; functions are worth more threads.
TEST(MachineNeighbours, SmallCallsTakeOneThread) {
    constexpr int kThreads = 16;
    const auto threads = [](const Blocks& blocks, std::int64_t programs, bool function) {
        Elementwise kernel(blocks);
        ir::Builder& b = kernel.test.k.b;
        const Value sum = b.binary(Op::add, kernel.x(), kernel.bias());
        kernel.store(function ? b.unary(Op::tanh, sum) : b.binary(Op::mul, sum, sum));
        kernel.test.k.done();
        return Neighbours(*compile(kernel.test.k.function)).threads(programs, kThreads);
    };
    if (kernels().fused.run == nullptr) {
        EXPECT_EQ(threads({1, 1024}, 2, false), kThreads);
        return;
    }
    EXPECT_EQ(threads({1, 1024}, 1, false), 1);
    EXPECT_EQ(threads({1, 1024}, 63, false), 1);
    EXPECT_EQ(threads({1, 1024}, 64, false), 2);
    EXPECT_EQ(threads({1, 1024}, 64, true), 6);
    EXPECT_EQ(threads({1, 1024}, 1 << 30, false), kThreads);
    EXPECT_EQ(threads({64, 1024}, 2, false), 4);
    EXPECT_EQ(threads({1, 1 << 18}, 2, false), kThreads);
}

TEST(MachineNeighbours, OfWideBlocksFewerRunAsOne) {
    const auto most = [](const Blocks& blocks) {
        Elementwise kernel(blocks);
        const Value x = kernel.x();
        kernel.store(kernel.test.k.b.binary(Op::add, x, kernel.bias()));
        kernel.test.check();
        return kernel.most();
    };
    const bool fuses = kernels().fused.run != nullptr;
    EXPECT_EQ(most({17, 64}), fuses ? kDown * kAcross : 1);
    EXPECT_EQ(most({17, 640}), fuses ? 6 : 1);
    EXPECT_EQ(most({1, 640}), fuses ? kDown * kAcross : 1);
}

// Scans down the rows of narrow blocks, by a reduction and by functions with and without a scalar
// that differs between programs.
TEST(MachineNeighbours, ScansDownRows) {
    for (const Blocks& blocks : {Blocks{17, 64},
                                 {17, 24},
                                 {40, 100},
                                 {17, 64, 5},
                                 {17, 64, 0, 0, backwards},
                                 {17, 64, 0, 0, twice_each},
                                 {9, 64, 0, 0, in_order_at_the_ends}}) {
        for (const DType dtype : {DType::f32, DType::f64}) {
            for (const bool reverse : {false, true}) {
                for (const int way : {0, 1, 2}) {
                    Elementwise kernel(blocks, dtype);
                    ir::Builder& b = kernel.test.k.b;
                    const Value x = kernel.x();
                    if (way == 0) {
                        kernel.store(b.scan(ir::Reduction::sum, x, 0, reverse));
                        kernel.test.check(is_float(dtype) ? 1e-5 : 0);
                        continue;
                    }
                    auto mod = std::make_shared<ir::Function>();
                    mod->name = "combine";
                    std::vector<Value> p;
                    for (int i = 0; i < 1 + way; ++i)
                        p.push_back(mod->add_parameter(Type{dtype, {}}, ""));
                    ir::Builder in(*mod);
                    const Value largest = in.binary(Op::max, p[0], p[1]);
                    in.yield(std::vector{way == 1 ? largest : in.binary(Op::max, largest, p[2])});
                    std::vector<Value> operands = {x};
                    if (way == 2) operands.push_back(b.cast(b.program_id(1), dtype));
                    kernel.store(b.associative_scan(mod, operands, 0, reverse)[0]);
                    kernel.test.check();
                    const bool joins = kernels().vector_bytes == 64 &&
                                       kernels().fused.run != nullptr && wants_machine_code() &&
                                       dtype == DType::f32 && way == 1 && blocks.lanes == 64;
                    if (joins) {
                        EXPECT_EQ(kernel.most(), kDown * kAcross);
                    }
                }
            }
        }
    }
}

// Blocks of whole rows, two of which are in one array, as in rotary embeddings; the last block may
// leave its array.
TEST(MachineNeighbours, BlocksBelowEachOther) {
    constexpr std::int64_t kRows = 12, kHalf = 64, kPrograms = 9;
    for (const std::int64_t missing : {0, 5}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::f64}) {
            for (const Start start : {in_order, backwards, twice_each}) {
                Agreement test({kPrograms});
                if (start == twice_each) test.threads = {1};
                Kernel& k = test.k;
                ir::Builder& b = k.b;
                const std::int64_t height =
                    (start == backwards ? kAcross : kPrograms) * kRows - missing;
                const Value x = test.array(dtype, {height, 2 * kHalf}),
                            y = test.array(dtype, {height, 2 * kHalf}),
                            factors = test.array(dtype, {height, kHalf}),
                            bias = test.load_all(test.array(dtype, {kHalf}));
                const Value first = start(k, b.program_id(0), kRows);
                const auto block = [&](std::int64_t column) {
                    return std::vector{IndexOperand::slice(first, kRows, 1),
                                       k.slice(column, kHalf)};
                };
                const Value left = k.load(x, block(0)), right = k.load(x, block(kHalf)),
                            factor = k.load(factors, block(0)),
                            all_rows = b.broadcast(b.expand_dims(bias, 0), {kRows, kHalf});
                k.store(y, block(0),
                        b.binary(Op::sub, b.binary(Op::mul, left, factor),
                                 b.binary(Op::mul, right, all_rows)));
                k.store(y, block(kHalf),
                        b.binary(Op::add, b.binary(Op::mul, right, factor),
                                 b.binary(Op::mul, left, all_rows)));
                test.check();
            }
        }
    }
}

// Axes of the grid that have one program do not end a group, those with several do: of the last
// steps, the last program lies where seven of the first would lead, those between do not.
TEST(MachineNeighbours, AxesOfOneProgram) {
    constexpr std::int64_t kLanes = 64, kRows = 15;
    for (const std::array<std::int64_t, 3>& steps :
         {std::array<std::int64_t, 3>{4, 2, 1}, {1, 2, 4}, {3, 9, 2}}) {
        Agreement test({2, 1, 2, 2, 1});
        Kernel& k = test.k;
        ir::Builder& b = k.b;
        const Value x = test.array(DType::f32, {kRows, kLanes}),
                    y = test.array(DType::f32, {kRows, kLanes});
        const Value row = b.binary(Op::add, in_order(k, b.program_id(0), steps[0]),
                                   b.binary(Op::add, in_order(k, b.program_id(2), steps[1]),
                                            in_order(k, b.program_id(3), steps[2])));
        const std::vector block{IndexOperand::slice(row, 1, 1), k.slice(0, kLanes)};
        const Value value = k.load(x, block);
        k.store(y, block, b.binary(Op::sub, b.binary(Op::mul, value, value), value));
        test.check();
    }
}

TEST(MachineNeighbours, PartsOfLoads) {
    for (const std::int64_t rows : {1, 12}) {
        Elementwise kernel({rows, 72, 0, 1});
        ir::Builder& b = kernel.test.k.b;
        const Value x = kernel.x();
        Value sum;
        for (std::int64_t i = 0; i < 9; ++i) {
            const Value part = b.slice(x, {{i / 3, i % 3}, {rows, 72}, {1, 1}});
            sum = i == 0 ? part : b.binary(Op::add, sum, part);
        }
        kernel.store(sum);
        kernel.test.check();
        EXPECT_EQ(kernel.most() > 1, kernels().fused.run != nullptr);
    }
}

// A scalar of each program: all else is side by side.
TEST(MachineNeighbours, ScalarsThatDiffer) {
    for (const std::int64_t rows : {1, 17}) {
        Elementwise kernel({rows, 64});
        ir::Builder& b = kernel.test.k.b;
        const Value program =
            b.cast(b.binary(Op::div, b.program_id(1), kernel.test.k.index(5)), DType::f32);
        const Value factor = b.broadcast(program, {rows, 64});
        kernel.store(b.binary(Op::add, b.binary(Op::mul, kernel.x(), factor), kernel.bias()));
        kernel.test.check();
    }
}

TEST(MachineNeighbours, PositionsInABlock) {
    for (const std::int64_t rows : {1, 17}) {
        Elementwise kernel({rows, 64});
        ir::Builder& b = kernel.test.k.b;
        const Value lanes = b.cast(b.iota({DType::i32, {rows, 64}}, 1), DType::f32);
        kernel.store(b.binary(Op::add, b.binary(Op::mul, kernel.x(), lanes), kernel.bias()));
        kernel.test.check();
        EXPECT_EQ(kernel.most(), 1);
    }
}

/// Adds one to each element of an array, row by row, with blocks of 64 lanes.
struct RowsPlusOne {
    Kernel k{"plus_one", {ir::kDynamic, ir::kDynamic}};

    RowsPlusOne() {
        ir::Builder& b = k.b;
        const Value x = k.ref("x", DType::f32, {ir::kDynamic, ir::kDynamic}),
                    y = k.ref("y", DType::f32, {ir::kDynamic, ir::kDynamic});
        const std::vector block{IndexOperand::slice(in_order(k, b.program_id(0), 1), 1),
                                IndexOperand::slice(in_order(k, b.program_id(1), 64), 64)};
        const Type tile{DType::f32, {1, 64}};
        const Value sum = b.binary(Op::add, k.load(x, block), b.constant(tile, 1));
        k.store(y, block, b.binary(Op::mul, sum, b.constant(tile, 2)));
        k.done();
    }
};

// What a thread knows from the call before holds for other addresses only.
TEST(MachineNeighbours, LaterCallsMayHaveOtherArrays) {
    struct Layout {
        std::int64_t rows, columns, gap;  ///< between rows
    };
    const Layout layouts[] = {{6, 128, 0}, {6, 128, 0}, {6, 128, 5}, {6, 128, 0}, {5, 128, 0},
                              {6, 120, 0}, {6, 128, 0}, {12, 64, 0}, {3, 256, 0}, {6, 128, 64}};
    RowsPlusOne kernel;
    const auto program = compile(kernel.k.function);
    for (const int threads : {1, 2}) {
        set_num_threads(threads);
        std::vector<std::vector<float>> all;  // so that no array has the address of another one
        for (const Layout& layout : layouts) {
            const std::int64_t stride = layout.columns + layout.gap;
            const auto size = static_cast<std::size_t>(layout.rows * stride);
            all.emplace_back(size);
            std::vector<float>& x = all.back();
            for (std::size_t i = 0; i < size; ++i) x[i] = static_cast<float>(i + all.size());
            std::vector<float> y(size, -1);
            ir::RefArgument in, out;
            in.data = x.data();
            in.extents = {layout.rows, layout.columns};
            in.strides = {stride, 1};
            out = in;
            out.data = y.data();
            const std::int64_t across = (layout.columns + 63) / 64;
            run(*program, arguments({in, out}, {layout.rows, across}));
            for (std::size_t i = 0; i < size; ++i) {
                const bool inside = static_cast<std::int64_t>(i) % stride < layout.columns;
                ASSERT_EQ(y[i], inside ? 2 * (x[i] + 1) : -1)
                    << threads << " threads, call " << all.size() << ", element " << i;
            }
        }
    }
    set_num_threads(0);
}

}  // namespace
}  // namespace tilewright::cpu
