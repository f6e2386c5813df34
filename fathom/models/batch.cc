#include "fathom/models/batch.h"

#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/tree_keys.h"

namespace fathom {
namespace {

template <class T>
View vector_view(std::vector<T>& values, const char* axes) {
  return make_view(values.data(), {static_cast<int64_t>(values.size())},
                   sizeof(T) == 8 ? Format::kI64 : Format::kI32, axes);
}

}  // namespace

void BatchBuffer::reserve(int64_t tokens, int64_t requests, int64_t pages) {
  const auto t = static_cast<size_t>(tokens);
  const auto r = static_cast<size_t>(requests);
  for (auto* array : {&token_ids_, &positions_, &logit_rows_})
    array->reserve(t);
  for (auto& slots : slots_)
    slots.reserve(t);
  slot_views_.reserve(slots_.size());
  pooled_views_.reserve(slots_.size());
  for (size_t g = 0; g < pooled_.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.pool_ring < 0) continue;
    const size_t rows = t / static_cast<size_t>(group.tokens_per_row) + 2 * r;
    pooled_[g].gather.reserve(rows * static_cast<size_t>(group.pool_entries));
    pooled_[g].positions.reserve(rows);
    pooled_[g].slots.reserve(rows);
  }
  for (Range* range : {&prefill_, &decode_}) {
    range->query_offsets.reserve(r + 1);
    range->kv_lens.reserve(r);
    range->block_table.reserve(r * static_cast<size_t>(pages));
    range->request_slots.reserve(r);
  }
  tree_masks_.reserve(t);
  tree_begins_.reserve(r);
}

// Copies of the request with the fewest keys, behind the requests of the range.
void BatchBuffer::add_copies(
    int64_t count, int64_t width, int64_t queries, int64_t first_token, Range& range) {
  const auto shortest = std::ranges::min_element(range.kv_lens) - range.kv_lens.begin();
  const auto request = static_cast<size_t>(shortest);
  const auto table = range.block_table.begin();
  for (auto b = static_cast<int64_t>(range.kv_lens.size()); b < count; ++b) {
    for (int64_t q = 0; q < queries; ++q) {
      const auto token = static_cast<size_t>(first_token + shortest * queries + q);
      token_ids_.push_back(token_ids_[token]);
      positions_.push_back(positions_[token]);
      for (auto& slots : slots_)
        slots.push_back(-1);
    }
    add_pooled({}, 0, queries);
    range.query_offsets.push_back(range.query_offsets.back() + static_cast<int32_t>(queries));
    range.kv_lens.push_back(range.kv_lens[request]);
    range.request_slots.push_back(range.request_slots[request]);
    std::copy_n(table + shortest * width, width, table + b * width);
  }
}

Status BatchBuffer::check(const SequenceStep& r, int64_t index) const {
  const auto n = static_cast<int64_t>(r.tokens.size());
  const auto has = static_cast<int64_t>(r.pages.size());
  const int64_t needs = layout_.blocks_for(r.cached + n);
  if (n == 0 || r.cached < 0 || has < needs) {
    return invalid_argument(str_cat("request ", index, " of a step has ", n, " new tokens after ",
                                    r.cached, " and ", has,
                                    " pages, expected at least one token and ", needs, " pages"));
  }
  if (r.padding < 0 || r.padding >= n) {
    return invalid_argument(str_cat("request ", index, " of a step has ", n, " new tokens, ",
                                    r.padding, " of them padding, expected at least one more"));
  }
  if (r.slot < 0 && layout_.has_slots()) {
    return invalid_argument(str_cat("request ", index,
                                    " of a step has no slot, and this model "
                                    "keeps state of each sequence"));
  }
  return r.parents.empty() ? Status{} : check_tree(r, index);
}

Status BatchBuffer::check_tree(const SequenceStep& r, int64_t index) const {
  if (!layout_.keeps_rows()) {
    return invalid_argument(str_cat("request ", index, " of a step is a tree of tokens, and the ",
                                    "cache of this model does not keep a row of each token"));
  }
  if (r.parents.size() < r.tokens.size() || r.before() < 0) {
    return invalid_argument(str_cat("request ", index, " of a step has ", r.tokens.size(),
                                    " new tokens after ", r.cached, " in a tree of ",
                                    r.parents.size(), ", expected a tree that holds the new ones"));
  }
  for (size_t i = 0; i < r.parents.size(); ++i) {
    if (r.parents[i] >= -1 && r.parents[i] < static_cast<int32_t>(i)) continue;
    return invalid_argument(str_cat("row ", i, " of a tree follows row ", r.parents[i],
                                    ", expected -1 to ", static_cast<int64_t>(i) - 1));
  }
  return {};
}

// Of new token `token`: behind what it attends to.
int32_t BatchBuffer::position_of(const SequenceStep& r, int64_t token) const {
  if (r.parents.empty()) return static_cast<int32_t>(r.cached + token);
  const auto first_new = static_cast<int64_t>(r.parents.size() - r.tokens.size());
  auto depth = static_cast<int32_t>(r.before());
  for (int32_t at = r.parents[static_cast<size_t>(first_new + token)]; at >= 0;
       at = r.parents[static_cast<size_t>(at)])
    ++depth;
  return depth;
}

// Which keys the tokens of a range with trees see, its copies the same as what they copy. A row
// that all others follow lies before the tree as well as within it: it needs no bit.
Status BatchBuffer::add_trees(std::span<const SequenceStep> requests,
                              int64_t num_requests,
                              TokenRange& out) {
  tree_masks_.clear();
  tree_begins_.clear();
  for (size_t b = 0; b < requests.size(); ++b) {
    const SequenceStep& r = requests[b];
    const auto n = static_cast<int64_t>(r.tokens.size());
    const auto parent_of = [&](int64_t row) {
      return r.parents.empty() ? row - 1 : int64_t{r.parents[static_cast<size_t>(row)]};
    };
    const int64_t rows = r.cached + n - r.before();
    const bool has_root = r.parents.empty() || std::ranges::count(r.parents, -1) == 1;
    const int64_t first_row = has_root ? 1 : 0;
    if (rows - first_row > kMostTreeRows) {
      return invalid_argument(str_cat("request ", b, " of a step with trees has ", rows,
                                      " rows of its own, expected at most ", kMostTreeRows,
                                      " behind a root"));
    }
    for (int64_t row = rows - n; row < rows; ++row) {
      uint64_t mask = 0;
      for (int64_t at = row; at >= first_row; at = parent_of(at))
        mask |= uint64_t{1} << (at - first_row);
      tree_masks_.push_back(static_cast<int64_t>(mask));
    }
    tree_begins_.push_back(static_cast<int32_t>(r.before() + first_row));
  }
  const auto shortest = std::ranges::min_element(out.kv_lens) - out.kv_lens.begin();
  const auto queries = static_cast<int64_t>(requests[0].tokens.size());
  for (auto b = static_cast<int64_t>(requests.size()); b < num_requests; ++b) {
    for (int64_t q = 0; q < queries; ++q)
      tree_masks_.push_back(tree_masks_[static_cast<size_t>(shortest * queries + q)]);
    tree_begins_.push_back(tree_begins_[static_cast<size_t>(shortest)]);
  }
  out.tree_masks = vector_view(tree_masks_, "T");
  out.tree_begins = vector_view(tree_begins_, "B");
  return {};
}

// Where the rows of the new tokens go in each group. A ring has room for the last of them alone,
// and an entry of several tokens is written when its last token comes.
void BatchBuffer::add_slots(const SequenceStep& r) {
  const auto n = static_cast<int64_t>(r.tokens.size());
  for (size_t g = 0; g < slots_.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    std::vector<int64_t>& slots = slots_[g];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = r.cached + i;
      int64_t slot = -1;
      switch (group.extent) {
        case CacheExtent::kTokens:
          if ((position + 1) % group.tokens_per_row == 0) {
            const int64_t page = r.pages[static_cast<size_t>(position / layout_.block_tokens)];
            slot = page * group.rows + position % layout_.block_tokens / group.tokens_per_row;
          }
          break;
        case CacheExtent::kWindow:
          if (group.in_pieces || n - i <= group.rows)
            slot = r.slot * group.rows + position % group.rows;
          break;
        case CacheExtent::kState:
          break;
      }
      slots.push_back(slot);
    }
  }
}

// Rows that `count` tokens of a request complete, from token `first_token` of the step on; no row
// of a request without pages is complete. Their number depends on the shape of the step alone.
void BatchBuffer::add_pooled(const SequenceStep& r, int64_t first_token, int64_t count) {
  for (size_t g = 0; g < pooled_.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.pool_ring < 0) continue;
    const CacheGroup& ring = layout_.groups[static_cast<size_t>(group.pool_ring)];
    Pooled& rows = pooled_[g];
    const int64_t block = group.tokens_per_row;
    const int64_t end = r.pages.empty() ? 0 : r.cached + count;
    for (int64_t i = 0; i < ceil_div(count, block); ++i) {
      const int64_t first = (r.cached / block + i) * block;
      const bool complete = first + block <= end;
      const int64_t page =
          complete ? r.pages[static_cast<size_t>(first / layout_.block_tokens)] : 0;
      rows.slots.push_back(complete ? page * group.rows + first % layout_.block_tokens / block
                                    : -1);
      rows.positions.push_back(complete ? static_cast<int32_t>(first) : 0);
      for (int64_t e = 0; e < group.pool_entries; ++e) {
        const int64_t position = first + block - group.pool_entries + e;
        int64_t entry = -1;
        if (complete && position >= r.cached) {
          entry = first_token + position - r.cached;
        } else if (complete && position >= 0) {
          entry = -2 - (r.slot * ring.rows + position % ring.rows);
        }
        rows.gather.push_back(entry);
      }
    }
  }
}

// Slots of rings are counted from behind the tokens of the step.
void BatchBuffer::finish_pooled() {
  const auto T = static_cast<int64_t>(token_ids_.size());
  pooled_views_.clear();
  for (size_t g = 0; g < pooled_.size(); ++g) {
    Pooled& rows = pooled_[g];
    PooledRows views;
    if (layout_.groups[g].pool_ring >= 0) {
      for (int64_t& entry : rows.gather)
        if (entry < -1) entry = T - 2 - entry;
      const auto count = static_cast<int64_t>(rows.slots.size());
      views.gather = make_view(rows.gather.data(), {count, layout_.groups[g].pool_entries},
                               Format::kI64, "rows,entries");
      views.positions = vector_view(rows.positions, "rows");
      views.slots = vector_view(rows.slots, "rows");
    }
    pooled_views_.push_back(views);
  }
}

Status BatchBuffer::add_range(std::span<const SequenceStep> requests,
                              const DecodePadding& padding,
                              Range& range,
                              TokenRange& out) {
  const auto begin = static_cast<int64_t>(token_ids_.size());
  const auto first_logit = static_cast<int64_t>(logit_rows_.size());
  const auto given = static_cast<int64_t>(requests.size());
  int64_t most_logits = 0;  // of a request
  const int64_t count = given == 0 ? 0 : std::max(given, padding.requests);
  int64_t width = given == 0 ? 0 : padding.pages;
  for (const SequenceStep& r : requests) {
    width = std::max(width, layout_.blocks_for(r.cached + static_cast<int64_t>(r.tokens.size())));
  }
  range.query_offsets.assign(1, 0);
  range.kv_lens.clear();
  range.request_slots.clear();
  range.block_table.assign(static_cast<size_t>(count * width), 0);
  for (int64_t b = 0; b < given; ++b) {
    const SequenceStep& r = requests[static_cast<size_t>(b)];
    FATHOM_TRY(check(r, b));
    const auto n = static_cast<int64_t>(r.tokens.size());
    const auto first = static_cast<int64_t>(token_ids_.size());
    const int64_t logits = r.num_logits();
    for (int64_t i = 0; i < n; ++i) {
      token_ids_.push_back(r.tokens[static_cast<size_t>(i)]);
      positions_.push_back(position_of(r, i));
      const int64_t behind = n - r.padding - i;  // tokens from this one on that are read
      if (behind > 0 && behind <= logits) logit_rows_.push_back(static_cast<int32_t>(first + i));
    }
    most_logits = std::max(most_logits, logits);
    add_slots(r);
    add_pooled(r, first, n);
    range.query_offsets.push_back(static_cast<int32_t>(first + n - begin));
    range.kv_lens.push_back(static_cast<int32_t>(r.cached + n));
    range.request_slots.push_back(r.slot);
    std::copy_n(r.pages.begin(), layout_.blocks_for(r.cached + n),
                range.block_table.begin() + b * width);
  }
  if (count > given) {
    const auto queries = static_cast<int64_t>(requests[0].tokens.size());
    FATHOM_CHECK(static_cast<int64_t>(token_ids_.size()) - begin == given * queries,
                 "copies are of requests with equally many tokens");
    add_copies(count, width, queries, begin, range);
  }
  // A request has as many tokens as rows of logits at least, so these are tokens of the range.
  for (auto at = static_cast<int64_t>(logit_rows_.size()) - first_logit;
       padding.requests > 0 && at < count * most_logits; ++at)
    logit_rows_.push_back(static_cast<int32_t>(begin + at));
  out.token_begin = begin;
  out.num_tokens = static_cast<int64_t>(token_ids_.size()) - begin;
  out.query_offsets = range.query_offsets;
  out.kv_lens = range.kv_lens;
  out.query_offsets_view = vector_view(range.query_offsets, "B+1");
  out.kv_lens_view = vector_view(range.kv_lens, "B");
  out.block_table = make_view(range.block_table.data(), {count, width}, Format::kI32, "B,M");
  out.fixed_keys = count > 0 && padding.requests > 0 ? width * layout_.block_tokens : 0;
  if (layout_.has_slots()) out.request_slots = vector_view(range.request_slots, "B");
  const auto is_tree = [](const SequenceStep& r) { return !r.parents.empty(); };
  return std::ranges::any_of(requests, is_tree) ? add_trees(requests, count, out) : Status{};
}

Result<Batch> BatchBuffer::build(std::span<const SequenceStep> prefill,
                                 std::span<const SequenceStep> decode,
                                 const DecodePadding& padding) {
  token_ids_.clear();
  positions_.clear();
  logit_rows_.clear();
  for (auto& slots : slots_)
    slots.clear();
  for (Pooled& rows : pooled_) {
    rows.gather.clear();
    rows.positions.clear();
    rows.slots.clear();
  }
  Batch batch;
  FATHOM_TRY(add_range(prefill, {}, prefill_, batch.attention.prefill));
  FATHOM_TRY(add_range(decode, padding, decode_, batch.attention.decode));
  if (batch.attention.prefill.tree_masks.present()) {
    return invalid_argument("a prompt of a step is a tree of tokens, expected it to decode");
  }
  batch.token_ids = vector_view(token_ids_, "T");
  batch.attention.positions = vector_view(positions_, "T");
  batch.logit_rows = vector_view(logit_rows_, "R");
  slot_views_.clear();
  for (auto& slots : slots_)
    slot_views_.push_back(vector_view(slots, "T"));
  batch.slots = slot_views_;
  finish_pooled();
  batch.pooled = pooled_views_;
  return batch;
}

}  // namespace fathom
