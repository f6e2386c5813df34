// Multi-head attention with a cache of keys and values, whose heads may be shared by several heads
// of queries (grouped-query attention): DeepSeek-MoE.
//
// One kernel serves every phase from the pages of the cache, so that a token has the same bits
// whether it was prefilled, in whatever pieces, decoded, verified or computed again.
#pragma once

#include "fathom/layers/attention/mla.h"

namespace fathom {

struct MhaShape {
  int64_t Nh = 0;              ///< heads of queries
  int64_t Nk = 0;              ///< heads of keys and values, a divisor of Nh
  int64_t D = 0;               ///< channels of a head, all of them rotated
  float softmax_scale = 0.0f;  ///< D^-1/2
  RopeStyle rope_style = RopeStyle::kHalfSplit;
};

/// Weights of one layer.
struct MhaWeights {
  LinearWeight q;  ///< [Nh*D, H]
  RowsWeight kv;   ///< [k; v], [2*Nk*D, H]
  LinearWeight o;  ///< [H, Nh*D]
};

/// What stays the same over the layers and steps of a model.
struct MhaContext {
  MhaShape shape;
  float kv_scale = 1.0f;  ///< of an e4m3 cache: value = code * kv_scale
  View rope_table;        ///< [P, D] f32

  bool present() const { return shape.Nh > 0; }
};

/// y = attention of x [T, H], o_proj included. Writes the step's keys and values to the cache
/// first: a row of it is the rotated keys of all heads, then their values, [M, S, 2*Nk*D].
///
///   o_i = sum over j <= i of softmax_j( D^-1/2 R_i q_i . R_j k_j ) v_j,   R_t the rotation of t
///
/// Source: Vaswani et al., "Attention Is All You Need", 3.2; DeepSeekMoE (arXiv 2401.06066), 2.
/// Errors: those of the kernels.
Status mha_attend(Exec& ex,
                  const MhaContext& m,
                  const MhaWeights& w,
                  const AttentionBatch& batch,
                  const CacheRows& cache,
                  const View& x,
                  const View& y);

}  // namespace fathom
