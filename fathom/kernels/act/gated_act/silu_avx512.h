// silu of sixteen values, shared by the activation and by the quantiser that fuses it. Included by
// _avx512.cc files only.
#pragma once

#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {

/// z / (1 + e^-z).
inline __m512 silu16(__m512 z) {
  const __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), z));
  return _mm512_div_ps(z, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

}  // namespace fathom::avx512
