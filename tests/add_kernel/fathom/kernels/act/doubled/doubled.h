// A kernel that the library does not have. add_kernel_test.cc adds it to a copy of the lists.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// y[t,d] = 2 x[t,d]. Rows may be strided. Exact.
struct Doubled {
  static constexpr KernelInfo kInfo{
      .name = "doubled",
      .reference_names = {"reference_doubled"},
      .signature = "x[T,D]:f32 -> y[T,D]:f32",
      .equation = "y = 2 x",
      .flops = "T*D",
  };

  struct Args {
    View x, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.x.numel())}; }
};

extern const VariantTable<Doubled> doubled_cpu;

}  // namespace fathom
