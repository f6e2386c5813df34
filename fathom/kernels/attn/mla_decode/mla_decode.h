// Absorbed multi-head latent attention over the paged cache: the decode form of MLA. All heads
// share one key of D numbers a token, [c | rotated k_pe], and the value is its first L numbers.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// What the entries of a block table are.
enum class KeyTable : uint8_t {
  kPages,  ///< pages of S keys each
  kSlots,  ///< page * S + offset of single keys
};

/// One query token a request over that request's cache.
///
///   s_nj = scale * kv_scale * q_n . key_j;   lse_n = ln ( sum_j e^{s_nj} + e^{sinks[n]} );
///   o_n  = o_scale * kv_scale * sum_j e^{s_nj - lse_n} key_j[0:L],   j = 0 .. kv_lens[b]-1
///
/// q is whole, [B,N,D], or in two parts that lie apart: its first Dq numbers, and q_pe, the others.
/// key_j lies in cache[ block_table[b, j/S] ][ j%S ] and is the stored code; kv_scale turns codes
/// into values and must be 1 unless the cache is e4m3. kv_lens counts the current token, whose key
/// is in the cache already. Entries of block_table past the last page in use, and rows of the last
/// page past kv_lens, do not count. With table = kSlots the keys of a request lie anywhere: entry j
/// of its row is the slot of key j. kv_lens[b] = 0 gives o = 0 and lse = -inf, or the sink.
/// lse is natural and includes all scales but o_scale. sinks give each head a logit that has no
/// value. Both may be left out. q and o have one format; or q is e4m3 (codes, whose scale is in
/// `scale`) and o bf16 or f32. Both may be strided in tokens and heads; the cache may be strided in
/// pages. `scale` is that of the model (never D^-1/2).
///
/// Scores, softmax and sums are float32. Where products run in bf16, a weight of the softmax enters
/// as the sum of two bf16 numbers, which keeps 16 bits of it. Keys are taken in blocks of 64 at
/// absolute positions. Variants that divide long contexts over threads cut at absolute positions
/// too (512, 1024, ..), give each split a state of its own and merge the states in order. So a row
/// depends on its own query and keys alone: not on other requests, on pages, nor on the number of
/// threads. Deterministic. On a GPU the tensor cores' variant cuts a request's keys into as many
/// pieces as the shape of the call leaves multiprocessors for. There a weight enters as two bf16
/// numbers in requests of at most 512 keys, and where it is a large part of the row's sum so far;
/// else as one. Errors: InvalidArgument for kv_lens outside [0, M*S], pages outside [0, P), a
/// kv_scale that is not finite and positive or goes with a format that has none, unequal formats of
/// q and o, or a q_pe of another format than q, or whose width is not what q lacks. The reference's
/// workspace size is workspace(). Source: DeepSeek-V2 technical report, section 2.1.2; FlashMLA;
/// Flash-Decoding (splits).
struct MlaDecode {
  static constexpr KernelInfo kInfo{
      .name = "mla_decode",
      .reference_names = {"cutlass_mla_decode"},
      .signature =
          "q[B,N,Dq]:bf16|f32|f16|e4m3 cache[P,S,D]:bf16|f32|f16|e4m3 block_table[B,M]:i32 "
          "kv_lens[B]:i32 q_pe?[B,N,D-Dq]:bf16|f32|f16|e4m3 sinks?[N]:f32 -> "
          "o[B,N,L]:bf16|f32|f16 lse?[B,N]:f32",
      .limits = "L<=D, Dq<=D, S>=1",
      .equation = "o = softmax(scale q k^T) k[:, :L]",
      .source = "DeepSeek-V2 report, 2.1.2; FlashMLA",
      .flops = "~2 N (D + L) for each key of a request",
  };

  static constexpr int64_t kKeyBlock = 64;
  static constexpr int64_t kSplitKeys = 512;

  struct Args {
    View q, cache, block_table, kv_lens, o, lse;
    float scale = 1.0f;
    float kv_scale = 1.0f;
    View q_pe = {};
    View sinks = {};
    float o_scale = 1.0f;
    KeyTable table = KeyTable::kPages;
    View slots = {};  ///< of MlaDecodeMulti alone, as what follows
    View tree_masks = {}, tree_begins = {};
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.cache, &a.block_table, &a.kv_lens, &a.q_pe, &a.sinks, &a.o, &a.lse};
  }

  /// 2 N (D + L) FLOPs a key. A dry run assumes that every page of the block table is full.
  static Cost cost(const Args& a);

  /// Of the cache, only the keys of these requests count.
  static void bytes(const Args& a, Cost& cost);

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

/// Q query tokens a request, the last of which is the newest token: verification of drafts.
///
/// As MlaDecode, but query j of request b sees keys 0 .. kv_lens[b] - Q + j. Row (b, j) has the
/// bits that MlaDecode gives for that query and kv_lens[b] - Q + j + 1 keys, as long as the hidden
/// keys of the request are finite. A query that sees no key gets o = 0 and lse = -inf, or the sink.
///
/// With `slots` [B,Q,C] (sparse attention) each query has keys of its own, the slots page * S +
/// offset in its row; entries of -1 are skipped, and block_table and kv_lens are not read. The keys
/// of a row are then in the order of its slots, in blocks of 64 without the skipped ones.
///
/// With tree_masks [B,Q] and tree_begins [B] the queries are tokens of trees (tree_keys.h), rows of
/// which are the last keys of the request: query j sees the keys before tree_begins[b], and key
/// tree_begins[b] + i if bit i of its mask is set. A row has the bits that MlaDecode gives for
/// those keys in their order, as those of a chain do; on a GPU's tensor cores, but in the variant
/// `uncut`, it has them up to rounding.
///
/// The reference's bmm1_scale is scale * kv_scale, its bmm2_scale kv_scale * o_scale: set kv_scale
/// to 1 to give both freely. Its cache [P,1,S,D] is [P,S,D].
/// Errors: as MlaDecode, slots outside [-1, P*S), slots together with trees, and trees as
/// check_trees().
/// Source: as MlaDecode; TensorRT-LLM's batch decode with several query tokens.
struct MlaDecodeMulti {
  static constexpr KernelInfo kInfo{
      .name = "mla_decode_multi",
      .reference_names = {"trtllm_batch_decode_with_kv_cache_mla"},
      .signature =
          "q[B,Q,N,Dq]:bf16|f32|f16|e4m3 cache[P,S,D]:bf16|f32|f16|e4m3 block_table[B,M]:i32 "
          "kv_lens[B]:i32 q_pe?[B,Q,N,D-Dq]:bf16|f32|f16|e4m3 sinks?[N]:f32 slots?[B,Q,C]:i32 "
          "tree_masks?[B,Q]:i64 tree_begins?[B]:i32 -> "
          "o[B,Q,N,L]:bf16|f32|f16 lse?[B,Q,N]:f32",
      .limits = "L<=D, Dq<=D, S>=1",
      .equation = "o = softmax(scale q k^T + mask) k[:, :L]",
      .source = "DeepSeek-V2 report, 2.1.2; TensorRT-LLM",
      .flops = "~2 N (D + L) for each key that a query token sees",
  };

  using Args = MlaDecode::Args;

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q,     &a.cache,      &a.block_table, &a.kv_lens, &a.q_pe, &a.sinks,
                      &a.slots, &a.tree_masks, &a.tree_begins, &a.o,       &a.lse};
  }

  static Cost cost(const Args& a);
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<MlaDecode> mla_decode_cpu;
extern const VariantTable<MlaDecode> mla_decode_cuda;
extern const VariantTable<MlaDecodeMulti> mla_decode_multi_cpu;
extern const VariantTable<MlaDecodeMulti> mla_decode_multi_cuda;

}  // namespace fathom
