#include <cmath>
#include <memory>
#include <optional>

#include "fathom/kernels/attn/cache_row_oracle.h"
#include "fathom/kernels/conformance/call_tokens.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

constexpr int64_t kPositions = 512;
constexpr float kEps = 1e-6f;

enum class Where { kApart, kInPlace };

struct Shape {
  CaseSpec spec;
  int64_t t;
  int64_t h;
  int64_t d = 512;
  int64_t r = 64;
  Format format = Format::kBf16;
  oracle::RowKind row = oracle::kBf16Row;
  Format norm = Format::kNone;  ///< of kv_norm; kNone: left out
  Where where = Where::kApart;
  int64_t page_size = 64;
  bool slots = true;    ///< false: a token's row is that of its number
  bool padding = true;  ///< the third token goes nowhere
  int64_t pages = 0;    ///< 0: twice as many as the tokens fill, and more
  int64_t kv_gap = 64;
  int64_t table_rows = kPositions;
  std::optional<CallTokens> of = {};  ///< of a recorded call: where its tokens stand
};

/// x / rms(x), times the weight if there is one.
std::vector<double> normed(std::vector<double> x, const Tensor& weight) {
  double sum = 0;
  for (double v : x)
    sum += v * v;
  const double r = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + double{kEps});
  for (size_t i = 0; i < x.size(); ++i)
    x[i] *= weight.present() ? r * weight[static_cast<int64_t>(i)] : r;
  return x;
}

/// The last channels, as many as the table has, turned.
void rotate_last(std::vector<double>& row, const Tensor& table, int64_t position) {
  const auto rotary = static_cast<int64_t>(row.size()) - table.dim(1);
  const std::vector<double> pe(row.begin() + rotary, row.end());
  oracle::rotate(pe, table, position, RopeStyle::kInterleaved,
                 std::span(row).subspan(static_cast<size_t>(rotary)));
}

void add(CaseList& list, const Shape& s) {
  add_case<QnormRopeKvWrite>(list, s.spec, [s](CaseBuilder<QnormRopeKvWrite>& c) {
    // By number a token's row depends on those before it, so no part of them stands alone.
    const int64_t each = s.slots ? 1 : 0;
    if (s.slots) c.set_batch(s.t);
    const bool timed = s.spec.bench;
    const Fill fill{.dist = timed ? Dist::kNormal : Dist::kMixedRows, .scale = 3};
    const RowPlacement apart{.row_gap = timed ? 0 : 5, .rows_per_batch = each};
    const bool in_place = s.where == Where::kInPlace;
    const Tensor q = in_place ? c.inout({s.t, s.h, s.d}, s.format, fill, apart)
                              : c.input({s.t, s.h, s.d}, s.format, fill, apart);
    const Tensor q_out =
        in_place ? q : c.output({s.t, s.h, s.d}, s.format, {.rows_per_batch = each});
    const Tensor kv =
        c.input({s.t, s.d}, s.format, fill, {.row_gap = s.kv_gap, .rows_per_batch = each});
    const Tensor weight = s.norm == Format::kNone ? Tensor{} : c.input({s.d}, s.norm);
    const Tensor positions = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = each});
    positions.fill([&](int64_t t) { return s.of ? s.of->position(t) : t * 37 % kPositions; });
    const Tensor table = c.input({s.table_rows, s.r}, Format::kF32);
    oracle::fill_rope_rows(table, positions);
    const Tensor slots =
        s.slots ? c.input({s.t}, Format::kI64, {}, {.rows_per_batch = each}) : Tensor{};
    const int64_t pages = s.pages > 0 ? s.pages : 2 * s.t / s.page_size + 2;
    const int64_t num_slots = pages * s.page_size;
    // Backwards through the pages, every other slot where there are so many.
    const int64_t step = num_slots >= 2 * s.t ? 2 : 1;
    const auto slot_of = [&](int64_t t) {
      if (!s.slots) return t;
      return s.padding && t == 2 ? -1 : num_slots - 1 - step * t;
    };
    if (s.slots) slots.fill(slot_of);
    const auto token_of = std::make_shared<std::vector<int64_t>>(num_slots, -1);
    for (int64_t t = 0; t < s.t; ++t) {
      if (slot_of(t) >= 0) (*token_of)[static_cast<size_t>(slot_of(t))] = t;
    }
    const oracle::RowTensors rows = oracle::make_rows(c, s.row, pages, s.page_size, s.d, s.r);
    c.bind([=](const Binding& at) {
      return QnormRopeKvWrite::Args{.q = at(q),
                                    .kv = at(kv),
                                    .kv_norm = at(weight),
                                    .positions = at(positions),
                                    .table = at(table),
                                    .slots = at(slots),
                                    .q_out = at(q_out),
                                    .values = at(rows.values),
                                    .rope = at(rows.rope),
                                    .scales = at(rows.scales),
                                    .eps = kEps};
    });
    Gate gate = gates::row_op(s.format);
    gate.abs = 4e-6;  // pairs of normed values, of which the largest is 22, may nearly cancel
    c.expect_rows(q_out, gate, [=](int64_t row, std::span<double> out) {
      std::vector<double> head = normed(q.row(row), Tensor{});
      rotate_last(head, table, static_cast<int64_t>(positions[row / s.h]));
      std::copy(head.begin(), head.end(), out.begin());
    });
    // Without a weight the row keeps the size of kv, whose largest value here is 9000.
    const bool f32_row = s.row.values == Format::kF32;
    Gate row_gate = gates::row_op(f32_row ? Format::kF32 : Format::kBf16);
    row_gate.abs = s.norm == Format::kNone ? 2e-3 : 2e-5;
    oracle::expect_cache_rows(c, rows, row_gate, {}, [=](int64_t slot, std::vector<double>& row) {
      const int64_t t = (*token_of)[static_cast<size_t>(slot)];
      if (t < 0) return false;
      row = weight.present() ? normed(kv.row(t), weight) : kv.row(t);
      rotate_last(row, table, static_cast<int64_t>(positions[t]));
      return true;
    });
  });
}

std::string name_of(const Shape& s) {
  return str_cat("t", s.t, "_h", s.h, "_d", s.d, "_r", s.r, "_", format_name(s.format), "_to_",
                 s.row.name(), s.norm == Format::kNone ? "" : "_normed_",
                 s.norm == Format::kNone ? "" : format_name(s.norm),
                 s.where == Where::kInPlace ? "_in_place" : "", s.slots ? "" : "_by_number");
}

void add_named(CaseList& list, Shape s) {
  s.spec.name = name_of(s);
  add(list, s);
}

void add_small_cases(CaseList& list) {
  const oracle::RowKind kinds[] = {oracle::kBf16Row, oracle::kF32Row, oracle::kFp8Row,
                                   oracle::kNvfp4Row};
  for (int64_t t : {0, 1, 2, 3, 7, 67})
    add_named(list, {.spec = {}, .t = t, .h = 3, .row = oracle::kFp8Row, .norm = Format::kBf16});
  for (const Format format : {Format::kBf16, Format::kF32}) {
    for (const oracle::RowKind& kind : kinds) {
      for (const Format norm : {Format::kNone, Format::kBf16, Format::kF32}) {
        add_named(list, {.spec = {},
                         .t = 9,
                         .h = 4,
                         .format = format,
                         .row = kind,
                         .norm = norm,
                         .where = norm == Format::kF32 ? Where::kInPlace : Where::kApart,
                         .page_size = 4});
      }
    }
  }
  // Small models, and widths that are no whole vectors.
  for (const Format format : {Format::kBf16, Format::kF32}) {
    const oracle::RowKind dense = format == Format::kF32 ? oracle::kF32Row : oracle::kBf16Row;
    for (int64_t d : {2, 6, 15, 16, 17, 31, 33, 48, 65, 100, 130}) {
      const int64_t r = d < 6 ? 2 : d % 2 == 0 ? d / 2 / 2 * 2 : 4;
      add_named(list, {.spec = {},
                       .t = 5,
                       .h = 2,
                       .d = d,
                       .r = r,
                       .format = format,
                       .row = dense,
                       .norm = Format::kF32,
                       .where = d % 3 == 0 ? Where::kInPlace : Where::kApart,
                       .page_size = 1});
    }
    add_named(list, {.spec = {}, .t = 5, .h = 2, .d = 24, .r = 0, .format = format, .row = dense});
    add_named(list, {.spec = {}, .t = 5, .h = 0, .d = 24, .r = 8, .format = format, .row = dense});
  }
  add_named(list, {.spec = {}, .t = 7, .h = 1, .d = 72, .r = 8, .row = oracle::kFp8Row});
  add_named(list, {.spec = {}, .t = 7, .h = 1, .d = 24, .r = 8, .row = oracle::kNvfp4Row});
  for (const oracle::RowKind& kind : kinds) {
    add_named(list, {.spec = {},
                     .t = 21,
                     .h = 3,
                     .row = kind,
                     .norm = Format::kBf16,
                     .page_size = 64,
                     .slots = false});
  }
  // Groups of 32 over all channels: the window rows of DeepSeek-V4.1.
  add_named(list, {.spec = {},
                   .t = 7,
                   .h = 1,
                   .row = {.values = Format::kE4m3, .scales = Format::kUe8m0, .group = 32}});
}

void add_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t tokens = call.dim("q", 0);
  add(one, {.spec = spec,
            .t = tokens,
            .h = call.dim("q", 1),
            .d = call.dim("q", 2),
            .r = call.dim("table", 1),
            .format = call.format("q"),
            .row = oracle::row_kind_of(call, call.dim("q", 2)),
            .norm = call.has("kv_norm") ? call.format("kv_norm") : Format::kNone,
            .where = Where::kInPlace,
            .page_size = call.dim("values", 1),
            .slots = call.has("slots"),
            .padding = false,
            .pages = call.dim("values", 0),
            .kv_gap = call.row_gap("kv"),
            .table_rows = call.dim("table", 0),
            .of = tokens_of(call, spec, tokens)});
}

}  // namespace

void add_qnorm_rope_kv_write_cases(CaseList& list) {
  add_small_cases(list);
  list.serve_calls("qnorm_rope_kv_write", add_call);
  const auto add_bench = [&](std::string_view name, int64_t heads, int64_t t,
                             const oracle::RowKind& row) {
    CaseSpec spec = timed_spec(name, "attn_prepare", t);
    spec.columns = str_cat("M=", t, ";H=", heads, ";D=512");
    add(list, {.spec = spec,
               .t = t,
               .h = heads,
               .row = row,
               .norm = Format::kBf16,
               .where = Where::kInPlace,
               .padding = false});
  };
  for (int64_t t : {1, 8, 64, 512}) {
    add_bench("v4_flash_fp8", 64, t, oracle::kFp8Row);
    add_bench("v4_pro_fp8", 128, t, oracle::kFp8Row);
  }
  for (int64_t t : {1, 64}) {
    add_bench("v4_flash_bf16", 64, t, oracle::kBf16Row);
    add_bench("v4_pro_nvfp4", 128, t, oracle::kNvfp4Row);
  }
}

}  // namespace fathom
