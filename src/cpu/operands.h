// Visits the operands of bytecode instructions: what each reads and writes.
#pragma once

#include <type_traits>
#include <variant>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

enum class Use : std::uint8_t {
    read,
    write,   ///< every element that is read later
    update,  ///< some elements, or in addition to what is there
};

namespace detail {

template <typename AccessType, typename Visitor>
void visit_access(AccessType& access, Visitor&& visit) {
    for (auto& index : access.indices) {
        if (index.kind == ir::Index::Kind::tile) {
            visit(index.tile.home, index.tile.index, Use::read);
        } else {
            Home home = Home::slot;
            visit(home, index.slot, Use::read);
        }
    }
}

template <typename Slot, typename Visitor>
void visit_slot(Slot& slot, Use use, Visitor&& visit) {
    Home home = Home::slot;
    visit(home, slot, use);
}

}  // namespace detail

/// Calls visit(home, index, use) for every operand of one instruction, reads before writes. The
/// references may be assigned to, except for the home of scalar registers.
template <typename InstructionType, typename Visitor>
void visit_operands(InstructionType& instruction, Visitor&& visit) {
    using T = std::remove_const_t<InstructionType>;
    const auto on = [&](auto& operand, Use use) {
        if (operand.home != Home::none) visit(operand.home, operand.index, use);
    };
    if constexpr (std::is_same_v<T, ScalarOp>) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(instruction.num_inputs); ++i) {
            detail::visit_slot(instruction.in[i], Use::read, visit);
        }
        detail::visit_slot(instruction.out, Use::write, visit);
    } else if constexpr (std::is_same_v<T, ScalarMove>) {
        detail::visit_slot(instruction.from, Use::read, visit);
        detail::visit_slot(instruction.to, Use::write, visit);
    } else if constexpr (std::is_same_v<T, ScalarQuery>) {
        detail::visit_slot(instruction.out, Use::write, visit);
    } else if constexpr (std::is_same_v<T, Chain>) {
        for (auto& op : instruction.ops) {
            for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
                on(op.in[i], Use::read);
            }
            for (auto& term : op.affine.terms) detail::visit_slot(term.slot, Use::read, visit);
        }
        for (auto& op : instruction.ops) {
            on(op.out, Use::write);
            on(op.sum, Use::write);
        }
    } else if constexpr (std::is_same_v<T, ReduceRows> || std::is_same_v<T, ArgReduce>) {
        on(instruction.in, Use::read);
        on(instruction.out, Use::write);
    } else if constexpr (std::is_same_v<T, ScanRows>) {
        on(instruction.in, Use::read);
        on(instruction.out, Use::write);
        on(instruction.carried, Use::write);
    } else if constexpr (std::is_same_v<T, CombineScan>) {
        for (auto& slot : instruction.captured) detail::visit_slot(slot, Use::read, visit);
        for (auto& slot : instruction.splats) detail::visit_slot(slot, Use::read, visit);
        for (auto& in : instruction.in) on(in, Use::read);
        for (auto& out : instruction.out) on(out, Use::write);
        on(instruction.work, Use::write);
    } else if constexpr (std::is_same_v<T, SortLines>) {
        on(instruction.in, Use::read);
        if (instruction.out.home != Home::none) on(instruction.out, Use::write);
        if (instruction.places.home != Home::none) on(instruction.places, Use::write);
        on(instruction.work, Use::write);
    } else if constexpr (std::is_same_v<T, Move>) {
        on(instruction.in, Use::read);
        on(instruction.out, instruction.whole ? Use::write : Use::update);
    } else if constexpr (std::is_same_v<T, Pick>) {
        detail::visit_slot(instruction.at, Use::read, visit);
        on(instruction.in, Use::read);
        on(instruction.out, Use::write);
    } else if constexpr (std::is_same_v<T, Interleave>) {
        on(instruction.in, Use::read);
        on(instruction.out, Use::write);
    } else if constexpr (std::is_same_v<T, Dot>) {
        on(instruction.broadcast, Use::read);
        on(instruction.vector, Use::read);
        on(instruction.scale, Use::read);
        on(instruction.packed_broadcast, Use::write);
        on(instruction.packed_vector, Use::write);
        on(instruction.maxima, Use::write);
        for (auto& form : instruction.unread) {
            for (auto& term : form.terms) detail::visit_slot(term.slot, Use::read, visit);
        }
        on(instruction.out, instruction.accumulate ? Use::update : Use::write);
    } else if constexpr (std::is_same_v<T, Load>) {
        detail::visit_access(instruction.access, visit);
        on(instruction.other, Use::read);
        on(instruction.factor, Use::read);
        on(instruction.out, Use::write);
        on(instruction.sum, Use::write);
    } else if constexpr (std::is_same_v<T, LoadView>) {
        detail::visit_access(instruction.access, visit);
        on(instruction.other, Use::read);
        on(instruction.copy, Use::write);
        Home home = Home::view;
        visit(home, instruction.view, Use::write);
    } else if constexpr (std::is_same_v<T, SubView>) {
        Home from = Home::view, to = Home::view;
        visit(from, instruction.from, Use::read);
        visit(to, instruction.view, Use::write);
    } else if constexpr (std::is_same_v<T, StoreView>) {
        detail::visit_access(instruction.access, visit);
        on(instruction.copy, Use::write);
        Home home = Home::view;
        visit(home, instruction.view, Use::write);
    } else if constexpr (std::is_same_v<T, Store>) {
        detail::visit_access(instruction.access, visit);
        on(instruction.value, Use::read);
        on(instruction.mask, Use::read);
    } else if constexpr (std::is_same_v<T, Atomic>) {
        detail::visit_access(instruction.access, visit);
        on(instruction.value, Use::read);
        on(instruction.desired, Use::read);
        on(instruction.mask, Use::read);
        on(instruction.out, Use::write);
    } else if constexpr (std::is_same_v<T, Print>) {
        for (auto& operand : instruction.operands) on(operand, Use::read);
    }
}

template <typename Visitor>
void visit_operands(Instruction& instruction, Visitor&& visit) {
    std::visit([&](auto& concrete) { visit_operands(concrete, visit); }, instruction);
}
template <typename Visitor>
void visit_operands(const Instruction& instruction, Visitor&& visit) {
    std::visit([&](auto& concrete) { visit_operands(concrete, visit); }, instruction);
}

}  // namespace tilewright::cpu
