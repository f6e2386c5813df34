#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/embed/embedding/embedding.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// The host cannot see ids that lie on the GPU. A row whose id is not in the table becomes NaN.

template <class From, class To, int kEach>
__global__ void __launch_bounds__(kFlatThreads) embed_vectors(
    const int32_t* ids, Rows<const From> table, int64_t table_rows, Rows<To> y, FlatItems items) {
  let_next_start();
  wait_for_previous();
  int32_t ids_of[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    ids_of[i] = at.exists ? ids[at.row] : -1;
  }
  Packed<From> held[kEach]{};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool known = ids_of[i] >= 0 && ids_of[i] < table_rows;
    if (known) held[i] = load_packed(table[ids_of[i]] + kVector * items.mine<kEach>(i).item);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    const bool known = ids_of[i] >= 0 && ids_of[i] < table_rows;
    float values[kVector];
    unpack(held[i], values);
#pragma unroll
    for (float& value : values)
      value = known ? value : __int_as_float(0x7FC00000);
    if (at.exists) store8(y[at.row] + kVector * at.item, values);
  }
}

__global__ void __launch_bounds__(kFlatThreads) embed_elements(
    const int32_t* ids, AnyRows table, int64_t table_rows, AnyRows y, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const int32_t id = ids[at.row];
  const bool known = id >= 0 && id < table_rows;
  y.store(at.row, at.item, known ? table.load(id, at.item) : __int_as_float(0x7FC00000));
}

Status run_vectors(Exec& ex, const Embed::Args& a) {
  const FlatItems items = flat_items(a.y.dim(0), a.y.dim(1) / kVector);
  return with_activation_type(a.table.format, [&]<class From>(From) {
    return with_activation_type(a.y.format, [&]<class To>(To) {
      return with_items_each(ex, items, [&]<int kEach>(const LaunchShape& shape) {
        return launch_kernel(ex, embed_vectors<From, To, kEach>, shape, a.ids.as<const int32_t>(),
                             rows_of<const From>(a.table), a.table.dim(0), rows_of<To>(a.y), items);
      });
    });
  });
}

Status run_elements(Exec& ex, const Embed::Args& a) {
  const FlatItems items = flat_items(a.y.dim(0), a.y.dim(1));
  return launch_kernel(ex, embed_elements, one_item_each(items), a.ids.as<const int32_t>(),
                       any_rows(a.table), a.table.dim(0), any_rows(a.y), items);
}

bool is_aligned(const Embed::Args& a) {
  return takes_vectors(a.table) && takes_vectors(a.y);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Embed> embed_cuda{
    {"vectors", sm(90), "H%8==0", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"elements", sm(90), "", kTraits, run_elements},
};

}  // namespace fathom
