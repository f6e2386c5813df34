// A decode call as the kernels of the GPU see it: either contract, with the axis of query tokens.
#pragma once

#include "fathom/kernels/attn/mla_decode/mla_decode_plan.h"
#include "fathom/kernels/cuda/elements.cuh"

namespace fathom::mla_decode {

/// Rows (b, j, n) of q, q_pe, o or lse.
struct HeadRows {
  void* data = nullptr;
  Format format = Format::kF32;
  int64_t strides[3] = {};

  __device__ int64_t offset(int64_t b, int64_t j, int64_t n) const {
    return b * strides[0] + j * strides[1] + n * strides[2];
  }
};

inline HeadRows head_rows(const View& v) {
  if (!v.present()) return {};
  return {v.data, v.format, {v.stride(0), v.stride(1), v.stride(2)}};
}

/// Pages [P,S,D] and the tables that name a request's keys in them.
struct PagedKeys {
  const void* data;
  Format format;
  int64_t page_stride;
  int64_t key_stride;
  int64_t num_pages;
  uint32_t page_size;
  const int32_t* table;
  int64_t table_stride;
  uint32_t table_width;
  bool by_slot;  ///< entries of the table are slots, not pages

  /// First element of a slot, or -1 if there is no such slot: what the host could not check is not
  /// followed.
  __device__ int64_t slot_place(int64_t slot) const {
    if (slot < 0 || slot >= num_pages * page_size) return -1;
    const auto page = static_cast<int64_t>(static_cast<uint64_t>(slot) / page_size);
    return page * page_stride + (slot - page * page_size) * key_stride;
  }

  /// First element of key i of request b, or -1.
  __device__ int64_t place(int64_t b, uint32_t i) const {
    const int32_t* row = table + b * table_stride;
    if (by_slot) return slot_place(row[i]);
    const uint32_t entry = i / page_size;
    const int64_t page = row[entry];
    if (page < 0 || page >= num_pages) return -1;
    return page * page_stride + int64_t{i - entry * page_size} * key_stride;
  }

  /// The most keys that a request can have.
  __host__ __device__ int64_t capacity() const {
    return int64_t{table_width} * (by_slot ? 1 : page_size);
  }
};

struct Call {
  HeadRows q, q_pe, o, lse;
  PagedKeys keys;
  const int32_t* kv_lens;
  const float* sinks;
  const int32_t* slots;  ///< null: all keys of the block table
  int64_t slots_strides[2];
  int64_t num_slots;
  int64_t B, Q, N;
  int D, L;
  int first_width;    ///< numbers of a query that lie in q
  float score_scale;  ///< scale and kv_scale
  float out_scale;    ///< kv_scale and o_scale
  float lse_factor;   ///< 1; log2(e) for a log-sum-exp of base 2
  bool lse_has_sink;
  const int64_t* tree_masks = nullptr;  ///< null: queries are chains
  int64_t masks_stride = 0;
  const int32_t* tree_begins = nullptr;

  __device__ int64_t length(int64_t b) const {
    const int64_t keys_of_b = kv_lens[b];
    const int64_t most = keys.capacity();
    return keys_of_b < 0 ? 0 : (keys_of_b < most ? keys_of_b : most);
  }

  /// Keys that query j of a request of `length` keys sees.
  __device__ int64_t visible(int64_t length, int64_t j) const {
    const int64_t seen = length - Q + j + 1;
    return seen > 0 ? seen : 0;
  }

  /// Query j of request b, of `length` keys, of a call with trees. Read past the first cache, which
  /// would keep what an earlier kernel may still write.
  __device__ TreeToken tree_token(int64_t b, int64_t length, int64_t j) const {
    const int64_t begin = __ldcg(tree_begins + b);
    const int64_t* mask = tree_masks + b * masks_stride + j;
    return {begin < 0 ? 0 : (begin < length ? begin : length),
            static_cast<uint64_t>(__ldcg(reinterpret_cast<const long long*>(mask)))};
  }
};

/// `a` has the query axis.
inline Call call_of(const MlaDecode::Args& a) {
  const bool has_slots = a.slots.present();
  const bool has_trees = a.tree_masks.present();
  return {
      .q = head_rows(a.q),
      .q_pe = head_rows(a.q_pe),
      .o = head_rows(a.o),
      .lse = head_rows(a.lse),
      .keys = {.data = a.cache.data,
               .format = a.cache.format,
               .page_stride = a.cache.stride(0),
               .key_stride = a.cache.stride(1),
               .num_pages = a.cache.dim(0),
               .page_size = static_cast<uint32_t>(a.cache.dim(1)),
               .table = a.block_table.as<const int32_t>(),
               .table_stride = a.block_table.stride(0),
               .table_width = static_cast<uint32_t>(a.block_table.dim(1)),
               .by_slot = a.table == KeyTable::kSlots},
      .kv_lens = a.kv_lens.as<const int32_t>(),
      .sinks = a.sinks.present() ? a.sinks.as<const float>() : nullptr,
      .slots = has_slots ? a.slots.as<const int32_t>() : nullptr,
      .slots_strides = {has_slots ? a.slots.stride(0) : 0, has_slots ? a.slots.stride(1) : 0},
      .num_slots = has_slots ? a.slots.dim(2) : 0,
      .B = a.q.dim(0),
      .Q = a.q.dim(1),
      .N = a.q.dim(2),
      .D = static_cast<int>(a.cache.dim(2)),
      .L = static_cast<int>(a.o.dim(3)),
      .first_width = static_cast<int>(first_width(a)),
      .score_scale = a.scale * a.kv_scale,
      .out_scale = a.kv_scale * a.o_scale,
      .lse_factor = 1.0f,
      .lse_has_sink = true,
      .tree_masks = has_trees ? a.tree_masks.as<const int64_t>() : nullptr,
      .masks_stride = has_trees ? a.tree_masks.stride(0) : 0,
      .tree_begins = has_trees ? a.tree_begins.as<const int32_t>() : nullptr,
  };
}

}  // namespace fathom::mla_decode
