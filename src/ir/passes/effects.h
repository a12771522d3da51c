// What an instruction reads and writes, which every pass that moves or removes code needs to know.
#pragma once

#include <set>

#include "ir/function.h"

namespace tilewright::ir {

struct Effects {
    std::set<Value> reads;   ///< Refs loaded from
    std::set<Value> writes;  ///< Refs stored to or updated atomically
    bool debug = false;      ///< prints or checks
    bool may_hang = false;   ///< has a while loop: may be removed, but not speculated

    bool pure() const { return reads.empty() && writes.empty() && !debug; }
    bool removable() const { return writes.empty() && !debug; }
};

/// Effects of an instruction, including its blocks and its callee.
Effects effects(const Instruction& instruction);

/// True when the two Refs may share memory: they are the same or in one alias group.
bool may_alias(const Function& function, Value a, Value b);

/// True when some Ref of `writes` may share memory with `ref`.
bool may_write(const Function& function, const std::set<Value>& writes, Value ref);

}  // namespace tilewright::ir
