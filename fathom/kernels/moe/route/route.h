// From the experts that tokens chose to the order in which rows are worked on: sorted by expert, so
// that each expert's weights are read once. Two forms: offsets (route_offsets, for the grouped
// GEMMs), and blocks of equal height (align_experts, for sorted_moe_gemm). Where rows are sorted
// elsewhere, route_group_shapes gives offsets and shapes alone.
#pragma once

#include <algorithm>
#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// What an id that names no expert is.
enum class UnknownIds : uint8_t {
  kRefuse,  ///< -1 means "none here"; anything else is an error
  kSkip,    ///< not counted, whatever it is: callers map "none here" to -1 or to E
};

/// Sorts the T*K (token, slot) pairs by expert, stably.
///
///   offsets[e]  = number of pairs whose expert is below e;  offsets[E] = pairs that have an expert
///   dest[t,k]   = position of pair (t,k) in that order;     -1 where ids[t,k] is -1
///   src_row[i]  = token of position i;                      -1 for i >= offsets[E]
///
/// ids[T,K] are expert numbers or -1 for "none here" (padding, experts of another rank). Within an
/// expert pairs keep their order (t, then k), so sums over an expert's rows are reproducible.
/// Optional results, for the two products of a layer with n intermediate and k hidden columns, c[e]
/// being offsets[e+1] - offsets[e]:
///   sizes_up[e] = (c[e], 2n, k);   sizes_down[e] = (c[e], k, n)
///   scale_offsets[e] = sum over j < e of c[j] rounded up to 128 (formats/layout/scale_layout.h)
///
///   T=2, K=2, E=3, ids = 2 0 / 0 -1:  offsets = 0 2 2 3   src_row = 0 1 0 -1   dest = 2 0 / 1 -1
///
/// Errors: InvalidArgument for an id outside [-1, E), unless unknown is kSkip.
/// Source: reference name prepare_moe_input (kSkip); the stable order, and -1 where it writes
/// nothing, are ours.
struct RouteOffsets {
  static constexpr KernelInfo kInfo{
      .name = "route_offsets",
      .reference_names = {"prepare_moe_input"},
      .signature =
          "ids[T,K]:i32 -> offsets[E1]:i32 src_row[R]:i32 dest[T,K]:i32 "
          "sizes_up?[E1-1,3]:i32 sizes_down?[E1-1,3]:i32 scale_offsets?[E1]:i32",
      .limits = "R==T*K, E1>=1",
      .equation = "stable counting sort of (token, slot) pairs by expert",
      .source = "sgl-kernel, prepare_moe_input",
      .flops = "0",
  };

  struct Args {
    View ids, offsets, src_row, dest;
    View sizes_up = {}, sizes_down = {}, scale_offsets = {};
    int32_t n = 0;  ///< of the sizes
    int32_t k = 0;
    UnknownIds unknown = UnknownIds::kRefuse;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids,      &a.offsets,    &a.src_row,      &a.dest,
                      &a.sizes_up, &a.sizes_down, &a.scale_offsets};
  }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// Counts the slots of each expert: offsets and the shapes of the two products of a layer, written
/// the other way round (weights times rows).
///
///   c[e] = number of slots with id e;   offsets[e] = sum over j < e of c[j]
///   sizes_up[e] = (2n, c[e], k);        sizes_down[e] = (k, c[e], n)
///
/// Ids outside [0, E) are not counted. n: intermediate columns, k: hidden columns.
/// Errors: none beyond the signature. Source: reference name get_cutlass_w4a8_moe_mm_data, which
/// takes two permutations as well and leaves them alone.
struct RouteGroupShapes {
  static constexpr KernelInfo kInfo{
      .name = "route_group_shapes",
      .reference_names = {"get_cutlass_w4a8_moe_mm_data"},
      .signature = "ids[T,K]:i32 -> offsets[E1]:i32 sizes_up[E,3]:i32 sizes_down[E,3]:i32",
      .limits = "E1==E+1",
      .equation =
          "c[e] = slots of expert e; offsets = prefix sums of c; sizes = (2n, c, k), "
          "(k, c, n)",
      .source = "sgl-kernel, get_cutlass_w4a8_moe_mm_data",
      .flops = "0",
      .outside = "shapes of groups for libraries of grouped products",
  };

  struct Args {
    View ids, offsets, sizes_up, sizes_down;
    int32_t n = 0;
    int32_t k = 0;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids, &a.offsets, &a.sizes_up, &a.sizes_down};
  }

  static Cost cost(const Args&) { return {}; }
};

/// What align_experts does with slots of padding.
enum class PaddedSlots : uint8_t {
  kFill,   ///< "nothing", to the end of the buffer
  kLeave,  ///< not written: the caller has filled the buffer
};

/// Sorts the T*K slots by expert and pads every expert to whole blocks of `block` slots.
///
///   sorted_ids[j]   = flat slot t*K + k, or T*K ("nothing") in padding and behind the last block
///   block_expert[b] = expert of slots b*block .. (b+1)*block-1;
///                     -1 for slots without an expert, and behind the last block
///   num_padded[0]   = slots up to the end of the last block
///   starts[b]       = first slot of bucket b: optional, buckets are -1, 0, .. E-1, and an end
///
/// Slots with id -1 come first, in blocks of expert -1, as the reference has it. The order within
/// an expert is that of the slots.
///
///   T=3, K=1, E=2, block=2, ids = 1 -1 1:
///     sorted_ids = 1 3 | 0 2   block_expert = -1 1   padded = 4   starts = 0 2 2 4
///
/// Errors: InvalidArgument if block < 1, num_experts < 0, an id is outside [-1, num_experts), or
/// the buffers are too small; capacity() slots and capacity() / block blocks always suffice.
/// Source: reference name moe_align_block_size, whose num_experts counts buckets (one more than
/// ours), whose pad_sorted_token_ids chooses kFill or kLeave, and whose cumsum_buffer is starts; it
/// reads ids as packed, whatever their strides.
struct AlignExperts {
  static constexpr KernelInfo kInfo{
      .name = "align_experts",
      .reference_names = {"moe_align_block_size"},
      .signature =
          "ids[T,K]:i32|i64 -> sorted_ids[M]:i32 block_expert[B]:i32 num_padded[1]:i32 "
          "starts?[C]:i32",
      .equation = "stable counting sort of slots by expert, each padded to whole blocks",
      .source = "sgl-kernel, moe_align_block_size",
      .flops = "0",
  };

  struct Args {
    View ids, sorted_ids, block_expert, num_padded;
    int block = 1;
    int num_experts = 0;
    View starts = {};  ///< at least num_experts + 2
    PaddedSlots padding = PaddedSlots::kFill;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids, &a.sorted_ids, &a.block_expert, &a.num_padded, &a.starts};
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
extern const VariantTable<RouteOffsets> route_offsets_cuda;
extern const VariantTable<RouteGroupShapes> route_group_shapes_cpu;
extern const VariantTable<RouteGroupShapes> route_group_shapes_cuda;
extern const VariantTable<AlignExperts> align_experts_cpu;
extern const VariantTable<AlignExperts> align_experts_cuda;

}  // namespace fathom
