#include "fathom/models/dry/dry_batch.h"

#include <algorithm>
#include <limits>

#include "fathom/base/checked_math.h"

namespace fathom {
namespace {

using Requests = BatchShape::Requests;

// The requests of a range, those that pad it included: what each has is what the others have.
struct Run {
  Requests requests;
  LogitRows logits = LogitRows::kLast;
};

int64_t rows_of_logits(const Run& run) {
  const Requests& r = run.requests;
  if (run.logits == LogitRows::kNone) return 0;
  return r.count * (run.logits == LogitRows::kAll ? r.new_tokens : 1);
}

View numbers(int64_t count, Format format, const char* axes) {
  return make_view(nullptr, {count}, format, axes);
}

Status check(const Requests& r, int64_t& tokens) {
  if (r.count > 0 && (r.new_tokens < 1 || r.cached < 0)) {
    return invalid_argument(str_cat("requests of a step have ", r.new_tokens, " new tokens after ",
                                    r.cached, ", expected at least one token"));
  }
  const auto all = checked_mul(r.count, r.new_tokens);
  const auto sum = all ? checked_add(tokens, *all) : std::nullopt;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto longest = checked_add(r.cached, r.new_tokens);
  if (!sum || *sum > kMost || !longest || *longest > kMost) {
    return invalid_argument(str_cat(r.count, " requests of ", r.new_tokens, " new tokens after ",
                                    r.cached, " in one step, expected at most ", kMost,
                                    " tokens in all"));
  }
  tokens = *sum;
  return {};
}

}  // namespace

Result<DryBatch> DryBatch::create(const CacheLayout& layout, const BatchShape& shape) {
  // A sequence that decodes several tokens wants the logits of each.
  const LogitRows decoded = shape.decode.new_tokens > 1 ? LogitRows::kAll : shape.logits;
  Requests copies = shape.decode;
  copies.count = shape.decode.count == 0
                     ? 0
                     : std::max<int64_t>(shape.padding.requests - shape.decode.count, 0);
  const Run prefill[] = {{shape.prefill, shape.logits}, {shape.more_prefill, shape.logits}};
  const Run decode[] = {{shape.decode, decoded}, {copies, decoded}};

  DryBatch out;
  Batch& batch = out.batch_;
  const size_t groups = layout.groups.size();
  std::vector<int64_t> pooled(groups, 0);
  int64_t tokens = 0;
  int64_t logits = 0;
  const auto add_range = [&](std::span<const Run> runs, int64_t pages, bool trees, Lengths& lengths,
                             TokenRange& range) -> Status {
    range.token_begin = tokens;
    int64_t width = 0;
    for (const Run& run : runs) {
      const Requests& r = run.requests;
      if (r.count == 0) continue;
      FATHOM_TRY(check(r, tokens));
      width = std::max({width, pages, layout.blocks_for(r.cached + r.new_tokens)});
      for (int64_t i = 0; i < r.count; ++i) {
        lengths.query_offsets.push_back(lengths.query_offsets.back() +
                                        static_cast<int32_t>(r.new_tokens));
      }
      lengths.kv_lens.insert(lengths.kv_lens.end(), static_cast<size_t>(r.count),
                             static_cast<int32_t>(r.cached + r.new_tokens));
      logits += rows_of_logits(run);
      for (size_t g = 0; g < groups; ++g) {
        const CacheGroup& group = layout.groups[g];
        if (group.pool_ring >= 0)
          pooled[g] +=
              r.count * (trees ? r.new_tokens : ceil_div(r.new_tokens, group.tokens_per_row));
      }
    }
    const auto count = static_cast<int64_t>(lengths.kv_lens.size());
    range.num_tokens = tokens - range.token_begin;
    range.query_offsets = lengths.query_offsets;
    range.kv_lens = lengths.kv_lens;
    range.query_offsets_view = numbers(count + 1, Format::kI32, "B+1");
    range.kv_lens_view = numbers(count, Format::kI32, "B");
    range.block_table = make_view(nullptr, {count, width}, Format::kI32, "B,M");
    if (layout.has_slots()) range.request_slots = numbers(count, Format::kI32, "B");
    range.fixed_keys = count > 0 && pages > 0 ? width * layout.block_tokens : 0;
    if (trees && range.num_tokens > 0) {
      range.tree_masks = numbers(range.num_tokens, Format::kI64, "T");
      range.tree_begins = numbers(count, Format::kI32, "B");
    }
    return {};
  };
  FATHOM_TRY(add_range(prefill, 0, false, out.prefill_, batch.attention.prefill));
  TokenRange& decoded_range = batch.attention.decode;
  FATHOM_TRY(add_range(decode, shape.padding.pages, shape.trees, out.decode_, decoded_range));

  batch.token_ids = numbers(tokens, Format::kI32, "T");
  batch.attention.positions = numbers(tokens, Format::kI32, "T");
  batch.logit_rows = numbers(logits, Format::kI32, "R");
  out.slots_.assign(groups, numbers(tokens, Format::kI64, "T"));
  batch.slots = out.slots_;
  out.pooled_.resize(groups);
  for (size_t g = 0; g < groups; ++g) {
    if (layout.groups[g].pool_ring < 0) continue;
    out.pooled_[g] = {.gather = make_view(nullptr, {pooled[g], layout.groups[g].pool_entries},
                                          Format::kI64, "rows,entries"),
                      .positions = numbers(pooled[g], Format::kI32, "rows"),
                      .slots = numbers(pooled[g], Format::kI64, "rows"),
                      .tree_masks = decoded_range.tree_masks};
  }
  batch.pooled = out.pooled_;
  return out;
}

}  // namespace fathom
