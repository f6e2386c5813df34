#include <cmath>

#include "fathom/kernels/attn/sparse_mla/sparse_mla_case.h"

namespace fathom {
namespace {

constexpr RowForm kDenseBf16{.name = "bf16"};
constexpr RowForm kDenseF32{.name = "f32", .values = Format::kF32};
constexpr RowForm kV4{.name = "v4_fp8",
                      .values = Format::kE4m3,
                      .scale = Format::kUe8m0,
                      .w = 448,
                      .r = 64,
                      .group = 64};
constexpr RowForm kV32{.name = "v32_fp8",
                       .values = Format::kE4m3,
                       .scale = Format::kF32,
                       .w = 512,
                       .r = 64,
                       .group = 128};
constexpr RowForm kV4Nvfp4{.name = "v4_nvfp4",
                           .values = Format::kU8,
                           .scale = Format::kE4m3,
                           .w = 448,
                           .r = 64,
                           .group = 16};

RowForm resized(RowForm form, int64_t w, int64_t r, int64_t group = 0) {
  form.w = w;
  form.r = r;
  if (group > 0) form.group = group;
  return form;
}

void add_small_decode_cases(CaseList& list) {
  const std::vector<RowForm> forms = {kDenseBf16, kDenseF32, resized(kV4, 64, 32),
                                      resized(kV32, 128, 16), resized(kV4Nvfp4, 48, 16)};
  for (const RowForm& form : forms) {
    for (const Format q : {Format::kBf16, Format::kF32}) {
      for (int64_t k : {0, 1, 2, 3, 63, 64, 65, 127, 128, 130}) {
        add_sparse_decode_case(
            list, {.spec = {.name = str_cat(form.name, "_k", k, "_q_", format_name(q))},
                   .q = q,
                   .rows = {.form = form, .k = k}});
      }
    }
  }
  // Blocks with rows of both caches, one block and several.
  for (const RowForm& form : forms) {
    for (const RowForm& extra : forms) {
      const int64_t d = form.w + form.r;
      const RowForm same_width =
          extra.coded() ? resized(extra, d - 16, 16, 16) : resized(extra, d, 0);
      add_sparse_decode_case(list,
                             {.spec = {.name = str_cat(form.name, "_and_", extra.name)},
                              .n = 3,
                              .rows = {.form = form, .k = 30},
                              .extra = {.form = same_width, .k = 99, .pages = 5, .page_size = 64},
                              .sink = Sink::kNormal});
    }
  }
  for (int64_t n : {1, 2, 3, 5, 7, 8, 9, 16, 17, 131}) {
    add_sparse_decode_case(list, {.spec = {.name = str_cat("n", n)}, .n = n, .rows = {.k = 70}});
  }
  for (int64_t t : {0, 1, 2, 5, 17}) {
    add_sparse_decode_case(list, {.spec = {.name = str_cat("t", t)},
                                  .t = t,
                                  .n = 16,
                                  .l = 100,
                                  .rows = {.form = resized(kV4, 64, 64), .k = 140},
                                  .sink = Sink::kNormal});
  }
  for (int64_t page_size : {1, 2, 64}) {
    add_sparse_decode_case(list, {.spec = {.name = str_cat("page", page_size)},
                                  .rows = {.form = resized(kV4, 128, 64),
                                           .k = 90,
                                           .page_size = page_size,
                                           .row_gap = 7,
                                           .page_gap = 1}});
  }
  for (const auto& [d, l] :
       {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {33, 33}, {50, 31}, {576, 512}}) {
    for (const Format q : {Format::kBf16, Format::kF32}) {
      add_sparse_decode_case(
          list,
          {.spec = {.name = str_cat("d", d, "_l", l, "_", format_name(q))},
           .l = l,
           .q = q,
           .rows = {.form = resized(q == Format::kF32 ? kDenseF32 : kDenseBf16, d, 0), .k = 77},
           .sink = Sink::kNormal});
    }
  }
}

/// Widths of groups and of what is behind them, other outputs, extremes.
void add_other_decode_cases(CaseList& list) {
  for (const auto& [w, r, group] : std::vector<std::array<int64_t, 3>>{
           {16, 0, 16}, {80, 8, 16}, {48, 3, 48}, {96, 64, 32}, {40, 8, 8}, {33, 1, 11}}) {
    for (const Format scale : {Format::kUe8m0, Format::kF32, Format::kE4m3}) {
      for (const Format values : {Format::kE4m3, Format::kU8}) {
        if (values == Format::kU8 && w % 2 != 0) continue;
        const RowForm form{
            .name = "", .values = values, .scale = scale, .w = w, .r = r, .group = group};
        add_sparse_decode_case(
            list, {.spec = {.name = str_cat(format_name(values), "_w", w, "_r", r, "_g", group, "_",
                                            format_name(scale))},
                   .l = w + r,
                   .rows = {.form = form, .k = 67}});
      }
    }
  }
  for (const Format q : {Format::kBf16, Format::kF32}) {
    add_sparse_decode_case(list, {.spec = {.name = str_cat("other_output_", format_name(q))},
                                  .q = q,
                                  .o = q == Format::kBf16 ? Format::kF32 : Format::kBf16,
                                  .rows = {.k = 70}});
    add_sparse_decode_case(list, {.spec = {.name = str_cat("infinite_sinks_", format_name(q))},
                                  .n = 7,
                                  .q = q,
                                  .rows = {.k = 70},
                                  .sink = Sink::kInfinite});
    add_sparse_decode_case(list, {.spec = {.name = str_cat("no_lse_", format_name(q))},
                                  .q = q,
                                  .rows = {.k = 5},
                                  .lse = false});
  }
  add_sparse_decode_case(list, {.spec = {.name = "one_row_takes_all"},
                                .l = 512,
                                .rows = {.form = kV4, .k = 300},
                                .sink = Sink::kNormal,
                                .q_scale = 100});
  add_sparse_decode_case(list, {.spec = {.name = "every_row_many_times"},
                                .rows = {.k = 200, .pages = 1, .page_size = 3}});
}

/// The models' widths, few tokens.
void add_model_width_cases(CaseList& list) {
  for (const Format q : {Format::kBf16, Format::kF32}) {
    for (const RowForm& form : {kV4, kV4Nvfp4, resized(kDenseBf16, 512, 0)}) {
      add_sparse_decode_case(
          list, {.spec = {.name = str_cat("v4_width_", form.name, "_q_", format_name(q))},
                 .n = 64,
                 .l = 512,
                 .q = q,
                 .rows = {.form = form, .k = 128, .page_size = 64},
                 .extra = {.form = form, .k = 70, .pages = 30, .page_size = 2},
                 .sink = Sink::kNormal});
    }
    for (const RowForm& form : {kV32, resized(kDenseBf16, 576, 0)}) {
      add_sparse_decode_case(
          list, {.spec = {.name = str_cat("v32_width_", form.name, "_", format_name(q))},
                 .n = 16,
                 .l = 512,
                 .q = q,
                 .rows = {.form = form, .k = 260, .page_size = 64}});
    }
  }
  // Lists of more rows than weights enter of in two terms on a GPU, drawn from so many rows that
  // few come twice; heads of more than one block; queries that copies of sixteen bytes take.
  for (const RowForm& form : {kV4, kV4Nvfp4, kV32, resized(kDenseBf16, 512, 0)}) {
    const bool two = form.w + form.r == 512;
    add_sparse_decode_case(
        list, {.spec = {.name = str_cat("many_rows_", form.name)},
               .t = 2,
               .n = 66,
               .l = 512,
               .rows = {.form = form, .k = two ? 128 : 830, .pages = 60, .page_size = 64},
               .extra = {.form = form, .k = two ? 710 : 0, .pages = 90, .page_size = 64},
               .sink = two ? Sink::kInfinite : Sink::kNone,
               .empty_token = false,
               .q_gap = 0});
  }
}

/// Outputs that are turned back.
void add_turned_cases(CaseList& list) {
  // Where pairs begin and end: widths of all kinds, all channels and two of them.
  for (const auto& [l, r] :
       {std::pair<int64_t, int64_t>{48, 2}, {48, 48}, {47, 14}, {33, 32}, {96, 66}}) {
    for (const Format q : {Format::kBf16, Format::kF32}) {
      for (const Format o : {Format::kBf16, Format::kF32}) {
        add_sparse_decode_case(
            list, {.spec = {.name = str_cat("turned_l", l, "_r", r, "_", format_name(q), "_",
                                            format_name(o))},
                   .n = 5,
                   .l = l,
                   .q = q,
                   .o = o,
                   .rows = {.form = resized(kDenseBf16, l + 3, 0), .k = 70},
                   .sink = Sink::kInfinite,
                   .turned = r});
      }
    }
  }
  // Widths of the model. On a GPU lists of a tile are not cut, longer ones are added up in clusters
  // and those of 64 tiles by a second kernel; heads are fewer than a block's, fill one, or take
  // two.
  for (const RowForm& form : {kV4, kV4Nvfp4, resized(kDenseBf16, 512, 0)}) {
    struct Length {
      int64_t t, n, k, extra;
    };

    for (const Length& of : {Length{5, 64, 40, 0}, Length{3, 16, 128, 512}, Length{3, 66, 128, 70},
                             Length{1, 128, 128, 70}, Length{1, 17, 128, 4000}}) {
      add_sparse_decode_case(
          list, {.spec = {.name = str_cat("turned_", form.name, "_n", of.n, "_k", of.k + of.extra)},
                 .t = of.t,
                 .n = of.n,
                 .l = 512,
                 .rows = {.form = form, .k = of.k, .pages = 60, .page_size = 64},
                 .extra = {.form = form, .k = of.extra, .pages = 90, .page_size = 64},
                 .sink = Sink::kNormal,
                 .q_gap = 0,
                 .o_gap = of.n % 2 == 0 ? 0 : 4,
                 .turned = 64});
    }
    add_sparse_decode_case(list, {.spec = {.name = str_cat("turned_", form.name, "_f32")},
                                  .n = 64,
                                  .l = 512,
                                  .q = Format::kF32,
                                  .rows = {.form = form, .k = 70},
                                  .sink = Sink::kNormal,
                                  .turned = 64});
  }
}

struct TimedShape {
  std::string_view name;
  int64_t n, l;
  RowForm form;
  int64_t k, extra_k;
  int64_t turned = 0;
};

constexpr int64_t kPoolRows = 64 << 10;  // 38 MB of V4's rows: more than most caches hold

void add_timed_decode_cases(CaseList& list) {
  const std::vector<TimedShape> shapes = {
      {"v4_flash", 64, 512, kV4, 128, 512},
      {"v4_pro", 128, 512, kV4, 128, 1024},
      {"v32", 128, 512, kV32, 2048, 0},
      {"v4_flash_nvfp4", 64, 512, kV4Nvfp4, 128, 512},
      {"v4_flash_bf16", 64, 512, resized(kDenseBf16, 512, 0), 128, 512},
      {"turned_v4_flash", 64, 512, kV4, 128, 512, 64},
      {"turned_v4_flash_bf16", 64, 512, resized(kDenseBf16, 512, 0), 128, 512, 64}};
  for (const TimedShape& m : shapes) {
    const bool v4 = m.extra_k > 0;
    const auto pages = [&](int64_t k, int64_t count) {
      return SourceShape{.form = m.form, .k = k, .pages = count, .page_size = 64, .none_every = 0};
    };
    for (int64_t t : {1, 8, 32, 64, 128}) {
      add_sparse_decode_case(
          list, {.spec = {.name = str_cat(m.name, "_t", t),
                          .op = "sparse_attn",
                          .bench = true,
                          .phase = phase_of_case(true, t),
                          .columns = str_cat("M=", t, ";KV=", m.k + m.extra_k, ";H=", m.n,
                                             ";D=", m.form.w + m.form.r),
                          .note = v4 ? "rows of a pool of 65,536" : "rows of 8,192 a token"},
                 .t = t,
                 .n = m.n,
                 .l = m.l,
                 .rows = pages(m.k, v4 ? 64 : 128 * t),
                 .extra = pages(m.extra_k, kPoolRows / 64),
                 .sink = v4 ? Sink::kNormal : Sink::kNone,
                 .lse = false,
                 .empty_token = false,
                 .q_gap = 0,
                 .o_gap = 0,
                 .turned = m.turned});
    }
  }
}

/// The rows whose fields are called PREFIXvalues and on.
SourceShape source_of(const RecordedCall& call, std::string_view prefix, Listed listed) {
  const auto name = [&](std::string_view field) { return str_cat(prefix, field); };
  const std::string values = name("values");
  SourceShape out{.form = {.name = "recorded", .values = call.format(values)},
                  .k = call.dim(name("slots"), 1),
                  .pages = call.dim(values, 0),
                  .page_size = call.dim(values, 1),
                  .row_gap = call.row_gap(values),
                  .listed = listed};
  RowForm& form = out.form;
  form.w = call.dim(values, 2) * (form.values == Format::kU8 ? 2 : 1);
  if (const std::string rope = name("rope"); call.has(rope)) {
    form.r = call.dim(rope, 2);
    out.rope_gap = call.row_gap(rope);
  }
  if (const std::string scales = name("scales"); call.has(scales)) {
    form.scale = call.format(scales);
    form.group = form.w / call.dim(scales, 2);
    out.scale_gap = call.row_gap(scales);
  }
  return out;
}

/// With rows of both kinds the first are the window. Lists are full, as a dry run counts them.
void add_call(CaseList& one, const RecordedCall& call, CaseSpec spec) {
  const int64_t tokens = call.dim("q", 0);
  const Listed first = call.context().compressed ? Listed::kWindow : Listed::kChosen;
  SparseShape s{.spec = std::move(spec),
                .t = tokens,
                .n = call.dim("q", 1),
                .l = call.dim("o", 2),
                .q = call.format("q"),
                .o = call.format("o"),
                .rows = source_of(call, "", first),
                .sink = call.has("sink") ? Sink::kNormal : Sink::kNone,
                .lse = call.has("lse"),
                .empty_token = false,
                .q_gap = call.row_gap("q"),
                .o_gap = call.row_gap("o")};
  if (call.has("extra_values")) s.extra = source_of(call, "extra_", Listed::kChosen);
  if (call.has("table")) {
    s.turned = call.dim("table", 1);
    s.positions = call.dim("table", 0);
  }
  s.of = tokens_of(call, s.spec, tokens);
  s.spec.columns = str_cat("M=", tokens, ";KV=", s.rows.k + s.extra.k, ";H=", s.n, ";D=", s.d());
  add_sparse_decode_case(one, s);
}

}  // namespace

void add_sparse_mla_cases(CaseList& list) {
  add_small_decode_cases(list);
  add_other_decode_cases(list);
  add_model_width_cases(list);
  add_turned_cases(list);
  add_timed_decode_cases(list);
  add_sparse_mla_prefill_cases(list);
  list.serve_calls("sparse_mla_decode", add_call);
}

}  // namespace fathom
