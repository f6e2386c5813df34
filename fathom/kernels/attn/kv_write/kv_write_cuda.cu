#include <type_traits>

#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// Slots and pages are values of GPU memory that the host cannot check: what is out of range is not
// followed. Its token is not written, or is read as NaN.

/// Pages [M,S,D].
struct Pages {
  void* data;
  int64_t page_stride;
  int64_t slot_stride;
  int64_t page_size;
  int64_t num_pages;

  template <class T>
  __device__ T* key(int64_t page, int64_t offset) const {
    return static_cast<T*>(data) + page * page_stride + offset * slot_stride;
  }
};

Pages pages_of(const View& cache) {
  return {cache.data, cache.stride(0), cache.stride(1), cache.dim(1), cache.dim(0)};
}

/// The two parts of a key, L and R elements; T is the type of both.
template <class T>
struct Parts {
  Rows<T> c;
  Rows<T> k_pe;
  int64_t L;

  __device__ T* at(int64_t t, int64_t d) const { return d < L ? c[t] + d : k_pe[t] + (d - L); }
};

template <class A>
Parts<A> parts_of(const View& c, const View& k_pe) {
  using T = std::remove_const_t<A>;
  return {{c.as<T>(), c.stride(0)}, {k_pe.as<T>(), k_pe.stride(0)}, c.dim(1)};
}

/// A value on its way between two formats; a copy where they agree, as the scale is 1 then.
template <class From, class To>
__device__ float divided(float x, float scale) {
  return std::is_same_v<From, To> ? x : x / scale;
}

template <class From, class To>
__device__ float multiplied(float x, float scale) {
  return std::is_same_v<From, To> ? x : x * scale;
}

/// What a thread moves at once: eight elements where everything is aligned, else one.
template <class T, int kUnit>
using Held = std::conditional_t<kUnit == kVector, Packed<T>, T>;

template <int kUnit, class T>
__device__ __forceinline__ Held<T, kUnit> load_held(const T* p) {
  return *reinterpret_cast<const Held<T, kUnit>*>(p);
}

/// Stores f of every held element.
template <class To, class From, class F>
__device__ __forceinline__ void store_each(To* p, const Packed<From>& held, F f) {
  float values[kVector];
  unpack(held, values);
#pragma unroll
  for (float& value : values)
    value = f(value);
  store8(p, values);
}

template <class To, class From, class F>
__device__ __forceinline__ void store_each(To* p, const From& held, F f) {
  store(p, f(load(&held)));
}

template <class A, class C, int kUnit>
__global__ void __launch_bounds__(kFlatThreads)
    write_keys(Parts<A> from, const int64_t* slots, Pages cache, float scale, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const int64_t d = int64_t{kUnit} * at.item;
  const Held<A, kUnit> held = load_held<kUnit>(from.at(at.row, d));
  const int64_t slot = slots[at.row];
  if (slot < 0 || slot >= cache.num_pages * cache.page_size) return;
  const RowOfGroup place(slot, cache.page_size);
  store_each(cache.key<C>(place.group, place.row) + d, held,
             [&](float x) { return divided<A, C>(x, scale); });
}

template <class C, class A, int kUnit, int kEach>
__global__ void __launch_bounds__(kFlatThreads) gather_keys(
    Pages cache, const int32_t* pages, int64_t begin, Parts<A> to, float scale, FlatItems items) {
  let_next_start();
  wait_for_previous();
  int64_t page[kEach];
  int64_t offset[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    const RowOfGroup place(begin + at.row, cache.page_size);
    page[i] = at.exists ? pages[place.group] : -1;
    offset[i] = place.row;
  }
  Held<C, kUnit> held[kEach]{};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t d = int64_t{kUnit} * items.mine<kEach>(i).item;
    const bool exists = page[i] >= 0 && page[i] < cache.num_pages;
    if (exists) held[i] = load_held<kUnit>(cache.key<const C>(page[i], offset[i]) + d);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    if (!at.exists) continue;
    const bool exists = page[i] >= 0 && page[i] < cache.num_pages;
    store_each(to.at(at.row, int64_t{kUnit} * at.item), held[i], [&](float x) {
      return exists ? multiplied<C, A>(x, scale) : __int_as_float(0x7FC00000);
    });
  }
}

template <int kUnit>
Status run_write(Exec& ex, const KvWrite::Args& a) {
  const FlatItems items = flat_items(a.c.dim(0), a.cache.dim(2) / kUnit);
  return with_activation_type(a.c.format, [&]<class A>(A) {
    return with_cache_type(a.cache.format, [&]<class C>(C) {
      return launch_kernel(ex, write_keys<A, C, kUnit>, one_item_each(items),
                           parts_of<A>(a.c, a.k_pe), a.slots.as<const int64_t>(), pages_of(a.cache),
                           a.scale, items);
    });
  });
}

template <int kUnit>
Status run_gather(Exec& ex, const KvGather::Args& a) {
  const FlatItems items = flat_items(a.c.dim(0), a.cache.dim(2) / kUnit);
  return with_activation_type(a.c.format, [&]<class A>(A) {
    return with_cache_type(a.cache.format, [&]<class C>(C) {
      return with_items_each(ex, items, [&]<int kEach>(const LaunchShape& shape) {
        return launch_kernel(ex, gather_keys<C, A, kUnit, kEach>, shape, pages_of(a.cache),
                             a.pages.as<const int32_t>(), a.begin, parts_of<A>(a.c, a.k_pe),
                             a.scale, items);
      });
    });
  });
}

template <class Args>
bool is_aligned(const Args& a) {
  return takes_vectors(a.c) && takes_vectors(a.k_pe) && takes_vectors(a.cache);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<KvWrite> kv_write_cuda{
    {"vectors", sm(90), "L%8==0, R%8==0", kTraits, run_write<kVector>, MathUnit::kF32,
     is_aligned<KvWrite::Args>},
    {"elements", sm(90), "", kTraits, run_write<1>},
};

constinit const VariantTable<KvGather> kv_gather_cuda{
    {"vectors", sm(90), "L%8==0, R%8==0", kTraits, run_gather<kVector>, MathUnit::kF32,
     is_aligned<KvGather::Args>},
    {"elements", sm(90), "", kTraits, run_gather<1>},
};

}  // namespace fathom
