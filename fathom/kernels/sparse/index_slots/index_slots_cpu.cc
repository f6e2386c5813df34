#include <algorithm>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"

namespace fathom {
namespace {

Status visible_rows(Exec&, const VisibleRows::Args& a) {
  const auto* positions = a.positions.as<const int32_t>();
  auto* rows = a.rows.as<int32_t>();
  for (int64_t t = 0; t < a.rows.dim(0); ++t)
    rows[t] = static_cast<int32_t>((int64_t{positions[t]} + 1) / a.tokens_per_row);
  return {};
}

/// The request of token t; as many as there are if it has none.
int64_t request_of(const View& q_offsets, int64_t t) {
  const auto* begins = q_offsets.as<const int32_t>();
  return std::upper_bound(begins, begins + q_offsets.dim(0), t) - begins - 1;
}

Status index_slots(Exec& ex, const IndexSlots::Args& a) {
  const int64_t k = a.slots.dim(1);
  const int64_t S = a.page_rows;
  for_rows(ex, a.slots.dim(0), 8 * k, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* ids = a.ids.row<const int32_t>(t);
      auto* slots = a.slots.row<int32_t>(t);
      const int64_t b = request_of(a.q_offsets, t);
      if (b >= a.block_table.dim(0)) {
        std::fill(slots, slots + k, -1);
        continue;
      }
      const auto* pages = a.block_table.row<const int32_t>(b);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t id = ids[j];
        slots[j] = id < 0 ? -1 : static_cast<int32_t>(pages[id / S] * S + id % S);
      }
    }
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status VisibleRows::check(const Args& a) {
  if (a.tokens_per_row < 1)
    return invalid_argument(
        str_cat("tokens_per_row is ", a.tokens_per_row, ", expected 1 or more"));
  if (!a.positions.readable()) return {};
  const auto* positions = a.positions.as<const int32_t>();
  for (int64_t t = 0; t < a.positions.dim(0); ++t) {
    if (positions[t] < 0)
      return invalid_argument(
          str_cat("positions[", t, "] is ", positions[t], ", expected 0 or more"));
  }
  return {};
}

void IndexSlots::bytes(const Args& a, Cost& cost) {
  cost.bytes_read = 4 * (2 * a.ids.numel() + a.q_offsets.numel());
  cost.bytes_written = 4 * a.slots.numel();
}

Status IndexSlots::check(const Args& a) {
  if (a.page_rows < 1)
    return invalid_argument(str_cat("page_rows is ", a.page_rows, ", expected 1 or more"));
  if (!a.ids.readable() || !a.q_offsets.readable()) return {};
  const int64_t requests = a.block_table.dim(0);
  const int64_t tokens = a.ids.dim(0);
  const auto* begins = a.q_offsets.as<const int32_t>();
  for (int64_t b = 0; b <= requests; ++b) {
    const int32_t least = b == 0 ? 0 : begins[b - 1];
    const bool right = begins[b] >= least && begins[b] <= tokens && (b > 0 || begins[b] == 0);
    if (right) continue;
    return invalid_argument(str_cat("q_offsets[", b, "] is ", begins[b], ", expected ",
                                    b == 0 ? "0" : str_cat(least, " to ", tokens)));
  }
  const int64_t rows = a.block_table.dim(1) * a.page_rows;
  for (int64_t t = 0; t < begins[requests]; ++t) {
    const auto* ids = a.ids.row<const int32_t>(t);
    for (int64_t j = 0; j < a.ids.dim(1); ++j) {
      if (ids[j] < -1 || ids[j] >= rows) {
        return invalid_argument(str_cat("ids[", t, ",", j, "] is ", ids[j], ", expected -1 to ",
                                        rows - 1, ", the rows of a request's pages"));
      }
    }
  }
  return {};
}

constinit const VariantTable<VisibleRows> visible_rows_cpu{
    {"portable", Isa::kPortable, "", kTraits, visible_rows},
};

constinit const VariantTable<IndexSlots> index_slots_cpu{
    {"portable", Isa::kPortable, "", kTraits, index_slots},
};

}  // namespace fathom
