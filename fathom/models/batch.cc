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

int64_t blocks_of(const CacheLayout& layout, const SequenceStep& step) {
  return step.parents.empty()
             ? layout.blocks_for(step.cached + static_cast<int64_t>(step.tokens.size()))
             : layout.blocks_for_tree(step.before(), std::ssize(step.parents));
}

void BatchBuffer::reserve(int64_t tokens, int64_t requests, int64_t pages, int64_t tree_tokens) {
  const auto t = static_cast<size_t>(tokens);
  const auto r = static_cast<size_t>(requests);
  const auto trees = static_cast<size_t>(tree_tokens);
  for (auto* array : {&token_ids_, &positions_, &logit_rows_})
    array->reserve(t);
  for (auto& slots : slots_)
    slots.reserve(t);
  slot_views_.reserve(slots_.size());
  pooled_views_.reserve(slots_.size());
  for (size_t g = 0; g < pooled_.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.pool_ring < 0) continue;
    const size_t rows = t / static_cast<size_t>(group.tokens_per_row) + 2 * r + trees;
    pooled_[g].gather.reserve(rows * static_cast<size_t>(group.pool_entries));
    pooled_[g].positions.reserve(rows);
    pooled_[g].slots.reserve(rows);
    pooled_[g].tree_masks.reserve(trees);
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
  if (!r.parents.empty()) FATHOM_TRY(check_tree(r, index));
  const int64_t needs = blocks_of(layout_, r);
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
  return {};
}

Status BatchBuffer::check_tree(const SequenceStep& r, int64_t index) const {
  if (!layout_.keeps_rows()) {
    return invalid_argument(str_cat("request ", index, " of a step is a tree of tokens, and the ",
                                    "cache of this model keeps no rows that nodes could have, "
                                    "expected a chain"));
  }
  if (r.tokens.empty() || r.parents.size() < r.tokens.size() || r.before() < 0) {
    return invalid_argument(str_cat("request ", index, " of a step has ", r.tokens.size(),
                                    " new tokens after ", r.cached, " in a tree of ",
                                    r.parents.size(), ", expected a tree that holds the new ones"));
  }
  if (std::ssize(r.parents) - 1 > layout_.slack()) {
    return invalid_argument(str_cat("request ", index, " of a step is a tree of ", r.parents.size(),
                                    " rows, and the rings of this model can be ", "cut back by ",
                                    layout_.slack(), " tokens, expected at most ",
                                    layout_.slack() + 1, " rows"));
  }
  for (size_t i = 0; i < r.parents.size(); ++i) {
    if (r.parents[i] >= -1 && r.parents[i] < static_cast<int32_t>(i)) continue;
    return invalid_argument(str_cat("row ", i, " of a tree follows row ", r.parents[i],
                                    ", expected -1 to ", static_cast<int64_t>(i) - 1));
  }
  return {};
}

// The tree of a request of a range with trees; a chain is one too.
Status BatchBuffer::set_tree(const SequenceStep& r, int64_t index) {
  const auto n = static_cast<int64_t>(r.tokens.size());
  const int64_t rows = r.parents.empty() ? n : std::ssize(r.parents);
  const int64_t roots = r.parents.empty() ? 1 : TreeRows::num_roots(r.parents);
  if (rows - roots > kMostTreeRows) {
    return invalid_argument(str_cat("request ", index, " of a step with trees has ", rows,
                                    " rows of its own, expected at most ", kMostTreeRows,
                                    " behind a root"));
  }
  if (r.parents.empty()) {
    tree_.set_chain(r.cached, n);
  } else {
    tree_.set(r.before(), r.parents);
  }
  return {};
}

// What the new tokens of tree_ see, and the rows that they complete on their paths.
void BatchBuffer::add_tree(const SequenceStep& r, int64_t first_token) {
  const int64_t begin = tree_.size() - static_cast<int64_t>(r.tokens.size());
  tree_begins_.push_back(static_cast<int32_t>(tree_.begin()));
  for (int64_t row = begin; row < tree_.size(); ++row)
    tree_masks_.push_back(static_cast<int64_t>(tree_.token(row).mask));
  for (size_t g = 0; g < pooled_.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.pool_ring < 0) continue;
    const CacheGroup& ring = layout_.groups[static_cast<size_t>(group.pool_ring)];
    Pooled& rows = pooled_[g];
    tree_.pool(group.tokens_per_row, group_tree_);
    for (int64_t row = begin; row < tree_.size(); ++row) {
      const auto at = static_cast<size_t>(row);
      const int64_t place = group_tree_.places[at];
      const int64_t first = tree_.position(row) + 1 - group.tokens_per_row;
      const int64_t page = place < 0 ? 0 : r.pages[static_cast<size_t>(place / group.rows)];
      rows.tree_masks.push_back(static_cast<int64_t>(group_tree_.masks[at]));
      rows.slots.push_back(place < 0 ? -1 : page * group.rows + place % group.rows);
      rows.positions.push_back(place < 0 ? 0 : static_cast<int32_t>(first));
      for (int64_t e = 0; e < group.pool_entries; ++e) {
        const int64_t position = first + group.tokens_per_row - group.pool_entries + e;
        int64_t entry = -1;
        if (place >= 0 && position >= 0) {
          const int64_t source = place_of_seen(tree_.token(row), position);
          entry = source >= r.cached ? first_token + source - r.cached
                                     : -2 - (r.slot * ring.rows + source % ring.rows);
        }
        rows.gather.push_back(entry);
      }
    }
  }
}

// Copies of requests see what those see that they copy, and complete nothing.
void BatchBuffer::add_tree_copies(int64_t count, int64_t queries, const Range& range) {
  const auto shortest = std::ranges::min_element(range.kv_lens) - range.kv_lens.begin();
  const auto add = [&](std::vector<int64_t>& masks) {
    for (int64_t i = 0; i < count * queries; ++i)
      masks.push_back(masks[static_cast<size_t>(shortest * queries + i % queries)]);
  };
  add(tree_masks_);
  for (int64_t b = 0; b < count; ++b)
    tree_begins_.push_back(tree_begins_[static_cast<size_t>(shortest)]);
  for (size_t g = 0; g < pooled_.size(); ++g) {
    if (layout_.groups[g].pool_ring >= 0) add(pooled_[g].tree_masks);
  }
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
    const int64_t most = tree_begins_.empty() ? ceil_div(count, block) : count;
    for (int64_t i = 0; i < most; ++i) {
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
      if (!rows.tree_masks.empty()) views.tree_masks = vector_view(rows.tree_masks, "T");
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
  for (int64_t b = 0; b < given; ++b) {
    FATHOM_TRY(check(requests[static_cast<size_t>(b)], b));
    width = std::max(width, blocks_of(layout_, requests[static_cast<size_t>(b)]));
  }
  const bool trees =
      std::ranges::any_of(requests, [](const SequenceStep& r) { return !r.parents.empty(); });
  tree_masks_.clear();
  tree_begins_.clear();
  range.query_offsets.assign(1, 0);
  range.kv_lens.clear();
  range.request_slots.clear();
  range.block_table.assign(static_cast<size_t>(count * width), 0);
  for (int64_t b = 0; b < given; ++b) {
    const SequenceStep& r = requests[static_cast<size_t>(b)];
    if (trees) FATHOM_TRY(set_tree(r, b));
    const auto n = static_cast<int64_t>(r.tokens.size());
    const auto first = static_cast<int64_t>(token_ids_.size());
    const int64_t logits = r.num_logits();
    for (int64_t i = 0; i < n; ++i) {
      token_ids_.push_back(r.tokens[static_cast<size_t>(i)]);
      const int64_t position =
          r.parents.empty() ? r.cached + i : tree_.position(tree_.size() - n + i);
      positions_.push_back(static_cast<int32_t>(position));
      const int64_t behind = n - r.padding - i;  // tokens from this one on that are read
      if (behind > 0 && behind <= logits) logit_rows_.push_back(static_cast<int32_t>(first + i));
    }
    most_logits = std::max(most_logits, logits);
    add_slots(r);
    if (trees) {
      add_tree(r, first);
    } else {
      add_pooled(r, first, n);
    }
    range.query_offsets.push_back(static_cast<int32_t>(first + n - begin));
    range.kv_lens.push_back(static_cast<int32_t>(r.cached + n));
    range.request_slots.push_back(r.slot);
    std::copy_n(r.pages.begin(), blocks_of(layout_, r), range.block_table.begin() + b * width);
  }
  if (count > given) {
    const auto queries = static_cast<int64_t>(requests[0].tokens.size());
    FATHOM_CHECK(static_cast<int64_t>(token_ids_.size()) - begin == given * queries,
                 "copies are of requests with equally many tokens");
    if (trees) add_tree_copies(count - given, queries, range);
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
  if (trees) {
    out.tree_masks = vector_view(tree_masks_, "T");
    out.tree_begins = vector_view(tree_begins_, "B");
  }
  return {};
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
    rows.tree_masks.clear();
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
