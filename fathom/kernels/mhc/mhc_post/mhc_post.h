// Manifold-constrained hyper-connections (mHC), from a sub-layer to the residual streams: how they
// begin, and how the output of a sub-layer is spread over them while they are mixed. mhc_pre gives
// the weights.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

namespace fathom {

/// The streams of a token begin as copies of its embedding.
///
///   streams[t,j,d] = x[t,d],   j < n
///
/// Bits are copied. Errors: InvalidArgument if the formats of x and streams differ.
/// Source: DeepSeek-V4, inference/model.py (Transformer).
struct MhcExpand {
  static constexpr KernelInfo kInfo{
      .name = "mhc_expand",
      .signature = "x[T,D]:bf16|f32 -> streams[T,n,D]:bf16|f32",
      .limits = "n>=1, n<=8",
      .equation = "streams[j] = x",
      .source = "DeepSeek-V4, Transformer.forward",
      .flops = "0",
  };

  struct Args {
    View x, streams;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.streams}; }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// The streams after a sub-layer.
///
///   out[t,k] = post[t,k] y[t] + sum over j of comb[t,j,k] streams[t,j]
///
/// The first index of comb is contracted (out = comb^T streams): comb[j][k] is the weight of old
/// stream j in new stream k. out may be streams itself, with its strides; no other overlap.
/// float32, products and sums rounded apart, y first and then j in order, one rounding at the end:
/// every variant has the same bits. Channels are independent, and so are tokens. Errors:
/// InvalidArgument if y, streams and out are not of one format. Source: DeepSeek-V4,
/// inference/model.py (hc_post).
struct MhcPost {
  static constexpr KernelInfo kInfo{
      .name = "mhc_post",
      .signature =
          "y[T,D]:bf16|f32 streams[T,n,D]:bf16|f32 post[T,n]:f32 comb[T,n,n]:f32 "
          "-> out[T,n,D]:bf16|f32",
      .limits = "n>=1, n<=8",
      .equation = "out[k] = post[k] y + sum_j comb[j][k] streams[j]",
      .source = "DeepSeek-V4, hc_post",
      .flops = "T*n*D*(2*n+1)",
  };

  struct Args {
    View y, streams, post, comb, out;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.y, &a.streams, &a.post, &a.comb, &a.out};
  }

  static Cost cost(const Args& a) {
    return {.flops =
                static_cast<double>(a.out.numel()) * static_cast<double>(2 * a.streams.dim(1) + 1)};
  }

  static Status check(const Args& a);
};

extern const VariantTable<MhcExpand> mhc_expand_cpu;
extern const VariantTable<MhcExpand> mhc_expand_cuda;
extern const VariantTable<MhcPost> mhc_post_cpu;
extern const VariantTable<MhcPost> mhc_post_cuda;

}  // namespace fathom
