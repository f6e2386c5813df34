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

/// Of a name that is none, too: nothing lies there, and nothing may be read.
__device__ __forceinline__ RowAddress address_anyway(const DeviceCall& c, RowName name) {
  const Source& source = source_of(c, name);
  const PageRow place = source.place(name & INT32_MAX);
  return {source.values.at(place), source.scales.at(place), source.rope.at(place)};
}

__device__ __forceinline__ RowAddress address_of(const DeviceCall& c, RowName name) {
  if (name == kNoRow) return {};
  return address_anyway(c, name);
}

/// Where a row of bf16 lies, or null.
__device__ __forceinline__ const Bf16* bf16_row(const DeviceCall& c, RowName name) {
  return reinterpret_cast<const Bf16*>(address_of(c, name).values);
}

/// Calls f with the form of the rows of `c`, true of both sources, and returns what it does; `none`
/// if the kernel has no such form.
template <class Result, class F>
Result with_rows(const Call& c, Result none, F&& f) {
  const int64_t D = c.q.dim(2);
  const auto all = [&](Format values, Format scales, int64_t W, int64_t num_scales_of_row) {
    for (int i = 0; i < c.num_sources; ++i) {
      const SparseRows& rows = c.sources[i];
      const int64_t R = rows.rope.present() ? rows.rope.dim(2) : 0;
      if (rows.values.format != values || rows.scales.format != scales ||
          value_channels(rows) != W || num_scales(rows) != num_scales_of_row || W + R != D) {
        return false;
      }
    }
    return true;
  };
  constexpr int64_t kLong = kWidthOf<Fp8F32Rows>;
  constexpr int64_t kShort = kWidthOf<Fp8Ue8m0Rows>;
  static_assert(kLong == 576 && kShort == 512 && kWidthOf<E2m1Rows> == kShort);
  if (D == kLong && all(Format::kE4m3, Format::kF32, 512, 4)) return f(Fp8F32Rows{});
  if (D == kShort && all(Format::kE4m3, Format::kUe8m0, 448, 7)) return f(Fp8Ue8m0Rows{});
  if (D == kShort && all(Format::kU8, Format::kE4m3, 448, 28)) return f(E2m1Rows{});
  if (D == kLong && all(Format::kBf16, Format::kNone, D, 0)) return f(Bf16Rows<kLong>{});
  if (D == kShort && all(Format::kBf16, Format::kNone, D, 0)) return f(Bf16Rows<kShort>{});
  return none;
}

}  // namespace fathom::sparse_mla
