#include "fathom/runtime/executor/decode_shapes.h"

namespace fathom {

DecodePadding decode_padding(std::span<const SequenceStep> decode,
                             const CacheLayout& layout,
                             int64_t max_model_len) {
  if (decode.empty()) return {};
  int64_t pages = 0;
  for (const SequenceStep& s : decode) {
    if (s.tokens.size() != decode.front().tokens.size()) return {};
    pages = std::max(pages, blocks_of(layout, s));
  }
  return {.requests = decode_bucket(static_cast<int64_t>(decode.size())),
          .pages = page_bucket(pages, layout.blocks_for(max_model_len))};
}

std::vector<int64_t> decode_buckets(int64_t most) {
  std::vector<int64_t> buckets;
  for (int64_t count = 1; count <= most; count = buckets.back() + 1)
    buckets.push_back(decode_bucket(count));
  return buckets;
}

std::vector<int64_t> page_buckets(int64_t most) {
  std::vector<int64_t> buckets;
  for (int64_t pages = 1; pages <= most; pages = buckets.back() + 1)
    buckets.push_back(page_bucket(pages, most));
  return buckets;
}

}  // namespace fathom
