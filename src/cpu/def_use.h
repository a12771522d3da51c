// Which instructions of a region make and read each buffer.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cpu/affine.h"
#include "cpu/lower.h"

namespace tilewright::cpu {

/// Made from a region, inner ones included, and kept up by `replace`, `add` and `remove`, through
/// which ops of chains change. Whoever changes instructions otherwise makes a new one after.
class DefUse {
  public:
    explicit DefUse(Region& region);

    /// In order.
    const std::vector<Chain*>& chains() const { return chains_; }
    /// The op that makes each buffer, as it was at first.
    const Makers& makers() const { return makers_; }

    /// Operands that read a buffer, or write on top of what is there.
    int uses(std::uint32_t buffer) const { return at(uses_, buffer); }
    /// Operands that write all or some of it.
    int writes(std::uint32_t buffer) const { return at(writes_, buffer); }

    /// The op of `chain` that makes `source` and does so for one reader alone; nullptr if none.
    StripOp* sole_maker(Chain& chain, const StripSource& source) const;

    void replace(StripOp& op, StripOp by);
    /// Puts `op` in front of op `at` of a chain.
    void add(Chain& chain, std::size_t at, StripOp op);
    /// Leaves an op without function and operands, which the next `sweep` takes out.
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

/// True when one of the operands of `op` is `value`, in whatever shape.
bool reads(const StripOp& op, const StripSource& value);

}  // namespace tilewright::cpu
