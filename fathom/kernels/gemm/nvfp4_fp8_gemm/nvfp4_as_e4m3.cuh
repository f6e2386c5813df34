// NVFP4 weights as E4M3 operands of a warpgroup's product (formats/block/block_fp4.h,
// nvfp4_as_e4m3), and activations in the order that suits them.
//
// A block scale has eight magnitudes of weights: eight bytes, a table that the warps which bring
// scales make once, exactly (code times scale is exact in f16, then one rounding). A lane finds
// four weights in it by one byte permutation whose selector is made of their codes.
//
// Lane t of a quad has the t-th 32 of 128 k, sixteen bytes in layout kPairs (pair_layout.h). Word i
// of them is the operand of product i of four, in the order in which the bits of a word give
// selectors:
//
//   register 0: k 2i+8, 2i, 2i+9, 2i+1      register 2: k 2i+16, 2i+24, 2i+17, 2i+25
//
// so that product i has byte 4 t + j of each half of its 32 columns from those k of 32 t .. 32
// t+31. Rows of x are brought into that order first.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"

namespace fathom::cuda {

/// Bytes of a and b by four selectors; with bit 3 of one, its byte's sign eight times. PTX ISA,
/// prmt.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selectors));
  return d;
}

/// e4m3(magnitude * scale / 8) of the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
__device__ __forceinline__ uint2 table_of_scale(uint32_t scale) {
  const __half2 both(
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(scale * 0x0101u), __NV_E4M3));
  const auto two = [&](float low, float high) {
    const __half2 value = __hmul2(both, __floats2half2_rn(low / 8, high / 8));
    return uint32_t{__nv_cvt_halfraw2_to_fp8x2(value, __NV_SATFINITE, __NV_E4M3)};
  };
  return {two(0.0f, 0.5f) | two(1.0f, 1.5f) << 16, two(2.0f, 3.0f) | two(4.0f, 6.0f) << 16};
}

/// The eight weights of a word: registers 0 and 2 as above. `tables` are those of the k below 16
/// and of the others.
__device__ __forceinline__ void look_up(uint32_t word,
                                        const uint4& tables,
                                        uint32_t& low,
                                        uint32_t& high) {
  constexpr uint32_t kSigns = 0x80808080u;
  constexpr uint32_t kEvenBytes = 0x2020u;  // bytes 0 and 2, twice
  const uint32_t rotated = __funnelshift_l(word, word, kPairRotation);
  const uint32_t first = ((word >> 3) & 0x00070007u) | ((word >> 2) & 0x00700070u);
  // Of a code of the last pair, bits 4, 0 and 1 become 4, 5 and 6.
  const uint32_t second = (word & 0x00070007u) | (((rotated & 0x00130013u) * 0x21u) & 0x00700070u);
  low = permute_bytes(tables.x, tables.y, permute_bytes(first, first, kEvenBytes));
  high = permute_bytes(tables.z, tables.w, permute_bytes(second, second, kEvenBytes));
  // Shifts to the left are products, for the pipe that has less to do.
  low |= permute_bytes(word, word * 8, 0x3715u) & kSigns;
  high |= permute_bytes(rotated, rotated * 16, 0x6341u) & kSigns;
}

/// NVFP4 weights in layout kPairs and activations in E4M3; sums of 128 k are scaled and added up in
/// float32, which leaves room for 64 rows of w a warpgroup.
struct TileNvfp4AsE4m3 {
  static constexpr bool kBlocksShare = false;
  static constexpr int kStageK = 128;
  static constexpr int kXElement = 1;
  static constexpr int kWRow = 64;
  static constexpr int kWEvery = 1;
  static constexpr int kGroups = 2;
  static constexpr int kRowBlocks = 1;
  using Shapes = TileShapes<Tiles<TileNvfp4AsE4m3, 64>, Tiles<TileNvfp4AsE4m3, 128>>;
  using Rest = TileShapes<Tiles<TileNvfp4AsE4m3, 128>>;
  static constexpr bool kDecoded = true;
  static constexpr bool kCodes = true;
  static constexpr int kAddEvery = 1;
  static constexpr TileSide kSide = TileSide::kTables;
  static constexpr int kSideRow = kSideRowBytes;  ///< eight tables
  static constexpr float kFactor = kNvfp4PerE4m3;
  static constexpr int kSteps = kStageK / 32;

  __device__ __forceinline__ static uint32_t quad_lane() {
    return static_cast<uint32_t>(lane_id()) & 3;
  }

  __device__ __forceinline__ static uint32_t w_place(uint32_t row) {
    return row * kWRow + quad_lane() * 16;
  }

  /// Where a row has its first chunk of two tables; chunk c is at the address xor 16 c.
  __device__ __forceinline__ static uint32_t tables_place(uint32_t row) {
    return row * kSideRow + ((row >> 1 & 3) << 4);
  }

  __device__ __forceinline__ static uint32_t side_place(uint32_t row) {
    return tables_place(row) ^ quad_lane() << 4;
  }

  __device__ __forceinline__ static void decode(uint32_t w,
                                                uint32_t side,
                                                uint32_t (&a)[kSteps][4]) {
    uint32_t row[4];
    uint32_t row_8[4];
    load_shared(w, row);
    load_shared(w + 8 * kWRow, row_8);
    const uint4 tables = load_shared_16(side);
    const uint4 tables_8 = load_shared_16(side + 8 * kSideRow);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      look_up(row[step], tables, a[step][0], a[step][2]);
      look_up(row_8[step], tables_8, a[step][1], a[step][3]);
    }
  }

  /// Tables of rows of w and scales of rows of x for a stage, for the threads that bring them.
  struct Side {
    static constexpr int kRows = 128;
    static constexpr int kEach = (kRows + kSideThreads - 1) / kSideThreads;
    uint2 scales[kEach];
    float tokens[kEach];

    template <bool kGatedRows>
    __device__ __forceinline__ void load(const ProductCall& c,
                                         const ProductTile& tile,
                                         int stage,
                                         int thread) {
      const uint8_t* const first = c.scales + tile.e * c.scale_matrix + stage * (kStageK / 16);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int row = thread + j * kSideThreads;
        const int n = row_of_w<kGatedRows>(c, tile.row_tile * kRows + row);
        scales[j] = *reinterpret_cast<const uint2*>(first + n * c.scale_row);
        const int64_t at = (int64_t{tile.first} + row) * c.x_scale_row + stage * c.x_scale_block;
        tokens[j] = row < tile.count ? c.x_scales[at] : 0.0f;
      }
    }

    __device__ __forceinline__ void keep(uint32_t to, int thread) const {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int row = thread + j * kSideThreads;
        if (row >= kRows) return;
        const uint32_t place = to + tables_place(static_cast<uint32_t>(row));
#pragma unroll
        for (uint32_t chunk = 0; chunk < 4; ++chunk) {
          const uint32_t two = (chunk < 2 ? scales[j].x : scales[j].y) >> (16 * (chunk & 1));
          const uint2 low = table_of_scale(two & 0xFF);
          const uint2 high = table_of_scale(two >> 8 & 0xFF);
          asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place ^ chunk << 4),
                       "r"(low.x), "r"(low.y), "r"(high.x), "r"(high.y)
                       : "memory");
        }
        asm volatile(
            "st.shared.f32 [%0], %1;" ::"r"(to + kRows * kSideRow + 4 * static_cast<uint32_t>(row)),
            "f"(tokens[j])
            : "memory");
      }
    }
  };

  static_assert(Side::kRows == 64 * kGroups * kRowBlocks);
};

/// Rows of x in the order of the operands, a thread 32 k. Rows of no expert are left out.
static __global__ void __launch_bounds__(kFlatThreads)
    order_e4m3_rows(ProductCall c, bool aligned, FlatItems items, uint32_t* to) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  if (c.offsets != nullptr && (at.row < c.offsets[0] || at.row >= c.offsets[c.matrices])) return;
  const uint8_t* const from = static_cast<const uint8_t*>(c.x) + at.row * c.x_row + at.item * 32;
  uint32_t words[8];
  if (aligned) {
    const uint4 low = reinterpret_cast<const uint4*>(from)[0];
    const uint4 high = reinterpret_cast<const uint4*>(from)[1];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      words[i] = uint32_t{from[4 * i]} | uint32_t{from[4 * i + 1]} << 8 |
                 uint32_t{from[4 * i + 2]} << 16 | uint32_t{from[4 * i + 3]} << 24;
    }
  }
  // 128 k are 32 words: product i, half of its columns, lane.
  uint32_t* const out = to + at.row * (c.K / 4) + at.item / 4 * 32 + at.item % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool odd = i % 2 == 1;
    out[8 * i] = permute_bytes(words[i / 2], words[2 + i / 2], odd ? 0x3726u : 0x1504u);
    out[8 * i + 4] = permute_bytes(words[4 + i / 2], words[6 + i / 2], odd ? 0x7362u : 0x5140u);
  }
}

/// Bytes of workspace of run_e4m3_tiles.
template <class Args>
int64_t ordered_workspace(const Args& a, const Exec&) {
  return align_up<int64_t>(a.x.dim(0) * a.x.dim(1), 256);
}

template <class Args>
ProductCall e4m3_product(const Args& a) {
  ProductCall c = product_of(a);
  c.scale_x_by(a.x_scales);
  return c;
}

/// Weights in pairs, outputs of two bytes: tensor cores add E4M3 products with about 14 bits.
template <class Args>
bool fills_e4m3_tiles(const Args& a) {
  ProductCall c = e4m3_product(a);
  c.x = nullptr;  // a copy
  c.x_row = c.K;
  return a.w.layout == WeightLayout::kPairs && a.y.format != Format::kF32 &&
         reinterpret_cast<uintptr_t>(c.scales) % 8 == 0 && takes_tiles<TileNvfp4AsE4m3>(c, 1);
}

template <class Args>
Status run_e4m3_tiles(Exec& ex, const Args& a) {
  ProductCall c = e4m3_product(a);
  const bool aligned = reinterpret_cast<uintptr_t>(c.x) % 16 == 0 && c.x_row % 16 == 0;
  const FlatItems items = flat_items(c.T, c.K / 32);
  auto* const ordered = static_cast<uint32_t*>(ex.workspace);
  FATHOM_TRY(launch_kernel(ex, order_e4m3_rows, one_item_each(items), c, aligned, items, ordered));
  c.x = ordered;
  c.x_row = c.K;
  if constexpr (requires { a.gate.on; }) {
    if (a.gate.on) return run_tiles<Gated<TileNvfp4AsE4m3>>(ex, c);
  }
  return run_tiles<TileNvfp4AsE4m3>(ex, c);
}

/// Any layout and alignment, a warp an output.
template <class Args>
Status run_e4m3_any_layout(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(e4m3_product(a), Format::kNvfp4);
  p.w.as_e4m3 = true;
  return run_any(ex, p);
}

}  // namespace fathom::cuda
