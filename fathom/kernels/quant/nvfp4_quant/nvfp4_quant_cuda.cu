#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// The values of a block as they lie in memory. Where rows are not aligned they are taken one by
/// one.
template <class A, bool kVectors>
struct Block {
  Packed<A> halves[2];

  __device__ void load(const A* x) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kVectors) {
        halves[h] = load_packed(x + kVector * h);
      } else {
        float values[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i)
          values[i] = cuda::load(x + kVector * h + i);
        pack(values, halves[h]);
      }
    }
  }
};

/// The codes of a block, and its scale.
struct BlockCodes {
  uint32_t words[2];
  uint8_t scale;

  template <bool kVectors>
  __device__ void store(uint8_t* q) const {
    if constexpr (kVectors) {
      *reinterpret_cast<uint2*>(q) = {words[0], words[1]};
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        q[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
  }
};

/// The recipe of activations of formats/block_fp4.h, operation by operation. A block with a NaN or
/// one that saturates, which no sound call has, is limited value by value.
template <class A>
__device__ BlockCodes quantise(const Packed<A> (&halves)[2], float gs, float inverse_gs) {
  float amax = largest_size<Nan::kKept>(halves);
  const bool has_nan = isnan(amax);
  if (has_nan) amax = largest_size<Nan::kLeftOut>(halves);
  E4m3 code;
  store(&code, __fmul_rn(gs, __fmul_rn(amax, 1.0f / kE2m1Max)));
  const float scale = load(&code);
  const float factor = scale == 0.0f ? 0.0f : __frcp_rn(__fmul_rn(scale, inverse_gs));
  const bool fits = !has_nan && __fmul_rn(amax, factor) < kE2m1Limit;
  BlockCodes out{{}, code.bits};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x[kVector];
    unpack(halves[h], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      x[i] = __fmul_rn(x[i], factor);
    if (!fits) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        x[i] = fmaxf(fminf(x[i], kE2m1Max), -kE2m1Max);
    }
    out.words[h] = e2m1_codes(x);
  }
  return out;
}

/// Blocks of a row that one thread takes, 32 of them apart.
template <class A, bool kVectors, int kEach>
struct ThreadBlocks {
  Block<A, kVectors> blocks[kEach];
  int left;  // blocks of the row from the first of this thread on

  __device__ void load(const A* x) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (32 * i < left) blocks[i].load(x + kNvfp4Block * 32 * i);
    }
  }

  /// `scale_step` bytes lie between the scales of a block and of the 32nd after it.
  __device__ void store(uint8_t* q, uint8_t* scales, int scale_step, float gs) const {
    const float inverse_gs = __frcp_rn(gs);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (32 * i >= left) return;
      const BlockCodes codes = quantise(blocks[i].halves, gs, inverse_gs);
      codes.template store<kVectors>(q + kNvfp4Block / 2 * 32 * i);
      scales[scale_step * i] = codes.scale;
    }
  }
};

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

  /// From the scale of a block to that of the 32nd after it in its row.
  __device__ int step() const {
    switch (layout) {
      case Nvfp4ScaleLayout::kSwizzled128x4:
        return 8 * 512;
      case Nvfp4ScaleLayout::kSwizzled8x4:
        return 8 * 32;
      default:
        return 32;
    }
  }
};

// Items are blocks.
template <class A, bool kVectors, int kEach>
__global__ void __launch_bounds__(kFlatThreads) quantise_rows(
    Rows<const A> x, const float* gs, Rows<uint8_t> q, Scales scales, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace at = pieces.mine<kEach>();
  if (!at.exists) return;
  const uint32_t block = at.first + static_cast<uint32_t>(lane_id());
  ThreadBlocks<A, kVectors, kEach> mine{.left = pieces.left(block)};
  mine.load(x[at.row] + kNvfp4Block * int64_t{block});
  mine.store(q[at.row] + kNvfp4Block / 2 * int64_t{block}, scales.at(at.row, block), scales.step(),
             *gs);
}

template <bool kVectors>
Status run_rows(Exec& ex, const Nvfp4Quant::Args& a) {
  const int64_t num_blocks = a.x.dim(1) / kNvfp4Block;
  const Scales scales{a.scales.as<uint8_t>(), a.scales.stride(0), num_blocks, a.layout};
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_row_pieces<4>(ex, a.x.dim(0), num_blocks,
                              [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
                                return launch_kernel(ex, quantise_rows<A, kVectors, kEach>, shape,
                                                     rows_of<const A>(a.x), a.gs.as<const float>(),
                                                     rows_of<uint8_t>(a.q), scales, pieces);
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

  /// The expert of row i, -1 if it has none; the same for all lanes, which look at 32 offsets at
  /// once.
  __device__ int of(int64_t i) const {
    const int32_t end = offsets[count];
    int first = 0;
    int size = count;  // the expert is one of first .. first + size - 1
    int step = 0;
    do {
      step = (size + 31) / 32;
      const int place = lane_id() * step;
      const bool begins = place < size && offsets[first + place] <= i;
      const int num_begun = __popc(__ballot_sync(0xFFFFFFFFu, begins));
      if (num_begun == 0) return -1;
      const int skipped = (num_begun - 1) * step;
      first += skipped;
      size = min(step, size - skipped);
    } while (step > 1);
    return i < end ? first : -1;
  }

  __device__ int64_t source_of(int64_t i) const { return row_map == nullptr ? i : row_map[i]; }
};

// Offsets and rows are values of GPU memory that the host cannot check: what is out of range is not
// followed.
template <class A, bool kVectors, int kEach>
__global__ void __launch_bounds__(kFlatThreads) quantise_expert_rows(
    Rows<const A> x, Experts experts, Rows<uint8_t> q, Scales scales, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace at = pieces.mine<kEach>();
  if (!at.exists) return;
  const int64_t source = experts.source_of(at.row);
  const int e = experts.of(at.row);
  if (e < 0 || source < 0 || source >= experts.num_sources) return;
  const uint32_t block = at.first + static_cast<uint32_t>(lane_id());
  ThreadBlocks<A, kVectors, kEach> mine{.left = pieces.left(block)};
  mine.load(x[source] + kNvfp4Block * int64_t{block});
  const int64_t scale_row = int64_t{experts.scale_offsets[e]} + at.row - experts.offsets[e];
  if (scale_row < 0 || scale_row >= experts.num_scale_rows) return;
  mine.store(q[at.row] + kNvfp4Block / 2 * int64_t{block}, scales.at(scale_row, block),
             scales.step(), experts.gs[e]);
}

template <bool kVectors>
Status run_experts(Exec& ex, const Nvfp4QuantExperts::Args& a) {
  if (a.gs.dim(0) == 0) return {};
  const int64_t num_blocks = a.x.dim(1) / kNvfp4Block;
  const Scales scales{a.scales.as<uint8_t>(), 0, num_blocks, Nvfp4ScaleLayout::kSwizzled128x4};
  const Experts experts{.gs = a.gs.as<const float>(),
                        .offsets = a.offsets.as<const int32_t>(),
                        .scale_offsets = a.scale_offsets.as<const int32_t>(),
                        .row_map = a.row_map.present() ? a.row_map.as<const int32_t>() : nullptr,
                        .count = static_cast<int>(a.gs.dim(0)),
                        .num_sources = a.x.dim(0),
                        .num_scale_rows = a.scales.dim(0)};
  return with_float_type(a.x.format, [&]<class A>(A) {
    return with_row_pieces<4>(ex, a.q.dim(0), num_blocks,
                              [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
                                return launch_kernel(ex, quantise_expert_rows<A, kVectors, kEach>,
                                                     shape, rows_of<const A>(a.x), experts,
                                                     rows_of<uint8_t>(a.q), scales, pieces);
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
    {"vectors", sm(90), "", kTraits, run_experts<true>, MathUnit::kF32,
     is_aligned<Nvfp4QuantExperts::Args>},
    {"elements", sm(90), "", kTraits, run_experts<false>},
};

}  // namespace fathom
