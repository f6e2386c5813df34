// Recordings of real runs: prompts and greedy tokens through the model. A CPU is recorded while it
// runs, once: each pass and each op by the clock, so that gaps between them show, and with the
// values that ops wrote. A GPU is not: its ops have no times while steps run as they should, so
// each step is timed apart, several times, before it runs (live_gpu_trace.h). The two share
// the passes (live_passes.h) and nothing of how one is recorded.
#pragma once

#include <cstdint>
#include <vector>

#include "fathom/models/model.h"
#include "fathom/report/recording.h"
#include "fathom/runtime/draft/speculative.h"
#include "fathom/runtime/forward_session.h"

namespace fathom {

struct LiveOptions {
  std::vector<int32_t> prompt;  ///< not empty; every sequence has it
  int64_t generate = 1;         ///< decode steps, each with the most likely token
  int64_t batch = 1;            ///< sequences
  int64_t chunk = 512;          ///< most prompt tokens of a pass; a longer prompt has a prefix then
  RecordLevel level = RecordLevel::kTimed;
  /// Beside each recorded decode step one without a recorder, before or behind it in turn, so that
  /// what recording costs shows within one run.
  bool measure_overhead = false;
  Pins pins = {};
  int repetitions = 5;  ///< on a GPU: runs of each step, of which times are the medians
  /// Drafts: the steps are those of the engine then (live_drafts.h).
  Speculative speculative = Speculative::kOff;
  DraftShape drafts = {};
};

struct LiveRun {
  std::vector<TracePhase> phases;  ///< those that ran
  int64_t begin_ns = 0;            ///< of the first pass; on a GPU times count from 0
  std::vector<int32_t> tokens;     ///< generated for the first sequence
  /// With measure_overhead: nanoseconds of each decode step without a recorder, and of the recorded
  /// one beside it.
  std::vector<double> unrecorded_ns;
  std::vector<double> recorded_ns;
};

/// Runs the model once unrecorded, so that memory is touched and threads are awake, then recorded.
/// A draft pass follows the prompt where the model has a draft layer and the prompt fits one pass.
/// Errors: those of ForwardSession and make_phase; Numerical for logits that are not finite (on a
/// GPU: those of the prompt); InvalidArgument for an empty prompt, Unsupported for a level or a
/// measurement that a GPU does not have.
/// `compute` is where the model lies; on a GPU level kTimed alone, without measure_overhead.
Result<LiveRun> run_live(const Model& model, const Compute& compute, const LiveOptions& options);

}  // namespace fathom
