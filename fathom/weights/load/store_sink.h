// Where filled memory goes: the last stage of loading. A sink gives memory for ranges of the store,
// threads fill it, and close() brings it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/upload.h"
#include "fathom/weights/plan/placement.h"

namespace fathom {

/// Bytes [offset, offset + bytes) of the store.
struct StoreRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

class StoreSink {
 public:
  virtual ~StoreSink() = default;

  /// Bytes that open() is best asked for at once. More is allowed and takes more memory.
  virtual int64_t piece_bytes() const = 0;

  /// Memory to be filled with what those ranges shall hold, an address for each. Any thread may
  /// write there until close(). What is not written is undefined.
  virtual Result<std::vector<std::byte*>> open(std::span<const StoreRange> ranges) = 0;

  /// The memory of the last open() is filled.
  virtual Status close() = 0;

  /// The store as the host reads it, from its first byte on; null where it cannot.
  virtual const std::byte* readable() const { return nullptr; }

  /// Whether repeat() is cheaper than filling.
  virtual bool repeats() const { return false; }

  /// The first `period` bytes of a range that is filled so far come again until its end.
  virtual Status repeat(StoreRange range, int64_t period);

  /// Waits until everything has arrived.
  virtual Status finish() { return {}; }
};

/// A store in host memory, which is filled where it lies.
class HostSink final : public StoreSink {
 public:
  /// `base` is where byte `first` of the store lies.
  explicit HostSink(std::byte* base, int64_t first = 0) : base_(base), first_(first) {}

  int64_t piece_bytes() const override { return std::numeric_limits<int64_t>::max(); }

  Result<std::vector<std::byte*>> open(std::span<const StoreRange> ranges) override;

  Status close() override { return {}; }

  const std::byte* readable() const override { return first_ == 0 ? base_ : nullptr; }

 private:
  std::byte* base_;
  int64_t first_;
};

/// A store in memory of a GPU, filled through pinned memory: while one piece is on its way, the
/// next is filled.
class UploadSink final : public StoreSink {
 public:
  /// `staging_bytes` of pinned memory, more only for units larger than half of it. Errors:
  /// Unavailable without a GPU; OutOfMemory.
  static Result<std::unique_ptr<UploadSink>> create(std::byte* base, int64_t staging_bytes);

  int64_t piece_bytes() const override { return upload_.piece_bytes(); }

  Result<std::vector<std::byte*>> open(std::span<const StoreRange> ranges) override;
  Status close() override;

  bool repeats() const override { return true; }

  Status repeat(StoreRange range, int64_t period) override;

  Status finish() override { return upload_.finish(); }

 private:
  UploadSink(std::byte* base, Uploader upload) : base_(base), upload_(std::move(upload)) {}

  std::byte* base_;
  Uploader upload_;
  std::vector<StoreRange> ranges_;  // of the open piece
};

/// The sink of the place that weights have.
Result<std::unique_ptr<StoreSink>> make_sink(const Placement& placement,
                                             std::byte* base,
                                             int64_t staging_bytes);

/// Where each range lies in one piece of memory, one after the other at multiples of 64 bytes, and
/// the bytes of all.
struct PieceLayout {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

PieceLayout lay_out_piece(std::span<const StoreRange> ranges);

}  // namespace fathom
