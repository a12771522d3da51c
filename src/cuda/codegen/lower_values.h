// The elements of a value in the layout that a use wants.
#pragma once

#include "cuda/codegen/lowering.h"

namespace tilewright::cuda {

/// The text of a scalar.
std::string scalar_text(Lowering& cx, ir::Value value);
/// An integer scalar as i64 text.
std::string index_text(Lowering& cx, ir::Value value);
/// The elements of a value in a layout, written or converted where necessary.
Names elements_of(Lowering& cx, ir::Value value, const Layout& layout);
/// A value in the layout that it is held in, or in its home layout.
Held held_anywhere(Lowering& cx, ir::Value value);
Held convert(Lowering& cx, const Held& from, const Layout& to, DType dtype);

}  // namespace tilewright::cuda
