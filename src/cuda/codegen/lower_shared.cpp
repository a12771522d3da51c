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

std::vector<std::int64_t> extents_of(const ir::Shape& shape) {
    return {shape.dims().begin(), shape.dims().end()};
}

/// Row-major in a tile of this shape.
TilePlace row_major(const ir::Shape& shape) {
    return {0, extents_of(shape), {}, {}, 1, true};
}

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

}  // namespace

int vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes) {
    const int rank = layout.shape.rank();
    if (rank == 0) return 1;
    std::int64_t vector = std::min<std::int64_t>(vector_length(layout, rank - 1), 16 / bytes);
    if (rank > 1) vector = std::gcd(vector, pitch);
    return static_cast<int>(vector);
}

Held through_shared(Lowering& cx, const std::vector<Held>& parts, const TilePlace& written,
                    const Layout& to, const TilePlace& read, std::int64_t elements, DType dtype) {
    const int id = cx.buffer(elements * size_of(dtype));
    const auto add_place = [](schedule::Instruction& made, const TilePlace& place) {
        if (place.pitch != 0) made.with("pitch", place.pitch);
        if (!place.extents.empty()) made.with("extents", place.extents);
        if (!place.starts.empty()) made.with("starts", place.starts);
        if (!place.steps.empty()) made.with("steps", place.steps);
        if (place.vector > 1) made.with("vector", place.vector);
        if (place.guarded) made.flag("guarded");
    };
    std::vector<schedule::Value> values;
    for (const Held& part : parts) values.push_back(part.value);
    schedule::Instruction& write = cx.append(schedule::Op::write_tile);
    write.operands = std::move(values);
    add_place(write.with_symbol("writes", buffer_name(id)), written);
    const bool rounds = std::any_of(parts.begin(), parts.end(), [&](const Held& part) {
        return cx.program.type(part.value).type.dtype != dtype;
    });
    if (rounds) write.with_symbol("dtype", std::string(name(dtype)));
    schedule::Instruction& made = cx.append(schedule::Op::read_tile);
    add_place(made.with_symbol("reads", buffer_name(id)), read);
    return cx.result_of(made, cx.fresh("m"), to, dtype);
}

std::int64_t SharedTile::rows() const {
    std::int64_t count = 1;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) count *= cover(shape[axis]).size();
    return count;
}

SharedTile shared_tile(Lowering& cx, const ir::Shape& shape, DType dtype, bool swizzle,
                       int copies) {
    SharedTile tile = tile_form(shape, dtype, swizzle);
    tile.buffer = cx.buffer(tile.rows() * tile.row_bytes * copies);
    tile.offset = buffer_name(tile.buffer);
    return tile;
}

SharedTile shared_copy(Lowering& cx, Value value, DType dtype, bool swizzle) {
    // Narrow floats are packed from the f32 before rounding.
    const Value source = size_of(dtype) == 2 ? before_rounding(cx, value) : value;
    const Held* known = cx.find(source);
    const Layout layout = known != nullptr ? known->layout : cx.home(source);
    const Names names = elements_of(cx, source, layout);
    const SharedTile tile = shared_tile(cx, layout.shape, dtype, swizzle);
    const int last = layout.shape.rank() - 1, bytes = size_of(dtype);
    const int vector = std::min(vector_length(layout, last), 16 / bytes);
    cx.access_shared("writes", {tile.buffer});
    cx.comment("operand into shared memory, rows of {} bytes", tile.row_bytes);
    const std::string own = owner(layout);
    for (int r = 0; r < layout.registers(); r += vector) {
        const Coordinates at = layout.register_coordinates(r);
        std::int64_t constant = 0, stride = 1;
        std::string row;
        for (int axis = last - 1; axis >= 0; --axis) {
            constant += at[axis] * stride;
            const std::string part = cx.thread_coordinate(layout, axis);
            if (part != "0") {
                row += fmt::format("{}{} * {}", row.empty() ? "" : " + ", part, stride);
            }
            stride *= cover(layout.shape[axis]).size();
        }
        row = plus(row.empty() ? "0" : "(" + row + ")", constant);
        const std::string column = cx.coordinate(layout, last, at[last]);
        Names elements(names.begin() + r, names.begin() + r + vector);
        // Phantoms along a contracted axis must not contribute NaNs.
        for (int i = 0; i < vector; ++i) {
            const std::string inside = cx.positions.inside(layout, r + i);
            if (inside.empty()) continue;
            elements[i] = fmt::format(
                "{} ? {} : {}", inside, elements[i],
                literal(is_float(dtype) ? (dtype == DType::f64 ? dtype : DType::f32) : dtype, 0));
        }
        cx.line(
            "{}store_vector(reinterpret_cast<{}*>(memory + {} + swizzled<{}, {}>({}, ({}) * {})), "
            "{});",
            own.empty() ? "" : fmt::format("if ({}) ", own), storage_type(dtype), tile.offset,
            tile.row_bytes, tile.group, row, column, bytes, fmt::join(elements, ", "));
    }
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
    const Value source = made.operands[0];
    const auto& attributes = made.get<ir::SliceAttributes>();
    const ir::Type& from = cx.type(source);
    TilePlace read = row_major(from.shape);
    read.starts.assign(attributes.starts.begin(), attributes.starts.end());
    read.steps.assign(attributes.strides.begin(), attributes.strides.end());
    cx.hold(made.result(),
            through_shared(cx, {held_anywhere(cx, source)}, row_major(from.shape),
                           cx.home(made.result()), read, from.shape.size(), from.dtype));
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
