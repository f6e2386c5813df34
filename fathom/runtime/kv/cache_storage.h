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
#include "fathom/models/tree/tree_rows.h"
#include "fathom/runtime/kv/sequence_cache.h"

namespace fathom {

/// The format of `--kv-cache-dtype`: `auto` (as the activations), `f32`, `bf16` or `fp8_e4m3`.
/// Errors: Unsupported, naming the flag and the choices.
Result<Format> choose_kv_format(std::string_view cache_dtype, Format activations);

/// Moves of rows of sequences, in every group of a cache, all of which it makes together.
class RowMoves {
 public:
  explicit RowMoves(const CacheLayout& layout) : layout_(layout), groups_(layout.groups.size()) {}

  /// Room for so many moves in each group.
  void reserve(int64_t count);

  void clear();

  bool empty() const;

  /// The rows that a path of a tree has in the blocks and rings of a sequence go to where those of
  /// a chain would lie. `path`: rows of the tree, each behind the one that its token follows. Both
  /// ends of the moves ascend, and none goes backwards, so that no row is written before it is
  /// read.
  void add(const TreeRows& tree,
           std::span<const int32_t> path,
           std::span<const PageId> pages,
           PageId slot);

  /// The moves of every group, one group behind the other: [N,2] i64, slots from and to. Valid
  /// until the next call.
  View all();

  /// Of them, those of one group.
  View of_group(size_t group, const View& all) const;

 private:
  void move(size_t group, int64_t from, int64_t to);

  CacheLayout layout_;
  std::vector<std::vector<int64_t>> groups_;
  std::vector<int64_t> all_;
  GroupTree rows_;
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

  /// Moves rows in every group; on a GPU by one kernel for each plane of a group that has moves.
  /// `all` is moves.all() where the cache lies, `stream` null on the CPU.
  Status move_rows(const RowMoves& moves, const View& all, Stream* stream);

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

  // A plane of a group in all of its layers.
  struct Plane {
    size_t group = 0;
    View rows;  // [layers, pages or slots, rows, bytes] u8
  };

  std::vector<Plane> planes_;
};

}  // namespace fathom
