// The op table of one step of a loaded engine, for the page's live figures.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fathom/api/engine.h"
#include "fathom/bench/machine/peaks.h"

namespace fathom::cli {

/// Measures steps on the thread that owns the engine, in pages and arenas of their own.
class StepTable {
 public:
  /// The ops of one step as JSON:
  ///
  ///   {"phase","tokens","step_us","device","ops":[{"op","layer_kind","kernel","variant","shape",
  ///    "dtype","calls","us","share","bytes","flops","bound","roof_us","pct_of_roof"}]}
  ///
  /// Calls of one op with one kernel and shape are one row, by falling time. `phase`: decode, a
  /// token of one request behind 256; or prefill, a prompt of 256. The machine's ceilings are
  /// measured the first time. Errors: those of run_live; OutOfMemory where serving took all memory.
  Result<std::string> measure(Engine& engine, std::string_view phase);

 private:
  std::optional<Peaks> peaks_;
};

}  // namespace fathom::cli
