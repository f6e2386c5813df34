#include "fathom/kernels/attn/mla_decode/mla_decode_split.h"

#include <algorithm>
#include <cstddef>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_plan.h"

namespace fathom::mla_decode {
namespace {

using avx512::kMaxDecodeRows;
using avx512::PartialRows;

/// Below this, waking other threads costs more than they save: some microseconds of one core.
constexpr double kSerialFlops = 2e6;

int64_t rows_of_request(const MlaDecode::Args& a) {
  return a.q.dim(1) * a.q.dim(2);
}

int64_t scratch_bytes(const MlaDecode::Args& a) {
  return align_up<int64_t>(avx512::decode_scratch(a), 64);
}

/// Bytes of the partial results of `rows` rows: o, then max, then sum.
int64_t partial_bytes(const MlaDecode::Args& a, int64_t rows) {
  return align_up<int64_t>(rows * (avx512::padded_width(a.o.dim(3)) + 2) * 4, 64);
}

/// Partial results of rows from `row` on in memory laid out for `rows` rows.
PartialRows partial_at(const MlaDecode::Args& a, std::byte* memory, int64_t rows, int64_t row) {
  auto* o = reinterpret_cast<float*>(memory);
  const int64_t width = avx512::padded_width(a.o.dim(3));
  return {o + row * width, o + rows * width + row, o + rows * (width + 1) + row};
}

/// True if requests are cut over threads: when there are too few of them to keep all threads busy.
bool cuts_requests(const MlaDecode::Args& a, int num_threads) {
  const int64_t items = a.q.dim(0) * ceil_div(rows_of_request(a), kMaxDecodeRows);
  return num_threads > 1 && items < 4 * num_threads;
}

/// Splits of a request; one, without keys, if it has none, so that every row gets a result.
int64_t splits_of(int64_t keys) {
  return std::max<int64_t>(num_splits(keys), 1);
}

/// Workspace of requests that are cut: the partial results of all rows for each split. No more rows
/// than this are ever cut; and a smaller batch never needs more than a larger one, because a dry
/// run of the largest sizes the memory.
int64_t cut_bytes(const MlaDecode::Args& a, int num_threads) {
  const int64_t most_keys = a.block_table.dim(1) * keys_per_entry(a);
  const int64_t rows = std::min(a.q.dim(0) * rows_of_request(a), 4 * num_threads * kMaxDecodeRows);
  return splits_of(most_keys) * partial_bytes(a, rows);
}

/// Rows that one item takes: fewer where there would be less than two items a thread.
int64_t rows_per_item(int64_t rows, int64_t others, int num_threads) {
  int64_t size = kMaxDecodeRows;
  while (size > 16 && ceil_div(rows, size) * others < 2 * num_threads)
    size /= 2;
  return size;
}

/// What one thread does when whole requests are items: all splits of its rows, merged at once.
void run_whole(
    const MlaDecode::Args& a, int64_t size, int thread_id, int num_threads, std::byte* memory) {
  const int64_t rows = rows_of_request(a);
  std::byte* scratch = memory;
  std::byte* partials = memory + scratch_bytes(a);
  const PartialRows total = partial_at(a, partials, kMaxDecodeRows, 0);
  const PartialRows part =
      partial_at(a, partials + partial_bytes(a, kMaxDecodeRows), kMaxDecodeRows, 0);
  const int64_t groups = ceil_div(rows, size);
  for (int64_t item = thread_id; item < a.q.dim(0) * groups; item += num_threads) {
    const int64_t b = item / groups;
    const int64_t row = item % groups * size;
    const int64_t count = std::min(size, rows - row);
    const int64_t keys = a.kv_lens.as<int32_t>()[b];
    avx512::decode_rows(a, b, row, count, 0, split_begin(1), scratch, total);
    for (int64_t i = 1; split_begin(i) < keys; ++i) {
      avx512::decode_rows(a, b, row, count, split_begin(i), split_begin(i + 1), scratch, part);
      avx512::merge_rows(count, a.o.dim(3), part, total);
    }
    avx512::store_rows(a, b, row, count, total);
  }
}

/// What one thread does when splits are items: every num_threads-th (request, split, rows).
void run_cut(const MlaDecode::Args& a,
             int64_t size,
             int thread_id,
             int num_threads,
             std::byte* scratch,
             std::byte* partials) {
  const int64_t rows = rows_of_request(a);
  const int64_t all_rows = a.q.dim(0) * rows;
  int64_t item = 0;
  for (int64_t b = 0; b < a.q.dim(0); ++b) {
    const int64_t splits = splits_of(a.kv_lens.as<int32_t>()[b]);
    for (int64_t i = 0; i < splits; ++i) {
      for (int64_t row = 0; row < rows; row += size, ++item) {
        if (item % num_threads != thread_id) continue;
        std::byte* at = partials + i * partial_bytes(a, all_rows);
        avx512::decode_rows(a, b, row, std::min(size, rows - row), split_begin(i),
                            split_begin(i + 1), scratch,
                            partial_at(a, at, all_rows, b * rows + row));
      }
    }
  }
}

/// Merges the splits of rows [begin, end) of all B * Q * N rows, in order, and writes the results.
void merge_cut(const MlaDecode::Args& a, int64_t begin, int64_t end, std::byte* partials) {
  const int64_t rows = rows_of_request(a);
  const int64_t all_rows = a.q.dim(0) * rows;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t b = row / rows;
    const int64_t splits = splits_of(a.kv_lens.as<int32_t>()[b]);
    const PartialRows total = partial_at(a, partials, all_rows, row);
    for (int64_t i = 1; i < splits; ++i) {
      std::byte* at = partials + i * partial_bytes(a, all_rows);
      avx512::merge_rows(1, a.o.dim(3), partial_at(a, at, all_rows, row), total);
    }
    avx512::store_rows(a, b, row % rows, 1, total);
  }
}

}  // namespace

int64_t split_workspace(const MlaDecode::Args& a, int num_threads) {
  const int64_t whole = num_threads * (scratch_bytes(a) + 2 * partial_bytes(a, kMaxDecodeRows));
  if (num_threads == 1) return whole;
  return std::max(whole, num_threads * scratch_bytes(a) + cut_bytes(a, num_threads));
}

void run_splits(Exec& ex, const MlaDecode::Args& a) {
  const int64_t B = a.q.dim(0);
  const int64_t rows = rows_of_request(a);
  if (B == 0 || rows == 0) return;
  int64_t splits = 0;
  int64_t keys = 0;
  for (int64_t b = 0; b < B; ++b) {
    keys += a.kv_lens.as<int32_t>()[b];
    splits += splits_of(a.kv_lens.as<int32_t>()[b]);
  }
  auto* workspace = static_cast<std::byte*>(ex.workspace);
  const double flops = 2.0 * static_cast<double>(keys * rows * (a.cache.dim(2) + a.o.dim(3)));
  if (flops < kSerialFlops || ex.num_threads == 1) {
    return run_whole(a, kMaxDecodeRows, 0, 1, workspace);
  }
  if (!cuts_requests(a, ex.num_threads) || splits <= B) {
    const int64_t size = rows_per_item(rows, B, ex.num_threads);
    const int64_t each = scratch_bytes(a) + 2 * partial_bytes(a, kMaxDecodeRows);
    return ex.pool->run([&](int thread_id, int num_threads) {
      run_whole(a, size, thread_id, num_threads, workspace + thread_id * each);
    });
  }
  const int64_t size = rows_per_item(rows, splits, ex.num_threads);
  std::byte* partials = workspace + ex.num_threads * scratch_bytes(a);
  ex.pool->run([&](int thread_id, int num_threads) {
    run_cut(a, size, thread_id, num_threads, workspace + thread_id * scratch_bytes(a), partials);
  });
  ex.pool->for_rows(B * rows,
                    [&](int64_t begin, int64_t end) { merge_cut(a, begin, end, partials); });
}

}  // namespace fathom::mla_decode
