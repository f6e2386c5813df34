// The memory that holds the pages of the KV cache.
//
// MLA keeps one row per token and layer, shared by all heads: the normed latent c and the rotated
// key part k_pe (DeepSeek-V2, arXiv 2405.04434, section 2.1). The model says how wide a row is and
// how many layers there are (KvLayout, models/model.h).
//
//   row of one token in one layer, D = Lkv + Dr elements of one format (V3: 512 + 64)
//     element 0 ............... Lkv-1 | Lkv ............. D-1
//             [       c  latent      ] [ k_pe rotated      ]
//
//   cache of one layer: [M pages, S tokens, D]; a page number means the same page in every layer
//   the whole buffer:   [layers][M][S][D], each layer aligned to 64 bytes
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/models/model.h"

namespace fathom {

/// Raised whenever the meaning of the bytes in a page changes.
inline constexpr int kKvLayoutVersion = 1;

/// Bytes of a cache of num_pages >= 0 pages, alignment included. Errors: InvalidArgument when the
/// number does not fit 63 bits.
Result<int64_t> kv_cache_bytes(const KvLayout& layout, int64_t num_pages);

/// "mla latent bf16: 61 layers x 576 x 2 bytes = 70272 bytes per token, 64 tokens per page".
std::string describe_kv(const KvLayout& layout);

/// The memory of the cache. Move-only.
class KvStorage {
 public:
  KvStorage() = default;

  /// Errors: those of kv_cache_bytes; OutOfMemory.
  static Result<KvStorage> allocate(const KvLayout& layout,
                                    int64_t num_pages,
                                    DeviceKind device = DeviceKind::kCpu);

  /// [M, S, D] of each layer; what a Batch takes.
  std::span<const View> views() const { return views_; }

  int64_t num_pages() const { return num_pages_; }

  int64_t bytes() const { return buffer_.size(); }

  /// Fills a page with NaN in every layer. Tests poison what must not be read. Host memory only.
  void poison_page(int64_t page);

 private:
  int64_t num_pages_ = 0;
  Buffer buffer_;
  std::vector<View> views_;
};

}  // namespace fathom
