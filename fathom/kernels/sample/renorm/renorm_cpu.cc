#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/argmax/argmax_rows.h"
#include "fathom/kernels/sample/parameters.h"
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

// The portable scans pass over a row four times and once to write, all from the caches: a row takes
// about as long as reading 64 bytes a token from memory.
constexpr int64_t kWorkPerToken = 64;

/// The parts of a filter in one instruction set.
struct FilterRow {
  ProbabilityScans scans;
  KeepAndScale keep_and_scale;
};

constexpr FilterRow kPortableFilter{kPortableScans, keep_and_scale};
constexpr FilterRow kAvx512Filter{kAvx512Scans, avx512::keep_and_scale};

/// Calls filter(t, p, y, room) for every row.
template <class Filter>
void for_filtered(Exec& ex, const View& probs, const View& y, Filter filter) {
  const int64_t V = probs.dim(1);
  auto* workspace = static_cast<float*>(ex.workspace);
  for_rows_by_thread(ex, probs.dim(0), kWorkPerToken * V,
                     [&](int thread, int64_t begin, int64_t end) {
                       float* room = workspace + thread * threshold_room(V);
                       for (int64_t t = begin; t < end; ++t)
                         filter(t, probs.row<const float>(t), y.row<float>(t), room);
                     });
}

template <const FilterRow& kRow>
Status renorm_top_k(Exec& ex, const RenormTopK::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_filtered(ex, a.probs, a.y, [&](int64_t t, const float* p, float* y, float* room) {
    const int64_t k = parameter(a.k, a.k_all, t);
    if (k >= V) {
      std::copy_n(p, y == p ? 0 : V, y);
      return;
    }
    const Kept kept = kRow.scans.top_k(p, V, k, room);
    kRow.keep_and_scale(p, y, V, kept.threshold, std::max(kept.mass, kLeastMass));
  });
  return {};
}

template <const FilterRow& kRow>
Status renorm_top_p(Exec& ex, const RenormTopP::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_filtered(ex, a.probs, a.y, [&](int64_t t, const float* p, float* y, float* room) {
    const double target = double{parameter(a.p, a.p_all, t)};
    const Kept kept = target >= 1 ? Kept{0.0f, kRow.scans.mass_from(p, V, 0.0f)}
                                  : kRow.scans.top_p(p, V, target, room);
    kRow.keep_and_scale(p, y, V, kept.threshold, std::max(kept.mass, kLeastMass));
  });
  return {};
}

int64_t room_bytes(const View& probs, int num_threads) {
  return num_threads * threshold_room(probs.dim(1)) * static_cast<int64_t>(sizeof(float));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status SoftmaxTemperature::check(const Args& a) {
  return check_each("temperature", a.temperature, 0.0f, "a finite number from 0 on",
                    [](float value) { return !(value >= 0 && std::isfinite(value)); });
}

Status RenormTopK::check(const Args& a) {
  return check_each("k", a.k, a.k_all, "at least 1", [](int32_t k) { return k < 1; });
}

Status RenormTopP::check(const Args& a) {
  return check_each("p", a.p, a.p_all, "a positive number", [](float p) { return !(p > 0); });
}

int64_t RenormTopK::workspace(const Args& a, int num_threads) {
  return room_bytes(a.probs, num_threads);
}

int64_t RenormTopP::workspace(const Args& a, int num_threads) {
  return room_bytes(a.probs, num_threads);
}

constinit const VariantTable<SoftmaxTemperature> softmax_temperature_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, softmax_temperature<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, softmax_temperature<kPortable>},
};

constinit const VariantTable<RenormTopK> renorm_top_k_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, renorm_top_k<kAvx512Filter>},
    {"portable", Isa::kPortable, "", kTraits, renorm_top_k<kPortableFilter>},
};

constinit const VariantTable<RenormTopP> renorm_top_p_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, renorm_top_p<kAvx512Filter>},
    {"portable", Isa::kPortable, "", kTraits, renorm_top_p<kPortableFilter>},
};

}  // namespace fathom
