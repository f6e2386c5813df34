// Rows of queries and keys of the cases: random values, and what their formats hold of them.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sparse/index_row.h"

namespace fathom::index_logits {

/// Rows of random values: as drawn, and as their format holds them.
struct Rows {
  Tensor stored{};
  Tensor scales{};  ///< of e2m1, and of e4m3 keys
  int64_t width = 0;
  std::shared_ptr<std::vector<float>> drawn{};   ///< [rows][width]
  std::shared_ptr<std::vector<float>> values{};  ///< with their scales, but for e4m3
  std::shared_ptr<std::vector<float>> factor{};  ///< the scale of each row of e4m3; else 1

  const float* drawn_row(int64_t row) const { return drawn->data() + row * width; }

  const float* row(int64_t index) const {
    return values != nullptr ? values->data() + index * width : decoded(index);
  }

  double scale(int64_t row) const {
    if (factor != nullptr) return (*factor)[static_cast<size_t>(row)];
    return stored.format() == Format::kE4m3 ? scales[row] : 1.0;
  }

 private:
  /// Of random codes, until the next one is asked for.
  const float* decoded(int64_t index) const {
    std::vector<float>& x = *drawn;
    for (int64_t d = 0; d < width; ++d) {
      if (stored.format() == Format::kU8) {
        const auto byte = static_cast<uint8_t>(stored[(index * width + d) / 2]);
        const double scale = scales[(index * width + d) / kIndexScaleGroup];
        x[static_cast<size_t>(d)] = to_float(unpack_e2m1(&byte, d % 2)) * static_cast<float>(scale);
      } else {
        x[static_cast<size_t>(d)] = static_cast<float>(stored[index * width + d]);
      }
    }
    return x.data();
  }
};

enum class RowScales { kInOperand, kElsewhere };

/// Keys [pages, rows of a page] of random codes: those of long contexts would take longer to
/// quantise than to measure, and more memory. They have no values as drawn.
template <class Builder>
Rows random_keys(Builder& c, int64_t pages, int64_t page_size, int64_t width, Format format) {
  Rows r{.width = width};
  const bool bytes = format == Format::kU8;
  const bool coded = bytes || format == Format::kE4m3;
  const Fill codes = bytes ? Fill{.dist = Dist::kBytes} : Fill{.scale = coded ? 100.0 : 1.0};
  const RowPlacement repeats{.may_repeat = true};
  r.stored = c.input({pages, page_size, index_elements(format, width)}, format, codes, repeats);
  const Fill scale{.dist = Dist::kUniform, .scale = 0.01, .offset = 0.005};
  const int64_t groups = bytes ? width / kIndexScaleGroup : 1;
  if (coded) {
    const Format scales = bytes ? Format::kUe8m0 : Format::kF32;
    r.scales = c.input({pages, page_size, groups}, scales, scale, repeats);
  }
  r.drawn = std::make_shared<std::vector<float>>(static_cast<size_t>(width));
  return r;
}

/// An operand [dims, width in that format] of quantised normal values; dims has all axes but the
/// last. Rows of e4m3 with kElsewhere have their scales in `factor` alone.
template <class Builder>
Rows make_rows(Builder& c,
               std::vector<int64_t> dims,
               int64_t width,
               Format format,
               RowScales row_scales,
               const RowPlacement& placement) {
  Rows r{.width = width};
  int64_t count = 1;
  for (int64_t d : dims)
    count *= d;
  const auto with_last = [&](int64_t last) {
    std::vector<int64_t> all = dims;
    all.push_back(last);
    return all;
  };
  r.stored = c.input(with_last(index_elements(format, width)), format, {}, placement);
  if (format == Format::kU8) {
    r.scales = c.input(with_last(width / kIndexScaleGroup), Format::kUe8m0, {}, placement);
  }
  if (format == Format::kE4m3 && row_scales == RowScales::kInOperand) {
    r.scales = c.input(with_last(1), Format::kF32, {}, placement);
  }
  r.drawn = std::make_shared<std::vector<float>>(static_cast<size_t>(count * width));
  r.values = std::make_shared<std::vector<float>>(r.drawn->size());
  r.factor = std::make_shared<std::vector<float>>(static_cast<size_t>(count), 1.0f);
  std::vector<E4m3> e4m3(static_cast<size_t>(width));
  std::vector<uint8_t> packed(static_cast<size_t>(width / 2));
  std::vector<Ue8m0> groups(static_cast<size_t>(width / kIndexScaleGroup));
  for (int64_t row = 0; row < count; ++row) {
    float* x = r.drawn->data() + row * width;
    float* y = r.values->data() + row * width;
    generate_row({}, row, c.rng(), {x, static_cast<size_t>(width)});
    if (format == Format::kE4m3) {
      float& scale = (*r.factor)[static_cast<size_t>(row)];
      fp8_quantize_groups(x, 1, width, width, kFp8V32DemoUe8m0, e4m3.data(), &scale);
      if (r.scales.present()) r.scales.set(row, scale);
      for (int64_t d = 0; d < width; ++d)
        y[d] = to_float(e4m3[static_cast<size_t>(d)]);
    } else if (format == Format::kU8) {
      mxfp4_quantize(x, 1, width, Mxfp4Rule::kCeil, packed.data(), groups.data());
      mxfp4_dequantize(packed.data(), groups.data(), 1, width, y);
      for (size_t g = 0; g < groups.size(); ++g)
        r.scales.set(row * r.scales.dim(r.scales.rank() - 1) + static_cast<int64_t>(g),
                     to_float(groups[g]));
      for (int64_t i = 0; i < width / 2; ++i)
        r.stored.set(row * (width / 2) + i, packed[static_cast<size_t>(i)]);
      continue;
    } else {
      for (int64_t d = 0; d < width; ++d)
        y[d] = format == Format::kBf16 ? to_float(bf16_from_float(x[d])) : x[d];
    }
    for (int64_t d = 0; d < width; ++d)
      r.stored.set(row * width + d, y[d]);
  }
  return r;
}

/// A row of keys that no token sees: what is read of it shows.
inline void spoil_row(const Rows& keys, int64_t row) {
  const int64_t elements = keys.stored.dim(keys.stored.rank() - 1);
  const bool is_float = keys.stored.format() != Format::kU8;
  for (int64_t i = 0; i < elements; ++i)
    keys.stored.set(row * elements + i, is_float ? NAN : 0x77);
}

}  // namespace fathom::index_logits
