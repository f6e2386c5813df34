// Products of one or two rows of x with bf16 weights: a warp takes rows of w whole. No shared
// memory and nothing between warps; the first loads of weights begin before the previous kernel is
// done.
//
//   lane l of a warp has the k  256 i + 8 l + 0 .. 7,  i = 0, 1, ..
//
// Every lane adds its k in order in float32, and the lanes are added up in a tree: a row has the
// same bits alone and beside another.
#pragma once

#include "fathom/base/check.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::cuda {

inline constexpr int kRowWarps = 8;  // of a block
inline constexpr int kRowsOfWarp = 2;
inline constexpr int kRowsOfBlock = kRowWarps * kRowsOfWarp;
inline constexpr int kRowChunk = 256;  // k that a warp loads at once
inline constexpr int kRowAhead = 8;    // chunks of each row on their way
inline constexpr int kMostRowTokens = 2;
inline constexpr int kFewestRows = 512;
inline constexpr int kFewestRowK = 1024;

template <int kTokens>
__global__ void __launch_bounds__(kRowWarps * 32) row_products(ProductCall c) {
  let_next_start();
  const auto block = static_cast<int>(blockIdx.x);
  const int n = (block * kRowWarps + warp_id()) * kRowsOfWarp;
  if (n >= c.N) return;
  const int lane_k = lane_id() * kVector;
  const uint8_t* rows[kRowsOfWarp];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r)  // past the end: the last row again, not stored
    rows[r] = c.w + min(n + r, c.N - 1) * c.w_row;
  const uint64_t policy = weights_policy(true);
  uint4 held[kRowsOfWarp][kRowAhead];
  const auto load = [&](int j, int k) {
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      held[r][j] = k < c.K ? load_16(rows[r] + int64_t{k} * 2, policy) : uint4{};
    }
  };
#pragma unroll
  for (int j = 0; j < kRowAhead; ++j)
    load(j, j * kRowChunk + lane_k);
  wait_for_previous();
  const auto* x = static_cast<const Bf16*>(c.x);
  float sums[kRowsOfWarp][kTokens] = {};
  for (int k0 = lane_k; k0 - lane_k < c.K; k0 += kRowAhead * kRowChunk) {
#pragma unroll
    for (int j = 0; j < kRowAhead; ++j) {
      const int k = k0 + j * kRowChunk;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint4 v = k < c.K ? *reinterpret_cast<const uint4*>(x + t * c.x_row + k) : uint4{};
#pragma unroll
        for (int r = 0; r < kRowsOfWarp; ++r)
          sums[r][t] = add_products(held[r][j], v, sums[r][t]);
      }
      load(j, k + kRowAhead * kRowChunk);
    }
  }
  const float factor = c.factor(0);
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = combine_lanes(sums[r][t], Add());
      if (lane_id() != 0 || n + r >= c.N) continue;
      store_any(c.y, c.y_format, t * c.y_row + n + r, c.finished(sum * factor, t, n + r));
    }
  }
}

/// One matrix that is not so small that its k must be shared.
inline bool takes_rows(const ProductCall& c) {
  return c.matrices == 1 && c.T > 0 && c.T <= kMostRowTokens && c.N >= kFewestRows &&
         c.K >= kFewestRowK;
}

/// Whether it is so small that blocks that stay do not read it faster: up to 256 KiB of it for
/// every multiprocessor. On an H200 12.6 MB took 4.8 us where `persistent` took 6.3, and 75 MB 25.2
/// where that took 21.3.
inline bool rows_pay(const ProductCall& c, int num_sms) {
  constexpr int64_t kMostBytes = 256 << 10;
  return c.w_row * c.N <= kMostBytes * num_sms;
}

inline Status run_rows(Exec& ex, const ProductCall& c) {
  FATHOM_CHECK(!c.w_is_made, "rows of weights are loaded before earlier kernels are done");
  const LaunchShape shape{.blocks = (c.N + kRowsOfBlock - 1) / kRowsOfBlock,
                          .threads = kRowWarps * 32};
  return c.T == 2 ? launch_kernel(ex, row_products<2>, shape, c)
                  : launch_kernel(ex, row_products<1>, shape, c);
}

}  // namespace fathom::cuda
