#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/moe/route/route.h"

namespace fathom {
namespace {

// Sorting is a few operations a slot and runs on the caller: for 4,096 tokens it takes less time
// than the row of weights that follows.

/// Calls f(t, k, id) for every slot in order.
template <class F>
void for_slots(const View& ids, F&& f) {
  const auto visit = [&]<class T>(T) {
    for (int64_t t = 0; t < ids.dim(0); ++t) {
      for (int64_t k = 0; k < ids.dim(1); ++k)
        f(t, k, static_cast<int64_t>(ids.row<const T>(t)[k]));
    }
  };
  if (ids.format == Format::kI64) return visit(int64_t{});
  visit(int32_t{});
}

Status check_ids(const View& ids, int64_t num_experts) {
  if (!ids.readable()) return {};
  Status status;
  for_slots(ids, [&](int64_t t, int64_t k, int64_t id) {
    if (id >= -1 && id < num_experts) [[likely]]
      return;
    if (!status.ok()) return;
    status = invalid_argument(
        str_cat("ids[", t, ",", k, "] is ", id, ", expected -1 to ", num_experts - 1));
  });
  return status;
}

/// offsets[e + 1] = slots of experts up to e.
void count_slots(const View& ids, int32_t* offsets, int64_t num_experts) {
  std::fill_n(offsets, num_experts + 1, 0);
  for_slots(ids, [&](int64_t, int64_t, int64_t id) {
    if (id >= 0 && id < num_experts) ++offsets[id + 1];
  });
  for (int64_t e = 0; e < num_experts; ++e)
    offsets[e + 1] += offsets[e];
}

/// Rows (first, c, last) or (c, first, last) of a table of problem sizes.
void write_sizes(const View& sizes, const int32_t* offsets, bool rows_first, int32_t n, int32_t k) {
  if (!sizes.present()) return;
  for (int64_t e = 0; e < sizes.dim(0); ++e) {
    const int32_t count = offsets[e + 1] - offsets[e];
    int32_t* row = sizes.row<int32_t>(e);
    row[0] = rows_first ? count : n;
    row[1] = rows_first ? n : count;
    row[2] = k;
  }
}

void write_scale_offsets(const View& out, const int32_t* offsets) {
  if (!out.present()) return;
  auto* at = out.as<int32_t>();
  at[0] = 0;
  for (int64_t e = 0; e + 1 < out.dim(0); ++e) {
    at[e + 1] = at[e] + align_up<int32_t>(offsets[e + 1] - offsets[e], kSwizzleRows);
  }
}

Status route_offsets(Exec&, const RouteOffsets::Args& a) {
  const int64_t num_experts = a.offsets.dim(0) - 1;
  auto* offsets = a.offsets.as<int32_t>();
  auto* src_row = a.src_row.as<int32_t>();
  count_slots(a.ids, offsets, num_experts);
  write_sizes(a.sizes_up, offsets, true, 2 * a.n, a.k);
  write_sizes(a.sizes_down, offsets, true, a.k, a.n);
  write_scale_offsets(a.scale_offsets, offsets);

  // Until the end of this loop offsets[e] is the next free position of expert e.
  const int32_t num_rows = offsets[num_experts];
  for_slots(a.ids, [&](int64_t t, int64_t k, int64_t id) {
    int32_t& dest = a.dest.row<int32_t>(t)[k];
    dest = id >= 0 && id < num_experts ? offsets[id]++ : -1;
    if (dest >= 0) src_row[dest] = static_cast<int32_t>(t);
  });
  std::fill(src_row + num_rows, src_row + a.src_row.dim(0), -1);
  // Every offset has moved to where the next expert begins.
  for (int64_t e = num_experts; e > 0; --e)
    offsets[e] = offsets[e - 1];
  offsets[0] = 0;
  return {};
}

Status route_group_shapes(Exec&, const RouteGroupShapes::Args& a) {
  auto* offsets = a.offsets.as<int32_t>();
  count_slots(a.ids, offsets, a.sizes_up.dim(0));
  write_sizes(a.sizes_up, offsets, false, 2 * a.n, a.k);
  write_sizes(a.sizes_down, offsets, false, a.k, a.n);
  return {};
}

Status align_experts(Exec& ex, const AlignExperts::Args& a) {
  const auto num_slots = static_cast<int32_t>(a.ids.numel());
  const int num_buckets = a.num_experts + 1;  // bucket 0 holds the slots without an expert
  auto* next = static_cast<int32_t*>(ex.workspace);
  auto* sorted = a.sorted_ids.as<int32_t>();
  auto* block_expert = a.block_expert.as<int32_t>();

  std::fill_n(next, num_buckets, 0);
  for_slots(a.ids, [&](int64_t, int64_t, int64_t id) { ++next[id + 1]; });
  int64_t begin = 0;
  for (int b = 0; b < num_buckets; ++b) {
    const int64_t padded = align_up<int64_t>(next[b], a.block);
    next[b] = static_cast<int32_t>(begin);
    if (a.starts.present()) a.starts.as<int32_t>()[b] = static_cast<int32_t>(begin);
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
  if (a.padding == PaddedSlots::kFill) std::fill_n(sorted, a.sorted_ids.dim(0), num_slots);
  int32_t slot = 0;
  for_slots(a.ids, [&](int64_t, int64_t, int64_t id) { sorted[next[id + 1]++] = slot++; });
  if (a.starts.present()) a.starts.as<int32_t>()[num_buckets] = static_cast<int32_t>(begin);
  a.num_padded.as<int32_t>()[0] = static_cast<int32_t>(begin);
  return {};
}

}  // namespace

Status RouteOffsets::check(const Args& a) {
  if (a.unknown == UnknownIds::kSkip) return {};
  return check_ids(a.ids, a.offsets.dim(0) - 1);
}

Status AlignExperts::check(const Args& a) {
  if (a.block < 1) return invalid_argument(str_cat("block is ", a.block, ", expected at least 1"));
  if (a.num_experts < 0) {
    return invalid_argument(str_cat("num_experts is ", a.num_experts, ", expected at least 0"));
  }
  if (a.starts.present() && a.starts.dim(0) < int64_t{a.num_experts} + 2) {
    return invalid_argument(str_cat("starts holds ", a.starts.dim(0), " values, expected ",
                                    a.num_experts + 2, ", one for each bucket and an end"));
  }
  return check_ids(a.ids, a.num_experts);
}

constinit const VariantTable<RouteOffsets> route_offsets_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, route_offsets},
};

constinit const VariantTable<RouteGroupShapes> route_group_shapes_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, route_group_shapes},
};

constinit const VariantTable<AlignExperts> align_experts_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, align_experts},
};

}  // namespace fathom
