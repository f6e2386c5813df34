// Operands for the tests of products.
#pragma once

#include <cstdint>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

inline constexpr Format kFormats[] = {Format::kBf16, Format::kFp8Block, Format::kFp8BlockUe8m0,
                                      Format::kNvfp4, Format::kMxfp8};

/// A weight and the memory it lies in.
struct Stored {
  CaseWeightSpec spec;
  std::vector<std::byte> values, scales;
  std::vector<float> global;

  Stored(const CaseWeightSpec& s, uint64_t seed) : spec(s) {
    const WeightBytes bytes = weight_bytes(s);
    values.resize(static_cast<size_t>(bytes.values));
    scales.resize(static_cast<size_t>(bytes.scales));
    global.resize(static_cast<size_t>(bytes.global / 4));
    Rng rng(seed, 0);
    generate_weight(s, rng, {values.data(), scales.data(), global.data()}, nullptr);
  }

  QuantView view() {
    QuantView w;
    w.layout = spec.layout;
    if (spec.num_experts > 0) {
      w.values = make_view(nullptr, {spec.num_experts, spec.rows, spec.cols}, spec.format);
    } else {
      w.values = make_view(nullptr, {spec.rows, spec.cols}, spec.format);
    }
    w.values.data = values.data();
    const bool tiled = spec.layout == WeightLayout::kRows16;
    const Format scale = tiled ? Format::kF32 : format_info(spec.format).scale;
    if (!scales.empty()) {
      const int64_t count = static_cast<int64_t>(scales.size()) / element_bytes(scale);
      w.scales = make_view(scales.data(), {count}, scale);
    }
    if (!global.empty()) {
      w.global = make_view(global.data(), {static_cast<int64_t>(global.size())}, Format::kF32);
    }
    return w;
  }
};

inline std::vector<Bf16> random_x(int64_t rows, int64_t k, uint64_t seed) {
  std::vector<Bf16> x(static_cast<size_t>(rows * k));
  std::vector<float> row(static_cast<size_t>(k));
  Rng rng(seed, 0);
  for (int64_t t = 0; t < rows; ++t) {
    generate_row({}, t, rng, row);
    for (int64_t i = 0; i < k; ++i) {
      x[static_cast<size_t>(t * k + i)] = bf16_from_float(row[static_cast<size_t>(i)]);
    }
  }
  return x;
}

}  // namespace fathom
