// From the flags of `trace` to a recording: of a dry run or of a real one.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/engine/model_setup.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/recording.h"

namespace fathom::cli {

struct TraceFlags {
  EngineOptions engine;  ///< what MODEL, --as and the flags of its table say
  std::string attention = "auto";
  std::string device;  ///< cpu, or cuda of a real run, or a device to plan for; empty: cpu
  std::string layers;  ///< "3-5"; empty: all
  bool dry = false;
  bool probe = false;
  bool overhead = false;  ///< of a real run: what recording costs
  std::string prompt;
  int64_t prompt_tokens = 0;  ///< 0: 1024, or what the context has room for
  int64_t kv_len = 0;         ///< 0: 4096, or what the context has room for
  int64_t batch = 1;
  int64_t generate = 4;
  int64_t chunk = 512;

  bool on_gpu() const { return !dry && device.starts_with("cuda"); }
};

struct TraceRun {
  Recording recording;
  std::vector<Variation> variations;
  Peaks peaks;           ///< of a real run
  std::string answer;    ///< text of a real run, where there is a tokenizer
  std::string overhead;  ///< a line, where it was asked for
};

/// Errors: InvalidArgument for flags that contradict each other, unknown names with near ones;
/// those of opening and running the model.
Result<TraceRun> make_recording(const TraceFlags& flags, const GlobalFlags& globals);

}  // namespace fathom::cli
