// Shared memory: buffers, copies between layouts, and the barriers that order threads.
#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/codegen/emitter.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::cuda {
namespace {

constexpr std::int64_t kAlignment = 128;

std::int64_t aligned(std::int64_t bytes) {
    return ceil_div(bytes, kAlignment) * kAlignment;
}

}  // namespace

// ---- Space.

int SharedArena::add(std::int64_t bytes, int step, std::string what) {
    buffers_.push_back({aligned(bytes), -1, step, step, std::move(what)});
    return static_cast<int>(buffers_.size()) - 1;
}

void SharedArena::touch(int buffer, int step) {
    Buffer& b = buffers_[buffer];
    b.last = std::max(b.last, step);
}

std::int64_t SharedArena::place() {
    std::vector<std::size_t> order(buffers_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return buffers_[a].bytes > buffers_[b].bytes;
    });
    std::int64_t total = 0;
    std::vector<const Buffer*> placed;
    for (std::size_t at : order) {
        Buffer& buffer = buffers_[at];
        std::vector<const Buffer*> alive;
        for (const Buffer* other : placed) {
            if (other->first <= buffer.last && buffer.first <= other->last) alive.push_back(other);
        }
        std::sort(alive.begin(), alive.end(),
                  [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; });
        std::int64_t offset = 0;
        for (const Buffer* other : alive) {
            if (offset + buffer.bytes <= other->offset) break;
            offset = std::max(offset, other->offset + other->bytes);
        }
        buffer.offset = offset;
        total = std::max(total, offset + buffer.bytes);
        placed.push_back(&buffer);
    }
    return total;
}

std::string SharedArena::largest() const {
    const auto found =
        std::max_element(buffers_.begin(), buffers_.end(),
                         [](const Buffer& a, const Buffer& b) { return a.bytes < b.bytes; });
    return found == buffers_.end() ? "" : fmt::format("{} for {}", found->bytes, found->what);
}

int Emitter::buffer(std::int64_t bytes) {
    return arena_.add(bytes, step_, buffers_for_);
}

std::string Emitter::buffer_offset(int id) {
    return fmt::format("kBuffer{}", id);
}

void Emitter::touch(int id) {
    if (id < 0) return;
    arena_.touch(id, step_);
    // A buffer from before a loop that is used inside it lives as long as the loop.
    for (auto& [first, used] : loops_) {
        if (arena_.born(id) < first) used.insert(id);
    }
}

// ---- Order.

void Emitter::barrier() {
    line("__syncthreads();");
    any_written_ = any_read_ = false;
    shared_written_.clear();
    shared_read_.clear();
    global_written_.clear();
    global_read_.clear();
}

void Emitter::settle_copies() {
    if (copies_.empty()) return;
    line("ptx::cp_async_wait<0>();");
    shared_written_.merge(copies_);
    copies_.clear();
}

bool Emitter::may_overlap(int a, int b) const {
    if (placed_ == nullptr || a == b) return true;
    return placed_->offset(a) < placed_->offset(b) + placed_->bytes(b) &&
           placed_->offset(b) < placed_->offset(a) + placed_->bytes(a);
}

bool Emitter::may_overlap_any(int a, const std::set<int>& others) const {
    return std::any_of(others.begin(), others.end(), [&](int b) { return may_overlap(a, b); });
}

void Emitter::before_shared_write(int id) {
    if (any_read_ || any_written_ || may_overlap_any(id, shared_read_) ||
        may_overlap_any(id, shared_written_)) {
        barrier();
    }
    shared_written_.insert(id);
}

void Emitter::before_shared_read(std::initializer_list<int> ids) {
    settle_copies();
    if (any_written_ || std::any_of(ids.begin(), ids.end(),
                                    [&](int id) { return may_overlap_any(id, shared_written_); })) {
        barrier();
    }
    shared_read_.insert(ids);
}

void Emitter::before_global(Value ref, bool write) {
    const Value root = analysis_.root(ref);
    if (!analysis_.is_written(ref) || is_private(ref)) return;
    if (global_written_.count(root) != 0 || (write && global_read_.count(root) != 0)) {
        settle_copies();
        barrier();
    }
    (write ? global_written_ : global_read_).insert(root);
}

void Emitter::forget_order(const Instruction& instruction) {
    any_read_ = any_written_ = true;
    for (const ir::Block& inner : instruction.blocks) {
        ir::walk(inner, [&](const Instruction& each) {
            if (!ir::is_access(each.op) || !analysis_.is_written(each.operands[0])) return;
            const Value root = analysis_.root(each.operands[0]);
            (each.op == ir::Op::load ? global_read_ : global_written_).insert(root);
        });
    }
}

// ---- Copies.

int Emitter::vector_in_rows(const Layout& layout, std::int64_t pitch, int bytes) {
    const int rank = layout.shape.rank();
    if (rank == 0) return 1;
    std::int64_t vector = std::min<std::int64_t>(vector_length(layout, rank - 1), 16 / bytes);
    if (rank > 1) vector = std::gcd(vector, pitch);
    return static_cast<int>(vector);
}

Names Emitter::through_shared(const std::vector<Part>& parts, const Layout& to, const Part& read,
                              std::int64_t elements, DType dtype) {
    const int id = buffer(elements * size_of(dtype));
    const std::string storage = storage_type(dtype);
    const std::string base = fresh("m");
    before_shared_write(id);
    line("auto* const {} = reinterpret_cast<{}*>(memory + {});", base, storage, buffer_offset(id));
    for (const Part& part : parts) {
        const Layout& layout = part.held.layout;
        const std::string own = owner(layout);
        const int registers = layout.registers();
        for (int r = 0; r < registers; r += part.vector) {
            std::string condition = own;
            if (part.guard) {
                const std::string inside = real(layout, r);
                if (!inside.empty()) condition += (condition.empty() ? "" : " && ") + inside;
            }
            const auto first = part.held.names.begin() + r;
            line("{}store_vector<{}>({} + ({}), {});",
                 condition.empty() ? "" : fmt::format("if ({}) ", condition), storage, base,
                 part.index(layout, r), fmt::join(Names(first, first + part.vector), ", "));
        }
    }
    touch(id);
    before_shared_read({id});
    const Names names = numbered(base + "e", to.registers());
    const std::string type_name = register_type(dtype);
    for (int r = 0; r < to.registers(); r += read.vector) {
        const auto first = names.begin() + r;
        const Names group(first, first + read.vector);
        const std::string inside = read.guard ? real(to, r) : "";
        line("{} {}{};", type_name, fmt::join(group, ", "), inside.empty() ? "" : " = {}");
        line("{}load_vector({} + ({}), {});", inside.empty() ? "" : fmt::format("if ({}) ", inside),
             base, read.index(to, r), fmt::join(group, ", "));
    }
    touch(id);
    return names;
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
    tile.offset = buffer_offset(tile.buffer);
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
    before_shared_write(tile.buffer);
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
            const std::string inside = real(layout, r + i);
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
    touch(tile.buffer);
    return tile;
}

}  // namespace tilewright::cuda
