// A call of sparse attention as the kernels of the GPU see it: either contract (sparse_mla_plan.h),
// with the strides of the caches in bytes, since the fields of a row differ in their elements.
#pragma once

#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_turn.cuh"
#include "fathom/kernels/attn/sparse_mla/sparse_mla_plan.h"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/flat.cuh"

namespace fathom::sparse_mla {

/// A page and a row within it.
struct PageRow {
  uint32_t page;
  uint32_t row;
};

/// One field of the rows of a cache.
struct Field {
  const unsigned char* data = nullptr;
  int64_t page_bytes = 0;
  int64_t row_bytes = 0;

  __device__ __forceinline__ const unsigned char* at(PageRow place) const {
    return data + place.page * page_bytes + place.row * row_bytes;
  }
};

inline Field field_of(const View& v) {
  if (!v.present()) return {};
  const int64_t bytes = element_bytes(v.format);
  return {static_cast<const unsigned char*>(v.data), v.stride(0) * bytes, v.stride(1) * bytes};
}

/// A paged cache and the lists of its rows.
struct Source {
  Field values, rope, scales;
  const int32_t* slots = nullptr;
  int64_t slots_stride = 0;
  int64_t num_rows = 0;
  int width = 0;  ///< entries of a list
  int W = 0;      ///< channels of `values`
  int group = 0;  ///< channels of a scale; 0 for dense rows
  cuda::FastDivide page_size;
  Format value_format = Format::kBf16;
  Format scale_format = Format::kNone;

  /// Whether an entry names a row. What the host could not check is not followed.
  __device__ __forceinline__ bool names(int32_t slot) const { return slot >= 0 && slot < num_rows; }

  __device__ __forceinline__ PageRow place(int32_t slot) const {
    const uint32_t page = page_size.of(static_cast<uint32_t>(slot));
    return {page, static_cast<uint32_t>(slot) - page * page_size.divisor};
  }
};

inline Source source_of(const SparseRows& rows) {
  if (!rows.present()) return {};
  const int64_t W = value_channels(rows);
  return {.values = field_of(rows.values),
          .rope = field_of(rows.rope),
          .scales = field_of(rows.scales),
          .slots = rows.slots.as<const int32_t>(),
          .slots_stride = rows.slots.stride(0),
          .num_rows = rows.values.dim(0) * rows.values.dim(1),
          .width = static_cast<int>(rows.slots.dim(1)),
          .W = static_cast<int>(W),
          .group = is_coded(rows) ? static_cast<int>(W / num_scales(rows)) : 0,
          .page_size = cuda::FastDivide(rows.values.dim(1)),
          .value_format = rows.values.format,
          .scale_format = rows.scales.format};
}

/// Rows (t, n) of q or o; numbers (t, n) of max or lse, whose head stride is 1.
struct HeadRows {
  void* data = nullptr;
  Format format = Format::kF32;
  int64_t token_stride = 0;
  int64_t head_stride = 1;

  __device__ __forceinline__ int64_t offset(int64_t t, int64_t n) const {
    return t * token_stride + n * head_stride;
  }
};

inline HeadRows head_rows(const View& v) {
  if (!v.present()) return {};
  return {v.data, v.format, v.stride(0), v.rank == 3 ? v.stride(1) : 1};
}

struct DeviceCall {
  HeadRows q, o, max, lse;
  Source sources[2];
  const int32_t* lengths = nullptr;  ///< of the lists of source 0; null: all of them
  const float* sink = nullptr;       ///< null: there is none
  int64_t T = 0;
  int num_sources = 1;
  int N = 0, D = 0, L = 0;
  float scale = 1.0f;
  float lse_factor = 1.0f;
  TurnTable turn;

  /// Entries of the list of token t in source i.
  __device__ __forceinline__ int list_length(int i, int64_t t) const {
    const int width = sources[i].width;
    if (i != 0 || lengths == nullptr) return width;
    const int length = lengths[t];
    return length < 0 ? 0 : (length < width ? length : width);
  }
};

inline DeviceCall device_call(const Call& c) {
  return {.q = head_rows(c.q),
          .o = head_rows(c.o),
          .max = head_rows(c.max),
          .lse = head_rows(c.lse),
          .sources = {source_of(c.sources[0]), source_of(c.sources[1])},
          .lengths = c.lengths.present() ? c.lengths.as<const int32_t>() : nullptr,
          .sink = c.sink.present() ? c.sink.as<const float>() : nullptr,
          .T = c.q.dim(0),
          .num_sources = c.num_sources,
          .N = static_cast<int>(c.q.dim(1)),
          .D = static_cast<int>(c.q.dim(2)),
          .L = static_cast<int>(c.o.dim(2)),
          .scale = c.scale,
          .lse_factor = c.lse_factor,
          .turn = turn_table(c)};
}

}  // namespace fathom::sparse_mla
