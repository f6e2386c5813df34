// NVFP4 weights as they lie in checkpoints and reference calls, for the loop that reads them so.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/products.h"

namespace fathom {

/// Block scales E4M3 of a matrix [n, k]: linear [n, k/16], or swizzled 128x4 (scale_layout.h).
/// Products::weight of nvfp4_row_major_products_avx512. Plain data, see products.h.
struct Nvfp4Scales {
  const uint8_t* scales = nullptr;
  int64_t num_scales = 0;  ///< of a row: k/16
  bool swizzled = false;
};

/// x is decoded bf16, k padded to 64; p.row_bytes are those of the true k.
void nvfp4_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch);

}  // namespace fathom
