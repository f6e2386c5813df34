#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "fathom/kernels/attn/sparse_mla/sparse_mla_case.h"

namespace fathom {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct PrefillShape {
  CaseSpec spec;
  int64_t t = 3;
  int64_t n = 4;
  int64_t d = 48;
  int64_t l = 48;
  int64_t p = 200;
  int64_t k = 70;
  Format q = Format::kBf16;
  Format kv = Format::kNone;  ///< none: that of q
  bool lengths = false;
  Sink sink = Sink::kNone;
  LseBase base = LseBase::kE;
  bool stray_ids = true;  ///< some are none, some beyond the rows
  int64_t kv_gap = 3;     ///< numbers between rows
};

struct PrefillTensors {
  Tensor q, kv, ids, lengths, sink, o, max, lse;
};

/// The row and its largest logit.
struct PrefillRow {
  oracle::AttentionRow row;
  double max = -kInf;
};

PrefillRow exact_prefill_row(const PrefillShape& s,
                             const PrefillTensors& x,
                             double scale,
                             int64_t row) {
  const int64_t t = row / s.n;
  const int64_t length = x.lengths.present() ? static_cast<int64_t>(x.lengths[t]) : s.k;
  std::vector<std::vector<double>> keys;
  for (int64_t j = 0; j < length; ++j) {
    const auto id = static_cast<int64_t>(x.ids.at(t, j));
    if (id >= 0 && id < s.p) keys.push_back(x.kv.row(id));
  }
  PrefillRow out;
  const std::vector<double> q = x.q.row(row);
  for (const std::vector<double>& k : keys) {
    double logit = 0;
    for (size_t d = 0; d < q.size(); ++d)
      logit += scale * q[d] * k[d];
    out.max = std::max(out.max, logit);
  }
  const auto key = [&](int64_t j) { return keys[static_cast<size_t>(j)]; };
  out.row = oracle::attend(q, static_cast<int64_t>(keys.size()), s.l, scale, key, key);
  apply_sparse_sink(out.row, x.sink, row % s.n);
  const double factor = s.base == LseBase::k2 ? 1.0 / std::log(2.0) : 1.0;
  out.row.lse *= factor;
  out.max *= factor;
  return out;
}

PrefillTensors make_prefill(const PrefillShape& s, CaseData& c) {
  PrefillTensors x;
  x.q = c.input({s.t, s.n, s.d}, s.q, {}, {.row_gap = 2, .rows_per_batch = 1});
  x.kv = c.input({s.p, s.d}, s.kv == Format::kNone ? s.q : s.kv, {}, {.row_gap = s.kv_gap});
  x.ids = c.input({s.t, s.k}, Format::kI32, {}, {.rows_per_batch = 1});
  x.ids.fill([&](int64_t i) {
    if (s.p == 0 || (s.stray_ids && i % 5 == 1)) return -1.0 - double(i % 3);
    if (s.stray_ids && i % 7 == 2) return i % 2 == 0 ? double(s.p) : 0x7FFFFFFF;
    return double(c.rng().next_below(static_cast<uint32_t>(s.p)));
  });
  if (s.lengths) {
    x.lengths = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
    x.lengths.fill([&](int64_t t) { return t % 3 == 1 ? 0 : (t * 37 + s.k) % (s.k + 1); });
  }
  x.sink = make_sparse_sink(c, s.sink, s.n);
  x.o = c.output({s.t, s.n, s.l}, s.q, {.row_gap = 4, .rows_per_batch = 1});
  x.max = c.output({s.t, s.n}, Format::kF32, {.rows_per_batch = 1});
  x.lse = c.output({s.t, s.n}, Format::kF32, {.rows_per_batch = 1});
  return x;
}

void add_prefill_case(CaseList& list, const PrefillShape& s) {
  add_case<SparseMlaPrefill>(list, s.spec, [s](CaseBuilder<SparseMlaPrefill>& c) {
    c.set_batch(s.t);
    const PrefillTensors x = make_prefill(s, c);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
    c.bind([=](const Binding& at) {
      return SparseMlaPrefill::Args{.q = at(x.q),
                                    .kv = at(x.kv),
                                    .ids = at(x.ids),
                                    .o = at(x.o),
                                    .lengths = at(x.lengths),
                                    .sink = at(x.sink),
                                    .max = at(x.max),
                                    .lse = at(x.lse),
                                    .scale = scale,
                                    .lse_base = s.base};
    });
    using Rows = std::map<int64_t, PrefillRow>;
    const auto memory = std::make_shared<Rows>();
    const auto row_of = [=](int64_t row) -> const PrefillRow& {
      const auto found = memory->find(row);
      if (found != memory->end()) return found->second;
      return memory->emplace(row, exact_prefill_row(s, x, double{scale}, row)).first->second;
    };
    c.expect_each(x.o, sparse_gate(s.q, s.q), [=](int64_t row, int64_t col) {
      return row_of(row).row.o[static_cast<size_t>(col)];
    });
    if (s.spec.bench) return;
    c.expect_each(x.lse, gates::log_sum_exp(),
                  [=](int64_t row, int64_t col) { return row_of(row * s.n + col).row.lse; });
    c.expect_each(x.max, gates::log_sum_exp(),
                  [=](int64_t row, int64_t col) { return row_of(row * s.n + col).max; });
  });
}

}  // namespace

void add_sparse_mla_prefill_cases(CaseList& list) {
  for (const Format q : {Format::kBf16, Format::kF32}) {
    for (int64_t k : {0, 1, 2, 3, 63, 64, 65, 129, 200}) {
      add_prefill_case(list,
                       {.spec = {.name = str_cat("k", k, "_", format_name(q))}, .k = k, .q = q});
      add_prefill_case(list, {.spec = {.name = str_cat("k", k, "_lengths_", format_name(q))},
                              .t = 5,
                              .k = k,
                              .q = q,
                              .lengths = true,
                              .sink = Sink::kNormal,
                              .base = LseBase::k2});
    }
    add_prefill_case(list, {.spec = {.name = str_cat("v32_width_", format_name(q))},
                            .t = 2,
                            .n = 17,
                            .d = 576,
                            .l = 512,
                            .p = 300,
                            .k = 260,
                            .q = q,
                            .sink = Sink::kInfinite});
    for (int64_t p : {0, 1}) {
      add_prefill_case(list,
                       {.spec = {.name = str_cat("rows", p, "_", format_name(q))}, .p = p, .q = q});
    }
    add_prefill_case(list, {.spec = {.name = str_cat("other_rows_", format_name(q))},
                            .q = q,
                            .kv = q == Format::kBf16 ? Format::kF32 : Format::kBf16});
  }
  for (int64_t n : {1, 8, 9, 130}) {
    add_prefill_case(list, {.spec = {.name = str_cat("n", n)}, .n = n, .d = 33, .l = 31});
  }
  // Rows that copies of sixteen bytes take: few and many of them, heads of more than one block.
  for (int64_t d : {512, 576}) {
    for (int64_t k : {0, 3, 64, 260, 700}) {
      add_prefill_case(list, {.spec = {.name = str_cat("d", d, "_k", k)},
                              .t = 2,
                              .n = k == 260 ? 130 : 17,
                              .d = d,
                              .l = 512,
                              .p = 2000,
                              .k = k,
                              .lengths = k == 64,
                              .sink = k == 700 ? Sink::kInfinite : Sink::kNormal,
                              .base = k == 3 ? LseBase::k2 : LseBase::kE,
                              .kv_gap = 8});
    }
  }
  add_prefill_case(list, {.spec = {.name = "no_tokens"}, .t = 0});
  const auto timed = [&](std::string_view name, int64_t n, int64_t d, int64_t p, int64_t k) {
    add_prefill_case(list, {.spec = {.name = str_cat(name, "_t256"),
                                     .op = "sparse_attn",
                                     .bench = true,
                                     .phase = "prefill",
                                     .columns = str_cat("M=256;KV=", k, ";H=", n, ";D=", d)},
                            .t = 256,
                            .n = n,
                            .d = d,
                            .l = 512,
                            .p = p,
                            .k = k,
                            .stray_ids = false});
  };
  timed("v4_flash", 64, 512, 4096, 640);
  timed("v32", 128, 576, 4096, 2048);
}

}  // namespace fathom
