// Steps of a real run as they end, put together by phase.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "fathom/report/recording.h"
#include "fathom/trace/recorder.h"

namespace fathom {

class GatheredPhases {
 public:
  explicit GatheredPhases(SymbolTable symbols) : symbols_(std::move(symbols)) {}

  /// A step of the phase `name`: the records of the recorder, perhaps with other times. Errors:
  /// Internal for calls that did not fit the recorder; those of make_phase.
  Status add(const char* name,
             const char* title,
             const Recorder& recorder,
             std::span<const OpRecord> records,
             const TraceStep& step);

  /// The phases in the order of their first steps; each title says how many steps there are.
  std::vector<TracePhase> take();

 private:
  SymbolTable symbols_;
  std::vector<TracePhase> phases_;
};

}  // namespace fathom
