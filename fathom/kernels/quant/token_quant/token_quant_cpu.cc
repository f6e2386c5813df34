#include <cmath>

#include "fathom/formats/block_fp8.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/quant/token_quant/token_quant.h"
#include "fathom/kernels/quant/token_quant/token_quant_rows.h"

namespace fathom {

float token_scale(float amax) {
  return amax == 0.0f ? 0.0f : fp8_scale(amax, kFp8PerToken);
}

namespace {

template <class A>
void token_quant_row(const A* x, E4m3* q, float* s, int64_t D) {
  float amax = 0.0f;
  for (int64_t d = 0; d < D; ++d)
    amax = std::fmax(amax, std::fabs(to_float(x[d])));  // drops NaN
  *s = token_scale(amax);
  // 1 stands for the scale of zeros: their codes are 0 all the same, and that of a NaN is NaN.
  const float scale = amax == 0.0f ? 1.0f : *s;
  for (int64_t d = 0; d < D; ++d)
    q[d] = fp8_code(to_float(x[d]), scale, amax, kFp8PerToken);
}

Status token_quant_portable(Exec& ex, const TokenQuantFp8::Args& a) {
  const int64_t D = a.x.dim(1);
  with_float_type(a.x.format, [&]<class A>(A) {
    for_rows(ex, a.x.dim(0), 3 * D, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        token_quant_row(a.x.row<A>(t), a.q.row<E4m3>(t), a.s.row<float>(t), D);
    });
  });
  return {};
}

Status token_quant_avx512(Exec& ex, const TokenQuantFp8::Args& a) {
  for_rows(ex, a.x.dim(0), 3 * a.x.dim(1),
           [&](int64_t begin, int64_t end) { avx512::token_quant_rows(a, begin, end); });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<TokenQuantFp8> token_quant_fp8_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, token_quant_avx512},
    {"portable", Isa::kPortable, "", kTraits, token_quant_portable},
};

}  // namespace fathom
