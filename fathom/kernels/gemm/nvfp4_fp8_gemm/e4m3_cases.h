// Operands of cases of W4A8 products, of one matrix and of experts.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {

/// How the scales of x lie: [T, K/128], turned over, or that with columns as a TMA wants them.
enum class XScales { kRowMajor, kColumnMajor, kTmaAligned };

/// Activations quantised in groups of 128, and what they were.
struct E4m3X {
  Tensor codes, scales;
  std::shared_ptr<std::vector<float>> exact;
  int64_t k = 0, row_stride = 0, group_stride = 0;  // strides of the scales

  /// `cut`: whether a launch may take some rows alone.
  E4m3X(CaseData& c, int64_t rows, int64_t num_k, Dist dist, XScales form, int64_t gap, bool cut)
      : exact(random_values(c, rows, num_k, {.dist = dist})), k(num_k) {
    const int64_t groups = k / kFp8Block;
    const bool by_row = form == XScales::kRowMajor;
    const int64_t column = form == XScales::kTmaAligned ? tma_aligned_stride(rows) : rows;
    const int64_t each = cut && by_row ? 1 : 0;  // columns cannot be cut by their first axis
    row_stride = by_row ? groups : 1;
    group_stride = by_row ? 1 : column;
    codes = c.input({rows, k}, Format::kE4m3, {}, {.row_gap = gap, .rows_per_batch = each});
    scales = by_row ? c.input({rows, groups}, Format::kF32, {}, {.rows_per_batch = each})
                    : c.input({groups, column}, Format::kF32);
    std::vector<E4m3> quantised(exact->size());
    std::vector<float> each_scale(static_cast<size_t>(rows * groups));
    fp8_quantize_groups(exact->data(), rows, k, kFp8Block, kFp8SglangGroup, quantised.data(),
                        each_scale.data());
    put_codes(codes, quantised);
    // What lies between the columns is padding.
    scales.fill([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
    for (int64_t i = 0; i < rows * groups; ++i) {
      scales.set(i / groups * row_stride + i % groups * group_stride,
                 double{each_scale[static_cast<size_t>(i)]});
    }
  }

  View code_view(const Binding& at) const { return as_format(at(codes), Format::kFp8Group, k); }

  View scale_view(const Binding& at) const {
    View v = make_view(at(scales).data, {at(codes).dim(0), k / kFp8Block}, Format::kF32);
    v.strides[0] = row_stride;
    v.strides[1] = group_stride;
    v.on_device = at(scales).on_device;
    return v;
  }

  /// Row t as numbers.
  std::vector<double> row(int64_t t) const {
    std::vector<double> out = codes.row(t);
    for (int64_t i = 0; i < k; ++i)
      out[static_cast<size_t>(i)] *= scales[t * row_stride + i / kFp8Block * group_stride];
    return out;
  }
};

/// Which block scales a weight has: those that its values ask for, or E4M3 codes from `first` on,
/// `count` of them in turn.
struct BlockScales {
  int64_t first = 0;
  int64_t count = 0;  ///< 0: those of its values
};

/// An NVFP4 weight whose rows are what W4A8 products take for them.
struct E4m3Weight {
  Weight stored;
  std::shared_ptr<RowCache> rows;

  E4m3Weight(CaseData& c, const CaseWeightSpec& spec, bool bench, BlockScales scales)
      : stored(bench ? c.weight_codes(spec, spec.num_experts > 0 ? int64_t{1} << 30 : 0)
                     : c.weight(spec)) {
    if (scales.count > 0) {
      c.set_block_scales(stored, [&](int64_t row, int64_t block) {
        return E4m3{static_cast<uint8_t>(scales.first + (row * 5 + block * 3) % scales.count)};
      });
    }
    rows = std::make_shared<RowCache>(spec.cols, [w = stored](int64_t row, int64_t k) {
      // Codes times block scales have six significant bits, which bf16 finds again in the quotient.
      const float global = w.global(row);
      const float quotient = w.row(row)[static_cast<size_t>(k)] / global;
      const float value = to_float(bf16_from_float(quotient));
      return double{kNvfp4PerE4m3} * double{global} * double{to_float(nvfp4_as_e4m3(value))};
    });
  }

  const std::vector<double>& row(int64_t n) const { return (*rows)(n); }

  /// Sum over k of the unquantised x[t] and w[n].
  double exact_product(const E4m3X& x, int64_t t, int64_t n) const {
    const std::span<const float> w = stored.exact_row(n);
    double sum = 0;
    for (int64_t k = 0; k < x.k; ++k) {
      sum +=
          double{(*x.exact)[static_cast<size_t>(t * x.k + k)]} * double{w[static_cast<size_t>(k)]};
    }
    return sum;
  }
};

/// Scales that stand for zeros and the smallest subnormals, all subnormals, the largest, and all.
inline constexpr BlockScales kExtremeScales[] = {{0, 4}, {0, 16}, {0x78, 7}, {0, 127}};

/// How the name of a case of `Shape`, of one matrix or of experts, ends.
template <class Shape>
std::string e4m3_suffix(const Shape& s) {
  std::string out(format_name(s.y));
  if (s.x_scales == XScales::kRowMajor) out += "_row_scales";
  if (s.x_scales == XScales::kTmaAligned) out += "_tma_scales";
  if (s.dist != Dist::kNormal) out += "_mixed";
  if (s.scales.count > 0) str_append(out, str_cat("_scales_", s.scales.first, "_", s.scales.count));
  if (s.layout == WeightLayout::kRowMajor) out += "_row_major";
  if (s.gap == 0) out += "_packed";
  if (s.gap == 16) out += "_aligned";
  return out;
}

}  // namespace fathom
