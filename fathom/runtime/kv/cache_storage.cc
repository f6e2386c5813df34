#include "fathom/runtime/kv/cache_storage.h"

#include <algorithm>
#include <cstring>

#include "fathom/base/hint.h"
#include "fathom/kernels/attn/kv_write/move_rows.h"

namespace fathom {
namespace {

struct FormatRow {
  std::string_view cache_dtype;  // as on the command line
  Format activations;            // kNone: any
  Format format;
};

// First match wins.
constexpr FormatRow kFormatRows[] = {{"auto", Format::kF32, Format::kF32},
                                     {"auto", Format::kBf16, Format::kBf16},
                                     {"f32", Format::kNone, Format::kF32},
                                     {"bf16", Format::kNone, Format::kBf16},
                                     {"fp8_e4m3", Format::kNone, Format::kE4m3}};

}  // namespace

Result<Format> choose_kv_format(std::string_view cache_dtype, Format activations) {
  for (const FormatRow& row : kFormatRows) {
    if (row.cache_dtype != cache_dtype) continue;
    if (row.activations == Format::kNone || row.activations == activations) return row.format;
  }
  return unsupported(str_cat("--kv-cache-dtype is ", cache_dtype, " with ",
                             format_name(activations),
                             " activations, expected auto, f32, bf16 or fp8_e4m3"));
}

Result<CacheStorage> CacheStorage::allocate(const CacheLayout& layout,
                                            int64_t num_blocks,
                                            int64_t num_slots,
                                            DeviceKind device) {
  FATHOM_TRY(layout.validate());
  FATHOM_ASSIGN(const int64_t total, cache_bytes(layout, num_blocks, num_slots));
  CacheStorage storage;
  storage.num_blocks_ = num_blocks;
  Result<Buffer> buffer = Buffer::allocate(device, total, "the KV cache");
  if (!buffer.ok()) {
    return with_hint(std::move(buffer).status(),
                     "lower --memory-fraction, --max-num-seqs or --max-model-len");
  }
  storage.buffer_ = std::move(buffer).value();
  storage.groups_ = cache_views(layout, storage.buffer_.data(), num_blocks, num_slots,
                                storage.buffer_.on_device());
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    for (size_t l = 0; l < group.layers.size(); ++l) {
      // The first plane of a page begins where the page does; so does a field at its offset 0.
      const View& first = storage.groups_[g].at(l);
      const PageField& field = group.codec.fields[0];
      FATHOM_CHECK(field.plane == 0 && field.offset == 0, "the first field begins the page");
      storage.layers_.push_back({.data = static_cast<std::byte*>(first.data),
                                 .page_bytes = group.codec.page_bytes(group.rows),
                                 .grows = group.grows()});
    }
    if (group.layers.empty()) continue;
    // Layers of a group lie equally far apart.
    const auto layers = static_cast<int64_t>(group.layers.size());
    std::byte* at = storage.layers_.end()[-layers].data;
    const int64_t apart = layers > 1 ? storage.layers_.end()[1 - layers].data - at : 0;
    for (const int64_t row_bytes : group.codec.plane_bytes) {
      View plane =
          make_view(at, {layers, group.grows() ? num_blocks : num_slots, group.rows, row_bytes},
                    Format::kU8, "layers,pages,rows,bytes");
      plane.strides = {apart, group.codec.page_bytes(group.rows), row_bytes, 1};
      plane.on_device = storage.buffer_.on_device();
      storage.planes_.push_back({g, plane});
      if (at != nullptr) at += group.rows * row_bytes;
    }
  }
  return storage;
}

void RowMoves::reserve(int64_t count) {
  const auto numbers = static_cast<size_t>(2 * count);
  for (auto& moves : groups_)
    moves.reserve(numbers);
  all_.reserve(numbers * groups_.size());
  rows_.places.reserve(kMostTreeRows + 1);
  rows_.masks.reserve(kMostTreeRows + 1);
}

void RowMoves::clear() {
  for (auto& moves : groups_)
    moves.clear();
}

bool RowMoves::empty() const {
  return std::ranges::all_of(groups_, [](const auto& moves) { return moves.empty(); });
}

void RowMoves::move(size_t group, int64_t from, int64_t to) {
  if (from == to) return;
  groups_[group].push_back(from);
  groups_[group].push_back(to);
}

void RowMoves::add(const TreeRows& tree,
                   std::span<const int32_t> path,
                   std::span<const PageId> pages,
                   PageId slot) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (!group.grows()) {
      for (const int32_t row : path) {
        move(g, slot * group.rows + tree.place(row) % group.rows,
             slot * group.rows + tree.position(row) % group.rows);
      }
      continue;
    }
    const auto slot_at = [&](int64_t place) {
      return pages[static_cast<size_t>(place / group.rows)] * group.rows + place % group.rows;
    };
    tree.pool(group.tokens_per_row, rows_);
    for (const int32_t row : path) {
      const int64_t place = rows_.places[static_cast<size_t>(row)];
      if (place >= 0) move(g, slot_at(place), slot_at(tree.position(row) / group.tokens_per_row));
    }
  }
}

View RowMoves::all() {
  all_.clear();
  for (const auto& moves : groups_)
    all_.insert(all_.end(), moves.begin(), moves.end());
  return make_view(all_.data(), {std::ssize(all_) / 2, 2}, Format::kI64, "N,2");
}

View RowMoves::of_group(size_t group, const View& all) const {
  int64_t begin = 0;
  for (size_t g = 0; g < group; ++g)
    begin += std::ssize(groups_[g]) / 2;
  return slice_rows(all, begin, std::ssize(groups_[group]) / 2);
}

Status CacheStorage::move_rows(const RowMoves& moves, const View& all, Stream* stream) {
  for (const Plane& plane : planes_) {
    const View& rows = plane.rows;
    const View of_group = moves.of_group(plane.group, all);
    if (of_group.dim(0) == 0) continue;
    if (stream != nullptr) {
      FATHOM_TRY(move_rows_by_kernel(*stream, rows, of_group));
      continue;
    }
    const auto row_at = [&](int64_t layer, int64_t slot) {
      return rows.row<std::byte>(layer) + slot / rows.dim(2) * rows.stride(1) +
             slot % rows.dim(2) * rows.stride(2);
    };
    for (int64_t layer = 0; layer < rows.dim(0); ++layer) {
      for (int64_t n = 0; n < of_group.dim(0); ++n) {
        const auto* move = of_group.row<const int64_t>(n);
        std::memcpy(row_at(layer, move[1]), row_at(layer, move[0]),
                    static_cast<size_t>(rows.dim(3)));
      }
    }
  }
  return {};
}

Status CacheStorage::copy_slots(std::span<const SlotCopy> copies, Stream* stream) {
  for (const SlotCopy& copy : copies) {
    for (const Layer& layer : layers_) {
      if (layer.grows) continue;
      std::byte* to = layer.data + copy.to * layer.page_bytes;
      const std::byte* from = layer.data + copy.from * layer.page_bytes;
      if (stream != nullptr) {
        FATHOM_TRY(stream->copy(to, from, layer.page_bytes));
      } else {
        std::memcpy(to, from, static_cast<size_t>(layer.page_bytes));
      }
    }
  }
  return {};
}

void CacheStorage::poison_block(int64_t block) {
  FATHOM_CHECK(block >= 0 && block < num_blocks_, str_cat("no block ", block));
  for (const Layer& layer : layers_) {
    // All bits set is a NaN in float32, bfloat16 and E4M3 alike.
    if (layer.grows) {
      std::memset(layer.data + block * layer.page_bytes, 0xff,
                  static_cast<size_t>(layer.page_bytes));
    }
  }
}

}  // namespace fathom
