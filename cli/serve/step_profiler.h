// /start_profile: records the next steps of a serving engine and writes a trace of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fathom/report/record/gathered_phases.h"
#include "fathom/serve/server/server.h"
#include "fathom/trace/recorder.h"

namespace fathom::cli {

/// Traces go to folders of `directory`, named by the request or the first of profile-1, profile-2,
/// ... that is not there yet. Steps are recorded with times; on a GPU they are launched op by op
/// meanwhile. All on the engine thread.
class TraceProfiler final : public serve::StepProfiler {
 public:
  explicit TraceProfiler(std::string directory) : directory_(std::move(directory)) {}

  /// {"steps": 1 to 10,000 (default 10), "output": a name of letters, digits, ".", "_" and "-"}.
  Result<std::string> start(Engine& engine, const Json& request) override;
  Result<std::string> stop(Engine& engine) override;

  /// After each step of the engine: keeps it, and ends the recording with the last.
  void after_step(Engine& engine);

 private:
  Status keep(Engine& engine);
  Result<std::string> write(Engine& engine);

  std::string directory_;
  std::string output_;
  Status failure_;  ///< of a recording that a step ended; stop() tells it
  int64_t steps_left_ = 0;
  int64_t begin_ns_ = 0;
  int64_t last_end_ns_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<GatheredPhases> phases_;
};

}  // namespace fathom::cli
