// Reshape, slice and concatenate: elements that change threads go through shared memory.
#include "cuda/codegen/emitter.h"

namespace tilewright::cuda {
namespace {

std::vector<std::int64_t> extents_of(const ir::Shape& shape) {
    return {shape.dims().begin(), shape.dims().end()};
}

/// Row-major in a tile of this shape.
TilePlace row_major(const ir::Shape& shape) {
    return {0, extents_of(shape), {}, {}, 1, true};
}

}  // namespace

void Emitter::reshape(const Instruction& made) {
    const Value source = made.operands[0];
    const ir::Type& from = type(source);
    hold(made.result(),
         through_shared({get_any(source)}, row_major(from.shape), home(made.result()),
                        row_major(type(made.result()).shape), from.shape.size(), from.dtype));
}

void Emitter::slice(const Instruction& made) {
    const Value source = made.operands[0];
    const auto& attributes = made.get<ir::SliceAttributes>();
    const ir::Type& from = type(source);
    TilePlace read = row_major(from.shape);
    read.starts.assign(attributes.starts.begin(), attributes.starts.end());
    read.steps.assign(attributes.strides.begin(), attributes.strides.end());
    hold(made.result(), through_shared({get_any(source)}, row_major(from.shape),
                                       home(made.result()), read, from.shape.size(), from.dtype));
}

void Emitter::concatenate(const Instruction& made) {
    const auto along = static_cast<std::size_t>(made.get<ir::AxisAttributes>().axis);
    const ir::Type& whole = type(made.result());
    const auto rank = static_cast<std::size_t>(whole.shape.rank());
    std::vector<Held> parts;
    TilePlace written = row_major(whole.shape);
    std::int64_t start = 0;
    for (const Value source : made.operands) {
        written.starts.resize(written.starts.size() + rank);
        written.starts[parts.size() * rank + along] = start;
        parts.push_back(get_any(source));
        start += type(source).shape[static_cast<int>(along)];
    }
    hold(made.result(), through_shared(parts, written, home(made.result()), row_major(whole.shape),
                                       whole.shape.size(), whole.dtype));
}

}  // namespace tilewright::cuda
