#include <cmath>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm_rows.h"

namespace fathom {

Status AddRmsNorm::check(const Args& a) {
  FATHOM_TRY(check_same_format("x", a.x, "h", a.h));
  return check_same_format("x", a.x, "y", a.y);
}

namespace {

/// 1 / sqrt(mean of squares + eps) of D values; value(d) gives them. Partial sum p takes the
/// elements d with d % 64 == p, and the partial sums are then folded in halves: an order that
/// vectors of any width can follow, so that all variants give the same bits.
template <class Value>
float inverse_rms(int64_t D, float eps, Value value) {
  constexpr int kPartials = 64;
  float partial[kPartials] = {};
  for (int64_t d = 0; d < D; ++d) {
    const float v = value(d);
    partial[d % kPartials] += v * v;
  }
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p)
      partial[p] += partial[p + half];
  }
  return 1.0f / std::sqrt(partial[0] / static_cast<float>(D) + eps);
}

template <class X, class W, class Y>
void rmsnorm_row(const X* x, const W* w, Y* y, int64_t D, float eps) {
  const float r = inverse_rms(D, eps, [&](int64_t d) { return to_float(x[d]); });
  for (int64_t d = 0; d < D; ++d)
    y[d] = from_float<Y>(to_float(x[d]) * r * to_float(w[d]));
}

template <class A, class W>
void add_rmsnorm_row(const A* x, A* h, const W* w, A* y, int64_t D, float eps) {
  const float r = inverse_rms(D, eps, [&](int64_t d) { return to_float(h[d]) + to_float(x[d]); });
  for (int64_t d = 0; d < D; ++d) {
    const float s = to_float(h[d]) + to_float(x[d]);
    h[d] = from_float<A>(s);
    y[d] = from_float<A>(s * r * to_float(w[d]));
  }
}

Status rmsnorm_portable(Exec& ex, const RmsNorm::Args& a) {
  const int64_t D = a.x.dim(1);
  with_float_type(a.x.format, [&]<class X>(X) {
    with_float_type(a.w.format, [&]<class W>(W) {
      with_float_type(a.y.format, [&]<class Y>(Y) {
        for_rows(ex, a.x.dim(0), 8 * D, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            rmsnorm_row(a.x.row<X>(t), a.w.as<W>(), a.y.row<Y>(t), D, a.eps);
          }
        });
      });
    });
  });
  return {};
}

Status add_rmsnorm_portable(Exec& ex, const AddRmsNorm::Args& a) {
  const int64_t D = a.x.dim(1);
  with_float_type(a.x.format, [&]<class A>(A) {
    with_float_type(a.w.format, [&]<class W>(W) {
      for_rows(ex, a.x.dim(0), 16 * D, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          add_rmsnorm_row(a.x.row<A>(t), a.h.row<A>(t), a.w.as<W>(), a.y.row<A>(t), D, a.eps);
        }
      });
    });
  });
  return {};
}

Status rmsnorm_avx512(Exec& ex, const RmsNorm::Args& a) {
  for_rows(ex, a.x.dim(0), 8 * a.x.dim(1),
           [&](int64_t begin, int64_t end) { avx512::rmsnorm_rows(a, begin, end); });
  return {};
}

Status add_rmsnorm_avx512(Exec& ex, const AddRmsNorm::Args& a) {
  for_rows(ex, a.x.dim(0), 16 * a.x.dim(1),
           [&](int64_t begin, int64_t end) { avx512::add_rmsnorm_rows(a, begin, end); });
  return {};
}

}  // namespace

constinit const VariantTable<RmsNorm> rmsnorm_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, rmsnorm_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, rmsnorm_portable},
};

constinit const VariantTable<AddRmsNorm> add_rmsnorm_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, add_rmsnorm_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, add_rmsnorm_portable},
};

}  // namespace fathom
