// Views as kernels see them: an address, the distance of rows, and what a variant must know of
// them on the host before it may load sixteen bytes at once.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/tensor/view.h"

namespace fathom::cuda {

/// Rows of a matrix of T.
template <class T>
struct Rows {
  T* data;
  int64_t stride;  ///< elements from one row to the next

  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};

template <class T>
Rows<T> rows_of(const View& v) {
  return {v.as<T>(), v.stride(0)};
}

/// A view whose format is known at run time only.
struct AnyRows {
  void* data;
  int64_t stride;
  Format format;

  __device__ float load(int64_t row, int64_t column) const {
    return load_any(data, format, row * stride + column);
  }

  __device__ void store(int64_t row, int64_t column, float value) const {
    store_any(data, format, row * stride + column, value);
  }
};

inline AnyRows any_rows(const View& v) {
  return {v.data, v.rank > 1 ? v.stride(0) : 0, v.format};
}

/// True if the address, and every stride but the last, are multiples of `bytes`: also that of a row
/// which is alone, so that it takes the variant that it would take among others.
inline bool is_aligned(const View& v, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(bytes) != 0) return false;
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.stride(i) * element_bytes(v.format) % bytes != 0) return false;
  }
  return true;
}

/// True if groups of eight elements can be loaded at once: aligned to the bytes that one load takes
/// (16, or 8 for one-byte elements).
inline bool takes_vectors(const View& v) {
  if (!v.present()) return true;
  const int64_t bytes = element_bytes(v.format) * kVector;
  return is_aligned(v, bytes > 16 ? 16 : bytes);
}

}  // namespace fathom::cuda
