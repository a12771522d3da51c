// The table of operations.
#include "ir/op.h"

#include <array>
#include <string>
#include <unordered_map>

#include "support/check.h"

namespace tilewright::ir {
namespace {

// Columns: op, class, then which dtypes operands may have (f floats, i integers, b bool) and ~
// where the op has an approximate form. Rows stand in the order of the enum.
struct Row {
    Op op;
    std::string_view name;
    OpClass op_class;
    std::string_view accepts;
};

#define TW_OP(op, op_class, accepts)            \
    Row {                                       \
        Op::op, #op, OpClass::op_class, accepts \
    }
constexpr std::array<Row, kNumOps> kRows = {{
    TW_OP(constant, source, "fib"),   TW_OP(iota, source, "fi"),
    TW_OP(program_id, source, "i"),   TW_OP(num_programs, source, "i"),
    TW_OP(extent, source, "i"),

    TW_OP(load, memory, "fib"),       TW_OP(store, memory, "fib"),
    TW_OP(atomic_add, memory, "fi"),  TW_OP(atomic_max, memory, "fi"),
    TW_OP(atomic_min, memory, "fi"),  TW_OP(atomic_xchg, memory, "fi"),
    TW_OP(atomic_cas, memory, "fi"),

    TW_OP(neg, unary, "fi"),          TW_OP(abs, unary, "fi"),
    TW_OP(sign, unary, "fi"),         TW_OP(exp, unary, "f~"),
    TW_OP(exp2, unary, "f~"),         TW_OP(expm1, unary, "f"),
    TW_OP(log, unary, "f~"),          TW_OP(log2, unary, "f~"),
    TW_OP(log1p, unary, "f"),         TW_OP(tanh, unary, "f~"),
    TW_OP(logistic, unary, "f~"),     TW_OP(erf, unary, "f"),
    TW_OP(sin, unary, "f~"),          TW_OP(cos, unary, "f~"),
    TW_OP(sqrt, unary, "f~"),         TW_OP(rsqrt, unary, "f~"),
    TW_OP(floor, unary, "f"),         TW_OP(ceil, unary, "f"),
    TW_OP(round, unary, "f"),         TW_OP(isnan, unary, "f"),
    TW_OP(bitwise_not, unary, "ib"),

    TW_OP(add, binary, "fi"),         TW_OP(sub, binary, "fi"),
    TW_OP(mul, binary, "fi"),         TW_OP(div, binary, "fi"),
    TW_OP(floordiv, binary, "fi"),    TW_OP(rem, binary, "fi"),
    TW_OP(floormod, binary, "fi"),    TW_OP(pow, binary, "f"),
    TW_OP(min, binary, "fib"),        TW_OP(max, binary, "fib"),
    TW_OP(bitwise_and, binary, "ib"), TW_OP(bitwise_or, binary, "ib"),
    TW_OP(bitwise_xor, binary, "ib"), TW_OP(shift_left, binary, "i"),
    TW_OP(shift_right, binary, "i"),

    TW_OP(eq, comparison, "fib"),     TW_OP(ne, comparison, "fib"),
    TW_OP(lt, comparison, "fib"),     TW_OP(le, comparison, "fib"),
    TW_OP(gt, comparison, "fib"),     TW_OP(ge, comparison, "fib"),

    TW_OP(select, ternary, "fib"),    TW_OP(clamp, ternary, "fi"),
    TW_OP(fma, ternary, "f"),

    TW_OP(cast, convert, "fib"),      TW_OP(bitcast, convert, "fi"),

    TW_OP(broadcast, shape, "fib"),   TW_OP(reshape, shape, "fib"),
    TW_OP(transpose, shape, "fib"),   TW_OP(expand_dims, shape, "fib"),
    TW_OP(slice, shape, "fib"),       TW_OP(concatenate, shape, "fib"),

    TW_OP(reduce, lanes, "fib"),      TW_OP(scan, lanes, "fib"),
    TW_OP(dot, lanes, "fi"),

    TW_OP(random_bits, other, "i"),   TW_OP(debug_print, other, "fib"),
    TW_OP(debug_check, other, "b"),

    TW_OP(for_loop, control, "fib"),  TW_OP(while_loop, control, "fib"),
    TW_OP(if_else, control, "fib"),   TW_OP(call, control, "fib"),
    TW_OP(yield, control, "fib"),
}};
#undef TW_OP

std::array<OpInfo, kNumOps> make_table() {
    std::array<OpInfo, kNumOps> table{};
    for (int i = 0; i < kNumOps; ++i) {
        const Row& row = kRows[static_cast<std::size_t>(i)];
        TW_ASSERT(static_cast<int>(row.op) == i, "the op table is out of order at {}", row.name);
        const auto has = [&](char c) { return row.accepts.find(c) != std::string_view::npos; };
        table[static_cast<std::size_t>(i)] = {row.op,   row.name, row.op_class, has('f'),
                                              has('i'), has('b'), has('~')};
    }
    return table;
}

}  // namespace

const OpInfo& info(Op op) {
    static const std::array<OpInfo, kNumOps> table = make_table();
    return table.at(static_cast<std::size_t>(op));
}

std::optional<Op> parse_op(std::string_view name) {
    static const auto by_name = [] {
        std::unordered_map<std::string_view, Op> map;
        for (const Row& row : kRows) map.emplace(row.name, row.op);
        return map;
    }();
    const auto found = by_name.find(name);
    if (found == by_name.end()) return std::nullopt;
    return found->second;
}

bool accepts(Op op, DType dtype) {
    const OpInfo& row = info(op);
    return is_float(dtype) ? row.floats : is_integer(dtype) ? row.integers : row.booleans;
}

bool is_elementwise(Op op) {
    switch (info(op).op_class) {
        case OpClass::unary:
        case OpClass::binary:
        case OpClass::comparison:
        case OpClass::ternary:
        case OpClass::convert:
            return true;
        default:
            return false;
    }
}

bool is_pure(Op op) {
    switch (info(op).op_class) {
        case OpClass::source:
        case OpClass::shape:
        case OpClass::lanes:
            return true;
        case OpClass::other:
            return op == Op::random_bits;
        default:
            return is_elementwise(op);
    }
}

std::string_view name(Reduction kind) {
    constexpr std::array<std::string_view, kNumReductions> kNames = {
        "sum", "prod", "max", "min", "any", "all", "argmax", "argmin"};
    return kNames.at(static_cast<std::size_t>(kind));
}

std::optional<Reduction> parse_reduction(std::string_view text) {
    for (int i = 0; i < kNumReductions; ++i) {
        if (name(static_cast<Reduction>(i)) == text) return static_cast<Reduction>(i);
    }
    return std::nullopt;
}

std::string_view name(Precision precision) {
    constexpr std::array<std::string_view, kNumPrecisions> kNames = {"ieee", "tf32", "tf32x3"};
    return kNames.at(static_cast<std::size_t>(precision));
}

std::optional<Precision> parse_precision(std::string_view text) {
    for (int i = 0; i < kNumPrecisions; ++i) {
        if (name(static_cast<Precision>(i)) == text) return static_cast<Precision>(i);
    }
    return std::nullopt;
}

}  // namespace tilewright::ir
