// trace.json: a timed recording as trace events, for Perfetto and chrome://tracing.
#pragma once

#include <string>

#include "fathom/report/recording.h"

namespace fathom {

enum class TraceDetail : uint8_t { kOps, kKernels };

/// Slices nest as the calls did: step, model, layer, parts of it, op and (with kKernels) kernel.
/// Arguments of an op: what it reads and writes, FLOPs, bytes; of a kernel: variant, unit,
/// backend. Times are microseconds from the first step. Durations are never negative, and a slice
/// never ends after the one around it.
std::string write_chrome_trace(const Recording& recording, TraceDetail detail);

}  // namespace fathom
