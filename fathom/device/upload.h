// From the host to a GPU through pinned memory: while one piece is on its way, the next is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/check.h"
#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/device/stream.h"

namespace fathom {

/// Sends bytes to GPU memory, piece by piece, on a stream of its own. Not thread-safe.
class Uploader {
 public:
  /// Two pieces of pinned memory. Errors: Unavailable without a GPU; OutOfMemory.
  static Result<Uploader> create(int64_t piece_bytes);

  int64_t piece_bytes() const { return slots_.front().memory.size(); }

  /// Pinned memory for the next piece, of at least `bytes`; waits until what it held before has
  /// left. Errors: OutOfMemory where it must grow.
  Result<std::span<std::byte>> next_piece(int64_t bytes = 0);

  /// Sends `bytes` of the piece that next_piece() gave, from byte `from` of it on.
  Status send_piece(std::byte* to, int64_t bytes, int64_t from = 0);

  /// Copies any host memory; it may be reused at once.
  Status copy(std::byte* to, std::span<const std::byte> from);

  /// Repeats the first `period` bytes at `to` until `bytes` are filled, within the GPU.
  Status repeat(std::byte* to, int64_t period, int64_t bytes);

  /// Waits until everything has arrived. Errors: DeviceLost.
  Status finish() { return stream_.synchronize(); }

 private:
  struct Slot {
    Buffer memory;
    Event sent;
    bool in_flight = false;
  };

  explicit Uploader(Stream stream) : stream_(std::move(stream)) {}

  Stream stream_;
  std::vector<Slot> slots_;
  size_t current_ = 0;
};

/// Copies host memory to GPU memory and waits. For small tables, at start.
Status copy_to_gpu(std::byte* to, std::span<const std::byte> from);

}  // namespace fathom
