#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/kernels/rope/rope/rope_loops.h"
#include "fathom/kernels/rope/rope/rope_rows.h"

namespace fathom {

Status check_positions(const View& positions, int64_t table_rows) {
  if (positions.data == nullptr) return {};  // dry run
  for (int64_t t = 0; t < positions.dim(0); ++t) {
    const int64_t position = positions.as<int32_t>()[t];
    if (position >= 0 && position < table_rows) continue;
    return invalid_argument(
        str_cat("positions[", t, "] is ", position, " but the table has rows 0..", table_rows - 1));
  }
  return {};
}

namespace {

int64_t num_heads(const RopeInplace::Args& a) {
  return a.q.dim(1) + (a.k.present() ? 1 : 0);
}

}  // namespace

Cost RopeInplace::cost(const Args& a) {
  return {.flops = 3.0 * static_cast<double>(a.q.dim(0) * num_heads(a) * a.q.dim(2))};
}

void RopeInplace::bytes(const Args& a, Cost& cost) {
  const int64_t values = a.q.dim(0) * num_heads(a) * a.q.dim(2) * element_bytes(a.q.format);
  cost.bytes_read = values + a.q.dim(0) * (a.q.dim(2) * 4 + 4);
  cost.bytes_written = values;
}

Status RopeInplace::check(const Args& a) {
  if (a.k.present()) FATHOM_TRY(check_same_format("q", a.q, "k", a.k));
  return check_positions(a.positions, a.table.dim(0));
}

namespace {

Status rope_inplace_portable(Exec& ex, const RopeInplace::Args& a) {
  const int64_t num_q_heads = a.q.dim(1);
  const int64_t R = a.q.dim(2);
  with_activation_type(a.q.format, [&]<class A>(A) {
    for_rows(ex, a.q.dim(0), num_heads(a) * R * 8, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
        for (int64_t n = 0; n < num_q_heads; ++n) {
          A* q = a.q.row<A>(t) + n * a.q.stride(1);
          rotate_head(q, q, table_row, R, a.style, 1.0f);
        }
        if (a.k.present()) {
          A* k = a.k.row<A>(t);
          rotate_head(k, k, table_row, R, a.style, 1.0f);
        }
      }
    });
  });
  return {};
}

Status rope_inplace_avx512(Exec& ex, const RopeInplace::Args& a) {
  for_rows(ex, a.q.dim(0), num_heads(a) * a.q.dim(2) * 8,
           [&](int64_t begin, int64_t end) { avx512::rope_inplace_rows(a, begin, end); });
  return {};
}

}  // namespace

constinit const VariantTable<RopeInplace> rope_inplace_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, rope_inplace_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, rope_inplace_portable},
};

}  // namespace fathom
