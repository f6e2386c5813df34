#include <cmath>
#include <limits>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/from_logits/from_logits.h"
#include "fathom/kernels/sample/parameters.h"
#include "fathom/kernels/sample/renorm/renorm_rows.h"

namespace fathom {
namespace {

/// Floats that a thread needs: the distribution, and room for its candidates.
int64_t floats_per_thread(int64_t V) {
  return threshold_room(V) * 2;
}

template <const RowKernels& kRows>
int32_t draw(const SampleFromLogits::Args& a, int64_t t, const RowPeak& peak, float* probs) {
  const int64_t V = a.logits.dim(1);
  float* room = probs + threshold_room(V);
  softmax_row(kRows, a.logits.row<const float>(t), peak, a.temperature.as<const float>()[t], probs,
              V);
  renorm_top_k_row(kRows, probs, a.top_k.as<const int32_t>()[t], probs, V, room);
  renorm_top_p_row(kRows, probs, double{a.top_p.as<const float>()[t]}, probs, V, room);
  return draw_min_p_row(kRows.scans, probs, a.min_p.as<const float>()[t],
                        double{a.uniform.as<const float>()[t]}, V);
}

template <const RowKernels& kRows>
Status sample_from_logits(Exec& ex, const SampleFromLogits::Args& a) {
  const int64_t V = a.logits.dim(1);
  auto* workspace = static_cast<float*>(ex.workspace);
  for_rows_by_thread(
      ex, a.logits.dim(0), kScanWorkPerToken * V, [&](int thread, int64_t begin, int64_t end) {
        float* probs = workspace + thread * floats_per_thread(V);
        for (int64_t t = begin; t < end; ++t) {
          const RowPeak peak = kRows.find_peak(a.logits.row<const float>(t), V);
          const bool nothing = peak.max == -std::numeric_limits<float>::infinity();
          a.bad.as<int32_t>()[t] = peak.unusable || nothing ? 1 : 0;
          a.ids.as<int32_t>()[t] = is_one_hot(peak, a.temperature.as<const float>()[t])
                                       ? peak.index
                                       : draw<kRows>(a, t, peak, probs);
        }
      });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status SampleFromLogits::check(const Args& a) {
  FATHOM_TRY(check_each("temperature", a.temperature, 0.0f, "a finite number from 0 on",
                        [](float value) { return !(value >= 0 && std::isfinite(value)); }));
  FATHOM_TRY(check_each("top_k", a.top_k, 1, "at least 1", [](int32_t k) { return k < 1; }));
  FATHOM_TRY(
      check_each("top_p", a.top_p, 1.0f, "a positive number", [](float p) { return !(p > 0); }));
  FATHOM_TRY(check_each("min_p", a.min_p, 0.0f, "a number in [0, 1]",
                        [](float p) { return !(p >= 0 && p <= 1); }));
  return check_each("uniform", a.uniform, 0.0f, "a number in [0, 1)",
                    [](float u) { return !(u >= 0 && u < 1); });
}

int64_t SampleFromLogits::workspace(const Args& a, int num_threads) {
  return num_threads * floats_per_thread(a.logits.dim(1)) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<SampleFromLogits> sample_from_logits_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, sample_from_logits<kAvx512Rows>},
    {"portable", Isa::kPortable, "", kTraits, sample_from_logits<kPortableRows>},
};

}  // namespace fathom
