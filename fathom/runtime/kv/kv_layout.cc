#include "fathom/runtime/kv/kv_layout.h"

#include <cstring>

#include "fathom/base/checked_math.h"

namespace fathom {
namespace {

constexpr int64_t kLayerAlignment = 64;

// Bytes of one layer, padded so that the next one is aligned; nothing if they overflow.
std::optional<int64_t> layer_bytes(const KvLayout& layout, int64_t num_pages) {
  const auto rows = checked_mul(num_pages, layout.page_size);
  if (!rows) return std::nullopt;
  const auto bytes = checked_mul(*rows, layout.width * element_bytes(layout.format));
  if (!bytes || *bytes > INT64_MAX - kLayerAlignment) return std::nullopt;
  return align_up(*bytes, kLayerAlignment);
}

}  // namespace

Result<int64_t> kv_cache_bytes(const KvLayout& layout, int64_t num_pages) {
  FATHOM_CHECK(num_pages >= 0, "negative number of pages");
  if (const auto per_layer = layer_bytes(layout, num_pages)) {
    if (const auto total = checked_mul(*per_layer, layout.num_layers)) return *total;
  }
  return invalid_argument(str_cat("a KV cache of ", num_pages, " pages of ", layout.page_size,
                                  " tokens in ", layout.num_layers,
                                  " layers is too large to address"));
}

std::string describe_kv(const KvLayout& layout) {
  return str_cat("mla latent ", format_name(layout.format), ": ", layout.num_layers, " layers x ",
                 layout.width, " x ", element_bytes(layout.format),
                 " bytes = ", layout.bytes_per_token(), " bytes per token, ", layout.page_size,
                 " tokens per page");
}

Result<KvStorage> KvStorage::allocate(const KvLayout& layout,
                                      int64_t num_pages,
                                      DeviceKind device) {
  FATHOM_ASSIGN(const int64_t total, kv_cache_bytes(layout, num_pages));
  KvStorage storage;
  storage.num_pages_ = num_pages;
  FATHOM_ASSIGN(storage.buffer_, Buffer::allocate(device, total, "the KV cache"));
  for (int64_t l = 0; l < layout.num_layers; ++l) {
    std::byte* layer = storage.buffer_.data();
    if (layer != nullptr) layer += l * (total / layout.num_layers);
    storage.views_.push_back(make_view(layer, {num_pages, layout.page_size, layout.width},
                                       layout.format, "pages,page_size,Lkv+Dr"));
    storage.views_.back().on_device = storage.buffer_.on_device();
  }
  return storage;
}

void KvStorage::poison_page(int64_t page) {
  FATHOM_CHECK(page >= 0 && page < num_pages_, str_cat("no page ", page));
  for (const View& layer : views_) {
    const int64_t bytes = layer.stride(0) * element_bytes(layer.format);
    // All bits set is a NaN in float32, bfloat16 and E4M3 alike.
    std::memset(layer.as<std::byte>() + page * bytes, 0xff, static_cast<size_t>(bytes));
  }
}

}  // namespace fathom
