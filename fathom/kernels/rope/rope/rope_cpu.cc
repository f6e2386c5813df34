#include <cstring>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/kernels/rope/rope/rope_loops.h"
#include "fathom/kernels/rope/rope/rope_rows.h"

namespace fathom {

Status check_positions(const View& positions, int64_t table_rows) {
  if (!positions.readable()) return {};
  for (int64_t t = 0; t < positions.dim(0); ++t) {
    const int64_t position = position_of(positions, t);
    if (position >= 0 && position < table_rows) continue;
    return invalid_argument(
        str_cat("positions[", t, "] is ", position, " but the table has rows 0..", table_rows - 1));
  }
  return {};
}

namespace {

int64_t num_heads(const View& q, const View& k) {
  return q.dim(1) + (k.present() ? k.dim(1) : 0);
}

Cost cost_of_rotation(const View& q, const View& k, const View& table) {
  return {.flops = 3.0 * static_cast<double>(q.dim(0) * num_heads(q, k) * table.dim(1))};
}

void bytes_of_rotation(
    const View& q, const View& k, const View& positions, const View& table, Cost& cost) {
  const int64_t values = q.dim(0) * num_heads(q, k) * table.dim(1) * element_bytes(q.format);
  const int64_t row = table.dim(1) * element_bytes(table.format) + element_bytes(positions.format);
  cost.bytes_read = values + q.dim(0) * row;
  cost.bytes_written = values;
}

/// Slots are given and used together with what they address.
Status check_cache(const RopeInplace::Args& a) {
  const bool all = a.k.present() && a.v.present() && a.slots.present() && a.k_cache.present() &&
                   a.v_cache.present();
  const bool none =
      !a.v.present() && !a.slots.present() && !a.k_cache.present() && !a.v_cache.present();
  if (none) return {};
  if (!all) {
    return invalid_argument(
        "v, slots, k_cache and v_cache are given together, with k, or not at all");
  }
  FATHOM_TRY(check_same_format("k", a.k, "v", a.v));
  FATHOM_TRY(check_same_format("k", a.k, "k_cache", a.k_cache));
  FATHOM_TRY(check_same_format("v", a.v, "v_cache", a.v_cache));
  if (!a.slots.readable()) return {};
  for (int64_t t = 0; t < a.slots.dim(0); ++t) {
    const int64_t slot = a.slots.as<int64_t>()[t];
    if (slot >= -1 && slot < a.k_cache.dim(0)) continue;
    return invalid_argument(
        str_cat("slots[", t, "] is ", slot, " but the cache has slots 0..", a.k_cache.dim(0) - 1));
  }
  return {};
}

}  // namespace

Cost RopeInplace::cost(const Args& a) {
  return cost_of_rotation(a.q, a.k, a.table);
}

void RopeInplace::bytes(const Args& a, Cost& cost) {
  bytes_of_rotation(a.q, a.k, a.positions, a.table, cost);
  if (!a.slots.present()) return;
  // The key comes from the registers of the rotation, but for what it does not rotate.
  const int64_t row = a.v.dim(1) * a.v.dim(2) * element_bytes(a.v.format);
  const int64_t unrotated = a.k.dim(1) * (a.k.dim(2) - a.table.dim(1)) * element_bytes(a.k.format);
  cost.bytes_read += a.v.dim(0) * (row + unrotated + 8);
  cost.bytes_written += a.v.dim(0) * 2 * row;
}

Status RopeInplace::check(const Args& a) {
  if (a.k.present()) FATHOM_TRY(check_same_format("q", a.q, "k", a.k));
  FATHOM_TRY(check_cache(a));
  return check_positions(a.positions, a.table.dim(0));
}

Cost Rope::cost(const Args& a) {
  return cost_of_rotation(a.q, a.k, a.table);
}

void Rope::bytes(const Args& a, Cost& cost) {
  bytes_of_rotation(a.q, a.k, a.positions, a.table, cost);
}

Status Rope::check(const Args& a) {
  if (a.k.present()) FATHOM_TRY(check_same_format("q", a.q, "k", a.k));
  FATHOM_TRY(check_same_format("q", a.q, "table", a.table));
  return check_positions(a.positions, a.table.dim(0));
}

namespace {

/// Rotates the heads of token t; Table is float for RopeInplace and A for Rope, which rounds terms.
template <class A, class Table>
void rotate_heads(const View& x, int64_t t, const Table* table_row, int64_t R, RopeStyle style) {
  for (int64_t n = 0; n < x.dim(1); ++n) {
    A* head = x.row<A>(t) + n * x.stride(1);
    rotate_head<Table>(head, head, table_row, R, style);
  }
}

/// The heads of token t to a slot of a cache.
template <class A>
void copy_heads(const View& x, int64_t t, const View& cache, int64_t slot) {
  for (int64_t n = 0; n < x.dim(1); ++n) {
    std::memcpy(cache.row<A>(slot) + n * cache.stride(1), x.row<A>(t) + n * x.stride(1),
                static_cast<size_t>(x.dim(2)) * sizeof(A));
  }
}

template <class A>
void rope_inplace_token(const RopeInplace::Args& a, int64_t t) {
  const int64_t R = a.table.dim(1);
  const float* table_row = a.table.row<float>(position_of(a.positions, t));
  rotate_heads<A>(a.q, t, table_row, R, a.style);
  if (a.k.present()) rotate_heads<A>(a.k, t, table_row, R, a.style);
  if (!a.slots.present()) return;
  const int64_t slot = a.slots.as<int64_t>()[t];
  if (slot < 0) return;
  copy_heads<A>(a.k, t, a.k_cache, slot);
  copy_heads<A>(a.v, t, a.v_cache, slot);
}

template <class A>
void rope_token(const Rope::Args& a, int64_t t) {
  const int64_t R = a.table.dim(1);
  const A* table_row = a.table.row<A>(position_of(a.positions, t));
  rotate_heads<A>(a.q, t, table_row, R, a.style);
  if (a.k.present()) rotate_heads<A>(a.k, t, table_row, R, a.style);
}

void rope_inplace_rows_portable(const RopeInplace::Args& a, int64_t begin, int64_t end) {
  with_float_type(a.q.format, [&]<class A>(A) {
    for (int64_t t = begin; t < end; ++t)
      rope_inplace_token<A>(a, t);
  });
}

void rope_rows_portable(const Rope::Args& a, int64_t begin, int64_t end) {
  with_float_type(a.q.format, [&]<class A>(A) {
    for (int64_t t = begin; t < end; ++t)
      rope_token<A>(a, t);
  });
}

template <auto Loop, class Args>
Status run_rows(Exec& ex, const Args& a) {
  for_rows(ex, a.q.dim(0), num_heads(a.q, a.k) * a.q.dim(2) * 8,
           [&](int64_t begin, int64_t end) { Loop(a, begin, end); });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<RopeInplace> rope_inplace_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::rope_inplace_rows, RopeInplace::Args>},
    {"portable", Isa::kPortable, "", kTraits,
     run_rows<rope_inplace_rows_portable, RopeInplace::Args>},
};

constinit const VariantTable<Rope> rope_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::rope_rows, Rope::Args>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<rope_rows_portable, Rope::Args>},
};

}  // namespace fathom
