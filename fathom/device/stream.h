// Streams and events: work on a GPU that runs in order beside the host, and marks in it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"

namespace fathom {

namespace internal {

struct DestroyStream {
  void operator()(void* stream) const;
};

struct DestroyEvent {
  void operator()(void* event) const;
};

}  // namespace internal

class Stream;

/// A mark in a stream.
class Event {
 public:
  /// Errors: Unavailable without a GPU.
  static Result<Event> create();

  /// Marks all work given to the stream so far.
  Status record(Stream& stream);

  /// The same in a stream that is being captured: the mark becomes part of the graph.
  Status record_in_graph(Stream& stream);

  /// Waits until the work before the mark is done. Errors: DeviceLost.
  Status synchronize();

  /// Microseconds from `earlier` to this mark. Both have been reached.
  Result<double> us_since(const Event& earlier) const;

 private:
  friend class Stream;

  explicit Event(void* event) : event_(event) {}

  std::unique_ptr<void, internal::DestroyEvent> event_;
};

/// A queue of work for the device in use. Not thread-safe.
class Stream {
 public:
  /// A stream that does not wait for any other. Errors: Unavailable without a GPU.
  static Result<Stream> create();

  /// The cudaStream_t, for files that may know CUDA.
  void* handle() const { return stream_.get(); }

  /// Waits until all work given so far is done. Errors: DeviceLost, if a kernel failed.
  Status synchronize();

  /// Work given from now on waits for the mark.
  Status wait(const Event& event);

  /// Copies bytes within or between host and device, in order with the other work. The host may
  /// reuse pageable memory at once, pinned memory after the next synchronisation.
  Status copy(void* to, const void* from, int64_t bytes);

  /// Sets bytes of device memory.
  Status fill(void* to, int byte, int64_t bytes);

  static constexpr int kCounters = 4096;

  /// Counters in memory of the device, by which blocks of one kernel wait for each other: zero once
  /// the kernel before is done, since whoever uses them leaves them so. A kernel that starts before
  /// touches them after that alone.
  uint32_t* counters() const { return reinterpret_cast<uint32_t*>(counters_.data()); }

 private:
  Stream(void* stream, Buffer counters) : stream_(stream), counters_(std::move(counters)) {}

  std::unique_ptr<void, internal::DestroyStream> stream_;
  Buffer counters_;
};

/// A stream for work beside that of the first, and the marks where they part and meet.
struct SideStream {
  Stream stream;
  Event fork;
  Event join;
};

/// Those of a device.
struct SideStreams {
  std::array<SideStream, 2> all;

  /// Errors: Unavailable without a GPU.
  static Result<SideStreams> create();
};

}  // namespace fathom
