// How a decode call is laid out for the CPU variants: both contracts as one, the keys a row sees,
// and the cuts of long contexts.
#pragma once

#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/attn/tree_keys.h"

namespace fathom::mla_decode {

/// The operands of either contract, with the axis of query tokens: q [B,Q,N,D], o [B,Q,N,L],
/// lse [B,Q,N]; MlaDecode has Q = 1.
MlaDecode::Args with_query_axis(const MlaDecode::Args& a);

/// True if the queries of a call with slots can be taken for requests of one query each: their
/// strides allow it.
bool flattens(const MlaDecode::Args& a);

/// Bytes of the tables that flatten() writes; a multiple of 64, 0 for a call without slots.
int64_t flat_workspace(const MlaDecode::Args& a);

/// A call with slots [B,Q,C] as one over B * Q requests whose block table holds the slots that are
/// not -1, in memory of flat_workspace(a). Other calls are given back as they are. `a` has the
/// query axis.
MlaDecode::Args flatten(const MlaDecode::Args& a, void* memory);

// Static functions: files compiled for different instruction sets must not share one copy of code.

/// Keys that one entry of the block table stands for.
static inline int64_t keys_per_entry(const MlaDecode::Args& a) {
  return a.table == KeyTable::kSlots ? 1 : a.cache.dim(1);
}

/// The numbers of q that are in its first part.
static inline int64_t first_width(const MlaDecode::Args& a) {
  return a.q.dim(a.q.rank - 1);
}

/// Query j of request b of a call with trees.
static inline TreeToken tree_token(const MlaDecode::Args& a, int64_t b, int64_t j) {
  return {a.tree_begins.as<const int32_t>()[b],
          static_cast<uint64_t>(a.tree_masks.row<const int64_t>(b)[j])};
}

/// Keys that query j of request b sees; 0 if there are none. `a` has the query axis.
static inline int64_t visible_keys(const MlaDecode::Args& a, int64_t b, int64_t j) {
  if (a.tree_masks.present()) return num_seen(tree_token(a, b, j));
  const int64_t keys = a.kv_lens.as<int32_t>()[b] - a.q.dim(1) + j + 1;
  return keys > 0 ? keys : 0;
}

/// The place in its request of key i of those that query j of request b sees.
static inline int64_t key_place(const MlaDecode::Args& a, int64_t b, int64_t j, int64_t i) {
  return a.tree_masks.present() ? place_of_seen(tree_token(a, b, j), i) : i;
}

/// First key of split i. Splits lie at absolute positions; they are 512 keys long up to position
/// 8,192 and double with every doubling of the position, so that even long contexts have few:
///
///   split   0    1    ..  15     16    ..  23     24     ..
///   key     0    512  ..  7680   8192  ..  15360  16384  ..
static inline int64_t split_begin(int64_t i) {
  constexpr int64_t kFirst = 16;
  constexpr int64_t kEach = 8;
  if (i < kFirst) return i * MlaDecode::kSplitKeys;
  const int64_t doublings = (i - kFirst) / kEach;
  const int64_t within = (i - kFirst) % kEach;
  return ((kFirst + 2 * within) * MlaDecode::kSplitKeys) << doublings;
}

/// Splits that hold the first num_keys keys.
static inline int64_t num_splits(int64_t num_keys) {
  int64_t n = 0;
  while (split_begin(n) < num_keys)
    ++n;
  return n;
}

}  // namespace fathom::mla_decode
