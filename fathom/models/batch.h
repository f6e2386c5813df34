// Batch: what one forward pass consumes, as a structure of arrays.
//
//   tokens   0 ........ prefill.num_tokens | ............ T
//            [ prefill requests, in order  ] [ decode requests, in order ]
//
// Kernels that work row by row see all T tokens at once; only attention works per range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/layers/attention/mla.h"
#include "fathom/layers/probe.h"
#include "fathom/tensor/view.h"

namespace fathom {

struct Batch {
  View token_ids;            ///< [T] i32
  AttentionBatch attention;  ///< positions, slots, and the two ranges with lengths and pages
  /// [R] i32, tokens of the step whose logits are wanted; absent: all of them.
  View logit_rows;
  /// Pages of each layer, draft layers last: [pages, page_size, width].
  std::span<const View> kv;
  const Probe* probe = nullptr;  ///< null, or taps for tests

  int64_t num_tokens() const { return attention.num_tokens(); }

  int64_t num_logits() const { return logit_rows.present() ? logit_rows.dim(0) : num_tokens(); }
};

/// What a forward pass gives. The views lie in the activation arena and live until its reset.
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
  std::span<const int32_t> pages = {};  ///< enough for cached + new tokens
  LogitRows logits = LogitRows::kLast;
};

/// The decode range as it is made for a GPU, whose captured steps have fixed shapes. Requests that
/// are not there are copies of the shortest one: they choose its experts and read its keys, both of
/// which are read anyway, and write none.
struct DecodePadding {
  int64_t requests = 0;  ///< at least so many, if there are any
  int64_t pages = 0;     ///< at least so many columns of the block table
};

/// Owns the arrays of a batch. Reused from step to step; allocates only when a step is larger than
/// every one before.
class BatchBuffer {
 public:
  explicit BatchBuffer(int64_t page_size) : page_size_(page_size) {}

  /// Room for steps of so many tokens, with so many requests in each range, of so many pages each.
  void reserve(int64_t tokens, int64_t requests, int64_t pages);

  /// The batch of these requests. Valid until the next call. The caller adds `kv`.
  /// Errors: InvalidArgument for a request without tokens or with too few pages.
  /// Padding needs decode requests of one token each; rows of logits of copies come last.
  Result<Batch> build(std::span<const SequenceStep> prefill,
                      std::span<const SequenceStep> decode,
                      const DecodePadding& padding = {});

 private:
  struct Range {
    std::vector<int32_t> query_offsets;
    std::vector<int32_t> kv_lens;
    std::vector<int32_t> block_table;
  };

  Status add_range(std::span<const SequenceStep> requests,
                   const DecodePadding& padding,
                   Range& range,
                   TokenRange& out);
  void add_copies(int64_t count, int64_t width, int64_t first_token, Range& range);

  int64_t page_size_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> logit_rows_;
  Range prefill_;
  Range decode_;
};

}  // namespace fathom
