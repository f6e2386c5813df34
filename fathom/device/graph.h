// Captured work: a step of many kernels, given to the GPU as one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fathom/device/stream.h"

namespace fathom {

namespace internal {

struct DestroyGraph {
  void operator()(void* graph) const;
};

}  // namespace internal

/// Work that was recorded once and can be run again and again, on the addresses it was recorded
/// with. Everything that changes between replays is read from memory by the kernels.
class Graph {
 public:
  /// Runs `record`, which gives work to the stream and does not wait for it; nothing is executed.
  /// Errors: those of `record`; Internal if the work cannot be captured.
  static Result<Graph> capture(Stream& stream, const std::function<Status()>& record);

  /// Gives all of the work to the stream: the one it was captured in, which outlives the graph
  /// (Stream::counters).
  Status replay(Stream& stream);

  /// Kernels, copies and fills in it.
  int64_t num_nodes() const { return num_nodes_; }

 private:
  Graph(void* graph, int64_t num_nodes) : graph_(graph), num_nodes_(num_nodes) {}

  std::unique_ptr<void, internal::DestroyGraph> graph_;
  int64_t num_nodes_ = 0;
};

}  // namespace fathom
