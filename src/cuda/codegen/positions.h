// Where threads are in tiles, as variables that stand before all other statements of a kernel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/codegen/layout.h"

namespace tilewright::cuda {

using Names = std::vector<std::string>;

/// Names base_0, base_1, ... of a value's registers; of a single one, base.
Names numbered(const std::string& base, int count);
/// Text of a sum with a constant.
std::string plus(const std::string& text, std::int64_t constant);
/// The condition that a thread owns the elements that it holds, not copies of another one's; "" if
/// it always does.
std::string owner(const Layout& layout);
/// Conditions joined by "&&"; "" is always true.
std::string both(const std::string& a, const std::string& b);
/// "if (condition) ", or "" where it always holds.
std::string where(const std::string& condition);

/// A variable that a thread computes from its own number alone.
struct Position {
    std::string name, text;
    bool is_address = false;  ///< in shared memory, of which the text is the offset
};

class Positions {
  public:
    /// Coordinate of a thread along an axis: a variable, or "0".
    std::string thread(const Layout& layout, int axis);
    /// The same of one of its registers, which adds `register_part`.
    std::string of(const Layout& layout, int axis, std::int64_t register_part) {
        return plus(thread(layout, axis), register_part);
    }
    /// The condition that a register's element lies inside the tile; "" if it always does.
    std::string inside(const Layout& layout, int reg);
    /// The variable of an address in shared memory.
    std::string address(const std::string& offset) { return variable(offset, true); }
    const std::vector<Position>& all() const { return all_; }

  private:
    std::string variable(const std::string& text, bool is_address);

    /// Bits of lanes and warps along an axis, whose text is written once.
    struct Known {
        std::vector<std::uint64_t> lane, warp;
        ir::Shape shape;
        int axis;
        std::string name;
    };
    std::vector<Known> known_;
    std::map<std::string, std::string> names_;  ///< by text
    std::vector<Position> all_;
};

}  // namespace tilewright::cuda
