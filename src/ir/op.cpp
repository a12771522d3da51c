// The table of operations.
#include "ir/op.h"

#include <array>
#include <string>
#include <unordered_map>

#include "support/check.h"

namespace tilewright::ir {
namespace {

struct Row {
    Op op;
    std::string_view name;
    OpClass op_class;
    std::string_view accepts;
};

constexpr std::array<Row, kNumOps> kRows = {{
#define TW_OP(op, op_class, dtypes) Row{Op::op, #op, OpClass::op_class, dtypes},
#include "ir/ops.inl"
}};

constexpr FunctionInfo kFunctions[] = {
#define TW_UNARY(row, function, value, vector, ...) \
    FunctionInfo{.op = Op::row, .name = #function, .operands = 1, __VA_ARGS__},
#define TW_APPROXIMABLE TW_UNARY
#define TW_BINARY(row, function, value, vector, ...) \
    FunctionInfo{.op = Op::row, .name = #function, .operands = 2, __VA_ARGS__},
#include "ir/ops.inl"
};

std::array<OpInfo, kNumOps> make_table() {
    std::array<OpInfo, kNumOps> table{};
    for (int i = 0; i < kNumOps; ++i) {
        const Row& row = kRows[i];
        const auto has = [&](char c) { return row.accepts.find(c) != std::string_view::npos; };
        table[i] = {row.op, row.name, row.op_class, has('f'), has('i'), has('b'), has('~')};
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

const FunctionInfo* function_info(Op op) {
    static const auto table = [] {
        std::array<const FunctionInfo*, kNumOps> rows{};
        for (const FunctionInfo& function : kFunctions)
            rows[static_cast<std::size_t>(function.op)] = &function;
        return rows;
    }();
    return table.at(static_cast<std::size_t>(op));
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
        "sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "logsumexp"};
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
