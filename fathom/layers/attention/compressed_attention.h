// Attention of DeepSeek-V4: one row a token is key and value of all heads. A query sees the rows of
// the last W tokens, and rows that stand for several tokens each:
//
//   x --+-- q_a, q_norm --+-- q_b -- norm of each head, rope ------------------ q ---.
//       |                 '-- indexer: its queries --.                               |
//       +-- kv, kv_norm, rope ---------------> window of the last W tokens ----------+--> attention
//       +-- compressor: a row of every 4 or 128 tokens ------------------------------+    with a
//       |                                            | 4: the index_topk best alone  |    sink
//       '-- indexer: a key of every 4 tokens, weights'                               |      |
//                                                        o_b ( o_a of each group ) <-- rope back
//
//   ratio   rows besides the window                name in the paper
//   0       none                                   -
//   4       index_topk of one row per 4 tokens     compressed sparse attention
//   128     every row of 128 tokens                heavily compressed attention
//
// A token depends on its own position alone: a prompt has the same bits however it is cut. A token
// of a tree of drafts depends on its path: the lists of rows that it attends to are made along it,
// and it sees the compressed rows that its path completes (models/tree/tree_rows.h).
// Source: DeepSeek-V4, inference/model.py (Attention, Compressor, Indexer).
#pragma once

#include <cstdint>
#include <optional>

#include "fathom/kernels/attn/cache_row.h"
#include "fathom/layers/attention/compress_ratio.h"
#include "fathom/layers/attention/index_choice.h"
#include "fathom/layers/probe.h"

namespace fathom {

struct CompressedShape {
  int64_t Nh = 0;      ///< heads
  int64_t Lq = 0;      ///< query latent rank
  int64_t D = 0;       ///< channels of a head and of a row, the last Dr rotary
  int64_t Go = 0;      ///< groups of heads in the output projection
  int64_t Lo = 0;      ///< its rank in each group
  int64_t W = 0;       ///< tokens of the window
  int64_t Hi = 0;      ///< heads of the indexer
  int64_t Di = 0;      ///< channels of its heads
  int64_t topk = 0;    ///< rows that it chooses
  float scale = 0.0f;  ///< D^-1/2
  float eps = 1e-6f;
};

/// Projections of a compressor [2*C, H] (kv above gate), and how its entries are weighed.
struct CompressorWeights {
  RowsWeight kv_gate;
  View ape;   ///< [ratio, C] f32; C is 2 D or 2 Di where rows overlap (ratio 4), else D
  View norm;  ///< [D] or [Di]
  const char* u_z_axes = "";  ///< of its products, [T, 2*C]: static text, "T,4*D"
};

struct CompressedIndexerWeights {
  LinearWeight wq_b;          ///< [Hi*Di, Lq]
  LinearWeight weights_proj;  ///< [Hi, H]
  CompressorWeights keys;
};

struct CompressedWeights {
  CompressRatio ratio = CompressRatio::kNone;
  RowsWeight q_kv_a;                 ///< [Lq + D, H]
  View q_norm;                       ///< [Lq]
  View kv_norm;                      ///< [D]
  View sink;                         ///< [Nh] f32
  LinearWeight q_b;                  ///< [Nh*D, Lq]
  LinearWeight o_a;                  ///< [Go*Lo, Nh/Go*D]
  LinearWeight o_b;                  ///< [H, Go*Lo]
  CompressorWeights rows;            ///< of ratios 4 and 128
  CompressedIndexerWeights indexer;  ///< of ratio 4
};

/// What a compressor has in the cache of one layer, and the rows that this step may complete.
struct CompressorRows {
  View state_u, state_z;          ///< [slots, ring, C] f32
  View state_slots;               ///< [T] i64
  View gather, positions, slots;  ///< PooledRows
  View tree_masks;                ///< of a decode range with trees: [T] i64, PooledRows
  CacheFields fields;             ///< where its rows go
};

/// One layer's part of the cache.
struct CompressedRows {
  CacheFields window;  ///< [slots, ring, ...]
  View window_slots;   ///< [T] i64
  CompressorRows rows;
  CompressorRows keys;
};

struct CompressedContext {
  CompressedShape shape;
  Format index_keys = Format::kMxfp4;
  View window_rope;      ///< table [P, Dr] of layers with a window alone
  View compressed_rope;  ///< of the others
  View request_offsets;  ///< MlaContext's
};

/// Which compressed rows the tokens of a range see: slots of all of them, or, where an indexer
/// chooses among them, how many. Both absent: none.
struct SeenRows {
  View slots;    ///< [T, K] i32
  View lengths;  ///< [T] i32
};

/// Lists of a range that follow from the step alone, not from a layer.
struct RangeLists {
  View window;                            ///< [T, W] i32, slots
  std::optional<SeenRows> sparse, heavy;  ///< of rows of 4 and of 128 tokens
};

/// Adds what a layer of that ratio reads, `cache` being any such layer's part, unless it is there.
/// From the arena. Errors: those of the kernels.
Status add_lists(Exec& ex,
                 const CompressedContext& m,
                 CompressRatio ratio,
                 const AttentionBatch& batch,
                 const TokenRange& range,
                 const CompressedRows& cache,
                 RangeLists& lists);

/// y = attention of x [T, H], the output projection included. Writes the step's rows first.
/// `decode` has the lists of that range, if it has tokens; those of prompts, which may be large,
/// are made here, for this layer alone. A probe gets the slots of the compressed rows of a range as
/// "indexer.slots" [T, K], where an indexer chooses. Errors: those of the kernels.
Status compressed_attend(Exec& ex,
                         const CompressedContext& m,
                         const CompressedWeights& w,
                         const AttentionBatch& batch,
                         const CompressedRows& cache,
                         const RangeLists& decode,
                         const View& x,
                         const View& y,
                         const Probe* probe = nullptr,
                         int layer = 0);

}  // namespace fathom
