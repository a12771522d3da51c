// Intervals of index tiles, as scalars of the program.
#include "cuda/schedule/guard_masks.h"

#include <algorithm>

#include "cuda/schedule/materialise.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kGroupRows = 64;

/// The least and the greatest element, as i64 scalars.
struct Ends {
    Value low, high;
};

class Guards {
  public:
    explicit Guards(Program& program) : p_(program), old_(program), uses_(old_), index_(old_) {}

    void run() {
        for (Instruction& made : p_.body.body) {
            if (made.is(ir::Op::for_loop)) block(made.blocks[0]);
        }
    }

  private:
    void block(Block& of) {
        Block iteration;
        iteration.arguments = of.arguments;
        for (Instruction& made : of.body) {
            if (made.is(ir::Op::for_loop)) block(made.blocks[0]);
            if (made.is(ir::Op::select) && p_.is_tile(made.result()) &&
                index_.contains(made.operands[0]) && !index_.contains(made.result())) {
                guard(made, iteration);
            }
            iteration.body.push_back(std::move(made));
        }
        of = std::move(iteration);
    }

    void guard(Instruction& select, Block& to) {
        // What is appended for a mask that cannot be bounded stays unused and is removed later.
        to_ = &to;
        fits_.clear();
        std::optional<Value> holds = truth(select.operands[0], true);
        if (!holds) return;
        for (Value fit : fits_) holds = scalar(ir::Op::bitwise_and, {*holds, fit});
        select.operands.push_back(*holds);
        select.flag("guarded");
    }

    Value scalar(ir::Op op, std::vector<Value> operands) {
        const bool truth = op == ir::Op::bitwise_and || op == ir::Op::bitwise_or;
        if (!truth) return append_scalar(p_, *to_, op, std::move(operands));
        const Value result = p_.add({false, {DType::boolean, {}}, {}});
        to_->body.push_back(make(op, std::move(operands), {result}));
        return result;
    }
    Value constant(std::int64_t value) { return append_constant(p_, *to_, value); }

    /// A scalar that is true only where all elements are `wanted`.
    std::optional<Value> truth(Value value, bool wanted) {
        if (!p_.is_tile(value)) {
            if (wanted) return value;
            const Value result = p_.add({false, {DType::boolean, {}}, {}});
            to_->body.push_back(make(ir::Op::bitwise_not, {value}, {result}));
            return result;
        }
        const Instruction& made = *uses_.definition(value);
        if (made.is(ir::Op::broadcast) || made.is(ir::Op::expand_dims)) {
            return truth(made.operands[0], wanted);
        }
        if (made.is(ir::Op::bitwise_not)) return truth(made.operands[0], !wanted);
        if (made.is(ir::Op::bitwise_and) || made.is(ir::Op::bitwise_or)) {
            const auto first = truth(made.operands[0], wanted),
                       second = truth(made.operands[1], wanted);
            if (made.is(ir::Op::bitwise_and) == wanted) {  // both
                if (!first || !second) return std::nullopt;
                return scalar(ir::Op::bitwise_and, {*first, *second});
            }
            if (!first || !second) return first ? first : second;
            return scalar(ir::Op::bitwise_or, {*first, *second});
        }
        if (made.operands.size() != 2) return std::nullopt;
        const DType in = p_.type(made.operands[0]).type.dtype;
        if (in != DType::i32 && in != DType::i64) return std::nullopt;
        ir::Op op = made.tile;
        if (!wanted) {
            op = op == ir::Op::lt   ? ir::Op::ge
                 : op == ir::Op::le ? ir::Op::gt
                 : op == ir::Op::gt ? ir::Op::le
                 : op == ir::Op::ge ? ir::Op::lt
                                    : ir::Op::yield;
        }
        const bool less = op == ir::Op::lt || op == ir::Op::le;
        if (!less && op != ir::Op::gt && op != ir::Op::ge) return std::nullopt;
        const auto a = ends(made.operands[0]), b = ends(made.operands[1]);
        if (!a || !b) return std::nullopt;
        return less ? scalar(op, {a->high, b->low}) : scalar(op, {a->low, b->high});
    }

    std::optional<Ends> ends(Value value) {
        const DType dtype = p_.type(value).type.dtype;
        if (dtype != DType::i32 && dtype != DType::i64) return std::nullopt;
        if (!p_.is_tile(value)) {
            Value wide = value;
            if (dtype == DType::i32) {
                wide = p_.add({false, {DType::i64, {}}, {}});
                to_->body.push_back(make(ir::Op::cast, {value}, {wide}));
            }
            return Ends{wide, wide};
        }
        const auto result = inner_ends(*uses_.definition(value), value);
        const bool computes =
            result && dtype == DType::i32 && ir::is_elementwise(uses_.definition(value)->tile);
        if (computes) {
            // Elements of i32 may wrap around; the condition is then false.
            fits_.push_back(scalar(ir::Op::ge, {result->low, constant(INT32_MIN)}));
            fits_.push_back(scalar(ir::Op::le, {result->high, constant(INT32_MAX)}));
        }
        return result;
    }

    std::optional<Ends> inner_ends(const Instruction& made, Value value) {
        if (made.is(ir::Op::constant)) {
            const Value is = constant(made.attributes[0].numbers[0]);
            return Ends{is, is};
        }
        if (made.is(ir::Op::iota)) return positions(made, value);
        if (made.is(ir::Op::broadcast) || made.is(ir::Op::expand_dims) || made.is(ir::Op::cast)) {
            return ends(made.operands[0]);
        }
        if (made.is(ir::Op::neg)) {
            const auto a = ends(made.operands[0]);
            if (!a) return std::nullopt;
            return Ends{scalar(ir::Op::neg, {a->high}), scalar(ir::Op::neg, {a->low})};
        }
        if (!made.is(ir::Op::add) && !made.is(ir::Op::sub) && !made.is(ir::Op::min) &&
            !made.is(ir::Op::max)) {
            return std::nullopt;
        }
        const auto a = ends(made.operands[0]), b = ends(made.operands[1]);
        if (!a || !b) return std::nullopt;
        const bool crossed = made.is(ir::Op::sub);
        return Ends{scalar(made.tile, {a->low, crossed ? b->high : b->low}),
                    scalar(made.tile, {a->high, crossed ? b->low : b->high})};
    }

    /// Rows are those of the warpgroup.
    std::optional<Ends> positions(const Instruction& made, Value value) {
        const ValueType& type = p_.type(value);
        const auto axis = static_cast<int>(made.number("axis"));
        if (!type.layout) return std::nullopt;
        const std::int64_t extent = type.type.shape[axis];
        const bool rows =
            std::any_of(type.layout->warp.begin(), type.layout->warp.end(),
                        [&](std::uint64_t basis) { return type.layout->unpack(basis)[axis] != 0; });
        if (!rows || p_.groups[0] == 1) return Ends{constant(0), constant(extent - 1)};
        const Value start = p_.add({false, {DType::i64, {}}, {}});
        Instruction group = make(Op::group_start, {}, {start});
        to_->body.push_back(std::move(group.with("axis", 0).with("step", kGroupRows)));
        return Ends{start, scalar(ir::Op::add, {start, constant(kGroupRows - 1)})};
    }

    Program& p_;
    const Program old_;
    Uses uses_;
    IndexTiles index_;
    Block* to_ = nullptr;
    std::vector<Value> fits_;
};

}  // namespace

void guard_masks(Program& program) {
    if (!is_chained(program)) return;
    Guards(program).run();
    remove_unused(program);
}

}  // namespace tilewright::cuda::schedule
