// The absorbed copies of kv_b: its heads' key and value rows as matrices of their own.
#pragma once

#include <cstddef>
#include <span>

#include "fathom/weights/load/fill.h"

namespace fathom {

/// A filled item, read by the host; `bytes` begins with its values.
struct HostMatrix {
  const WeightItem* item = nullptr;
  const std::byte* bytes = nullptr;

  /// A part by its offset in the store.
  template <class T>
  const T* part(int64_t offset) const {
    return reinterpret_cast<const T*>(bytes + (offset - item->values_offset));
  }
};

/// Row `row` of a matrix in any format and layout that a plan gives, as float32.
void decode_row(const HostMatrix& m, int64_t row, std::span<float> out);

/// Fills kAbsorbedK or kAbsorbedV, a unit a head. In bf16 a quantised kv_b is rounded once, to
/// nearest even.
FillJob absorb_job(const HostMatrix& kv_b, const WeightItem& item);

}  // namespace fathom
