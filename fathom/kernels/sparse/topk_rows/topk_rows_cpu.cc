#include <algorithm>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sparse/request_offsets.h"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"
#include "fathom/kernels/sparse/topk_rows/topk_select.h"

namespace fathom {
namespace {

// ---- one row ----

/// Unsigned integers that order as totalOrder does.
uint32_t ordered(float score) {
  const uint32_t bits = float_bits(score);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/// Four counts over the bytes of the keys, the highest first, find the smallest key that is taken
/// and how many equal to it are.
void select_largest(
    const float* scores, int64_t length, int64_t k, int32_t* /*room*/, int32_t* out) {
  uint32_t threshold = 0;
  int64_t wanted = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    for (int64_t i = 0; i < length; ++i) {
      const uint32_t key = ordered(scores[i]);
      if (uint64_t{key} >> (shift + 8) == threshold) ++counts[key >> shift & 0xFFu];
    }
    uint32_t byte = 255;
    while (counts[byte] < wanted)
      wanted -= counts[byte--];
    threshold = threshold << 8 | byte;
  }
  for (int64_t i = 0; i < length; ++i) {
    const uint32_t key = ordered(scores[i]);
    if (key > threshold || (key == threshold && wanted-- > 0)) *out++ = static_cast<int32_t>(i);
  }
}

// ---- all rows ----

int32_t length_of(const View& lengths, int64_t b) {
  return lengths.as<const int32_t>()[b];
}

int64_t start_of(const View& row_starts, int64_t b) {
  return row_starts.present() ? row_starts.as<const int32_t>()[b] : 0;
}

/// Calls translate(b, positions, count) for every row, after the positions stand in its output.
template <SelectRow kSelect, class Args, class Translate>
void for_selected(Exec& ex, const Args& a, const View& out, Translate translate) {
  const int64_t k = out.dim(1);
  const int64_t room = select_room(a.scores.dim(1));
  const int64_t row_bytes = 4 * (a.scores.dim(1) + k);
  auto* workspace = static_cast<int32_t*>(ex.workspace);
  for_rows_by_thread(ex, out.dim(0), row_bytes, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t length = length_of(a.lengths, b);
      int32_t* ids = out.row<int32_t>(b);
      const int64_t count = std::min(length, k);
      if (length <= k) {
        for (int64_t i = 0; i < length; ++i)
          ids[i] = static_cast<int32_t>(i);
        std::fill(ids + length, ids + k, -1);
      } else {
        const float* scores = a.scores.template row<const float>(b) + start_of(a.row_starts, b);
        kSelect(scores, length, k, workspace + thread * room, ids);
      }
      translate(b, ids, count);
    }
  });
}

template <SelectRow kSelect>
Status topk_rows(Exec& ex, const TopkRows::Args& a) {
  for_selected<kSelect>(ex, a, a.ids, [](int64_t, int32_t*, int64_t) {});
  return {};
}

bool row_is_request(const TopkRowsPaged::Args& a) {
  return !a.row_starts.present() && a.page_table.dim(0) == a.scores.dim(0);
}

/// The request of row b, at least as many as there are if it has none.
int64_t request_of(const TopkRowsPaged::Args& a, int64_t b) {
  if (row_is_request(a)) return b;
  return request_at(a.cu_seqlens_q.as<const int32_t>(), a.cu_seqlens_q.dim(0) - 1, b);
}

template <SelectRow kSelect>
Status topk_rows_paged(Exec& ex, const TopkRowsPaged::Args& a) {
  for_selected<kSelect>(ex, a, a.slots, [&](int64_t b, int32_t* ids, int64_t count) {
    if (count == 0) return;
    const auto* table = a.page_table.row<const int32_t>(request_of(a, b));
    for (int64_t i = 0; i < count; ++i)
      ids[i] = table[ids[i]];
  });
  return {};
}

template <SelectRow kSelect>
Status topk_rows_ragged(Exec& ex, const TopkRowsRagged::Args& a) {
  for_selected<kSelect>(ex, a, a.ids, [&](int64_t b, int32_t* ids, int64_t count) {
    const int32_t offset = a.offsets.as<const int32_t>()[b];
    for (int64_t i = 0; i < count; ++i)
      ids[i] += offset;
  });
  return {};
}

// ---- contracts ----

Status check_lengths(const View& scores, const View& lengths, const View& row_starts) {
  const int64_t columns = scores.dim(1);
  for (int64_t b = 0; b < lengths.dim(0); ++b) {
    const int64_t start = start_of(row_starts, b);
    const int64_t length = length_of(lengths, b);
    if (start < 0 || start > columns) {
      return invalid_argument(
          str_cat("row_starts[", b, "] is ", start, ", expected 0 to ", columns));
    }
    if (length < 0 || length > columns - start) {
      return invalid_argument(str_cat("lengths[", b, "] is ", length, ", expected 0 to ",
                                      columns - start, ", what row ", b, " of scores holds"));
    }
  }
  return {};
}

template <class Args>
bool has_data(const Args& a) {
  return a.lengths.readable() && a.scores.readable();
}

/// The parts that all three share; `entries` a row are read besides.
template <class Args>
void count_bytes(const Args& a, const View& out, int64_t entries, Cost& cost) {
  const int64_t rows = out.dim(0);
  int64_t scores = a.scores.numel();
  if (has_data(a)) {
    scores = 0;
    for (int64_t b = 0; b < rows; ++b)
      scores += length_of(a.lengths, b);
  }
  const int64_t per_row = 1 + (a.row_starts.present() ? 1 : 0) + entries;
  cost.bytes_read = 4 * (scores + rows * per_row);
  cost.bytes_written = 4 * out.numel();
}

int64_t room_bytes(const View& scores, int num_threads) {
  return num_threads * select_room(scores.dim(1)) * static_cast<int64_t>(sizeof(int32_t));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

void TopkRows::bytes(const Args& a, Cost& cost) {
  count_bytes(a, a.ids, 0, cost);
}

void TopkRowsPaged::bytes(const Args& a, Cost& cost) {
  count_bytes(a, a.slots, a.slots.dim(1), cost);
  cost.bytes_read += row_is_request(a) ? 0 : 4 * a.cu_seqlens_q.numel();
}

void TopkRowsRagged::bytes(const Args& a, Cost& cost) {
  count_bytes(a, a.ids, 1, cost);
}

Status TopkRows::check(const Args& a) {
  return has_data(a) ? check_lengths(a.scores, a.lengths, a.row_starts) : Status{};
}

Status TopkRowsRagged::check(const Args& a) {
  return has_data(a) ? check_lengths(a.scores, a.lengths, a.row_starts) : Status{};
}

Status TopkRowsPaged::check(const Args& a) {
  if (!has_data(a)) return {};
  FATHOM_TRY(check_lengths(a.scores, a.lengths, a.row_starts));
  const int64_t requests = a.page_table.dim(0);
  const auto* begins = a.cu_seqlens_q.as<const int32_t>();
  for (int64_t r = 0; !row_is_request(a) && r <= requests; ++r) {
    const int32_t least = r == 0 ? 0 : begins[r - 1];
    if (begins[r] >= least && (r > 0 || begins[r] == 0)) continue;
    return invalid_argument(str_cat("cu_seqlens_q[", r, "] is ", begins[r], ", expected ",
                                    r == 0 ? "0" : str_cat(least, " or more")));
  }
  for (int64_t b = 0; b < a.scores.dim(0); ++b) {
    const int64_t length = length_of(a.lengths, b);
    if (length > a.page_table.dim(1)) {
      return invalid_argument(str_cat("lengths[", b, "] is ", length,
                                      " but a row of page_table has ", a.page_table.dim(1),
                                      " entries"));
    }
    if (length > 0 && request_of(a, b) >= requests) {
      return invalid_argument(str_cat("row ", b, " belongs to no request: cu_seqlens_q ends at ",
                                      begins[requests], "; its length must be 0"));
    }
  }
  return {};
}

int64_t TopkRows::workspace(const Args& a, int num_threads) {
  return room_bytes(a.scores, num_threads);
}

int64_t TopkRowsPaged::workspace(const Args& a, int num_threads) {
  return room_bytes(a.scores, num_threads);
}

int64_t TopkRowsRagged::workspace(const Args& a, int num_threads) {
  return room_bytes(a.scores, num_threads);
}

constinit const VariantTable<TopkRows> topk_rows_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_rows<avx512::select_largest>},
    {"portable", Isa::kPortable, "", kTraits, topk_rows<select_largest>},
};

constinit const VariantTable<TopkRowsPaged> topk_rows_paged_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_rows_paged<avx512::select_largest>},
    {"portable", Isa::kPortable, "", kTraits, topk_rows_paged<select_largest>},
};

constinit const VariantTable<TopkRowsRagged> topk_rows_ragged_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_rows_ragged<avx512::select_largest>},
    {"portable", Isa::kPortable, "", kTraits, topk_rows_ragged<select_largest>},
};

}  // namespace fathom
