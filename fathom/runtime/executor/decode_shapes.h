// The shapes in which decode steps run on a GPU: few, so that each can be captured once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/models/batch.h"

namespace fathom {

/// Requests of the decode range that `count` are padded to: 1, 2, 4, then multiples of 8, of 16
/// above 64 and of 64 above 256.
constexpr int64_t decode_bucket(int64_t count) {
  if (count <= 2) return count;
  if (count <= 4) return 4;
  if (count <= 64) return align_up<int64_t>(count, 8);
  return align_up<int64_t>(count, count <= 256 ? 16 : 64);
}

/// Columns of the block table that `pages` are padded to: a power of two, but no more than the
/// longest request can have.
constexpr int64_t page_bucket(int64_t pages, int64_t most) {
  int64_t bucket = 4;
  while (bucket < pages)
    bucket *= 2;
  return std::max(std::min(bucket, most), pages);
}

/// What a decode range is padded to. Columns of the block table are blocks of the layout, in which
/// a sequence has up to max_model_len tokens. Nothing where sequences have different numbers of
/// tokens.
DecodePadding decode_padding(std::span<const SequenceStep> decode,
                             const CacheLayout& layout,
                             int64_t max_model_len);

/// All buckets up to that of `most`.
std::vector<int64_t> decode_buckets(int64_t most);
std::vector<int64_t> page_buckets(int64_t most);

}  // namespace fathom
