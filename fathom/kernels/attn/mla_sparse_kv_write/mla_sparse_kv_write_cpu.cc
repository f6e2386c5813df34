#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/mla_sparse_kv_write/mla_sparse_kv_write.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {
namespace {

using StoreRow = void (*)(const CodedRows& rows, int64_t slot, const float* x);

int64_t row_room(const MlaSparseKvWrite::Args& a) {
  return align_up<int64_t>(a.c.dim(1) + a.k_pe.dim(1), 16);
}

template <StoreRow kStore>
Status mla_sparse_kv_write(Exec& ex, const MlaSparseKvWrite::Args& a) {
  const int64_t L = a.c.dim(1);
  const int64_t R = a.k_pe.dim(1);
  const CodedRows rows = cache_rows(a.fields(), a.scale);
  auto* workspace = static_cast<float*>(ex.workspace);
  with_activation_type(a.c.format, [&]<class A>(A) {
    const int64_t bytes = (L + R) * element_bytes(a.c.format) + cache_row_bytes(a.fields());
    for_rows_by_thread(ex, a.c.dim(0), bytes, [&](int thread, int64_t begin, int64_t end) {
      float* row = workspace + thread * row_room(a);
      for (int64_t t = begin; t < end; ++t) {
        const int64_t slot = a.slots.as<int64_t>()[t];
        if (slot < 0) continue;
        for (int64_t i = 0; i < L; ++i)
          row[i] = to_float(a.c.row<A>(t)[i]);
        for (int64_t i = 0; i < R; ++i)
          row[L + i] = to_float(a.k_pe.row<A>(t)[i]);
        kStore(rows, slot, row);
      }
    });
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost MlaSparseKvWrite::cost(const Args& a) {
  return {.flops = static_cast<double>(3 * a.c.dim(0) * a.c.dim(1))};
}

void MlaSparseKvWrite::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.c.dim(0);
  cost.bytes_read = T * ((a.c.dim(1) + a.k_pe.dim(1)) * element_bytes(a.c.format) + 8);
  cost.bytes_written = T * cache_row_bytes(a.fields());
}

Status MlaSparseKvWrite::check(const Args& a) {
  FATHOM_TRY(check_same_format("c", a.c, "k_pe", a.k_pe));
  return check_row_slots("slots", a.slots, a.values);
}

int64_t MlaSparseKvWrite::workspace(const Args& a, int num_threads) {
  return num_threads * row_room(a) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<MlaSparseKvWrite> mla_sparse_kv_write_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, mla_sparse_kv_write<avx512::store_cache_row>},
    {"portable", Isa::kPortable, "", kTraits, mla_sparse_kv_write<store_cache_row>},
};

}  // namespace fathom
