// Conversion of what traced functions take from Python: traced values and numbers.
#pragma once

#include <optional>
#include <source_location>
#include <string>

#include "bindings.h"
#include "tilewright/lang/tile.h"
#include "tilewright/tensor.h"

namespace tilewright::python {

/// No C++ location: Python's lines come from a LineScope or from the traceback.
inline constexpr std::source_location kNowhere{};

/// An operand of an operator: a traced value, a Python or NumPy number, or a captured 0-d array.
std::optional<Operand> operand(nb::handle value);
/// The same; TypeError for anything else.
Operand expect_operand(nb::handle value);
/// The name of the object's type, for error messages.
std::string python_type(nb::handle value);
/// The dtype of this name; ValueError for an unknown one.
DType expect_dtype(const std::string& name);

/// "cpu", "cuda" or "cuda:N".
Device expect_device(const std::string& name);

/// True while this thread runs the Python function of a kernel.
bool in_kernel();

/// Surrounds a kernel's Python code, so that what it traces gets its lines.
class KernelScope {
  public:
    KernelScope();
    ~KernelScope();
    KernelScope(const KernelScope&) = delete;
    KernelScope& operator=(const KernelScope&) = delete;

  private:
    detail::LineScope lines_;
};

}  // namespace tilewright::python
