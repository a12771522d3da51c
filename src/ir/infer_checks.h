// What every typing rule does first: reads operands and attributes and checks them.
#pragma once

#include <fmt/ranges.h>

#include <string_view>
#include <utility>
#include <vector>

#include "ir/function.h"
#include "ir/op.h"
#include "support/check.h"

namespace tilewright::ir {

/// The operands and attributes of one instruction, checked when they are read. A check that fails
/// throws a UserError that names the op, what it expected and what it got.
class InferChecks {
  public:
    /// `requested` is the result type for ops that cannot infer it, else null.
    InferChecks(const Function& function, const Instruction& instruction, const Type* requested)
        : function_(function), instruction_(instruction), requested_(requested) {}

  protected:
    template <typename... Args>
    [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
        user_error(name(instruction_.op), format, std::forward<Args>(args)...);
    }

    std::size_t count() const { return instruction_.operands.size(); }

    void want_count(std::size_t low, std::size_t high) const {
        if (count() >= low && count() <= high) return;
        if (low == high) fail("expected {} operands but got {}", low, count());
        fail("expected {} to {} operands but got {}", low, high, count());
    }

    void want_count(std::size_t n) const { want_count(n, n); }

    const Type& type(Value value, std::string_view role) const {
        if (!value || value.id >= function_.num_values()) fail("expected a value as {}", role);
        if (function_.is_ref(value)) {
            fail("expected a tile as {} but got a {}", role, to_string(function_.ref_type(value)));
        }
        return function_.type(value);
    }

    const Type& operand(std::size_t i, std::string_view role) const {
        return type(instruction_.operands.at(i), role);
    }

    const RefType& ref(Value value) const {
        if (!value || value.id >= function_.num_values()) fail("expected a Ref");
        if (!function_.is_ref(value)) {
            fail("expected a Ref but got a tile {}", to_string(function_.type(value)));
        }
        return function_.ref_type(value);
    }

    template <typename T>
    const T& attributes() const {
        if (!std::holds_alternative<T>(instruction_.attributes)) {
            fail("expected the attributes of this op but got those of another");
        }
        return instruction_.get<T>();
    }

    const Type& requested() const {
        if (requested_ == nullptr) fail("expected a result type");
        return *requested_;
    }

    void want_accepted(DType dtype, std::string_view role) const {
        if (accepts(instruction_.op, dtype)) return;
        const OpInfo& row = info(instruction_.op);
        std::vector<std::string_view> kinds;
        if (row.floats) kinds.push_back("float");
        if (row.integers) kinds.push_back("integer");
        if (row.booleans) kinds.push_back("bool");
        fail("expected {} of {} dtype but got {}", role, fmt::join(kinds, " or "), name(dtype));
    }

    void want_type(const Type& got, const Type& expected, std::string_view role) const {
        if (got == expected) return;
        fail("expected {} of type {} but got {}", role, to_string(expected), to_string(got));
    }

    void want_index(const Type& got, std::string_view role) const {
        if (got.is_scalar() && is_integer(got.dtype)) return;
        fail("expected an integer scalar as {} but got {}", role, to_string(got));
    }

    void want_axis(int axis, int rank) const {
        if (axis >= 0 && axis < rank) return;
        fail("expected an axis in [0, {}) but got {}", rank, axis);
    }

    void want_mask(Value mask, const Shape& shape) const {
        const Type& got = type(mask, "mask");
        if (got.dtype == DType::boolean && (got.is_scalar() || got.shape == shape)) return;
        fail("expected a mask of type {} (or a bool scalar) but got {}",
             to_string(Type{DType::boolean, shape}), to_string(got));
    }

    const Function& function_;
    const Instruction& instruction_;
    const Type* requested_;
};

/// The result types of for_loop, while_loop, if_else, call and terminators.
std::vector<Type> infer_control(const Function& function, const Instruction& instruction);

}  // namespace tilewright::ir
