#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/argmax/argmax_rows.h"
#include "fathom/kernels/sample/renorm/renorm.h"
#include "fathom/kernels/sample/renorm/renorm_rows.h"
#include "fathom/kernels/sample/thresholds.h"

namespace fathom {
namespace {

// ---- softmax ----

double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::isnan(z[i]) ? 0.0f : std::exp((z[i] - max) / temperature);
    sum += double{out[i]};
  }
  return sum;
}

void scale_row(float* row, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    row[i] *= factor;
}

/// The parts of a softmax in one instruction set.
struct SoftmaxRow {
  RowPeak (*find_peak)(const float* row, int64_t count);
  ExpRow exp_row;
  ScaleRow scale_row;
};

constexpr SoftmaxRow kPortable{find_peak, softmax_exp, scale_row};
constexpr SoftmaxRow kAvx512{avx512::find_peak, avx512::softmax_exp, avx512::scale_row};

template <const SoftmaxRow& kRow>
Status softmax_temperature(Exec& ex, const SoftmaxTemperature::Args& a) {
  const int64_t V = a.logits.dim(1);
  for_rows(ex, a.logits.dim(0), 12 * V, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* z = a.logits.row<const float>(t);
      float* probs = a.probs.row<float>(t);
      const float temperature = a.temperature.as<const float>()[t];
      const RowPeak peak = kRow.find_peak(z, V);
      if (temperature == 0 || !std::isfinite(peak.max)) {
        std::fill_n(probs, V, 0.0f);
        probs[peak.index] = 1.0f;
        continue;
      }
      const double sum = kRow.exp_row(z, peak.max, temperature, probs, V);
      kRow.scale_row(probs, static_cast<float>(1.0 / sum), V);
    }
  });
  return {};
}

// ---- filters ----

void keep_and_scale(const float* p, float* y, int64_t count, float threshold, double mass) {
  // Division in float64: a kept set of one gives exactly 1.
  for (int64_t i = 0; i < count; ++i) {
    const float value = usable_probability(p[i]);
    y[i] = value >= threshold ? static_cast<float>(double{value} / mass) : 0.0f;
  }
}

constexpr double kLeastMass = 1e-8;

// Three passes over a histogram and one that writes, all from the caches: a row takes about as long
// as reading 64 bytes a token from memory.
constexpr int64_t kWorkPerToken = 64;

Status renorm_top_k(Exec& ex, const RenormTopK::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_rows(ex, a.probs.dim(0), kWorkPerToken * V, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* p = a.probs.row<const float>(t);
      float* y = a.y.row<float>(t);
      const int64_t k = a.k.as<const int32_t>()[t];
      if (k >= V) {
        std::copy_n(p, y == p ? 0 : V, y);
        continue;
      }
      const Kept kept = top_k_threshold(p, V, k);
      keep_and_scale(p, y, V, kept.threshold, std::max(kept.mass, kLeastMass));
    }
  });
  return {};
}

Status renorm_top_p(Exec& ex, const RenormTopP::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_rows(ex, a.probs.dim(0), kWorkPerToken * V, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* p = a.probs.row<const float>(t);
      const double target = double{a.p.as<const float>()[t]};
      const Kept kept =
          target >= 1 ? Kept{0.0f, mass_from(p, V, 0.0f)} : top_p_threshold(p, V, target);
      keep_and_scale(p, a.y.row<float>(t), V, kept.threshold, std::max(kept.mass, kLeastMass));
    }
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status SoftmaxTemperature::check(const Args& a) {
  if (a.temperature.data == nullptr) return {};
  for (int64_t t = 0; t < a.temperature.dim(0); ++t) {
    const float value = a.temperature.as<const float>()[t];
    if (value >= 0 && std::isfinite(value)) continue;
    return invalid_argument(
        str_cat("temperature[", t, "] is ", value, ", expected a finite number from 0 on"));
  }
  return {};
}

Status RenormTopK::check(const Args& a) {
  if (a.k.data == nullptr) return {};
  for (int64_t t = 0; t < a.k.dim(0); ++t) {
    const int32_t value = a.k.as<const int32_t>()[t];
    if (value < 1)
      return invalid_argument(str_cat("k[", t, "] is ", value, ", expected at least 1"));
  }
  return {};
}

Status RenormTopP::check(const Args& a) {
  if (a.p.data == nullptr) return {};
  for (int64_t t = 0; t < a.p.dim(0); ++t) {
    const float value = a.p.as<const float>()[t];
    if (!(value > 0)) {
      return invalid_argument(str_cat("p[", t, "] is ", value, ", expected a positive number"));
    }
  }
  return {};
}

constinit const VariantTable<SoftmaxTemperature> softmax_temperature_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, softmax_temperature<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, softmax_temperature<kPortable>},
};

constinit const VariantTable<RenormTopK> renorm_top_k_cpu{
    {"portable", Isa::kPortable, "", kTraits, renorm_top_k},
};

constinit const VariantTable<RenormTopP> renorm_top_p_cpu{
    {"portable", Isa::kPortable, "", kTraits, renorm_top_p},
};

}  // namespace fathom
