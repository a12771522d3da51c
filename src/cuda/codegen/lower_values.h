// The elements of a value in the layout that a use wants.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// An integer scalar as i64.
schedule::Value index_of(Lowering& cx, ir::Value value);
/// A value in a layout, computed or converted where necessary.
schedule::Value value_in(Lowering& cx, ir::Value value, const Layout& layout);
schedule::Value scalar_of(Lowering& cx, ir::Value value);
/// A value in the layout that it is held in, or in its home layout.
Held held_anywhere(Lowering& cx, ir::Value value);
/// Through shared memory as elements of `dtype`, to which they are rounded.
Held convert(Lowering& cx, const Held& from, const Layout& to, DType dtype);

}  // namespace tilewright::cuda
