// Translates tile IR to bytecode: straight-line code whose registers are reused after the last use.
#include "mask/bytecode.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "ir/access.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/straighten.h"
#include "support/check.h"

namespace tilewright::mask {
namespace {

using ir::Op;
using ir::Value;
using twd::mask::Code;
using twd::mask::kRegisters;

static_assert(static_cast<int>(DType::f8e5m2) == twd::mask::kF8e5m2 &&
              static_cast<int>(DType::f16) == twd::mask::kF16 &&
              static_cast<int>(DType::i32) == twd::mask::kI32);
static_assert(twd::mask::kMostRank == ir::kMaxRefRank);

/// Only operations that are exact or correctly rounded everywhere, so that a GPU and the CPU give
/// the same bits.
std::optional<Code> code_of(Op op) {
    switch (op) {
        case Op::neg:
            return twd::mask::kNeg;
        case Op::abs:
            return twd::mask::kAbs;
        case Op::sign:
            return twd::mask::kSign;
        case Op::sqrt:
            return twd::mask::kSqrt;
        case Op::floor:
            return twd::mask::kFloor;
        case Op::ceil:
            return twd::mask::kCeil;
        case Op::round:
            return twd::mask::kRound;
        case Op::isnan:
            return twd::mask::kIsNan;
        case Op::bitwise_not:
            return twd::mask::kNot;
        case Op::add:
            return twd::mask::kAdd;
        case Op::sub:
            return twd::mask::kSub;
        case Op::mul:
            return twd::mask::kMul;
        case Op::div:
            return twd::mask::kDiv;
        case Op::floordiv:
            return twd::mask::kFloorDiv;
        case Op::rem:
            return twd::mask::kRem;
        case Op::floormod:
            return twd::mask::kFloorMod;
        case Op::min:
            return twd::mask::kMin;
        case Op::max:
            return twd::mask::kMax;
        case Op::bitwise_and:
            return twd::mask::kAnd;
        case Op::bitwise_or:
            return twd::mask::kOr;
        case Op::bitwise_xor:
            return twd::mask::kXor;
        case Op::shift_left:
            return twd::mask::kShiftLeft;
        case Op::shift_right:
            return twd::mask::kShiftRight;
        case Op::eq:
            return twd::mask::kEq;
        case Op::ne:
            return twd::mask::kNe;
        case Op::lt:
            return twd::mask::kLt;
        case Op::le:
            return twd::mask::kLe;
        case Op::gt:
            return twd::mask::kGt;
        case Op::ge:
            return twd::mask::kGe;
        case Op::clamp:
            return twd::mask::kClamp;
        case Op::fma:
            return twd::mask::kFma;
        case Op::select:
            return twd::mask::kSelect;
        case Op::cast:
            return twd::mask::kCast;
        case Op::load:
            return twd::mask::kLoad;
        case Op::random_bits:
            return twd::mask::kRandomBits;
        default:
            return std::nullopt;
    }
}

twd::mask::Type type_of(DType dtype) {
    return static_cast<twd::mask::Type>(dtype);
}

bool is_narrow_8(DType dtype) {
    return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

class BytecodeWriter {
  public:
    BytecodeWriter(const ir::Function& function, std::span<const Tensor> arrays)
        : function_(function), arrays_(arrays), last_use_(function.num_values(), -1) {}

    Bytecode run() {
        find_last_uses();
        for (int r = kRegisters; r-- > 0;) free_.push_back(r);
        std::size_t scalar = 0;
        int array = 0;
        for (const Value parameter : function_.parameters()) {
            if (function_.is_ref(parameter)) {
                array_of_[parameter] = array++;
                continue;
            }
            if (last_use_[parameter.id] >= 0)
                code_.scalars[scalar] = place_[parameter] = new_register();
            ++scalar;
        }
        const auto& body = function_.body.body;
        for (std::size_t i = 0; i + 1 < body.size(); ++i) {
            write(body[i], static_cast<int>(i));
            if (!code_.refusal.empty()) return std::move(code_);
        }
        code_.result = place_.at(function_.body.terminator().operands[0]);
        if (code_.constants.empty()) code_.constants.push_back(0);
        return std::move(code_);
    }

  private:
    void find_last_uses() {
        int place = 0;
        for (const ir::Instruction& instruction : function_.body.body) {
            for (const Value operand : instruction.operands) last_use_[operand.id] = place;
            ++place;
        }
    }

    int new_register() {
        if (free_.empty()) {
            code_.refusal = fmt::format(
                "expected a mask of at most {} values at a time but got more", kRegisters);
            return 0;
        }
        const int r = free_.back();
        free_.pop_back();
        return r;
    }

    void free_operands(const ir::Instruction& instruction, int at) {
        for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
            const Value operand = instruction.operands[i];
            const auto found = place_.find(operand);
            if (found == place_.end() || found->second >= kRegisters ||
                last_use_[operand.id] != at || freed_.contains(operand))
                continue;
            free_.push_back(found->second);
            freed_[operand] = true;
        }
    }

    void constant(Value result, std::uint64_t bits) {
        const DType dtype = function_.type(result).dtype;
        if (is_float(dtype) && dtype != DType::f64)
            bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
        place_[result] = kRegisters + static_cast<int>(code_.constants.size());
        code_.constants.push_back(bits);
    }

    DType operand_type(const ir::Instruction& instruction) const {
        const Value first = instruction.operands[instruction.op == Op::select ? 1 : 0];
        return function_.is_ref(first) ? function_.ref_type(first).dtype
                                       : function_.type(first).dtype;
    }

    void check(const ir::Instruction& instruction) {
        const DType in = operand_type(instruction);
        const auto* math = std::get_if<ir::MathAttributes>(&instruction.attributes);
        const bool moves = instruction.op == Op::load || instruction.op == Op::select ||
                           instruction.op == Op::cast;
        // Remainders of floats would be half of the kernel, for masks that nobody writes.
        const bool left_out =
            is_float(in) && (instruction.op == Op::rem || instruction.op == Op::floormod);
        if (!code_of(instruction.op) || left_out || (math != nullptr && math->approx) ||
            (is_narrow_8(in) && !moves))
            code_.refusal =
                fmt::format("expected operations that a GPU's interpreter has but got {} of {}",
                            ir::name(instruction.op), name(in));
    }

    void write(const ir::Instruction& instruction, int at) {
        if (instruction.op == Op::constant)
            return constant(instruction.result(), instruction.get<ir::ConstantAttributes>().bits);
        if (instruction.op == Op::extent) {
            const std::size_t axis = instruction.get<ir::AxisAttributes>().axis;
            const auto& array = arrays_[array_of_.at(instruction.operands[0])];
            return constant(instruction.result(), static_cast<std::uint64_t>(array.shape()[axis]));
        }
        check(instruction);
        if (!code_.refusal.empty()) return;
        twd::mask::Step step{};
        step.code = *code_of(instruction.op);
        step.in = type_of(operand_type(instruction));
        step.out = type_of(function_.type(instruction.result()).dtype);
        std::vector<Value> operands = instruction.operands;
        if (instruction.op == Op::load) {
            const ir::Access parts = ir::access(instruction);
            step.array = static_cast<unsigned char>(array_of_.at(parts.ref));
            step.rank = static_cast<unsigned char>(parts.indices.size());
            step.masked = static_cast<bool>(parts.mask);
            step.other = static_cast<bool>(parts.other);
            operands.assign(parts.indices.begin(), parts.indices.end());
            if (parts.mask) operands.push_back(parts.mask);
            if (parts.other) operands.push_back(parts.other);
        }
        for (std::size_t i = 0; i < operands.size(); ++i)
            step.operands[i] = static_cast<unsigned short>(place_.at(operands[i]));
        // A result may reuse the register of an operand: each element is read before it is written.
        free_operands(instruction, at);
        place_[instruction.result()] = new_register();
        step.result = static_cast<unsigned short>(place_[instruction.result()]);
        code_.steps.push_back(step);
    }

    const ir::Function& function_;
    std::span<const Tensor> arrays_;
    std::vector<int> last_use_;  ///< for each value, the index of the instruction that uses it last
    std::map<Value, int> place_;
    std::map<Value, int> array_of_;
    std::map<Value, bool> freed_;
    std::vector<int> free_;
    Bytecode code_;
};

/// Why the function may round differently: the tile machine may fuse a product into a sum, which
/// then rounds once instead of twice. Empty: it does not.
std::string fused_sum(const ir::Function& function) {
    std::map<Value, Op> made_by;
    for (const ir::Instruction& instruction : function.body.body) {
        if (instruction.op == Op::add || instruction.op == Op::sub) {
            for (const Value operand : instruction.operands) {
                const auto found = made_by.find(operand);
                if (found != made_by.end() && found->second == Op::mul &&
                    is_float(function.type(operand).dtype))
                    return fmt::format("expected no sum of products of {} but got one",
                                       name(function.type(operand).dtype));
            }
        }
        for (const Value result : instruction.results) made_by[result] = instruction.op;
    }
    return {};
}

}  // namespace

Bytecode Bytecode::of(const ir::Function& mask, std::span<const Tensor> arrays) {
    ir::Function function = mask;
    Bytecode refused;
    refused.refusal = ir::try_straighten(function).refusal;
    if (!refused.refusal.empty()) return refused;
    ir::fold(function);
    ir::cse(function);
    ir::dce(function);
    refused.refusal = fused_sum(function);
    if (arrays.size() > 255) {
        refused.refusal =
            fmt::format("expected a mask of at most 255 arrays but got {}", arrays.size());
    }
    if (!refused.refusal.empty()) return refused;
    return BytecodeWriter(function, arrays).run();
}

}  // namespace tilewright::mask
