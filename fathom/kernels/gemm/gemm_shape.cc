#include "fathom/kernels/gemm/gemm_shape.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/core/contract/contract.h"
#include "fathom/kernels/cpu/products/products.h"

namespace fathom {
namespace {

/// Presence, format and element count of one part of a weight.
Status check_part(std::string_view part, const View& v, Format format, int64_t count) {
  if (!v.present()) {
    return invalid_argument(
        str_cat("w has no ", part, ", but its format needs ", count, " of ", format_name(format)));
  }
  if (v.format == format && v.numel() == count && v.contiguous()) [[likely]]
    return {};
  return invalid_argument(str_cat("w has ", part, " ", describe(v), ", expected ", count,
                                  " packed values of ", format_name(format)));
}

Status check_rows16(const QuantView& w, int64_t matrices) {
  const Format format = w.format();
  if (!has_rows16(format)) {
    return invalid_argument(
        str_cat("w is ", format_name(format),
                " in layout rows16, which exists for bf16, nvfp4, mxfp4, mxfp8 and block fp8"));
  }
  if (w.values.rank == 3 && w.rows() % kTileRows != 0) {
    return invalid_argument(str_cat("w is a stack of matrices of ", w.rows(),
                                    " rows in layout rows16, which needs a multiple of 16"));
  }
  const int64_t groups = matrices * ceil_div(w.rows(), kTileRows);
  const int64_t group_scales = rows16_group_scales(format, w.cols());
  if (group_scales > 0) return check_part("scales", w.scales, Format::kF32, groups * group_scales);
  if (rows16_has_global(format)) return check_part("global", w.global, Format::kF32, groups);
  return {};
}

Status check_pairs(const QuantView& w) {
  if (w.format() != Format::kNvfp4 || w.cols() % kPairedCodes != 0) {
    return invalid_argument(
        str_cat("w is ", describe(w.values), " in pairs; only nvfp4 lies so, K a multiple of 32"));
  }
  return {};
}

Status check_row_major(const QuantView& w, int64_t matrices, GlobalScale global) {
  const FormatInfo& info = format_info(w.format());
  if (info.scale != Format::kNone) {
    const int64_t count = matrices * scale_count_for(w.format(), w.rows(), w.cols());
    FATHOM_TRY(check_part("scales", w.scales, info.scale, count));
  }
  if (!w.global.present() && global == GlobalScale::kOptional) return {};
  if (info.has_global) return check_part("global", w.global, Format::kF32, matrices);
  return {};
}

}  // namespace

int64_t product_workspace(int64_t rows, int64_t k, int num_threads) {
  return num_threads * product_scratch_bytes(rows, k);
}

Status check_weight(const QuantView& w, GlobalScale global) {
  if (!w.values.contiguous()) {
    return invalid_argument(str_cat("w is ", describe(w.values), " with gaps, but must be packed"));
  }
  const int64_t matrices = w.values.rank == 3 ? w.values.dim(0) : 1;
  if (w.layout == WeightLayout::kPairs) FATHOM_TRY(check_pairs(w));
  return w.layout == WeightLayout::kRows16 ? check_rows16(w, matrices)
                                           : check_row_major(w, matrices, global);
}

double expected_experts(int64_t experts, int64_t slots, int64_t top_k) {
  if (experts <= 0) return 0;
  const double all = static_cast<double>(experts);
  const double chosen = std::clamp(static_cast<double>(top_k), 1.0, all);
  return all * (1.0 - std::pow(1.0 - chosen / all, static_cast<double>(slots) / chosen));
}

void grouped_product_bytes(
    const View& x, const View& w, const View& offsets, const View& y, int64_t top_k, Cost& cost) {
  const double active = expected_experts(w.dim(0), x.dim(0), top_k);
  const double matrix = static_cast<double>(bytes_for(w.format, w.dim(1), w.dim(2)));
  cost.bytes_read = operand_bytes(x) + operand_bytes(offsets) +
                    static_cast<int64_t>(std::llround(active * matrix));
  cost.bytes_written = operand_bytes(y);
}

}  // namespace fathom
