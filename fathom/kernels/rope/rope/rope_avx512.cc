#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rope_rows.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {
namespace {

/// What rotates is often the end of a wider head: pieces of two lines that no prefetcher of a core
/// follows. So many heads ahead they are asked for.
constexpr int64_t kHeadsAhead = 32;

template <class A>
void prefetch_head(const A* head, int64_t R) {
  for (int64_t i = 0; i < R; i += 64 / static_cast<int64_t>(sizeof(A)))
    prefetch_to_write(head + i);
}

/// Rotates the heads of token t; Table is float for RopeInplace and A for Rope, which rounds terms.
/// Tokens before `end` are yet to come.
template <class A, class Table>
void rotate_heads(
    const View& x, int64_t t, int64_t end, const Table* table_row, int64_t R, RopeStyle style) {
  A* token = x.row<A>(t);
  const int64_t N = x.dim(1);
  for (int64_t n = 0; n < N; ++n) {
    A* head = token + n * x.stride(1);
    const int64_t later = n + kHeadsAhead;
    const int64_t later_t = t + later / N;
    if (later_t < end) prefetch_head(x.row<A>(later_t) + later % N * x.stride(1), R);
    rotate_head<Table>(head, head, table_row, R, style);
  }
}

/// The heads of token t to a slot of a cache.
template <class A>
void copy_heads(const View& x, int64_t t, const View& cache, int64_t slot) {
  const int64_t D = x.dim(2);
  for (int64_t n = 0; n < x.dim(1); ++n) {
    const A* from = x.row<A>(t) + n * x.stride(1);
    __builtin_memcpy(cache.row<A>(slot) + n * cache.stride(1), from,
                     static_cast<size_t>(D) * sizeof(A));
  }
}

template <class A>
void rope_inplace_loop(const RopeInplace::Args& a, int64_t begin, int64_t end) {
  const int64_t R = a.table.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const float* table_row = a.table.row<float>(position_of(a.positions, t));
    rotate_heads<A>(a.q, t, end, table_row, R, a.style);
    if (a.k.present()) rotate_heads<A>(a.k, t, end, table_row, R, a.style);
    if (!a.slots.present()) continue;
    const int64_t slot = a.slots.as<int64_t>()[t];
    if (slot < 0) continue;
    copy_heads<A>(a.k, t, a.k_cache, slot);
    copy_heads<A>(a.v, t, a.v_cache, slot);
  }
}

template <class A>
void rope_loop(const Rope::Args& a, int64_t begin, int64_t end) {
  const int64_t R = a.table.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const A* table_row = a.table.row<A>(position_of(a.positions, t));
    rotate_heads<A>(a.q, t, end, table_row, R, a.style);
    if (a.k.present()) rotate_heads<A>(a.k, t, end, table_row, R, a.style);
  }
}

}  // namespace

void rope_inplace_rows(const RopeInplace::Args& a, int64_t begin, int64_t end) {
  if (a.q.format == Format::kBf16) return rope_inplace_loop<Bf16>(a, begin, end);
  if (a.q.format == Format::kF16) return rope_inplace_loop<F16>(a, begin, end);
  rope_inplace_loop<float>(a, begin, end);
}

void rope_rows(const Rope::Args& a, int64_t begin, int64_t end) {
  if (a.q.format == Format::kBf16) return rope_loop<Bf16>(a, begin, end);
  if (a.q.format == Format::kF16) return rope_loop<F16>(a, begin, end);
  rope_loop<float>(a, begin, end);
}

}  // namespace fathom::avx512
