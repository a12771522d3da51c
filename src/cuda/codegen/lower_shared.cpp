// Copies between layouts and of operands; elements that change threads.
#include "cuda/codegen/lower_shared.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_values.h"

namespace tilewright::cuda {

using ir::Instruction;
using ir::Value;

namespace {

SharedTile tile_form(const ir::Shape& shape, DType dtype, bool swizzle) {
    SharedTile tile;
    tile.shape = shape;
    tile.dtype = dtype;
    const std::int64_t row = cover(shape[shape.rank() - 1]).size() * size_of(dtype);
    // Without swizzle, an odd number of 16-byte pieces keeps rows in different banks.
    tile.row_bytes =
        swizzle ? std::max<std::int64_t>(row, 16) : (row + 15) / 16 * 16 + (row >= 64 ? 16 : 0);
    tile.group = swizzle ? std::min<std::int64_t>(128, tile.row_bytes & -tile.row_bytes) : 16;
    return tile;
}

void add_place(schedule::Instruction& made, const TilePlace& place) {
    if (place.pitch != 0) made.with("pitch", place.pitch);
    if (!place.extents.empty()) made.with("extents", place.extents);
    if (!place.starts.empty()) made.with("starts", place.starts);
    if (!place.steps.empty()) made.with("steps", place.steps);
    if (place.vector > 1) made.with("vector", place.vector);
    if (place.guarded) made.flag("guarded");
    if (!place.within.empty()) made.with("within", place.within);
}

void add_rows(schedule::Instruction& made, const SharedTile& tile) {
    made.with("row_bytes", tile.row_bytes).with("group", tile.group);
}

schedule::Value in_memory(Lowering& cx, const SharedTile& tile) {
    return cx.program.add({false, {tile.dtype, tile.shape}, {}}, cx.fresh("k"));
}

}  // namespace

int vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes) {
    const int rank = layout.shape.rank();
    if (rank == 0) return 1;
    std::int64_t vector = std::min<std::int64_t>(vector_length(layout, rank - 1), 16 / bytes);
    if (rank > 1) vector = std::gcd(vector, pitch);
    return static_cast<int>(vector);
}

TilePlace row_major(const ir::Shape& shape) {
    return {0, {shape.dims().begin(), shape.dims().end()}, {}, {}, 1, true};
}

int write_shared(Lowering& cx, const std::vector<Held>& parts, const TilePlace& written,
                 std::int64_t elements, DType dtype) {
    const int id = cx.buffer(elements * size_of(dtype));
    std::vector<schedule::Value> values;
    for (const Held& part : parts) values.push_back(part.value);
    schedule::Instruction& write = cx.append(schedule::Op::write_tile);
    write.operands = std::move(values);
    add_place(write.with_symbol("writes", buffer_name(id)), written);
    const bool rounds = std::any_of(parts.begin(), parts.end(), [&](const Held& part) {
        return cx.program.type(part.value).type.dtype != dtype;
    });
    if (rounds) write.with_symbol("dtype", std::string(name(dtype)));
    return id;
}

Held through_shared(Lowering& cx, const std::vector<Held>& parts, const TilePlace& written,
                    const Layout& to, const TilePlace& read, std::int64_t elements, DType dtype) {
    const int id = write_shared(cx, parts, written, elements, dtype);
    schedule::Instruction& made = cx.append(schedule::Op::read_tile);
    add_place(made.with_symbol("reads", buffer_name(id)), read);
    return cx.result_of(made, cx.fresh("m"), to, dtype);
}

SharedTile shared_tile(Lowering& cx, const ir::Shape& shape, DType dtype, bool swizzle,
                       int copies) {
    SharedTile tile = tile_form(shape, dtype, swizzle);
    tile.buffer = cx.buffer(covered_rows(tile.shape) * tile.row_bytes * copies);
    return tile;
}

void hold_copied(Lowering& cx, SharedTile& tile, schedule::Value slot) {
    schedule::Instruction& made = cx.append(schedule::Op::shared_tile);
    if (slot) made.operands = {slot};
    add_rows(made.with_symbol("uses", buffer_name(tile.buffer)), tile);
    tile.value = in_memory(cx, tile);
    made.results = {tile.value};
}

SharedTile shared_copy(Lowering& cx, Value value, DType dtype, bool swizzle) {
    // Narrow floats are packed from the f32 before rounding.
    const Value source = size_of(dtype) == 2 ? before_rounding(cx, value) : value;
    const Held* known = cx.find(source);
    const Layout layout = known != nullptr ? known->layout : cx.home(source);
    const schedule::Value elements = value_in(cx, source, layout);
    SharedTile tile = shared_tile(cx, layout.shape, dtype, swizzle);
    schedule::Instruction& made = cx.append(schedule::Op::write_operand);
    made.operands = {elements};
    add_rows(made.with_symbol("writes", buffer_name(tile.buffer)), tile);
    tile.value = in_memory(cx, tile);
    made.results = {tile.value};
    return tile;
}

// ---- Reshape, slice and concatenate.

void lower_reshape(Lowering& cx, const Instruction& made) {
    const Value source = made.operands[0];
    const ir::Type& from = cx.type(source);
    cx.hold(made.result(),
            through_shared(cx, {held_anywhere(cx, source)}, row_major(from.shape),
                           cx.home(made.result()), row_major(cx.type(made.result()).shape),
                           from.shape.size(), from.dtype));
}

void lower_slice(Lowering& cx, const Instruction& made) {
    if (cx.find(made.result()) != nullptr) return;  // a scan's totals
    const Value source = made.operands[0];
    const auto& attributes = made.get<ir::SliceAttributes>();
    const ir::Type& from = cx.type(source);
    TilePlace read = row_major(from.shape);
    read.starts.assign(attributes.starts.begin(), attributes.starts.end());
    read.steps.assign(attributes.strides.begin(), attributes.strides.end());
    TilePlace written = row_major(from.shape);
    for (std::size_t axis = 0; axis < attributes.starts.size(); ++axis) {
        const std::int64_t start = attributes.starts[axis];
        written.within.push_back(start);
        written.within.push_back(start + (attributes.sizes[axis] - 1) * attributes.strides[axis] +
                                 1);
    }
    cx.hold(made.result(),
            through_shared(cx, {held_anywhere(cx, source)}, written, cx.home(made.result()), read,
                           from.shape.size(), from.dtype));
}

void lower_concatenate(Lowering& cx, const Instruction& made) {
    const auto along = static_cast<std::size_t>(made.get<ir::AxisAttributes>().axis);
    const ir::Type& whole = cx.type(made.result());
    const auto rank = static_cast<std::size_t>(whole.shape.rank());
    std::vector<Held> parts;
    TilePlace written = row_major(whole.shape);
    std::int64_t start = 0;
    for (const Value source : made.operands) {
        written.starts.resize(written.starts.size() + rank);
        written.starts[parts.size() * rank + along] = start;
        parts.push_back(held_anywhere(cx, source));
        start += cx.type(source).shape[static_cast<int>(along)];
    }
    cx.hold(made.result(), through_shared(cx, parts, written, cx.home(made.result()),
                                          row_major(whole.shape), whole.shape.size(), whole.dtype));
}

}  // namespace tilewright::cuda
