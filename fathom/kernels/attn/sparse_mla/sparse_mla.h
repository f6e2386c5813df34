// Latent attention over a list of rows for each query token: what sparse attention does after its
// rows are chosen. All heads of a token share the rows, and a row is key and value at once.
//
// A row is D channels, [values | rope]. In a paged cache its fields may lie apart and have formats
// of their own; W counts the channels of `values`, R those of `rope`, W + R = D:
//
//   rows of             values     scales       rope       D
//   dense               bf16|f32   -            -          W         V4: 512, V3.2: 576
//   V4, 584 bytes       e4m3       ue8m0 x W/64 bf16 x 64  512       channels 448 + 64
//   V3.2, 656 bytes     e4m3       f32 x W/128  bf16 x 64  576       channels 512 + 64
//   V4, NVFP4, 384      e2m1       e4m3 x W/16  bf16 x 64  512       channels 448 + 64
//
// Fields are views [pages, rows of a page, numbers of a row], strided in pages and rows, as a page
// codec gives them. e2m1 codes are a u8 view of W/2 bytes, the code of the even channel in the low
// nibble. A scale belongs to W / G channels; value = code * scale, without a second scale.
#pragma once

#include <array>

#include "fathom/kernels/attn/lse_base.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Rows of one paged cache and, for each query token, those it attends to.
struct SparseRows {
  View values;    ///< [M,S,V]: bf16|f32|e4m3, V = W; or u8, two e2m1 codes a byte, V = W/2
  View slots;     ///< [T,K]: page * S + offset, -1 for none
  View rope{};    ///< [M,S,R]; for codes alone
  View scales{};  ///< [M,S,G]; for codes alone, and they need them

  bool present() const { return values.present(); }
};

/// Attention of each query token over rows of one or two caches.
///
///   l_nj  = scale * q_n . row_j,   m_n = max_j l_nj
///   den_n = sum_j e^{l_nj - m_n} + e^{sink[n] - m_n}
///   o_n   = sum_j e^{l_nj - m_n} row_j[0:L] / den_n
///   lse_n = m_n + ln sum_j e^{l_nj - m_n}
///
/// j runs over the slots of the token that are not -1: those of `rows` in their order, then those
/// of `extra` in theirs. -1 may stand anywhere. A row that is listed twice counts twice. The value
/// of a row is its first L channels: all 512 in V4, rotary channels included, 512 of 576 in V3.2.
/// Both caches have rows of D channels, in any formats. `scale` is that of the model and is always
/// given. sink, a logit of each head without a value, is not scaled, takes no part in the maximum
/// and stands in the denominator alone: lse does not hold it, so that partial results are merged by
/// their lse and get the sink once, at the end. A sink of -inf changes nothing, +inf gives o = 0.
/// lse is natural. A token without rows gets o = 0 and lse = -inf, with or without sink (FlashMLA
/// gives lse = +inf there). extra, sink and lse may be left out. q and o may be strided in tokens
/// and heads, slots in tokens; o has the format of q or the other one.
///
/// With positions and table, o is turned back as by InverseRope, of which table and equation are:
/// the last Rt channels of a head are adjacent pairs, (a, b) -> (a c + b s, b c - a s). This is
/// done to the float32 quotient, sink included, so o is rounded once.
///
/// Scores, softmax and sums are float32. Codes are decoded in float32, exactly but for float32
/// scales. If q is bf16, rows of codes are rounded to bf16 once after that, in every variant; only
/// float32 scales lose by it (FlashMLA and the model's own code do so too). Dense rows are what
/// they are. With q and rows in f32 all is float32. Where products run in bf16, a weight of the
/// softmax enters as the sum of two bf16 numbers, which keeps 16 bits of it, and subnormal channels
/// count as zero. Rows are taken in blocks of 64 of the list without its -1 (a block may hold rows
/// of both caches), blocks are merged in order (online softmax). So a head of a token depends on
/// its query and its list alone: not on other tokens or heads, on pages, on where -1 stands, nor on
/// the number of threads. Deterministic. Another order of a list changes rounding alone.
///
/// On a GPU the tensor cores' variants cut a list into as many pieces as the shape of the call
/// leaves multiprocessors for, and take blocks of 64 entries, of which those that name no row count
/// nothing: the shape and where -1 stands change rounding. There a weight enters as two bf16
/// numbers in lists of at most 512 rows, and where it is a large part of the row's sum so far; else
/// as one. On Blackwell all enter as two.
///
/// Errors: InvalidArgument, naming the operand, for slots outside [-1, M*S), for rope or scales
/// with dense rows, codes without scales, scales that do not divide W, W + R other than D, for
/// extra fields without extra_values or extra_values without extra_slots, for one of positions and
/// table alone, an odd Rt or Rt > L, and positions outside [0, P).
/// Source: DeepSeek-V3.2 and DeepSeek-V4, sparse attention; FlashMLA, flash_mla_with_kvcache
/// (indices, extra_k_cache, attn_sink).
struct SparseMlaDecode {
  static constexpr KernelInfo kInfo{
      .name = "sparse_mla_decode",
      .signature =
          "q[T,N,D]:bf16|f32 values[M,S,V]:bf16|f32|e4m3|u8 slots[T,K]:i32 rope?[M,S,R]:bf16 "
          "scales?[M,S,G]:ue8m0|f32|e4m3 extra_values?[Me,Se,Ve]:bf16|f32|e4m3|u8 "
          "extra_slots?[T,Ke]:i32 extra_rope?[Me,Se,Re]:bf16 "
          "extra_scales?[Me,Se,Ge]:ue8m0|f32|e4m3 "
          "sink?[N]:f32 positions?[T]:i32 table?[P,Rt]:f32 -> o[T,N,L]:bf16|f32 lse?[T,N]:f32",
      .limits = "L<=D, S>=1",
      .equation =
          "o = sum_j e^(l_j - m) row_j / (sum_j e^(l_j - m) + e^(sink - m)), l = scale q.row",
      .source = "DeepSeek-V3.2, DeepSeek-V4; FlashMLA",
      .flops = "~2 N (D + L) for each row of a token, 3 N Rt for a token",
  };

  static constexpr int64_t kRowBlock = 64;

  struct Args {
    View q;
    SparseRows rows;
    View o;
    SparseRows extra{};
    View sink{}, lse{};
    float scale = 1.0f;
    View positions{}, table{};  ///< of the rotation back
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q,           &a.rows.values, &a.rows.slots,
                      &a.rows.rope,   &a.rows.scales, &a.extra.values,
                      &a.extra.slots, &a.extra.rope,  &a.extra.scales,
                      &a.sink,        &a.positions,   &a.table,
                      &a.o,           &a.lse};
  }

  /// 2 N (D + L) FLOPs a row, and those of the rotation. A dry run assumes that every slot is a
  /// row.
  static Cost cost(const Args& a);

  /// Of the caches, each row once for each token that lists it; of the table, a row a token.
  static void bytes(const Args& a, Cost& cost);

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

/// The same over rows of one list that lie one behind the other: prefill, after the rows it needs
/// are gathered and decoded.
///
///   o, with the sink as in SparseMlaDecode;   max_n = max_j l_nj;   lse_n = ln sum_j e^{l_nj}
///
/// j runs over the first lengths[t] ids of the token (all K without lengths) that are in [0, P);
/// all others are skipped, whatever they are. max and lse include the scale and not the sink; with
/// lse_base = k2 both are multiplied by log2(e). FlashMLA's are natural since it has sinks; its
/// first release (2025-09) gave base 2. A token without rows gets o = 0 and max = lse = -inf.
/// kv may be strided in rows. Precision, order and independence are those of SparseMlaDecode.
/// Errors: InvalidArgument for a length outside [0, K].
/// Source: FlashMLA, flash_mla_sparse_fwd (topk_length, attn_sink).
struct SparseMlaPrefill {
  static constexpr KernelInfo kInfo{
      .name = "sparse_mla_prefill",
      .signature =
          "q[T,N,D]:bf16|f32 kv[P,D]:bf16|f32 ids[T,K]:i32 lengths?[T]:i32 sink?[N]:f32 -> "
          "o[T,N,L]:bf16|f32 max?[T,N]:f32 lse?[T,N]:f32",
      .limits = "L<=D",
      .equation = "o = sum_j e^(l_j - m) kv_j / (sum_j e^(l_j - m) + e^(sink - m)), l = scale q.kv",
      .source = "DeepSeek-V3.2, DeepSeek-V4; FlashMLA",
      .flops = "~2 N (D + L) for each row of a token",
      .outside = "sparse attention over gathered rows; the layers read rows in the cache",
  };

  struct Args {
    View q, kv, ids, o;
    View lengths{}, sink{}, max{}, lse{};
    float scale = 1.0f;
    LseBase lse_base = LseBase::kE;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.kv, &a.ids, &a.lengths, &a.sink, &a.o, &a.max, &a.lse};
  }

  static Cost cost(const Args& a);
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<SparseMlaDecode> sparse_mla_decode_cpu;
extern const VariantTable<SparseMlaDecode> sparse_mla_decode_cuda;
extern const VariantTable<SparseMlaPrefill> sparse_mla_prefill_cpu;
extern const VariantTable<SparseMlaPrefill> sparse_mla_prefill_cuda;

}  // namespace fathom
