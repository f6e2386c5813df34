#include "fathom/runtime/executor/decode_shapes.h"

namespace fathom {

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
