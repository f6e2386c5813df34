#include <cmath>
#include <limits>

#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/attn/merge_state/merge_state_rows.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

MergedRow merge_lse(float lse_a, float lse_b, LseBase base) {
  if (std::isinf(lse_a)) lse_a = -kInfinity;  // +inf means "no keys" as well
  if (std::isinf(lse_b)) lse_b = -kInfinity;
  if (lse_a == -kInfinity && lse_b == -kInfinity) return {0.0f, 0.0f, -kInfinity};
  if (lse_a == -kInfinity) return {0.0f, 1.0f, lse_b};
  if (lse_b == -kInfinity) return {1.0f, 0.0f, lse_a};
  const float m = std::fmax(lse_a, lse_b);
  const auto power = [base](float x) { return base == LseBase::kE ? std::exp(x) : std::exp2(x); };
  const float weight_a = power(lse_a - m);
  const float weight_b = power(lse_b - m);
  const float sum = weight_a + weight_b;
  const float log_sum = base == LseBase::kE ? std::log(sum) : std::log2(sum);
  return {weight_a / sum, weight_b / sum, m + log_sum};
}

namespace {

template <class A, class B, class O>
void merge_row(const MergedRow& m, const A* a, const B* b, O* o, int64_t D) {
  for (int64_t d = 0; d < D; ++d) {
    float sum = 0.0f;  // a side without weight is not read: it may hold anything
    if (m.share_a != 0.0f) sum += m.share_a * to_float(a[d]);
    if (m.share_b != 0.0f) sum += m.share_b * to_float(b[d]);
    o[d] = from_float<O>(sum);
  }
}

int64_t bytes_per_token(const MergeState::Args& a) {
  return a.o.dim(1) * (12 * a.o.dim(2) + 12);
}

Status merge_state_portable(Exec& ex, const MergeState::Args& a) {
  const int64_t N = a.o.dim(1);
  const int64_t D = a.o.dim(2);
  with_float_type(a.o_a.format, [&]<class A>(A) {
    with_float_type(a.o_b.format, [&]<class B>(B) {
      with_float_type(a.o.format, [&]<class O>(O) {
        for_rows(ex, a.o.dim(0), bytes_per_token(a), [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            for (int64_t n = 0; n < N; ++n) {
              const MergedRow m =
                  merge_lse(a.lse_a.row<float>(t)[n], a.lse_b.row<float>(t)[n], a.base);
              merge_row(m, a.o_a.row<A>(t) + n * a.o_a.stride(1),
                        a.o_b.row<B>(t) + n * a.o_b.stride(1), a.o.row<O>(t) + n * a.o.stride(1),
                        D);
              a.lse.row<float>(t)[n] = m.lse;
            }
          }
        });
      });
    });
  });
  return {};
}

Status merge_state_avx512(Exec& ex, const MergeState::Args& a) {
  for_rows(ex, a.o.dim(0), bytes_per_token(a),
           [&](int64_t begin, int64_t end) { avx512::merge_state_rows(a, begin, end); });
  return {};
}

}  // namespace

constinit const VariantTable<MergeState> merge_state_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, merge_state_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, merge_state_portable},
};

}  // namespace fathom
