#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/kernels/rope/rotate_heads.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

template <class Args>
Rotation rotation_of(const Args& a) {
  return {
      .q = heads_of(a.q), .k = heads_of(a.k), .table = rotary_table(a.positions, a.table, a.style)};
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
  rotate_token<A, Table, Term, Turn::kForth>(r, t);
  if (cache.slots == nullptr) return;
  __syncthreads();  // the key is rotated
  const int64_t slot = cache.slots[t];
  if (slot < 0 || slot >= cache.num_slots) return;
  copy_heads<A>(r.k, t, cache.k_cache, slot);
  copy_heads<A>(cache.v, t, cache.v_cache, slot);
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
    return run_rotate_units<A, float, float>(ex, rotation_of(a), a.q.dim(0));
  });
}

Status rope_inplace_tokens(Exec& ex, const RopeInplace::Args& a) {
  return with_float_type(a.q.format, [&]<class A>(A) {
    return run_tokens<A, float, float>(ex, rotation_of(a), cache_of(a), a.q.dim(0));
  });
}

Status rope_vectors(Exec& ex, const Rope::Args& a) {
  return with_float_type(a.q.format, [&]<class A>(A) {
    return run_rotate_units<A, A, A>(ex, rotation_of(a), a.q.dim(0));
  });
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
