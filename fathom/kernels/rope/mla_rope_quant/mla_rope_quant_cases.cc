#include <algorithm>
#include <limits>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

/// Half a step: 2^-4 of the value, 2^-10 among the subnormals of E4M3; 2^-3 and 2^-17 of E5M2.
Gate gate_of(Format format) {
  if (format == Format::kE4m3) return {.abs = 0x1.001p-10, .rel = 0x1.001p-4};
  if (format == Format::kE5m2) return {.abs = 0x1.001p-17, .rel = 0x1.001p-3};
  return gates::row_op(format);
}

/// What is timed has values of a model.
Fill fill_of(const CaseSpec& spec) {
  return {.dist = spec.bench ? Dist::kNormal : Dist::kMixedRows, .scale = 4};
}

struct QuantShape {
  CaseSpec spec;
  int64_t t;
  int64_t n;
  int64_t l = 512;
  int64_t r = 64;
  Format in = Format::kBf16;
  Format out = Format::kE4m3;
  float q_scale = 1.0f;
  float kv_scale = 1.0f;
  RopeStyle style = RopeStyle::kInterleaved;
  Format positions = Format::kI32;
};

void add_quant_case(CaseList& list, const QuantShape& s) {
  add_case<MlaRopeQuantFp8>(list, s.spec, [s](CaseBuilder<MlaRopeQuantFp8>& c) {
    constexpr int64_t kPositions = 512;
    c.set_batch(s.t);
    const auto input = [&](std::vector<int64_t> dims, int64_t gap) {
      return c.input(std::move(dims), s.in, fill_of(s.spec), {.row_gap = gap, .rows_per_batch = 1});
    };
    const Tensor q_pe = input({s.t, s.n, s.r}, 128);
    const Tensor k_pe = input({s.t, s.r}, 3);
    const Tensor q_lat = input({s.t, s.n, s.l}, 0);
    const Tensor latent = input({s.t, s.l}, 2);
    const Tensor positions = c.input({s.t}, s.positions, {}, {.rows_per_batch = 1});
    positions.fill([](int64_t t) { return t * 37 % kPositions; });
    const Tensor table = c.input({kPositions, s.r}, Format::kF32);
    oracle::fill_rope_table(table);
    const auto output = [&](std::vector<int64_t> dims, int64_t gap) {
      return c.output(std::move(dims), s.out, {.row_gap = gap, .rows_per_batch = 1});
    };
    const Tensor q_pe_out = output({s.t, s.n, s.r}, 1);
    const Tensor k_pe_out = output({s.t, s.r}, 0);
    const Tensor q_lat_out = output({s.t, s.n, s.l}, 64);
    const Tensor c_out = output({s.t, s.l}, 5);
    c.bind([=](const Binding& at) {
      return MlaRopeQuantFp8::Args{.q_pe = at(q_pe),
                                   .k_pe = at(k_pe),
                                   .q_lat = at(q_lat),
                                   .c = at(latent),
                                   .positions = at(positions),
                                   .table = at(table),
                                   .q_pe_out = at(q_pe_out),
                                   .k_pe_out = at(k_pe_out),
                                   .q_lat_out = at(q_lat_out),
                                   .c_out = at(c_out),
                                   .q_scale = s.q_scale,
                                   .kv_scale = s.kv_scale,
                                   .style = s.style};
    });
    const double largest = s.out == Format::kE4m3 ? 448.0 : 57344.0;
    const auto expect = [&](const Tensor& out, const Tensor& in, double scale, int64_t heads) {
      const bool rotates = in.dim(in.rank() - 1) == s.r;
      c.expect_rows(out, gate_of(s.out), [=](int64_t row, std::span<double> values) {
        const std::vector<double> x = in.row(row);
        std::copy(x.begin(), x.end(), values.begin());
        if (rotates) {
          oracle::rotate(x, table, static_cast<int64_t>(positions[row / heads]), s.style, values);
        }
        for (double& v : values)
          v = std::clamp(v * scale, -largest, largest);
      });
    };
    expect(q_pe_out, q_pe, double{s.q_scale}, s.n);
    expect(k_pe_out, k_pe, double{s.kv_scale}, 1);
    expect(q_lat_out, q_lat, double{s.q_scale}, s.n);
    expect(c_out, latent, double{s.kv_scale}, 1);
  });
}

struct PrepareShape {
  CaseSpec spec;
  int64_t t;
  int64_t n;
  int64_t l = 512;
  int64_t r = 64;
  Format in = Format::kBf16;
  Format q = Format::kE4m3;
  Format cache = Format::kE4m3;
  float q_scale = 1.0f;
  float kv_scale = 1.0f;
  RopeStyle style = RopeStyle::kInterleaved;
  int64_t page_size = 64;
  int64_t num_pages = 0;  ///< 0: a few more than needed
};

void to_codes(Format format, float scale, std::span<double> values) {
  if (format != Format::kE4m3) return;
  for (double& v : values)
    v = std::clamp(v / double{scale}, -448.0, 448.0);
}

void add_prepare_case(CaseList& list, const PrepareShape& s) {
  add_case<MlaRopeWrite>(list, s.spec, [s](CaseBuilder<MlaRopeWrite>& c) {
    constexpr int64_t kPositions = 512;
    const int64_t pages = s.num_pages > 0 ? s.num_pages : s.t * 2 / s.page_size + 2;
    const int64_t d = s.l + s.r;
    c.set_batch(s.t);
    const auto input = [&](std::vector<int64_t> dims, int64_t gap) {
      return c.input(std::move(dims), s.in, fill_of(s.spec), {.row_gap = gap, .rows_per_batch = 1});
    };
    const Tensor q_lat = input({s.t, s.n, s.l}, 0);
    const Tensor q_pe = input({s.t, s.n, s.r}, 128);
    const Tensor latent = input({s.t, s.l}, 2);
    const Tensor k_pe = input({s.t, s.r}, 3);
    const Tensor positions = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
    positions.fill([](int64_t t) { return t * 37 % kPositions; });
    const Tensor table = c.input({kPositions, s.r}, Format::kF32);
    oracle::fill_rope_table(table);
    const Tensor slots = c.input({s.t}, Format::kI64, {}, {.rows_per_batch = 1});
    // Backwards through the pages, every other slot; the third token is a padding row.
    slots.fill([&](int64_t t) { return t == 2 ? -1 : pages * s.page_size - 1 - 2 * t; });
    const Tensor q = c.output({s.t, s.n, d}, s.q, {.rows_per_batch = 1});
    const Tensor cache = c.output({pages, s.page_size, d}, s.cache);
    c.bind([=](const Binding& at) {
      return MlaRopeWrite::Args{.q_lat = at(q_lat),
                                .q_pe = at(q_pe),
                                .c = at(latent),
                                .k_pe = at(k_pe),
                                .positions = at(positions),
                                .table = at(table),
                                .slots = at(slots),
                                .q = at(q),
                                .cache = at(cache),
                                .q_scale = s.q_scale,
                                .kv_scale = s.kv_scale,
                                .style = s.style};
    });
    const auto prepare = [=](const std::vector<double>& lat, const std::vector<double>& pe,
                             int64_t t, std::span<double> out) {
      std::copy(lat.begin(), lat.end(), out.begin());
      oracle::rotate(pe, table, static_cast<int64_t>(positions[t]), s.style,
                     out.subspan(static_cast<size_t>(s.l)));
    };
    c.expect_rows(q, gate_of(s.q), [=](int64_t row, std::span<double> out) {
      prepare(q_lat.row(row), q_pe.row(row), row / s.n, out);
      to_codes(s.q, s.q_scale, out);
    });
    c.expect_rows(cache, gate_of(s.cache), [=](int64_t slot, std::span<double> out) {
      std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());  // not written
      for (int64_t t = 0; t < s.t; ++t) {
        if (static_cast<int64_t>(slots[t]) != slot) continue;
        prepare(latent.row(t), k_pe.row(t), t, out);
        to_codes(s.cache, s.kv_scale, out);
      }
    });
  });
}

void add_quant_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 19}) {
    add_quant_case(list, {.spec = {.name = str_cat("t", t, "_n4")}, .t = t, .n = 4});
  }
  for (const Format in : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (const Format out : {Format::kE4m3, Format::kE5m2}) {
      for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
        const std::string_view suffix = style == RopeStyle::kHalfSplit ? "_half_split" : "";
        add_quant_case(list, {.spec = {.name = str_cat("t5_l50_r34_", format_name(in), "_to_",
                                                       format_name(out), suffix)},
                              .t = 5,
                              .n = 3,
                              .l = 50,
                              .r = 34,
                              .in = in,
                              .out = out,
                              .q_scale = 2.7f,
                              .kv_scale = 47.0f,  // e4m3 saturates
                              .style = style,
                              .positions = Format::kI64});
      }
    }
  }
  // Whole vectors: three heads and five, none of them a multiple of those that are prepared at
  // once.
  for (const Format in : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      for (int64_t n : {3, 5}) {
        const Format out = n == 3 ? Format::kE4m3 : Format::kE5m2;
        const std::string_view suffix = style == RopeStyle::kHalfSplit ? "_half_split" : "";
        add_quant_case(list, {.spec = {.name = str_cat("t7_n", n, "_l64_r32_", format_name(in),
                                                       "_to_", format_name(out), suffix)},
                              .t = 7,
                              .n = n,
                              .l = 64,
                              .r = 32,
                              .in = in,
                              .out = out,
                              .q_scale = 2.7f,
                              .kv_scale = 47.0f,
                              .style = style,
                              .positions = Format::kI64});
      }
    }
  }
  // More vectors of a head than the lanes of a warp take at once.
  add_quant_case(
      list,
      {.spec = {.name = "t3_l1032_r264"}, .t = 3, .n = 5, .l = 1032, .r = 264, .q_scale = 0.3f});
  const auto add_bench = [&](std::string_view name, int64_t t) {
    add_quant_case(list, {.spec = timed_spec(name, "attn_mqa", t), .t = t, .n = 128});
  };
  for (int64_t t : {1, 8, 64, 128, 512})
    add_bench("r1", t);
  for (const ReferencePoint& p : reference_points()) {
    add_reference_case(list, p, {.op = "rope_quantize"}, [&](CaseList& one) {
      add_quant_case(one,
                     {.spec = {.name = "reference", .bench = true}, .t = p.tokens(), .n = 128});
    });
  }
  // 1,200 tokens of 129 heads of 576: 267 MB, which no cache holds.
  add_bench("r1_chunk", 1200);
}

void add_write_cases(CaseList& list) {
  constexpr Format kFormats[] = {Format::kBf16, Format::kF32, Format::kE4m3};
  for (int64_t t : {0, 1, 2, 3, 7, 40}) {
    add_prepare_case(list, {.spec = {.name = str_cat("t", t, "_n4")}, .t = t, .n = 4});
    add_prepare_case(list, {.spec = {.name = str_cat("t", t, "_n4_bf16")},
                            .t = t,
                            .n = 4,
                            .q = Format::kBf16,
                            .cache = Format::kBf16,
                            .page_size = 6});
  }
  for (const Format in : {Format::kBf16, Format::kF32}) {
    for (const Format q : kFormats) {
      for (const Format cache : kFormats) {
        const std::string formats =
            str_cat(format_name(in), "_to_", format_name(q), "_", format_name(cache));
        const float q_scale = q == Format::kE4m3 ? 0.37f : 1.0f;
        const float kv_scale = cache == Format::kE4m3 ? 0.021f : 1.0f;  // saturates
        for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
          add_prepare_case(
              list, {.spec = {.name = str_cat("t5_l50_r34_", formats,
                                              style == RopeStyle::kHalfSplit ? "_half_split" : "")},
                     .t = 5,
                     .n = 3,
                     .l = 50,
                     .r = 34,
                     .in = in,
                     .q = q,
                     .cache = cache,
                     .q_scale = q_scale,
                     .kv_scale = kv_scale,
                     .style = style,
                     .page_size = 2});
        }
      }
    }
  }

  struct Formats {
    Format in, q, cache;
  };

  // As above; a scale of 1, which divides nothing, beside one that does.
  for (const Formats& f : {Formats{Format::kBf16, Format::kE4m3, Format::kE4m3},
                           Formats{Format::kBf16, Format::kBf16, Format::kBf16},
                           Formats{Format::kF32, Format::kE4m3, Format::kBf16},
                           Formats{Format::kF32, Format::kF32, Format::kE4m3}}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      for (int64_t n : {3, 5}) {
        add_prepare_case(
            list, {.spec = {.name = str_cat("t7_n", n, "_l64_r32_", format_name(f.in), "_to_",
                                            format_name(f.q), "_", format_name(f.cache),
                                            style == RopeStyle::kHalfSplit ? "_half_split" : "")},
                   .t = 7,
                   .n = n,
                   .l = 64,
                   .r = 32,
                   .in = f.in,
                   .q = f.q,
                   .cache = f.cache,
                   .q_scale = f.q == Format::kE4m3 ? 0.37f : 1.0f,
                   .kv_scale = f.cache == Format::kE4m3 ? 0.021f : 1.0f,
                   .style = style,
                   .page_size = 4});
      }
    }
  }
  add_prepare_case(
      list,
      {.spec = {.name = "t3_l1032_r264"}, .t = 3, .n = 5, .l = 1032, .r = 264, .kv_scale = 0.021f});
  add_prepare_case(list, {.spec = {.name = "t3_l1032_r264_bf16"},
                          .t = 3,
                          .n = 5,
                          .l = 1032,
                          .r = 264,
                          .q = Format::kBf16,
                          .cache = Format::kBf16});
  for (int64_t t : {1, 8, 64, 128}) {
    const auto spec = [&](std::string_view name, int64_t heads) {
      CaseSpec s = timed_spec(name, "attn_mqa", t);
      s.columns = str_cat("H=", heads, ";D=576");
      return s;
    };
    add_prepare_case(list, {.spec = spec("r1_fp8", 128), .t = t, .n = 128});
    add_prepare_case(list, {.spec = spec("r1_bf16", 128),
                            .t = t,
                            .n = 128,
                            .q = Format::kBf16,
                            .cache = Format::kBf16});
    add_prepare_case(list, {.spec = spec("v2_lite_bf16", 16),
                            .t = t,
                            .n = 16,
                            .q = Format::kBf16,
                            .cache = Format::kBf16});
  }
}

}  // namespace

void add_mla_rope_quant_cases(CaseList& list) {
  add_quant_cases(list);
  add_write_cases(list);
}

}  // namespace fathom
