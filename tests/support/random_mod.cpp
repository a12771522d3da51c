// Random mods: everything that masks use, and more.
#include "tests/support/random_mod.h"

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "ir/builder.h"
#include "ir/verify.h"

namespace tilewright::testing {
namespace {

using namespace ir;  // NOLINT: builds IR from end to end

const DType kIntegers[] = {DType::i64, DType::i64, DType::i64, DType::i32,
                           DType::i8,  DType::u8,  DType::u32, DType::u64};
const DType kFloats[] = {DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16};

/// These ops and those of the table's functions.
std::vector<Op> with_functions(int operands, std::vector<Op> ops) {
    for (int i = 0; i < kNumOps; ++i) {
        const FunctionInfo* const function = function_info(static_cast<Op>(i));
        if (function != nullptr && function->operands == operands) ops.push_back(function->op);
    }
    return ops;
}

/// Draws mods (b, h, q, kv) that use all that masks use, and more.
class RandomMod {
  public:
    RandomMod(std::uint64_t seed, bool mask) : random_(seed), builder_(function_) {
        function_.name = "mod";
        for (const char* name : {"b", "h", "q", "kv"}) {
            const Value value = function_.add_parameter(Type{DType::i64, {}}, name);
            values_[DType::i64].push_back(value);
        }
        ids_ = function_.add_parameter(RefType{DType::i32, {kDynamic}}, "ids");
        flags_ = function_.add_parameter(RefType{DType::boolean, {kDynamic, kDynamic}}, "flags");
        table_ = function_.add_parameter(RefType{DType::f32, {kDynamic}}, "table");
        starts_ = function_.add_parameter(RefType{DType::i64, {kDynamic}}, "starts");
        const int steps = 2 + below(16);
        for (int i = 0; i < steps; ++i) step();
        // The last values first: they use the most.
        Value result = value(DType::boolean);
        if (!mask && below(4) == 0) result = value(pick(kIntegers));
        if (!mask && below(8) == 0) result = value(pick(kFloats));
        builder_.yield({&result, 1});
        verify(function_);
    }

    const Function& function() const { return function_; }

  private:
    int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
    template <typename T, std::size_t N>
    T pick(const T (&choices)[N]) {
        return choices[below(N)];
    }
    Op pick(const std::vector<Op>& choices) {
        return choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))];
    }

    Value value(DType dtype) {
        auto& values = values_[dtype];
        const int choice = below(10);
        if (choice < 7 && !values.empty()) {
            const int back = std::min<int>(below(6), static_cast<int>(values.size()) - 1);
            return below(3) == 0
                       ? values[static_cast<std::size_t>(below(static_cast<int>(values.size())))]
                       : values[values.size() - 1 - static_cast<std::size_t>(back)];
        }
        if (choice < 9) return keep(constant(dtype));
        DType from = pick(kIntegers);
        if (below(4) == 0) from = pick(kFloats);
        if (dtype == DType::boolean || values_[from].empty()) return keep(constant(dtype));
        return keep(builder_.cast(values_[from].back(), dtype));
    }

    Value constant(DType dtype) {
        const Type type{dtype, {}};
        if (dtype == DType::boolean) return builder_.constant_int(type, below(2));
        if (is_float(dtype)) {
            const double numbers[] = {0, 1, -1, 0.5, 3, 100, -7.25, INFINITY};
            return builder_.constant(type, pick(numbers));
        }
        const std::int64_t numbers[] = {0, 1, 2, 3, 4, 7, 8, 16, 63, 5, 100, 31};
        const std::int64_t number = pick(numbers);
        return builder_.constant_int(type, is_signed(dtype) && below(4) == 0 ? -number : number);
    }

    Value keep(Value value) {
        values_[function_.type(value).dtype].push_back(value);
        return value;
    }

    void step() {
        const DType integer = pick(kIntegers), real = pick(kFloats);
        const Op arithmetic[] = {Op::add,         Op::sub,        Op::sub,         Op::mul,
                                 Op::div,         Op::floordiv,   Op::rem,         Op::floormod,
                                 Op::min,         Op::max,        Op::bitwise_and, Op::bitwise_or,
                                 Op::bitwise_xor, Op::shift_left, Op::shift_right};
        const Op unary[] = {Op::neg, Op::abs, Op::sign, Op::bitwise_not};
        const Op compare[] = {Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge};
        const Op logic[] = {Op::bitwise_and, Op::bitwise_or, Op::bitwise_xor};
        static const auto float_binary =
            with_functions(2, {Op::add, Op::sub, Op::mul, Op::div, Op::min, Op::max, Op::floordiv,
                               Op::rem, Op::floormod});
        static const auto float_unary = with_functions(1, {Op::neg, Op::abs, Op::sign});
        switch (below(14)) {
            case 0:
            case 1:
            case 2:
                keep(builder_.binary(pick(arithmetic), value(integer), value(integer)));
                return;
            case 3:
                keep(builder_.unary(pick(unary), value(integer)));
                return;
            case 4:
            case 5:
                keep(builder_.binary(pick(compare), value(integer), value(integer)));
                return;
            case 6:
                keep(builder_.binary(pick(logic), value(DType::boolean), value(DType::boolean)));
                return;
            case 7:
                keep(builder_.select(value(DType::boolean), value(integer), value(integer)));
                return;
            case 8:
                keep(builder_.clamp(value(integer), value(integer), value(integer)));
                return;
            case 9:
                keep(builder_.binary(pick(float_binary), value(real), value(real)));
                return;
            case 10:
                keep(builder_.unary(pick(float_unary), value(real)));
                return;
            case 11:
                keep(below(3) == 0 ? builder_.unary(Op::isnan, value(real))
                                   : builder_.binary(pick(compare), value(real), value(real)));
                return;
            case 12:
                gather();
                return;
            default:
                branch();
        }
    }

    void gather() {
        const Value refs[] = {ids_, flags_, table_, starts_};
        const Value ref = pick(refs);
        std::vector<IndexOperand> indices;
        for (int d = 0; d < function_.ref_type(ref).rank(); ++d) {
            Value index = value(below(3) == 0 ? DType::i32 : DType::i64);
            if (below(4) != 0) {
                index = builder_.cast(index, DType::i64);
                const Value zero = builder_.constant_int({DType::i64, {}}, 0);
                const Value one = builder_.constant_int({DType::i64, {}}, 1);
                index = builder_.clamp(index, zero,
                                       builder_.binary(Op::sub, builder_.extent(ref, d), one));
            }
            indices.push_back(IndexOperand::scalar(index));
        }
        const DType dtype = function_.ref_type(ref).dtype;
        const bool masked = below(4) == 0;
        keep(builder_.load(ref, indices, masked ? value(DType::boolean) : Value(),
                           masked && below(2) == 0 ? value(dtype) : Value()));
    }

    void branch() {
        const DType dtype = pick(kIntegers);
        if (below(2) == 0) {
            const Value a = value(dtype), b = value(dtype);
            keep(builder_.if_else(
                value(DType::boolean), [&] { return std::vector{builder_.binary(Op::add, a, b)}; },
                [&] { return std::vector{builder_.binary(Op::sub, a, b)}; })[0]);
            return;
        }
        const auto number = [&](std::int64_t n) {
            return builder_.constant_int({DType::i64, {}}, n);
        };
        const Value init = value(dtype), other = value(dtype);
        keep(builder_.for_loop(number(below(3)), number(below(5)), number(1 + below(2)), {{init}},
                               [&](Value, std::span<const Value> carries) {
                                   return std::vector{builder_.binary(Op::sub, other, carries[0])};
                               })[0]);
    }

    std::mt19937_64 random_;
    Function function_;
    Builder builder_;
    std::map<DType, std::vector<Value>> values_;
    Value ids_, flags_, table_, starts_;
};

}  // namespace

ir::Function random_mod(std::uint64_t seed, bool mask) {
    return RandomMod(seed, mask).function();
}

std::vector<Tensor> random_mod_arrays(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::int32_t> ids(200);
    std::int32_t id = 0;
    for (auto& element : ids) element = random() % 9 == 0 ? ++id : id;
    std::vector<bool> flags(30 * 7);
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = random() % 3 == 0;
    std::vector<float> table(50);
    for (auto& element : table)
        element = random() % 20 == 0 ? NAN : static_cast<float>(random() % 100) / 8 - 5;
    std::vector<std::int64_t> starts(40);
    for (auto& element : starts) element = static_cast<std::int64_t>(random() % 300) - 20;
    // A column of a larger array: strided.
    Tensor strided = Tensor::zeros(boolean, {30, 14});
    const Tensor view = strided.slice(1, 0, 7, 2);
    view.copy_from(Tensor::from_vector(flags, {30, 7}));
    return {Tensor::from_vector(ids, {200}), view, Tensor::from_vector(table, {50}),
            Tensor::from_vector(starts, {40})};
}

}  // namespace tilewright::testing
