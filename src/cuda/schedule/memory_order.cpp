// Which accesses of other threads an access has to wait for.
#include "cuda/schedule/memory_order.h"

#include <algorithm>

namespace tilewright::cuda::schedule {

MemoryOrder::MemoryOrder(const Program& program) {
    for (const Buffer& one : program.buffers) {
        places_[one.name] = {one.offset, one.offset + one.slots * one.slot_bytes()};
    }
}

bool MemoryOrder::overlaps(const std::string& buffer, const std::set<std::string>& others) const {
    const Range& own = places_.at(buffer);
    return std::any_of(others.begin(), others.end(), [&](const std::string& other) {
        const Range& range = places_.at(other);
        return buffer == other || (own.first < range.second && range.first < own.second);
    });
}

bool MemoryOrder::crosses_global(const Instruction& access) const {
    return std::any_of(access.attributes.begin(), access.attributes.end(), [&](const auto& one) {
        const bool stores = one.name == "stores";
        return (stores || one.name == "loads") &&
               (stored_.contains(one.text) || (stores && loaded_.contains(one.text)));
    });
}

bool MemoryOrder::needs_copies(const Instruction& access) const {
    return !copies_.empty() && (access.has("reads") || crosses_global(access));
}

bool MemoryOrder::needs_barrier(const Instruction& access) const {
    return crosses_global(access) ||
           std::any_of(access.attributes.begin(), access.attributes.end(), [&](const auto& one) {
               const bool writes = one.name == "writes";
               if (!writes && one.name != "reads") return false;
               return unknown_ || overlaps(one.text, written_) ||
                      (writes && overlaps(one.text, read_));
           });
}

void MemoryOrder::access(const Instruction& made) {
    for (const Attribute& one : made.attributes) {
        if (one.name == "reads") read_.insert(one.text);
        if (one.name == "writes") written_.insert(one.text);
        if (one.name == "copies") copies_.insert(one.text);
        if (one.name == "loads") loaded_.insert(one.text);
        if (one.name == "stores") stored_.insert(one.text);
    }
}

void MemoryOrder::finish_copies() {
    written_.merge(copies_);
    copies_.clear();
}

void MemoryOrder::meet() {
    unknown_ = false;
    for (auto* set : {&read_, &written_, &loaded_, &stored_}) set->clear();
}

void MemoryOrder::cross(const Instruction& control) {
    unknown_ = true;
    for (const Block& block : control.blocks) {
        each_instruction(block, [&](const Instruction& made) {
            if (!is_access(made)) return;
            for (const Attribute& one : made.attributes) {
                if (one.name == "loads") loaded_.insert(one.text);
                if (one.name == "stores") stored_.insert(one.text);
            }
        });
    }
}

}  // namespace tilewright::cuda::schedule
