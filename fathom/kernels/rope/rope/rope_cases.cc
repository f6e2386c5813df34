#include <limits>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/rope/rope/rope.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

struct RopeShape {
  CaseSpec spec;
  int64_t t;
  int64_t n;
  int64_t r;
  int64_t keys = 1;
  int64_t head = 0;  ///< elements of a head; 0: r, all of them rotate
  Format format = Format::kBf16;
  RopeStyle style = RopeStyle::kInterleaved;
  int64_t row_gap = 0;  ///< 128 in a model: q_pe is the end of a head of 192
  Format positions = Format::kI32;
  int64_t slots = 0;             ///< of a cache; 0: none is filled
  int64_t num_positions = 1024;  ///< of the table

  int64_t head_size() const { return head == 0 ? r : head; }
};

/// The operands that both kernels have.
struct RopeTensors {
  Tensor q, k, positions, table;

  RopeTensors(CaseData& c, const RopeShape& s, Format table_format) {
    c.set_batch(s.t);
    const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
    // What is timed has values of a model.
    const Fill fill = {.dist = s.spec.bench ? Dist::kNormal : Dist::kMixedRows};
    q = c.inout({s.t, s.n, s.head_size()}, s.format, fill, placed);
    if (s.keys > 0) k = c.inout({s.t, s.keys, s.head_size()}, s.format, {}, placed);
    positions = c.input({s.t}, s.positions, {}, {.rows_per_batch = 1});
    positions.fill([&](int64_t t) {
      if (t == 0) return s.num_positions - 1;
      return static_cast<int64_t>(c.rng().next_below(static_cast<uint32_t>(s.num_positions)));
    });
    table = c.input({s.num_positions, s.r}, table_format);
    oracle::fill_rope_table(table);
  }
};

/// Row of x with its first elements rotated: oracle::rotate with the roundings of `term`.
template <class Term>
void rotate_row(const Tensor& x,
                const RopeTensors& all,
                int64_t row,
                RopeStyle style,
                Term term,
                std::span<double> out) {
  const std::vector<double> values = x.row(row);
  std::copy(values.begin(), values.end(), out.begin());
  const auto R = static_cast<size_t>(all.table.dim(1));
  const int64_t position = static_cast<int64_t>(all.positions[row / x.dim(1)]);
  oracle::rotate({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(R)}, all.table,
                 position, style, out.subspan(0, R), term);
}

template <class Term>
void expect_rotations(CaseData& c, const RopeTensors& all, const RopeShape& s, Term term) {
  for (const Tensor& x : {all.q, all.k}) {
    if (!x.present()) continue;
    c.expect_rows(x, gates::row_op(s.format), [=](int64_t row, std::span<double> out) {
      rotate_row(x, all, row, s.style, term, out);
    });
  }
}

double unrounded(double x) {
  return x;
}

void add_inplace_case(CaseList& list, const RopeShape& s) {
  add_case<RopeInplace>(list, s.spec, [s](CaseBuilder<RopeInplace>& c) {
    const RopeTensors all(c, s, Format::kF32);
    const int64_t d = s.head_size();
    Tensor v, slots, k_cache, v_cache;
    if (s.slots > 0) {
      v = c.input({s.t, s.keys, d}, s.format, {}, {.row_gap = s.row_gap, .rows_per_batch = 1});
      slots = c.input({s.t}, Format::kI64, {}, {.rows_per_batch = 1});
      // Backwards, every other slot; the third token is a padding row.
      slots.fill([&](int64_t t) { return t == 2 ? -1 : s.slots - 1 - 2 * t; });
      k_cache = c.output({s.slots, s.keys, d}, s.format, {.row_gap = 3});
      v_cache = c.output({s.slots, s.keys, d}, s.format, {.row_gap = 1});
    }
    c.bind([=](const Binding& at) {
      return RopeInplace::Args{.q = at(all.q),
                               .k = at(all.k),
                               .positions = at(all.positions),
                               .table = at(all.table),
                               .v = at(v),
                               .slots = at(slots),
                               .k_cache = at(k_cache),
                               .v_cache = at(v_cache),
                               .style = s.style};
    });
    expect_rotations(c, all, s, unrounded);
    if (s.slots == 0) return;
    const auto expect_cache = [&](const Tensor& cache, const Gate& gate, auto row_of) {
      c.expect_rows(cache, gate, [=](int64_t row, std::span<double> out) {
        std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());  // not written
        for (int64_t t = 0; t < s.t; ++t) {
          if (static_cast<int64_t>(slots[t]) == row / s.keys) {
            row_of(t * s.keys + row % s.keys, out);
          }
        }
      });
    };
    expect_cache(k_cache, gates::row_op(s.format), [=](int64_t row, std::span<double> out) {
      rotate_row(all.k, all, row, s.style, unrounded, out);
    });
    expect_cache(v_cache, gates::exact(), [=](int64_t row, std::span<double> out) {
      const std::vector<double> values = v.row(row);
      std::copy(values.begin(), values.end(), out.begin());
    });
  });
}

void add_rope_case(CaseList& list, const RopeShape& s) {
  add_case<Rope>(list, s.spec, [s](CaseBuilder<Rope>& c) {
    const RopeTensors all(c, s, s.format);
    c.bind([=](const Binding& at) {
      return Rope::Args{.q = at(all.q),
                        .k = at(all.k),
                        .positions = at(all.positions),
                        .table = at(all.table),
                        .style = s.style};
    });
    // The products of two half-precision numbers are exact in float32: only the rounding that the
    // definition asks for is left.
    expect_rotations(c, all, s, [format = s.format](double term) {
      const auto single = static_cast<float>(term);
      if (format == Format::kBf16) return double{to_float(bf16_from_float(single))};
      if (format == Format::kF16) return double{to_float(f16_from_float(single))};
      return double{single};
    });
  });
}

using AddCase = void (*)(CaseList& list, const RopeShape& s);

void add_small_cases(CaseList& list, AddCase add, Format positions) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    const std::string_view suffix = style == RopeStyle::kInterleaved ? "" : "_half_split";
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      const auto shape = [&](std::string_view name, int64_t t, int64_t n, int64_t r) {
        return RopeShape{
            .spec = {.name = str_cat(name, suffix, format == Format::kBf16 ? "" : "_",
                                     format == Format::kBf16 ? "" : format_name(format))},
            .t = t,
            .n = n,
            .r = r,
            .format = format,
            .style = style,
            .row_gap = 5,
            .positions = positions};
      };
      for (int64_t t : {0, 1, 2, 3, 7, 61}) {
        RopeShape s = shape(str_cat("t", t, "_n3_r64"), t, 3, 64);
        s.row_gap = 128;
        add(list, s);
      }
      for (int64_t r : {2, 4, 16, 30, 32, 34, 62, 66})
        add(list, shape(str_cat("t5_n4_r", r), 5, 4, r));
      RopeShape no_key = shape("t6_n1_r64_no_key", 6, 1, 64);
      no_key.keys = 0;
      no_key.row_gap = 0;
      add(list, no_key);
      RopeShape partial = shape("t5_n6_k2_r64_d80", 5, 6, 64);
      partial.keys = 2;
      partial.head = 80;
      add(list, partial);
      RopeShape more_keys = shape("t4_n2_k3_r128_d256", 4, 2, 128);
      more_keys.keys = 3;
      more_keys.head = 256;
      more_keys.positions = positions == Format::kI32 ? Format::kI64 : Format::kI32;
      add(list, more_keys);
    }
  }
}

void add_cache_cases(CaseList& list) {
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t t : {0, 1, 5, 40}) {
      add_inplace_case(
          list, {.spec = {.name = str_cat("t", t, "_k2_d80_fills_cache_", format_name(format))},
                 .t = t,
                 .n = 4,
                 .r = 64,
                 .keys = 2,
                 .head = 80,
                 .format = format,
                 .style = RopeStyle::kHalfSplit,
                 .row_gap = 7,
                 .positions = Format::kI64,
                 .slots = 2 * t + 3});
    }
  }
}

void add_bench_case(CaseList& list, AddCase add, std::string_view model, int64_t t, int64_t n) {
  add(list, {.spec = timed_spec(model, "rotary_emb", t), .t = t, .n = n, .r = 64, .row_gap = 128});
}

}  // namespace

void add_rope_cases(CaseList& list) {
  add_small_cases(list, add_inplace_case, Format::kI32);
  add_small_cases(list, add_rope_case, Format::kI64);
  add_cache_cases(list);
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add_bench_case(list, add_inplace_case, "r1", t, 128);
    add_bench_case(list, add_inplace_case, "v2_lite", t, 16);
    add_bench_case(list, add_rope_case, "r1", t, 128);
  }
  for (const ReferencePoint& p : reference_points()) {
    add_reference_case(list, p, {.op = "rotary_emb"}, [&](CaseList& one) {
      add_bench_case(one, add_inplace_case, "reference", p.tokens(), 128);
    });
  }
  // 8,000 tokens of 129 heads, read and written: 264 MB in heads of 192, which no cache holds.
  add_bench_case(list, add_inplace_case, "r1_chunk", 8000, 128);
  add_bench_case(list, add_rope_case, "r1_chunk", 8000, 128);
  list.serve_calls("rope_inplace",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_inplace_case(one, {.spec = spec,
                                            .t = call.dim("q", 0),
                                            .n = call.dim("q", 1),
                                            .r = call.dim("table", 1),
                                            .keys = call.has("k") ? call.dim("k", 1) : 0,
                                            .head = call.dim("q", 2),
                                            .format = call.format("q"),
                                            .row_gap = call.row_gap("q"),
                                            .positions = call.format("positions"),
                                            .num_positions = call.dim("table", 0)});
                   });
}

}  // namespace fathom
