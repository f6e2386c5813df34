#include <type_traits>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rotate.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// Both kernels bring heads [ lat | pe ] to another format: q has N of them a token, the key is head
// N. Work is cut into units of eight elements of a head: a piece of lat, or four pairs of pe.

/// Rows of heads: [T,N,width], or [T,width] with head stride 0.
struct Heads {
  void* data;
  int64_t token_stride;
  int64_t head_stride;

  template <class T>
  __device__ T* head(int64_t t, int64_t n) const {
    return static_cast<T*>(data) + t * token_stride + n * head_stride;
  }
};

Heads heads_of(const View& v) {
  return {v.data, v.stride(0), v.rank == 3 ? v.stride(1) : 0};
}

/// The distance of a head within a merged output where lat and pe lie side by side.
Heads shifted(Heads heads, int64_t elements, int64_t element_size) {
  heads.data = static_cast<std::byte*>(heads.data) + elements * element_size;
  return heads;
}

/// Slots of pages [M,S,D]; what the host cannot see is checked here: other slots are not written.
struct Pages {
  const int64_t* slots = nullptr;  // null: the key goes to row t of its output
  int64_t page_size = 1;
  int64_t num_slots = 0;
  int64_t page_stride = 0;
  int64_t slot_stride = 0;

  __device__ bool place(int64_t t, int64_t* offset) const {
    const int64_t slot = slots[t];
    if (slot < 0 || slot >= num_slots) return false;
    const RowOfGroup at(slot, page_size);
    *offset = at.group * page_stride + at.row * slot_stride;
    return true;
  }
};

struct Preparation {
  Heads q_lat, q_pe, c, k_pe;
  Heads q_lat_out, q_pe_out, c_out, k_pe_out;
  Pages pages;
  TablePlace place;
  const float* table;
  int64_t table_stride;
  int num_heads;
  int L;
  int R;
  RopeStyle style;
  float q_scale, kv_scale;
};

/// How a value becomes what is stored.
struct DividedBy {
  Divisor divisor;

  __device__ explicit DividedBy(float scale) : divisor(scale) {}

  __device__ float apply(float x) const { return divisor.of(x); }
};

struct MultipliedBy {
  float scale;

  __device__ explicit MultipliedBy(float factor) : scale(factor) {}

  __device__ float apply(float x) const { return x * scale; }
};

/// Where a head is read and written; false if it is not written.
template <class In, class Out>
struct HeadPlace {
  const In* lat;
  const In* pe;
  Out* lat_out;
  Out* pe_out;
};

template <class In, class Out>
__device__ __forceinline__ bool find_head(
    const Preparation& p, int64_t t, bool is_key, int n, HeadPlace<In, Out>& at) {
  if (!is_key) {
    at = {p.q_lat.head<const In>(t, n), p.q_pe.head<const In>(t, n), p.q_lat_out.head<Out>(t, n),
          p.q_pe_out.head<Out>(t, n)};
    return true;
  }
  int64_t offset = 0;
  if (p.pages.slots != nullptr) {
    if (!p.pages.place(t, &offset)) return false;
  } else {
    offset = t * p.c_out.token_stride;
  }
  const int64_t pe_offset = p.pages.slots != nullptr ? offset : t * p.k_pe_out.token_stride;
  at = {p.c.head<const In>(t, 0), p.k_pe.head<const In>(t, 0),
        static_cast<Out*>(p.c_out.data) + offset, static_cast<Out*>(p.k_pe_out.data) + pe_offset};
  return true;
}

/// Where a unit lies.
struct UnitPlace {
  int64_t t = 0;
  int n = 0;     ///< head; num_heads is the key
  int unit = 0;  ///< within the head
  bool exists = false;

  __device__ UnitPlace(const FlatItems& items, const FastDivide& per_head, const ItemPlace& at) {
    exists = at.exists;
    t = at.row;
    n = static_cast<int>(per_head.of(static_cast<uint32_t>(at.item)));
    unit = at.item - n * static_cast<int>(per_head.divisor);
  }
};

/// The eight values of a unit on their way; of pe a and b alternate.
template <class In>
__device__ __forceinline__ void load_unit(const Preparation& p,
                                          const UnitPlace& at,
                                          Packed<In>& lat,
                                          Pairs& pairs) {
  const bool is_key = at.n == p.num_heads;
  const int lat_units = p.L / kVector;
  if (at.unit < lat_units) {
    const In* from = is_key ? p.c.head<const In>(at.t, 0) : p.q_lat.head<const In>(at.t, at.n);
    lat = load_packed(from + kVector * at.unit);
  } else {
    const In* from = is_key ? p.k_pe.head<const In>(at.t, 0) : p.q_pe.head<const In>(at.t, at.n);
    pairs.load(from, at.unit - lat_units, p.R, p.style);
  }
}

template <class In, class Out, class Scaling>
__device__ __forceinline__ void finish_unit(
    const Preparation& p, const UnitPlace& at, const Packed<In>& lat, Pairs& pairs, float scale) {
  HeadPlace<In, Out> head;
  if (!find_head(p, at.t, at.n == p.num_heads, at.n, head)) return;
  const Scaling scaling(scale);
  const int lat_units = p.L / kVector;
  if (at.unit < lat_units) {
    if constexpr (std::is_same_v<In, Out>) {
      if (scale == 1.0f) {
        store_packed(head.lat_out + kVector * at.unit, lat);
        return;
      }
    }
    float values[kVector];
    unpack(lat, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      values[i] = scaling.apply(values[i]);
    store8(head.lat_out + kVector * at.unit, values);
    return;
  }
  const int64_t row = p.place.row(at.t);
  if (row < 0) return;  // a position that is not in the table
  rotate_unit<float>(p.table + row * p.table_stride, at.unit - lat_units, p.R, pairs);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    pairs.a[i] = scaling.apply(pairs.a[i]);
    pairs.b[i] = scaling.apply(pairs.b[i]);
  }
  pairs.store(head.pe_out, at.unit - lat_units, p.R, p.style);
}

template <class In, class Q, class Key, class Scaling, int kEach>
__global__ void __launch_bounds__(kFlatThreads)
    prepare_vectors(Preparation p, FlatItems items, FastDivide per_head) {
  let_next_start();
  wait_for_previous();
  Packed<In> lat[kEach];
  Pairs pairs[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const UnitPlace at(items, per_head, items.mine<kEach>(i));
    if (at.exists) load_unit(p, at, lat[i], pairs[i]);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const UnitPlace at(items, per_head, items.mine<kEach>(i));
    if (!at.exists) continue;
    if (at.n < p.num_heads) {
      finish_unit<In, Q, Scaling>(p, at, lat[i], pairs[i], p.q_scale);
    } else {
      finish_unit<In, Key, Scaling>(p, at, lat[i], pairs[i], p.kv_scale);
    }
  }
}

// A block a head, an element or a pair a thread: any widths and strides.
template <class In, class Out, class Scaling>
__device__ void prepare_head(const Preparation& p,
                             const HeadPlace<In, Out>& at,
                             const float* angles,
                             float scale) {
  const Scaling scaling(scale);
  for (int i = static_cast<int>(threadIdx.x); i < p.L; i += static_cast<int>(blockDim.x))
    store(at.lat_out + i, scaling.apply(load(at.lat + i)));
  for (int i = static_cast<int>(threadIdx.x); angles != nullptr && i < p.R / 2;
       i += static_cast<int>(blockDim.x)) {
    float a = load(at.pe + first_of_pair(i, p.style));
    float b = load(at.pe + second_of_pair(i, p.R, p.style));
    rotate_pair<float>(a, b, angles[i], angles[p.R / 2 + i]);
    store(at.pe_out + first_of_pair(i, p.style), scaling.apply(a));
    store(at.pe_out + second_of_pair(i, p.R, p.style), scaling.apply(b));
  }
}

template <class In, class Q, class Key, class Scaling>
__global__ void __launch_bounds__(kFlatThreads) prepare_heads(Preparation p) {
  let_next_start();
  wait_for_previous();
  const RowOfGroup at(blockIdx.x, p.num_heads + 1);
  const int64_t row = p.place.row(at.group);
  const float* angles = row < 0 ? nullptr : p.table + row * p.table_stride;
  if (at.row < p.num_heads) {
    HeadPlace<In, Q> head;
    find_head(p, at.group, false, static_cast<int>(at.row), head);
    prepare_head<In, Q, Scaling>(p, head, angles, p.q_scale);
  } else {
    HeadPlace<In, Key> head;
    if (find_head(p, at.group, true, 0, head)) {
      prepare_head<In, Key, Scaling>(p, head, angles, p.kv_scale);
    }
  }
}

template <class Args>
Preparation preparation_of(const Args& a) {
  return {.q_lat = heads_of(a.q_lat),
          .q_pe = heads_of(a.q_pe),
          .c = heads_of(a.c),
          .k_pe = heads_of(a.k_pe),
          .q_lat_out = {},
          .q_pe_out = {},
          .c_out = {},
          .k_pe_out = {},
          .pages = {},
          .place = table_place(a.positions, a.table),
          .table = a.table.template as<const float>(),
          .table_stride = a.table.stride(0),
          .num_heads = static_cast<int>(a.q_lat.dim(1)),
          .L = static_cast<int>(a.c.dim(1)),
          .R = static_cast<int>(a.k_pe.dim(1)),
          .style = a.style,
          .q_scale = a.q_scale,
          .kv_scale = a.kv_scale};
}

Preparation quant_of(const MlaRopeQuantFp8::Args& a) {
  Preparation p = preparation_of(a);
  p.q_lat_out = heads_of(a.q_lat_out);
  p.q_pe_out = heads_of(a.q_pe_out);
  p.c_out = heads_of(a.c_out);
  p.k_pe_out = heads_of(a.k_pe_out);
  return p;
}

Preparation write_of(const MlaRopeWrite::Args& a) {
  Preparation p = preparation_of(a);
  p.q_lat_out = heads_of(a.q);
  p.q_pe_out = shifted(p.q_lat_out, p.L, element_bytes(a.q.format));
  p.c_out = {a.cache.data, 0, 0};
  p.k_pe_out = shifted(p.c_out, p.L, element_bytes(a.cache.format));
  p.pages = {.slots = a.slots.as<const int64_t>(),
             .page_size = a.cache.dim(1),
             .num_slots = a.cache.dim(0) * a.cache.dim(1),
             .page_stride = a.cache.stride(0),
             .slot_stride = a.cache.stride(1)};
  return p;
}

enum class Form { kVectors, kHeads };

template <Form kForm, class In, class Q, class Key, class Scaling>
Status launch_form(Exec& ex, const Preparation& p, int64_t num_tokens) {
  if constexpr (kForm == Form::kVectors) {
    const int64_t per_head = (p.L + p.R) / kVector;
    const FlatItems items = flat_items(num_tokens, (p.num_heads + 1) * per_head);
    return with_items_each(ex, items, [&]<int kEach>(const LaunchShape& shape) {
      return launch_kernel(ex, prepare_vectors<In, Q, Key, Scaling, kEach>, shape, p, items,
                           FastDivide(per_head));
    });
  } else {
    return launch_kernel(ex, prepare_heads<In, Q, Key, Scaling>,
                         {.blocks = num_tokens * (p.num_heads + 1), .threads = kFlatThreads}, p);
  }
}

template <Form kForm>
Status run_quant(Exec& ex, const MlaRopeQuantFp8::Args& a) {
  const Preparation p = quant_of(a);
  return with_float_type(a.q_pe.format, [&]<class In>(In) {
    if (a.c_out.format == Format::kE4m3) {
      return launch_form<kForm, In, E4m3, E4m3, MultipliedBy>(ex, p, a.q_pe.dim(0));
    }
    return launch_form<kForm, In, E5m2, E5m2, MultipliedBy>(ex, p, a.q_pe.dim(0));
  });
}

template <Form kForm>
Status run_write(Exec& ex, const MlaRopeWrite::Args& a) {
  const Preparation p = write_of(a);
  return with_activation_type(a.q_lat.format, [&]<class In>(In) {
    return with_cache_type(a.q.format, [&]<class Q>(Q) {
      return with_cache_type(a.cache.format, [&]<class Key>(Key) {
        return launch_form<kForm, In, Q, Key, DividedBy>(ex, p, a.q_lat.dim(0));
      });
    });
  });
}

/// Where pe follows lat in one output, it begins at a multiple of eight elements, as L is one.
bool quant_is_aligned(const MlaRopeQuantFp8::Args& a) {
  for (const View* v : {&a.q_pe, &a.k_pe, &a.q_lat, &a.c, &a.table, &a.q_pe_out, &a.k_pe_out,
                        &a.q_lat_out, &a.c_out}) {
    if (!takes_vectors(*v)) return false;
  }
  return true;
}

bool write_is_aligned(const MlaRopeWrite::Args& a) {
  for (const View* v : {&a.q_pe, &a.k_pe, &a.q_lat, &a.c, &a.table, &a.q, &a.cache}) {
    if (!takes_vectors(*v)) return false;
  }
  return true;
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MlaRopeQuantFp8> mla_rope_quant_fp8_cuda{
    {"vectors", sm(90), "L%8==0, R%8==0", kTraits, run_quant<Form::kVectors>, MathUnit::kF32,
     quant_is_aligned},
    {"heads", sm(90), "", kTraits, run_quant<Form::kHeads>},
};

constinit const VariantTable<MlaRopeWrite> mla_rope_write_cuda{
    {"vectors", sm(90), "L%8==0, R%8==0", kTraits, run_write<Form::kVectors>, MathUnit::kF32,
     write_is_aligned},
    {"heads", sm(90), "", kTraits, run_write<Form::kHeads>},
};

}  // namespace fathom
