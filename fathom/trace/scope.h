// Scope: names where in the model the calls of a block belong ("layer 12", "self_attn").
#pragma once

#include "fathom/trace/recorder.h"

namespace fathom {

/// Pushes a name, and the place that opens it, for its lifetime. Does nothing without a recorder.
class Scope {
 public:
  Scope(Recorder* recorder, const char* name, int index = -1, CallSite site = CallSite::here())
      : recorder_(recorder) {
    if (recorder_ != nullptr) recorder_->push_scope({name, index, site});
  }

  ~Scope() {
    if (recorder_ != nullptr) recorder_->pop_scope();
  }

  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Recorder* recorder_;
};

}  // namespace fathom
