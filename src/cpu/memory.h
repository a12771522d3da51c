// Refs of a program on the reference machine, and the lanes of an access to one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu/tile_value.h"
#include "ir/function.h"

namespace tilewright::cpu {

/// The array of a Ref. Strides are in elements.
struct Memory {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> extents, strides;
    std::byte* data = nullptr;
    int argument = -1;               ///< index into Arguments::refs; -1: scratch
    std::vector<std::byte> storage;  ///< scratch: its elements
    std::vector<Poison> poison;      ///< scratch in checked mode: per element, 0 once it is defined

    std::byte* element(std::int64_t offset) const { return data + offset * size_of(dtype); }
};

/// The element that each lane of one executed access stands for. Owns its index tiles, so that a
/// report can be written after the program has moved on.
class Lanes {
  public:
    struct Lane {
        std::array<std::int64_t, ir::kMaxRefRank> index{};
        bool inside = true;       ///< every index lies in [0, extent)
        std::int64_t offset = 0;  ///< in elements, meaningful when inside
        Poison poison = 0;        ///< of an index that is undefined
    };

    Lanes(const ir::Function& function, const ir::Instruction& instruction, const Memory& memory,
          std::span<const TileValue* const> indices);

    std::int64_t size() const { return shape_.size(); }
    /// Lanes are numbered in row-major order over the shape of the access.
    Lane lane(std::int64_t number) const;

  private:
    /// One dimension: index = start + sum over axes of coordinate * step, or an element of a tile
    /// at that position.
    struct Dimension {
        ir::Index::Kind kind = ir::Index::Kind::scalar;
        TileValue operand;
        std::array<std::int64_t, ir::kMaxTileRank> step{};
    };

    ir::Shape shape_;
    std::vector<Dimension> dimensions_;
    std::vector<std::int64_t> extents_, strides_;
};

}  // namespace tilewright::cpu
