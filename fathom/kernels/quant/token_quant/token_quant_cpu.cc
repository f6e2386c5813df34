#include <cmath>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/quant/token_quant/token_quant.h"
#include "fathom/kernels/quant/token_quant/token_quant_rows.h"

namespace fathom {

float token_scale(float amax) {
  return amax == 0.0f ? 0.0f : fp8_scale(amax, kFp8PerToken);
}

Int8Row int8_row(float amax) {
  const float absmax = std::fmax(amax, 1e-10f);
  return {.scale = absmax / 127.0f, .factor = 127.0f / absmax};
}

namespace {

// Sixteen sums side by side, folded in order: the same bits however a compiler arranges the lanes.
template <class A>
double sum_of_row(const A* x, int64_t D) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= D; d += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i)
      lanes[i] += static_cast<double>(to_float(x[d + i]));
  }
  for (int64_t i = 0; d + i < D; ++i)
    lanes[i] += static_cast<double>(to_float(x[d + i]));
  double sum = 0;
  for (const double lane : lanes)
    sum += lane;
  return sum;
}

}  // namespace

void store_int8_row(const TokenQuantInt8::Args& a, int64_t t, float scale) {
  if (a.s.format == Format::kF32) {
    *a.s.row<float>(t) = scale;
  } else {
    *a.s.row<F16>(t) = f16_from_float(scale);
  }
  if (!a.sums.present()) return;
  with_float_type(a.x.format, [&]<class A>(A) {
    const double sum = sum_of_row(a.x.row<A>(t), a.x.dim(1));
    *a.sums.row<F16>(t) = f16_from_float(static_cast<float>(sum));
  });
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

// Half away from zero; NaN is 0.
int8_t int8_code(float value) {
  return std::isnan(value) ? int8_t{0} : static_cast<int8_t>(std::round(value));
}

Status token_quant_int8_portable(Exec& ex, const TokenQuantInt8::Args& a) {
  const int64_t D = a.x.dim(1);
  with_float_type(a.x.format, [&]<class A>(A) {
    for_rows(ex, a.x.dim(0), 3 * D, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A* x = a.x.row<A>(t);
        float amax = 0.0f;
        for (int64_t d = 0; d < D; ++d)
          amax = std::fmax(amax, std::fabs(to_float(x[d])));  // drops NaN
        const Int8Row row = int8_row(amax);
        for (int64_t d = 0; d < D; ++d)
          a.q.row<int8_t>(t)[d] = int8_code(to_float(x[d]) * row.factor);
        store_int8_row(a, t, row.scale);
      }
    });
  });
  return {};
}

Status token_quant_int8_avx512(Exec& ex, const TokenQuantInt8::Args& a) {
  for_rows(ex, a.x.dim(0), 3 * a.x.dim(1),
           [&](int64_t begin, int64_t end) { avx512::token_quant_int8_rows(a, begin, end); });
  return {};
}

Status tensor_quant_portable(Exec& ex, const TensorQuantFp8::Args& a) {
  const int64_t D = a.x.dim(1);
  const float scale = *a.s.as<float>();
  with_float_type(a.x.format, [&]<class A>(A) {
    for_rows(ex, a.x.dim(0), 3 * D, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t d = 0; d < D; ++d)
          a.q.row<E4m3>(t)[d] = e4m3_from_float(to_float(a.x.row<A>(t)[d]) / scale);
      }
    });
  });
  return {};
}

Status tensor_quant_avx512(Exec& ex, const TensorQuantFp8::Args& a) {
  for_rows(ex, a.x.dim(0), 3 * a.x.dim(1),
           [&](int64_t begin, int64_t end) { avx512::tensor_quant_rows(a, begin, end); });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<TokenQuantFp8> token_quant_fp8_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, token_quant_avx512},
    {"portable", Isa::kPortable, "", kTraits, token_quant_portable},
};

constinit const VariantTable<TokenQuantInt8> token_quant_int8_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, token_quant_int8_avx512},
    {"portable", Isa::kPortable, "", kTraits, token_quant_int8_portable},
};

constinit const VariantTable<TensorQuantFp8> tensor_quant_fp8_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, tensor_quant_avx512},
    {"portable", Isa::kPortable, "", kTraits, tensor_quant_portable},
};

}  // namespace fathom
