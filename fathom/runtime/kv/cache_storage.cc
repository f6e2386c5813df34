#include "fathom/runtime/kv/cache_storage.h"

#include <cstring>

#include "fathom/base/hint.h"

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
                                 .grows = group.grows(),
                                 .rows = group.rows,
                                 .plane_bytes = group.codec.plane_bytes});
    }
  }
  return storage;
}

Status CacheStorage::move_rows(std::span<const PageId> pages,
                               int64_t to,
                               std::span<const int64_t> from,
                               Stream* stream) {
  for (const Layer& layer : layers_) {
    const auto row_at = [&](int64_t token, int64_t plane_begin, int64_t bytes) {
      const int64_t page = pages[static_cast<size_t>(token / layer.rows)];
      return layer.data + page * layer.page_bytes + plane_begin + token % layer.rows * bytes;
    };
    int64_t plane_begin = 0;
    for (const int64_t bytes : layer.plane_bytes) {
      for (size_t i = 0; i < from.size(); ++i) {
        std::byte* const into = row_at(to + static_cast<int64_t>(i), plane_begin, bytes);
        const std::byte* const row = row_at(from[i], plane_begin, bytes);
        if (into == row) continue;
        if (stream != nullptr) {
          FATHOM_TRY(stream->copy(into, row, bytes));
        } else {
          std::memcpy(into, row, static_cast<size_t>(bytes));
        }
      }
      plane_begin += layer.rows * bytes;
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
