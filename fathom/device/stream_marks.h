// Times within a stream: marks between pieces of work, read when the work is done.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/stream.h"

namespace fathom {

/// Numbered marks in a stream that is being captured: the graph passes them at each replay. Not
/// thread-safe.
class StreamMarks {
 public:
  /// Errors: Unavailable without a GPU.
  static Result<StreamMarks> create(int64_t capacity);

  /// Sets the next mark and returns its number. What goes wrong shows in status().
  int64_t mark(Stream& stream);

  /// The number of the newest mark, which is set now if there is none.
  int64_t newest(Stream& stream);

  /// Errors: OutOfMemory for more marks than the capacity; those of recording.
  const Status& status() const& { return status_; }

  Status status() && { return std::move(status_); }

  int64_t size() const { return size_; }

  /// Microseconds from mark `from` to mark `to`, once the graph has run.
  Result<double> us_between(int64_t from, int64_t to) const;

 private:
  StreamMarks() = default;

  std::vector<Event> events_;
  int64_t size_ = 0;
  Status status_;
};

}  // namespace fathom
