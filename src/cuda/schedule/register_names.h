// The text of each register of the values of a program without roles.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cuda/codegen/positions.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

class RegisterNames {
  public:
    RegisterNames(const Program& program, Positions& positions, int warps)
        : program_(program), positions_(positions), scalar_layout_(ir::Shape(), warps) {}

    /// The layout of a tile; that of a scalar, of which every thread has a copy.
    const Layout& layout(Value value) const;
    const Names& of(Value value) const { return names_[value.id]; }
    /// The words of 16 bytes in which a value's elements stay until they are used, if they do.
    const Names& words(Value value) const { return words_[value.id]; }
    /// Names the registers of a result: as variables, or as the registers or the text that they
    /// stand for.
    void define(const Instruction& made);
    /// Those of an argument of a block: variables.
    void define(Value argument);
    /// A scalar index as i64.
    std::string index(Value value) const;
    /// What follows an index in a loop, see Op::following.
    std::string following(const Instruction& made) const;
    /// Is a register's element computed by the elementwise operation, rather than the same as that
    /// of an earlier register?
    bool is_computed(Value result, int reg) const;

  private:
    bool are_distinct(Value value) const { return distinct_[value.id]; }
    Names numbered_registers(Value value) const;
    /// Names words; returns the text of their elements.
    Names unpacked(Value value);
    Names iota(const Instruction& made);
    Names elementwise(const Instruction& made);
    Names view(const Instruction& made) const;
    Names of_tile(const Instruction& made);

    void reserve();

    const Program& program_;
    Positions& positions_;
    Layout scalar_layout_;
    std::deque<Names> names_, words_;  ///< by value
    std::vector<bool> distinct_;       ///< likewise: is every register a variable of its own?
};

/// What a kernel is called with for a parameter that is a scalar.
inline std::string bits_name(const Parameter& scalar) {
    return "bits_" + scalar.name;
}

/// The layout from which the elements of a view of a tile do not move.
std::optional<Layout> layout_of_source(const Instruction& view, const ir::Shape& source,
                                       const Layout& layout);

}  // namespace tilewright::cuda::schedule
