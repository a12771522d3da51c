// Joins elementwise and reducing instructions into strip chains.
#pragma once

#include <map>

#include "cpu/lower.h"

namespace tilewright::cpu {

/// Joins chains over equal spaces throughout `region`, replaces runs of operations by
/// superinstructions, and keeps values that one chain alone uses in strip temporaries.
void form_chains(Region& region, Program& program);

}  // namespace tilewright::cpu
