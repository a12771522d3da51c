// Shared memory: buffers, copies between layouts, and the barriers that order threads.
#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/codegen/emitter.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::cuda {

// ---- Space and order.

int Emitter::buffer(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 128;
    const int id = static_cast<int>(program_.buffers.size());
    schedule::Buffer& made = program_.buffers.emplace_back();
    made.name = buffer_name(id);
    made.dtype = DType::u8;
    made.rows = 1;
    made.columns = ceil_div(bytes, kAlignment) * kAlignment;
    made.purpose = buffers_for_;
    return id;
}

std::string Emitter::buffer_name(int id) {
    return fmt::format("kBuffer{}", id);
}

void Emitter::touch(int id) {
    access_shared("uses", {id});
}

void Emitter::access_shared(const char* how, std::initializer_list<int> ids) {
    schedule::Instruction& made = append(schedule::Op::access);
    for (int id : ids) made.with_symbol(how, buffer_name(id));
}

void Emitter::access_global(Value ref, bool write) {
    if (!facts_.is_written(ref) || plan_.own_scratch.count(ref) != 0) return;
    append(schedule::Op::access)
        .with_symbol(write ? "stores" : "loads", ref_name(facts_.root(ref)));
}

void Emitter::settle_copies(int pending) {
    append(schedule::Op::settle_copies).with("pending", pending);
}

// ---- Copies.

int Emitter::vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes) {
    const int rank = layout.shape.rank();
    if (rank == 0) return 1;
    std::int64_t vector = std::min<std::int64_t>(vector_length(layout, rank - 1), 16 / bytes);
    if (rank > 1) vector = std::gcd(vector, pitch);
    return static_cast<int>(vector);
}

Held Emitter::through_shared(const std::vector<Held>& parts, const TilePlace& written,
                             const Layout& to, const TilePlace& read, std::int64_t elements,
                             DType dtype) {
    const int id = buffer(elements * size_of(dtype));
    const auto add_place = [](schedule::Instruction& made, const TilePlace& place) {
        if (place.pitch != 0) made.with("pitch", place.pitch);
        if (!place.extents.empty()) made.with("extents", place.extents);
        if (!place.starts.empty()) made.with("starts", place.starts);
        if (!place.steps.empty()) made.with("steps", place.steps);
        if (place.vector > 1) made.with("vector", place.vector);
        if (place.guarded) made.flag("guarded");
    };
    std::vector<schedule::Value> values;
    for (const Held& part : parts) values.push_back(value_of(part, dtype));
    schedule::Instruction& write = append(schedule::Op::write_tile);
    write.operands = std::move(values);
    add_place(write.with_symbol("writes", buffer_name(id)), written);
    schedule::Instruction& made = append(schedule::Op::read_tile);
    add_place(made.with_symbol("reads", buffer_name(id)), read);
    return result_of(made, fresh("m"), to, dtype);
}

std::int64_t SharedTile::rows() const {
    std::int64_t count = 1;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) count *= cover(shape[axis]).size();
    return count;
}

SharedTile Emitter::tile_form(const ir::Shape& shape, DType dtype, bool swizzle) {
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

SharedTile Emitter::shared_tile(const ir::Shape& shape, DType dtype, bool swizzle, int copies) {
    SharedTile tile = tile_form(shape, dtype, swizzle);
    tile.buffer = buffer(tile.rows() * tile.row_bytes * copies);
    tile.offset = buffer_name(tile.buffer);
    return tile;
}

SharedTile Emitter::shared_copy(Value value, DType dtype, bool swizzle) {
    // Narrow floats are packed from the f32 before rounding.
    const Value source = size_of(dtype) == 2 ? before_rounding(value) : value;
    const Held* known = find(source);
    const Layout layout = known != nullptr ? known->layout : home(source);
    const Names names = get(source, layout);
    const SharedTile tile = shared_tile(layout.shape, dtype, swizzle);
    const int last = layout.shape.rank() - 1, bytes = size_of(dtype);
    const int vector = std::min(vector_length(layout, last), 16 / bytes);
    access_shared("writes", {tile.buffer});
    line("// operand into shared memory, rows of {} bytes", tile.row_bytes);
    const std::string own = owner(layout);
    for (int r = 0; r < layout.registers(); r += vector) {
        const Coordinates at = layout.register_coordinates(r);
        std::int64_t constant = 0, stride = 1;
        std::string row;
        for (int axis = last - 1; axis >= 0; --axis) {
            constant += at[axis] * stride;
            const std::string part = thread_coordinate(layout, axis);
            if (part != "0") {
                row += fmt::format("{}{} * {}", row.empty() ? "" : " + ", part, stride);
            }
            stride *= cover(layout.shape[axis]).size();
        }
        row = plus(row.empty() ? "0" : "(" + row + ")", constant);
        const std::string column = coordinate(layout, last, at[last]);
        Names elements(names.begin() + r, names.begin() + r + vector);
        // Phantoms along a contracted axis must not contribute NaNs.
        for (int i = 0; i < vector; ++i) {
            const std::string inside = positions_.inside(layout, r + i);
            if (inside.empty()) continue;
            elements[i] = fmt::format(
                "{} ? {} : {}", inside, elements[i],
                literal(is_float(dtype) ? (dtype == DType::f64 ? dtype : DType::f32) : dtype, 0));
        }
        line(
            "{}store_vector(reinterpret_cast<{}*>(memory + {} + swizzled<{}, {}>({}, ({}) * {})), "
            "{});",
            own.empty() ? "" : fmt::format("if ({}) ", own), storage_type(dtype), tile.offset,
            tile.row_bytes, tile.group, row, column, bytes, fmt::join(elements, ", "));
    }
    return tile;
}

}  // namespace tilewright::cuda
