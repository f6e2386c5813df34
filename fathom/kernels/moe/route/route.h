// From the experts that tokens chose to the order in which rows are worked on: sorted by expert, so
// that each expert's weights are read once. Two forms: offsets (route_offsets, for the grouped
// GEMMs), and blocks of equal height (align_experts, for sorted_moe_gemm).
#pragma once

#include <algorithm>
#include <array>

#include "fathom/kernels/core/variants.h"

namespace fathom {

/// Sorts the T*K (token, slot) pairs by expert, stably.
///
///   offsets[e]  = number of pairs whose expert is below e;  offsets[E] = pairs that have an expert
///   dest[t,k]   = position of pair (t,k) in that order;     -1 where ids[t,k] is -1
///   src_row[i]  = token of position i;                      -1 for i >= offsets[E]
///
/// ids[T,K] are expert numbers or -1 for "none here" (padding, experts of another rank). Within an
/// expert pairs keep their order (t, then k), so sums over an expert's rows are reproducible.
///
///   T=2, K=2, E=3, ids = 2 0 / 0 -1:  offsets = 0 2 2 3   src_row = 0 1 0 -1   dest = 2 0 / 1 -1
///
/// Errors: InvalidArgument for an id outside [-1, E).
/// Source: reference name prepare_moe_input; the stable order is ours.
struct RouteOffsets {
  static constexpr KernelInfo kInfo{
      .name = "route_offsets",
      .reference_names = {"prepare_moe_input"},
      .signature = "ids[T,K]:i32 -> offsets[E1]:i32 src_row[R]:i32 dest[T,K]:i32",
      .limits = "R==T*K, E1>=1",
      .equation = "stable counting sort of (token, slot) pairs by expert",
      .source = "sgl-kernel, prepare_moe_input",
  };

  struct Args {
    View ids, offsets, src_row, dest;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids, &a.offsets, &a.src_row, &a.dest};
  }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// Sorts the T*K slots by expert and pads every expert to whole blocks of `block` slots.
///
///   sorted_ids[j]   = flat slot t*K + k, or T*K ("nothing") in padding and to the end of the
///   buffer block_expert[b] = expert of slots b*block .. (b+1)*block-1, -1 for slots without an
///   expert and
///                     to the end of the buffer
///   num_padded[0]   = slots up to the end of the last block
///
/// Slots with id -1 come first, in blocks of expert -1, as the reference has it. The order within
/// an expert is that of the slots.
///
///   T=3, K=1, E=2, block=2, ids = 1 -1 1:  sorted_ids = 1 3 | 0 2   block_expert = -1 1, padded =
///   4
///
/// Errors: InvalidArgument if block < 1, num_experts < 0, an id is outside [-1, num_experts), or
/// the buffers are too small; capacity() slots and capacity() / block blocks always suffice.
/// Source: reference name moe_align_block_size.
struct AlignExperts {
  static constexpr KernelInfo kInfo{
      .name = "align_experts",
      .reference_names = {"moe_align_block_size"},
      .signature = "ids[T,K]:i32 -> sorted_ids[M]:i32 block_expert[B]:i32 num_padded[1]:i32",
      .equation = "stable counting sort of slots by expert, each padded to whole blocks",
      .source = "sgl-kernel, moe_align_block_size",
  };

  struct Args {
    View ids, sorted_ids, block_expert, num_padded;
    int block = 1;
    int num_experts = 0;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids, &a.sorted_ids, &a.block_expert, &a.num_padded};
  }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);

  /// A counter of each bucket.
  static int64_t workspace(const Args& a, int /*num_threads*/) {
    return (int64_t{a.num_experts} + 1) * 4;
  }

  /// Slots that suffice for any ids: every bucket that can be filled is padded by block - 1 at
  /// most.
  static constexpr int64_t capacity(int64_t slots, int64_t num_experts, int64_t block) {
    const int64_t buckets = std::min(slots, num_experts + 1);
    return (slots + buckets * (block - 1)) / block * block;
  }
};

extern const VariantTable<RouteOffsets> route_offsets_cpu;
extern const VariantTable<AlignExperts> align_experts_cpu;

}  // namespace fathom
