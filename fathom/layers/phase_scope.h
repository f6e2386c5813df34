// Names the phase of the calls of a block, for records.
#pragma once

#include "fathom/trace/recorder.h"

namespace fathom {

/// Sets the phase of a recorder for its lifetime. Does nothing without a recorder.
class PhaseScope {
 public:
  PhaseScope(Recorder* recorder, Phase phase) : recorder_(recorder) {
    if (recorder_ == nullptr) return;
    outer_ = recorder_->phase();
    recorder_->set_phase(phase);
  }

  ~PhaseScope() {
    if (recorder_ != nullptr) recorder_->set_phase(outer_);
  }

  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Recorder* recorder_;
  Phase outer_ = Phase::kNone;
};

}  // namespace fathom
