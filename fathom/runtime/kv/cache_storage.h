// The memory of the cache, and the formats that its rows may have by name.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/device/stream.h"
#include "fathom/models/cache_layout.h"
#include "fathom/runtime/kv/sequence_cache.h"

namespace fathom {

/// The format of `--kv-cache-dtype`: `auto` (as the activations), `f32`, `bf16` or `fp8_e4m3`.
/// Errors: Unsupported, naming the flag and the choices.
Result<Format> choose_kv_format(std::string_view cache_dtype, Format activations);

/// Pages of every group of a layout, each layer's one behind the other. Move-only.
class CacheStorage {
 public:
  CacheStorage() = default;

  /// Errors: those of cache_bytes; OutOfMemory.
  static Result<CacheStorage> allocate(const CacheLayout& layout,
                                       int64_t num_blocks,
                                       int64_t num_slots,
                                       DeviceKind device = DeviceKind::kCpu);

  /// The views of each group; what a Batch takes.
  std::span<const GroupRows> groups() const { return groups_; }

  int64_t num_blocks() const { return num_blocks_; }

  int64_t bytes() const { return buffer_.size(); }

  std::byte* data() const { return buffer_.data(); }

  /// Moves rows within the pages of a sequence, in every group: that of token `from[i]` goes to the
  /// place of token `to` + i, in order. `from` ascends, and from[i] >= to + i. The groups keep a
  /// row of each token (CacheLayout::keeps_rows). `stream` is null on the CPU.
  Status move_rows(std::span<const PageId> pages,
                   int64_t to,
                   std::span<const int64_t> from,
                   Stream* stream);

  /// Copies rings and states, in the order of the list. `stream` is null on the CPU.
  Status copy_slots(std::span<const SlotCopy> copies, Stream* stream);

  /// Fills a block with NaN in every group that grows. Tests poison what must not be read. Host
  /// memory only.
  void poison_block(int64_t block);

 private:
  // One layer's pages or slots of one group.
  struct Layer {
    std::byte* data = nullptr;
    int64_t page_bytes = 0;
    bool grows = true;
    int64_t rows = 0;                  // of a page
    std::vector<int64_t> plane_bytes;  // of a row in each plane
  };

  int64_t num_blocks_ = 0;
  Buffer buffer_;
  std::vector<GroupRows> groups_;
  std::vector<Layer> layers_;
};

}  // namespace fathom
