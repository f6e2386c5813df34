// Splitting independent rows over the threads of a call.
#pragma once

#include <cstdint>

#include "fathom/kernels/core/exec.h"

namespace fathom {

/// A call that moves no more than this runs on the caller alone: waking a thread would cost more
/// than it saves (about a microsecond, the time of 32 KiB from the second-level cache).
inline constexpr int64_t kSerialBytes = 32 << 10;

/// Calls f(begin, end) for contiguous ranges of `num_rows` rows: on the pool, or on the caller
/// alone where the call moves so little that waking a thread would cost more than it saves (about
/// one microsecond, 32 KiB from the second-level cache). For kernels whose rows are independent, so
/// that the split cannot be seen in the result.
template <class F>
void for_rows(Exec& ex, int64_t num_rows, int64_t bytes_per_row, F&& f) {
  if (num_rows * bytes_per_row <= kSerialBytes) {
    if (num_rows > 0) f(int64_t{0}, num_rows);
    return;
  }
  ex.pool->for_rows(num_rows, f);
}

/// As for_rows, for kernels with a workspace: f(thread_id, begin, end), thread_id < ex.num_threads.
template <class F>
void for_rows_by_thread(Exec& ex, int64_t num_rows, int64_t bytes_per_row, F&& f) {
  if (num_rows * bytes_per_row <= kSerialBytes || num_rows == 1) {
    if (num_rows > 0) f(0, int64_t{0}, num_rows);
    return;
  }
  ex.pool->run([&](int thread_id, int num_threads) {
    const RowRange rows = static_partition(num_rows, thread_id, num_threads);
    if (rows.begin < rows.end) f(thread_id, rows.begin, rows.end);
  });
}

}  // namespace fathom
