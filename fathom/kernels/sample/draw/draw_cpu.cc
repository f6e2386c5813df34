#include <algorithm>
#include <atomic>
#include <cmath>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/draw/draw.h"
#include "fathom/kernels/sample/parameters.h"
#include "fathom/kernels/sample/renorm/renorm_rows.h"

namespace fathom {
namespace {

template <class Args>
int64_t row_of(const Args& a, int64_t b) {
  return a.indices.present() ? a.indices.template as<const int32_t>()[b] : b;
}

template <class Args>
double uniform_of(const Args& a, int64_t b) {
  if (a.uniform.present()) return double{a.uniform.template as<const float>()[b]};
  return double{Rng(a.seed, static_cast<uint64_t>(b), a.offset).next_uniform()};
}

float threshold_of(const ProbabilityScans& scans,
                   const float* p,
                   int64_t count,
                   int64_t k,
                   double top_p,
                   FilterOrder order,
                   float* room) {
  const Kept by_k = scans.top_k(p, count, k, room);
  if (top_p >= 1) return by_k.threshold;
  switch (order) {
    case FilterOrder::kTopKFirst: {
      // Renormalising by top-k divides by its mass; multiplying the target is the same. The mass of
      // what top-k left reaches it.
      const double target = top_p * by_k.mass;
      if (k >= count) return scans.top_p(p, count, target, room).threshold;
      const int64_t left = scans.gather_from(p, count, by_k.threshold, room);
      return std::max(by_k.threshold, scans.top_p(room, left, target, room).threshold);
    }
    case FilterOrder::kJoint:
      return std::max(by_k.threshold, scans.top_p(p, count, top_p, room).threshold);
  }
  return 0.0f;
}

/// InvalidArgument for the first row with a NaN, if that is an error.
template <const ProbabilityScans& kScans, class Args>
Status check_nan(Exec& ex, const Args& a) {
  if (a.nan_check == NanCheck::kZero) return {};
  const int64_t rows = a.probs.dim(0);
  const int64_t V = a.probs.dim(1);
  std::atomic<int64_t> first{rows};
  for_rows(ex, rows, 4 * V, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (!kScans.has_nan(a.probs.template row<const float>(t), V)) continue;
      int64_t known = first.load();
      while (t < known && !first.compare_exchange_weak(known, t)) {
      }
      return;
    }
  });
  const int64_t t = first.load();
  if (t == rows) return {};
  const auto* p = a.probs.template row<const float>(t);
  const auto v = std::find_if(p, p + V, [](float x) { return std::isnan(x); }) - p;
  return invalid_argument(str_cat("probs[", t, ",", v, "] is NaN"));
}

template <const ProbabilityScans& kScans>
Status sample_min_p(Exec& ex, const SampleMinP::Args& a) {
  FATHOM_TRY(check_nan<kScans>(ex, a));
  const int64_t V = a.probs.dim(1);
  for_rows(ex, a.probs.dim(0), kScanWorkPerToken * V, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const auto* p = a.probs.row<const float>(row_of(a, b));
      a.ids.as<int32_t>()[b] =
          draw_min_p_row(kScans, p, parameter(a.min_p, a.min_p_all, b), uniform_of(a, b), V);
    }
  });
  return {};
}

template <const ProbabilityScans& kScans>
Status sample_top_k_top_p(Exec& ex, const SampleTopKTopP::Args& a) {
  FATHOM_TRY(check_nan<kScans>(ex, a));
  const int64_t rows = a.probs.dim(0);
  const int64_t V = a.probs.dim(1);
  auto* workspace = static_cast<float*>(ex.workspace);
  for_rows_by_thread(ex, rows, kScanWorkPerToken * V, [&](int thread, int64_t begin, int64_t end) {
    float* room = workspace + thread * threshold_room(V);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t row = row_of(a, b);
      const auto* p = a.probs.row<const float>(row);
      const float threshold =
          threshold_of(kScans, p, V, parameter(a.k, a.k_all, row),
                       double{parameter(a.top_p, a.top_p_all, row)}, a.order, room);
      a.ids.as<int32_t>()[b] = std::max(0, draw_token(kScans, p, V, threshold, uniform_of(a, b)));
    }
  });
  return {};
}

Status check_uniform(const View& uniform) {
  return check_each("uniform", uniform, 0.0f, "a number in [0, 1)",
                    [](float u) { return !(u >= 0 && u < 1); });
}

Status check_rows(const View& indices, int64_t count) {
  return check_each("indices", indices, 0, str_cat("0 to ", count - 1),
                    [&](int32_t i) { return indices.present() && (i < 0 || i >= count); });
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status SampleMinP::check(const Args& a) {
  FATHOM_TRY(check_each("min_p", a.min_p, a.min_p_all, "a number in [0, 1]",
                        [](float p) { return !(p >= 0 && p <= 1); }));
  FATHOM_TRY(check_uniform(a.uniform));
  return check_rows(a.indices, a.probs.dim(0));
}

Status SampleTopKTopP::check(const Args& a) {
  FATHOM_TRY(check_each("k", a.k, a.k_all, "at least 1", [](int32_t k) { return k < 1; }));
  FATHOM_TRY(check_each("top_p", a.top_p, a.top_p_all, "a positive number",
                        [](float p) { return !(p > 0); }));
  FATHOM_TRY(check_uniform(a.uniform));
  return check_rows(a.indices, a.probs.dim(0));
}

int64_t SampleTopKTopP::workspace(const Args& a, int num_threads) {
  return num_threads * threshold_room(a.probs.dim(1)) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<SampleMinP> sample_min_p_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, sample_min_p<kAvx512Scans>},
    {"portable", Isa::kPortable, "", kTraits, sample_min_p<kPortableScans>},
};

constinit const VariantTable<SampleTopKTopP> sample_top_k_top_p_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, sample_top_k_top_p<kAvx512Scans>},
    {"portable", Isa::kPortable, "", kTraits, sample_top_k_top_p<kPortableScans>},
};

}  // namespace fathom
