// Manifold-constrained hyper-connections (mHC), from the streams to a sub-layer. A token has n
// residual streams instead of one. Before a sub-layer, n + n + n^2 numbers are computed from all of
// them: how much of each stream the sub-layer reads (pre), how much of its output each stream gets
// (post), and how the streams are mixed meanwhile (comb), a matrix made nearly doubly stochastic by
// Sinkhorn's iteration. mhc_post applies the latter two; mhc_head reads the streams for the last
// time.
//
// In both kernels here: v is the token's streams one after the other, v[j D + d] = streams[j][d],
// and
//
//   rho = 1 / sqrt(mean(v^2) + eps);   m = rho * (fn v)
//
// All arithmetic in float32, one rounding at the end. A sum over v goes in pieces of 1,024 channels
// of one stream: sixteen partial sums by d mod 16 in each piece, folded in halves, and the pieces
// added in order of stream, then channel. On a GPU the parts are those of its blocks, warps and
// lanes, and each variant has its own. No order depends on threads or on other tokens, so tokens
// are independent. Streams grow with depth (10^6 is usual): where the sum of their squares leaves
// the range of float32, rho is 0. NaN in a token stays in that token.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// The most streams: the mixing matrix of a token is worked on in memory of the stack.
inline constexpr int64_t kMaxStreams = 8;

/// The input of a sub-layer, and what mhc_post needs after it.
///
///   pre[j]     = sigmoid(m[j] scale[0] + base[j]) + hc_eps
///   post[j]    = 2 sigmoid(m[n+j] scale[1] + base[n+j])                 no epsilon: in (0, 2)
///   C[j][k]    = m[2n+nj+k] scale[2] + base[2n+nj+k]
///   C          = softmax over k of each row, + hc_eps
///   C[:,k]    /= sum over j of C[j][k] + hc_eps                         columns first
///   iterations - 1 times:   C[j,:] /= sum over k of C[j][k] + hc_eps, then the columns again
///   x          = sum over j of pre[j] streams[j];   comb = C
///
/// fn and base hold n rows of pre, n of post, n^2 of comb, in this order. `iterations` counts the
/// softmax and the columns after it as one; the procedure ends on columns, whose sums are then 1,
/// while those of rows are near it. The count is part of the model: matrices of trained models do
/// not converge within it.
/// C[j][k] is the weight of old stream j in new stream k.
/// Errors: InvalidArgument if the formats of streams and x differ, or iterations < 1.
/// Source: DeepSeek-V4, inference/model.py (hc_pre) and inference/kernel.py
/// (hc_split_sinkhorn_kernel); mHC, arXiv 2512.24880.
struct MhcPre {
  static constexpr KernelInfo kInfo{
      .name = "mhc_pre",
      .signature =
          "streams[T,n,D]:bf16|f32 fn[Q,n*D]:f32 base[Q]:f32 scale[3]:f32 "
          "-> x[T,D]:bf16|f32 post[T,n]:f32 comb[T,n,n]:f32",
      .limits = "n>=1, n<=8, D>=1, Q==2*n+n*n",
      .equation =
          "m = (fn v) / rms(v); x = sum_j (sigmoid(m_j) + eps) streams_j; "
          "post = 2 sigmoid(m); comb = sinkhorn(softmax(m))",
      .source = "DeepSeek-V4, hc_pre",
      .flops = "2*T*n*D*(Q+2)",
  };

  struct Args {
    View streams, fn, base, scale, x, post, comb;
    float eps = 1e-6f;     ///< of the norm
    float hc_eps = 1e-6f;  ///< of pre and of Sinkhorn's sums
    int iterations = 20;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.streams, &a.fn, &a.base, &a.scale, &a.x, &a.post, &a.comb};
  }

  /// The product, the squares, the weighted sum; Sinkhorn's iteration is not counted.
  static Cost cost(const Args& a) {
    return {.flops = 2.0 * static_cast<double>(a.streams.numel()) *
                     static_cast<double>(a.fn.dim(0) + 2)};
  }

  static Status check(const Args& a);

  /// Sums of the pieces, for a block of tokens.
  static int64_t workspace(const Args& a, int num_threads);
};

/// The one hidden state that the streams end in.
///
///   pre[j] = sigmoid(m[j] scale[0] + base[j]) + hc_eps;   h = sum over j of pre[j] streams[j]
///
/// Errors: InvalidArgument if the formats of streams and h differ.
/// Source: DeepSeek-V4, inference/model.py (hc_head).
struct MhcHead {
  static constexpr KernelInfo kInfo{
      .name = "mhc_head",
      .signature =
          "streams[T,n,D]:bf16|f32 fn[n,n*D]:f32 base[n]:f32 scale[1]:f32 "
          "-> h[T,D]:bf16|f32",
      .limits = "n>=1, n<=8, D>=1",
      .equation = "m = (fn v) / rms(v); h = sum_j (sigmoid(m_j) + eps) streams_j",
      .source = "DeepSeek-V4, hc_head",
      .flops = "2*T*n*D*(n+2)",
  };

  struct Args {
    View streams, fn, base, scale, h;
    float eps = 1e-6f;
    float hc_eps = 1e-6f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.streams, &a.fn, &a.base, &a.scale, &a.h};
  }

  static Cost cost(const Args& a) {
    return {.flops = 2.0 * static_cast<double>(a.streams.numel()) *
                     static_cast<double>(a.fn.dim(0) + 2)};
  }

  static Status check(const Args& a);
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<MhcPre> mhc_pre_cpu;
extern const VariantTable<MhcPre> mhc_pre_cuda;
extern const VariantTable<MhcHead> mhc_head_cpu;
extern const VariantTable<MhcHead> mhc_head_cuda;

}  // namespace fathom
