#include "fathom/kernels/gemm/nvfp4_fp8_gemm/e4m3_rows.h"

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {
namespace {

/// Codes times block scales of a row, and the global scale that belongs to it.
float decode_blocks(const QuantView& w, int64_t m, int64_t n, std::span<float> out) {
  const int64_t k = w.cols();
  if (w.layout == WeightLayout::kRows16) {  // the groups of all matrices are consecutive
    const int64_t group = (m * w.rows() + n) / kTileRows;
    float one = 1.0f;
    uint8_t* const tiles = w.values.as<uint8_t>() + group * rows16_group_bytes(Format::kNvfp4, k);
    decode_rows16_row(
        {.format = Format::kNvfp4, .n = kTileRows, .k = k, .tiles = tiles, .global = &one},
        n % kTileRows, out);
    return w.global.as<const float>()[group];
  }
  const int64_t row = m * w.rows() + n;
  decode_row_major_row({.format = Format::kNvfp4,
                        .n = 1,
                        .k = k,
                        .values = w.values.as<const uint8_t>() + row * (k / 2),
                        .scales = w.scales.as<const uint8_t>() + row * (k / kNvfp4Block)},
                       0, out);
  return w.global.as<const float>()[m];
}

}  // namespace

void decode_scaled_e4m3(const View& x, const View& x_scales, int64_t t, float* out) {
  const int64_t k = x.dim(1);
  decode_to_f32(Format::kE4m3, x.as<const uint8_t>() + t * x.stride(0), k, out);
  const float* scales = x_scales.as<const float>() + t * x_scales.stride(0);
  for (int64_t i = 0; i < k; ++i)
    out[i] *= scales[i / kFp8Block * x_scales.stride(1)];
}

void decode_nvfp4_as_e4m3(const Products& p, int64_t m, int64_t n, float* out) {
  const auto& w = p.weight.as<QuantView>();
  const std::span<float> row(out, static_cast<size_t>(w.cols()));
  const float factor = kNvfp4PerE4m3 * decode_blocks(w, m, n, row);
  for (float& value : row)
    value = factor * to_float(nvfp4_as_e4m3(value));
}

Status check_e4m3_operands(const View& x, const View& x_scales, const QuantView& w) {
  FATHOM_TRY(check_weight(w));
  const View& s = x_scales;
  const int64_t groups = x.dim(1) / kFp8Block;
  if (s.format == Format::kF32 && s.rank == 2 && s.dim(0) == x.dim(0) && s.dim(1) == groups)
    return {};
  return invalid_argument(str_cat("x_scales is ", describe(s), ", expected [", x.dim(0), ", ",
                                  groups, "] f32, one for 128 columns of a row"));
}

}  // namespace fathom
