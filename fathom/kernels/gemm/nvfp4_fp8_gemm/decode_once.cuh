// NVFP4 weights decoded once into rows of E4M3 (formats/block/block_fp4.h, nvfp4_as_e4m3), which
// products of E4M3 on both sides then read: for so many rows of x that decoding anew for every 128
// of them takes longer than one pass over the weights.
#pragma once

#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_as_e4m3.cuh"

namespace fathom::cuda {

/// The most that decoded weights may take of a call's workspace. The largest dense product of
/// DeepSeek-V3, 36864 x 7168, takes 252 MiB.
inline constexpr int64_t kMostDecodedBytes = int64_t{256} << 20;

/// 32 weights of a row in E4M3, in their order.
struct E4m3Piece {
  uint4 low;  ///< k 0 .. 15
  uint4 high;
};

/// Of codes in layout kPairs, with the tables of k 0 .. 15 and of the others.
__device__ __forceinline__ E4m3Piece paired_piece(uint4 codes, const uint4& tables) {
  uint32_t low[4];
  uint32_t high[4];
  look_up(codes.x, tables, low[0], high[0]);
  look_up(codes.y, tables, low[1], high[1]);
  look_up(codes.z, tables, low[2], high[2]);
  look_up(codes.w, tables, low[3], high[3]);
  // Word i has k 2i+8, 2i, 2i+9, 2i+1 and k 2i+16, 2i+24, 2i+17, 2i+25.
  return {{permute_bytes(low[0], low[1], 0x7531u), permute_bytes(low[2], low[3], 0x7531u),
           permute_bytes(low[0], low[1], 0x6420u), permute_bytes(low[2], low[3], 0x6420u)},
          {permute_bytes(high[0], high[1], 0x6420u), permute_bytes(high[2], high[3], 0x6420u),
           permute_bytes(high[0], high[1], 0x7531u), permute_bytes(high[2], high[3], 0x7531u)}};
}

/// Of the four codes in the lower half of a word.
__device__ __forceinline__ uint32_t four_in_order(uint32_t codes, uint2 table) {
  return permute_bytes(table.x, table.y, codes & 0x7777u) |
         permute_bytes(0x8000u, 0, codes >> 3 & 0x1111u);
}

/// Of codes as a checkpoint has them.
__device__ __forceinline__ E4m3Piece row_major_piece(uint4 codes, const uint4& tables) {
  const uint2 first{tables.x, tables.y};
  const uint2 second{tables.z, tables.w};
  return {{four_in_order(codes.x, first), four_in_order(codes.x >> 16, first),
           four_in_order(codes.y, first), four_in_order(codes.y >> 16, first)},
          {four_in_order(codes.z, second), four_in_order(codes.z >> 16, second),
           four_in_order(codes.w, second), four_in_order(codes.w >> 16, second)}};
}

/// Two scales of weights, as load_16.
__device__ __forceinline__ uint32_t load_two_scales(const void* p, uint64_t policy) {
  uint16_t v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u16 %0, [%1], %2;"
               : "=h"(v)
               : "l"(__cvta_generic_to_global(p)), "l"(policy)
               : "memory");
  return v;
}

/// Stores the piece of each lane, those of two lanes of a pair at `to`: they exchange halves, so
/// that each store of a warp fills sectors of 32 bytes. For all lanes; `exists` is that of a pair.
__device__ __forceinline__ void store_pair_of_pieces(uint8_t* to,
                                                     const E4m3Piece& mine,
                                                     bool exists) {
  const bool odd = lane_id() % 2 == 1;
  const auto exchanged = [&](uint32_t low, uint32_t high) {
    return __shfl_xor_sync(0xFFFFFFFFu, odd ? low : high, 1);
  };
  const uint4& low = mine.low;
  const uint4& high = mine.high;
  const uint4 other{exchanged(low.x, high.x), exchanged(low.y, high.y), exchanged(low.z, high.z),
                    exchanged(low.w, high.w)};
  const uint4 of_even = odd ? other : low;
  const uint4 of_odd = odd ? high : other;
  // As they are written: the compiler would make two half empty stores of one that chooses.
  to += odd ? 16 : 0;
  st_global_v4_if(to, of_even.x, of_even.y, of_even.z, of_even.w, exists);
  st_global_v4_if(to + 32, of_odd.x, of_odd.y, of_odd.z, of_odd.w, exists);
}

inline constexpr int kPiecesEach = 4;  ///< of a thread, on their way at once

/// All weights of a matrix to `codes`, [N, K] in E4M3: rows of codes, of scales and of the outcome
/// follow each other, so that no row has to be found. `factors` gets the scale that every 128 k of
/// the outcome have.
template <bool kInPairs>
__global__ void __launch_bounds__(kFlatThreads)
    decode_nvfp4_to_e4m3(ProductCall c, int64_t pieces, uint8_t* codes, float* factors) {
  let_next_start();
  const uint64_t policy = weights_policy(true);
  const int64_t first = int64_t{blockIdx.x} * (kFlatThreads * kPiecesEach) + threadIdx.x;
  uint4 words[kPiecesEach];
  uint32_t scales[kPiecesEach];
#pragma unroll
  for (int i = 0; i < kPiecesEach; ++i) {
    const int64_t at = min(first + i * kFlatThreads, pieces - 1);
    words[i] = load_16(c.w + at * 16, policy);
    scales[i] = load_two_scales(c.scales + at * 2, policy);
  }
  wait_for_previous();
  static_assert(32 * kPiecesEach <= 128, "a row alone has a thread for each of its groups");
  const int64_t thread = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  if (thread < c.K / 128) factors[thread] = kNvfp4PerE4m3;
  // Warps without a piece are done. Without this branch the assembler would decode the first piece
  // before it asks for the last.
  if (first - lane_id() >= pieces) return;
#pragma unroll
  for (int i = 0; i < kPiecesEach; ++i) {
    const int64_t at = first + i * kFlatThreads;
    const uint2 low = table_of_scale(scales[i] & 0xFF);
    const uint2 high = table_of_scale(scales[i] >> 8);
    const uint4 tables{low.x, low.y, high.x, high.y};
    const E4m3Piece piece =
        kInPairs ? paired_piece(words[i], tables) : row_major_piece(words[i], tables);
    store_pair_of_pieces(codes + (at & ~int64_t{1}) * 32, piece, at < pieces);
  }
}

template <bool kInPairs>
Status decode_weights(Exec& ex, const ProductCall& c, uint8_t* codes, float* factors) {
  const int64_t pieces = int64_t{c.N} * (c.K / 32);
  const LaunchShape shape{.blocks = ceil_div<int64_t>(pieces, kFlatThreads * kPiecesEach),
                          .threads = kFlatThreads};
  return launch_kernel(ex, decode_nvfp4_to_e4m3<kInPairs>, shape, c, pieces, codes, factors);
}

/// The product of weights once they are decoded: each has kNvfp4PerE4m3 for the scale of its block.
inline ProductCall product_of_decoded(const ProductCall& c, uint8_t* codes, float* factors) {
  ProductCall d = c;
  d.w = codes;
  d.w_row = c.K;
  d.w_matrix = int64_t{c.N} * c.K;
  d.in_pairs = false;
  d.w_is_made = true;
  d.scales = reinterpret_cast<const uint8_t*>(factors);
  d.scale_format = Format::kF32;
  d.scale_row = 0;  // all rows of w have the same
  d.scale_matrix = 0;
  return d;
}

template <class Args>
int64_t decoded_bytes(const Args& a) {
  return a.w.rows() * a.w.cols();
}

/// Bytes of workspace of run_decoded_tiles: weights, then their factors.
template <class Args>
int64_t decoded_weights_workspace(const Args& a, const Exec&) {
  return decoded_bytes(a) + a.w.cols() / 128 * int64_t{sizeof(float)};
}

/// Rows of x where the copy engine can read them as they are; outputs of two bytes, as tensor cores
/// add E4M3 products with about 14 bits.
template <class Args>
bool fills_decoded_tiles(const Args& a) {
  if (!has_rows(a) || a.y.format == Format::kF32 || decoded_bytes(a) > kMostDecodedBytes)
    return false;
  const bool aligned = reinterpret_cast<uintptr_t>(a.w.values.data) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(a.w.scales.data) % 2 == 0;
  return aligned &&
         takes_tiles<TileFp8Pair<true>>(product_of_decoded(e4m3_product(a), nullptr, nullptr), 1);
}

template <class Args>
Status run_decoded_tiles(Exec& ex, const Args& a) {
  const ProductCall c = e4m3_product(a);
  auto* const codes = static_cast<uint8_t*>(ex.workspace);
  auto* const factors = reinterpret_cast<float*>(codes + decoded_bytes(a));
  FATHOM_TRY(c.in_pairs ? decode_weights<true>(ex, c, codes, factors)
                        : decode_weights<false>(ex, c, codes, factors));
  return run_tiles<TileFp8Pair<true>>(ex, product_of_decoded(c, codes, factors));
}

}  // namespace fathom::cuda
