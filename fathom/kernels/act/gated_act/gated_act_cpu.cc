#include <cmath>
#include <limits>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/act/gated_act/gated_act_rows.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

Status SiluMul::check(const Args& a) {
  if (!(a.limit >= 0.0f))
    return invalid_argument(str_cat("limit is ", a.limit, ", expected 0 (none) or more"));
  return check_same_format("x", a.x, "y", a.y);
}

namespace {

Status check_without_limit(const SiluMul::Args& a) {
  if (a.limit != 0.0f)
    return invalid_argument(str_cat("limit is ", a.limit, ", but silu_mul alone takes one"));
  return check_same_format("x", a.x, "y", a.y);
}

float silu(float z) {
  return z / (1.0f + std::exp(-z));
}

float gelu(float z) {
  constexpr float kRootHalf = 0.70710678f;
  return z * (0.5f * std::erfc(-z * kRootHalf));
}

float gelu_tanh(float z) {
  constexpr float kTwoRootTwoOverPi = 1.59576912f;
  const float twice_u = kTwoRootTwoOverPi * (z + 0.044715f * z * z * z);
  return z / (1.0f + std::exp(-twice_u));
}

/// min(z, limit); NaN stays NaN.
float at_most(float z, float limit) {
  return z > limit ? limit : z;
}

using RowLoop = void (*)(const SiluMul::Args& a, int64_t begin, int64_t end);

template <float (*Act)(float)>
void portable_rows(const SiluMul::Args& a, int64_t begin, int64_t end) {
  const int64_t I = a.y.dim(1);
  const float limit = a.limit > 0.0f ? a.limit : std::numeric_limits<float>::infinity();
  with_float_type(a.x.format, [&]<class A>(A) {
    for (int64_t t = begin; t < end; ++t) {
      const A* gate = a.x.row<A>(t);
      const A* up = gate + I;
      A* y = a.y.row<A>(t);
      for (int64_t i = 0; i < I; ++i) {
        const float g = at_most(to_float(gate[i]), limit);
        const float u = -at_most(-at_most(to_float(up[i]), limit), limit);
        y[i] = from_float<A>(Act(g) * u);
      }
    }
  });
}

template <RowLoop Loop>
Status run_rows(Exec& ex, const SiluMul::Args& a) {
  for_rows(ex, a.x.dim(0), 12 * a.y.dim(1),
           [&](int64_t begin, int64_t end) { Loop(a, begin, end); });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status GeluMul::check(const Args& a) {
  return check_without_limit(a);
}

Status GeluTanhMul::check(const Args& a) {
  return check_without_limit(a);
}

constinit const VariantTable<SiluMul> silu_mul_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::silu_mul_rows>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<portable_rows<silu>>},
};

constinit const VariantTable<GeluMul> gelu_mul_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::gelu_mul_rows>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<portable_rows<gelu>>},
};

constinit const VariantTable<GeluTanhMul> gelu_tanh_mul_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::gelu_tanh_mul_rows>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<portable_rows<gelu_tanh>>},
};

}  // namespace fathom
