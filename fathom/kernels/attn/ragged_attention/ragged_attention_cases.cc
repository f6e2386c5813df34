#include <array>
#include <memory>

#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"

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
  int64_t kv_heads = 0;  ///< 0: as many as heads of q
  int64_t window_left = -1;
  bool sinks = false;
  float o_scale = 1.0f;
  LseBase lse_base = LseBase::kE;
  bool aligned = false;  ///< rows of k and v lie at multiples of 16 bytes
  int64_t v_gap = 0;     ///< of a timed case

  int64_t nk() const { return kv_heads == 0 ? n : kv_heads; }
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
  Tensor q, k, v, q_offsets, kv_offsets, sinks;
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
  const int64_t last = i + (lengths.keys - lengths.queries);
  const int64_t end = s.mask == CausalMask::kFull ? lengths.keys : last + 1;
  const int64_t begin = s.window_left < 0 ? 0 : std::max<int64_t>(0, last - s.window_left);
  const int64_t head = n / (s.n / s.nk());
  const int64_t first = first_key + begin;
  oracle::AttentionRow out = oracle::attend(
      x.q.row(row), end - begin, s.dv, scale,
      [&](int64_t j) { return x.k.row((first + j) * s.nk() + head); },
      [&](int64_t j) { return x.v.row((first + j) * s.nk() + head); });
  if (x.sinks.present()) out = oracle::with_sink(out, x.sinks[n]);
  for (double& o : out.o)
    o *= double{s.o_scale};
  if (s.lse_base == LseBase::k2) out.lse /= std::log(2.0);
  return out;
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
  x.k = c.input({S, s.nk(), s.dq}, s.in, s.values,
                {.row_gap = s.spec.bench ? 0 : (s.aligned ? 8 : 2), .rows_per_batch = k_rows});
  x.v = c.input(
      {S, s.nk(), s.dv}, s.in, s.values,
      {.row_gap = s.spec.bench ? s.v_gap : (s.aligned ? 192 : 7), .rows_per_batch = k_rows});
  x.q_offsets = offsets_of(c, s.requests, &Lengths::queries);
  x.kv_offsets = offsets_of(c, s.requests, &Lengths::keys);
  if (s.sinks) x.sinks = c.input({s.n}, Format::kF32, {.scale = 2});
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
                                 .mask = s.mask,
                                 .sinks = at(x.sinks),
                                 .o_scale = s.o_scale,
                                 .window_left = s.window_left,
                                 .lse_base = s.lse_base};
  });
  auto rows = std::make_shared<oracle::AttentionRows>(
      [=](int64_t row) { return exact_row(s, x, double{scale}, row); });
  c.expect_each(o, gates::attention(s.in == Format::kF32 ? s.out : Format::kBf16, s.o_scale),
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

/// What the reference call takes beside a model's prefill: grouped heads, windows, sinks, codes,
/// float16, scales, base 2.
void add_reference_cases(CaseList& list) {
  const std::vector<Lengths> requests = {{11, 75}, {0, 3}, {70, 70}, {3, 0}, {9, 4}, {1, 200}};
  for (const Format f : {Format::kBf16, Format::kF32, Format::kF16, Format::kE4m3}) {
    const Format out = f == Format::kE4m3 ? Format::kBf16 : f;
    RaggedShape s{.spec = {},
                  .requests = requests,
                  .n = 4,
                  .dq = 48,
                  .dv = 32,
                  .in = f,
                  .out = out,
                  .o_scale = 0.7f};
    const auto add = [&](std::string_view name, const RaggedShape& shape) {
      RaggedShape named = shape;
      named.spec.name = str_cat(name, "_", format_name(f), "_to_", format_name(shape.out));
      add_ragged_case(list, named);
    };
    add("scaled", s);
    RaggedShape grouped = s;
    grouped.kv_heads = 2;
    add("two_kv_heads", grouped);
    grouped.kv_heads = 1;
    grouped.lse_base = LseBase::k2;
    add("one_kv_head_base2", grouped);
    RaggedShape sinks = s;
    sinks.sinks = true;
    add("sinks", sinks);
    for (int64_t window : {0, 1, 63, 64, 65, 500}) {
      RaggedShape windowed = s;
      windowed.window_left = window;
      add(str_cat("window", window), windowed);
      windowed.mask = CausalMask::kFull;
      windowed.sinks = true;
      add(str_cat("window", window, "_full_sinks"), windowed);
    }
    if (f != Format::kE4m3) continue;
    s.out = Format::kF32;
    add("scaled", s);
  }
}

/// The widths and strides of the model, which kernels with wide loads take, at every edge of their
/// tiles.
void add_aligned_cases(CaseList& list) {
  const std::vector<Lengths> edges = {{1, 1},    {0, 5},     {3, 0},     {64, 64},
                                      {65, 129}, {9, 4},     {127, 127}, {128, 128},
                                      {2, 511},  {129, 257}, {7, 640},   {131, 1}};
  const RaggedShape s{.spec = {.name = "aligned"}, .requests = edges, .aligned = true};
  const auto add = [&](std::string_view name, auto change) {
    RaggedShape changed = s;
    changed.spec.name = str_cat("aligned_", name);
    change(changed);
    add_ragged_case(list, changed);
  };
  add("causal", [](RaggedShape&) {});
  add("full", [](RaggedShape& c) { c.mask = CausalMask::kFull; });
  add("to_f32", [](RaggedShape& c) { c.out = Format::kF32; });
  add("no_lse", [](RaggedShape& c) { c.lse = false; });
  add("long", [](RaggedShape& c) { c.requests = {{700, 1100}, {5, 900}}; });
  add("heavy_tails", [](RaggedShape& c) { c.values.dist = Dist::kHeavyTail; });
  add("one_key_takes_all", [](RaggedShape& c) { c.q_scale = 100; });
  add("zeros", [](RaggedShape& c) { c.values.dist = Dist::kZeros; });
  add("no_requests", [](RaggedShape& c) { c.requests = {}; });
  add("sinks_two_kv_heads_base2", [](RaggedShape& c) {
    c.n = 4;
    c.kv_heads = 2;
    c.sinks = true;
    c.o_scale = 0.7f;
    c.lse_base = LseBase::k2;
  });
  for (int64_t window : {0, 1, 63, 64, 127, 128, 400}) {
    add(str_cat("window", window), [&](RaggedShape& c) { c.window_left = window; });
    add(str_cat("window", window, "_full"), [&](RaggedShape& c) {
      c.window_left = window;
      c.mask = CausalMask::kFull;
    });
  }
  add("b5_t130_s300_alike", [](RaggedShape& c) {
    c.requests = std::vector<Lengths>(5, {130, 300});
    c.cut = true;
  });
}

/// The mask of a recorded call, which is no operand: the one with which it has its FLOPs.
CausalMask mask_of(const RecordedCall& call) {
  const auto shape = [&](std::string_view name) {
    const std::array dims{call.dim(name, 0), call.dim(name, 1), call.dim(name, 2)};
    return make_view(nullptr, {dims[0], dims[1], dims[2]}, call.format(name));
  };
  const View offsets = make_view(nullptr, {call.dim("q_offsets", 0)}, Format::kI32);
  const RaggedAttention::Args causal{.q = shape("q"),
                                     .k = shape("k"),
                                     .v = shape("v"),
                                     .q_offsets = offsets,
                                     .kv_offsets = offsets,
                                     .o = {},
                                     .lse = {},
                                     .mask = CausalMask::kCausal};
  return RaggedAttention::cost(causal).flops == call.cost().flops ? CausalMask::kCausal
                                                                  : CausalMask::kFull;
}

/// Requests of equal lengths, as a dry run has them.
void add_call(CaseList& list, const RecordedCall& call, CaseSpec spec) {
  const int64_t requests = call.dim("q_offsets", 0) - 1;
  const Lengths each{call.dim("q", 0) / requests, call.dim("k", 0) / requests};
  spec.columns = str_cat("KV=", each.keys, ";H=", call.dim("q", 1), ";D=", call.dim("q", 2));
  add_ragged_case(list, {.spec = spec,
                         .requests = std::vector<Lengths>(static_cast<size_t>(requests), each),
                         .n = call.dim("q", 1),
                         .dq = call.dim("q", 2),
                         .dv = call.dim("v", 2),
                         .in = call.format("q"),
                         .out = call.format("o"),
                         .mask = mask_of(call),
                         .lse = call.has("lse"),
                         .kv_heads = call.dim("k", 1),
                         .v_gap = call.row_gap("v")});
}

}  // namespace

void add_ragged_attention_cases(CaseList& list) {
  add_reference_cases(list);
  add_aligned_cases(list);
  add_lengths(list, Format::kBf16);
  add_lengths(list, Format::kF32);
  add_widths_and_values(list);
  const auto add_bench = [&](std::string_view name, int64_t n, Lengths lengths, CausalMask mask) {
    add_ragged_case(list,
                    {.spec = {.name = std::string(name),
                              .op = "attn_mha",
                              .bench = true,
                              .phase = "prefill",
                              .columns = str_cat("B=1;S=", lengths.queries, ";KV=", lengths.keys,
                                                 ";M=", lengths.queries, ";H=", n, ";D=192")},
                     .requests = {lengths},
                     .n = n,
                     .mask = mask,
                     .lse = mask == CausalMask::kFull});
  };
  for (int64_t t : {512, 1024, 4096}) {
    add_bench(str_cat("r1_t", t), 128, {t, t}, CausalMask::kCausal);
    add_bench(str_cat("v2_lite_t", t), 16, {t, t}, CausalMask::kCausal);
  }
  const ReferenceLimit prefill{.phase = "prefill",
                               .why = "attention of prefill; decode runs mla_decode"};
  for (const ReferencePoint& p : reference_points(list, "ragged_attention", prefill)) {
    const double visible = static_cast<double>(p.batch * p.seq * (p.seq + 1)) / 2;
    add_reference_case(
        list, p, {.op = "attn_mha", .flops = 2.0 * 128 * (192 + 128) * visible},
        [&](CaseList& one) {
          add_ragged_case(
              one, {.spec = {.name = "reference", .bench = true, .columns = "H=128;D=192"},
                    .requests = std::vector<Lengths>(static_cast<size_t>(p.batch), {p.seq, p.seq}),
                    .n = 128,
                    .lse = false});
        });
  }
  add_bench("v2_lite_chunk512_prefix1536", 16, {512, 2048}, CausalMask::kCausal);
  add_bench("v2_lite_t64_prefix_chunk1024", 16, {64, 1024}, CausalMask::kFull);
  list.serve_calls("ragged_attention", add_call);
}

}  // namespace fathom
