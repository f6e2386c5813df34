// The portable loop: decode sixteen rows of the weight to float32, then plain sums over k.
#include <algorithm>
#include <cmath>

#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {
namespace {

/// Row n of matrix m.
void decode_row(const QuantView& w, int64_t m, int64_t n, std::span<float> out) {
  const int64_t rows = w.rows();
  const int64_t k = w.cols();
  if (w.layout == WeightLayout::kRows16) {  // the groups of all matrices are consecutive
    const int64_t before = m * rows;
    decode_rows16_row({.format = w.format(),
                       .n = before + rows,
                       .k = k,
                       .tiles = w.values.data,
                       .scales = w.scales.as<float>(),
                       .global = w.global.as<float>()},
                      before + n, out);
    return;
  }
  const FormatInfo& info = format_info(w.format());
  const auto* scales = w.scales.as<const uint8_t>();
  if (info.scale != Format::kNone) {
    scales += m * scale_count_for(w.format(), rows, k) * element_bytes(info.scale);
  }
  decode_row_major_row(
      {.format = w.format(),
       .n = rows,
       .k = k,
       .values = w.values.as<const uint8_t>() + m * value_bytes_for(w.format(), rows, k),
       .scales = scales,
       .global = w.global.present() ? w.global.as<const float>()[m] : 1.0f},
      n, out);
}

void decode_row(const Products& p, int64_t m, int64_t n, float* out) {
  if (p.decode_weight_row != nullptr) return p.decode_weight_row(p, m, n, out);
  decode_row(p.weight.as<QuantView>(), m, n, {out, static_cast<size_t>(p.k)});
}

float load(const Products& p, int64_t at) {
  return p.x_type == ElementType::kBf16 ? to_float(static_cast<const Bf16*>(p.x)[at])
                                        : static_cast<const float*>(p.x)[at];
}

float scaled(const ResultScaling& s, int64_t t, int64_t n, float value) {
  value *= s.row_scale != nullptr ? s.factor * s.row_scale[t] : s.factor;
  if (s.col_scale != nullptr) value *= s.col_scale[n];
  if (s.row_shift != nullptr) value = std::fma(-s.row_shift[t], s.col_shift[n], value);
  if (s.bias != nullptr) value += s.bias[n];
  return value;
}

/// acc[t][r] += sum_k x[t][k] * w[r][k] over columns [k0, k1), in order; sixteen rows side by side,
/// which compilers turn into vectors.
void add_chunk(const Products& p,
               const WorkItem& item,
               int64_t t0,
               int64_t t1,
               int64_t k0,
               int64_t k1,
               const float* rows,
               float* acc) {
  float w[kChunkK][kTileRows];
  float x[kChunkK];
  for (int64_t k = k0; k < k1; ++k) {
    for (int64_t r = 0; r < kTileRows; ++r)
      w[k - k0][r] = rows[r * p.k + k];
  }
  for (int64_t t = t0; t < t1; ++t) {
    const int64_t x_row = p.x_begin(item.matrix) + t * p.x_row_stride;
    for (int64_t k = k0; k < k1; ++k)
      x[k - k0] = load(p, x_row + k);
    float sum[kTileRows];
    float* sums = acc + (t - t0) * kTileRows;
    std::copy_n(sums, kTileRows, sum);
    for (int64_t k = 0; k < k1 - k0; ++k) {
      for (int64_t r = 0; r < kTileRows; ++r)
        sum[r] += w[k][r] * x[k];
    }
    std::copy_n(sum, kTileRows, sums);
  }
}

}  // namespace

void store_result(const Products& p, int64_t m, int64_t t, int64_t n, float sum) {
  const int64_t at = p.y_begin(m) + t * p.y_row_stride + n;
  const float value = p.scaling != nullptr ? scaled(*p.scaling, t, n, sum) : sum;
  switch (p.y_type) {
    case ElementType::kBf16:
      static_cast<Bf16*>(p.y)[at] = bf16_from_float(value);
      return;
    case ElementType::kF32:
      static_cast<float*>(p.y)[at] = value;
      return;
    case ElementType::kF16:
      static_cast<F16*>(p.y)[at] = f16_from_float(value);
      return;
  }
}

void products_portable(const Products& p, const WorkItem& item, void* scratch) {
  auto* rows = static_cast<float*>(scratch);  // [16][k]
  float* acc = rows + kTileRows * p.k;        // [row block][16]
  for (int64_t g = item.group_begin; g < item.group_end; ++g) {
    const int64_t n0 = g * kTileRows;
    const int64_t num_n = std::min(kTileRows, p.n - n0);
    std::fill_n(rows, kTileRows * p.k, 0.0f);
    for (int64_t r = 0; r < num_n; ++r) {
      decode_row(p, item.matrix, n0 + r, rows + r * p.k);
    }
    for (int64_t t0 = item.row_begin; t0 < item.row_end; t0 += kRowBlock) {
      const int64_t t1 = std::min(item.row_end, t0 + kRowBlock);
      std::fill_n(acc, (t1 - t0) * kTileRows, 0.0f);
      for (int64_t k0 = 0; k0 < p.k; k0 += kChunkK) {
        add_chunk(p, item, t0, t1, k0, std::min(p.k, k0 + kChunkK), rows, acc);
      }
      for (int64_t t = t0; t < t1; ++t) {
        for (int64_t r = 0; r < num_n; ++r)
          store_result(p, item.matrix, t, n0 + r, acc[(t - t0) * kTileRows + r]);
      }
    }
  }
}

}  // namespace fathom
