// Manifold-constrained hyper-connections (mHC), from the output of one sub-layer to the input of
// the next: mhc_post, mhc_pre and rmsnorm as one kernel. In a decode step each of the three takes
// as long as its launch; together they take little more than one.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

namespace fathom {

/// The streams after a sub-layer, and the input of the next one.
///
///   out[t,k] = round(post[t,k] y[t] + sum over j of comb[t,j,k] streams[t,j])          mhc_post
///   x, next_post, next_comb = mhc_pre(out; fn, base, scale), x rounded                 mhc_pre
///   h[t,d] = x[t,d] norm[d] / sqrt(mean over d of x[t,d]^2 + norm_eps)                 rmsnorm
///
/// Precision, order and NaN are as in the three contracts: out has the bits of mhc_post, h is
/// rounded once more than x. out may be streams itself with its strides, next_post may be post and
/// next_comb may be comb; no other overlap. Tokens are independent. Deterministic.
/// Errors: InvalidArgument if y, streams, out and h are not of one format, or iterations < 1.
/// Source: DeepSeek-V4, inference/model.py (Block.forward: hc_post of one half, hc_pre and the norm
/// of the next).
struct MhcChain {
  static constexpr KernelInfo kInfo{
      .name = "mhc_chain",
      .signature =
          "y[T,D]:bf16|f32 streams[T,n,D]:bf16|f32 post[T,n]:f32 comb[T,n,n]:f32 "
          "fn[Q,n*D]:f32 base[Q]:f32 scale[3]:f32 norm[D]:bf16|f32 "
          "-> out[T,n,D]:bf16|f32 h[T,D]:bf16|f32 next_post[T,n]:f32 next_comb[T,n,n]:f32",
      .limits = "n>=1, n<=8, D>=1, Q==2*n+n*n",
      .equation = "out = mhc_post(y, streams); h = rmsnorm(mhc_pre(out)) * norm",
      .source = "DeepSeek-V4, Block.forward",
      .flops = "T*D*(n*(2*(n+Q)+5)+4)",
      .outside = "few tokens on a GPU; on a CPU its parts are three ops",
  };

  struct Args {
    View y, streams, post, comb;  ///< of the sub-layer before
    View fn, base, scale, norm;   ///< of the next one
    View out, h, next_post, next_comb;
    float eps = 1e-6f;     ///< of mhc_pre's norm
    float hc_eps = 1e-6f;  ///< of pre and of Sinkhorn's sums
    float norm_eps = 1e-6f;
    int iterations = 20;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.y,     &a.streams, &a.post, &a.comb, &a.fn,        &a.base,
                      &a.scale, &a.norm,    &a.out,  &a.h,    &a.next_post, &a.next_comb};
  }

  static MhcPost::Args post_of(const Args& a) {
    return {.y = a.y, .streams = a.streams, .post = a.post, .comb = a.comb, .out = a.out};
  }

  /// x lies in h until it is normed.
  static MhcPre::Args pre_of(const Args& a) {
    return {.streams = a.out,
            .fn = a.fn,
            .base = a.base,
            .scale = a.scale,
            .x = a.h,
            .post = a.next_post,
            .comb = a.next_comb,
            .eps = a.eps,
            .hc_eps = a.hc_eps,
            .iterations = a.iterations};
  }

  static Cost cost(const Args& a) {
    return {.flops = MhcPost::cost(post_of(a)).flops + MhcPre::cost(pre_of(a)).flops +
                     4.0 * static_cast<double>(a.h.numel())};
  }

  static Status check(const Args& a);
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<MhcChain> mhc_chain_cpu;
extern const VariantTable<MhcChain> mhc_chain_cuda;

}  // namespace fathom
