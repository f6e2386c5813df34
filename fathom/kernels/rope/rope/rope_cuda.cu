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
  RotaryTable table;
};

template <class Args>
Rotation rotation_of(const Args& a) {
  return {
      .q = heads_of(a.q), .k = heads_of(a.k), .table = rotary_table(a.positions, a.table, a.style)};
}

/// The heads of a token in groups of `each` that follow each other, those of q, then those of k. An
/// item is one unit of all heads of a group.
struct UnitGroups {
  FlatItems items;
  FastDivide units_of_head;
  int of_q;  ///< groups
};

UnitGroups unit_groups(const Rotation& r, int64_t num_tokens, int each) {
  const int of_q = ceil_div(r.q.count, each);
  const int64_t units_of_head = r.table.R / kVector;
  return {flat_items(num_tokens, (of_q + ceil_div(r.k.count, each)) * units_of_head),
          FastDivide(units_of_head), of_q};
}

template <class A, int kEach>
__device__ HeadRun<A> group_of(const Heads& heads, int64_t t, int group) {
  return {static_cast<A*>(heads.data) + heads.offset(t, int64_t{group} * kEach), heads.head_stride,
          min(kEach, heads.count - group * kEach)};
}

template <class A, class Table, class Term, int kEach>
__global__ void __launch_bounds__(kFlatThreads) rotate_units(Rotation r, UnitGroups groups) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = groups.items.mine<1>(0);
  if (!at.exists) return;
  const auto group = static_cast<int>(groups.units_of_head.of(static_cast<uint32_t>(at.item)));
  const int unit = at.item - group * static_cast<int>(groups.units_of_head.divisor);
  const bool is_q = group < groups.of_q;
  const HeadRun<A> heads =
      group_of<A, kEach>(is_q ? r.q : r.k, at.row, is_q ? group : group - groups.of_q);
  rotate_unit<Term, Table, kEach>(
      r.table, at.row, unit, heads, [&] { return heads; }, Unscaled());
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
  const Table* angles = r.table.row<Table>(t);
  const int64_t R = r.table.R;
  const int64_t pairs = R / 2;
  const RopeStyle style = r.table.style;
  const int64_t all_pairs = angles == nullptr ? 0 : (r.q.count + r.k.count) * pairs;
  for (int64_t i = threadIdx.x; i < all_pairs; i += blockDim.x) {
    const int64_t n = i / pairs;
    const int64_t pair = i - n * pairs;
    A* head = n < r.q.count ? static_cast<A*>(r.q.data) + r.q.offset(t, n)
                            : static_cast<A*>(r.k.data) + r.k.offset(t, n - r.q.count);
    A* first = head + first_of_pair(pair, style);
    A* second = head + second_of_pair(pair, R, style);
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
  const FlatItems units = unit_groups(r, num_tokens, 1).items;
  return with_items_each(ex, units, [&]<int kEach>(const LaunchShape&) {
    const UnitGroups groups = unit_groups(r, num_tokens, kEach);
    return launch_kernel(ex, rotate_units<A, Table, Term, kEach>, one_item_each(groups.items), r,
                         groups);
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
