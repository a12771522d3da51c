// Which instructions of a region make and read each buffer.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cpu/affine.h"
#include "cpu/lower.h"

namespace tilewright::cpu {

/// Built from a region, inner ones included, and kept up to date by `replace`, `add` and `remove`,
/// which change the ops of chains. After other changes of instructions, build a new one.
class DefUse {
  public:
    explicit DefUse(Region& region);

    /// In order.
    const std::vector<Chain*>& chains() const { return chains_; }
    /// The op that makes each buffer, before any change.
    const Makers& makers() const { return makers_; }

    /// Operands that read a buffer or update it.
    int uses(std::uint32_t buffer) const { return at(uses_, buffer); }
    /// Operands that write some or all of a buffer.
    int writes(std::uint32_t buffer) const { return at(writes_, buffer); }

    /// The op of `chain` that makes `source`, for one reader only; nullptr if there is none.
    StripOp* sole_maker(Chain& chain, const StripSource& source) const;

    void replace(StripOp& op, StripOp by);
    /// Inserts `op` before op `at` of a chain.
    void add(Chain& chain, std::size_t at, StripOp op);
    /// Clears an op's function and operands; the next `sweep` erases it.
    void remove(StripOp& op);
    void sweep();

  private:
    using Counts = std::map<std::uint32_t, int>;

    static int at(const Counts& counts, std::uint32_t buffer);
    void collect(Region& region);
    void count(const StripOp& op, int by);

    std::vector<Chain*> chains_;
    Makers makers_;
    Counts uses_, writes_;
};

/// True when one of the operands of `op` is `value`, in any shape.
bool reads(const StripOp& op, const StripSource& value);

}  // namespace tilewright::cpu
