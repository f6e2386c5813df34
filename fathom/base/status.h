// Status and Result<T>: how fathom reports what went wrong. Fathom code does not throw.
//
// Success is a null pointer, so a Status costs one register. An error carries a code, a message in
// lower case that names the thing, the value found and the value expected, the place it was made,
// and a chain of contexts added on the way up ("while loading shard 3").
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"

namespace fathom {

enum class StatusCode {
  kOk,
  kInvalidArgument,  ///< the caller's input is wrong
  kNotFound,         ///< no such file, tensor, model
  kUnsupported,      ///< understood, not available; names op, kernel, format, device
  kCorrupt,          ///< a file contradicts itself; names file, tensor, offset, expected, found
  kUnavailable,      ///< hardware, a driver or a library that is not there
  kOutOfMemory,      ///< host, device or pages; says how much
  kOverloaded,       ///< queue or limits; try later
  kCancelled,        ///< the caller asked, or a deadline passed
  kNumerical,        ///< a non-finite value where none may be
  kDeviceLost,       ///< sticky device error; the engine refuses further work
  kIo,               ///< the operating system refused a read or a write
  kInternal,         ///< our bug
};

/// The name of a code as the documentation spells it, such as "InvalidArgument".
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;

  /// An error. The origin is taken from the call site.
  static Status error(StatusCode code,
                      std::string message,
                      const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());

  bool ok() const { return state_ == nullptr; }

  StatusCode code() const { return state_ ? state_->code : StatusCode::kOk; }

  /// The message with its contexts, outermost first: "while loading shard 3: tensor x: ...".
  std::string message() const;

  /// Where the error was made, as "fathom/weights/checkpoint/safetensors.cc:88".
  std::string origin() const;

  /// Adds what was being done when the error came by; the newest context is printed first.
  /// Does nothing to a success.
  Status& add_context(std::string context) &;
  Status&& add_context(std::string context) &&;

 private:
  struct State {
    StatusCode code;
    std::string message;  // contexts are put in front of it
    const char* file;
    int line;
  };

  std::unique_ptr<State> state_;
};

#define FATHOM_STATUS_FACTORY(name, code)                                      \
  inline Status name(std::string message, const char* file = __builtin_FILE(), \
                     int line = __builtin_LINE()) {                            \
    return Status::error(StatusCode::code, std::move(message), file, line);    \
  }
FATHOM_STATUS_FACTORY(invalid_argument, kInvalidArgument)
FATHOM_STATUS_FACTORY(not_found, kNotFound)
FATHOM_STATUS_FACTORY(unsupported, kUnsupported)
FATHOM_STATUS_FACTORY(unavailable, kUnavailable)
FATHOM_STATUS_FACTORY(corrupt, kCorrupt)
FATHOM_STATUS_FACTORY(out_of_memory, kOutOfMemory)
FATHOM_STATUS_FACTORY(overloaded, kOverloaded)
FATHOM_STATUS_FACTORY(cancelled, kCancelled)
FATHOM_STATUS_FACTORY(numerical_error, kNumerical)
FATHOM_STATUS_FACTORY(device_lost, kDeviceLost)
FATHOM_STATUS_FACTORY(io_error, kIo)
FATHOM_STATUS_FACTORY(internal_error, kInternal)
#undef FATHOM_STATUS_FACTORY

/// A value or the reason there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose

  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    FATHOM_CHECK(!status_.ok(), "a Result needs a value or an error");
  }

  bool ok() const { return value_.has_value(); }

  const Status& status() const& { return status_; }

  Status&& status() && { return std::move(status_); }

  T& value() & {
    FATHOM_CHECK(ok(), status_.ok() ? std::string{} : status_.message());
    return *value_;
  }

  const T& value() const& {
    FATHOM_CHECK(ok(), status_.ok() ? std::string{} : status_.message());
    return *value_;
  }

  T&& value() && {
    FATHOM_CHECK(ok(), status_.ok() ? std::string{} : status_.message());
    return std::move(*value_);
  }

  T& operator*() & { return value(); }

  const T& operator*() const& { return value(); }

  T&& operator*() && { return std::move(*this).value(); }

  T* operator->() { return &value(); }

  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fathom

#define FATHOM_CONCAT_INNER(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_INNER(a, b)

/// Returns from the enclosing function if the Status expression is an error. Variadic, because
/// designated initialisers hold commas.
#define FATHOM_TRY(...)                                                                           \
  do {                                                                                            \
    if (::fathom::Status fathom_try_status = (__VA_ARGS__); !fathom_try_status.ok()) [[unlikely]] \
      return fathom_try_status;                                                                   \
  } while (false)

/// FATHOM_ASSIGN(auto x, make_x(...)): declares or assigns x from a Result, or returns its error.
#define FATHOM_ASSIGN(target, ...) \
  FATHOM_ASSIGN_INNER(FATHOM_CONCAT(fathom_result_, __LINE__), target, __VA_ARGS__)
#define FATHOM_ASSIGN_INNER(result, target, ...) \
  auto result = (__VA_ARGS__);                   \
  if (!result.ok()) [[unlikely]]                 \
    return std::move(result).status();           \
  target = std::move(result).value()
