// What the rules of the form share.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

using Broken = std::optional<std::string>;

template <typename... Args>
Broken broken(fmt::format_string<Args...> format, Args&&... args) {
    return fmt::format(format, std::forward<Args>(args)...);
}

/// The layout of a tile, or of a scalar.
Layout layout_in(const Program& p, Value value);

/// The first error that `look` finds about an instruction.
template <typename Look>
Broken first(const Block& block, Look&& look) {
    for (const Instruction& made : block.body) {
        if (Broken found = look(made)) return found;
        for (const Block& inner : made.blocks) {
            if (Broken found = first(inner, look)) return found;
        }
    }
    return std::nullopt;
}

/// The first error that `look` finds about a list of instructions.
template <typename Look>
Broken first_block(const Block& block, Look&& look) {
    if (Broken found = look(block)) return found;
    for (const Instruction& made : block.body) {
        for (const Block& inner : made.blocks) {
            if (Broken found = first_block(inner, look)) return found;
        }
    }
    return std::nullopt;
}

/// V10, V11, V14, V15 and V20.
Broken waits(const Program& p);
Broken fences(const Program& p);
Broken proxies(const Program& p);
Broken meetings(const Program& p);
Broken issues(const Program& p);
Broken turns(const Program& p);

/// V12, V19 and V22 to V36 and V38 of programs without roles.
Broken places_in_time(const Program& p);
Broken ordered_accesses(const Program& p);
Broken registers_of_values(const Program& p);
Broken tiles_in_memory(const Program& p);
Broken views(const Program& p);
Broken assignments(const Program& p);
Broken reductions(const Program& p);
Broken parts_of_warps(const Program& p);
Broken array_accesses(const Program& p);
Broken vectors_of_accesses(const Program& p);
Broken targets_of_stores(const Program& p);
Broken copied_tiles(const Program& p);
Broken operands_in_memory(const Program& p);
Broken products(const Program& p);
Broken control(const Program& p);
Broken sorts(const Program& p);
Broken prints(const Program& p);
Broken sharing(const Program& p);

}  // namespace tilewright::cuda::schedule
