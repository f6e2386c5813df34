#include <cmath>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/act/gated_act/gated_act_rows.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

Status SiluMul::check(const Args& a) {
  return check_same_format("x", a.x, "y", a.y);
}

namespace {

Status silu_mul_portable(Exec& ex, const SiluMul::Args& a) {
  const int64_t I = a.y.dim(1);
  with_activation_type(a.x.format, [&]<class A>(A) {
    for_rows(ex, a.x.dim(0), 12 * I, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A* gate = a.x.row<A>(t);
        const A* up = gate + I;
        A* y = a.y.row<A>(t);
        for (int64_t i = 0; i < I; ++i) {
          const float z = to_float(gate[i]);
          y[i] = from_float<A>(z / (1.0f + std::exp(-z)) * to_float(up[i]));
        }
      }
    });
  });
  return {};
}

Status silu_mul_avx512(Exec& ex, const SiluMul::Args& a) {
  for_rows(ex, a.x.dim(0), 12 * a.y.dim(1),
           [&](int64_t begin, int64_t end) { avx512::silu_mul_rows(a, begin, end); });
  return {};
}

}  // namespace

constinit const VariantTable<SiluMul> silu_mul_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, silu_mul_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, silu_mul_portable},
};

}  // namespace fathom
