// Exceptions thrown by every part of Tilewright.
#pragma once

#include <stdexcept>
#include <string>

namespace tilewright {

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

/// A bug in Tilewright itself; the text carries the source location of the failed check.
class InternalError : public Error {
  public:
    using Error::Error;
};

}  // namespace tilewright
