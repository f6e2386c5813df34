// The expanded forms of MLA: keys and values of every head are made from the latents.
//
// Bitwise rule: a token's result must not depend on which part of its prefix was cached. So keys
// are taken in chunks of C at absolute positions, chunk j = positions jC .. (j+1)C-1, and a query
// merges the results of its chunks in order, in float32, rounding once at the end. A query at
// position p sees the chunks before its own in full and its own up to p.
#include <algorithm>

#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/layers/attention/each_request.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

struct ExpandedKeys {
  View k;  // [S, Nh, Dq]
  View v;  // [S, Nh, Dv], a slice of the kv_b projection
};

// k = [W_UK c | k_pe], v = W_UV c. DeepSeek-V2 report, eq. 10, 11, 16.
Result<ExpandedKeys> expand(
    Exec& ex, const MlaShape& s, const MlaWeights& w, const View& c, const View& k_pe) {
  const int64_t S = c.dim(0);
  FATHOM_ASSIGN(const View kv,
                ex.activations->tensor({S, s.Nh * (s.Dn + s.Dv)}, c.format, "S,Nh*(Dn+Dv)"));
  FATHOM_TRY(linear(ex, "kv_b_proj", c, w.kv_b, kv));
  const View heads = reshape(kv, {S, s.Nh, s.Dn + s.Dv}, "S,Nh,Dn+Dv");
  FATHOM_ASSIGN(const View k, ex.activations->tensor({S, s.Nh, s.Dq()}, c.format, "S,Nh,Dq"));
  FATHOM_TRY(
      launch<ConcatK>(ex, "concat_and_cast_mha_k",
                      {.k_nope = slice_cols(heads, 0, s.Dn, "S,Nh,Dn"), .k_pe = k_pe, .k = k}));
  return ExpandedKeys{.k = k, .v = slice_cols(heads, s.Dn, s.Dv, "S,Nh,Dv")};
}

// Offsets [0, count] of a single request.
View single_request(const MlaContext& m, int64_t count) {
  return reshape(slice_rows(m.request_offsets, count, 1), {2}, "2");
}

// One request: its queries, where results go, and the states of queries with more chunks to come.
struct ChunkedRequest {
  int64_t start;  // position of the first query
  int64_t end;    // keys, new tokens included
  View q;         // [n, Nh, Dq]
  View o;         // [n, Nh, Dv], activation format
  View acc;       // [n, Nh, Dv] float32
  View lse;       // [n, Nh] float32
  View more;      // [min(C, n), Nh, Dv] float32: results over one more chunk
  View more_lse;  // [min(C, n), Nh] float32
  View pages;     // [M] i32
};

// Queries [begin, begin + count) over one chunk of keys. In the chunk that holds the queries' own
// positions (`own`) the mask is causal and the result is final.
Status attend_chunk(Exec& ex,
                    const MlaContext& m,
                    const ChunkedRequest& r,
                    const ExpandedKeys& keys,
                    int64_t begin,
                    int64_t count,
                    bool first_chunk,
                    bool own) {
  if (count == 0) return {};
  const MlaShape& s = m.shape;
  ArenaScope arena(*ex.activations);
  const View result = slice_rows(own ? r.o : r.acc, begin, count);
  RaggedAttention::Args args{.q = slice_rows(r.q, begin, count),
                             .k = keys.k,
                             .v = keys.v,
                             .q_offsets = single_request(m, count),
                             .kv_offsets = single_request(m, keys.k.dim(0)),
                             .o = result,
                             .lse = {},
                             .scale = s.softmax_scale,
                             .mask = own ? CausalMask::kCausal : CausalMask::kFull};
  const SelectionRow row = attention_row(AttentionForm::kChunked);
  if (first_chunk) {
    if (!own) args.lse = slice_rows(r.lse, begin, count);
    return launch<RaggedAttention>(ex, "attn_mha", args, row);
  }
  args.o = slice_rows(r.more, 0, count);
  args.lse = slice_rows(r.more_lse, 0, count);
  FATHOM_TRY(launch<RaggedAttention>(ex, "attn_mha", args, row));
  const View lse = slice_rows(r.lse, begin, count);
  return launch<MergeState>(ex, "merge_state_v2",
                            {.o_a = slice_rows(r.acc, begin, count),
                             .lse_a = lse,
                             .o_b = args.o,
                             .lse_b = args.lse,
                             .o = result,
                             .lse = lse,
                             .base = LseBase::kE});
}

// What it takes from the arena grows with the number of queries and of keys, whatever part of a
// chunk either fills: memory is planned from the largest step (runtime/executor/step_memory.h).
Status attend_request(
    Exec& ex, const MlaContext& m, const MlaWeights& w, ChunkedRequest r, const View& cache) {
  const MlaShape& s = m.shape;
  const int64_t C = m.options.prefill_chunk;
  const int64_t n = r.q.dim(0);
  ArenaScope arena(*ex.activations);
  const int64_t carried = r.end > C ? n : 0;  // queries that may see more than one chunk
  FATHOM_ASSIGN(r.acc, ex.activations->tensor({carried, s.Nh, s.Dv}, Format::kF32, "T,Nh,Dv"));
  FATHOM_ASSIGN(r.lse, ex.activations->tensor({carried, s.Nh}, Format::kF32, "T,Nh"));
  const int64_t merged = std::min(C, carried);  // of them at once
  FATHOM_ASSIGN(r.more, ex.activations->tensor({merged, s.Nh, s.Dv}, Format::kF32, "T,Nh,Dv"));
  FATHOM_ASSIGN(r.more_lse, ex.activations->tensor({merged, s.Nh}, Format::kF32, "T,Nh"));
  for (int64_t begin = 0; begin < r.end; begin += C) {
    Scope scope(ex.recorder, "key_chunk", static_cast<int>(begin / C));
    ArenaScope chunk_arena(*ex.activations);
    const int64_t num_keys = std::min(C, r.end - begin);
    FATHOM_ASSIGN(const View c, ex.activations->tensor({num_keys, s.Lkv}, r.q.format, "S,Lkv"));
    FATHOM_ASSIGN(const View k_pe, ex.activations->tensor({num_keys, s.Dr}, r.q.format, "S,Dr"));
    FATHOM_TRY(launch<KvGather>(ex, "kv_gather",
                                {.cache = cache,
                                 .pages = r.pages,
                                 .c = c,
                                 .k_pe = k_pe,
                                 .begin = begin,
                                 .scale = m.options.kv_scale}));
    FATHOM_ASSIGN(const ExpandedKeys keys, expand(ex, s, w, c, k_pe));
    // Queries before `first` stand in earlier chunks; those from `later` on in later ones.
    const int64_t first = std::max<int64_t>(begin - r.start, 0);
    const int64_t later = std::max<int64_t>(begin + num_keys - r.start, 0);
    FATHOM_TRY(attend_chunk(ex, m, r, keys, first, later - first, begin == 0, true));
    for (int64_t row = later; row < n; row += C) {
      FATHOM_TRY(attend_chunk(ex, m, r, keys, row, std::min(C, n - row), begin == 0, false));
    }
  }
  return {};
}

}  // namespace

Result<View> request_offsets(WeightStore& store, const AttentionOptions& options) {
  const int64_t rows = options.prefill_chunk + 1;
  return store.constant("offsets of requests", {rows, 2}, Format::kI32, "C+1,2",
                        [=](std::byte* out) {
                          auto* offsets = reinterpret_cast<int32_t*>(out);
                          for (int64_t n = 0; n < rows; ++n) {
                            offsets[2 * n] = 0;
                            offsets[2 * n + 1] = static_cast<int32_t>(n);
                          }
                        });
}

Status mla_prefill_mha(Exec& ex,
                       const MlaContext& m,
                       const MlaWeights& w,
                       const TokenRange& range,
                       const MlaProjected& p,
                       const View& o) {
  Scope scope(ex.recorder, "mha");
  FATHOM_ASSIGN(const ExpandedKeys keys, expand(ex, m.shape, w, p.c, p.k_pe));
  return launch<RaggedAttention>(ex, "attn_mha",
                                 {.q = p.q,
                                  .k = keys.k,
                                  .v = keys.v,
                                  .q_offsets = range.query_offsets_view,
                                  .kv_offsets = range.query_offsets_view,
                                  .o = o,
                                  .lse = {},
                                  .scale = m.shape.softmax_scale,
                                  .mask = CausalMask::kCausal},
                                 attention_row(AttentionForm::kMha));
}

Status mla_prefill_chunked(Exec& ex,
                           const MlaContext& m,
                           const MlaWeights& w,
                           const TokenRange& range,
                           const MlaProjected& p,
                           const View& cache,
                           const View& o) {
  Scope scope(ex.recorder, "chunked");
  return each_request(ex, range, [&](const RangeRequest& request) {
    const View table = slice_rows(range.block_table, request.index, 1);
    return attend_request(ex, m, w,
                          {.start = request.keys - request.count,
                           .end = request.keys,
                           .q = slice_rows(p.q, request.begin, request.count),
                           .o = slice_rows(o, request.begin, request.count),
                           .acc = {},
                           .lse = {},
                           .more = {},
                           .more_lse = {},
                           .pages = reshape(table, {table.dim(1)}, "M")},
                          cache);
  });
}

}  // namespace fathom
