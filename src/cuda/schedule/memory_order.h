// What the threads of a block have read and written since they last met.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Follows the `access` operations of a program without roles from one to the next: which need a
/// barrier before them, because other threads access the same memory?
class MemoryOrder {
  public:
    explicit MemoryOrder(const Program& program);

    /// Does an access read shared memory while copies to it are under way?
    bool needs_copies(const Instruction& access) const;
    bool needs_barrier(const Instruction& access) const;
    bool has_copies() const { return !copies_.empty(); }

    /// An instruction has run; `inner(block)` follows what its blocks contain.
    template <typename InstructionType, typename Inner>
    void follow(InstructionType& made, Inner&& inner) {
        if (is_access(made)) access(made);
        if (made.is(Op::barrier) || (made.is(Op::meet) && !made.has("begin") && !made.has("end")))
            meet();
        if (made.is(Op::wait_copies)) finish_copies();
        const bool control = made.is(Op::loop) || made.is(Op::branch);
        for (auto& block : made.blocks) {
            if (control) cross(made);
            inner(block);
        }
        if (control) cross(made);
    }

  private:
    using Range = std::pair<std::int64_t, std::int64_t>;
    void access(const Instruction& made);
    void finish_copies();
    void meet();
    /// Where a loop or branch begins or ends, what it accesses may or may not have happened.
    void cross(const Instruction& control);
    bool crosses_global(const Instruction& access) const;
    bool overlaps(const std::string& buffer, const std::set<std::string>& others) const;

    std::map<std::string, Range, std::less<>> places_;
    bool unknown_ = false;  ///< any buffer may have been read and written
    std::set<std::string> read_, written_, copies_;
    std::set<std::string> loaded_, stored_;  ///< global Refs
};

}  // namespace tilewright::cuda::schedule
