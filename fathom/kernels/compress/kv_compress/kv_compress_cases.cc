#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "fathom/kernels/attn/cache_row_oracle.h"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"
#include "fathom/kernels/conformance/call_tokens.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

constexpr float kEps = 1e-6f;

// ---- compress_state_write ----

struct StateShape {
  CaseSpec spec;
  int64_t t;
  int64_t width;  ///< W
  int64_t ratio;
  Format format = Format::kF32;
  int64_t ring = 8;                   ///< rows of a sequence's slot
  int64_t gap = 96;                   ///< of u_z
  int64_t sequences = 0;              ///< 0: more than the tokens need
  std::optional<CallTokens> of = {};  ///< of a recorded call: where its tokens stand
};

/// The slot of a token's row in the rings; -1 for what the newest tokens of its request overwrite.
int64_t ring_slot(const CallTokens& of, int64_t t, int64_t sequences, int64_t ring) {
  const int64_t request = of.request(t);
  if (of.first(request + 1) - t > ring) return -1;
  return request % sequences * ring + of.position(t) % ring;
}

void add_state_case(CaseList& list, const StateShape& s) {
  add_case<CompressStateWrite>(list, s.spec, [s](CaseBuilder<CompressStateWrite>& c) {
    c.set_batch(s.t);
    const Tensor u_z =
        c.input({s.t, 2 * s.width}, s.format, {.dist = s.of ? Dist::kNormal : Dist::kMixedRows},
                {.row_gap = s.gap, .rows_per_batch = 1});
    const Tensor ape = c.input({s.ratio, s.width}, Format::kF32);
    const Tensor positions = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
    positions.fill([&](int64_t t) { return s.of ? s.of->position(t) : 1000003 + 7 * t; });
    const Tensor slots = c.input({s.t}, Format::kI64, {}, {.rows_per_batch = 1});
    const int64_t sequences = s.sequences > 0 ? s.sequences : 2 * s.t / s.ring + 2;
    const int64_t num_slots = sequences * s.ring;
    slots.fill([&](int64_t t) {
      if (s.of) return ring_slot(*s.of, t, sequences, s.ring);
      return t == 2 ? -1 : num_slots - 1 - 2 * t;
    });
    const Tensor state_u =
        c.output({sequences, s.ring, s.width}, Format::kF32, {.row_gap = s.width});
    const Tensor state_z =
        c.output({sequences, s.ring, s.width}, Format::kF32, {.row_gap = s.width});
    c.bind([=](const Binding& at) {
      return CompressStateWrite::Args{.u_z = at(u_z),
                                      .ape = at(ape),
                                      .positions = at(positions),
                                      .slots = at(slots),
                                      .state_u = at(state_u),
                                      .state_z = at(state_z)};
    });
    const auto expect = [&](const Tensor& state, const Gate& gate, bool scores) {
      c.expect_rows(state, gate, [=](int64_t slot, std::span<double> out) {
        std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());
        for (int64_t t = 0; t < s.t; ++t) {
          if (static_cast<int64_t>(slots[t]) != slot) continue;
          const int64_t row = static_cast<int64_t>(positions[t]) % s.ratio;
          for (int64_t i = 0; i < s.width; ++i) {
            out[static_cast<size_t>(i)] =
                scores ? u_z.at(t, s.width + i) + ape.at(row, i) : u_z.at(t, i);
          }
        }
      });
    };
    expect(state_u, gates::exact(), false);
    expect(state_z, {.abs = 1e-37, .rel = 0x1.001p-24}, true);
  });
}

void add_state_cases(CaseList& list) {
  for (const Format format : {Format::kBf16, Format::kF32}) {
    for (int64_t t : {0, 1, 2, 3, 7, 30}) {
      add_state_case(list, {.spec = {.name = str_cat("t", t, "_w33_", format_name(format))},
                            .t = t,
                            .width = 33,
                            .ratio = 4,
                            .format = format,
                            .ring = 11});
    }
    add_state_case(list, {.spec = {.name = str_cat("t9_w512_r128_", format_name(format))},
                          .t = 9,
                          .width = 512,
                          .ratio = 128,
                          .format = format,
                          .ring = 130});
  }
  for (int64_t t : {1, 64}) {
    add_state_case(
        list,
        {.spec = timed_spec("v4_csa", "compress_state", t), .t = t, .width = 1024, .ratio = 4});
    add_state_case(list, {.spec = timed_spec("v4_hca", "compress_state", t),
                          .t = t,
                          .width = 512,
                          .ratio = 128,
                          .ring = 128});
  }
}

// ---- compress_pool ----

/// Where the entries of rows come from.
enum class Source { kStep, kState, kBoth };

struct PoolShape {
  CaseSpec spec;
  int64_t rows;
  int64_t d = 512;
  int64_t r = 64;
  int64_t ratio = 4;
  bool overlap = true;
  Source source = Source::kBoth;
  Format format = Format::kF32;  ///< of u_z
  Format norm = Format::kBf16;
  Format activations = Format::kBf16;
  oracle::RowKind row = oracle::kBf16Row;
  CompressTransform transform = CompressTransform::kNone;
  int64_t extra_ring = 0;  ///< rows of the ring beyond the entries
  int64_t page_size = 16;
  // Of a recorded call:
  std::optional<CallTokens> of = {};  ///< where its tokens stand, each request at a block's start
  int64_t sequences = 0, pages = 0, table_rows = 0;
  int64_t gap = 32;  ///< of u_z

  int64_t width() const { return overlap ? 2 * d : d; }

  int64_t entries() const { return overlap ? 2 * ratio : ratio; }

  int64_t ring() const { return entries() + extra_ring; }
};

/// The operands of a call: sequences whose older tokens are in a ring and whose newer ones are in
/// the step.
struct PoolTensors {
  Tensor u_z, state_u, state_z, ape, gather, positions, norm, table, slots;
  oracle::RowTensors rows = {};
  int64_t step_tokens = 0;
  std::shared_ptr<std::vector<int64_t>> row_of = {};  ///< of each slot of the cache, or -1
};

/// The token that entry e of row i is, counted from the first of its request in the step: the last
/// entry of the last row is the newest token, or one of the step where a row is not full.
struct PoolEntry {
  int64_t request;
  int64_t first;  ///< token of the step
  int64_t token;  ///< negative: in the ring
};

PoolEntry entry_of(const PoolShape& s, int64_t i, int64_t e) {
  const CallTokens rows{.tokens = s.rows, .requests = std::min(s.of->requests, s.rows)};
  const int64_t request = rows.request(i);
  const int64_t first = s.of->first(request);
  const int64_t count = s.of->first(request + 1) - first;
  const int64_t end = std::min((i - rows.first(request) + 1) * s.ratio, count);
  return {request, first, end - (s.entries() - e)};
}

int64_t gathered(const PoolShape& s, int64_t i, int64_t e) {
  const PoolEntry entry = entry_of(s, i, e);
  if (entry.token >= 0) return entry.first + entry.token;
  const int64_t position = s.of->position(entry.first) + entry.token;
  if (position < 0 && s.overlap && e < s.ratio) return -1;
  const int64_t row = (position % s.ring() + s.ring()) % s.ring();
  return s.of->tokens + entry.request % s.sequences * s.ring() + row;
}

/// Position of the first token of the block of row i.
int64_t block_begin(const PoolShape& s, int64_t i) {
  const PoolEntry last = entry_of(s, i, s.entries() - 1);
  return (s.of->position(last.first) + last.token) / s.ratio * s.ratio;
}

PoolTensors make_pool(CaseData& c, const PoolShape& s) {
  PoolTensors all;
  const int64_t E = s.entries();
  // Without a step every row has a ring of its own; else all rows are one sequence's, one block
  // after the other, and the first E-1 tokens that they need are in a ring.
  const bool stepless = s.source == Source::kState;
  const bool all_step = s.source == Source::kStep;
  const int64_t before = E - 1;  // tokens of the ring in front of the step
  const int64_t needed = s.rows == 0 ? 0 : (s.rows - 1) * s.ratio + E;
  all.step_tokens = stepless ? 0 : all_step ? needed : std::max<int64_t>(needed - before, 0);
  if (s.of) all.step_tokens = s.of->tokens;
  const int64_t sequences = s.of ? s.sequences : stepless ? s.rows + 1 : 2;
  const Fill values{.scale = 1.5};
  const Fill scores{.scale = 2};
  all.u_z = c.input({all.step_tokens, 2 * s.width()}, s.format, values, {.row_gap = s.gap});
  const RowPlacement apart{.row_gap = s.width()};
  all.state_u = c.input({sequences, s.ring(), s.width()}, Format::kF32, values, apart);
  all.state_z = c.input({sequences, s.ring(), s.width()}, Format::kF32, scores, apart);
  all.ape = c.input({s.ratio, s.width()}, Format::kF32, {.scale = 0.5});
  c.set_batch(s.rows);  // of which any may be cut out, since all of u_z stays
  all.gather =
      c.input({s.rows, E}, Format::kI64, {}, {.row_gap = s.of ? 0 : 1, .rows_per_batch = 1});
  all.gather.fill([&](int64_t place) {
    const int64_t i = place / E;
    const int64_t e = place % E;
    if (s.of) return gathered(s, i, e);
    // The first row of an overlapping compressor has no older block.
    if (s.overlap && i == 0 && e < s.ratio) return int64_t{-1};
    if (stepless) return (i + 1) * s.ring() + (e + 3 * i) % s.ring();
    const int64_t token = i * s.ratio + e;  // counted from the first that is needed
    if (all_step) return token;
    if (token >= before) return token - before;
    return all.step_tokens + s.ring() + (token + 5) % s.ring();
  });
  all.positions = c.input({s.rows}, Format::kI32, {}, {.rows_per_batch = 1});
  const int64_t num_positions = s.of ? s.table_rows : 64 * s.ratio;
  all.positions.fill([&](int64_t i) { return s.of ? block_begin(s, i) : i % 64 * s.ratio; });
  all.norm = c.input({s.d}, s.norm, {.scale = 0.3, .offset = 1});
  all.table = c.input({num_positions, s.r}, Format::kF32);
  oracle::fill_rope_rows(all.table, all.positions);
  const int64_t pages = s.of ? s.pages : 2 * s.rows / s.page_size + 2;
  const int64_t num_slots = pages * s.page_size;
  const int64_t step = num_slots >= 2 * s.rows ? 2 : 1;
  all.slots = c.input({s.rows}, Format::kI64, {}, {.rows_per_batch = 1});
  all.slots.fill(
      [&](int64_t i) { return !s.spec.bench && i == 2 ? -1 : num_slots - 1 - step * i; });
  all.row_of = std::make_shared<std::vector<int64_t>>(num_slots, -1);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (all.slots[i] >= 0) (*all.row_of)[static_cast<size_t>(all.slots[i])] = i;
  }
  all.rows = oracle::make_rows(c, s.row, pages, s.page_size, s.d, s.r);
  return all;
}

/// One channel of row i before the norm.
double pooled(const PoolTensors& all, const PoolShape& s, int64_t i, int64_t channel) {
  const int64_t E = s.entries();
  const int64_t W = s.width();
  std::vector<double> u;
  std::vector<double> z;
  for (int64_t e = 0; e < E; ++e) {
    const auto index = static_cast<int64_t>(all.gather[i * E + e]);
    if (index < 0) continue;
    const int64_t column = channel + (s.overlap && e >= s.ratio ? s.d : 0);
    if (index < all.step_tokens) {
      u.push_back(all.u_z.at(index, column));
      z.push_back(all.u_z.at(index, W + column) + all.ape.at(e % s.ratio, column));
    } else {
      u.push_back(all.state_u[(index - all.step_tokens) * W + column]);
      z.push_back(all.state_z[(index - all.step_tokens) * W + column]);
    }
  }
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  double weighted = 0;
  for (size_t k = 0; k < z.size(); ++k) {
    sum += std::exp(z[k] - largest);
    weighted += std::exp(z[k] - largest) * u[k];
  }
  return weighted / sum;
}

std::vector<double> exact_row(const PoolTensors& all, const PoolShape& s, int64_t i) {
  const bool bf16 = s.activations == Format::kBf16;
  std::vector<double> x(static_cast<size_t>(s.d));
  double squares = 0;
  for (int64_t ch = 0; ch < s.d; ++ch) {
    const double v = pooled(all, s, i, ch);
    x[static_cast<size_t>(ch)] = bf16 ? oracle::rounded_bf16(v) : v;
    squares += x[static_cast<size_t>(ch)] * x[static_cast<size_t>(ch)];
  }
  const double r = 1.0 / std::sqrt(squares / static_cast<double>(s.d) + double{kEps});
  for (int64_t ch = 0; ch < s.d; ++ch)
    x[static_cast<size_t>(ch)] *= r * all.norm[ch];
  const std::vector<double> pe(x.end() - s.r, x.end());
  oracle::rotate(pe, all.table, static_cast<int64_t>(all.positions[i]), RopeStyle::kInterleaved,
                 std::span(x).subspan(x.size() - static_cast<size_t>(s.r)));
  if (s.transform == CompressTransform::kNone) return x;
  std::vector<double> y(x.size(), 0.0);
  for (size_t k = 0; k < x.size(); ++k) {
    for (size_t j = 0; j < x.size(); ++j) {
      const double v = bf16 ? oracle::rounded_bf16(x[j]) : x[j];
      y[k] += std::popcount(k & j) % 2 == 0 ? v : -v;
    }
    y[k] /= std::sqrt(static_cast<double>(s.d));
  }
  return y;
}

/// In f32 that of a norm. Where a pooled value is rounded to bf16, float32 and float64 may round it
/// to neighbours, which moves a channel by a step of bf16, and others through a rotation or a
/// transform by a part of it: 2^-8 of the largest values, which are about 4.
Gate gate_of(const PoolShape& s) {
  if (s.activations == Format::kF32 && s.row.values == Format::kF32) {
    return {.rel_l2 = 2e-6, .abs = 4e-6, .rel = 1e-5};
  }
  return {.rel_l2 = 4e-3, .abs = 0x1p-6, .bf16_ulps = 2};
}

void add_pool_case(CaseList& list, const PoolShape& s) {
  add_case<CompressPool>(list, s.spec, [s](CaseBuilder<CompressPool>& c) {
    const PoolTensors all = make_pool(c, s);
    c.bind([=](const Binding& at) {
      return CompressPool::Args{.u_z = at(all.u_z),
                                .state_u = at(all.state_u),
                                .state_z = at(all.state_z),
                                .ape = at(all.ape),
                                .gather = at(all.gather),
                                .positions = at(all.positions),
                                .norm = at(all.norm),
                                .table = at(all.table),
                                .slots = at(all.slots),
                                .values = at(all.rows.values),
                                .rope = at(all.rows.rope),
                                .scales = at(all.rows.scales),
                                .eps = kEps,
                                .activations = s.activations,
                                .transform = s.transform};
    });
    const oracle::RowNoise noise{.rel = 0x1p-7, .abs = 0x1p-11};
    oracle::expect_cache_rows(c, all.rows, gate_of(s), noise,
                              [=](int64_t slot, std::vector<double>& row) {
                                const int64_t i = (*all.row_of)[static_cast<size_t>(slot)];
                                if (i < 0) return false;
                                row = exact_row(all, s, i);
                                return true;
                              });
  });
}

std::string_view source_name(Source source) {
  return source == Source::kStep ? "step" : source == Source::kState ? "state" : "both";
}

void add_named(CaseList& list, PoolShape s) {
  s.spec.name =
      str_cat("n", s.rows, "_d", s.d, "_r", s.r, "_ratio", s.ratio, s.overlap ? "_overlap_" : "_",
              source_name(s.source), "_", format_name(s.format), "_", format_name(s.norm), "_in_",
              format_name(s.activations), "_to_", s.row.name(),
              s.transform == CompressTransform::kHadamard ? "_hadamard" : "");
  add_pool_case(list, s);
}

void add_row_cases(CaseList& list) {
  for (const oracle::RowKind& row :
       {oracle::kBf16Row, oracle::kF32Row, oracle::kFp8Row, oracle::kNvfp4Row}) {
    for (const Format activations : {Format::kBf16, Format::kF32}) {
      for (int64_t rows : {1, 5}) {
        add_named(list, {.spec = {}, .rows = rows, .activations = activations, .row = row});
        add_named(list, {.spec = {},
                         .rows = rows,
                         .ratio = 128,
                         .overlap = false,
                         .activations = activations,
                         .row = row});
      }
    }
  }
  for (const oracle::RowKind& row :
       {oracle::kBf16Row, oracle::kF32Row, oracle::kMxfp4Key, oracle::fp8_key(128)}) {
    for (const CompressTransform transform :
         {CompressTransform::kNone, CompressTransform::kHadamard}) {
      for (const Format activations : {Format::kBf16, Format::kF32}) {
        add_named(list, {.spec = {},
                         .rows = 6,
                         .d = 128,
                         .activations = activations,
                         .row = row,
                         .transform = transform});
      }
    }
  }
}

void add_entry_cases(CaseList& list) {
  const auto f32 = [](int64_t rows, int64_t d, int64_t r) {
    return PoolShape{.spec = {},
                     .rows = rows,
                     .d = d,
                     .r = r,
                     .norm = Format::kF32,
                     .activations = Format::kF32,
                     .row = oracle::kF32Row};
  };
  for (const Source source : {Source::kStep, Source::kState, Source::kBoth}) {
    for (const Format format : {Format::kBf16, Format::kF32}) {
      for (int64_t rows : {0, 1, 2, 3, 7, 33}) {
        PoolShape s = f32(rows, 48, 16);
        s.source = source;
        s.format = format;
        s.extra_ring = 3;
        add_named(list, s);
        s.ratio = 128;
        s.overlap = false;
        if (rows <= 3) add_named(list, s);
      }
    }
  }
  for (int64_t d : {2, 7, 15, 16, 17, 63, 64, 65, 80, 127, 129, 200}) {
    PoolShape s = f32(3, d, d < 8 ? 2 : 6);
    s.ratio = d % 2 == 0 ? 4 : 3;
    s.overlap = d % 4 != 1;
    add_named(list, s);
  }
  for (int64_t d : {2, 8, 16, 32, 64, 256, 512}) {
    PoolShape s = f32(3, d, 2);
    s.transform = CompressTransform::kHadamard;
    add_named(list, s);
  }
  add_named(list, {.spec = {}, .rows = 4, .d = 72, .r = 8, .row = oracle::kFp8Row});
  add_named(list, {.spec = {}, .rows = 4, .d = 40, .r = 8, .row = oracle::kNvfp4Row});
}

void add_pool_bench(CaseList& list) {
  const auto add = [&](std::string_view name, PoolShape s, int64_t tokens) {
    s.spec = timed_spec(name, "compress_pool", tokens);
    s.spec.phase = s.source == Source::kState ? "decode" : "prefill";
    s.spec.columns = str_cat("M=", s.rows, ";E=", s.entries(), ";D=", s.d);
    add_pool_case(list, s);
  };
  // Decode: rows that finish in one step. Prefill: all rows of a chunk.
  for (const auto& [rows, source] : {std::pair<int64_t, Source>{1, Source::kState},
                                     {16, Source::kState},
                                     {1024, Source::kBoth}}) {
    const int64_t tokens = source == Source::kState ? rows : 4 * rows;
    add("v4_csa", {.spec = {}, .rows = rows, .source = source, .row = oracle::kFp8Row}, tokens);
    add("v4_index_keys",
        {.spec = {},
         .rows = rows,
         .d = 128,
         .source = source,
         .row = oracle::kMxfp4Key,
         .transform = CompressTransform::kHadamard},
        tokens);
    const int64_t blocks = source == Source::kState ? rows : rows / 32;
    add("v4_hca",
        {.spec = {},
         .rows = blocks,
         .ratio = 128,
         .overlap = false,
         .source = source,
         .row = oracle::kFp8Row},
        tokens);
  }
}

// ---- recorded calls ----

void add_state_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t tokens = call.dim("u_z", 0);
  add_state_case(one, {.spec = spec,
                       .t = tokens,
                       .width = call.dim("ape", 1),
                       .ratio = call.dim("ape", 0),
                       .format = call.format("u_z"),
                       .ring = call.dim("state_u", 1),
                       .gap = call.row_gap("u_z"),
                       .sequences = call.dim("state_u", 0),
                       .of = tokens_of(call, spec, tokens)});
}

void add_pool_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  constexpr int64_t kIndexWidth = 128;  // of an indexer's keys, whose codes are transformed rows
  const int64_t d = call.dim("norm", 0);
  const oracle::RowKind row = oracle::row_kind_of(call, d);
  PoolShape s{.spec = spec,
              .rows = call.dim("gather", 0),
              .d = d,
              .r = call.dim("table", 1),
              .ratio = call.dim("ape", 0),
              .overlap = call.dim("ape", 1) == 2 * d,
              .format = call.format("u_z"),
              .norm = call.format("norm"),
              .row = row,
              .page_size = call.dim("values", 1),
              .of = tokens_of(call, spec, call.dim("u_z", 0)),
              .sequences = call.dim("state_u", 0),
              .pages = call.dim("values", 0),
              .table_rows = call.dim("table", 0),
              .gap = call.row_gap("u_z")};
  if (row.values == Format::kF32) s.activations = Format::kF32;
  if (!row.dense() && d == kIndexWidth) s.transform = CompressTransform::kHadamard;
  s.extra_ring = call.dim("state_u", 1) - s.entries();
  s.spec.columns = str_cat("M=", call.dim("u_z", 0), ";E=", s.entries(), ";D=", d);
  add_pool_case(one, s);
}

}  // namespace

void add_kv_compress_cases(CaseList& list) {
  add_state_cases(list);
  add_row_cases(list);
  add_entry_cases(list);
  add_pool_bench(list);
  list.serve_calls("compress_state_write", add_state_call);
  list.serve_calls("compress_pool", add_pool_call);
}

}  // namespace fathom
