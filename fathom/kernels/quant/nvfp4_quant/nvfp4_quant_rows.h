// One row as both kernels of this group quantise it.
#pragma once

#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"

namespace fathom {

/// Where a row comes from and goes to. Scales of blocks 4j .. 4j+3 are the four bytes at
/// scales + j * scale_step in every layout; the last ones may be fewer.
struct Nvfp4Row {
  Format format;
  const void* x;
  int64_t num_blocks;
  float gs;
  uint8_t* q;
  uint8_t* scales;
  int64_t scale_step;
  const void* next_x;  ///< a row that comes soon, for prefetches
  const uint8_t* next_q;
};

namespace avx512 {

void nvfp4_quant_row(const Nvfp4Row& row);

}  // namespace avx512
}  // namespace fathom
