#include "fathom/weights/load/store_sink.h"

#include <algorithm>
#include <utility>

#include "fathom/base/checked_math.h"

namespace fathom {

Status StoreSink::repeat(StoreRange, int64_t) {
  return internal_error("this sink does not repeat");
}

Result<std::vector<std::byte*>> HostSink::open(std::span<const StoreRange> ranges) {
  std::vector<std::byte*> out;
  for (const StoreRange& range : ranges)
    out.push_back(base_ + (range.offset - first_));
  return out;
}

PieceLayout lay_out_piece(std::span<const StoreRange> ranges) {
  constexpr int64_t kLine = 64;
  PieceLayout out;
  for (const StoreRange& range : ranges) {
    out.offsets.push_back(out.bytes);
    out.bytes = align_up(out.bytes + range.bytes, kLine);
  }
  return out;
}

Result<std::unique_ptr<UploadSink>> UploadSink::create(std::byte* base, int64_t staging_bytes) {
  constexpr int64_t kLeast = 1 << 16;
  FATHOM_ASSIGN(Uploader upload, Uploader::create(std::max(staging_bytes / 2, kLeast)));
  return std::unique_ptr<UploadSink>(new UploadSink(base, std::move(upload)));
}

Result<std::vector<std::byte*>> UploadSink::open(std::span<const StoreRange> ranges) {
  ranges_.assign(ranges.begin(), ranges.end());
  const PieceLayout layout = lay_out_piece(ranges);
  FATHOM_ASSIGN(const std::span<std::byte> piece, upload_.next_piece(layout.bytes));
  std::vector<std::byte*> out;
  for (const int64_t offset : layout.offsets)
    out.push_back(piece.data() + offset);
  return out;
}

Status UploadSink::close() {
  const PieceLayout layout = lay_out_piece(ranges_);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    FATHOM_TRY(upload_.send_piece(base_ + ranges_[i].offset, ranges_[i].bytes, layout.offsets[i]));
  }
  return {};
}

Status UploadSink::repeat(StoreRange range, int64_t period) {
  return upload_.repeat(base_ + range.offset, period, range.bytes);
}

Result<std::unique_ptr<StoreSink>> make_sink(const Placement& placement,
                                             std::byte* base,
                                             int64_t staging_bytes) {
  if (placement.is_host()) return std::unique_ptr<StoreSink>(std::make_unique<HostSink>(base));
  FATHOM_ASSIGN(std::unique_ptr<UploadSink> sink, UploadSink::create(base, staging_bytes));
  return std::unique_ptr<StoreSink>(std::move(sink));
}

}  // namespace fathom
