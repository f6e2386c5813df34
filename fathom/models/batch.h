// Batch: what one forward pass consumes, as a structure of arrays.
//
//   tokens   0 ........ prefill.num_tokens | ............ T
//            [ prefill requests, in order  ] [ decode requests, in order ]
//
// Kernels that work row by row see all T tokens at once; only attention works per range.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fathom/layers/attention/mla.h"
#include "fathom/layers/probe.h"
#include "fathom/models/cache_layout.h"
#include "fathom/models/tree/tree_rows.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// The rows of a group that may be complete after a step, as many for each request as its tokens
/// can complete at most: where the entries of each are, and where it goes (CompressPool). Of a
/// range with trees as many as tokens, since each may complete one on its own path.
struct PooledRows {
  View gather;     ///< [I, entries] i64
  View positions;  ///< [I] i32, of the first token of the row's own block
  View slots;      ///< [I] i64, -1: not complete
  /// [tokens of the decode range] i64, if that has trees: rows of its tree that each token sees,
  /// as TokenRange::tree_masks says of the tokens.
  View tree_masks{};
};

struct Batch {
  View token_ids;            ///< [T] i32
  AttentionBatch attention;  ///< positions, and the two ranges with lengths and pages
  /// [R] i32, tokens of the step whose logits are wanted; absent: all of them.
  View logit_rows;
  std::span<const View> slots;         ///< [T] i64 of each cache group: where a token's row goes
  std::span<const PooledRows> pooled;  ///< of each cache group that pools its rows
  std::span<const GroupRows> cache;    ///< of each cache group
  /// [T, H] outside the arena: where the state after the final norm goes, so that it outlives the
  /// step. Absent: it lies in the arena.
  View hidden;
  /// [T] i32, of a draft pass: the row of the states that each token reads. Absent: its own.
  View state_rows;
  const Probe* probe = nullptr;  ///< null, or taps for tests

  int64_t num_tokens() const { return attention.num_tokens(); }

  int64_t num_logits() const { return logit_rows.present() ? logit_rows.dim(0) : num_tokens(); }

  /// The rows of one field of a group in its layer `layer` (an index into CacheGroup::layers), and
  /// where the tokens of the step go.
  CacheRows rows_of(size_t group, size_t layer, size_t field = 0) const {
    return {.rows = cache[group].at(layer, field), .slots = slots[group]};
  }
};

/// What a pass gives. The views lie in the activation arena and live until its reset.
struct ForwardOut {
  View logits;  ///< [R, V] f32
  View hidden;  ///< [T, H], after the final norm: what the head and the draft layer read
};

/// Which tokens of a request need logits.
enum class LogitRows : uint8_t { kNone, kLast, kAll };

/// One request's part of a step.
struct SequenceStep {
  std::span<const int32_t> tokens = {};  ///< new tokens, at least one
  int64_t cached = 0;  ///< tokens in its pages already: the position of the first new one
  /// Its blocks, enough for cached + new tokens: a number is that of a page in every group.
  std::span<const int32_t> pages = {};
  int32_t slot = -1;  ///< where its rings and states lie, if the model has such groups
  LogitRows logits = LogitRows::kLast;
  /// So many of the tokens, the last ones, only give the step a shape that it has often: nothing is
  /// read of them, their rows of the cache hold anything, and `logits` means those before them.
  int64_t padding = 0;
  /// Of a tree: for each of its last rows, the new ones included, the one that it follows, counted
  /// from the first of them; -1: what lies before all of them. A token attends to that and to its
  /// own path, and its position is behind them; rows lie one behind the other all the same. At most
  /// kMostTreeRows (tree_keys.h), and the root before them if all of them follow it; where the
  /// cache has rings, no more than may be cut back (CacheLayout::slack) and a root. Empty: a chain.
  /// For decode, and layouts in which nodes have rows (CacheLayout::keeps_rows).
  std::span<const int32_t> parents = {};

  int64_t num_logits() const {
    const auto read = static_cast<int64_t>(tokens.size()) - padding;
    return logits == LogitRows::kAll ? read : logits == LogitRows::kLast ? 1 : 0;
  }

  /// Tokens before its tree, or before the new ones of a chain.
  int64_t before() const {
    const auto n = static_cast<int64_t>(tokens.size());
    return parents.empty() ? cached : cached + n - static_cast<int64_t>(parents.size());
  }
};

/// Blocks that a request's part of a step reads and writes.
int64_t blocks_of(const CacheLayout& layout, const SequenceStep& step);

/// The decode range as it is made for a GPU, whose captured steps have fixed shapes. Requests that
/// are not there are copies of the shortest one: they choose its experts and read its keys, both of
/// which are read anyway, and write none. The range then has TokenRange::fixed_keys.
struct DecodePadding {
  int64_t requests = 0;  ///< at least so many, if there are any
  int64_t pages = 0;     ///< at least so many columns of the block table
};

/// Owns the arrays of a batch. Reused from step to step; allocates only when a step is larger than
/// every one before.
class BatchBuffer {
 public:
  explicit BatchBuffer(CacheLayout layout)
      : layout_(std::move(layout)), slots_(layout_.groups.size()), pooled_(layout_.groups.size()) {}

  const CacheLayout& layout() const { return layout_; }

  /// Room for steps of so many tokens, with so many requests in each range, of so many pages each.
  /// `tree_tokens`: of a decode range with trees, at most.
  void reserve(int64_t tokens, int64_t requests, int64_t pages, int64_t tree_tokens);

  /// The batch of these requests. Valid until the next call. The caller adds `cache`.
  /// Errors: InvalidArgument for a request without tokens, with too few pages or without a slot,
  /// and for a tree whose rows follow later ones, in prefill or in a cache that takes none, or that
  /// is larger than a mask, which goes for chains beside trees too. Padding needs decode requests
  /// of equally many tokens, which the copies have too. Each request and each copy then counts for
  /// as many rows of logits as the one with the most; rows that nobody asked for come last.
  Result<Batch> build(std::span<const SequenceStep> prefill,
                      std::span<const SequenceStep> decode,
                      const DecodePadding& padding = {});

 private:
  struct Range {
    std::vector<int32_t> query_offsets;
    std::vector<int32_t> kv_lens;
    std::vector<int32_t> block_table;
    std::vector<int32_t> request_slots;
  };

  struct Pooled {
    std::vector<int64_t> gather;  // -2 and below: slots of the ring, until the tokens are counted
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    std::vector<int64_t> tree_masks;
  };

  Status add_range(std::span<const SequenceStep> requests,
                   const DecodePadding& padding,
                   Range& range,
                   TokenRange& out);
  Status check(const SequenceStep& request, int64_t index) const;
  Status check_tree(const SequenceStep& request, int64_t index) const;
  Status set_tree(const SequenceStep& request, int64_t index);
  void add_tree(const SequenceStep& request, int64_t first_token);
  void add_tree_copies(int64_t count, int64_t queries, const Range& range);
  void add_slots(const SequenceStep& request);
  void add_pooled(const SequenceStep& request, int64_t first_token, int64_t count);
  void finish_pooled();
  void add_copies(int64_t count, int64_t width, int64_t queries, int64_t first_token, Range& range);

  CacheLayout layout_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<std::vector<int64_t>> slots_;  // of each group
  std::vector<View> slot_views_;
  std::vector<Pooled> pooled_;  // of each group
  std::vector<PooledRows> pooled_views_;
  std::vector<int32_t> logit_rows_;
  // Of a decode range with trees; empty without.
  std::vector<int64_t> tree_masks_;
  std::vector<int32_t> tree_begins_;
  TreeRows tree_;  // of the request at hand
  GroupTree group_tree_;
  Range prefill_;
  Range decode_;
};

}  // namespace fathom
