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

/// Moves of rows of sequences, all of which a cache makes together.
class RowMoves {
 public:
  explicit RowMoves(int64_t block_tokens) : block_tokens_(block_tokens) {}

  void clear() { moves_.clear(); }

  bool empty() const { return moves_.empty(); }

  /// The row of token `from` of a sequence goes to the place of token `to`. Those of one sequence
  /// come in order: both ascend, and `to` is not behind `from`, so that no row is written before it
  /// is read.
  void add(std::span<const PageId> pages, int64_t from, int64_t to);

  /// [N,2] i64: slots from and to. Valid until the next add().
  View view() { return make_view(moves_.data(), {std::ssize(moves_) / 2, 2}, Format::kI64, "N,2"); }

 private:
  int64_t block_tokens_;
  std::vector<int64_t> moves_;
};

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

  /// Moves rows in every group; on a GPU by one kernel for each plane of a group. The groups keep a
  /// row of each token (CacheLayout::keeps_rows). `moves` is RowMoves::view() where the cache lies,
  /// `stream` null on the CPU.
  Status move_rows(const View& moves, Stream* stream);

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
  };

  int64_t num_blocks_ = 0;
  Buffer buffer_;
  std::vector<GroupRows> groups_;
  std::vector<Layer> layers_;
  std::vector<View> planes_;  // of each group that grows: [layers, pages, rows, bytes] u8
};

}  // namespace fathom
