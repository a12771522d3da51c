// What traced functions take from Python: traced values and numbers.
#pragma once

#include <optional>
#include <source_location>
#include <string>

#include "bindings.h"
#include "tilewright/lang/tile.h"
#include "tilewright/tensor.h"

namespace tilewright::python {

/// Python's lines come from a LineScope or from the traceback.
inline constexpr std::source_location kNowhere{};

/// What an operator may meet: a traced value, a number of Python or NumPy, a captured 0-d array.
std::optional<Operand> operand(nb::handle value);
/// The same; TypeError for anything else.
Operand expect_operand(nb::handle value);
/// The name of the object's type, for messages.
std::string python_type(nb::handle value);
/// The dtype of this name; ValueError for an unknown one.
DType expect_dtype(const std::string& name);

/// "cpu", "cuda" or "cuda:N".
Device expect_device(const std::string& name);

/// True while this thread runs the Python function of a kernel.
bool in_kernel();

/// Surrounds Python code of a kernel: what it traces is at its lines.
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
