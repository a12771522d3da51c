// Tiles through shared memory.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// The place of the elements of a tile in shared memory: in rows with a pitch, or row-major in a
/// tile of `extents`, from `starts` on in steps of `steps`.
struct TilePlace {
    std::int64_t pitch = 0;
    std::vector<std::int64_t> extents, starts = {}, steps = {};
    int vector = 1;                         ///< contiguous registers
    bool guarded = false;                   ///< phantoms have no element
    std::vector<std::int64_t> within = {};  ///< of each axis the first element and the end; or all
};
/// Row-major in a tile of this shape.
TilePlace row_major(const ir::Shape& shape);
/// Writes tiles to a new buffer for so many elements; returns its number.
int write_shared(Lowering& cx, const std::vector<Held>& parts, const TilePlace& written,
                 std::int64_t elements, DType dtype);
/// The elements of tiles in another layout.
Held through_shared(Lowering& cx, const std::vector<Held>& parts, const TilePlace& written,
                    const Layout& to, const TilePlace& read, std::int64_t elements, DType dtype);
/// Contiguous registers along the last axis that are accessed at once.
int vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes);
/// Space for a tile that products read, or for `copies` of it.
SharedTile shared_tile(Lowering& cx, const ir::Shape& shape, DType dtype, bool swizzle,
                       int copies = 1);
/// What copies to such a tile have written, in one of its slots.
void hold_copied(Lowering& cx, SharedTile& tile, schedule::Value slot = {});
SharedTile shared_copy(Lowering& cx, ir::Value value, DType dtype, bool swizzle);
void lower_reshape(Lowering& cx, const ir::Instruction& made);
void lower_slice(Lowering& cx, const ir::Instruction& made);
void lower_concatenate(Lowering& cx, const ir::Instruction& made);

}  // namespace tilewright::cuda
