// Loads that are issued ahead of their use: copied to shared memory for dots, or iterations ahead.
#pragma once

#include <span>

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// Copies a tile by `cp.async`, to one of the slots that its buffer has.
void copy_to_shared(Lowering& cx, const ir::Instruction& load, const SharedTile& tile,
                    std::vector<schedule::Value> indices, schedule::Value slot = {});
void lower_staged(Lowering& cx, const ir::Instruction& load);
/// Issues the loads of the iteration at `at`.
void prefetch(Lowering& cx, std::span<const ir::Instruction* const> loads, schedule::Value at);
/// A scalar of a loop in the iteration at `at`.
schedule::Value recompute(Lowering& cx, ir::Value value, const std::set<ir::Value>& inside,
                          ir::Value induction, schedule::Value at);
/// After a reduction: elements are unpacked again and cheap arithmetic on them is repeated, so
/// that only packed words stay in registers across the reduction.
void keep_packed(Lowering& cx);

}  // namespace tilewright::cuda
