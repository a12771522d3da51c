// Writes the machine code of a fused run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpu/simd/fused.h"

namespace tilewright::cpu {

/// Vectors that a step works on, which fill a group of registers.
inline constexpr int kVectorsAtOnce = 4;

/// Does all rows: `at` points at each operand's row, and is moved by `row_bytes` from row to row.
/// After those of the operands, `row_bytes` has a number that is not 0 if an operand that is one
/// element for all lanes moves. The last kVectorsAtOnce vectors of a row begin with lane `last`,
/// which may be negative; the last vector may overlap with the one before.
using Rows = void (*)(std::byte** at, const std::int64_t* row_bytes, std::int64_t rows,
                      std::int64_t last);

/// The code of such a function, for AVX-512 (`wide`) or AVX2; nullopt for runs with steps that it
/// does not know or with too many temporaries. `streams`: stores go past the caches.
std::optional<std::vector<std::uint8_t>> rows_code(std::span<const FusedShape> shapes, bool wide,
                                                   bool streams);

}  // namespace tilewright::cpu
