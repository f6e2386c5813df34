#include "fathom/formats/block_fp4.h"
#include "fathom/formats/scale_layout.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// Half a block: eight values, whose codes are a word. Lane pairs hold the halves of a block.
struct Half {
  uint32_t codes;
  uint8_t scale;  // of the block
};

/// The recipe of activations of formats/block_fp4.h, operation by operation. All lanes call it.
__device__ Half quantise(const float (&x)[kVector], float gs) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    amax = fmaxf(amax, fabsf(x[i]));  // drops NaN
  amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
  E4m3 code;
  store(&code, __fmul_rn(gs, __fmul_rn(amax, 1.0f / kE2m1Max)));
  const float scale = load(&code);
  const float factor = scale == 0.0f ? 0.0f : __frcp_rn(__fmul_rn(scale, __frcp_rn(gs)));
  Half out{0, code.bits};
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    out.codes |= e2m1_code(__fmul_rn(x[i], factor)) << (4 * i);
  return out;
}

/// Eight values of a row. Where rows are not aligned they are taken one by one.
template <class A, bool kVectors>
__device__ void load_half(const A* x, float (&out)[kVector]) {
  if constexpr (kVectors) {
    load8(x, out);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      out[i] = load(x + i);
  }
}

template <bool kVectors>
__device__ void store_codes(uint8_t* q, uint32_t codes) {
  if constexpr (kVectors) {
    *reinterpret_cast<uint32_t*>(q) = codes;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      q[i] = static_cast<uint8_t>(codes >> (8 * i));
  }
}

// ---- nvfp4_quant ----

struct Scales {
  uint8_t* data;
  int64_t stride;  // of rows, where they are row-major
  int64_t num_blocks;
  Nvfp4ScaleLayout layout;

  __device__ uint8_t* at(int64_t row, int64_t block) const {
    switch (layout) {
      case Nvfp4ScaleLayout::kSwizzled128x4:
        return data + swizzled_128x4_offset(row, block, num_blocks);
      case Nvfp4ScaleLayout::kSwizzled8x4:
        return data + swizzled_8x4_offset(row, block, num_blocks);
      default:
        return data + row * stride + block;
    }
  }
};

// Items are halves of blocks. kEach of them are read before the first is worked on.
template <class A, bool kVectors, int kEach>
__global__ void __launch_bounds__(kFlatThreads) quantise_rows(
    Rows<const A> x, const float* gs, Rows<uint8_t> q, Scales scales, FlatItems items) {
  let_next_start();
  wait_for_previous();
  float values[kEach][kVector];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    if (at.exists) load_half<A, kVectors>(x[at.row] + kVector * at.item, values[i]);
  }
  const float scale = *gs;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    const Half half = quantise(values[i], scale);
    if (!at.exists) continue;
    store_codes<kVectors>(q[at.row] + 4 * at.item, half.codes);
    if (at.item % 2 == 0) *scales.at(at.row, at.item / 2) = half.scale;
  }
}

template <bool kVectors>
Status run_rows(Exec& ex, const Nvfp4Quant::Args& a) {
  const FlatItems items = flat_items(a.x.dim(0), a.x.dim(1) / kVector);
  const Scales scales{a.scales.as<uint8_t>(), a.scales.stride(0), a.x.dim(1) / kNvfp4Block,
                      a.layout};
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_items_each(ex, items, [&]<int kEach>(const LaunchShape& shape) {
      return launch_kernel(ex, quantise_rows<A, kVectors, kEach>, shape, rows_of<const A>(a.x),
                           a.gs.as<const float>(), rows_of<uint8_t>(a.q), scales, items);
    });
  });
}

// ---- nvfp4_quant_experts ----

struct Experts {
  const float* gs;
  const int32_t* offsets;
  const int32_t* scale_offsets;
  const int32_t* row_map;  // null: row i comes from row i
  int count;
  int64_t num_sources;
  int64_t num_scale_rows;

  /// The expert of row i by offsets in shared memory; -1 if it has none.
  __device__ int of(int64_t i, const int32_t* begins) const {
    if (i < begins[0] || i >= begins[count]) return -1;
    int low = 0;
    int high = count;  // begins[low] <= i < begins[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (begins[middle] <= i) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

extern __shared__ int32_t expert_begins[];

// Offsets and rows are values of GPU memory that the host cannot check: what is out of range is not
// followed.
template <class A, bool kVectors, int kEach>
__global__ void __launch_bounds__(kFlatThreads) quantise_expert_rows(
    Rows<const A> x, Experts experts, Rows<uint8_t> q, Scales scales, FlatItems items) {
  let_next_start();
  wait_for_previous();
  for (int e = static_cast<int>(threadIdx.x); e <= experts.count; e += kFlatThreads)
    expert_begins[e] = experts.offsets[e];
  __syncthreads();
  float values[kEach][kVector];
  int expert[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    expert[i] = at.exists ? experts.of(at.row, expert_begins) : -1;
    if (expert[i] < 0) continue;
    const int64_t source = experts.row_map == nullptr ? at.row : experts.row_map[at.row];
    if (source < 0 || source >= experts.num_sources) {
      expert[i] = -1;
      continue;
    }
    load_half<A, kVectors>(x[source] + kVector * at.item, values[i]);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const ItemPlace at = items.mine<kEach>(i);
    const int e = max(expert[i], 0);
    const Half half = quantise(values[i], experts.gs[e]);
    const int64_t scale_row = experts.scale_offsets[e] + at.row - expert_begins[e];
    if (expert[i] < 0 || scale_row < 0 || scale_row >= experts.num_scale_rows) continue;
    store_codes<kVectors>(q[at.row] + 4 * at.item, half.codes);
    if (at.item % 2 == 0) *scales.at(scale_row, at.item / 2) = half.scale;
  }
}

template <bool kVectors>
Status run_experts(Exec& ex, const Nvfp4QuantExperts::Args& a) {
  if (a.gs.dim(0) == 0) return {};
  const FlatItems items = flat_items(a.q.dim(0), a.x.dim(1) / kVector);
  const Scales scales{a.scales.as<uint8_t>(), 0, a.x.dim(1) / kNvfp4Block,
                      Nvfp4ScaleLayout::kSwizzled128x4};
  const Experts experts{.gs = a.gs.as<const float>(),
                        .offsets = a.offsets.as<const int32_t>(),
                        .scale_offsets = a.scale_offsets.as<const int32_t>(),
                        .row_map = a.row_map.present() ? a.row_map.as<const int32_t>() : nullptr,
                        .count = static_cast<int>(a.gs.dim(0)),
                        .num_sources = a.x.dim(0),
                        .num_scale_rows = a.scales.dim(0)};
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_items_each(ex, items, [&]<int kEach>(LaunchShape shape) {
      shape.shared_bytes = 4 * (a.gs.dim(0) + 1);
      return launch_kernel(ex, quantise_expert_rows<A, kVectors, kEach>, shape,
                           rows_of<const A>(a.x), experts, rows_of<uint8_t>(a.q), scales, items);
    });
  });
}

template <class Args>
bool is_aligned(const Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.q);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Nvfp4Quant> nvfp4_quant_cuda{
    {"vectors", sm(90), "", kTraits, run_rows<true>, MathUnit::kF32, is_aligned<Nvfp4Quant::Args>},
    {"elements", sm(90), "", kTraits, run_rows<false>},
};

constinit const VariantTable<Nvfp4QuantExperts> nvfp4_quant_experts_cuda{
    {"vectors", sm(90), "E<=50000", kTraits, run_experts<true>, MathUnit::kF32,
     is_aligned<Nvfp4QuantExperts::Args>},
    {"elements", sm(90), "E<=50000", kTraits, run_experts<false>},
};

}  // namespace fathom
