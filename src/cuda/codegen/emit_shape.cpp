// Reshape, slice and concatenate: elements that change threads go through shared memory.
#include "cuda/codegen/emitter.h"

namespace tilewright::cuda {
namespace {

/// Row-major offset of a register's coordinates in a tile of `extents`, as text; `coordinate` gives
/// the text along an axis.
template <typename Coordinate>
std::string row_major(const ir::Shape& extents, Coordinate&& coordinate) {
    std::string text = "0";
    for (int axis = 0; axis < extents.rank(); ++axis) {
        text = axis == 0 ? coordinate(0)
                         : fmt::format("({}) * {} + {}", text, extents[axis], coordinate(axis));
    }
    return text;
}

}  // namespace

void Emitter::reshape(const Instruction& made) {
    const Value source = made.operands[0];
    const Held* known = find(source);
    const Layout from = known != nullptr ? known->layout : home(source);
    const Layout to = home(made.result());
    const IndexText offset = [this](const Layout& layout, int r) {
        const Coordinates at = layout.register_coordinates(r);
        return row_major(layout.shape,
                         [&](int axis) { return coordinate(layout, axis, at[axis]); });
    };
    hold(
        made.result(), to,
        through_shared({{{from, get(source, from)}, offset, 1, true}}, to,
                       {{to, {}}, offset, 1, true}, type(source).shape.size(), type(source).dtype));
}

void Emitter::slice(const Instruction& made) {
    const Value source = made.operands[0];
    const auto& attributes = made.get<ir::SliceAttributes>();
    const Held* known = find(source);
    const Layout from = known != nullptr ? known->layout : home(source);
    const Layout to = home(made.result());
    const ir::Shape& whole = type(source).shape;
    const IndexText write = [this](const Layout& layout, int r) {
        const Coordinates at = layout.register_coordinates(r);
        return row_major(layout.shape,
                         [&](int axis) { return coordinate(layout, axis, at[axis]); });
    };
    const IndexText read = [&](const Layout& layout, int r) {
        const Coordinates at = layout.register_coordinates(r);
        return row_major(whole, [&](int axis) {
            const std::size_t a = axis;
            return fmt::format("({} * {} + {})", coordinate(layout, axis, at[a]),
                               attributes.strides[a], attributes.starts[a]);
        });
    };
    hold(made.result(), to,
         through_shared({{{from, get(source, from)}, write, 1, true}}, to,
                        {{to, {}}, read, 1, true}, whole.size(), type(source).dtype));
}

void Emitter::concatenate(const Instruction& made) {
    const int along = made.get<ir::AxisAttributes>().axis;
    const Layout to = home(made.result());
    const ir::Shape whole = type(made.result()).shape;
    std::vector<Part> parts;
    std::int64_t start = 0;
    for (Value source : made.operands) {
        const Held* known = find(source);
        const Layout from = known != nullptr ? known->layout : home(source);
        const std::int64_t shift = start;
        parts.push_back({{from, get(source, from)},
                         [this, whole, along, shift](const Layout& layout, int r) {
                             const Coordinates at = layout.register_coordinates(r);
                             return row_major(whole, [&](int axis) {
                                 const std::size_t a = axis;
                                 return coordinate(layout, axis,
                                                   at[a] + (axis == along ? shift : 0));
                             });
                         },
                         1,
                         true});
        start += type(source).shape[along];
    }
    const IndexText read = [&](const Layout& layout, int r) {
        const Coordinates at = layout.register_coordinates(r);
        return row_major(whole, [&](int axis) { return coordinate(layout, axis, at[axis]); });
    };
    hold(made.result(), to,
         through_shared(parts, to, {{to, {}}, read, 1, true}, whole.size(),
                        type(made.result()).dtype));
}

}  // namespace tilewright::cuda
