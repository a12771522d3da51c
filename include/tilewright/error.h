// Exceptions thrown by every part of Tilewright.
#pragma once

#include <stdexcept>
#include <string>

#include "tilewright/compiler.h"

namespace TW_API tilewright {

/// Base of everything Tilewright throws.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// Bad input. The text has the form `[operation] expected X but got Y` and names the argument.
class UserError : public Error {
  public:
    using Error::Error;
};

/// More memory of the host than there is; the text says how much was wanted, or for what.
class OutOfMemory : public Error {
  public:
    using Error::Error;
};

/// A bug in Tilewright itself; the text carries the source location of the failed check.
class InternalError : public Error {
  public:
    using Error::Error;
};

/// A failure that the CUDA driver reports: out of memory, a bad launch, a lost device. After some,
/// such as an illegal address or a failed launch, the driver refuses all further work of the
/// process; the text then says that only a restart of the process helps.
class CudaError : public Error {
  public:
    CudaError(const std::string& text, int status) : Error(text), code(status) {}
    int code;  ///< the driver's CUresult
};

}  // namespace tilewright
