#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rotate.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// Heads [T,N,D] of a format known at run time, or none.
struct Heads {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int count = 0;
  int64_t width = 0;

  __device__ int64_t offset(int64_t t, int64_t n) const {
    return t * token_stride + n * head_stride;
  }
};

Heads heads_of(const View& v) {
  if (!v.present()) return {};
  return {v.data, v.stride(0), v.stride(1), static_cast<int>(v.dim(1)), v.dim(2)};
}

struct Rotation {
  Heads q, k;
  TablePlace place;
  const void* table;
  int64_t table_stride;
  int64_t R;
  RopeStyle style;
};

template <class Args>
Rotation rotation_of(const Args& a) {
  return {.q = heads_of(a.q),
          .k = heads_of(a.k),
          .place = table_place(a.positions, a.table),
          .table = a.table.data,
          .table_stride = a.table.stride(0),
          .R = a.table.dim(1),
          .style = a.style};
}

/// Units of all heads of a token: those of q, then those of k.
struct HeadUnits {
  FlatItems items;
  FastDivide per_head;
};

/// Where a unit lies; head null for a token whose position is not in the table, which stays as it
/// is.
template <class A, class Table>
struct UnitPlace {
  A* head;
  const Table* angles;
  int unit;

  __device__ UnitPlace(const Rotation& r, const HeadUnits& units, const ItemPlace& at) {
    head = nullptr;
    if (!at.exists) return;
    const int64_t row = r.place.row(at.row);
    if (row < 0) return;
    const auto n = static_cast<int>(units.per_head.of(static_cast<uint32_t>(at.item)));
    unit = at.item - n * static_cast<int>(units.per_head.divisor);
    angles = static_cast<const Table*>(r.table) + row * r.table_stride;
    head = n < r.q.count ? static_cast<A*>(r.q.data) + r.q.offset(at.row, n)
                         : static_cast<A*>(r.k.data) + r.k.offset(at.row, n - r.q.count);
  }
};

template <class A, class Table, class Term, int kEach>
__global__ void __launch_bounds__(kFlatThreads) rotate_units(Rotation r, HeadUnits units) {
  let_next_start();
  wait_for_previous();
  Pairs pairs[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const UnitPlace<A, Table> at(r, units, units.items.mine<kEach>(i));
    if (at.head != nullptr) pairs[i].load(at.head, at.unit, r.R, r.style);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const UnitPlace<A, Table> at(r, units, units.items.mine<kEach>(i));
    if (at.head == nullptr) continue;
    rotate_unit<Term>(at.angles, at.unit, r.R, pairs[i]);
    pairs[i].store(at.head, at.unit, r.R, r.style);
  }
}

/// What a call with a cache writes besides.
struct Cache {
  Heads v, k_cache, v_cache;
  const int64_t* slots = nullptr;
  int64_t num_slots = 0;
};

template <class A>
__device__ void copy_heads(const Heads& from, int64_t t, const Heads& to, int64_t slot) {
  for (int64_t i = threadIdx.x; i < from.count * from.width; i += blockDim.x) {
    const int64_t n = i / from.width;
    const int64_t d = i - n * from.width;
    static_cast<A*>(to.data)[to.offset(slot, n) + d] =
        static_cast<const A*>(from.data)[from.offset(t, n) + d];
  }
}

// A block a token: any width, any stride, and the cache.
template <class A, class Table, class Term>
__global__ void __launch_bounds__(kFlatThreads) rotate_tokens(Rotation r, Cache cache) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const int64_t row = r.place.row(t);
  const int64_t pairs = r.R / 2;
  const auto* angles = static_cast<const Table*>(r.table) + row * r.table_stride;
  for (int64_t i = threadIdx.x; row >= 0 && i < (r.q.count + r.k.count) * pairs; i += blockDim.x) {
    const int64_t n = i / pairs;
    const int64_t pair = i - n * pairs;
    A* head = n < r.q.count ? static_cast<A*>(r.q.data) + r.q.offset(t, n)
                            : static_cast<A*>(r.k.data) + r.k.offset(t, n - r.q.count);
    A* first = head + first_of_pair(pair, r.style);
    A* second = head + second_of_pair(pair, r.R, r.style);
    float a = load(first);
    float b = load(second);
    rotate_pair<Term>(a, b, load(angles + pair), load(angles + pairs + pair));
    store(first, a);
    store(second, b);
  }
  if (cache.slots == nullptr) return;
  __syncthreads();  // the key is rotated
  const int64_t slot = cache.slots[t];
  if (slot < 0 || slot >= cache.num_slots) return;
  copy_heads<A>(r.k, t, cache.k_cache, slot);
  copy_heads<A>(cache.v, t, cache.v_cache, slot);
}

template <class A, class Table, class Term>
Status run_vectors(Exec& ex, const Rotation& r, int64_t num_tokens) {
  const int64_t per_head = r.R / kVector;
  const HeadUnits units{flat_items(num_tokens, (r.q.count + r.k.count) * per_head),
                        FastDivide(per_head)};
  return with_items_each(ex, units.items, [&]<int kEach>(const LaunchShape& shape) {
    return launch_kernel(ex, rotate_units<A, Table, Term, kEach>, shape, r, units);
  });
}

template <class A, class Table, class Term>
Status run_tokens(Exec& ex, const Rotation& r, const Cache& cache, int64_t num_tokens) {
  return launch_kernel(ex, rotate_tokens<A, Table, Term>,
                       {.blocks = num_tokens, .threads = kFlatThreads}, r, cache);
}

Cache cache_of(const RopeInplace::Args& a) {
  if (!a.slots.present()) return {};
  return {.v = heads_of(a.v),
          .k_cache = heads_of(a.k_cache),
          .v_cache = heads_of(a.v_cache),
          .slots = a.slots.as<const int64_t>(),
          .num_slots = a.k_cache.dim(0)};
}

Status rope_inplace_vectors(Exec& ex, const RopeInplace::Args& a) {
  return with_float_type(a.q.format, [&]<class A>(A) {
    return run_vectors<A, float, float>(ex, rotation_of(a), a.q.dim(0));
  });
}

Status rope_inplace_tokens(Exec& ex, const RopeInplace::Args& a) {
  return with_float_type(a.q.format, [&]<class A>(A) {
    return run_tokens<A, float, float>(ex, rotation_of(a), cache_of(a), a.q.dim(0));
  });
}

Status rope_vectors(Exec& ex, const Rope::Args& a) {
  return with_float_type(
      a.q.format, [&]<class A>(A) { return run_vectors<A, A, A>(ex, rotation_of(a), a.q.dim(0)); });
}

Status rope_tokens(Exec& ex, const Rope::Args& a) {
  return with_float_type(a.q.format, [&]<class A>(A) {
    return run_tokens<A, A, A>(ex, rotation_of(a), Cache{}, a.q.dim(0));
  });
}

bool rope_inplace_is_aligned(const RopeInplace::Args& a) {
  return !a.slots.present() && takes_vectors(a.q) && takes_vectors(a.k) && takes_vectors(a.table);
}

bool rope_is_aligned(const Rope::Args& a) {
  return takes_vectors(a.q) && takes_vectors(a.k) && takes_vectors(a.table);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<RopeInplace> rope_inplace_cuda{
    {"vectors", sm(90), "R%8==0", kTraits, rope_inplace_vectors, MathUnit::kF32,
     rope_inplace_is_aligned},
    {"tokens", sm(90), "", kTraits, rope_inplace_tokens},
};

constinit const VariantTable<Rope> rope_cuda{
    {"vectors", sm(90), "R%8==0", kTraits, rope_vectors, MathUnit::kF32, rope_is_aligned},
    {"tokens", sm(90), "", kTraits, rope_tokens},
};

}  // namespace fathom
