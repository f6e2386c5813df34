// The two halves of compress_pool, shared by its variants: which entries a row has, and the loops
// of AVX-512.
#pragma once

#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"

namespace fathom {

/// Channels that are pooled together; threads split a row at its multiples.
inline constexpr int64_t kPoolChannels = 64;

/// Where the pooled rows lie: whole cache lines apart.
constexpr int64_t pooled_stride(int64_t D) {
  return (D + 15) / 16 * 16;
}

/// u and z of an entry from some channel on. An entry of the step (`token`) has z without ape and
/// the format of u_z; an entry of the state is float32. A null z: no entry.
struct PoolEntry {
  const void* u = nullptr;
  const void* z = nullptr;
  const float* ape = nullptr;  ///< null for an entry of the state
};

/// Entry e of row i from channel c on; A is the element of u_z. Static, so that files compiled for
/// different instruction sets never share one copy of its code.
template <class A>
static PoolEntry pool_entry(const CompressPool::Args& a, int64_t i, int64_t e, int64_t c) {
  const int64_t index = a.gather.row<const int64_t>(i)[e];
  if (index < 0) return {};
  const int64_t W = a.ape.dim(1);
  const int64_t D = a.norm.dim(0);
  const int64_t ratio = a.ape.dim(0);
  // Older entries of overlapping rows have the first half of the channels, newer ones the second.
  const int64_t column = c + (W != D && e >= ratio ? D : 0);
  if (index < a.u_z.dim(0)) {
    const A* token = a.u_z.row<const A>(index) + column;
    return {token, token + W, a.ape.row<const float>(e % ratio) + column};
  }
  const int64_t slot = index - a.u_z.dim(0);
  return {slot_data<const float>(a.state_u, slot) + column,
          slot_data<const float>(a.state_z, slot) + column, nullptr};
}

namespace avx512 {
/// x[0 .. count-1] = the pooled channels c .. c+count-1 of row i; count <= kPoolChannels.
void pool_channels(const CompressPool::Args& a, int64_t i, int64_t c, int64_t count, float* x);
/// Norm, rotation, transform and store of row i, in place in x: D floats, 64-byte aligned.
void finish_row(const CompressPool::Args& a, const CodedRows& rows, int64_t i, float* x);
}  // namespace avx512

}  // namespace fathom
