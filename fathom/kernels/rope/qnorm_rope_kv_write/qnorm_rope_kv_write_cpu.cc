#include <cmath>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/norm/inverse_rms.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write_rows.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rope_loops.h"

namespace fathom {
namespace {

using Args = QnormRopeKvWrite::Args;

/// Turns the last R of the D values of a row.
void rotate_row(const Args& a, int64_t t, float* row) {
  const int64_t R = a.table.dim(1);
  float* pe = row + a.kv.dim(1) - R;
  const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
  rotate_head(pe, pe, table_row, R, RopeStyle::kInterleaved);
}

template <class A>
void query_head(const Args& a, int64_t t, int64_t h, float* row) {
  const int64_t D = a.kv.dim(1);
  const A* q = a.q.row<A>(t) + h * a.q.stride(1);
  A* out = a.q_out.row<A>(t) + h * a.q_out.stride(1);
  const float r = inverse_rms_of(D, a.eps, [&](int64_t d) { return to_float(q[d]); });
  for (int64_t d = 0; d < D; ++d)
    row[d] = to_float(q[d]) * r;
  rotate_row(a, t, row);
  for (int64_t d = 0; d < D; ++d)
    out[d] = from_float<A>(row[d]);
}

template <class A, class W>
void norm_kv(const A* kv, const W* weight, int64_t D, float eps, float* row) {
  const float r = inverse_rms_of(D, eps, [&](int64_t d) { return to_float(kv[d]); });
  for (int64_t d = 0; d < D; ++d)
    row[d] = to_float(kv[d]) * r * to_float(weight[d]);
}

template <class A>
void cache_token(const Args& a, const CodedRows& rows, int64_t t, float* row) {
  const int64_t D = a.kv.dim(1);
  const int64_t slot = a.slots.present() ? a.slots.as<int64_t>()[t] : t;
  if (slot < 0) return;
  const A* kv = a.kv.row<A>(t);
  if (a.kv_norm.present()) {
    with_activation_type(a.kv_norm.format,
                         [&]<class W>(W) { norm_kv(kv, a.kv_norm.as<W>(), D, a.eps, row); });
  } else {
    for (int64_t d = 0; d < D; ++d)
      row[d] = to_float(kv[d]);
  }
  rotate_row(a, t, row);
  store_cache_row(rows, slot, row);
}

struct Portable {
  static void run(const Args& a, float* row, int64_t begin, int64_t end) {
    const CodedRows rows = cache_rows(a.fields());
    with_activation_type(a.kv.format, [&]<class A>(A) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < a.q.dim(1); ++h)
          query_head<A>(a, t, h, row);
        cache_token<A>(a, rows, t, row);
      }
    });
  }
};

struct Avx512 {
  static void run(const Args& a, float* row, int64_t begin, int64_t end) {
    avx512::qnorm_rope_kv_write_rows(a, row, begin, end);
  }
};

template <class Loops>
Status qnorm_rope_kv_write(Exec& ex, const Args& a) {
  const int64_t D = a.kv.dim(1);
  const int64_t bytes = 2 * (a.q.dim(1) + 1) * D * element_bytes(a.kv.format);
  auto* workspace = static_cast<float*>(ex.workspace);
  for_rows_by_thread(ex, a.kv.dim(0), bytes, [&](int thread, int64_t begin, int64_t end) {
    Loops::run(a, workspace + thread * row_room(D), begin, end);
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost QnormRopeKvWrite::cost(const Args& a) {
  const int64_t rows = a.q.dim(0) * (a.q.dim(1) + 1);
  return {.flops = static_cast<double>(rows * 3 * (a.kv.dim(1) + a.table.dim(1)))};
}

void QnormRopeKvWrite::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.q.dim(0);
  const int64_t D = a.kv.dim(1);
  const int64_t element = element_bytes(a.q.format);
  const int64_t weight = a.kv_norm.present() ? D * element_bytes(a.kv_norm.format) : 0;
  cost.bytes_read = T * ((a.q.dim(1) + 1) * D * element + a.table.dim(1) * 4 + 4) + weight;
  if (a.slots.present()) cost.bytes_read += T * 8;
  cost.bytes_written = T * (a.q.dim(1) * D * element + cache_row_bytes(a.fields()));
}

Status QnormRopeKvWrite::check(const Args& a) {
  FATHOM_TRY(check_same_format("q", a.q, "kv", a.kv));
  FATHOM_TRY(check_same_format("q", a.q, "q_out", a.q_out));
  if (!(a.eps >= 0.0f)) return invalid_argument(str_cat("eps is ", a.eps, ", expected 0 or more"));
  FATHOM_TRY(check_cache_row(a.fields(), a.kv.dim(1), CacheScale::kPowerOfTwo));
  FATHOM_TRY(check_positions(a.positions, a.table.dim(0)));
  if (a.slots.present()) return check_row_slots("slots", a.slots, a.values);
  const int64_t rows = a.values.dim(0) * a.values.dim(1);
  if (a.kv.dim(0) <= rows) return {};
  return invalid_argument(
      str_cat("kv has ", a.kv.dim(0), " tokens without slots but the cache has ", rows, " rows"));
}

int64_t QnormRopeKvWrite::workspace(const Args& a, int num_threads) {
  return num_threads * row_room(a.kv.dim(1)) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<QnormRopeKvWrite> qnorm_rope_kv_write_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, qnorm_rope_kv_write<Avx512>},
    {"portable", Isa::kPortable, "", kTraits, qnorm_rope_kv_write<Portable>},
};

}  // namespace fathom
