#include <memory>

#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {
namespace {

struct Lengths {
  int64_t queries;
  int64_t keys;
};

struct RaggedShape {
  CaseSpec spec;
  std::vector<Lengths> requests;
  int64_t n = 2;
  int64_t dq = 192;
  int64_t dv = 128;
  Format in = Format::kBf16;
  Format out = Format::kBf16;
  CausalMask mask = CausalMask::kCausal;
  Fill values = {};
  double q_scale = 1.0;  ///< large: one key gets nearly all the weight
  bool cut = false;      ///< all requests are alike and form the batch
  bool lse = true;
};

int64_t total(const std::vector<Lengths>& requests, int64_t Lengths::*count) {
  int64_t sum = 0;
  for (const Lengths& r : requests)
    sum += r.*count;
  return sum;
}

Tensor offsets_of(CaseData& c, const std::vector<Lengths>& requests, int64_t Lengths::*count) {
  const Tensor offsets = c.input({static_cast<int64_t>(requests.size()) + 1}, Format::kI32);
  int64_t at = 0;
  offsets.set(0, 0);
  for (size_t b = 0; b < requests.size(); ++b) {
    at += requests[b].*count;
    offsets.set(static_cast<int64_t>(b) + 1, static_cast<double>(at));
  }
  return offsets;
}

struct RaggedTensors {
  Tensor q, k, v, q_offsets, kv_offsets;
};

/// Row t * N + n of the output.
oracle::AttentionRow exact_row(const RaggedShape& s,
                               const RaggedTensors& x,
                               double scale,
                               int64_t row) {
  const int64_t t = row / s.n;
  const int64_t n = row % s.n;
  int64_t b = 0;
  while (static_cast<double>(t) >= x.q_offsets[b + 1])
    ++b;
  const auto first_key = static_cast<int64_t>(x.kv_offsets[b]);
  const Lengths lengths = s.requests[static_cast<size_t>(b)];
  const int64_t i = t - static_cast<int64_t>(x.q_offsets[b]);
  const int64_t visible =
      s.mask == CausalMask::kFull ? lengths.keys : i + (lengths.keys - lengths.queries) + 1;
  return oracle::attend(
      x.q.row(row), visible, s.dv, scale,
      [&](int64_t j) { return x.k.row((first_key + j) * s.n + n); },
      [&](int64_t j) { return x.v.row((first_key + j) * s.n + n); });
}

void build_case(const RaggedShape& s, CaseBuilder<RaggedAttention>& c) {
  const auto B = static_cast<int64_t>(s.requests.size());
  const int64_t T = total(s.requests, &Lengths::queries);
  const int64_t S = total(s.requests, &Lengths::keys);
  const int64_t q_rows = s.cut ? s.requests[0].queries : 0;
  const int64_t k_rows = s.cut ? s.requests[0].keys : 0;
  if (s.cut) c.set_batch(B);
  // Gaps as in a model: v is a slice of the kv_b projection, q and k are their own.
  RaggedTensors x;
  x.q = c.input({T, s.n, s.dq}, s.in, {.dist = s.values.dist, .scale = s.q_scale},
                {.rows_per_batch = q_rows});
  x.k = c.input({S, s.n, s.dq}, s.in, s.values,
                {.row_gap = s.spec.bench ? 0 : 2, .rows_per_batch = k_rows});
  x.v = c.input({S, s.n, s.dv}, s.in, s.values,
                {.row_gap = s.spec.bench ? 0 : 7, .rows_per_batch = k_rows});
  x.q_offsets = offsets_of(c, s.requests, &Lengths::queries);
  x.kv_offsets = offsets_of(c, s.requests, &Lengths::keys);
  const Tensor o = c.output({T, s.n, s.dv}, s.out, {.rows_per_batch = q_rows});
  const Tensor lse =
      s.lse ? c.output({T, s.n}, Format::kF32, {.rows_per_batch = q_rows}) : Tensor();
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.dq));
  c.bind([=](const Binding& at) {
    const int64_t num_offsets = s.cut ? at.batch_rows() + 1 : B + 1;
    return RaggedAttention::Args{.q = at(x.q),
                                 .k = at(x.k),
                                 .v = at(x.v),
                                 .q_offsets = slice_rows(at(x.q_offsets), 0, num_offsets),
                                 .kv_offsets = slice_rows(at(x.kv_offsets), 0, num_offsets),
                                 .o = at(o),
                                 .lse = at(lse),
                                 .scale = scale,
                                 .mask = s.mask};
  });
  auto rows = std::make_shared<oracle::AttentionRows>(
      [=](int64_t row) { return exact_row(s, x, double{scale}, row); });
  c.expect_each(o, s.in == Format::kF32 ? gates::attention(s.out) : gates::attention(Format::kBf16),
                [=](int64_t row, int64_t col) { return (*rows)(row).o[static_cast<size_t>(col)]; });
  if (!s.lse) return;
  c.expect_each(lse, gates::log_sum_exp(),
                [=](int64_t row, int64_t col) { return (*rows)(row * s.n + col).lse; });
}

void add_ragged_case(CaseList& list, const RaggedShape& s) {
  add_case<RaggedAttention>(list, s.spec,
                            [s](CaseBuilder<RaggedAttention>& c) { build_case(s, c); });
}

void add_lengths(CaseList& list, Format format) {
  const std::string suffix = format == Format::kF32 ? "_f32" : "";
  const auto add = [&](std::string_view name, std::vector<Lengths> requests, CausalMask mask) {
    add_ragged_case(list, {.spec = {.name = str_cat(name, suffix)},
                           .requests = std::move(requests),
                           .dq = 48,
                           .dv = 32,
                           .in = format,
                           .out = format,
                           .mask = mask});
  };
  add("no_requests", {}, CausalMask::kCausal);
  add("empty_requests", {{0, 0}, {3, 3}, {0, 5}, {0, 0}}, CausalMask::kCausal);
  for (int64_t t : {1, 2, 3, 7, 8, 9, 17})
    add(str_cat("t", t), {{t, t}}, CausalMask::kCausal);
  for (int64_t s : {63, 64, 65, 127, 128, 129}) {
    add(str_cat("t", s), {{s, s}}, CausalMask::kCausal);
    add(str_cat("t5_s", s), {{5, s}}, CausalMask::kCausal);
    add(str_cat("t5_s", s, "_full"), {{5, s}}, CausalMask::kFull);
  }
  add("requests_of_all_lengths", {{1, 1}, {64, 64}, {2, 70}, {33, 193}, {65, 65}, {3, 131}},
      CausalMask::kCausal);
  add("empty_chunks", {{4, 0}, {5, 9}, {1, 0}, {7, 64}}, CausalMask::kFull);
  add("more_queries_than_keys", {{9, 4}, {70, 3}, {2, 2}}, CausalMask::kCausal);
}

void add_widths_and_values(CaseList& list) {
  const std::vector<Lengths> requests = {{11, 75}, {70, 70}};
  for (const auto& [dq, dv] :
       {std::pair<int64_t, int64_t>{192, 128}, {64, 32}, {32, 16}, {2, 1}, {33, 31}, {96, 65}}) {
    for (const Format out : {Format::kBf16, Format::kF32}) {
      add_ragged_case(list,
                      {.spec = {.name = str_cat("dq", dq, "_dv", dv, "_to_", format_name(out))},
                       .requests = requests,
                       .n = 3,
                       .dq = dq,
                       .dv = dv,
                       .out = out});
    }
    add_ragged_case(list, {.spec = {.name = str_cat("dq", dq, "_dv", dv, "_f32")},
                           .requests = requests,
                           .n = 3,
                           .dq = dq,
                           .dv = dv,
                           .in = Format::kF32,
                           .out = Format::kF32});
  }
  const auto add_values = [&](std::string_view name, Fill values, double q_scale) {
    add_ragged_case(list, {.spec = {.name = std::string(name)},
                           .requests = requests,
                           .values = values,
                           .q_scale = q_scale});
  };
  add_values("heavy_tails", {.dist = Dist::kHeavyTail}, 1.0);
  add_values("one_sign", {.dist = Dist::kOneSign}, 0.2);
  add_values("zeros", {.dist = Dist::kZeros}, 1.0);
  add_values("rows_of_all_kinds", {.dist = Dist::kMixedRows}, 0.1);
  add_values("one_key_takes_all", {}, 100.0);
  add_ragged_case(list, {.spec = {.name = "b6_t9_s80_alike"},
                         .requests = std::vector<Lengths>(6, {9, 80}),
                         .cut = true});
  add_ragged_case(list, {.spec = {.name = "b6_t9_s80_alike_f32"},
                         .requests = std::vector<Lengths>(6, {9, 80}),
                         .in = Format::kF32,
                         .out = Format::kF32,
                         .cut = true});
}

}  // namespace

void add_ragged_attention_cases(CaseList& list) {
  add_lengths(list, Format::kBf16);
  add_lengths(list, Format::kF32);
  add_widths_and_values(list);
  const auto add_bench = [&](std::string_view name, int64_t n, Lengths lengths, CausalMask mask) {
    add_ragged_case(
        list,
        {.spec = {.name = std::string(name), .op = "attn_mha", .bench = true, .phase = "prefill"},
         .requests = {lengths},
         .n = n,
         .mask = mask,
         .lse = mask == CausalMask::kFull});
  };
  for (int64_t t : {512, 1024}) {
    add_bench(str_cat("r1_t", t), 128, {t, t}, CausalMask::kCausal);
    add_bench(str_cat("v2_lite_t", t), 16, {t, t}, CausalMask::kCausal);
  }
  add_bench("v2_lite_chunk512_prefix1536", 16, {512, 2048}, CausalMask::kCausal);
  add_bench("v2_lite_t64_prefix_chunk1024", 16, {64, 1024}, CausalMask::kFull);
}

}  // namespace fathom
