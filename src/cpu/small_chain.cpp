// Which chains on small tiles have machine code, and where it finds operands.
#include "cpu/small_chain.h"

#include <algorithm>
#include <array>
#include <limits>

namespace tilewright::cpu {
namespace {

using ir::Op;
using namespace x86;  // registers

/// Elements of all ops of a chain that are worth code without loops.
constexpr std::int64_t kMostSteps = 16384;

}  // namespace

SmallChain::SmallChain(const Program& program, const Chain& chain, const KnownSlots& known,
                       int vector_lanes)
    : program_(program),
      chain_(chain),
      known_(known),
      vector_lanes_(vector_lanes),
      vectors_(ceil_div(chain.lanes, vector_lanes_)),
      tail_(static_cast<int>(chain.lanes % vector_lanes_)) {}

bool SmallChain::always_has_memory(std::uint32_t view) const {
    return std::any_of(program_.code.begin(), program_.code.end(), [&](const Instruction& i) {
        const auto* store = std::get_if<StoreView>(&i);
        return store != nullptr && store->view == view && store->copy.home != Home::none;
    });
}

bool SmallChain::is_known() const {
    const std::int64_t count = chain_.rows * vectors_ * vector_lanes_;
    if (!chain_.fused.empty() || chain_.rows < 1 || chain_.lanes < 1 ||
        chain_.lanes > chain_.width || count > kMostSmallElements ||
        count * static_cast<std::int64_t>(chain_.ops.size()) > kMostSteps)
        return false;
    const bool stores = std::any_of(chain_.ops.begin(), chain_.ops.end(),
                                    [](const StripOp& op) { return op.stored_ref >= 0; });
    for (const StripOp& op : chain_.ops) {
        const bool stored = op.stored_ref >= 0;
        if (op.sum.home != Home::none || (stored ? op.num_inputs != 1 : !has_address(op.out)))
            return false;
        if (stored && !(is_row_of_view(op.out) && always_has_memory(op.out.index))) return false;
        for (int k = 0; k < op.num_inputs; ++k) {
            // Rows are not stored before others are read.
            const StripSource& in = op.in[static_cast<std::size_t>(k)];
            if (!has_address(in) && !(!stores && is_row_of_view(in))) return false;
        }
        // What an op writes is read row by row, or not here.
        for (const StripOp& other : chain_.ops) {
            for (int k = 0; k < other.num_inputs; ++k) {
                const StripSource& in = other.in[static_cast<std::size_t>(k)];
                // Temporaries are never in memory: readers need the registers of their maker.
                const bool same = in.home == Home::buffer && op.out.home == Home::buffer &&
                                  in.index == op.out.index;
                if (same && (!op.makes_tile() || !same_places(in, op.out))) return false;
            }
        }
    }
    return true;
}

bool SmallChain::same_places(const StripSource& a, const StripSource& b) {
    return a.offset == b.offset && a.row_stride == b.row_stride && a.lane_stride == b.lane_stride &&
           size_of(a.dtype) == size_of(b.dtype);
}

bool SmallChain::has_address(const StripSource& source) {
    return (source.home == Home::buffer || source.home == Home::strip ||
            source.home == Home::slot || source.home == Home::constant) &&
           (is_word(source.dtype) || source.dtype == DType::boolean);
}

SmallChain::Address SmallChain::address(const StripSource& source, std::int64_t row,
                                        std::int64_t vector) {
    const std::int64_t lane = source.lane_stride == 0 ? 0 : vector * vector_lanes_;
    std::int64_t at = (source.offset + row * source.row_stride + lane) * size_of(source.dtype);
    Address result;
    switch (source.home) {
        case Home::buffer:
            at += program_.buffers[source.index].offset;
            break;
        case Home::constant:
            result.base = rdx;
            at += source.index;
            break;
        case Home::slot:
            result.base = rsi;
            at += 8 * static_cast<std::int64_t>(source.index);
            break;
        default:
            failed_ = true;  // strips live in registers
    }
    if (at > std::numeric_limits<std::int32_t>::max()) failed_ = true;
    result.offset = static_cast<std::int32_t>(at);
    return result;
}

std::size_t SmallChain::maker(const StripSource& source) const {
    for (std::size_t made = op_; made-- > 0;) {
        if (chain_.ops[made].out == source) return made;
    }
    return chain_.ops.size();
}

std::optional<Opcode> SmallChain::arithmetic(Op op, DType dtype) {
    const bool extreme = op == Op::min || op == Op::max;
    return extreme && dtype == DType::f32 ? std::nullopt : arithmetic_opcode(op, dtype);
}

bool SmallChain::is_map(const StripOp& op) {
    const DType in = op.in[static_cast<std::size_t>(op.num_inputs) - 1].dtype;
    if (op.op == Op::select) return is_word(in) && op.out.dtype != DType::boolean;
    if (op.out.dtype != DType::boolean)
        return arithmetic(op.op, in) || is_root(op) || is_fma(op) || is_conversion(op);
    const bool logical =
        op.op == Op::bitwise_and || op.op == Op::bitwise_or || op.op == Op::bitwise_xor;
    return is_word(in) ? predicate(op.op, in == DType::f32) >= 0 : logical;
}

bool SmallChain::is_gentle_select(const StripOp& op) {
    const Affine& form = op.affine;
    return op.in[0].dtype == DType::f32 && std::abs(form.row) <= kSteep &&
           std::abs(form.lane) <= kSteep && std::abs(form.constant) <= kMostOfForm;
}

bool SmallChain::load_base(const Affine& form) {
    std::int64_t constant = form.constant;
    for (const Affine::Term& term : form.terms) {
        if (term.dtype != DType::i32 || std::abs(term.coefficient) > kSteep) return false;
        if (const auto slot = known_.find(term.slot); slot != known_.end())
            constant += term.coefficient * static_cast<std::int32_t>(slot->second);
    }
    encoder_.load_constant(rcx, static_cast<std::uint64_t>(constant));
    for (const Affine::Term& term : form.terms) {
        if (known_.contains(term.slot)) continue;
        encoder_.load_signed_32(rax, rsi, 8 * static_cast<std::int32_t>(term.slot));
        encoder_.fixed({0x48, 0x69, 0xC0});  // imul rax, rax, coefficient
        encoder_.word(static_cast<std::int32_t>(term.coefficient));
        encoder_.fixed({0x48, 0x01, 0xC1});  // add rcx, rax
    }
    return true;
}

std::optional<std::int64_t> SmallChain::known_base(const Affine& form) const {
    std::int64_t base = form.constant;
    for (const Affine::Term& term : form.terms) {
        const auto slot = known_.find(term.slot);
        if (term.dtype != DType::i32 || std::abs(term.coefficient) > kSteep || slot == known_.end())
            return {};
        base += term.coefficient * static_cast<std::int32_t>(slot->second);
    }
    return base;
}

void SmallChain::limit_base() {
    for (const bool above : {true, false}) {
        encoder_.load_constant(r8, static_cast<std::uint64_t>(above ? kMostOfForm : -kMostOfForm));
        encoder_.fixed({0x4C, 0x39, 0xC1});                       // cmp rcx, r8
        encoder_.fixed({0x49, 0x0F, above ? 0x4F : 0x4C, 0xC8});  // cmovg or cmovl rcx, r8
    }
}

ConstantPool::Words SmallChain::steps(const Affine& form, std::int64_t v) const {
    ConstantPool::Words steps{};
    for (std::int64_t l = 0; l < vector_lanes_; ++l) {
        steps[static_cast<std::size_t>(l)] =
            static_cast<std::int32_t>(form.row * row_ + form.lane * (v * vector_lanes_ + l));
    }
    return steps;
}

}  // namespace tilewright::cpu
