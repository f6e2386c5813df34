#include "fathom/runtime/request.h"

namespace fathom {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "aborted";
    case FinishReason::kQueueTimeout:
      return "queue_timeout";
    case FinishReason::kRequestTimeout:
      return "request_timeout";
    case FinishReason::kNumericalError:
      return "numerical_error";
    case FinishReason::kConstraintFault:
      return "constraint_fault";
    case FinishReason::kEngineFault:
      return "engine_fault";
  }
  return "none";
}

Status finish_status(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kLength:
      return {};
    case FinishReason::kAborted:
      return cancelled("the request was cancelled");
    case FinishReason::kQueueTimeout:
      return overloaded("queue_timeout: the request waited too long for its turn");
    case FinishReason::kRequestTimeout:
      return cancelled("request_timeout: the request took too long");
    case FinishReason::kNumericalError:
      return numerical_error("numerical_error: the logits of the request are not finite");
    case FinishReason::kConstraintFault:
      return internal_error("constraint_fault: the constraint of the request contradicts itself");
    case FinishReason::kEngineFault:
      return internal_error("engine_fault: the engine cannot go on");
  }
  return {};
}

}  // namespace fathom
