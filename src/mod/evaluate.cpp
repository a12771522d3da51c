// A scalar interpreter for mods.
#include "mod/evaluate.h"

#include <bit>

#include "ir/access.h"
#include "ir/evaluate.h"
#include "support/check.h"

namespace tilewright::mod {

using ir::Op;

Evaluator::Evaluator(const ir::Function& function, std::vector<Tensor> captures)
    : function_(function), captures_(std::move(captures)), values_(function.num_values()) {
    std::uint64_t place = 0;
    for (ir::Value parameter : function.parameters()) {
        if (function.is_ref(parameter)) at(parameter) = place++;
    }
    TW_ASSERT(place == captures_.size(), "{} tensors for {} Refs", captures_.size(), place);
}

namespace {

std::vector<Tensor> tensors_of(const Traced& traced) {
    std::vector<Tensor> tensors;
    for (const Capture& capture : traced.captures) tensors.push_back(capture.tensor());
    return tensors;
}

}  // namespace

Evaluator::Evaluator(const Traced& traced) : Evaluator(*traced.function, tensors_of(traced)) {}

std::span<const std::uint64_t> Evaluator::run(std::span<const std::uint64_t> scalars) {
    std::size_t next = 0;
    for (ir::Value parameter : function_.parameters()) {
        if (!function_.is_ref(parameter)) at(parameter) = scalars[next++];
    }
    block(function_.body);
    results_.clear();
    for (ir::Value value : function_.body.terminator().operands) results_.push_back(at(value));
    return results_;
}

bool Evaluator::mask(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
    const std::uint64_t scalars[] = {static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(h),
                                     static_cast<std::uint64_t>(q), static_cast<std::uint64_t>(kv)};
    return run(scalars)[0] != 0;
}

double Evaluator::score(double score, std::int64_t b, std::int64_t h, std::int64_t q,
                        std::int64_t kv) {
    const std::uint64_t scalars[] = {std::bit_cast<std::uint64_t>(score),
                                     static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(h),
                                     static_cast<std::uint64_t>(q), static_cast<std::uint64_t>(kv)};
    return std::bit_cast<double>(run(scalars)[0]);
}

void Evaluator::block(const ir::Block& block) {
    for (const ir::Instruction& instruction : block.body) step(instruction);
}

void Evaluator::assign(std::span<const ir::Value> from, std::span<const ir::Value> to) {
    std::vector<std::uint64_t> copies;
    for (ir::Value value : from) copies.push_back(at(value));
    for (std::size_t i = 0; i < to.size(); ++i) at(to[i]) = copies[i];
}

void Evaluator::step(const ir::Instruction& instruction) {
    const auto& operands = instruction.operands;
    switch (instruction.op) {
        case Op::yield:
        case Op::debug_check:
        case Op::debug_print:
            return;
        case Op::constant:
            at(instruction.result()) = instruction.get<ir::ConstantAttributes>().bits;
            return;
        case Op::extent:
            at(instruction.result()) = static_cast<std::uint64_t>(
                tensor(operands[0]).dim(instruction.get<ir::AxisAttributes>().axis));
            return;
        case Op::load:
            return load(instruction);
        case Op::random_bits:
            at(instruction.result()) = ir::philox(at(operands[0]), at(operands[1]));
            return;
        case Op::broadcast:
        case Op::reshape:
            at(instruction.result()) = at(operands[0]);
            return;
        case Op::if_else: {
            const ir::Block& taken = instruction.blocks[at(operands[0]) != 0 ? 0 : 1];
            block(taken);
            return assign(taken.terminator().operands, instruction.results);
        }
        case Op::for_loop: {
            const auto bound = [&](std::size_t i) {
                return static_cast<std::int64_t>(at(operands[i]));
            };
            const ir::Block& body = instruction.blocks[0];
            const auto carries = std::span(body.arguments).subspan(1);
            const std::int64_t high = bound(1), stride = bound(2);
            assign(std::span(operands).subspan(3), carries);
            for (std::int64_t i = bound(0); stride > 0 && i < high;) {
                at(body.arguments[0]) = static_cast<std::uint64_t>(i);
                block(body);
                assign(body.terminator().operands, carries);
                if (__builtin_add_overflow(i, stride, &i)) break;
            }
            return assign(carries, instruction.results);
        }
        case Op::call: {
            const ir::Function& callee = *instruction.get<ir::CallAttributes>().callee;
            std::vector<std::uint64_t> scalars;
            std::vector<Tensor> captures;
            for (ir::Value operand : operands) {
                if (function_.is_ref(operand)) {
                    captures.push_back(tensor(operand));
                } else {
                    scalars.push_back(at(operand));
                }
            }
            Evaluator inner(callee, std::move(captures));
            const auto results = inner.run(scalars);
            for (std::size_t i = 0; i < results.size(); ++i) {
                at(instruction.results[i]) = results[i];
            }
            return;
        }
        default:
            break;
    }
    if (!ir::is_elementwise(instruction.op)) {
        user_error("mod", "expected operations on scalars but got {}", ir::name(instruction.op));
    }
    std::uint64_t inputs[3] = {};
    for (std::size_t i = 0; i < operands.size(); ++i) inputs[i] = at(operands[i]);
    // A select's first operand is its condition; the dtype is that of the values.
    const ir::Value typed = operands[instruction.op == Op::select ? 1 : 0];
    at(instruction.result()) = ir::evaluate(instruction.op, function_.type(typed).dtype,
                                            function_.type(instruction.result()).dtype, inputs);
}

void Evaluator::load(const ir::Instruction& instruction) {
    const ir::Access access = ir::access(instruction);
    const Tensor& source = tensor(access.ref);
    bool read = !access.mask || at(access.mask) != 0;
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < access.indices.size(); ++d) {
        const auto index = static_cast<std::int64_t>(at(access.indices[d]));
        read &= index >= 0 && index < source.shape()[d];
        if (read) offset += index * source.strides()[d];  // others may be too large to multiply
    }
    std::uint64_t& result = at(instruction.result());
    if (!read) {
        result = access.other ? at(access.other) : 0;
        return;
    }
    const auto* first = static_cast<const std::byte*>(source.raw());
    result = ir::read_element(source.dtype(), first + offset * size_of(source.dtype()));
}

}  // namespace tilewright::mod
