#include "fathom/layers/attention/index_choice.h"

#include <algorithm>

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"
#include "fathom/layers/attention/each_request.h"

namespace fathom {
namespace {

/// Scores of a tile of query tokens: 64 MiB, or one row where contexts are longer than that.
constexpr int64_t kMostScores = int64_t{16} << 20;

// slots [T, K] i32 of the keys that each token attends to. `memory` has room for the scores.
Status choose_keys(
    Exec& ex, const IndexScored& s, const IndexRows& index, const View& memory, const View& slots) {
  const int64_t T = slots.dim(0);
  const View logits = reshape(slice_rows(memory, 0, T * s.num_keys), {T, s.num_keys}, "T,L");
  FATHOM_TRY(launch<IndexLogitsPaged>(ex, "index_logits",
                                      {.q = s.queries.q,
                                       .q_scales = s.queries.q_scales,
                                       .w = s.queries.w,
                                       .keys = index.keys,
                                       .key_scales = index.scales,
                                       .block_table = s.block_table,
                                       .q_offsets = s.q_offsets,
                                       .lengths = s.lengths,
                                       .tree_masks = s.tree_masks,
                                       .logits = logits}));
  FATHOM_TRY(launch<TopkRows>(
      ex, "index_topk", {.scores = logits, .lengths = s.lengths, .row_starts = {}, .ids = slots}));
  return launch<IndexSlots>(ex, "index_slots",
                            {.ids = slots,
                             .block_table = s.block_table,
                             .q_offsets = s.q_offsets,
                             .lengths = s.tree_masks.present() ? s.lengths : View{},
                             .tree_masks = s.tree_masks,
                             .slots = slots,
                             .page_rows = index.keys.dim(1)});
}

IndexScored tokens_of(const IndexScored& s, int64_t begin, int64_t count) {
  IndexScored rows = s;
  rows.queries = rows_of(s.queries, begin, count);
  rows.lengths = slice_rows(s.lengths, begin, count);
  if (s.tree_masks.present()) rows.tree_masks = slice_rows(s.tree_masks, begin, count);
  return rows;
}

// Tiles of one request's tokens, so that their scores fit. A request by itself has offsets (0, n).
Status choose_in_tiles(Exec& ex,
                       const View& request_offsets,
                       const IndexScored& request,
                       const IndexRows& index,
                       const View& memory,
                       const View& slots) {
  const int64_t T = slots.dim(0);
  const int64_t most = request_offsets.dim(0) - 1;
  const int64_t tile = std::clamp<int64_t>(kMostScores / request.num_keys, 1, std::min(T, most));
  for (int64_t begin = 0; begin < T; begin += tile) {
    const int64_t count = std::min(tile, T - begin);
    IndexScored rows = tokens_of(request, begin, count);
    rows.q_offsets = reshape(slice_rows(request_offsets, count, 1), {2}, "2");
    FATHOM_TRY(choose_keys(ex, rows, index, memory, slice_rows(slots, begin, count)));
  }
  return {};
}

}  // namespace

IndexQueries rows_of(const IndexQueries& q, int64_t begin, int64_t count) {
  const auto part = [&](const View& v) {
    return v.present() ? slice_rows(v, begin, count) : View{};
  };
  return {.q = part(q.q), .q_scales = part(q.q_scales), .w = part(q.w)};
}

bool indexes_beside(const AttentionBatch& batch) {
  constexpr int64_t kFewTokens = 128;  // more are not measured
  const bool planned = batch.decode.fixed_keys > 0;
  return planned && batch.prefill.num_tokens == 0 && batch.decode.num_tokens <= kFewTokens;
}

// All tokens of a range: one call where their scores fit at once, as in decode. More tokens and
// longer contexts never take less memory here, as plans of it expect
// (runtime/executor/step_memory.h); what runs beside keeps it longer, in shapes that are planned.
Status choose_rows(Exec& ex,
                   const View& request_offsets,
                   const TokenRange& range,
                   const IndexScored& all,
                   const IndexRows& index,
                   const View& slots) {
  const int64_t scores = range.num_tokens * all.num_keys;
  const int64_t room = std::min(scores, std::max(kMostScores, all.num_keys));
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const View memory, ex.activations->tensor({room}, Format::kF32, "T*L"));
  if (scores <= room) return choose_keys(ex, all, index, memory, slots);
  return each_request(ex, range, [&](const RangeRequest& r) {
    IndexScored request = tokens_of(all, r.begin, r.count);
    request.block_table = slice_rows(all.block_table, r.index, 1);
    request.num_keys = std::max<int64_t>(r.keys / all.tokens_per_key, 1);
    return choose_in_tiles(ex, request_offsets, request, index, memory,
                           slice_rows(slots, r.begin, r.count));
  });
}

}  // namespace fathom
