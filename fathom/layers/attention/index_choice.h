// Which rows of a cache an indexer chooses for each query token: scores, the best of them, slots.
#pragma once

#include <cstdint>

#include "fathom/layers/attention/mla.h"

namespace fathom {

/// One layer's rows of the indexer's keys.
struct IndexRows {
  View keys;    ///< [pages, rows of a page, Di]; u8 of two e2m1 codes: Di/2
  View scales;  ///< of e4m3 and e2m1 keys: [pages, rows of a page, scales of a row]
  View slots;   ///< [T] i64, where the tokens' keys go, if each token has one
};

/// Queries and weights of the indexer's heads, ready to be scored.
struct IndexQueries {
  View q;         ///< [T, Hi, Di]
  View q_scales;  ///< [T, Hi, Di/32] of e2m1 codes
  View w;         ///< [T, Hi] f32
};

IndexQueries rows_of(const IndexQueries& q, int64_t begin, int64_t count);

/// Query tokens of one or more requests, and what belongs to them.
struct IndexScored {
  IndexQueries queries;
  View lengths;      ///< [T] i32, keys that a token sees
  View block_table;  ///< [B, M] i32
  View q_offsets;    ///< [B+1] i32
  int64_t num_keys;  ///< of the longest request
  int64_t tokens_per_key = 1;
  View tree_masks{};  ///< [T] i64, TokenRange's: keys are then counted along each token's path
};

/// Whether compressor and indexer of a step run beside the way of its queries (SideWork): where it
/// decodes few tokens, whose kernels leave room on a GPU, without a prompt, in one of the shapes
/// that padding makes (TokenRange::fixed_keys): memory is planned for each of these, since beside
/// they keep more of it than some larger steps do (runtime/executor/step_memory.h).
bool indexes_beside(const AttentionBatch& batch);

/// slots [T, K] i32 of the K best keys of each token of a range, ascending, -1 behind them. A
/// token's choice depends on itself alone. `request_offsets` are MlaContext's.
Status choose_rows(Exec& ex,
                   const View& request_offsets,
                   const TokenRange& range,
                   const IndexScored& all,
                   const IndexRows& index,
                   const View& slots);

}  // namespace fathom
