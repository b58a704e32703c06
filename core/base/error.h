#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace nnscaler {

/// Base of every error that the core raises. `what()` is one line: *where: what, with the facts;
/// what to do*.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The input is wrong and the user can mend it. A `ValueError` in Python.
class InputError : public Error {
 public:
  using Error::Error;
};

/// The input is fine and no solution exists, such as a plan that fits no device.
class InfeasibleError : public Error {
 public:
  using Error::Error;
};

/// A bug of ours. No input may reach it.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Asks for something that is specified but not built yet; `NotImplementedError` in Python.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// Raises InternalError when `condition` is false; for what no input may break.
inline void check(bool condition, std::string_view message) {
  if (!condition) throw InternalError("internal error: " + std::string(message));
}

}  // namespace nnscaler
