// Rows of either cache by name, and where their fields lie.
#pragma once

#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_call.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_codes.cuh"

namespace fathom::sparse_mla {

/// A row of one of the sources: its slot, and the source in the highest bit.
using RowName = int32_t;
inline constexpr RowName kNoRow = -1;
inline constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;  ///< so that no row is called kNoRow

/// The row that an entry of the list of source 0 or, `second`, of source 1 names.
__device__ __forceinline__ RowName name_row(const DeviceCall& c, bool second, int32_t slot) {
  if (!c.sources[second ? 1 : 0].names(slot)) return kNoRow;
  return slot | static_cast<int32_t>(second ? 0x80000000u : 0u);
}

/// Where the fields of a row lie; null where there is no row.
struct RowAddress {
  const unsigned char* values;
  const unsigned char* scales;
  const unsigned char* rope;

  __device__ __forceinline__ bool exists() const { return values != nullptr; }
};

__device__ __forceinline__ const Source& source_of(const DeviceCall& c, RowName name) {
  return c.sources[name < 0 ? 1 : 0];
}

__device__ __forceinline__ RowAddress address_of(const DeviceCall& c, RowName name) {
  if (name == kNoRow) return {};
  const Source& source = source_of(c, name);
  const PageRow place = source.place(name & INT32_MAX);
  return {source.values.at(place), source.scales.at(place), source.rope.at(place)};
}

/// Where a row of bf16 lies, or null.
__device__ __forceinline__ const Bf16* bf16_row(const DeviceCall& c, RowName name) {
  return reinterpret_cast<const Bf16*>(address_of(c, name).values);
}

}  // namespace fathom::sparse_mla
