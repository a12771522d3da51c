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

/// Bad input. The text reads `[operation] expected X but got Y` and names the argument.
class UserError : public Error {
  public:
    using Error::Error;
};

/// The host is out of memory; the text says how much was needed, or for what.
class OutOfMemory : public Error {
  public:
    using Error::Error;
};

/// A bug in Tilewright itself; the text carries the source location of the failed check.
class InternalError : public Error {
  public:
    using Error::Error;
};

/// A failure reported by the CUDA driver: out of memory, a bad launch, a lost device. After some of
/// them, such as an illegal address, the driver refuses all further work of the process; the text
/// then says that only a restart of the process helps.
class CudaError : public Error {
  public:
    CudaError(const std::string& text, int status) : Error(text), code(status) {}
    int code;  ///< the driver's CUresult
};

}  // namespace tilewright
