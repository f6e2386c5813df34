#include "fathom/base/status.h"

#include <cstring>

namespace fathom {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kCorrupt:
      return "Corrupt";
    case StatusCode::kUnavailable:
      return "Unavailable";
    case StatusCode::kOutOfMemory:
      return "OutOfMemory";
    case StatusCode::kOverloaded:
      return "Overloaded";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kNumerical:
      return "Numerical";
    case StatusCode::kDeviceLost:
      return "DeviceLost";
    case StatusCode::kIo:
      return "Io";
    case StatusCode::kInternal:
      return "Internal";
  }
  return "Unknown";
}

Status Status::error(StatusCode code, std::string message, const char* file, int line) {
  Status status;
  status.state_ = std::make_unique<State>(State{code, std::move(message), file, line});
  return status;
}

std::string Status::message() const {
  return state_ ? state_->message : std::string{};
}

std::string Status::origin() const {
  if (!state_) return {};
  // Build systems pass absolute paths; the part from the last "fathom/" or "cli/" on is ours.
  const char* file = state_->file;
  for (const char* root : {"/fathom/", "/cli/"}) {
    for (const char* at = std::strstr(file, root); at != nullptr; at = std::strstr(at + 1, root)) {
      file = at + 1;
    }
  }
  return str_cat(std::string_view(file), ":", state_->line);
}

Status& Status::add_context(std::string context) & {
  if (state_) {
    context.append(": ");
    state_->message.insert(0, context);
  }
  return *this;
}

Status&& Status::add_context(std::string context) && {
  add_context(std::move(context));
  return std::move(*this);
}

}  // namespace fathom
