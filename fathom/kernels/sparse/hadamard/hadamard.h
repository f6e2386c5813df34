// The Walsh-Hadamard transform of rows, which the indexer of sparse attention applies to its
// queries and keys before they are quantised: it spreads outliers over all channels.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Hadamard transform of each row, in natural (Sylvester) order.
///
///   y[n,i] = scale * sum over j < D of (-1)^popcount(i & j) x[n,j],   i < D
///
/// D need not be a power of two: the row counts as padded with zeros to the next one, and the
/// result is cut to D again. Not normalised unless scale = D^-0.5 (then it is its own inverse where
/// D is a power of two). D = 1 gives scale * x.
///
/// x and y have one format and may be the same memory. Rows may be strided. Butterflies in float32,
/// strides 1, 2, 4, ... in this order in every variant, so that all have the same bits; the scale
/// is applied at the end, then one rounding. Every output depends on the whole row: NaN makes the
/// row NaN, one infinity makes it infinite, infinities that meet with opposite signs give NaN; sums
/// beyond the range of float32 become infinite before the scale is applied. Rows are independent.
/// Errors: InvalidArgument if the formats of x and y differ.
/// Source: DeepSeek-V3.2, indexer; fast-hadamard-transform (Tri Dao); reference name
/// hadamard_transform, whose leading axes are N here.
struct Hadamard {
  static constexpr KernelInfo kInfo{
      .name = "hadamard",
      .reference_names = {"hadamard_transform"},
      .signature = "x[N,D]:bf16|f16|f32 -> y[N,D]:bf16|f16|f32",
      .limits = "D>=1, D<=32768",
      .equation = "y = scale * H x, H[i,j] = (-1)^popcount(i & j)",
      .source = "DeepSeek-V3.2, indexer",
      .flops = "~N D log2(D), D rounded up to a power of two in the logarithm",
      .outside = "rotation of its own; index_query and index_key_write do it themselves",
  };

  struct Args {
    View x, y;
    float scale = 1.0f;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  /// An addition for each stage and channel, as the benchmark of the reference counts.
  static Cost cost(const Args& a);

  static Status check(const Args& a);

  /// The padded row in float32, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<Hadamard> hadamard_cpu;
extern const VariantTable<Hadamard> hadamard_cuda;

}  // namespace fathom
