#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attention_sink.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_plan.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_split.h"
#include "fathom/kernels/attn/ragged_attention/online_softmax.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {
namespace mla_decode {

MlaDecode::Args with_query_axis(const MlaDecode::Args& a) {
  if (a.q.rank == 4) return a;
  const auto insert_axis = [](View v) {
    for (size_t i = kMaxRank - 1; i > 1; --i) {
      v.dims[i] = v.dims[i - 1];
      v.strides[i] = v.strides[i - 1];
    }
    v.dims[1] = 1;
    v.strides[1] = 0;
    ++v.rank;
    return v;
  };
  MlaDecode::Args out = a;
  out.q = insert_axis(a.q);
  out.o = insert_axis(a.o);
  if (a.q_pe.present()) out.q_pe = insert_axis(a.q_pe);
  if (a.lse.present()) out.lse = insert_axis(a.lse);
  return out;
}

/// The first two axes as one, in front of an axis of one query. Strides must allow it (flattens).
static View merge_first_axes(View v) {
  if (v.dims[1] != 1) v.strides[0] = v.strides[1];
  v.dims[0] *= v.dims[1];
  v.dims[1] = 1;
  return v;
}

bool flattens(const MlaDecode::Args& a) {
  for (const View* v : {&a.q, &a.q_pe, &a.o, &a.lse}) {
    const bool one_axis = !v->present() || v->dim(0) <= 1 || v->dim(1) <= 1;
    if (!one_axis && v->stride(0) != v->dim(1) * v->stride(1)) return false;
  }
  return true;
}

int64_t flat_workspace(const MlaDecode::Args& a) {
  if (!a.slots.present()) return 0;
  const int64_t rows = a.slots.dim(0) * a.slots.dim(1);
  return align_up<int64_t>(rows * (a.slots.dim(2) + 1) * 4, 64);
}

MlaDecode::Args flatten(const MlaDecode::Args& a, void* memory) {
  if (!a.slots.present()) return a;
  const int64_t Q = a.slots.dim(1);
  const int64_t rows = a.slots.dim(0) * Q;
  const int64_t width = a.slots.dim(2);
  auto* table = static_cast<int32_t*>(memory);
  int32_t* lens = table + rows * width;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* slots = a.slots.row<const int32_t>(row / Q) + row % Q * a.slots.stride(1);
    int32_t* out = table + row * width;
    lens[row] = static_cast<int32_t>(
        std::copy_if(slots, slots + width, out, [](int32_t slot) { return slot >= 0; }) - out);
  }
  MlaDecode::Args flat = a;
  flat.slots = {};
  flat.table = KeyTable::kSlots;
  flat.block_table = make_view(table, {rows, width}, Format::kI32);
  flat.kv_lens = make_view(lens, {rows}, Format::kI32);
  flat.q = merge_first_axes(a.q);
  flat.o = merge_first_axes(a.o);
  if (a.q_pe.present()) flat.q_pe = merge_first_axes(a.q_pe);
  if (a.lse.present()) flat.lse = merge_first_axes(a.lse);
  return flat;
}

}  // namespace mla_decode

namespace {

using mla_decode::first_width;
using mla_decode::key_place;
using mla_decode::keys_per_entry;
using mla_decode::visible_keys;
using mla_decode::with_query_axis;

/// Keys of request b; every page of its block table, full, in a dry run.
int64_t keys_of(const MlaDecode::Args& a, int64_t b) {
  if (!a.kv_lens.readable()) return a.block_table.dim(1) * keys_per_entry(a);
  return a.kv_lens.as<int32_t>()[b];
}

/// Slots that are not -1; all of them in a dry run.
int64_t count_slots(const MlaDecode::Args& a) {
  if (!a.slots.readable()) return a.slots.numel();
  int64_t count = 0;
  for (int64_t b = 0; b < a.slots.dim(0); ++b) {
    for (int64_t j = 0; j < a.slots.dim(1); ++j) {
      const int32_t* row = a.slots.row<const int32_t>(b) + j * a.slots.stride(1);
      count += std::count_if(row, row + a.slots.dim(2), [](int32_t slot) { return slot >= 0; });
    }
  }
  return count;
}

Cost cost_with_query_axis(const MlaDecode::Args& a) {
  const int64_t Q = a.q.dim(1);
  const auto width = static_cast<double>(a.q.dim(2) * (a.cache.dim(2) + a.o.dim(3)));
  if (a.slots.present()) return {.flops = 2.0 * static_cast<double>(count_slots(a)) * width};
  double pairs = 0;
  for (int64_t b = 0; b < a.q.dim(0); ++b) {
    for (int64_t j = 0; j < Q; ++j) {
      const bool by_mask = a.tree_masks.readable() && a.tree_begins.readable();
      const int64_t seen =
          by_mask ? visible_keys(a, b, j) : std::max<int64_t>(keys_of(a, b) - Q + j + 1, 0);
      pairs += static_cast<double>(seen);
    }
  }
  return {.flops = 2.0 * pairs * width};
}

Status check_query(const MlaDecode::Args& a) {
  if (a.q.format == Format::kE4m3) {
    if (a.o.format == Format::kF16) {
      return invalid_argument("o is f16 but q is e4m3, whose results are bf16 or f32");
    }
  } else {
    FATHOM_TRY(check_same_format("q", a.q, "o", a.o));
  }
  if (a.q_pe.present()) return check_same_format("q", a.q, "q_pe", a.q_pe);
  if (first_width(a) == a.cache.dim(2)) return {};
  return invalid_argument(str_cat("q has ", first_width(a), " numbers a head but keys have ",
                                  a.cache.dim(2), ", and there is no q_pe"));
}

Status check_slot_lists(const MlaDecode::Args& a) {
  const int64_t slots = a.cache.dim(0) * a.cache.dim(1);
  for (int64_t i = 0; a.slots.readable() && i < a.slots.numel(); ++i) {
    const int64_t row = i / a.slots.dim(2);
    const int32_t slot = a.slots.row<const int32_t>(
        row / a.slots.dim(1))[row % a.slots.dim(1) * a.slots.stride(1) + i % a.slots.dim(2)];
    if (slot >= -1 && slot < slots) continue;
    return invalid_argument(str_cat("slots[", row / a.slots.dim(1), ",", row % a.slots.dim(1), ",",
                                    i % a.slots.dim(2), "] is ", slot, ", expected -1 to ",
                                    slots - 1));
  }
  return {};
}

Status check_decode(const MlaDecode::Args& a) {
  FATHOM_TRY(check_query(a));
  // A call that scales freely leaves kv_scale at 1, whatever the cache is.
  if (a.kv_scale != 1.0f) FATHOM_TRY(check_scale("kv_scale", a.kv_scale, a.cache.format));
  if (a.slots.present() && a.tree_masks.present()) {
    return invalid_argument("slots and tree_masks both say which keys a query sees");
  }
  if (a.slots.present()) return check_slot_lists(a);
  const bool by_slot = a.table == KeyTable::kSlots;
  const int64_t entries = by_slot ? a.cache.dim(0) * a.cache.dim(1) : a.cache.dim(0);
  FATHOM_TRY(check_block_table(a.kv_lens, a.block_table, keys_per_entry(a), entries, "keys"));
  return check_trees(a.tree_masks, a.tree_begins, a.kv_lens);
}

}  // namespace

Cost MlaDecode::cost(const Args& a) {
  return cost_with_query_axis(with_query_axis(a));
}

void MlaDecode::bytes(const Args& a, Cost& cost) {
  const int64_t page_size = keys_per_entry(a);
  int64_t keys = 0;
  int64_t entries = 0;
  if (a.slots.present()) {
    keys = count_slots(a);
    entries = a.slots.numel();
  } else {
    entries = a.kv_lens.dim(0);
    for (int64_t b = 0; b < a.kv_lens.dim(0); ++b) {
      keys += keys_of(a, b);
      entries += ceil_div(keys_of(a, b), page_size);
    }
  }
  cost.bytes_read = keys * a.cache.dim(2) * element_bytes(a.cache.format) +
                    a.q.numel() * element_bytes(a.q.format) + entries * 4;
  if (a.q_pe.present()) cost.bytes_read += a.q_pe.numel() * element_bytes(a.q_pe.format);
  if (a.sinks.present()) cost.bytes_read += a.sinks.numel() * 4;
  if (a.tree_masks.present())
    cost.bytes_read += operand_bytes(a.tree_masks) + operand_bytes(a.tree_begins);
  cost.bytes_written = a.o.numel() * element_bytes(a.o.format);
  if (a.lse.present()) cost.bytes_written += a.lse.numel() * 4;
}

namespace {

/// Floats of workspace that a thread of the portable variant takes: sums and a query.
int64_t portable_floats(const MlaDecode::Args& a) {
  return align_up<int64_t>(a.o.dim(3) * 4, 64) / 4 + align_up<int64_t>(a.cache.dim(2) * 4, 64) / 4;
}

}  // namespace

int64_t MlaDecode::workspace(const Args& args, int num_threads) {
  Args a = with_query_axis(args);
  const int64_t tables = mla_decode::flat_workspace(a);
  if (a.slots.present()) {  // no data is read
    a.block_table =
        make_view(nullptr, {a.slots.dim(0) * a.slots.dim(1), a.slots.dim(2)}, Format::kI32);
    a.q = mla_decode::merge_first_axes(a.q);
    a.o = mla_decode::merge_first_axes(a.o);
    a.table = KeyTable::kSlots;
  }
  const int64_t portable = num_threads * portable_floats(a) * 4;
  return tables + std::max(portable, mla_decode::split_workspace(a, num_threads));
}

Status MlaDecode::check(const Args& a) {
  if (a.slots.present()) {
    return invalid_argument("slots are for each query token; mla_decode_multi takes them");
  }
  if (a.tree_masks.present() || a.tree_begins.present()) {
    return invalid_argument("trees have several query tokens; mla_decode_multi takes them");
  }
  return check_decode(a);
}

Cost MlaDecodeMulti::cost(const Args& a) {
  return cost_with_query_axis(a);
}

void MlaDecodeMulti::bytes(const Args& a, Cost& cost) {
  MlaDecode::bytes(a, cost);
}

int64_t MlaDecodeMulti::workspace(const Args& a, int num_threads) {
  return MlaDecode::workspace(a, num_threads);
}

Status MlaDecodeMulti::check(const Args& a) {
  return check_decode(a);
}

namespace {

/// Query j of request b, head n, as float32: what any of its formats holds.
template <class A>
void load_query(const MlaDecode::Args& a, int64_t b, int64_t j, int64_t n, float* query) {
  const auto load = [&](const View& v, float* out) {
    const A* from = v.row<A>(b) + j * v.stride(1) + n * v.stride(2);
    for (int64_t d = 0; d < v.dim(3); ++d)
      out[d] = to_float(from[d]);
  };
  load(a.q, query);
  if (a.q_pe.present()) load(a.q_pe, query + a.q.dim(3));
}

/// Query j of request b, head n. `a` has the query axis; `memory` is the thread's.
template <class A, class C, class O>
void decode_row(const MlaDecode::Args& a, int64_t b, int64_t j, int64_t n, float* memory) {
  const int64_t L = a.o.dim(3);
  const int64_t page_size = keys_per_entry(a);
  float* sums = memory;
  float* query = memory + align_up<int64_t>(L * 4, 64) / 4;
  const int32_t* pages = a.block_table.row<int32_t>(b);
  const auto key_at = [&](int64_t i) -> const C* {
    const int64_t place = key_place(a, b, j, i);
    return slot_data<C>(a.cache, pages[place / page_size] * page_size + place % page_size);
  };
  load_query<A>(a, b, j, n, query);
  SoftmaxState state =
      attend<MlaDecode::kKeyBlock>(query, a.cache.dim(2), L, 0, visible_keys(a, b, j),
                                   a.scale * a.kv_scale, key_at, key_at, sums);
  float shrink = 1.0f;
  if (a.sinks.present()) {
    const SinkState with = add_sink(state.max, state.sum, a.sinks.as<const float>()[n]);
    state = {with.max, with.sum};
    shrink = with.shrink;
  }
  const float factor = state.inverse_sum() * a.kv_scale * (shrink * a.o_scale);
  O* o = a.o.row<O>(b) + j * a.o.stride(1) + n * a.o.stride(2);
  for (int64_t d = 0; d < L; ++d)
    o[d] = from_float<O>(sums[d] * factor);
  if (a.lse.present()) {
    a.lse.row<float>(b)[j * a.lse.stride(1) + n * a.lse.stride(2)] = state.lse();
  }
}

/// Calls f(T{}) with an element type of q or of the cache.
template <class F>
void with_code_type(Format format, F&& f) {
  if (format == Format::kE4m3) return f(E4m3{});
  with_float_type(format, f);
}

void decode_rows(Exec& ex, const MlaDecode::Args& a, float* memory) {
  const int64_t Q = a.q.dim(1);
  const int64_t N = a.q.dim(2);
  with_code_type(a.q.format, [&]<class A>(A) {
    with_code_type(a.cache.format, [&]<class C>(C) {
      with_float_type(a.o.format, [&]<class O>(O) {
        for_rows_by_thread(ex, a.q.dim(0) * Q * N, a.cache.dim(2) * 256,
                           [&](int thread_id, int64_t begin, int64_t end) {
                             float* own = memory + thread_id * portable_floats(a);
                             for (int64_t row = begin; row < end; ++row)
                               decode_row<A, C, O>(a, row / (Q * N), row / N % Q, row % N, own);
                           });
      });
    });
  });
}

/// The queries of a call with slots one at a time, where they do not lie as requests would.
void decode_scattered(Exec& ex, const MlaDecode::Args& a, void* tables, float* memory) {
  const auto query = [](const View& v, int64_t j) {
    View out = v;
    if (!v.present()) return out;
    out.data = v.as<std::byte>() + j * v.stride(1) * element_bytes(v.format);
    out.dims[1] = 1;
    return out;
  };
  for (int64_t j = 0; j < a.q.dim(1); ++j) {
    MlaDecode::Args one = a;
    one.slots = query(a.slots, j);
    MlaDecode::Args flat = mla_decode::flatten(one, tables);
    flat.q = query(a.q, j);
    flat.q_pe = query(a.q_pe, j);
    flat.o = query(a.o, j);
    flat.lse = query(a.lse, j);
    decode_rows(ex, flat, memory);
  }
}

Status decode_portable(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  auto* memory = reinterpret_cast<float*>(static_cast<std::byte*>(ex.workspace) +
                                          mla_decode::flat_workspace(a));
  if (a.slots.present() && !mla_decode::flattens(a)) {
    decode_scattered(ex, a, ex.workspace, memory);
  } else {
    decode_rows(ex, mla_decode::flatten(a, ex.workspace), memory);
  }
  return {};
}

Status decode_avx512(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  void* const whole = ex.workspace;
  const MlaDecode::Args flat = mla_decode::flatten(a, whole);
  ex.workspace = static_cast<std::byte*>(whole) + mla_decode::flat_workspace(a);
  mla_decode::run_splits(ex, flat);
  ex.workspace = whole;
  return {};
}

/// The vector variant computes with bf16, which holds e4m3 codes; f32 caches hold more than it
/// could use. The two parts of a query meet between two pairs.
bool is_bf16(const MlaDecode::Args& a) {
  const auto holds = [](Format f) { return f == Format::kBf16 || f == Format::kE4m3; };
  const bool pairs = !a.q_pe.present() || first_width(a) % 2 == 0;
  return holds(a.q.format) && holds(a.cache.format) && a.o.format == Format::kBf16 && pairs &&
         (!a.slots.present() || mla_decode::flattens(a));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<MlaDecode> mla_decode_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, decode_avx512, MathUnit::kBf16, is_bf16},
    {"portable", Isa::kPortable, "", kTraits, decode_portable},
};

constinit const VariantTable<MlaDecodeMulti> mla_decode_multi_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, decode_avx512, MathUnit::kBf16, is_bf16},
    {"portable", Isa::kPortable, "", kTraits, decode_portable},
};

}  // namespace fathom
