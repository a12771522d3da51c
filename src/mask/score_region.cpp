// Score mods that mask: the condition under which a mod's result is not the constant -inf.
#include "mask/score_region.h"

#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "ir/builder.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "mask/block_mask.h"
#include "mask/build.h"
#include "mod/traced.h"
#include "support/memo.h"

namespace tilewright::mask {
namespace {

using ir::Instruction;
using ir::Op;
using ir::Value;

/// Rewrites a score mod (score, b, h, q, kv, arrays...) into (b, h, q, kv, arrays...) -> visible.
class RegionFinder {
  public:
    explicit RegionFinder(const ir::Function& score_mod) : function_(score_mod) {
        ir::inline_calls(function_);
        ir::fold(function_);
    }

    std::optional<ir::Function> run() {
        const Value result = function_.body.terminator().operands.at(0);
        const Value score = function_.body.arguments.front();
        // The score becomes a constant, since nothing that is read below depends on it.
        Instruction zero;
        zero.op = Op::constant;
        zero.attributes = ir::ConstantAttributes{0};
        zero.results = {score};
        function_.body.arguments.erase(function_.body.arguments.begin());
        function_.body.body.insert(function_.body.body.begin(), std::move(zero));
        function_.body.body.pop_back();
        depends_.insert(score);
        for (const Instruction& instruction : function_.body.body) note(instruction);

        ir::Builder builder(function_);
        const Value visible = region(builder, result);
        if (!visible) return std::nullopt;
        builder.yield({&visible, 1});
        ir::dce(function_);
        drop_unread_arrays();
        return std::move(function_);
    }

  private:
    // A region without arrays is the same in every call.
    void drop_unread_arrays() {
        bool reads = false;
        ir::walk(function_.body, [&](const Instruction& instruction) {
            for (const Value operand : instruction.operands) reads |= function_.is_ref(operand);
        });
        if (!reads)
            std::erase_if(function_.body.arguments, [&](Value v) { return function_.is_ref(v); });
    }

    void note(const Instruction& instruction) {
        bool depends = false;
        const auto look = [&](const Instruction& inner) {
            for (const Value operand : inner.operands) depends |= depends_.contains(operand);
        };
        look(instruction);
        for (const ir::Block& block : instruction.blocks) ir::walk(block, look);
        for (const Value result : instruction.results) {
            if (depends) depends_.insert(result);
            definitions_[result] = instruction;
        }
    }

    /// A position or constant, or simple arithmetic on them: never infinite, never NaN.
    bool finite(Value value, int depth = 0) const {
        const auto found = definitions_.find(value);
        if (found == definitions_.end())  // a parameter
            return !function_.is_ref(value) && !is_float(function_.type(value).dtype);
        const Instruction& instruction = found->second;
        const DType dtype = function_.type(value).dtype;
        if (instruction.op == Op::constant)
            return !is_float(dtype) || std::fabs(std::bit_cast<double>(
                                           instruction.get<ir::ConstantAttributes>().bits)) < 1e6;
        if (!is_float(dtype)) return true;
        // At most 2^64 * 1e6 * 1e6, far below the largest f32.
        if (size_of(dtype) < 4 || depth > 2) return false;
        switch (instruction.op) {
            case Op::cast:
                return !is_float(function_.type(instruction.operands[0]).dtype);
            case Op::neg:
                return finite(instruction.operands[0], depth);
            case Op::mul: {
                const auto constant = [&](Value operand) {
                    const auto definition = definitions_.find(operand);
                    return definition != definitions_.end() &&
                           definition->second.op == Op::constant && finite(operand);
                };
                const Value a = instruction.operands[0], b = instruction.operands[1];
                return (constant(a) && finite(b, depth + 1)) ||
                       (constant(b) && finite(a, depth + 1));
            }
            default:
                return false;
        }
    }

    /// The condition under which `value` may be other than -inf; none: it always may.
    Value region(ir::Builder& builder, Value value) {
        const auto found = definitions_.find(value);
        if (found == definitions_.end()) return {};
        const Instruction instruction = found->second;
        const ir::Type boolean_type{DType::boolean, {}};
        switch (instruction.op) {
            case Op::constant: {
                const double number =
                    std::bit_cast<double>(instruction.get<ir::ConstantAttributes>().bits);
                if (number >= 0 || !std::isinf(number)) return {};
                return builder.constant_int(boolean_type, 0);
            }
            case Op::cast:
                return is_float(function_.type(instruction.operands[0]).dtype)
                           ? region(builder, instruction.operands[0])
                           : Value();
            case Op::add:
                for (const int i : {0, 1}) {
                    if (finite(instruction.operands[1 - i]))
                        return region(builder, instruction.operands[i]);
                }
                return {};
            case Op::sub:
                return finite(instruction.operands[1]) ? region(builder, instruction.operands[0])
                                                       : Value();
            case Op::select: {
                const Value condition = instruction.operands[0];
                Value yes = region(builder, instruction.operands[1]);
                Value no = region(builder, instruction.operands[2]);
                if (!yes && !no) return {};
                if (!yes) yes = builder.constant_int(boolean_type, 1);
                if (!no) no = builder.constant_int(boolean_type, 1);
                return depends_.contains(condition) ? builder.binary(Op::bitwise_or, yes, no)
                                                    : builder.select(condition, yes, no);
            }
            default:
                return {};
        }
    }

    ir::Function function_;
    std::set<Value> depends_;
    std::map<Value, Instruction> definitions_;
};

/// Null if no pair is excluded. Cached by text.
std::shared_ptr<const ir::Function> region_of(const mod::Traced& traced) {
    using Region = std::shared_ptr<const ir::Function>;
    static auto* const kRegions = new Memo<std::string, Region>("regions of score mods", 256);
    return kRegions->get(traced.text, [&]() -> Region {
        auto function = RegionFinder(*traced.function).run();
        return function ? std::make_shared<const ir::Function>(std::move(*function)) : nullptr;
    });
}

}  // namespace

std::optional<MaskFunction> visible_region(const Mod& score_mod) {
    mod::expect_kind("attention", "score_mod", score_mod, Mod::Kind::score);
    const mod::Traced& traced = mod::trace(score_mod);
    MaskFunction mask;
    mask.function = region_of(traced);
    if (!mask.function) return std::nullopt;
    mask.text = "region\n" + traced.text;
    if (mask.function->parameters().size() == 4) return mask;  // reads no array
    for (const Capture& capture : traced.captures) {
        if (capture.tensor().device().kind != Device::Kind::cpu) return std::nullopt;
        mask.arrays.push_back(capture.tensor());
    }
    return mask;
}

std::optional<BlockMask> mask_of_scores(const Mod& score_mod, std::int64_t batch,
                                        std::int64_t heads, std::int64_t q_len, std::int64_t kv_len,
                                        BlockSize block_size) {
    const std::optional<MaskFunction> visible = visible_region(score_mod);
    if (!visible) return std::nullopt;
    auto state = std::make_shared<BlockMaskState>();
    state->batch = batch;
    state->heads = heads;
    state->block_size = block_size;
    state->data = std::make_shared<const MaskData>(build(*visible, batch, heads, q_len, kv_len));
    return BlockMask(std::move(state));
}

}  // namespace tilewright::mask
