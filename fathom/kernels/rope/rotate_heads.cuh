// Heads turned in place by the angles of their tokens, shared by the kernels that do nothing else:
// a thread a unit of eight elements of several heads, or a block a token for any width and stride.
#pragma once

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rotate.cuh"
#include "fathom/tensor/view.h"

namespace fathom::cuda {

/// Heads [T,N,D] of a format known at run time, or none.
struct Heads {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int count = 0;
  int64_t width = 0;

  __device__ int64_t offset(int64_t t, int64_t n) const {
    return t * token_stride + n * head_stride;
  }
};

inline Heads heads_of(const View& v) {
  if (!v.present()) return {};
  return {v.data, v.stride(0), v.stride(1), static_cast<int>(v.dim(1)), v.dim(2)};
}

struct Rotation {
  Heads q, k;
  RotaryTable table;
};

/// The heads of a token in groups of `each` that follow each other, those of q, then those of k. An
/// item is one unit of all heads of a group.
struct UnitGroups {
  FlatItems items;
  FastDivide units_of_head;
  int of_q;  ///< groups
};

inline UnitGroups unit_groups(const Rotation& r, int64_t num_tokens, int each) {
  const int of_q = ceil_div(r.q.count, each);
  const int64_t units_of_head = r.table.R / kVector;
  return {flat_items(num_tokens, (of_q + ceil_div(r.k.count, each)) * units_of_head),
          FastDivide(units_of_head), of_q};
}

template <class A, int kEach>
__device__ HeadRun<A> group_of(const Heads& heads, int64_t t, int group) {
  return {static_cast<A*>(heads.data) + heads.offset(t, int64_t{group} * kEach), heads.head_stride,
          min(kEach, heads.count - group * kEach)};
}

template <class A, class Table, class Term, int kEach, Turn kTurn>
__global__ void __launch_bounds__(kFlatThreads) rotate_units(Rotation r, UnitGroups groups) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = groups.items.mine<1>(0);
  if (!at.exists) return;
  const auto group = static_cast<int>(groups.units_of_head.of(static_cast<uint32_t>(at.item)));
  const int unit = at.item - group * static_cast<int>(groups.units_of_head.divisor);
  const bool is_q = group < groups.of_q;
  const HeadRun<A> heads =
      group_of<A, kEach>(is_q ? r.q : r.k, at.row, is_q ? group : group - groups.of_q);
  rotate_unit<Term, Table, kEach, kTurn>(
      r.table, at.row, unit, heads, [&] { return heads; }, Unscaled());
}

/// Widths are multiples of eight elements, and everything is aligned to sixteen bytes.
template <class A, class Table, class Term, Turn kTurn = Turn::kForth>
Status run_rotate_units(Exec& ex, const Rotation& r, int64_t num_tokens) {
  const FlatItems units = unit_groups(r, num_tokens, 1).items;
  return with_items_each(ex, units, [&]<int kEach>(const LaunchShape&) {
    const UnitGroups groups = unit_groups(r, num_tokens, kEach);
    return launch_kernel(ex, rotate_units<A, Table, Term, kEach, kTurn>,
                         one_item_each(groups.items), r, groups);
  });
}

/// All heads of token t by a block, a pair a thread.
template <class A, class Table, class Term, Turn kTurn>
__device__ void rotate_token(const Rotation& r, int64_t t) {
  const Table* angles = r.table.row<Table>(t);
  const int64_t R = r.table.R;
  const int64_t pairs = R / 2;
  const RopeStyle style = r.table.style;
  const int64_t all_pairs = angles == nullptr ? 0 : (r.q.count + r.k.count) * pairs;
  for (int64_t i = threadIdx.x; i < all_pairs; i += blockDim.x) {
    const int64_t n = i / pairs;
    const int64_t pair = i - n * pairs;
    A* head = n < r.q.count ? static_cast<A*>(r.q.data) + r.q.offset(t, n)
                            : static_cast<A*>(r.k.data) + r.k.offset(t, n - r.q.count);
    A* first = head + first_of_pair(pair, style);
    A* second = head + second_of_pair(pair, R, style);
    float a = load(first);
    float b = load(second);
    const float sine = load(angles + pairs + pair);
    rotate_pair<Term>(a, b, load(angles + pair), kTurn == Turn::kBack ? -sine : sine);
    store(first, a);
    store(second, b);
  }
}

}  // namespace fathom::cuda
