// NVFP4 quantisation of activations, for native FP4 products: one tensor, or the rows of experts.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// How the block scales of [T,K/16] lie in memory (formats/scale_layout.h has the diagrams).
enum class Nvfp4ScaleLayout : uint8_t {
  kSwizzled128x4,  ///< tiles of 128 rows x 4 columns; S is T, or more, rounded up to 128
  kSwizzled8x4,    ///< tiles of 8 rows x 4 columns; S is T, or more, rounded up to 8
  kRowMajor,       ///< [T,K/16]; rows may be strided
};

/// Quantises rows to NVFP4 with the global scale of the checkpoint.
///
///   per block of 16 along K, a = max |x|:   sf   = e4m3( gs * (a * (1/6)) )
///                                           f    = sf == 0 ? 0 : 1 / (sf * (1/gs))
///                                           code = e2m1( x * f )
///   x ~ code * sf / gs
///
/// gs = 448 * 6 / amax(tensor), or 1 / input_scale. q holds two codes a byte, the one of even k in
/// the low nibble; its rows may be strided. In the swizzled layouts scales are [S, K/16 rounded up
/// to 4], contiguous; padding rows and columns are left as they are, so readers must not let them
/// into a result. No operands overlap. T may be 0.
/// The recipe of activations of formats/block_fp4.h, bit for bit: float32, correctly rounded
/// reciprocals (kernels with approximate ones may differ by a code at ties), round to nearest even,
/// saturating. A block of zeros, and one too small for its scale, has sf = 0 and codes 0 (or -0).
/// NaN does not enter a and becomes +6; an infinity makes sf = 448 and becomes +-6.
/// Deterministic; blocks are independent.
/// Errors: InvalidArgument if gs is not positive and finite, or scales have not the shape of the
/// layout.
/// Source: sgl-kernel, nvfp4_quant_kernels.cu; OCP Microscaling Formats 1.0.
struct Nvfp4Quant {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_quant",
      .reference_names = {"scaled_fp4_quant"},
      .signature = "x[T,K]:bf16|f16|f32 gs[1]:f32 -> q[T,P]:u8 scales[S,C]:e4m3",
      .limits = "K%16==0, K==2*P",
      .equation = "sf = e4m3(gs a/6); code = e2m1(x gs/sf), blocks of 16",
      .source = "sgl-kernel, scaled_fp4_quant",
      .flops = "6*T*K",
  };

  struct Args {
    View x, gs, q, scales;
    Nvfp4ScaleLayout layout = Nvfp4ScaleLayout::kSwizzled128x4;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.gs, &a.q, &a.scales}; }

  static Cost cost(const Args& a) { return {.flops = 6.0 * static_cast<double>(a.x.numel())}; }

  /// Of the scales only the blocks that exist count, not the padding.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// Quantises the rows of experts to NVFP4, each expert with its own global scale, as the grouped
/// product reads them; can gather the rows on the way.
///
///   row i of q = nvfp4( x[row_map[i]], gs[e] )   where offsets[e] <= i < offsets[e+1]
///
/// Without row_map, row i of q comes from row i of x, and R = M. The scale of local row
/// r = i - offsets[e] and block c lies at the place (r, c) of a 128x4-swizzled matrix that starts
/// at row scale_offsets[e] of scales; these are multiples of 128, as blockscale_offsets() gives
/// them. Rows before offsets[0] and from offsets[E] on, padding rows and columns of tiles, and
/// experts without rows are left as they are. Numbers as Nvfp4Quant. Deterministic; blocks are
/// independent. Errors: InvalidArgument if offsets fall or leave [0, R], a row of the map leaves
/// [0, M), a region of scales is too small, not a multiple of 128 or reaches into the next, or a gs
/// is not positive and finite. Source: sgl-kernel, nvfp4_expert_quant.cu.
struct Nvfp4QuantExperts {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_quant_experts",
      .reference_names = {"scaled_fp4_experts_quant"},
      .signature =
          "x[M,K]:bf16|f16|f32 gs[E]:f32 offsets[F]:i32 scale_offsets[F]:i32 "
          "row_map?[W]:i32 -> q[R,P]:u8 scales[S,C]:e4m3",
      .limits = "K%16==0, K==2*P, F==E+1, C==(K+63)/64*4",
      .equation = "sf = e4m3(gs[e] a/6); code = e2m1(x gs[e]/sf), blocks of 16",
      .source = "sgl-kernel, scaled_fp4_experts_quant",
      .flops = "12*R*P",
  };

  struct Args {
    View x, gs, offsets, scale_offsets, row_map, q, scales;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.gs, &a.offsets, &a.scale_offsets, &a.row_map, &a.q, &a.scales};
  }

  static Cost cost(const Args& a) { return {.flops = 12.0 * static_cast<double>(a.q.numel())}; }

  /// Rows of x are read as often as the map names them; of the scales the blocks that exist count.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<Nvfp4Quant> nvfp4_quant_cpu;
extern const VariantTable<Nvfp4Quant> nvfp4_quant_cuda;
extern const VariantTable<Nvfp4QuantExperts> nvfp4_quant_experts_cpu;
extern const VariantTable<Nvfp4QuantExperts> nvfp4_quant_experts_cuda;

}  // namespace fathom
