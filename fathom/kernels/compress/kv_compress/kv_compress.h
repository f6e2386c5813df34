// The compressor of DeepSeek-V4: every r tokens become one row of a compressed cache, by a softmax
// over their scores in each channel. Two kernels keep and use its state, which is addressed by
// position, so that prompts in chunks, drafts and plain decode are one case.
//
// A token t has u_t and z_t of W numbers each, side by side in the projection's output. Row i is
// pooled from E entries, token by token in ascending order:
//
//   overlap (r = 4, W = 2D, E = 8):   tokens 4i-4 .. 4i-1 with channels 0 .. D-1 of u and z,
//                                     then 4i .. 4i+3 with channels D .. 2D-1
//   plain (r = 128, W = D, E = 128):  tokens 128i .. 128i+127
//
// Entries before the start of a sequence do not take part. The last E rows of u and z behind a
// step's tokens are in a ring, row p mod ring_rows for position p; the ring may be longer, and has
// to be by as many rows as drafts may be taken back. The kernels see slots alone.
//
// One step, for each compressor: compress_pool first, which reads the step's own tokens from the
// projection and older ones from the ring, then compress_state_write. So a chunk may be of any
// length; of one that is longer than the ring only the last ring_rows tokens are written (the
// others have slot -1).
#pragma once

#include <array>

#include "fathom/kernels/attn/cache_row.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Writes what the compressor keeps of each token to its slot of the ring.
///
///   state_u[slot(t)] = u_z[t, 0 .. W-1]
///   state_z[slot(t)] = u_z[t, W .. 2W-1] + ape[positions[t] mod A]
///
/// A is the ratio r. slots[t] = page * Q + row of the ring, -1 skips the token; two tokens must not
/// share a slot. Only those rows are written. u_z may be strided; the state has free strides of
/// pages and rows. One float32 addition. Deterministic; tokens are independent.
/// Errors: InvalidArgument for negative positions or slots outside [-1, N*Q).
/// Source: DeepSeek-V4, inference/model.py (Compressor); vLLM, save_partial_states.
struct CompressStateWrite {
  static constexpr KernelInfo kInfo{
      .name = "compress_state_write",
      .signature =
          "u_z[T,J]:bf16|f32 ape[A,W]:f32 positions[T]:i32 slots[T]:i64 -> "
          "state_u[N,Q,W]:f32 state_z[N,Q,W]:f32",
      .limits = "J==2*W, A>=1",
      .equation = "state_u[slot] = u; state_z[slot] = z + ape[position mod A]",
      .source = "DeepSeek-V4; vLLM",
      .flops = "T*W",
  };

  struct Args {
    View u_z, ape, positions, slots, state_u, state_z;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.u_z, &a.ape, &a.positions, &a.slots, &a.state_u, &a.state_z};
  }

  static Cost cost(const Args& a);

  /// One row of each a token.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// What happens to a compressed row before it is stored.
enum class CompressTransform : uint8_t {
  kNone,
  kHadamard,  ///< times the Walsh-Hadamard matrix (Sylvester order) and D^-0.5: keys of an indexer
};

/// Pools the entries of each finished row, norms, rotates and stores it.
///
///   p_e[c] = exp(z_e[c] - m[c]),  m[c] = max over e of z_e[c]
///   x[c]   = sum_e p_e[c] u_e[c] / sum_e p_e[c]            each of the D channels by itself
///   y      = rope( norm * x / sqrt(mean(x^2) + eps) )      the last R channels, as adjacent pairs,
///                                                          by the angle of positions[i]
///   cache[slots[i]] = row( transform(y) )
///
/// gather[i,e] says where entry e is: -1 nowhere (before the sequence), k < T token k of this step
/// (u and z from u_z, plus ape[e mod A], as compress_state_write adds it), k >= T slot k - T of the
/// state. Entries of the row's own block (the last A) are all somewhere. positions[i] is that of
/// the first token of the block; a row of the table is c_0 .. c_{R/2-1} s_0 .. s_{R/2-1}. slots[i]
/// = -1 skips row i, whatever else it says; two rows must not share a slot. The fields are a row of
/// cache_row.h of D channels; the scale of e4m3 is a power of two. Views may be strided.
/// float32 throughout; sums run over entries in ascending order, squares in 64 partial sums. With
/// activations = kBf16, x is rounded to bf16, and y before a transform; kF32 rounds neither. The
/// row is rounded once, or as quantised rows are. NaN and +inf in z make the row NaN, and -inf an
/// entry that counts nothing (all of a channel: NaN).
/// Deterministic; rows are independent, and have the same bits whether an entry comes from the step
/// or from the state.
/// Errors: InvalidArgument for a position outside [0, P), a gather entry outside [-1, T + N*Q) or
/// missing in the own block, slots outside [-1, M*S), a W that is neither D nor 2D, fields that are
/// no row of D channels, a transform of a D that is no power of two, activations that are neither
/// bf16 nor f32, or an eps that is negative or NaN.
/// Source: DeepSeek-V4, inference/model.py (Compressor); vLLM, fused_compress_quant_cache.
struct CompressPool {
  static constexpr KernelInfo kInfo{
      .name = "compress_pool",
      .signature =
          "u_z[T,J]:bf16|f32 state_u[N,Q,W]:f32 state_z[N,Q,W]:f32 ape[A,W]:f32 gather[I,E]:i64 "
          "positions[I]:i32 norm[D]:bf16|f32 table[P,R]:f32 slots[I]:i64 -> "
          "values[M,S,C]:bf16|f32|e4m3|u8 rope?[M,S,R]:bf16 scales?[M,S,G]:ue8m0|f32|e4m3",
      .limits = "J==2*W, A>=1, E*D==A*W, R%2==0, R<=D",
      .equation = "x = sum_e softmax_e(z) u per channel; cache[slot] = row(H(rope(rmsnorm(x))))",
      .source = "DeepSeek-V4; vLLM",
      .flops = "I*(D*(6*E+4)+3*R)",
  };

  struct Args {
    View u_z, state_u, state_z, ape, gather, positions, norm, table, slots, values, rope = {},
                                                                                    scales = {};
    float eps = 1e-6f;
    Format activations = Format::kBf16;
    CompressTransform transform = CompressTransform::kNone;

    CacheFields fields() const { return {.values = values, .rope = rope, .scales = scales}; }
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.u_z,  &a.state_u, &a.state_z, &a.ape,    &a.gather, &a.positions,
                      &a.norm, &a.table,   &a.slots,   &a.values, &a.rope,   &a.scales};
  }

  static Cost cost(const Args& a);

  /// Entries and rows; of the table only the rows of these positions.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  /// The pooled rows in float32.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<CompressStateWrite> compress_state_write_cpu;
extern const VariantTable<CompressStateWrite> compress_state_write_cuda;
extern const VariantTable<CompressPool> compress_pool_cpu;
extern const VariantTable<CompressPool> compress_pool_cuda;

}  // namespace fathom
