// Every elementwise op of every table: the scalar table against the semantics of the IR, the vector
// tables against the scalar one, over dtypes, operand forms and odd sizes.
#include "ir/evaluate.h"
#include "tests/cpu/simd_support.h"
#include "tests/support/tolerance.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using ir::OpClass;

int operands_of(Op op) {
    switch (ir::info(op).op_class) {
        case OpClass::binary:
        case OpClass::comparison:
            return 2;
        case OpClass::ternary:
            return 3;
        default:
            return 1;
    }
}

DType operand_dtype(Op op, int i, DType in) {
    return op == Op::select && i == 0 ? DType::boolean : in;
}

/// Allowed difference from the scalar table; docs/explanation/numerics.md has the bounds against
/// exact values.
double tolerance(Op op, DType out) {
    // rsqrt is a square root and a division, which every table rounds correctly.
    if (op == Op::rsqrt || testing::ulp_bound(op) == 0) return 0;
    // One ULP for narrow floats; the bound for f32 and f64, plus one for the scalar side.
    return size_of(out) <= 2 ? 1 : 7;
}

// The operands of a case, in the given forms: 0 tile, 1 lane vector, 2 row scalar, 3 scalar.
struct Case {
    std::int64_t rows, lanes, pad;
    int forms[3];
};

std::string describe(const Kernels& table, Op op, DType in, DType out) {
    return std::string(table.name) + " " + std::string(ir::name(op)) + " " + std::string(name(in)) +
           " -> " + std::string(name(out));
}

void compare(const Kernels& table, Op op, DType in, DType out, const Case& c) {
    const StripFunction f = table.elementwise(op, in, out, false);
    const StripFunction reference = find_kernels("scalar")->elementwise(op, in, out, false);
    ASSERT_EQ(f == nullptr, reference == nullptr) << describe(table, op, in, out);
    if (f == nullptr) return;
    std::mt19937_64 random(static_cast<std::uint64_t>(c.rows * 1000 + c.lanes));
    std::vector<Elements> inputs;
    Strip s;
    s.rows = c.rows;
    s.lanes = c.lanes;
    const std::int64_t row = c.lanes + c.pad;
    for (int i = 0; i < operands_of(op); ++i) {
        inputs.push_back(random_elements(operand_dtype(op, i, in), c.rows * row, random));
    }
    for (int i = 0; i < operands_of(op); ++i) {
        const int form = c.forms[i];
        s.in[i] = {inputs[static_cast<std::size_t>(i)].data(),
                   form == 0   ? row
                   : form == 2 ? 1
                               : 0,
                   form <= 1 ? 1 : 0};
    }
    Elements got(out, c.rows * row);
    Elements want = got;
    s.out_row_stride = row;
    s.out = got.data();
    f(s);
    s.out = want.data();
    reference(s);
    for (std::int64_t r = 0; r < c.rows; ++r) {
        for (std::int64_t l = 0; l < row; ++l) {
            const std::int64_t at = r * row + l;
            const double ulps = l < c.lanes ? tolerance(op, out) : 0;
            ASSERT_TRUE(agrees(out, got.get(at), want.get(at), ulps))
                << describe(table, op, in, out) << " at row " << r << " of " << c.rows << ", lane "
                << l << " of " << c.lanes << ": " << ir::decode(out, got.get(at)) << " for "
                << ir::decode(out, want.get(at)) << ", first operand "
                << ir::decode(operand_dtype(op, 0, in), inputs[0].get(c.forms[0] == 0   ? at
                                                                      : c.forms[0] == 1 ? l
                                                                      : c.forms[0] == 2 ? r
                                                                                        : 0));
        }
    }
}

std::vector<Op> elementwise_ops() {
    std::vector<Op> ops;
    for (int i = 0; i < ir::kNumOps; ++i) {
        const Op op = static_cast<Op>(i);
        if (ir::is_elementwise(op) && op != Op::cast && op != Op::bitcast) ops.push_back(op);
    }
    return ops;
}

DType result_of(Op op, DType in) {
    return ir::info(op).op_class == OpClass::comparison || op == Op::isnan ? DType::boolean : in;
}

TEST(Elementwise, ScalarTableFollowsTheIr) {
    const Kernels& scalar = *find_kernels("scalar");
    std::mt19937_64 random(1);
    constexpr std::int64_t kCount = 400;
    const auto check = [&](Op op, DType in, DType out) {
        const StripFunction f = scalar.elementwise(op, in, out, false);
        if (f == nullptr) return;
        Strip s;
        s.rows = 1;
        s.lanes = kCount;
        std::vector<Elements> inputs;
        for (int i = 0; i < operands_of(op); ++i) {
            inputs.push_back(random_elements(operand_dtype(op, i, in), kCount, random));
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) s.in[i] = {inputs[i].data(), 0, 1};
        Elements got(out, kCount);
        s.out = got.data();
        f(s);
        for (std::int64_t l = 0; l < kCount; ++l) {
            std::uint64_t operands[3] = {};
            for (std::size_t i = 0; i < inputs.size(); ++i) operands[i] = inputs[i].get(l);
            const std::uint64_t want = ir::evaluate(op, in, out, operands);
            // libm's f32 functions are not exactly rounded either.
            const double ulps = tolerance(op, out) > 0 || op == Op::rsqrt ? 2 : 0;
            ASSERT_TRUE(agrees(out, got.get(l), want, ulps))
                << describe(scalar, op, in, out) << " of " << ir::decode(in, operands[0]) << ", "
                << ir::decode(in, operands[1]) << ": " << ir::decode(out, got.get(l)) << " for "
                << ir::decode(out, want);
        }
    };
    for (int i = 0; i < kDTypes; ++i) {
        for (Op op : elementwise_ops()) {
            const ir::OpInfo& info = ir::info(op);
            const DType in = dtype_at(i);
            const bool exists = is_float(in)     ? info.floats
                                : is_integer(in) ? info.integers
                                                 : info.booleans;
            const StripFunction f = scalar.elementwise(op, in, result_of(op, in), false);
            if (exists) {
                ASSERT_NE(f, nullptr) << describe(scalar, op, in, result_of(op, in));
                check(op, in, result_of(op, in));
            }
        }
        for (int j = 0; j < kDTypes; ++j) check(Op::cast, dtype_at(i), dtype_at(j));
    }
}

class VectorTable : public testing::TestWithParam<const Kernels*> {};

TEST_P(VectorTable, EveryOpAndDtype) {
    for (Op op : elementwise_ops()) {
        for (int i = 0; i < kDTypes; ++i) {
            const DType in = dtype_at(i);
            // Rows one after the other, and a remainder in every row.
            compare(*GetParam(), op, in, result_of(op, in), {7, 64, 0, {}});
            compare(*GetParam(), op, in, result_of(op, in), {3, 77, 5, {}});
        }
    }
}

TEST_P(VectorTable, EveryCast) {
    for (int i = 0; i < kDTypes; ++i) {
        for (int j = 0; j < kDTypes; ++j) {
            compare(*GetParam(), Op::cast, dtype_at(i), dtype_at(j), {7, 64, 0, {}});
            compare(*GetParam(), Op::cast, dtype_at(i), dtype_at(j), {3, 77, 5, {}});
            compare(*GetParam(), Op::bitcast, dtype_at(i), dtype_at(j), {3, 77, 5, {}});
        }
    }
}

TEST_P(VectorTable, EveryOperandForm) {
    for (Op op : {Op::exp, Op::sub, Op::lt, Op::select, Op::fma}) {
        for (DType in : {f32, f64, bf16, i32}) {
            const int n = operands_of(op);
            for (int code = 0; code < 64; ++code) {
                const Case c{3, 70, 2, {code % 4, code / 4 % 4, code / 16}};
                if ((n < 3 && c.forms[2] != 0) || (n < 2 && c.forms[1] != 0)) continue;
                compare(*GetParam(), op, in, result_of(op, in), c);
            }
        }
    }
}

TEST_P(VectorTable, EverySize) {
    for (std::int64_t lanes = 1; lanes <= 70; ++lanes) {
        for (Op op : {Op::add, Op::select, Op::ge, Op::tanh}) {
            for (DType in : {f32, f16, u8, i64}) {
                compare(*GetParam(), op, in, result_of(op, in), {2, lanes, 3, {}});
            }
        }
    }
}

TEST_P(VectorTable, PaddedRowsMayBeWrittenToTheirEnd) {
    std::vector<float> x(2 * 32, 1.0F);
    std::vector<float> y(2 * 32, 0.0F);
    Strip s;
    s.rows = 2;
    s.lanes = 17;
    s.padded = true;
    s.in[0] = {x.data(), 32, 1};
    s.out = y.data();
    s.out_row_stride = 32;
    GetParam()->elementwise(Op::neg, f32, f32, false)(s);
    for (std::size_t r = 0; r < 2; ++r) {
        for (std::size_t l = 0; l < 17; ++l) EXPECT_EQ(y[r * 32 + l], -1.0F);
    }
}

TEST_P(VectorTable, ResultMayReplaceAnOperand) {
    std::vector<float> x(100);
    for (std::size_t i = 0; i < 100; ++i) x[i] = static_cast<float>(i);
    Strip s;
    s.rows = 1;
    s.lanes = 99;
    s.in[0] = {x.data(), 0, 1};
    s.in[1] = {x.data(), 0, 1};
    s.out = x.data();
    GetParam()->elementwise(Op::add, f32, f32, false)(s);
    for (std::size_t i = 0; i < 99; ++i) EXPECT_EQ(x[i], static_cast<float>(2 * i));
    EXPECT_EQ(x[99], 99.0F);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VectorTable);
INSTANTIATE_TEST_SUITE_P(Tables, VectorTable, testing::ValuesIn(vector_tables()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace tilewright::cpu
