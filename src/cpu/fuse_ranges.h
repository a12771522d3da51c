// Selects of runs whose conditions hold for ranges of lanes.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cpu/bytecode.h"
#include "cpu/def_use.h"

namespace tilewright::cpu {

/// Ops of a chain in which some selects are decided: what reads them reads what they choose.
struct DecidedOps {
    std::vector<StripOp> ops;
    /// Inputs of ops that were another input of another op before.
    std::map<std::pair<std::size_t, int>, FusedRun::Operand> origins;
};

/// Selects among ops [first, last) of a chain whose conditions combine affine comparisons, and the
/// ops for every combination of their results.
struct RangeSelects {
    std::vector<std::vector<FusedRun::RangeTest>> conditions;
    std::vector<DecidedOps> by_conditions;
};

/// nullopt where there are none. `is_external(op)`: something else than these ops reads its result.
std::optional<RangeSelects> find_range_selects(const Chain& chain, std::size_t first,
                                               std::size_t last,
                                               const std::vector<bool>& is_external,
                                               const DefUse& uses, const Program& program);

}  // namespace tilewright::cpu
