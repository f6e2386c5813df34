#include <cfloat>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/mla_sparse_kv_write/mla_sparse_kv_write.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/quant/power_of_two_scale.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr int kGroup = 128;  ///< channels of a scale

/// Rows of one field of the cache.
template <class T>
struct Field {
  T* data;
  int64_t page_stride;
  int64_t row_stride;

  __device__ T* row(const RowOfGroup& place) const {
    return data + place.group * page_stride + place.row * row_stride;
  }
};

template <class T>
Field<T> field_of(const View& v) {
  return {v.as<T>(), v.stride(0), v.stride(1)};
}

struct Write {
  AnyRows c, k_pe;
  const int64_t* slots;
  Field<E4m3> values;
  Field<Bf16> rope;
  Field<float> scales;
  int64_t page_size;
  int64_t num_slots;
  int64_t T;
  int L, R;
  CacheScale scale;

  /// The slot of token t; -1 if it has none. What the host could not check is not followed.
  __device__ int64_t slot(int64_t t) const {
    const int64_t found = slots[t];
    return found < num_slots ? found : -1;
  }
};

/// The scale of a group whose largest magnitude is amax: operation by operation that of
/// ds_mla_scale, or of fp8_scale with kFp8V32DemoUe8m0.
__device__ float scale_of(float amax, CacheScale rule) {
  if (rule == CacheScale::kAmax) return fmaxf(__fdiv_rn(amax, kE4m3Max), FLT_MIN);
  return PowerOfTwo::of_e4m3(amax).value();
}

/// Eight channels, rounded to bf16.
__device__ Packed<Bf16> load_rounded(const Bf16* p) {
  return load_packed(p);
}

__device__ Packed<Bf16> load_rounded(const float* p) {
  float values[kVector];
  load8(p, values);
  Packed<Bf16> out;
  pack(values, out);
  return out;
}

/// An item is eight channels; sixteen lanes that follow each other have a group. Behind the values
/// of a token come its rotary channels, up to a whole number of sixteen items.
template <class A>
__global__ void __launch_bounds__(kFlatThreads)
    write_vectors(const __grid_constant__ Write w, const __grid_constant__ FlatItems items) {
  let_next_start();
  wait_for_previous();
  constexpr int kLanes = kGroup / kVector;
  const ItemPlace at = items.mine<1>(0);
  const int64_t slot = at.exists ? w.slot(at.row) : -1;
  const int channel = kVector * at.item;
  const bool is_value = channel < w.L;
  const bool writes = slot >= 0 && channel < w.L + w.R;
  Packed<Bf16> held[1] = {};
  if (writes) {
    const AnyRows& from = is_value ? w.c : w.k_pe;
    held[0] = load_rounded(static_cast<const A*>(from.data) + at.row * from.stride +
                           (is_value ? channel : channel - w.L));
  }
  const float amax = combine_lanes<kLanes>(largest_size<Nan::kLeftOut>(held), Max());
  if (!writes) return;
  const RowOfGroup place(slot, w.page_size);
  if (!is_value) {
    store_packed(w.rope.row(place) + (channel - w.L), held[0]);
    return;
  }
  const float scale = scale_of(amax, w.scale);
  float codes[kVector];
  unpack(held[0], codes);
  Divisor(scale).of_all(codes);
  store8(w.values.row(place) + channel, codes);
  if (channel % kGroup == 0) w.scales.row(place)[channel / kGroup] = scale;
}

/// A warp for each group of a token, and one for its rotary channels: any widths and strides.
__global__ void __launch_bounds__(kFlatThreads)
    write_elements(const __grid_constant__ Write w, int warps_of_token) {
  let_next_start();
  wait_for_previous();
  const int64_t number = int64_t{blockIdx.x} * (kFlatThreads / 32) + warp_id();
  const RowOfGroup unit(number, warps_of_token);
  if (unit.group >= w.T) return;
  const int64_t t = unit.group;
  const int64_t slot = w.slot(t);
  if (slot < 0) return;
  const RowOfGroup place(slot, w.page_size);
  const auto group = static_cast<int>(unit.row);
  if (group == w.L / kGroup) {
    for (int d = lane_id(); d < w.R; d += 32)
      store(w.rope.row(place) + d, w.k_pe.load(t, d));
    return;
  }
  constexpr int kEach = kGroup / 32;
  float x[kEach];
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] = rounded<Bf16>(w.c.load(t, group * kGroup + i * 32 + lane_id()));
    amax = fmaxf(amax, fabsf(x[i]));
  }
  const float scale = scale_of(combine_lanes(amax, Max()), w.scale);
  Divisor(scale).of_all(x);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    store(w.values.row(place) + group * kGroup + i * 32 + lane_id(), x[i]);
  if (lane_id() == 0) w.scales.row(place)[group] = scale;
}

Write write_of(const MlaSparseKvWrite::Args& a) {
  return {.c = any_rows(a.c),
          .k_pe = any_rows(a.k_pe),
          .slots = a.slots.as<const int64_t>(),
          .values = field_of<E4m3>(a.values),
          .rope = field_of<Bf16>(a.rope),
          .scales = field_of<float>(a.scales),
          .page_size = a.values.dim(1),
          .num_slots = a.values.dim(0) * a.values.dim(1),
          .T = a.c.dim(0),
          .L = static_cast<int>(a.c.dim(1)),
          .R = static_cast<int>(a.k_pe.dim(1)),
          .scale = a.scale};
}

Status run_vectors(Exec& ex, const MlaSparseKvWrite::Args& a) {
  const int64_t units = ceil_div<int64_t>(a.c.dim(1) + a.k_pe.dim(1), kGroup);
  const FlatItems items = flat_items(a.c.dim(0), units * (kGroup / kVector));
  return with_activation_type(a.c.format, [&]<class A>(A) {
    return launch_kernel(ex, write_vectors<std::remove_const_t<A>>, one_item_each(items),
                         write_of(a), items);
  });
}

Status run_elements(Exec& ex, const MlaSparseKvWrite::Args& a) {
  const int64_t warps_of_token = a.c.dim(1) / kGroup + 1;
  return launch_kernel(
      ex, write_elements,
      {.blocks = ceil_div<int64_t>(a.c.dim(0) * warps_of_token, kFlatThreads / kWarp),
       .threads = kFlatThreads},
      write_of(a), static_cast<int>(warps_of_token));
}

bool is_aligned(const MlaSparseKvWrite::Args& a) {
  return takes_vectors(a.c) && takes_vectors(a.k_pe) && takes_vectors(a.values) &&
         takes_vectors(a.rope);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MlaSparseKvWrite> mla_sparse_kv_write_cuda{
    {"vectors", sm(90), "R%8==0", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"elements", sm(90), "", kTraits, run_elements},
};

}  // namespace fathom
