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

/// True when at most one axis has more than one element: storage does not depend on the lane axis.
bool is_vector(const ir::Shape& shape);

/// The axis of a vector with more than one element; the last axis when there is none, -1 for rank
/// 0.
int long_axis(const ir::Shape& shape);

/// The axis of an access along which its array is known to be contiguous; else -1.
int contiguous_axis(const ir::AccessAttributes& access, const ir::Shape& shape);

/// The instructions that have each value as an operand.
std::vector<std::vector<const ir::Instruction*>> users_of(const ir::Function& function);

/// True when all users are dots that multiply the value, so that it needs no tile of its own.
bool feeds_only_dots(const std::vector<const ir::Instruction*>& users, ir::Value value);

/// Which operand of a dot is broadcast and which is read in vectors, when the result's lanes are
/// along `lane`; `vector_axis` is the axis of the vector operand that becomes the lanes,
/// `broadcast_k_axis` the contracted axis of the other operand.
struct DotRoles {
    bool lanes_are_m = false;
    ir::Value vector, broadcast;
    int vector_axis = 0, broadcast_k_axis = 0;
};
DotRoles dot_roles(const ir::Function& function, const ir::Instruction& dot, int lane);

/// The operands of a dot's kernel: converted to `element`, with `group` neighbours in k in each
/// word of 32 bits.
struct DotForm {
    DType element = DType::f32;
    int group = 1;
};
DotForm dot_form(const ir::Function& function, const ir::Instruction& dot);

/// True when a dot's kernel needs words that are contiguous in k.
bool wants_k_contiguous(const DotForm& form);

/// True for a dot whose result has so few rows besides its lanes that transposing the vector
/// operand would cost more than the products: its rows are better multiplied in place.
bool has_few_rows(const ir::Shape& result, int lane);

/// One choice per value id; scalars and Refs get the default.
std::vector<LaneChoice> assign_lanes(const ir::Function& function);

}  // namespace tilewright::cpu
