// Dynamic 8-bit quantisation of activations in groups along the row, as block-scaled products read
// them, alone or with the gated activation before it.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// How the scales of [E,T] tokens with G groups each lie in memory (formats/scale_layout.h).
enum class GroupScaleLayout : uint8_t {
  kRowMajor,     ///< f32 [E,T,G]
  kColumnMajor,  ///< f32 [E,G,T]: the groups of a token are a column apart. The stride of a column
                 ///< is free: T, or T rounded up to 4 where TMA reads it
  kPackedUe8m0,  ///< i32 [E,ceil(G/4),T]: biased exponents of four groups, the first in the low
                 ///< byte, missing ones 0
};

enum class GroupScaleRounding : uint8_t { kNone, kPowerOfTwoUp };

/// The two revisions of the recipe; scales differ in the last bit, codes by at most one.
enum class GroupRecipe : uint8_t {
  kDivide,    ///< s = amax / q_max, code of x / s
  kMultiply,  ///< s = amax * (1 / q_max), code of x * (q_max / amax), or x * (1 / s) if s is
              ///< rounded
};

/// What happens to x before it is quantised.
enum class GroupInput : uint8_t {
  kPlain,    ///< J = D
  kSiluMul,  ///< J = 2D: [gate | up], y = round(round(silu(gate)) * up), both to the format of x
};

struct GroupQuantArgs {
  View x;            ///< [E,T,J]
  View masked_rows;  ///< [E], rows of each expert that count; left out: all T
  View q;            ///< [E,T,D]
  View s;            ///< [E,A,B], by the layout
  int64_t group_size = 128;
  float eps = 1e-10f;
  float q_min = 0;  ///< q_min and q_max 0: those of the format, -448 and 448 or -128 and 127
  float q_max = 0;
  GroupScaleLayout layout = GroupScaleLayout::kRowMajor;
  GroupScaleRounding rounding = GroupScaleRounding::kNone;
  GroupRecipe recipe = GroupRecipe::kDivide;
  GroupInput input = GroupInput::kPlain;
};

/// Larger groups than any model has; a fused activation is buffered for one group.
inline constexpr int64_t kMaxQuantGroup = 4096;

/// A view [T,D] as one expert [1,T,D]: calls without experts have E = 1. Row stride is kept.
View as_one_expert(const View& v);

/// What the three contracts of this folder share; they differ in the formats of q alone.
///
///   amax = max(eps, max |y|) over the group,   y = x, or the gated activation of x
///   s    = amax / q_max, perhaps rounded up to a power of two,   x ~ q s
///   q    = code(clamp(y / s, q_min, q_max))
///
/// The code of e4m3 rounds to nearest even; that of i8 is truncated toward zero, as the originals
/// do. GroupRecipe says where reciprocals stand for quotients. D is a multiple of group_size. Rows
/// of x and q may be strided; no operands overlap. Rows t >= masked_rows[e] of q and s are left as
/// they are, as is padding between columns of s. E, T and D may be 0.
/// float32 inside. Scales are not below 2^-126; UE8M0 holds 2^-126 .. 2^127.
/// NaN does not enter amax; its code is NaN in e4m3 and 0 in i8. A group with an infinity has
/// s = inf, codes 0 for what is finite and the code of NaN for the infinity; if s is rounded to a
/// power of two, it is 2^127 and the infinity has the largest code.
/// Deterministic; groups are independent.
/// Errors: InvalidArgument if group_size does not divide D or lies outside 1 .. 4096, J is not D
/// (2D with kSiluMul), the dimensions or format of s are not those of the layout, packed scales are
/// not rounded, limits are not those of a signed format, eps is not positive and finite, or a count
/// of masked_rows lies outside [0, T]. Source: sgl-kernel, per_token_group_quant_8bit.cu and
/// per_token_group_quant_8bit_v2.cu.
struct GroupQuantContract {
  using Args = GroupQuantArgs;

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.masked_rows, &a.q, &a.s};
  }

  static Cost cost(const Args& a);

  /// Of masked calls only the rows that count.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// To FP8 E4M3. See GroupQuantContract.
struct GroupQuantFp8 : GroupQuantContract {
  static constexpr KernelInfo kInfo{
      .name = "group_quant_fp8",
      .reference_names = {"sgl_per_token_group_quant_fp8"},
      .signature = "x[E,T,J]:bf16|f16|f32 masked_rows?[E]:i32 -> q[E,T,D]:e4m3 s[E,A,B]:f32|i32",
      .equation = "s = max|y| / 448 per group; q = e4m3(y / s)",
      .source = "sgl-kernel, per_token_group_quant_8bit",
      .flops = "~3 for each value of q in rows that count, 9 with the gated activation",
  };
};

/// To int8, truncated toward zero. See GroupQuantContract.
struct GroupQuantInt8 : GroupQuantContract {
  static constexpr KernelInfo kInfo{
      .name = "group_quant_int8",
      .reference_names = {"sgl_per_token_group_quant_int8"},
      .signature = "x[E,T,J]:bf16|f16|f32 masked_rows?[E]:i32 -> q[E,T,D]:i8 s[E,A,B]:f32|i32",
      .equation = "s = max|y| / 127 per group; q = trunc(y / s)",
      .source = "sgl-kernel, per_token_group_quant_8bit",
      .flops = "~3 for each value of q in rows that count, 9 with the gated activation",
      .outside = "activations in int8 groups, for callers of the kernel library",
  };
};

/// To whichever of the two formats q has. See GroupQuantContract.
struct GroupQuant8Bit : GroupQuantContract {
  static constexpr KernelInfo kInfo{
      .name = "group_quant_8bit",
      .reference_names = {"sgl_per_token_group_quant_8bit"},
      .signature = "x[E,T,J]:bf16|f16|f32 masked_rows?[E]:i32 -> q[E,T,D]:e4m3|i8 s[E,A,B]:f32|i32",
      .equation = "s = max|y| / q_max per group; q = code(y / s)",
      .source = "sgl-kernel, per_token_group_quant_8bit",
      .flops = "~3 for each value of q in rows that count, 9 with the gated activation",
      .outside = "activations in 8-bit groups, for callers of the kernel library",
  };
};

extern const VariantTable<GroupQuantFp8> group_quant_fp8_cpu;
extern const VariantTable<GroupQuantFp8> group_quant_fp8_cuda;
extern const VariantTable<GroupQuantInt8> group_quant_int8_cpu;
extern const VariantTable<GroupQuantInt8> group_quant_int8_cuda;
extern const VariantTable<GroupQuant8Bit> group_quant_8bit_cpu;
extern const VariantTable<GroupQuant8Bit> group_quant_8bit_cuda;

}  // namespace fathom
