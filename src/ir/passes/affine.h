// Affine forms of integer values and their bounds, on which the bounds pass is based.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "ir/function.h"

namespace tilewright::ir {

/// constant + sum of coefficient * symbol. Symbols are program ids, induction variables, extents,
/// iotas, quotients, minima and values of which nothing is known.
struct Affine {
    std::map<int, std::int64_t> terms;  ///< symbol -> coefficient, none 0
    std::int64_t constant = 0;
};

/// nullopt for sums and products whose coefficients leave a safe range.
std::optional<Affine> add(const Affine& a, const Affine& b, std::int64_t factor = 1);
std::optional<Affine> scaled(const Affine& a, std::int64_t factor);

/// factor[0] * operand 0 + factor[1] * operand 1.
struct LinearCombination {
    std::array<std::int64_t, 2> factor{};
};

/// An integer op as a linear combination of its operands, provided that it does not wrap; none for
/// other ops. `constant(i)` is the value of operand i if it is one number.
std::optional<LinearCombination> linear_combination(
    Op op, const std::function<std::optional<std::int64_t>(std::size_t)>& constant);

/// Bounds of a symbol s on one side: scale * s is at least (at most) each of the alternatives, or,
/// with `weakest`, only the smallest (largest) of them.
struct SymbolBounds {
    std::vector<Affine> alternatives;
    std::int64_t scale = 1;
    bool weakest = false;
};

/// Collects the affine forms of a function's integer values in program order. A tile's form holds
/// for each of its elements; equal symbols in forms of equal shape stand for equal positions.
class AffineAnalysis {
  public:
    explicit AffineAnalysis(const Function& function) : function_(function) {}

    /// Adds an instruction whose operands have been added before.
    void define(const Instruction& instruction);
    /// Adds the induction variable of a loop, before its block.
    void enter_loop(const Instruction& loop);

    Affine value(Value value);
    Affine extent(Value ref, int dim);

    /// True when the form is proved >= 0 for all values of its symbols.
    bool non_negative(const Affine& form) const;

  private:
    struct Symbol {
        SymbolBounds lower, upper;
        bool is_tile = false;  ///< differs between the elements of a tile
    };

    Affine symbol(SymbolBounds lower, SymbolBounds upper, bool is_tile);
    Affine opaque(const Type& type);
    Affine program_axis(Op op, int axis);
    Affine fresh_positions(const Affine& form);
    Affine arithmetic(const Instruction& instruction, const Type& type);
    Affine quotient(const Instruction& instruction, const Type& type);
    Affine by_power_of_two(const Instruction& instruction, const Type& type);
    Affine divided(const Affine& a, std::int64_t c, bool remains, const Type& type);
    Affine extreme(bool is_min, const Affine& a, const Affine& b, bool is_tile);
    bool in_range(const Affine& form, DType dtype) const;
    bool prove(const Affine& form, int& budget) const;

    const Function& function_;
    std::vector<Symbol> symbols_;
    std::map<Value, Affine> forms_;
    std::map<std::pair<Value, int>, Affine> extents_;
    std::map<std::pair<Op, int>, Affine> program_axes_;
};

}  // namespace tilewright::ir
