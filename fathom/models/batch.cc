#include "fathom/models/batch.h"

#include <algorithm>

#include "fathom/base/checked_math.h"

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
  slots_.reserve(t);
  for (Range* range : {&prefill_, &decode_}) {
    range->query_offsets.reserve(r + 1);
    range->kv_lens.reserve(r);
    range->block_table.reserve(r * static_cast<size_t>(pages));
  }
}

// Copies of the request with the fewest keys, behind the requests of the range.
void BatchBuffer::add_copies(int64_t count, int64_t width, int64_t first_token, Range& range) {
  const auto shortest = std::ranges::min_element(range.kv_lens) - range.kv_lens.begin();
  const auto token = static_cast<size_t>(first_token + shortest);
  const auto table = range.block_table.begin();
  for (auto b = static_cast<int64_t>(range.kv_lens.size()); b < count; ++b) {
    logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
    token_ids_.push_back(token_ids_[token]);
    positions_.push_back(positions_[token]);
    slots_.push_back(-1);
    range.query_offsets.push_back(range.query_offsets.back() + 1);
    range.kv_lens.push_back(range.kv_lens[static_cast<size_t>(shortest)]);
    std::copy_n(table + shortest * width, width, table + b * width);
  }
}

Status BatchBuffer::add_range(std::span<const SequenceStep> requests,
                              const DecodePadding& padding,
                              Range& range,
                              TokenRange& out) {
  const auto begin = static_cast<int64_t>(token_ids_.size());
  const auto given = static_cast<int64_t>(requests.size());
  const int64_t count = given == 0 ? 0 : std::max(given, padding.requests);
  int64_t width = given == 0 ? 0 : padding.pages;
  for (const SequenceStep& r : requests) {
    const auto end = r.cached + static_cast<int64_t>(r.tokens.size());
    width = std::max(width, ceil_div(end, page_size_));
  }
  range.query_offsets.assign(1, 0);
  range.kv_lens.clear();
  range.block_table.assign(static_cast<size_t>(count * width), 0);
  for (int64_t b = 0; b < given; ++b) {
    const SequenceStep& r = requests[static_cast<size_t>(b)];
    const auto n = static_cast<int64_t>(r.tokens.size());
    const int64_t num_pages = ceil_div(r.cached + n, page_size_);
    if (n == 0 || r.cached < 0 || static_cast<int64_t>(r.pages.size()) < num_pages) {
      return invalid_argument(str_cat("request ", b, " of a step has ", n, " new tokens after ",
                                      r.cached, " and ", static_cast<int64_t>(r.pages.size()),
                                      " pages, expected at least one token and ", num_pages,
                                      " pages"));
    }
    const auto first = static_cast<int64_t>(token_ids_.size());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = r.cached + i;
      const int32_t page = r.pages[static_cast<size_t>(position / page_size_)];
      token_ids_.push_back(r.tokens[static_cast<size_t>(i)]);
      positions_.push_back(static_cast<int32_t>(position));
      slots_.push_back(int64_t{page} * page_size_ + position % page_size_);
      const bool last = i + 1 == n;
      if (r.logits == LogitRows::kAll || (r.logits == LogitRows::kLast && last)) {
        logit_rows_.push_back(static_cast<int32_t>(first + i));
      }
    }
    range.query_offsets.push_back(static_cast<int32_t>(first + n - begin));
    range.kv_lens.push_back(static_cast<int32_t>(r.cached + n));
    std::copy_n(r.pages.begin(), num_pages, range.block_table.begin() + b * width);
  }
  if (count > given) {
    FATHOM_CHECK(static_cast<int64_t>(token_ids_.size()) - begin == given, "one token each");
    add_copies(count, width, begin, range);
  }
  out.token_begin = begin;
  out.num_tokens = static_cast<int64_t>(token_ids_.size()) - begin;
  out.query_offsets = range.query_offsets;
  out.kv_lens = range.kv_lens;
  out.query_offsets_view = vector_view(range.query_offsets, "B+1");
  out.kv_lens_view = vector_view(range.kv_lens, "B");
  out.block_table = make_view(range.block_table.data(), {count, width}, Format::kI32, "B,M");
  return {};
}

Result<Batch> BatchBuffer::build(std::span<const SequenceStep> prefill,
                                 std::span<const SequenceStep> decode,
                                 const DecodePadding& padding) {
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  logit_rows_.clear();
  Batch batch;
  FATHOM_TRY(add_range(prefill, {}, prefill_, batch.attention.prefill));
  FATHOM_TRY(add_range(decode, padding, decode_, batch.attention.decode));
  batch.token_ids = vector_view(token_ids_, "T");
  batch.attention.positions = vector_view(positions_, "T");
  batch.attention.slots = vector_view(slots_, "T");
  batch.logit_rows = vector_view(logit_rows_, "R");
  return batch;
}

}  // namespace fathom
