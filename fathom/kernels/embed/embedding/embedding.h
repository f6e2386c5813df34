// Token embedding.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Copies the table row of each token.
///
///   y[t,d] = table[ids[t],d]
///
/// The rows are not scaled. Table and y may differ in format; f32 to bf16 rounds to nearest even,
/// everything else is exact. Rows may be strided. Deterministic; rows are independent.
/// Errors: InvalidArgument if an id lies outside [0, V).
struct Embed {
  static constexpr KernelInfo kInfo{
      .name = "embed",
      .signature = "ids[T]:i32 table[V,H]:bf16|f32 -> y[T,H]:bf16|f32",
      .equation = "y[t] = table[ids[t]]",
      .source = "DeepSeek-V3 modelling code",
      .flops = "0",
  };

  struct Args {
    View ids, table, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.ids, &a.table, &a.y}; }

  static Cost cost(const Args&) { return {}; }

  /// One table row a token.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<Embed> embed_cpu;
extern const VariantTable<Embed> embed_cuda;

}  // namespace fathom
