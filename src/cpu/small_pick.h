// Where the element, or the vector, that a Pick reads is.
#pragma once

#include <cstdint>
#include <optional>

#include "cpu/bytecode.h"
#include "cpu/small_tile_code.h"

namespace tilewright::cpu {

/// Counts and strides of words; offsets of bytes in the arena.
struct SmallPick {
    std::int64_t count = 1;             ///< of the result
    std::int64_t stride = 1;            ///< between neighbours of the result in the tile
    std::int64_t extent = 1, step = 1;  ///< of the axis that the index is on
    std::int64_t from = 0;
    std::int64_t to = 0;  ///< unless the result is a slot
    bool to_slot = false;

    static bool is_near(std::int64_t offset);
};

/// nullopt for picks without code.
std::optional<SmallPick> small_pick(const Program& program, const Pick& pick);

/// The index that a Pick reads, if it is known.
std::optional<std::int64_t> known_index(const Pick& pick, const KnownSlots& known);

}  // namespace tilewright::cpu
