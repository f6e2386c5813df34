// A sink as that of a GPU is, without one: pieces of bounded memory that are copied away, a store
// that nobody reads while it is filled.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "fathom/weights/load/store_sink.h"

namespace fathom {

class FakeSink final : public StoreSink {
 public:
  FakeSink(int64_t store_bytes, int64_t piece_bytes, bool repeats = false)
      : store(static_cast<size_t>(store_bytes)), piece_bytes_(piece_bytes), repeats_(repeats) {}

  int64_t piece_bytes() const override { return piece_bytes_; }

  Result<std::vector<std::byte*>> open(std::span<const StoreRange> ranges) override {
    ranges_.assign(ranges.begin(), ranges.end());
    const PieceLayout layout = lay_out_piece(ranges);
    largest = std::max(largest, layout.bytes);
    piece_.assign(static_cast<size_t>(layout.bytes), std::byte{0xA5});
    std::vector<std::byte*> out;
    for (const int64_t offset : layout.offsets)
      out.push_back(piece_.data() + offset);
    return out;
  }

  Status close() override {
    const PieceLayout layout = lay_out_piece(ranges_);
    for (size_t i = 0; i < ranges_.size(); ++i) {
      std::memcpy(store.data() + ranges_[i].offset, piece_.data() + layout.offsets[i],
                  static_cast<size_t>(ranges_[i].bytes));
    }
    return {};
  }

  bool repeats() const override { return repeats_; }

  Status repeat(StoreRange range, int64_t period) override {
    ++num_repeats;
    for (int64_t i = period; i < range.bytes; ++i)
      store[static_cast<size_t>(range.offset + i)] =
          store[static_cast<size_t>(range.offset + i - period)];
    return {};
  }

  Status finish() override {
    finished = true;
    return {};
  }

  std::vector<std::byte> store;
  int64_t largest = 0;  ///< piece
  int num_repeats = 0;
  bool finished = false;

 private:
  std::vector<StoreRange> ranges_;
  std::vector<std::byte> piece_;
  int64_t piece_bytes_;
  bool repeats_;
};

}  // namespace fathom
