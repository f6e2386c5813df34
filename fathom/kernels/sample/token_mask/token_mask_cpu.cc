#include <algorithm>
#include <limits>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/token_mask/token_mask.h"

namespace fathom {
namespace {

constexpr int64_t kBits = 32;
constexpr int64_t kPieceWords = 512;  // what a thread takes at once: 64 KiB of logits

void mask_words(const uint32_t* words, int64_t count, float* z, int64_t num_logits) {
  for (int64_t w = 0; w < count; ++w) {
    if (words[w] == UINT32_MAX) continue;
    const int64_t end = std::min((w + 1) * kBits, num_logits);
    for (int64_t v = w * kBits; v < end; ++v)
      if ((words[w] >> (v % kBits) & 1) == 0) z[v] = -std::numeric_limits<float>::infinity();
  }
}

Status apply_token_mask(Exec& ex, const ApplyTokenMask::Args& a) {
  const int64_t V = a.logits.dim(1);
  const int64_t words = (V + kBits - 1) / kBits;
  const int64_t pieces = (words + kPieceWords - 1) / kPieceWords;
  const auto* mask_of_row = a.mask_of_row.as<const int32_t>();
  for_rows(ex, a.logits.dim(0) * pieces, kPieceWords * kBits * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces;
      const int64_t first = i % pieces * kPieceWords;
      if (mask_of_row[t] < 0) continue;
      mask_words(a.mask.row<const uint32_t>(mask_of_row[t]) + first,
                 std::min(kPieceWords, words - first), a.logits.row<float>(t) + first * kBits,
                 V - first * kBits);
    }
  });
  return {};
}

}  // namespace

void ApplyTokenMask::bytes(const Args& a, Cost& cost) {
  cost.bytes_read += operand_bytes(a.mask) + operand_bytes(a.mask_of_row);
  cost.bytes_written += std::min(a.mask.dim(0), a.logits.dim(0)) * a.logits.dim(1) * 4;
}

Status ApplyTokenMask::check(const Args& a) {
  const int64_t needed = (a.logits.dim(1) + kBits - 1) / kBits;
  if (a.mask.dim(1) < needed) {
    return invalid_argument(str_cat("mask has ", a.mask.dim(1), " words a row, expected ", needed,
                                    " for ", a.logits.dim(1), " logits"));
  }
  if (!a.mask_of_row.readable()) return {};
  for (int64_t t = 0; t < a.mask_of_row.dim(0); ++t) {
    const int32_t mask = a.mask_of_row.as<const int32_t>()[t];
    if (mask < -1 || mask >= a.mask.dim(0)) {
      return invalid_argument(
          str_cat("mask_of_row[", t, "] is ", mask, ", expected -1 to ", a.mask.dim(0) - 1));
    }
  }
  return {};
}

constinit const VariantTable<ApplyTokenMask> apply_token_mask_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, apply_token_mask},
};

}  // namespace fathom
