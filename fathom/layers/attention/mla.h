// Multi-head latent attention (DeepSeek-V2 report, section 2.1).
//
// What is cached of a token is its latent c (Lkv numbers, normalised) and one rotated key k_pe (Dr)
// that all heads share. Attention over that cache has several forms that agree up to rounding:
//
//   mha         expand c to keys and values of every head; the new tokens are the whole request
//   chunked     the same for key chunks at absolute positions, read from the pages and merged
//   absorbed    fold the expansion into query and output, attend to the latents themselves
//   fused_rope  absorbed, with rotation, cache write and concatenation in one kernel
//
// A table chooses the form of each phase. mla_project.cc has what comes before attention,
// mla_prefill.cc the expanded forms, mla_absorbed.cc the absorbed ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/tensor/view.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// Of the two norms of latents, q_a_layernorm and kv_a_layernorm. The reference's code leaves them
/// their default, whatever the configuration says of the other norms (rms_norm_eps).
inline constexpr float kLatentNormEps = 1e-6f;

/// Sizes by the symbols of the report.
struct MlaShape {
  int64_t Nh = 0;              ///< heads
  int64_t Lq = 0;              ///< query latent rank; 0: a plain q_proj
  int64_t Lkv = 0;             ///< key-value latent rank
  int64_t Dn = 0;              ///< head dimension without rotary part
  int64_t Dr = 0;              ///< rotary part
  int64_t Dv = 0;              ///< value dimension
  float softmax_scale = 0.0f;  ///< (Dn+Dr)^-1/2 m^2, in every form
  RopeStyle rope_style = RopeStyle::kInterleaved;

  int64_t Dq() const { return Dn + Dr; }

  int64_t cache_width() const { return Lkv + Dr; }
};

/// Weights of one layer.
struct MlaWeights {
  RowsWeight q_kv_a;  ///< [q_a; kv_a], or [q; kv_a] when Lq is 0
  View q_a_norm;      ///< [Lq], absent when Lq is 0
  View kv_a_norm;     ///< [Lkv]
  LinearWeight q_b;   ///< [Nh*Dq, Lq], absent when Lq is 0
  LinearWeight kv_b;  ///< [Nh*(Dn+Dv), Lkv]
  LinearWeight w_kc;  ///< [Nh, Lkv, Dn]
  LinearWeight w_vc;  ///< [Nh, Dv, Lkv]
  LinearWeight o;     ///< [H, Nh*Dv]
};

/// A run of tokens of one step whose requests are in the same phase. Spans are in host memory; the
/// views hold the same numbers where kernels read them (null data in a dry run).
struct TokenRange {
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  std::span<const int32_t> query_offsets;  ///< [B+1], relative to token_begin, from 0
  std::span<const int32_t> kv_lens;        ///< [B], keys of a request, its new tokens included
  View query_offsets_view;                 ///< [B+1] i32
  View kv_lens_view;                       ///< [B] i32
  View block_table;                        ///< [B, M] i32, pages of each request
  View request_slots;  ///< [B] i32, where the rings and states of each request lie; may be absent
  /// Of a range with trees (SequenceStep::parents): which keys each token sees (tree_keys.h).
  /// [num_tokens] i64, and [B] i32. Absent: each token sees what lies before it and itself. Decode
  /// alone.
  View tree_masks;
  View tree_begins;
  /// Steps that are captured and replayed with other lengths: keys that a request may have at most.
  /// What is launched, and with which shapes, follows from it alone. 0: kv_lens may be looked at.
  int64_t fixed_keys = 0;

  int64_t num_requests() const { return static_cast<int64_t>(kv_lens.size()); }

  /// Keys of request b, or as many as it may have.
  int64_t keys_of(int64_t b) const {
    return fixed_keys > 0 ? fixed_keys : kv_lens[static_cast<size_t>(b)];
  }

  /// Of the request with the most; there is one.
  int64_t most_keys() const {
    return fixed_keys > 0 ? fixed_keys : *std::max_element(kv_lens.begin(), kv_lens.end());
  }
};

/// What attention needs to know of a step: prefill tokens first, then decode tokens.
struct AttentionBatch {
  View positions;  ///< [T] i32, absolute, from 0
  TokenRange prefill;
  TokenRange decode;

  int64_t num_tokens() const { return prefill.num_tokens + decode.num_tokens; }
};

/// One layer's rows of the cache, and where the step writes into them.
struct CacheRows {
  View rows;      ///< [pages, rows of a page, width]; with scales: the latents' codes
  View slots;     ///< [T] i64, page * rows of a page + row; -1: not written
  View rope{};    ///< rotated keys beside codes with scales (cache_row.h)
  View scales{};  ///< of rows that have them
};

enum class AttentionForm : uint8_t { kMha, kChunked, kAbsorbed, kFusedRope };

struct AttentionOptions {
  /// One form, absorbed, for every phase: a token then has the same bits whether it was prefilled,
  /// decoded, verified or computed again after preemption.
  bool always_absorbed = false;
  /// Decode with the fused preparation kernel, in models that have no indexer.
  bool fused_rope = false;
  /// Keys per chunk C; a multiple of the page size. A bit of the result depends on C.
  int64_t prefill_chunk = 1024;
  /// Of an e4m3 cache: value = code * kv_scale.
  float kv_scale = 1.0f;
};

/// What the choice of a form depends on.
struct AttentionCall {
  bool decode = false;
  bool has_prefix = false;   ///< some request has tokens in the cache already
  bool exact_cache = false;  ///< the cache keeps the bits of the activations
  int64_t num_tokens = 0;
};

/// A row of the table of attention forms: the first that fits wins.
struct AttentionRow {
  AttentionForm form;
  std::string_view name;
  std::string_view when;
  bool (*fits)(const AttentionCall& call, const AttentionOptions& options);
};

std::span<const AttentionRow> attention_rows();

/// The row of a form, for records.
SelectionRow attention_row(AttentionForm form);

/// The index of the first row that fits; there always is one.
int choose_attention(const AttentionCall& call, const AttentionOptions& options);

/// The same with the reasons, as lines of text, for `inspect --explain`.
std::string explain_attention(const AttentionCall& call, const AttentionOptions& options);

/// What stays the same over the layers and steps of a model.
struct MlaContext {
  MlaShape shape;
  AttentionOptions options;
  View rope_table;  ///< [P, Dr] f32
  /// [prefill_chunk + 1, 2] i32, row n is (0, n): offsets of a request by itself. A constant, since
  /// the host may not write where kernels read in the middle of a step.
  View request_offsets;
};

/// MlaContext::request_offsets, in the memory of the weights.
Result<View> request_offsets(WeightStore& store, const AttentionOptions& options);

/// y = attention of x [T, H], o_proj included; writes the latent keys of the step to the cache,
/// rows [M, S, Lkv+Dr], first.
///
/// Guarantee: among prefilled tokens a result has the same bits whatever part of its prefix was
/// cached and however the prompt was cut into steps, since key chunks start at absolute positions
/// and merge in order. With `always_absorbed` that holds for decoded tokens too.
/// Errors: InvalidArgument for a chunk that is no multiple of the page size, and those of the
/// kernels.
Status mla_attend(Exec& ex,
                  const MlaContext& m,
                  const MlaWeights& w,
                  const AttentionBatch& batch,
                  const CacheRows& cache,
                  const View& x,
                  const View& y);

/// The projections of one step, before rotation.
struct MlaProjected {
  View q_a;   ///< [T, Lq], the normalised query latent; absent when Lq is 0
  View q;     ///< [T, Nh, Dq], rotary part last
  View c;     ///< [T, Lkv], normalised
  View k_pe;  ///< [T, Dr]
};

MlaProjected rows_of(const MlaProjected& p, int64_t begin, int64_t count);

/// Errors: InvalidArgument unless chunks of keys are whole pages of the cache.
Status check_prefill_chunk(const AttentionOptions& options, const CacheRows& cache);

// The parts of mla_attend.

/// Attention of the tokens of a range of the step, in the form that the table gives it; p and o
/// [T, Nh, Dv] have all tokens of the step, whose keys are written.
Status mla_attend_range(Exec& ex,
                        const MlaContext& m,
                        const MlaWeights& w,
                        const AttentionBatch& batch,
                        const TokenRange& range,
                        bool decode,
                        const MlaProjected& p,
                        const CacheRows& cache,
                        const View& o);
Result<MlaProjected> mla_project(Exec& ex, const MlaContext& m, const MlaWeights& w, const View& x);

// The halves of mla_project: down to the latents, of which the query's alone is normalised and c is
// not; then up to the queries, and c.
Result<MlaProjected> mla_latents(Exec& ex, const MlaContext& m, const MlaWeights& w, const View& x);
Status mla_queries(Exec& ex, const MlaContext& m, const MlaWeights& w, MlaProjected& p);
Status mla_rotate_and_write(Exec& ex,
                            const MlaContext& m,
                            const MlaProjected& p,
                            const View& positions,
                            const CacheRows& cache);
Status mla_prefill_mha(Exec& ex,
                       const MlaContext& m,
                       const MlaWeights& w,
                       const TokenRange& range,
                       const MlaProjected& p,
                       const View& o);
Status mla_prefill_chunked(Exec& ex,
                           const MlaContext& m,
                           const MlaWeights& w,
                           const TokenRange& range,
                           const MlaProjected& p,
                           const View& cache,
                           const View& o);

/// Rows of the step as the absorbed form needs them; positions and where rows of the cache are
/// written serve fused_rope alone.
Status mla_decode_absorbed(Exec& ex,
                           const MlaContext& m,
                           const MlaWeights& w,
                           const TokenRange& range,
                           AttentionForm form,
                           const MlaProjected& p,
                           const View& positions,
                           const CacheRows& cache,
                           const View& o);

}  // namespace fathom
