#include "fathom/kernels/moe/route/route.h"

namespace fathom {
namespace {

// Sorting is a few operations a slot and runs on the caller: for 4,096 tokens it takes less time
// than the row of weights that follows.

Status check_ids(const View& ids, int64_t num_experts) {
  if (ids.data == nullptr) return {};
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    for (int64_t k = 0; k < ids.dim(1); ++k) {
      const int32_t id = ids.row<const int32_t>(t)[k];
      if (id < -1 || id >= num_experts) [[unlikely]] {
        return invalid_argument(
            str_cat("ids[", t, ",", k, "] is ", id, ", expected -1 to ", num_experts - 1));
      }
    }
  }
  return {};
}

Status route_offsets(Exec&, const RouteOffsets::Args& a) {
  const int64_t num_experts = a.offsets.dim(0) - 1;
  const int64_t num_tokens = a.ids.dim(0);
  const int64_t top_k = a.ids.dim(1);
  auto* offsets = a.offsets.as<int32_t>();
  auto* src_row = a.src_row.as<int32_t>();

  // Counts, shifted by one: offsets[e + 1] counts expert e.
  std::fill_n(offsets, num_experts + 1, 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t e = a.ids.row<const int32_t>(t)[k];
      if (e >= 0) ++offsets[e + 1];
    }
  }
  for (int64_t e = 0; e < num_experts; ++e)
    offsets[e + 1] += offsets[e];

  // Until the end of this loop offsets[e] is the next free position of expert e.
  const int32_t num_rows = offsets[num_experts];
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t e = a.ids.row<const int32_t>(t)[k];
      int32_t& dest = a.dest.row<int32_t>(t)[k];
      dest = e >= 0 ? offsets[e]++ : -1;
      if (e >= 0) src_row[dest] = static_cast<int32_t>(t);
    }
  }
  std::fill(src_row + num_rows, src_row + a.src_row.dim(0), -1);
  // Every offset has moved to where the next expert begins.
  for (int64_t e = num_experts; e > 0; --e)
    offsets[e] = offsets[e - 1];
  offsets[0] = 0;
  return {};
}

Status align_experts(Exec& ex, const AlignExperts::Args& a) {
  const int64_t top_k = a.ids.dim(1);
  const auto num_slots = static_cast<int32_t>(a.ids.numel());
  const int num_buckets = a.num_experts + 1;  // bucket 0 holds the slots without an expert
  auto* next = static_cast<int32_t*>(ex.workspace);
  auto* sorted = a.sorted_ids.as<int32_t>();
  auto* block_expert = a.block_expert.as<int32_t>();

  std::fill_n(next, num_buckets, 0);
  for (int64_t t = 0; t < a.ids.dim(0); ++t) {
    for (int64_t k = 0; k < top_k; ++k)
      ++next[a.ids.row<const int32_t>(t)[k] + 1];
  }
  int64_t begin = 0;
  for (int b = 0; b < num_buckets; ++b) {
    const int64_t padded = (next[b] + int64_t{a.block} - 1) / a.block * a.block;
    next[b] = static_cast<int32_t>(begin);
    if (begin + padded > a.sorted_ids.dim(0) ||
        (begin + padded) / a.block > a.block_expert.dim(0)) {
      return invalid_argument(str_cat(
          "align_experts: sorted_ids holds ", a.sorted_ids.dim(0), " slots and block_expert ",
          a.block_expert.dim(0), " blocks of ", a.block, ", too few for these ids; ",
          AlignExperts::capacity(num_slots, a.num_experts, a.block), " slots always suffice"));
    }
    for (int64_t block = begin / a.block; block < (begin + padded) / a.block; ++block) {
      block_expert[block] = b - 1;
    }
    begin += padded;
  }
  std::fill(block_expert + begin / a.block, block_expert + a.block_expert.dim(0), -1);
  std::fill_n(sorted, a.sorted_ids.dim(0), num_slots);
  for (int32_t slot = 0; slot < num_slots; ++slot) {
    const int32_t e = a.ids.row<const int32_t>(slot / top_k)[slot % top_k];
    sorted[next[e + 1]++] = slot;
  }
  a.num_padded.as<int32_t>()[0] = static_cast<int32_t>(begin);
  return {};
}

}  // namespace

Status RouteOffsets::check(const Args& a) {
  return check_ids(a.ids, a.offsets.dim(0) - 1);
}

Status AlignExperts::check(const Args& a) {
  if (a.block < 1) return invalid_argument(str_cat("block is ", a.block, ", expected at least 1"));
  if (a.num_experts < 0) {
    return invalid_argument(str_cat("num_experts is ", a.num_experts, ", expected at least 0"));
  }
  return check_ids(a.ids, a.num_experts);
}

constinit const VariantTable<RouteOffsets> route_offsets_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, route_offsets},
};

constinit const VariantTable<AlignExperts> align_experts_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, align_experts},
};

}  // namespace fathom
