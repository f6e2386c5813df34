#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"

namespace fathom {
namespace {

struct ConcatShape {
  CaseSpec spec;
  int64_t t;
  int64_t n;
  int64_t first;
  int64_t second;
  Format format = Format::kBf16;
  // Gaps between rows. k_nope is a slice of the kv_b projection, whose values lie between its keys.
  int64_t nope_gap = 128, k_pe_gap = 3;
  int64_t q_lat_gap = 2, q_pe_gap = 128, q_gap = 1;
};

void add_concat_k_case(CaseList& list, const ConcatShape& s) {
  add_case<ConcatK>(list, s.spec, [s](CaseBuilder<ConcatK>& c) {
    c.set_batch(s.t);
    const Tensor k_nope =
        c.input({s.t, s.n, s.first}, s.format, {}, {.row_gap = s.nope_gap, .rows_per_batch = 1});
    const Tensor k_pe =
        c.input({s.t, s.second}, s.format, {}, {.row_gap = s.k_pe_gap, .rows_per_batch = 1});
    const Tensor k = c.output({s.t, s.n, s.first + s.second}, s.format, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return ConcatK::Args{.k_nope = at(k_nope), .k_pe = at(k_pe), .k = at(k)};
    });
    c.expect_each(k, gates::exact(), [=](int64_t row, int64_t col) {
      return col < s.first ? k_nope[row * s.first + col]
                           : k_pe[row / s.n * s.second + col - s.first];
    });
  });
}

void add_concat_q_case(CaseList& list, const ConcatShape& s) {
  add_case<ConcatAbsorbedQ>(list, s.spec, [s](CaseBuilder<ConcatAbsorbedQ>& c) {
    c.set_batch(s.t);
    const Tensor q_lat =
        c.input({s.t, s.n, s.first}, s.format, {}, {.row_gap = s.q_lat_gap, .rows_per_batch = 1});
    const Tensor q_pe =
        c.input({s.t, s.n, s.second}, s.format, {}, {.row_gap = s.q_pe_gap, .rows_per_batch = 1});
    const Tensor q = c.output({s.t, s.n, s.first + s.second}, s.format,
                              {.row_gap = s.q_gap, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return ConcatAbsorbedQ::Args{.q_lat = at(q_lat), .q_pe = at(q_pe), .q = at(q)};
    });
    c.expect_each(q, gates::exact(), [=](int64_t row, int64_t col) {
      return col < s.first ? q_lat[row * s.first + col] : q_pe[row * s.second + col - s.first];
    });
  });
}

}  // namespace

void add_mla_concat_cases(CaseList& list) {
  for (const Format format : {Format::kBf16, Format::kF32, Format::kF16, Format::kE4m3}) {
    for (int64_t t : {0, 1, 2, 3, 7}) {
      const CaseSpec spec = {.name = str_cat("t", t, "_n3_", format_name(format))};
      add_concat_k_case(
          list, {.spec = spec, .t = t, .n = 3, .first = 128, .second = 64, .format = format});
      add_concat_q_case(
          list, {.spec = spec, .t = t, .n = 3, .first = 512, .second = 64, .format = format});
      const CaseSpec odd = {.name = str_cat("t", t, "_n5_odd_", format_name(format))};
      add_concat_k_case(list,
                        {.spec = odd, .t = t, .n = 5, .first = 17, .second = 3, .format = format});
      add_concat_q_case(list,
                        {.spec = odd, .t = t, .n = 5, .first = 31, .second = 1, .format = format});
    }
  }
  for (const auto& [model, n] :
       {std::pair<std::string_view, int64_t>{"r1", 128}, {"v2_lite", 16}}) {
    for (int64_t t : {512, 1024}) {
      add_concat_k_case(list, {.spec = timed_spec(model, "_concat_and_cast_mha_k", t),
                               .t = t,
                               .n = n,
                               .first = 128,
                               .second = 64});
    }
    for (int64_t t : {1, 8, 64, 128}) {
      add_concat_q_case(
          list,
          {.spec = timed_spec(model, "_merge_q", t), .t = t, .n = n, .first = 512, .second = 64});
    }
  }
  // 82 and 295 kB a token: 270 MB, which no cache holds.
  add_concat_k_case(list, {.spec = timed_spec("r1_chunk", "_concat_and_cast_mha_k", 3300),
                           .t = 3300,
                           .n = 128,
                           .first = 128,
                           .second = 64});
  CaseSpec chunk = timed_spec("r1_chunk", "_merge_q", 910);
  chunk.phase = "decode";  // no prefill has this step
  add_concat_q_case(list, {.spec = chunk, .t = 910, .n = 128, .first = 512, .second = 64});
  for (const ReferencePoint& p : reference_points()) {
    add_reference_case(list, p, {.op = "concat_and_cast_mha_k"}, [&](CaseList& one) {
      add_concat_k_case(one, {.spec = {.name = "reference", .bench = true},
                              .t = p.tokens(),
                              .n = 128,
                              .first = 128,
                              .second = 64});
    });
  }
  const ReferenceLimit decode{.phase = "decode",
                              .why = "a step of the absorbed form, which prefill does not use"};
  for (const ReferencePoint& p : reference_points(list, "concat_absorbed_q", decode)) {
    add_reference_case(list, p, {.op = "concat_mla_absorb_q"}, [&](CaseList& one) {
      add_concat_q_case(one, {.spec = {.name = "reference", .bench = true},
                              .t = p.tokens(),
                              .n = 128,
                              .first = 512,
                              .second = 64});
    });
  }
  list.serve_calls("concat_k", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_concat_k_case(one, {.spec = spec,
                            .t = call.dim("k", 0),
                            .n = call.dim("k", 1),
                            .first = call.dim("k_nope", 2),
                            .second = call.dim("k_pe", 1),
                            .format = call.format("k"),
                            .nope_gap = call.row_gap("k_nope"),
                            .k_pe_gap = call.row_gap("k_pe")});
  });
  list.serve_calls("concat_absorbed_q",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_concat_q_case(one, {.spec = spec,
                                             .t = call.dim("q", 0),
                                             .n = call.dim("q", 1),
                                             .first = call.dim("q_lat", 2),
                                             .second = call.dim("q_pe", 2),
                                             .format = call.format("q"),
                                             .q_lat_gap = call.row_gap("q_lat"),
                                             .q_pe_gap = call.row_gap("q_pe"),
                                             .q_gap = call.row_gap("q")});
                   });
}

}  // namespace fathom
