#include "fathom/runtime/step_fault.h"

namespace fathom {

Status step_fault(Status status, const Pins* pins) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kNumerical:
    case StatusCode::kDeviceLost:
    case StatusCode::kIo:
    case StatusCode::kInternal:
      return status;
    case StatusCode::kUnsupported:
      if (pins != nullptr && !pins->empty()) return status;
      break;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kCorrupt:
    case StatusCode::kUnavailable:
    case StatusCode::kOutOfMemory:
    case StatusCode::kOverloaded:
      break;
  }
  return internal_error(status.message());
}

}  // namespace fathom
