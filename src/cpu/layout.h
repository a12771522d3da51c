// Chooses the lane axis of every tile value.
#pragma once

#include <vector>

#include "cpu/bytecode.h"
#include "ir/function.h"

namespace tilewright::cpu {

/// How a tile value is stored: panels of `width` lanes along `axis`.
struct LaneChoice {
    int axis = 0;
    std::int64_t width = kPanelLanes;
    bool operator==(const LaneChoice&) const = default;
};

/// True when at most one axis has more than one element: storage is the same whatever the lane
/// axis.
bool is_vector(const ir::Shape& shape);

/// The axis with more than one element of a vector; the last axis when there is none, -1 for rank
/// 0.
int long_axis(const ir::Shape& shape);

/// The axis of an access along which its array is contiguous, as far as the kernel tells; else -1.
int contiguous_axis(const ir::AccessAttributes& access, const ir::Shape& shape);

/// Instructions that have each value as operand.
std::vector<std::vector<const ir::Instruction*>> users_of(const ir::Function& function);

/// True when all users are dots that multiply the value: it needs no tile of its own.
bool feeds_only_dots(const std::vector<const ir::Instruction*>& users, ir::Value value);

/// Which operand of a dot is broadcast and which is read in vectors, when the result's lanes lie
/// along `lane`; `vector_axis` is the axis of the vector operand that lies in the lanes,
/// `broadcast_k_axis` the axis of the other along which products are summed.
struct DotRoles {
    bool lanes_are_m = false;
    ir::Value vector, broadcast;
    int vector_axis = 0, broadcast_k_axis = 0;
};
DotRoles dot_roles(const ir::Function& function, const ir::Instruction& dot, int lane);

/// What the kernel of a dot multiplies: its operands converted to `element`, of which `group`
/// neighbours in k share a word of 32 bits.
struct DotForm {
    DType element = DType::f32;
    int group = 1;
};
DotForm dot_form(const ir::Function& function, const ir::Instruction& dot);

/// True when the kernel of a dot wants words that are neighbours in k side by side.
bool wants_k_contiguous(const DotForm& form);

/// True for a dot whose result has so few rows beside its lanes that transposing the vector operand
/// would cost more than the products: its rows are better dotted as they lie.
bool has_few_rows(const ir::Shape& result, int lane);

/// One choice per value id; scalars and Refs get the default.
std::vector<LaneChoice> assign_lanes(const ir::Function& function);

}  // namespace tilewright::cpu
