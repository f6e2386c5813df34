#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

struct RopeShape {
  CaseSpec spec;
  int64_t t;
  int64_t n;
  int64_t r;
  Format format = Format::kBf16;
  RopeStyle style = RopeStyle::kInterleaved;
  int64_t row_gap = 0;  ///< 128 in a model: q_pe is the end of a head of 192
  bool with_key = true;
};

void add_rope_case(CaseList& list, const RopeShape& s) {
  add_case<RopeInplace>(list, s.spec, [s](CaseBuilder<RopeInplace>& c) {
    constexpr int64_t kPositions = 1024;
    c.set_batch(s.t);
    const Placement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
    const Tensor q = c.inout({s.t, s.n, s.r}, s.format, {.dist = Dist::kMixedRows}, placed);
    const Tensor k = s.with_key ? c.inout({s.t, s.r}, s.format, {}, placed) : Tensor();
    const Tensor positions = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
    positions.fill([&](int64_t t) {
      if (t == 0) return kPositions - 1;
      return static_cast<int64_t>(c.rng().next_below(kPositions));
    });
    const Tensor table = c.input({kPositions, s.r}, Format::kF32);
    oracle::fill_rope_table(table);
    c.bind([=](const Binding& at) {
      return RopeInplace::Args{
          .q = at(q), .k = at(k), .positions = at(positions), .table = at(table), .style = s.style};
    });
    const auto position = [=](int64_t t) { return static_cast<int64_t>(positions[t]); };
    c.expect_rows(q, gates::row_op(s.format), [=](int64_t row, std::span<double> out) {
      oracle::rotate(q.row(row), table, position(row / s.n), s.style, out);
    });
    if (!s.with_key) return;
    c.expect_rows(k, gates::row_op(s.format), [=](int64_t row, std::span<double> out) {
      oracle::rotate(k.row(row), table, position(row), s.style, out);
    });
  });
}

}  // namespace

void add_rope_cases(CaseList& list) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    const std::string_view suffix = style == RopeStyle::kInterleaved ? "" : "_half_split";
    for (const Format format : {Format::kBf16, Format::kF32}) {
      const auto name = [&](std::string_view shape) {
        return str_cat(shape, suffix, format == Format::kF32 ? "_f32" : "");
      };
      for (int64_t t : {0, 1, 2, 3, 7, 61}) {
        add_rope_case(list, {.spec = {.name = name(str_cat("t", t, "_n3_r64"))},
                             .t = t,
                             .n = 3,
                             .r = 64,
                             .format = format,
                             .style = style,
                             .row_gap = 128});
      }
      for (int64_t r : {2, 4, 16, 30, 32, 34, 62, 66}) {
        add_rope_case(list, {.spec = {.name = name(str_cat("t5_n4_r", r))},
                             .t = 5,
                             .n = 4,
                             .r = r,
                             .format = format,
                             .style = style,
                             .row_gap = 5});
      }
      add_rope_case(list, {.spec = {.name = name("t6_n1_r64_no_key")},
                           .t = 6,
                           .n = 1,
                           .r = 64,
                           .format = format,
                           .style = style,
                           .with_key = false});
    }
  }
  const auto add_bench = [&](std::string_view model, int64_t t, int64_t n) {
    add_rope_case(list, {.spec = {.name = str_cat(model, "_t", t),
                                  .op = "rotary_emb",
                                  .bench = true,
                                  .phase = t > 128 ? "prefill" : "decode"},
                         .t = t,
                         .n = n,
                         .r = 64,
                         .row_gap = 128});
  };
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add_bench("r1", t, 128);
    add_bench("v2_lite", t, 16);
  }
}

}  // namespace fathom
