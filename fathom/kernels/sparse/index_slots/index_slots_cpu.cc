#include <algorithm>

#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sparse/index_slots/index_slots.h"
#include "fathom/kernels/sparse/request_offsets.h"

namespace fathom {
namespace {

Status visible_rows(Exec&, const VisibleRows::Args& a) {
  const auto* positions = a.positions.as<const int32_t>();
  auto* rows = a.rows.as<int32_t>();
  for (int64_t t = 0; t < a.rows.dim(0); ++t)
    rows[t] = static_cast<int32_t>((int64_t{positions[t]} + 1) / a.tokens_per_row);
  return {};
}

int64_t request_of(const View& q_offsets, int64_t t) {
  return request_at(q_offsets.as<const int32_t>(), q_offsets.dim(0) - 1, t);
}

/// Where key `id` of the `seen` keys of token t lies among its request's.
int64_t place_of(const View& tree_masks, int64_t t, int64_t seen, int64_t id) {
  if (id < 0 || !tree_masks.present()) return id;
  return place_of_seen(tree_token_of(seen, tree_masks.as<const int64_t>()[t]), id);
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
      const int64_t seen = a.lengths.present() ? a.lengths.as<const int32_t>()[t] : 0;
      for (int64_t j = 0; j < k; ++j) {
        const int64_t id = place_of(a.tree_masks, t, seen, ids[j]);
        slots[j] = id < 0 ? -1 : static_cast<int32_t>(pages[id / S] * S + id % S);
      }
    }
  });
  return {};
}

Status visible_slots(Exec& ex, const VisibleSlots::Args& a) {
  const int64_t k = a.slots.dim(1);
  const int64_t S = a.page_rows;
  const auto* positions = a.positions.as<const int32_t>();
  for_rows(ex, a.slots.dim(0), 4 * k, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      auto* slots = a.slots.row<int32_t>(t);
      const int64_t b = request_of(a.q_offsets, t);
      int64_t j = 0;
      if (b < a.block_table.dim(0)) {
        const auto* pages = a.block_table.row<const int32_t>(b);
        const int64_t rows = (int64_t{positions[t]} + 1) / a.tokens_per_row;
        for (; j < rows; ++j) {
          const int64_t row = place_of(a.tree_masks, t, rows, j);
          slots[j] = static_cast<int32_t>(pages[row / S] * S + row % S);
        }
      }
      std::fill(slots + j, slots + k, -1);
    }
  });
  return {};
}

Status step_slots(Exec& ex, const RingSlots::Args& a) {
  const int64_t w = a.slots.dim(1);
  const auto* begins = a.q_offsets.as<const int32_t>();
  for_rows(ex, a.slots.dim(0), 4 * w, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      auto* slots = a.slots.row<int32_t>(t);
      const int64_t b = request_of(a.q_offsets, t);
      const bool owned = b + 1 < a.q_offsets.dim(0);
      for (int64_t j = 0; j < w; ++j) {
        const int64_t row = t - (w - 1) + j;
        slots[j] = owned && row >= begins[b] ? static_cast<int32_t>(row) : -1;
      }
    }
  });
  return {};
}

Status ring_slots(Exec& ex, const RingSlots::Args& a) {
  if (!a.request_slots.present()) return step_slots(ex, a);
  const int64_t w = a.slots.dim(1);
  const auto* positions = a.positions.as<const int32_t>();
  const auto* rings = a.request_slots.as<const int32_t>();
  for_rows(ex, a.slots.dim(0), 4 * w, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      auto* slots = a.slots.row<int32_t>(t);
      const int64_t b = request_of(a.q_offsets, t);
      const bool owned = b < a.request_slots.dim(0);
      const int64_t first = int64_t{positions[t]} - (w - 1);
      for (int64_t j = 0; j < w; ++j) {
        const int64_t p = place_of(a.tree_masks, t, int64_t{positions[t]} + 1, first + j);
        slots[j] =
            owned && p >= 0 ? static_cast<int32_t>(rings[b] * a.ring_rows + p % a.ring_rows) : -1;
      }
    }
  });
  return {};
}

Status check_positions(const View& positions, int64_t tokens) {
  const auto* at = positions.as<const int32_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    if (at[t] < 0)
      return invalid_argument(str_cat("positions[", t, "] is ", at[t], ", expected 0 or more"));
  }
  return {};
}

Status at_least_one(std::string_view name, int64_t value) {
  if (value >= 1) return {};
  return invalid_argument(str_cat(name, " is ", value, ", expected 1 or more"));
}

/// A mask of token t names rows that it sees, none behind `most`.
Status check_mask(const View& tree_masks, int64_t t, int64_t seen, int64_t most) {
  const TreeToken token = tree_token_of(seen, tree_masks.as<const int64_t>()[t]);
  if (token.begin >= 0 && (seen == 0 || place_of_seen(token, seen - 1) < most)) return {};
  return invalid_argument(str_cat("tree_masks[", t, "] names ", seen - token.begin, " rows of the ",
                                  seen, " keys that the token sees, ",
                                  "expected at most as many, and none behind ", most));
}

/// Tokens that some request owns.
int64_t owned(const View& q_offsets) {
  return q_offsets.as<const int32_t>()[q_offsets.dim(0) - 1];
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status VisibleRows::check(const Args& a) {
  FATHOM_TRY(at_least_one("tokens_per_row", a.tokens_per_row));
  if (!a.positions.readable()) return {};
  return check_positions(a.positions, a.positions.dim(0));
}

void IndexSlots::bytes(const Args& a, Cost& cost) {
  cost.bytes_read = 4 * (2 * a.ids.numel() + a.q_offsets.numel());
  cost.bytes_written = 4 * a.slots.numel();
  if (a.tree_masks.present()) cost.bytes_read += 12 * a.tree_masks.numel();
}

Status IndexSlots::check(const Args& a) {
  FATHOM_TRY(at_least_one("page_rows", a.page_rows));
  if (a.tree_masks.present() != a.lengths.present())
    return invalid_argument("tree_masks and lengths are given together, one of them is missing");
  if (!a.ids.readable() || !a.q_offsets.readable()) return {};
  FATHOM_TRY(check_request_offsets(a.q_offsets, a.ids.dim(0)));
  const int64_t pages = a.block_table.dim(1) * a.page_rows;
  for (int64_t t = 0; t < owned(a.q_offsets); ++t) {
    int64_t rows = pages;
    if (a.tree_masks.present()) {
      rows = a.lengths.as<const int32_t>()[t];
      FATHOM_TRY(check_mask(a.tree_masks, t, rows, pages));
    }
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

Status VisibleSlots::check(const Args& a) {
  FATHOM_TRY(at_least_one("page_rows", a.page_rows));
  FATHOM_TRY(at_least_one("tokens_per_row", a.tokens_per_row));
  if (!a.positions.readable() || !a.q_offsets.readable()) return {};
  FATHOM_TRY(check_request_offsets(a.q_offsets, a.positions.dim(0)));
  FATHOM_TRY(check_positions(a.positions, owned(a.q_offsets)));
  const int64_t most = std::min(a.slots.dim(1), a.block_table.dim(1) * a.page_rows);
  const auto* positions = a.positions.as<const int32_t>();
  for (int64_t t = 0; t < owned(a.q_offsets); ++t) {
    const int64_t rows = (int64_t{positions[t]} + 1) / a.tokens_per_row;
    if (a.tree_masks.readable())
      FATHOM_TRY(check_mask(a.tree_masks, t, rows, a.block_table.dim(1) * a.page_rows));
    if (rows <= most) continue;
    return invalid_argument(str_cat("positions[", t, "] is ", positions[t], ", which sees ", rows,
                                    " rows, expected ", most, " at most: ", a.slots.dim(1),
                                    " in slots and ", a.block_table.dim(1), " pages of ",
                                    a.page_rows));
  }
  return {};
}

Status RingSlots::check(const Args& a) {
  if (a.request_slots.present() && a.request_slots.dim(0) + 1 != a.q_offsets.dim(0))
    return invalid_argument(str_cat("q_offsets has ", a.q_offsets.dim(0), " offsets, expected ",
                                    a.request_slots.dim(0) + 1, ", one more than request_slots"));
  if (a.request_slots.present() && a.ring_rows < a.slots.dim(1))
    return invalid_argument(str_cat("ring_rows is ", a.ring_rows, ", expected ", a.slots.dim(1),
                                    " or more, the rows of the window"));
  if (a.tree_masks.present() && !a.request_slots.present())
    return invalid_argument("tree_masks are of rows in rings, and request_slots is missing");
  if (!a.positions.readable() || !a.q_offsets.readable()) return {};
  FATHOM_TRY(check_request_offsets(a.q_offsets, a.positions.dim(0)));
  FATHOM_TRY(check_positions(a.positions, owned(a.q_offsets)));
  for (int64_t t = 0; a.tree_masks.readable() && t < owned(a.q_offsets); ++t) {
    FATHOM_TRY(
        check_mask(a.tree_masks, t, int64_t{a.positions.as<const int32_t>()[t]} + 1, INT64_MAX));
  }
  if (!a.request_slots.readable()) return {};
  const auto* rings = a.request_slots.as<const int32_t>();
  for (int64_t b = 0; b < a.request_slots.dim(0); ++b) {
    if (rings[b] < 0)
      return invalid_argument(
          str_cat("request_slots[", b, "] is ", rings[b], ", expected 0 or more"));
  }
  return {};
}

constinit const VariantTable<VisibleRows> visible_rows_cpu{
    {"portable", Isa::kPortable, "", kTraits, visible_rows},
};

constinit const VariantTable<IndexSlots> index_slots_cpu{
    {"portable", Isa::kPortable, "", kTraits, index_slots},
};

constinit const VariantTable<VisibleSlots> visible_slots_cpu{
    {"portable", Isa::kPortable, "", kTraits, visible_slots},
};

constinit const VariantTable<RingSlots> ring_slots_cpu{
    {"portable", Isa::kPortable, "", kTraits, ring_slots},
};

}  // namespace fathom
