#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/embed/embedding/embedding.h"

namespace fathom {
namespace {

struct EmbedShape {
  CaseSpec spec;
  int64_t t;
  int64_t h;
  int64_t v = 101;
  Format table = Format::kBf16;
  Format y = Format::kBf16;
  int64_t table_gap = 3;
  int64_t y_gap = 2;
};

void add_embed_case(CaseList& list, const EmbedShape& s) {
  add_case<Embed>(list, s.spec, [s](CaseBuilder<Embed>& c) {
    c.set_batch(s.t);
    const Tensor ids = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
    ids.fill([&](int64_t t) {
      if (t < 2) return t == 0 ? s.v - 1 : int64_t{0};
      return static_cast<int64_t>(c.rng().next_below(static_cast<uint32_t>(s.v)));
    });
    const Tensor table =
        c.input({s.v, s.h}, s.table, {},
                {.row_gap = s.spec.bench ? 0 : s.table_gap, .may_repeat = s.spec.bench});
    const Tensor y = c.output({s.t, s.h}, s.y, {.row_gap = s.y_gap, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return Embed::Args{.ids = at(ids), .table = at(table), .y = at(y)};
    });
    const bool rounds = s.table == Format::kF32 && s.y == Format::kBf16;
    c.expect_rows(y, rounds ? Gate{.bf16_ulps = 1} : gates::exact(),
                  [=](int64_t row, std::span<double> out) {
                    const std::vector<double> from = table.row(static_cast<int64_t>(ids[row]));
                    std::copy(from.begin(), from.end(), out.begin());
                  });
  });
}

}  // namespace

void add_embedding_cases(CaseList& list) {
  for (const Format table : {Format::kBf16, Format::kF32}) {
    for (const Format y : {Format::kBf16, Format::kF32}) {
      for (int64_t t : {0, 1, 2, 3, 7}) {
        add_embed_case(
            list,
            {.spec = {.name = str_cat("t", t, "_h67_", format_name(table), "_to_", format_name(y))},
             .t = t,
             .h = 67,
             .table = table,
             .y = y});
      }
      // Rows of eights, at multiples of 16 bytes; so many that a thread of a GPU has four of them.
      for (int64_t t : {0, 1, 3, 7, 4200}) {
        const int64_t h = t > 7 ? 520 : 72;
        add_embed_case(list, {.spec = {.name = str_cat("t", t, "_h", h, "_", format_name(table),
                                                       "_to_", format_name(y))},
                              .t = t,
                              .h = h,
                              .table = table,
                              .y = y,
                              .table_gap = 8,
                              .y_gap = 8});
      }
    }
  }
  for (int64_t t : {1, 8, 64, 512}) {
    CaseSpec spec = timed_spec("r1", "embed_tokens", t);
    spec.note = "8,080 of the 129,280 rows of the table";
    add_embed_case(list, {.spec = spec, .t = t, .h = 7168, .v = 8080});
    spec = timed_spec("v2_lite", "embed_tokens", t);
    spec.note = "12,800 of the 102,400 rows of the table";
    add_embed_case(list, {.spec = spec, .t = t, .h = 2048, .v = 12800});
  }
  list.serve_calls("embed", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_embed_case(one, {.spec = spec,
                         .t = call.dim("ids", 0),
                         .h = call.dim("table", 1),
                         .v = call.dim("table", 0),
                         .table = call.format("table"),
                         .y = call.format("y"),
                         .y_gap = call.row_gap("y")});
  });
}

}  // namespace fathom
