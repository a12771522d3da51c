// A tile on the reference machine, and the pure operations on such tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/function.h"

namespace tilewright::cpu {

/// Where an undefined element came from (checked mode): 0 for a defined element, else the number of
/// the source in the upper 32 bits and the lane of that access in the lower ones.
using Poison = std::uint64_t;

/// Elements of one tile in row-major order. An element is the bit pattern of its own dtype,
/// integers sign- or zero-extended and floats zero-extended to 64 bits, so that moving it never
/// changes it.
struct TileValue {
    ir::Type type;
    std::vector<std::uint64_t> bits;
    std::vector<Poison> poison;  ///< one per element; empty: every element is defined

    /// Sets the type and `size()` elements of value 0, all defined. Keeps the storage.
    void reset(const ir::Type& new_type);
    std::int64_t size() const { return static_cast<std::int64_t>(bits.size()); }
    Poison poison_at(std::size_t i) const { return poison.empty() ? 0 : poison[i]; }
    void set_poison(std::size_t i, Poison value);  ///< value 0 leaves an empty `poison` empty
    /// The only element of a scalar, as a signed integer.
    std::int64_t scalar() const { return static_cast<std::int64_t>(bits[0]); }
};

/// Lines of a tile along one axis: element k of line (outer, inner) is at(outer, k, inner).
struct Lines {
    std::size_t outer = 1, length = 1, inner = 1;

    Lines(const ir::Shape& shape, int axis) : length(static_cast<std::size_t>(shape[axis])) {
        for (int a = 0; a < axis; ++a) outer *= static_cast<std::size_t>(shape[a]);
        for (int a = axis + 1; a < shape.rank(); ++a) inner *= static_cast<std::size_t>(shape[a]);
    }
    std::size_t at(std::size_t o, std::size_t k, std::size_t i) const {
        return (o * length + k) * inner + i;
    }
};

/// The element stored at `address` (any alignment) as bits of a TileValue; a boolean gives 0 or 1.
std::uint64_t read_bits(const std::byte* address, DType dtype);
void write_bits(std::byte* address, DType dtype, std::uint64_t bits);

/// Converts between bits of a TileValue and those of ir::ConstantAttributes (for ir::evaluate).
std::uint64_t to_constant(DType dtype, std::uint64_t bits);
std::uint64_t from_constant(DType dtype, std::uint64_t constant);

/// Result = op(operands...) element by element; scalar operands are repeated. For ops of the
/// classes unary, binary, comparison, ternary and convert. `result` has its type set.
void apply_elementwise(const ir::Instruction& instruction,
                       std::span<const TileValue* const> operands, TileValue& result);

/// broadcast, reshape, transpose, expand_dims, slice, concatenate.
void apply_movement(const ir::Instruction& instruction, std::span<const TileValue* const> operands,
                    TileValue& result);

/// Fills the result with 0, 1, 2, ... along the axis.
void apply_iota(int axis, TileValue& result);

/// reduce: in index order along the axis; f16, bf16 and f8 accumulate in f32, others in their
/// dtype.
void apply_reduce(const ir::ReduceAttributes& attributes, const TileValue& operand,
                  TileValue& result);
void apply_scan(const ir::ReduceAttributes& attributes, const TileValue& operand,
                TileValue& result);
/// sort and argsort: stable in both directions.
void apply_sort(ir::Op op, const ir::SortAttributes& attributes, const TileValue& operand,
                TileValue& result);

/// dot: in order of k; narrow floats accumulate in f32. `acc` may be null.
void apply_dot(const ir::DotAttributes& attributes, const TileValue& a, const TileValue& b,
               const TileValue* acc, TileValue& result);

/// First word of philox4x32-10 per counter.
void apply_random_bits(const TileValue& key, const TileValue& counter, TileValue& result);

/// Text of a tile in the form of debug_print: "1.5", "[1, 2, 3]", "[[1, 2], [3, 4]]".
std::string to_string(const TileValue& tile);

}  // namespace tilewright::cpu
