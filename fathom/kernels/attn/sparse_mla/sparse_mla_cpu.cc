#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/attention_sink.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/attn/ragged_attention/online_softmax.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla_plan.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/rope/inverse_rope/turn_back.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rope_loops.h"

namespace fathom {
namespace sparse_mla {

Call make_call(const SparseMlaDecode::Args& a) {
  return {.q = a.q,
          .o = a.o,
          .sources = {a.rows, a.extra},
          .num_sources = a.extra.present() ? 2 : 1,
          .lengths = {},
          .sink = a.sink,
          .max = {},
          .lse = a.lse,
          .positions = a.positions,
          .table = a.table,
          .scale = a.scale};
}

Call make_call(const SparseMlaPrefill::Args& a) {
  View rows = a.kv;  // a cache whose pages are one row
  rows.dims = {a.kv.dim(0), 1, a.kv.dim(1)};
  rows.strides = {a.kv.stride(0), 0, a.kv.stride(1)};
  rows.rank = 3;
  return {.q = a.q,
          .o = a.o,
          .sources = {{.values = rows, .slots = a.ids}, {}},
          .lengths = a.lengths,
          .sink = a.sink,
          .max = a.max,
          .lse = a.lse,
          .scale = a.scale,
          .lse_factor = a.lse_base == LseBase::k2 ? kLog2E : 1.0f};
}

namespace {

// ---- the portable variant ----

float scale_at(const View& scales, int64_t slot, int64_t group) {
  switch (scales.format) {
    case Format::kUe8m0:
      return to_float(slot_data<const Ue8m0>(scales, slot)[group]);
    case Format::kE4m3:
      return to_float(slot_data<const E4m3>(scales, slot)[group]);
    default:
      return slot_data<const float>(scales, slot)[group];
  }
}

/// The D channels of a row. Channels of rows of codes are rounded to Q's format.
template <class Q>
void decode_row(const SparseRows& rows, int64_t slot, float* out) {
  const int64_t W = value_channels(rows);
  if (!is_coded(rows)) {
    with_activation_type(rows.values.format, [&]<class V>(V) {
      const V* values = slot_data<const V>(rows.values, slot);
      for (int64_t d = 0; d < W; ++d)
        out[d] = to_float(values[d]);
    });
    return;
  }
  const int64_t group = W / num_scales(rows);
  for (int64_t d = 0; d < W; ++d) {
    const float code = rows.values.format == Format::kU8
                           ? to_float(unpack_e2m1(slot_data<const uint8_t>(rows.values, slot), d))
                           : to_float(slot_data<const E4m3>(rows.values, slot)[d]);
    out[d] = to_float(from_float<Q>(code * scale_at(rows.scales, slot, d / group)));
  }
  if (!rows.rope.present()) return;
  const Bf16* rope = slot_data<const Bf16>(rows.rope, slot);
  for (int64_t d = 0; d < rows.rope.dim(2); ++d)
    out[W + d] = to_float(rope[d]);
}

/// Adds `count` rows to the state of a head: its sum o[0:L] of values is not normalised.
template <class Q>
void add_rows(const Q* q,
              const float* rows,
              int64_t count,
              int64_t D,
              int64_t L,
              float scale,
              SoftmaxState& state,
              float* o) {
  float logits[kRowBlock];
  float max = state.max;
  for (int64_t j = 0; j < count; ++j) {
    float dot = 0.0f;
    for (int64_t d = 0; d < D; ++d)
      dot += to_float(q[d]) * rows[j * D + d];
    logits[j] = scale * dot;
    max = logits[j] > max ? logits[j] : max;
  }
  // A maximum of -inf means that no row has any weight yet; e^(-inf - 0) is 0 as it should be.
  const float reference = max == -std::numeric_limits<float>::infinity() ? 0.0f : max;
  const float rescale = std::exp(state.max - reference);
  state.max = max;
  state.sum *= rescale;
  for (int64_t d = 0; d < L; ++d)
    o[d] *= rescale;
  for (int64_t j = 0; j < count; ++j) {
    const float weight = std::exp(logits[j] - reference);
    state.sum += weight;
    for (int64_t d = 0; d < L; ++d)
      o[d] += weight * rows[j * D + d];
  }
}

/// What the sum of values is multiplied by in the end.
float normaliser(const Call& c, int64_t n, const SoftmaxState& state) {
  if (state.sum == 0.0f) return 0.0f;
  if (!c.sink.present()) return 1.0f / state.sum;
  return 1.0f / (state.sum + std::exp(c.sink.as<const float>()[n] - state.max));
}

/// Memory of a thread, in floats: a block of rows, the states of some heads, a list of rows, the
/// rotation of a token.
struct PortableMemory {
  float* rows;
  float* o;
  SoftmaxState* states;
  int32_t* list;
  float* back;

  static int64_t bytes(const Call& c, int64_t heads) {
    const int64_t floats =
        kRowBlock * c.q.dim(2) + heads * (c.o.dim(2) + 2) + list_width(c) + turned_channels(c);
    return align_up<int64_t>(floats * 4, 64);
  }

  PortableMemory(const Call& c, int64_t heads, void* memory)
      : rows(static_cast<float*>(memory)),
        o(rows + kRowBlock * c.q.dim(2)),
        states(reinterpret_cast<SoftmaxState*>(o + heads * c.o.dim(2))),
        list(reinterpret_cast<int32_t*>(states + heads)),
        back(reinterpret_cast<float*>(list + list_width(c))) {}
};

static_assert(sizeof(SoftmaxState) == 2 * sizeof(float));

template <class Q, class O>
void attend_heads(const Call& c, int64_t t, int64_t head, int64_t count, void* memory) {
  const int64_t D = c.q.dim(2);
  const int64_t L = c.o.dim(2);
  const PortableMemory m(c, count, memory);
  const RowList list = list_rows(c, t, m.list);
  std::fill_n(m.o, count * L, 0.0f);
  std::fill_n(m.states, count, SoftmaxState{});
  for (int64_t begin = 0; begin < list.count; begin += kRowBlock) {
    const int64_t num_rows = std::min(kRowBlock, list.count - begin);
    for (int64_t j = 0; j < num_rows; ++j) {
      const RowPlace place = row_place(c, list, begin + j);
      decode_row<Q>(*place.source, place.slot, m.rows + j * D);
    }
    for (int64_t i = 0; i < count; ++i) {
      const Q* q = c.q.row<const Q>(t) + (head + i) * c.q.stride(1);
      add_rows(q, m.rows, num_rows, D, L, c.scale, m.states[i], m.o + i * L);
    }
  }
  const int64_t R = turned_channels(c);
  if (R > 0) turn_back(c.table.row<const float>(position_of(c.positions, t)), R, m.back);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = head + i;
    const float factor = normaliser(c, n, m.states[i]);
    float* sums = m.o + i * L;
    for (int64_t d = 0; d < L; ++d)
      sums[d] *= factor;
    float* pe = sums + L - R;
    rotate_head(pe, pe, m.back, R, RopeStyle::kInterleaved);
    O* o = c.o.row<O>(t) + n * c.o.stride(1);
    for (int64_t d = 0; d < L; ++d)
      o[d] = from_float<O>(sums[d]);
    if (c.max.present()) c.max.row<float>(t)[n] = m.states[i].max * c.lse_factor;
    if (c.lse.present()) c.lse.row<float>(t)[n] = m.states[i].lse() * c.lse_factor;
  }
}

// ---- both variants ----

/// Below this, waking other threads costs more than they save: some microseconds of one core.
constexpr int64_t kSerialProducts = 1 << 20;

/// Heads of an item: fewer where threads would have nothing to do, though each item of a token
/// decodes the token's rows again. Says nothing about results.
int64_t heads_per_item(const Call& c, int num_threads) {
  constexpr int64_t kFewest = 8;
  const int64_t N = c.q.dim(1);
  int64_t heads = std::min(N, kMaxHeads);
  while (heads > kFewest) {
    const int64_t items = c.q.dim(0) * ceil_div(N, heads);
    if (items >= 4 * num_threads || items % num_threads == 0) break;
    heads = ceil_div<int64_t>(heads, 2);
  }
  return heads;
}

/// Calls attend(t, head, count, memory) for all items.
template <class F>
void for_items(Exec& ex, const Call& c, int64_t thread_bytes, F&& attend) {
  const int64_t N = c.q.dim(1);
  if (c.q.dim(0) == 0 || N == 0) return;
  const int64_t products = c.q.numel() * list_width(c);
  const bool serial = ex.num_threads == 1 || products < kSerialProducts;
  const int64_t heads = heads_per_item(c, serial ? 1 : ex.num_threads);
  const int64_t groups = ceil_div(N, heads);
  const auto run = [&](int thread_id, int num_threads) {
    std::byte* memory = static_cast<std::byte*>(ex.workspace) + thread_id * thread_bytes;
    for (int64_t item = thread_id; item < c.q.dim(0) * groups; item += num_threads) {
      const int64_t head = item % groups * heads;
      attend(item / groups, head, std::min(heads, N - head), memory);
    }
  };
  if (serial) return run(0, 1);
  ex.pool->run(run);
}

int64_t most_heads(const Call& c) {
  return std::min(c.q.dim(1), kMaxHeads);
}

int64_t avx512_bytes(const Call& c) {
  return align_up<int64_t>(avx512::sparse_mla_scratch(c, most_heads(c)), 64);
}

int64_t workspace_bytes(const Call& c, int num_threads) {
  return num_threads * std::max(PortableMemory::bytes(c, most_heads(c)), avx512_bytes(c));
}

template <class Args>
Status run_portable(Exec& ex, const Args& a) {
  const Call c = make_call(a);
  with_activation_type(c.q.format, [&]<class Q>(Q) {
    with_activation_type(c.o.format, [&]<class O>(O) {
      for_items(ex, c, PortableMemory::bytes(c, most_heads(c)),
                [&](int64_t t, int64_t head, int64_t count, void* memory) {
                  attend_heads<Q, O>(c, t, head, count, memory);
                });
    });
  });
  return {};
}

template <class Args>
Status run_avx512(Exec& ex, const Args& a) {
  const Call c = make_call(a);
  for_items(ex, c, avx512_bytes(c), [&](int64_t t, int64_t head, int64_t count, void* memory) {
    avx512::sparse_mla_heads(c, t, head, count, memory);
  });
  return {};
}

/// The vector variant computes with bf16, which float32 rows would lose by, and decodes sixteen
/// channels at a time.
template <class Args>
bool is_bf16(const Args& a) {
  const Call c = make_call(a);
  const auto takes = [](const SparseRows& rows) {
    if (!is_coded(rows)) return rows.values.format == Format::kBf16;
    return value_channels(rows) / num_scales(rows) % 16 == 0;
  };
  return c.q.format == Format::kBf16 && takes(c.sources[0]) &&
         (c.num_sources == 1 || takes(c.sources[1]));
}

// ---- checks and costs ----

Status check_fields(const char* prefix, const SparseRows& rows, int64_t D) {
  const int64_t W = value_channels(rows);
  const std::string_view format = format_name(rows.values.format);
  if (rows.values.format == Format::kBf16 || rows.values.format == Format::kF32) {
    for (const auto& [name, view] : {std::pair{"rope", &rows.rope}, {"scales", &rows.scales}}) {
      if (!view->present()) continue;
      return invalid_argument(str_cat(prefix, name, " is given but ", prefix, "values is ", format,
                                      ", whose rows have all channels and no scales"));
    }
  } else if (!rows.scales.present()) {
    return invalid_argument(
        str_cat(prefix, "values is ", format, " but ", prefix, "scales is not given"));
  } else if (num_scales(rows) < 1 || W % num_scales(rows) != 0) {
    return invalid_argument(str_cat(prefix, "scales has ", num_scales(rows), " scales a row, but ",
                                    prefix, "values has ", W, " channels"));
  }
  const int64_t R = rows.rope.present() ? rows.rope.dim(2) : 0;
  if (W + R != D) {
    return invalid_argument(str_cat(prefix, "values and ", prefix, "rope have ", W, " + ", R,
                                    " channels but q has ", D));
  }
  return {};
}

Status check_rows(const char* prefix, const SparseRows& rows, int64_t D) {
  FATHOM_TRY(check_fields(prefix, rows, D));
  return check_indices(str_cat(prefix, "slots"), rows.slots,
                       rows.values.dim(0) * rows.values.dim(1));
}

Status check_rotation(const View& positions, const View& table, int64_t L) {
  if (!table.present()) {
    return positions.present() ? invalid_argument("positions is given but table is not") : Status{};
  }
  if (!positions.present()) return invalid_argument("table is given but positions is not");
  if (const int64_t R = table.dim(1); R % 2 != 0 || R > L) {
    return invalid_argument(
        str_cat("table has ", R, " columns, expected an even number of at most ", L));
  }
  return check_positions(positions, table.dim(0));
}

/// Entries that name a row, of all tokens, in source i; all entries in a dry run.
int64_t count_rows(const Call& c, int i) {
  const SparseRows& source = c.sources[i];
  if (!source.slots.readable()) return source.slots.numel();
  const int64_t num_rows = source.values.dim(0) * source.values.dim(1);
  int64_t count = 0;
  for (int64_t t = 0; t < source.slots.dim(0); ++t) {
    const bool cut = i == 0 && c.lengths.readable();
    const int64_t length = cut ? c.lengths.as<const int32_t>()[t] : source.slots.dim(1);
    const int32_t* slots = source.slots.row<const int32_t>(t);
    count += std::count_if(slots, slots + length,
                           [=](int32_t slot) { return slot >= 0 && slot < num_rows; });
  }
  return count;
}

int64_t row_bytes(const SparseRows& rows) {
  int64_t bytes = 0;
  for (const View* field : {&rows.values, &rows.rope, &rows.scales}) {
    if (field->present()) bytes += field->dim(2) * element_bytes(field->format);
  }
  return bytes;
}

Cost cost_of_call(const Call& c) {
  int64_t rows = 0;
  for (int i = 0; i < c.num_sources; ++i)
    rows += count_rows(c, i);
  const int64_t width = c.q.dim(1) * (c.q.dim(2) + c.o.dim(2));
  const int64_t turned = c.q.dim(0) * c.q.dim(1) * turned_channels(c);
  return {.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(width) +
                   3.0 * static_cast<double>(turned)};
}

void bytes_of_call(const Call& c, Cost& cost) {
  const auto all = [](const View& v) {
    return v.present() ? v.numel() * element_bytes(v.format) : int64_t{0};
  };
  cost.bytes_read = all(c.q) + all(c.sink) + all(c.lengths) + all(c.positions) +
                    c.q.dim(0) * turned_channels(c) * 4;
  for (int i = 0; i < c.num_sources; ++i) {
    cost.bytes_read += all(c.sources[i].slots) + count_rows(c, i) * row_bytes(c.sources[i]);
  }
  cost.bytes_written = all(c.o) + all(c.max) + all(c.lse);
}

}  // namespace
}  // namespace sparse_mla

using sparse_mla::make_call;

Cost SparseMlaDecode::cost(const Args& a) {
  return sparse_mla::cost_of_call(make_call(a));
}

void SparseMlaDecode::bytes(const Args& a, Cost& cost) {
  sparse_mla::bytes_of_call(make_call(a), cost);
}

int64_t SparseMlaDecode::workspace(const Args& a, int num_threads) {
  return sparse_mla::workspace_bytes(make_call(a), num_threads);
}

Status SparseMlaDecode::check(const Args& a) {
  FATHOM_TRY(sparse_mla::check_rows("", a.rows, a.q.dim(2)));
  FATHOM_TRY(sparse_mla::check_rotation(a.positions, a.table, a.o.dim(2)));
  const SparseRows& extra = a.extra;
  if (!extra.present()) {
    for (const auto& [name, view] : {std::pair{"extra_slots", &extra.slots},
                                     {"extra_rope", &extra.rope},
                                     {"extra_scales", &extra.scales}}) {
      if (view->present())
        return invalid_argument(str_cat(name, " is given but extra_values is not"));
    }
    return {};
  }
  if (!extra.slots.present())
    return invalid_argument("extra_values is given but extra_slots is not");
  return sparse_mla::check_rows("extra_", extra, a.q.dim(2));
}

Cost SparseMlaPrefill::cost(const Args& a) {
  return sparse_mla::cost_of_call(make_call(a));
}

void SparseMlaPrefill::bytes(const Args& a, Cost& cost) {
  sparse_mla::bytes_of_call(make_call(a), cost);
}

int64_t SparseMlaPrefill::workspace(const Args& a, int num_threads) {
  return sparse_mla::workspace_bytes(make_call(a), num_threads);
}

Status SparseMlaPrefill::check(const Args& a) {
  if (!a.lengths.readable()) return {};
  for (int64_t t = 0; t < a.lengths.dim(0); ++t) {
    const int32_t length = a.lengths.as<const int32_t>()[t];
    if (length >= 0 && length <= a.ids.dim(1)) continue;
    return invalid_argument(
        str_cat("lengths[", t, "] is ", length, ", expected 0 to ", a.ids.dim(1)));
  }
  return {};
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<SparseMlaDecode> sparse_mla_decode_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, sparse_mla::run_avx512<SparseMlaDecode::Args>,
     MathUnit::kBf16, sparse_mla::is_bf16<SparseMlaDecode::Args>},
    {"portable", Isa::kPortable, "", kTraits, sparse_mla::run_portable<SparseMlaDecode::Args>},
};

constinit const VariantTable<SparseMlaPrefill> sparse_mla_prefill_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, sparse_mla::run_avx512<SparseMlaPrefill::Args>,
     MathUnit::kBf16, sparse_mla::is_bf16<SparseMlaPrefill::Args>},
    {"portable", Isa::kPortable, "", kTraits, sparse_mla::run_portable<SparseMlaPrefill::Args>},
};

}  // namespace fathom
