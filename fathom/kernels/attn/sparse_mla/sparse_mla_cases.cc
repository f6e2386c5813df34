#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla_case.h"
#include "fathom/kernels/conformance/call_tokens.h"

namespace fathom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// How rows are stored.
struct RowForm {
  std::string_view name;
  Format values = Format::kBf16;
  Format scale = Format::kNone;
  int64_t w = 48;  ///< channels of `values`
  int64_t r = 0;   ///< channels of `rope`
  int64_t group = 0;

  bool coded() const { return scale != Format::kNone; }

  double largest() const { return values == Format::kU8 ? 6 : 448; }
};

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

/// What the entries of lists name.
enum class Listed {
  kAny,     ///< random rows, some of them -1
  kWindow,  ///< the newest tokens of the request, whose ring a page is
  kChosen,  ///< rows of the request's pages, ascending by place and none twice
};

/// Rows of one cache and lists of them.
struct SourceShape {
  RowForm form = kDenseBf16;
  int64_t k = 0;  ///< entries of a list; 0 of the second source: there is none
  int64_t pages = 7;
  int64_t page_size = 16;
  int64_t row_gap = 0;     ///< between rows of `values`
  int64_t page_gap = 0;    ///< rows of a page that are not part of it
  int64_t none_every = 4;  ///< each so-many-th entry is -1; 0: none is
  Listed listed = Listed::kAny;
  int64_t rope_gap = 0, scale_gap = 0;
};

struct SparseShape {
  CaseSpec spec;
  int64_t t = 3;
  int64_t n = 4;
  int64_t l = 48;
  Format q = Format::kBf16;
  Format o = Format::kNone;  ///< none: that of q
  SourceShape rows;
  SourceShape extra = {};
  Sink sink = Sink::kNone;
  bool lse = true;
  bool empty_token = true;  ///< token 1 has no rows
  double q_scale = 1.0;     ///< large: one row gets nearly all the weight
  int64_t q_gap = 2, o_gap = 4;
  CallTokens of = {};  ///< where lists are those of a request

  Format out() const { return o == Format::kNone ? q : o; }

  int64_t d() const { return rows.form.w + rows.form.r; }
};

/// A cache as the kernel finds it, with the rows before they were quantised.
struct Source {
  SourceShape shape;
  Tensor values, rope, scales, slots;
  std::shared_ptr<std::vector<float>> exact;  ///< [slots of the cache][W], of coded rows

  /// Rows are counted through pages as they lie, page_gap included.
  int64_t place(int64_t slot) const {
    return slot / shape.page_size * (shape.page_size + shape.page_gap) + slot % shape.page_size;
  }

  /// Channel d < W, rounded to bf16 for queries in bf16.
  double channel(int64_t slot, int64_t d, bool as_bf16) const {
    const int64_t at = place(slot);
    if (!shape.form.coded()) return values[at * shape.form.w + d];
    double code = 0;
    if (shape.form.values == Format::kU8) {
      constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const auto byte = static_cast<int>(values[at * (shape.form.w / 2) + d / 2]);
      const int nibble = d % 2 == 0 ? byte % 16 : byte / 16;
      code = (nibble >= 8 ? -1 : 1) * kMagnitudes[nibble % 8];
    } else {
      code = values[at * shape.form.w + d];
    }
    const double value =
        code * scales[at * (shape.form.w / shape.form.group) + d / shape.form.group];
    return as_bf16 ? double{to_float(bf16_from_float(static_cast<float>(value)))} : value;
  }

  std::vector<double> row(int64_t slot, bool as_bf16) const {
    std::vector<double> out;
    for (int64_t d = 0; d < shape.form.w; ++d)
      out.push_back(channel(slot, d, as_bf16));
    return with_rope(slot, std::move(out));
  }

  std::vector<double> exact_row(int64_t slot) const {
    const auto begin = exact->begin() + place(slot) * shape.form.w;
    return with_rope(slot, std::vector<double>(begin, begin + shape.form.w));
  }

  /// View of a field without the rows between pages.
  View fields(View v) const {
    if (v.present()) v.dims[1] -= shape.page_gap;
    return v;
  }

  SparseRows at(const Binding& binding) const {
    return {.values = fields(binding(values)),
            .slots = binding(slots),
            .rope = fields(binding(rope)),
            .scales = fields(binding(scales))};
  }

 private:
  std::vector<double> with_rope(int64_t slot, std::vector<double> out) const {
    for (int64_t d = 0; d < shape.form.r; ++d)
      out.push_back(rope[place(slot) * shape.form.r + d]);
    return out;
  }
};

/// Quantises a row by the largest magnitude of each group.
void quantise_row(const Source& x, int64_t at) {
  const RowForm& form = x.shape.form;
  const float* exact = x.exact->data() + at * form.w;
  for (int64_t g = 0; g < form.w / form.group; ++g) {
    double amax = 0;
    for (int64_t d = g * form.group; d < (g + 1) * form.group; ++d)
      amax = std::max(amax, std::fabs(double{exact[d]}));
    const int64_t scale_at = at * (form.w / form.group) + g;
    x.scales.set(scale_at, std::max(amax / form.largest(), 0x1p-9));
    const double scale = x.scales[scale_at];
    for (int64_t d = g * form.group; d < (g + 1) * form.group; ++d) {
      if (form.values == Format::kE4m3) {
        x.values.set(at * form.w + d, exact[d] / scale);
      } else if (d % 2 == 0) {
        const auto code = [&](int64_t i) {
          return e2m1_from_float(static_cast<float>(exact[i] / scale));
        };
        x.values.set((at * form.w + d) / 2, pack_e2m1(code(d), code(d + 1)));
      }
    }
  }
}

/// Codes and scales whose products are of size 1, for caches whose quantisation would take longer
/// than the measurement.
Fill random_codes(const RowForm& form) {
  if (form.values == Format::kU8) return {.dist = Dist::kBytes};
  return {.scale = form.coded() ? form.largest() / 1.5 : 1.0};
}

Fill random_scales(const RowForm& form) {
  return {.dist = Dist::kUniform, .scale = 1 / form.largest(), .offset = 1 / form.largest()};
}

/// Entry j of the list of token t.
int64_t entry_of(const SparseShape& s, const SourceShape& shape, Rng& rng, int64_t t, int64_t j) {
  const int64_t request = s.of.request(t);
  if (shape.listed == Listed::kWindow) {
    const int64_t token = s.of.position(t) - (shape.k - 1 - j);
    const int64_t ring = shape.page_size;
    return request % shape.pages * ring + (token % ring + ring) % ring;
  }
  const int64_t pages = shape.pages / s.of.requests;
  const int64_t row = chosen_row(rng, j, shape.k, pages * shape.page_size);
  if (row < 0) return -1;
  const int64_t page = scattered_page(request * pages + row / shape.page_size, shape.pages);
  return page * shape.page_size + row % shape.page_size;
}

/// Makes what no list names unreadable.
void poison_unlisted(const Source& x, int64_t num_rows, const std::vector<bool>& listed) {
  const auto poison = [&](const Tensor& field) {
    if (!field.present() || field.format() == Format::kU8) return;
    const int64_t width = field.numel() / num_rows;
    for (int64_t i = 0; i < field.numel(); ++i) {
      if (!listed[static_cast<size_t>(i / width)]) field.set(i, kNan);
    }
  };
  poison(x.values);
  poison(x.rope);
  poison(x.scales);
}

Source make_source(const SparseShape& s, const SourceShape& shape, CaseData& c) {
  Source x;
  x.shape = shape;
  const RowForm& form = shape.form;
  const int64_t in_page = shape.page_size + shape.page_gap;
  const int64_t num_rows = shape.pages * in_page;
  const int64_t width = form.values == Format::kU8 ? form.w / 2 : form.w;
  const auto apart = [&](int64_t gap) {
    return RowPlacement{.row_gap = gap, .may_repeat = s.spec.bench};
  };
  x.values =
      c.input({shape.pages, in_page, width}, form.values, random_codes(form), apart(shape.row_gap));
  if (form.r > 0)
    x.rope = c.input({shape.pages, in_page, form.r}, Format::kBf16, {}, apart(shape.rope_gap));
  if (form.coded()) {
    x.scales = c.input({shape.pages, in_page, form.w / form.group}, form.scale, random_scales(form),
                       apart(shape.scale_gap));
    if (!s.spec.bench) {
      x.exact = std::make_shared<std::vector<float>>();
      for (int64_t i = 0; i < num_rows * form.w; ++i)
        x.exact->push_back(c.rng().next_normal());
      for (int64_t at = 0; at < num_rows; ++at)
        quantise_row(x, at);
    }
  }
  const bool recorded = shape.listed != Listed::kAny;
  x.slots =
      c.input({s.t, shape.k}, Format::kI32, {}, {.row_gap = recorded ? 0 : 3, .rows_per_batch = 1});
  std::vector<bool> listed(static_cast<size_t>(num_rows));
  x.slots.fill([&](int64_t i) {
    if (recorded) return double(entry_of(s, shape, c.rng(), i / shape.k, i % shape.k));
    const bool empty = s.empty_token && i / shape.k == 1;
    if (empty || (shape.none_every > 0 && i % shape.none_every == 1)) return -1.0;
    const auto slot = c.rng().next_below(static_cast<uint32_t>(shape.pages * shape.page_size));
    listed[static_cast<size_t>(x.place(slot))] = true;
    return double(slot);
  });
  if (!s.spec.bench) poison_unlisted(x, num_rows, listed);
  return x;
}

/// Row t * N + n of the output.
oracle::AttentionRow exact_row(const SparseShape& s,
                               const std::vector<Source>& sources,
                               const Tensor& q,
                               const Tensor& sink,
                               double scale,
                               int64_t row,
                               bool unquantised) {
  std::vector<std::vector<double>> keys;
  for (const Source& x : sources) {
    for (int64_t j = 0; j < x.shape.k; ++j) {
      const auto slot = static_cast<int64_t>(x.slots.at(row / s.n, j));
      if (slot < 0) continue;
      keys.push_back(unquantised && x.exact != nullptr ? x.exact_row(slot)
                                                       : x.row(slot, s.q == Format::kBf16));
    }
  }
  const auto key = [&](int64_t j) { return keys[static_cast<size_t>(j)]; };
  oracle::AttentionRow out =
      oracle::attend(q.row(row), static_cast<int64_t>(keys.size()), s.l, scale, key, key);
  apply_sparse_sink(out, sink, row % s.n);
  return out;
}

/// What codes cost: values and logits each move by the error of a code (2.6 % of e4m3, 9.5 % of
/// e2m1 under e4m3 scales, root mean square of normal data). Twice what was measured: 6.5e-4 and
/// 6.8e-3.
Gate full_precision_gate(const SparseShape& s) {
  return {.diff = s.rows.form.values == Format::kU8 ? 1.4e-2 : 1.3e-3};
}

void add_decode_case(CaseList& list, const SparseShape& s) {
  add_case<SparseMlaDecode>(list, s.spec, [s](CaseBuilder<SparseMlaDecode>& c) {
    c.set_batch(s.t);
    const Tensor q = c.input({s.t, s.n, s.d()}, s.q, {.scale = s.q_scale},
                             {.row_gap = s.q_gap, .rows_per_batch = 1});
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.d()));
    std::vector<Source> sources = {make_source(s, s.rows, c)};
    if (s.extra.k > 0) sources.push_back(make_source(s, s.extra, c));
    const Tensor sink = make_sparse_sink(c, s.sink, s.n);
    const Tensor o = c.output({s.t, s.n, s.l}, s.out(), {.row_gap = s.o_gap, .rows_per_batch = 1});
    Tensor lse;
    if (s.lse) lse = c.output({s.t, s.n}, Format::kF32, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return SparseMlaDecode::Args{.q = at(q),
                                   .rows = sources[0].at(at),
                                   .o = at(o),
                                   .extra = sources.size() > 1 ? sources[1].at(at) : SparseRows{},
                                   .sink = at(sink),
                                   .lse = at(lse),
                                   .scale = scale};
    });
    const auto rows_of = [=](bool unquantised) {
      return std::make_shared<oracle::AttentionRows>([=](int64_t row) {
        return exact_row(s, sources, q, sink, double{scale}, row, unquantised);
      });
    };
    const auto rows = rows_of(false);
    c.expect_each(o, sparse_gate(s.q, s.out()), [=](int64_t row, int64_t col) {
      return (*rows)(row).o[static_cast<size_t>(col)];
    });
    if (s.spec.bench) return;
    if (s.lse) {
      c.expect_each(lse, gates::log_sum_exp(),
                    [=](int64_t row, int64_t col) { return (*rows)(row * s.n + col).lse; });
    }
    const bool apart = s.q_scale > 1;  // the error of a code decides which row takes all
    if (!s.rows.form.coded() || o.numel() < 4096 || s.sink == Sink::kInfinite || apart) return;
    const auto unquantised = rows_of(true);
    c.expect_full_precision(o, full_precision_gate(s), [=](int64_t row, int64_t col) {
      return (*unquantised)(row).o[static_cast<size_t>(col)];
    });
  });
}

void add_small_decode_cases(CaseList& list) {
  const std::vector<RowForm> forms = {kDenseBf16, kDenseF32, resized(kV4, 64, 32),
                                      resized(kV32, 128, 16), resized(kV4Nvfp4, 48, 16)};
  for (const RowForm& form : forms) {
    for (const Format q : {Format::kBf16, Format::kF32}) {
      for (int64_t k : {0, 1, 2, 3, 63, 64, 65, 127, 128, 130}) {
        add_decode_case(list, {.spec = {.name = str_cat(form.name, "_k", k, "_q_", format_name(q))},
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
      add_decode_case(list, {.spec = {.name = str_cat(form.name, "_and_", extra.name)},
                             .n = 3,
                             .rows = {.form = form, .k = 30},
                             .extra = {.form = same_width, .k = 99, .pages = 5, .page_size = 64},
                             .sink = Sink::kNormal});
    }
  }
  for (int64_t n : {1, 2, 3, 5, 7, 8, 9, 16, 17, 131}) {
    add_decode_case(list, {.spec = {.name = str_cat("n", n)}, .n = n, .rows = {.k = 70}});
  }
  for (int64_t t : {0, 1, 2, 5, 17}) {
    add_decode_case(list, {.spec = {.name = str_cat("t", t)},
                           .t = t,
                           .n = 16,
                           .l = 100,
                           .rows = {.form = resized(kV4, 64, 64), .k = 140},
                           .sink = Sink::kNormal});
  }
  for (int64_t page_size : {1, 2, 64}) {
    add_decode_case(list, {.spec = {.name = str_cat("page", page_size)},
                           .rows = {.form = resized(kV4, 128, 64),
                                    .k = 90,
                                    .page_size = page_size,
                                    .row_gap = 7,
                                    .page_gap = 1}});
  }
  for (const auto& [d, l] :
       {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {33, 33}, {50, 31}, {576, 512}}) {
    for (const Format q : {Format::kBf16, Format::kF32}) {
      add_decode_case(
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
        add_decode_case(list, {.spec = {.name = str_cat(format_name(values), "_w", w, "_r", r, "_g",
                                                        group, "_", format_name(scale))},
                               .l = w + r,
                               .rows = {.form = form, .k = 67}});
      }
    }
  }
  for (const Format q : {Format::kBf16, Format::kF32}) {
    add_decode_case(list, {.spec = {.name = str_cat("other_output_", format_name(q))},
                           .q = q,
                           .o = q == Format::kBf16 ? Format::kF32 : Format::kBf16,
                           .rows = {.k = 70}});
    add_decode_case(list, {.spec = {.name = str_cat("infinite_sinks_", format_name(q))},
                           .n = 7,
                           .q = q,
                           .rows = {.k = 70},
                           .sink = Sink::kInfinite});
    add_decode_case(list, {.spec = {.name = str_cat("no_lse_", format_name(q))},
                           .q = q,
                           .rows = {.k = 5},
                           .lse = false});
  }
  add_decode_case(list, {.spec = {.name = "one_row_takes_all"},
                         .l = 512,
                         .rows = {.form = kV4, .k = 300},
                         .sink = Sink::kNormal,
                         .q_scale = 100});
  add_decode_case(list, {.spec = {.name = "every_row_many_times"},
                         .rows = {.k = 200, .pages = 1, .page_size = 3}});
}

/// The models' widths, few tokens.
void add_model_width_cases(CaseList& list) {
  for (const Format q : {Format::kBf16, Format::kF32}) {
    for (const RowForm& form : {kV4, kV4Nvfp4, resized(kDenseBf16, 512, 0)}) {
      add_decode_case(list,
                      {.spec = {.name = str_cat("v4_width_", form.name, "_q_", format_name(q))},
                       .n = 64,
                       .l = 512,
                       .q = q,
                       .rows = {.form = form, .k = 128, .page_size = 64},
                       .extra = {.form = form, .k = 70, .pages = 30, .page_size = 2},
                       .sink = Sink::kNormal});
    }
    for (const RowForm& form : {kV32, resized(kDenseBf16, 576, 0)}) {
      add_decode_case(list,
                      {.spec = {.name = str_cat("v32_width_", form.name, "_", format_name(q))},
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
    add_decode_case(list,
                    {.spec = {.name = str_cat("many_rows_", form.name)},
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

struct TimedShape {
  std::string_view name;
  int64_t n, l;
  RowForm form;
  int64_t k, extra_k;
};

constexpr int64_t kPoolRows = 64 << 10;  // 38 MB of V4's rows: more than most caches hold

void add_timed_decode_cases(CaseList& list) {
  const std::vector<TimedShape> shapes = {
      {"v4_flash", 64, 512, kV4, 128, 512},
      {"v4_pro", 128, 512, kV4, 128, 1024},
      {"v32", 128, 512, kV32, 2048, 0},
      {"v4_flash_nvfp4", 64, 512, kV4Nvfp4, 128, 512},
      {"v4_flash_bf16", 64, 512, resized(kDenseBf16, 512, 0), 128, 512}};
  for (const TimedShape& m : shapes) {
    const bool v4 = m.extra_k > 0;
    const auto pages = [&](int64_t k, int64_t count) {
      return SourceShape{.form = m.form, .k = k, .pages = count, .page_size = 64, .none_every = 0};
    };
    for (int64_t t : {1, 8, 32, 64, 128}) {
      add_decode_case(list,
                      {.spec = {.name = str_cat(m.name, "_t", t),
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
                       .o_gap = 0});
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
  s.of = tokens_of(call, s.spec, tokens);
  s.spec.columns = str_cat("M=", tokens, ";KV=", s.rows.k + s.extra.k, ";H=", s.n, ";D=", s.d());
  add_decode_case(one, s);
}

}  // namespace

Tensor make_sparse_sink(CaseData& c, Sink kind, int64_t n) {
  if (kind == Sink::kNone) return {};
  const Tensor sink = c.input({n}, Format::kF32, {.scale = 2});
  if (kind == Sink::kInfinite) {
    for (int64_t i = 0; i < n; ++i)
      sink.set(i, i % 3 == 0 ? -kInf : (i % 3 == 1 ? kInf : 1.0));
  }
  return sink;
}

void apply_sparse_sink(oracle::AttentionRow& row, const Tensor& sink, int64_t head) {
  if (!sink.present() || row.lse == -kInf) return;
  for (double& o : row.o)
    o /= 1.0 + std::exp(sink[head] - row.lse);
}

Gate sparse_gate(Format q, Format o) {
  return gates::attention(q == Format::kF32 && o == Format::kF32 ? Format::kF32 : Format::kBf16);
}

void add_sparse_mla_cases(CaseList& list) {
  add_small_decode_cases(list);
  add_other_decode_cases(list);
  add_model_width_cases(list);
  add_timed_decode_cases(list);
  add_sparse_mla_prefill_cases(list);
  list.serve_calls("sparse_mla_decode", add_call);
}

}  // namespace fathom
