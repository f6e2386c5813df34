#include "fathom/kernels/moe/code_products.h"

#include "fathom/formats/integer/group_int.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

float scale_at(const CodeWeight& w, int64_t m, int64_t n, int64_t b) {
  const int64_t row = w.block_rows == 0 ? 0 : n / w.block_rows;
  const int64_t at =
      m * w.matrix_stride + row * w.row_stride + b / 4 * w.quad_stride + b % 4 * w.block_stride;
  switch (w.scale_type) {
    case CodeScale::kF32:
      return static_cast<const float*>(w.scales)[at];
    case CodeScale::kBf16:
      return to_float(static_cast<const Bf16*>(w.scales)[at]);
    case CodeScale::kF32AsBf16:
      return to_float(bf16_from_float(static_cast<const float*>(w.scales)[at]));
  }
  return 0.0f;
}

float code_at(const CodeWeight& w, const uint8_t* row, int64_t k) {
  switch (w.type) {
    case CodeType::kE4m3:
      return to_float(E4m3{row[k]});
    case CodeType::kInt8:
      return static_cast<float>(static_cast<int8_t>(row[k]));
    case CodeType::kInt4:
      return static_cast<float>(unpack_int4(row, k));
  }
  return 0.0f;
}

}  // namespace

void decode_code_row(const Products& p, int64_t m, int64_t n, float* out) {
  const auto& w = p.weight.as<CodeWeight>();
  const uint8_t* row = w.codes + (m * w.n + n) * w.row_bytes;
  const int64_t block = w.block_k == 0 ? w.k : w.block_k;
  for (int64_t k0 = 0, b = 0; k0 < w.k; k0 += block, ++b) {
    const float scale = scale_at(w, m, n, b);
    for (int64_t k = k0; k < w.k && k < k0 + block; ++k)
      out[k] = code_at(w, row, k) * scale;
  }
}

}  // namespace fathom
