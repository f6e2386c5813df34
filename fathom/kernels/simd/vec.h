// Vectors of float32 for the instruction set that a file is compiled for: simd::Native names it.
//
// A file sees the strongest set its flags allow and no other, so that an inline function of one set
// is never emitted with the instructions of another (the linker would keep either). For the same
// reason, include little else in _avx2.cc and _avx512.cc files, and call nothing inline from them
// that is not defined here.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VBMI__) && \
    defined(__AVX512BF16__)
#include "fathom/kernels/simd/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "fathom/kernels/simd/avx2.h"
#endif
