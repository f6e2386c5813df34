#include <algorithm>
#include <cmath>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/draw/draw.h"
#include "fathom/kernels/sample/thresholds.h"

namespace fathom {
namespace {

/// Tokens whose mass is summed at once while the one that is drawn is looked for.
constexpr int64_t kBlock = 512;

/// Calls f(first token, kept mass) for every block until it returns false.
template <class F>
void for_blocks(const float* p, int64_t count, float threshold, F f) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t tokens = std::min(kBlock, count - begin);
    if (!f(begin, mass_from(p + begin, tokens, threshold))) return;
  }
}

/// The first token of [begin, begin + tokens) whose running mass exceeds the target; the last one
/// that is kept and possible, where rounding lets none exceed it; -1 if there is none.
int32_t find_token(
    const float* p, int64_t begin, int64_t tokens, float threshold, double running, double target) {
  int32_t last = -1;
  for (int64_t v = begin; v < begin + tokens; ++v) {
    const float value = usable_probability(p[v]);
    if (value < threshold || value == 0) continue;
    running += double{value};
    last = static_cast<int32_t>(v);
    if (running > target) break;
  }
  return last;
}

/// The first kept token whose running mass exceeds uniform * (mass of all kept).
int32_t draw(const float* p, int64_t count, float threshold, double uniform) {
  double mass = 0;
  for_blocks(p, count, threshold, [&](int64_t, double block) {
    mass += block;
    return true;
  });
  const double target = uniform * mass;
  double running = 0;
  double before = 0;
  int64_t chosen = 0;  // block that holds the token: the newest that has mass
  for_blocks(p, count, threshold, [&](int64_t begin, double block) {
    if (block > 0) {
      chosen = begin;
      before = running;
      running += block;
    }
    return !(running > target);
  });
  const int64_t tokens = std::min(kBlock, count - chosen);
  return std::max(0, find_token(p, chosen, tokens, threshold, before, target));
}

/// The smallest float that is not below a float64 threshold: comparing with either is the same.
float round_up(double threshold) {
  const auto rounded = static_cast<float>(threshold);
  return double{rounded} < threshold ? std::nextafter(rounded, HUGE_VALF) : rounded;
}

float threshold_of(const float* p, int64_t count, int64_t k, double top_p, FilterOrder order) {
  const Kept by_k = top_k_threshold(p, count, k);
  switch (order) {
    case FilterOrder::kTopKFirst:
      // Renormalising by top-k divides by its mass; multiplying the target is the same. The mass of
      // the k largest reaches it, so the threshold does not fall below that of k.
      return top_p >= 1
                 ? by_k.threshold
                 : std::max(by_k.threshold, top_p_threshold(p, count, top_p * by_k.mass).threshold);
    case FilterOrder::kJoint:
      return std::max(by_k.threshold, top_p_threshold(p, count, top_p).threshold);
  }
  return 0.0f;
}

// See renorm_cpu.cc.
constexpr int64_t kWorkPerToken = 64;

/// Calls f(b, row of probs) for every output.
template <class F>
void for_draws(Exec& ex, const View& probs, const View& indices, F f) {
  for_rows(ex, probs.dim(0), kWorkPerToken * probs.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      f(b, probs.row<const float>(indices.present() ? indices.as<const int32_t>()[b] : b));
    }
  });
}

Status sample_min_p(Exec& ex, const SampleMinP::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_draws(ex, a.probs, a.indices, [&](int64_t b, const float* p) {
    float largest = 0;
    for (int64_t v = 0; v < V; ++v)
      largest = std::max(largest, usable_probability(p[v]));
    const float threshold = round_up(double{a.min_p.as<const float>()[b]} * double{largest});
    a.ids.as<int32_t>()[b] = draw(p, V, threshold, double{a.uniform.as<const float>()[b]});
  });
  return {};
}

Status sample_top_k_top_p(Exec& ex, const SampleTopKTopP::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_draws(ex, a.probs, a.indices, [&](int64_t b, const float* p) {
    const float threshold = threshold_of(p, V, a.k.as<const int32_t>()[b],
                                         double{a.top_p.as<const float>()[b]}, a.order);
    a.ids.as<int32_t>()[b] = draw(p, V, threshold, double{a.uniform.as<const float>()[b]});
  });
  return {};
}

/// Calls bad(value) for each of v[T]; the first that is bad gives the error.
template <class T, class Bad>
Status check_each(std::string_view name, const View& v, std::string_view expected, Bad bad) {
  if (!v.present() || v.data == nullptr) return {};
  for (int64_t t = 0; t < v.dim(0); ++t) {
    const T value = v.as<const T>()[t];
    if (!bad(value)) continue;
    return invalid_argument(str_cat(name, "[", t, "] is ", value, ", expected ", expected));
  }
  return {};
}

Status check_uniform(const View& uniform) {
  return check_each<float>("uniform", uniform, "a number in [0, 1)",
                           [](float u) { return !(u >= 0 && u < 1); });
}

Status check_rows(const View& indices, int64_t count) {
  return check_each<int32_t>("indices", indices, str_cat("0 to ", count - 1),
                             [&](int32_t i) { return i < 0 || i >= count; });
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status SampleMinP::check(const Args& a) {
  FATHOM_TRY(check_each<float>("min_p", a.min_p, "a number in [0, 1]",
                               [](float p) { return !(p >= 0 && p <= 1); }));
  FATHOM_TRY(check_uniform(a.uniform));
  return check_rows(a.indices, a.probs.dim(0));
}

Status SampleTopKTopP::check(const Args& a) {
  FATHOM_TRY(check_each<int32_t>("k", a.k, "at least 1", [](int32_t k) { return k < 1; }));
  FATHOM_TRY(
      check_each<float>("top_p", a.top_p, "a positive number", [](float p) { return !(p > 0); }));
  FATHOM_TRY(check_uniform(a.uniform));
  return check_rows(a.indices, a.probs.dim(0));
}

constinit const VariantTable<SampleMinP> sample_min_p_cpu{
    {"portable", Isa::kPortable, "", kTraits, sample_min_p},
};

constinit const VariantTable<SampleTopKTopP> sample_top_k_top_p_cpu{
    {"portable", Isa::kPortable, "", kTraits, sample_top_k_top_p},
};

}  // namespace fathom
