// Real runs on a GPU, for live_trace.h, which records a CPU as it runs. A GPU has no clock between
// the kernels of a step, so each step is run several times as a captured graph: with a mark in
// the stream after each call, which gives the time of each, and without, which gives the time of
// the step. Then it is run once more to go on with what it computes.
//
//   step   |  op  | op |   op   | op |        with marks, one behind the other
//          |<-------- graph_ns ------->|      the same work as one graph, some of it beside other
//
// The ops of a step lie one behind the other from its start on, and the steps one behind the other
// from 0 on: what happened on the host in between is no part of them.
#pragma once

#include <cstdint>
#include <span>

#include "fathom/report/record/live_trace.h"
#include "fathom/trace/record.h"

namespace fathom {

/// Gives records times of so many microseconds each, one behind the other from `start_ns` on.
/// Returns the end of the last. Ends are rounded, not lengths, so that no error adds up.
int64_t lay_in_turn(std::span<OpRecord> records, std::span<const double> us, int64_t start_ns);

/// run_live where the model lies on a GPU.
Result<LiveRun> run_live_on_gpu(const Model& model,
                                const Compute& compute,
                                const LiveOptions& options);

}  // namespace fathom
