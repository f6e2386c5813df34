// Both contracts of sparse attention as one call, and the list of rows of a token. "Item" is what
// one thread does at a time: some heads of one token.
#pragma once

#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"

namespace fathom::sparse_mla {

inline constexpr int64_t kRowBlock = SparseMlaDecode::kRowBlock;

/// Heads that an item has at most: their state is to stay in a second-level cache. Says nothing
/// about results.
inline constexpr int64_t kMaxHeads = 128;

struct Call {
  View q, o;
  SparseRows sources[2];
  int num_sources = 1;
  View lengths;  ///< of the lists of source 0; absent: all of them
  View sink, max, lse;
  View positions{}, table{};  ///< of the rotation back; absent: o is not turned
  float scale = 1.0f;
  float lse_factor = 1.0f;  ///< log2(e) for max and lse of base 2
};

Call make_call(const SparseMlaDecode::Args& a);
Call make_call(const SparseMlaPrefill::Args& a);

/// The rows of a token: slots of source 0, then, from `first` on, of source 1.
struct RowList {
  const int32_t* slots;
  int64_t first = 0;
  int64_t count = 0;
};

// Static functions: files compiled for different instruction sets must not share one copy of code.

/// Entries that the lists of a token have.
static inline int64_t list_width(const Call& c) {
  return c.sources[0].slots.dim(1) + (c.num_sources > 1 ? c.sources[1].slots.dim(1) : 0);
}

/// The list of token t, without entries that name no row; `memory` has room for list_width(c).
static inline RowList list_rows(const Call& c, int64_t t, int32_t* memory) {
  RowList list{memory};
  for (int i = 0; i < c.num_sources; ++i) {
    const SparseRows& source = c.sources[i];
    const int32_t* slots = source.slots.row<const int32_t>(t);
    const int64_t num_rows = source.values.dim(0) * source.values.dim(1);
    const bool cut = i == 0 && c.lengths.present();
    const int64_t length = cut ? c.lengths.as<const int32_t>()[t] : source.slots.dim(1);
    for (int64_t j = 0; j < length; ++j) {
      if (slots[j] >= 0 && slots[j] < num_rows) memory[list.count++] = slots[j];
    }
    if (i == 0) list.first = list.count;
  }
  return list;
}

/// Where row j of the list lies.
struct RowPlace {
  const SparseRows* source;
  int64_t slot;
};

static inline RowPlace row_place(const Call& c, const RowList& list, int64_t j) {
  return {&c.sources[j < list.first ? 0 : 1], list.slots[j]};
}

static inline bool is_coded(const SparseRows& rows) {
  return rows.scales.present();
}

/// Channels of `values`.
static inline int64_t value_channels(const SparseRows& rows) {
  return rows.values.format == Format::kU8 ? 2 * rows.values.dim(2) : rows.values.dim(2);
}

/// Channels at the end of a head that are turned back.
static inline int64_t turned_channels(const Call& c) {
  return c.table.present() ? c.table.dim(1) : 0;
}

/// Groups of channels with a scale of their own.
static inline int64_t num_scales(const SparseRows& rows) {
  return rows.scales.present() ? rows.scales.dim(2) : 0;
}

}  // namespace fathom::sparse_mla

namespace fathom::avx512 {

/// Bytes of scratch of one thread for items of `heads` heads.
int64_t sparse_mla_scratch(const sparse_mla::Call& c, int64_t heads);

/// Heads [head, head + count) of token t. q is bf16; dense rows are bf16; a scale belongs to a
/// multiple of 16 channels.
void sparse_mla_heads(
    const sparse_mla::Call& c, int64_t t, int64_t head, int64_t count, void* scratch);

}  // namespace fathom::avx512
