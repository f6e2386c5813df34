// DeepSeek sparse attention (DeepSeek-V3.2 report): MLA over the keys that a lightning indexer
// chooses for each query token.
//
//   x --+-- q_a --+-- q_b ----------------> MLA's queries ------------.
//       |         '-- indexer.wq_b -------> queries of the indexer    |
//       +-- indexer.wk ------------------> one key a token, cached    |
//       +-- indexer.weights_proj --------> a weight for each head     |
//       |        I[t,s] = sum_h w[t,h] relu(q[t,h] . k[s])            |
//       |        the index_topk largest of s <= t --------------------+--> absorbed attention over
//       '-- kv_a ------------------------> latents, cached -----------'    these latents alone
//
// A request of at most index_topk tokens has all its keys chosen, so the forms of mla.h serve it
// and nothing is scored; keys of the indexer are written all the same.
#pragma once

#include <cstdint>

#include "fathom/layers/attention/index_choice.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/probe.h"

namespace fathom {

/// Sizes of the indexer.
struct IndexerShape {
  int64_t Hi = 0;    ///< heads, index_n_heads
  int64_t Di = 0;    ///< of a head, index_head_dim
  int64_t topk = 0;  ///< keys of a query token, index_topk
};

/// What is cached of the indexer's keys, and what queries become.
struct IndexerOptions {
  /// bf16 or f32 as they are; e4m3 with a power of two a row, after a Hadamard transform: what the
  /// checkpoints were trained with.
  Format keys = Format::kE4m3;
};

struct IndexerWeights {
  LinearWeight wq_b;          ///< [Hi*Di, Lq]
  LinearWeight wk;            ///< [Di, H]
  View k_norm;                ///< [Di], of a layer norm with a bias
  View k_norm_bias;           ///< [Di]
  LinearWeight weights_proj;  ///< [Hi, H]

  bool present() const { return k_norm.present(); }
};

struct DsaContext {
  IndexerShape shape;
  IndexerOptions options;
};

/// mla_attend with the keys of each token chosen by the indexer: y = attention of x [T, H], o_proj
/// included. Writes latents and keys of the step first.
///
/// Whether a request is scored depends on its own length alone. With `always_absorbed` every
/// request is, so that a token has the same bits however its prompt was cut into steps.
/// A token of a tree chooses among the keys of its own path, as if it were decoded alone.
/// A probe gets the slots of a sparse range as "indexer.slots" [T, topk].
/// Errors: those of mla_attend; Unsupported for a model without a query latent.
Status dsa_attend(Exec& ex,
                  const MlaContext& m,
                  const DsaContext& d,
                  const MlaWeights& w,
                  const IndexerWeights& indexer,
                  const AttentionBatch& batch,
                  const CacheRows& cache,
                  const IndexRows& index,
                  const View& x,
                  const View& y,
                  const Probe* probe = nullptr,
                  int layer = 0);

}  // namespace fathom
