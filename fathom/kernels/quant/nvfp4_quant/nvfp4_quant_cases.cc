#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"

namespace fathom {
namespace {

double amax_of_block(const Tensor& x, int64_t row, int64_t block) {
  double amax = 0;
  for (int64_t i = 0; i < kNvfp4Block; ++i)
    amax = std::max(amax, std::fabs(x.at(row, block * kNvfp4Block + i)));
  return amax;
}

/// What stands for the largest magnitude of a tensor in the global scale: beyond it blocks
/// saturate.
double largest_magnitude(const Tensor& x) {
  double amax = 0;
  const int64_t rows = std::min<int64_t>(x.dim(0), 64);
  for (int64_t i = 0; i < rows * x.dim(1); ++i)
    amax = std::max(amax, std::fabs(x[i]));
  return amax == 0 ? 1.0 : amax;
}

/// Half a step of E2M1 at |v|.
double half_step(double v) {
  return v < 2 ? 0.25 : v < 4 ? 0.5 : 1.0;
}

/// One quantised row: where it came from, and where its codes and scales are.
struct RowPlace {
  int64_t x_row = 0;
  int64_t q_row = 0;
  double gs = 1;
  std::function<int64_t(int64_t block)> scale_at;  ///< place in the scale tensor
};

/// Gate A of the codes: given the scale that was stored, each is the nearest. Gate B: dequantised
/// values against x.
std::string check_row(const Tensor& x,
                      const Tensor& q,
                      const Tensor& scales,
                      const RowPlace& place,
                      std::vector<double>& found,
                      std::vector<double>& exact) {
  for (int64_t k = 0; k < x.dim(1); ++k) {
    const double scale = scales[place.scale_at(k / kNvfp4Block)];
    const auto byte = static_cast<int>(q.at(place.q_row, k / 2));
    const auto code = static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4);
    const double value = double{to_float(E2m1{code})};
    const double wanted = scale == 0 ? 0 : x.at(place.x_row, k) * place.gs / scale;
    const double clamped = std::clamp(wanted, -6.0, 6.0);
    if (std::fabs(value - clamped) > half_step(std::fabs(clamped)) * (1 + 1e-5)) {
      return str_cat("q[", place.q_row, "] has code ", value, " at k=", k,
                     ", expected the nearest to ", wanted);
    }
    found.push_back(value * scale / place.gs);
    exact.push_back(x.at(place.x_row, k));
  }
  return {};
}

/// Rows to look at: all of a small case, the ends and some between of a large one.
std::vector<int64_t> chosen_rows(int64_t count, int64_t values_per_row) {
  std::vector<int64_t> rows;
  const int64_t step = std::max<int64_t>(1, count * values_per_row / (1 << 19));
  for (int64_t i = 0; i < count; i += step)
    rows.push_back(i);
  if (count > 0 && rows.back() != count - 1) rows.push_back(count - 1);
  return rows;
}

std::string check_rows(const Tensor& x,
                       const Tensor& q,
                       const Tensor& scales,
                       const std::vector<RowPlace>& places) {
  std::vector<double> found;
  std::vector<double> exact;
  for (const RowPlace& place : places) {
    if (std::string why = check_row(x, q, scales, place, found, exact); !why.empty()) return why;
  }
  if (found.size() < 4096) return {};
  const Verdict verdict = judge(gates::full_precision(Format::kNvfp4), found, exact);
  return verdict.passed ? "" : str_cat("gate B of dequantised values: ", verdict.why);
}

/// Half a step of E4M3: 2^-4 of the value, 2^-10 among the subnormals.
constexpr Gate kScaleGate = {.abs = 0x1.001p-10, .rel = 0x1.001p-4};

double exact_scale(const Tensor& x, int64_t row, int64_t block, double gs) {
  return std::min(448.0, gs * amax_of_block(x, row, block) / 6.0);
}

// ---- nvfp4_quant ----

struct PlainShape {
  CaseSpec spec;
  int64_t t;
  int64_t k;
  Format format = Format::kBf16;
  Nvfp4ScaleLayout layout = Nvfp4ScaleLayout::kSwizzled128x4;
  int64_t row_gap = 0;
};

int64_t place_of(const PlainShape& s, int64_t t, int64_t block) {
  switch (s.layout) {
    case Nvfp4ScaleLayout::kSwizzled128x4:
      return swizzled_128x4_offset(t, block, s.k / kNvfp4Block);
    case Nvfp4ScaleLayout::kSwizzled8x4:
      return swizzled_8x4_offset(t, block, s.k / kNvfp4Block);
    case Nvfp4ScaleLayout::kRowMajor:
      break;
  }
  return t * (s.k / kNvfp4Block) + block;
}

void add_plain_case(CaseList& list, const PlainShape& s) {
  add_case<Nvfp4Quant>(list, s.spec, [s](CaseBuilder<Nvfp4Quant>& c) {
    const int64_t blocks = s.k / kNvfp4Block;
    const bool row_major = s.layout == Nvfp4ScaleLayout::kRowMajor;
    const int64_t tile = row_major ? 1 : s.layout == Nvfp4ScaleLayout::kSwizzled8x4 ? 8 : 128;
    // The tiles of a swizzled layout hold the scales of many rows, so only the linear one is cut.
    const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = row_major ? 1 : 0};
    if (row_major) c.set_batch(s.t);
    const Tensor x = c.input({s.t, s.k}, s.format, {.dist = Dist::kMixedRows}, placed);
    const Tensor gs = c.input({1}, Format::kF32);
    gs.set(0, 448.0 * 6.0 / largest_magnitude(x));
    const Tensor q = c.output({s.t, s.k / 2}, Format::kU8, placed);
    const Tensor scales =
        c.output({align_up(s.t, tile), row_major ? blocks : align_up<int64_t>(blocks, 4)},
                 Format::kE4m3, {.rows_per_batch = row_major ? 1 : 0});
    c.bind([=](const Binding& at) {
      return Nvfp4Quant::Args{
          .x = at(x), .gs = at(gs), .q = at(q), .scales = at(scales), .layout = s.layout};
    });
    c.expect_all(scales, kScaleGate, [=](std::span<double> out) {
      std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());  // padding
      for (int64_t t = 0; t < s.t; ++t) {
        for (int64_t b = 0; b < blocks; ++b)
          out[static_cast<size_t>(place_of(s, t, b))] = exact_scale(x, t, b, gs[0]);
      }
    });
    c.expect_that([=] {
      std::vector<RowPlace> places;
      for (int64_t t : chosen_rows(s.t, s.k)) {
        places.push_back({.x_row = t, .q_row = t, .gs = gs[0], .scale_at = [=](int64_t b) {
                            return place_of(s, t, b);
                          }});
      }
      return check_rows(x, q, scales, places);
    });
  });
}

void add_plain_cases(CaseList& list) {
  constexpr Nvfp4ScaleLayout kLayouts[] = {Nvfp4ScaleLayout::kSwizzled128x4,
                                           Nvfp4ScaleLayout::kSwizzled8x4,
                                           Nvfp4ScaleLayout::kRowMajor};
  constexpr std::string_view kNames[] = {"128x4", "8x4", "row_major"};
  for (size_t i = 0; i < 3; ++i) {
    for (int64_t t : {0, 1, 2, 3, 7, 8, 9, 127, 128, 129}) {
      add_plain_case(list, {.spec = {.name = str_cat("t", t, "_k272_", kNames[i])},
                            .t = t,
                            .k = 272,
                            .layout = kLayouts[i],
                            .row_gap = 6});
    }
    for (int64_t k : {16, 32, 48, 64, 80, 240, 256, 1104}) {
      for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
        add_plain_case(
            list, {.spec = {.name = str_cat("t13_k", k, "_", kNames[i], "_", format_name(format))},
                   .t = 13,
                   .k = k,
                   .format = format,
                   .layout = kLayouts[i]});
      }
    }
  }
  const auto add_bench = [&](std::string_view name, int64_t t) {
    add_plain_case(list, {.spec = timed_spec(name, "input_quant", t), .t = t, .k = 7168});
  };
  for (int64_t t : {1, 8, 64, 128, 512, 1024})
    add_bench("r1_hidden", t);
  // 14,000 x 7,168 in and 9/32 as many bytes out: 257 MB, which no cache holds.
  add_bench("r1_hidden_chunk", 14000);
}

// ---- nvfp4_quant_experts ----

enum class Load { kEven, kOneExpert, kSkewed };

struct ExpertShape {
  CaseSpec spec;
  int64_t rows;
  int64_t experts;
  int64_t k;
  int64_t topk = 0;  ///< 0: rows are not gathered; else from rows / topk tokens
  Format format = Format::kBf16;
  Load load = Load::kSkewed;
  int64_t row_gap = 0;
};

/// Rows of each expert; some have none.
std::vector<int64_t> rows_of_experts(const ExpertShape& s, Rng& rng) {
  std::vector<int64_t> counts(static_cast<size_t>(s.experts));
  for (int64_t i = 0; i < s.rows; ++i) {
    const auto any = static_cast<int64_t>(rng.next_below(static_cast<uint32_t>(s.experts)));
    const int64_t e = s.load == Load::kOneExpert ? s.experts / 2
                      : s.load == Load::kEven    ? i % s.experts
                                                 : any * any / s.experts;  // the first most often
    ++counts[static_cast<size_t>(e)];
  }
  return counts;
}

struct ExpertTensors {
  Tensor x, gs, offsets, scale_offsets, row_map, q, scales;
};

ExpertTensors make_experts(CaseData& c, const ExpertShape& s) {
  ExpertTensors all;
  const int64_t tokens = s.topk == 0 ? s.rows : s.rows / s.topk;
  const int64_t E = s.experts;
  // What is timed has values of a model.
  const Fill fill = {.dist = s.spec.bench ? Dist::kNormal : Dist::kMixedRows};
  all.x = c.input({tokens, s.k}, s.format, fill, {.row_gap = s.row_gap});
  all.gs = c.input({E}, Format::kF32);
  const double gs = 448.0 * 6.0 / largest_magnitude(all.x);
  all.gs.fill([&](int64_t e) { return gs * (1.0 - 0.01 * static_cast<double>(e % 8)); });
  all.offsets = c.input({E + 1}, Format::kI32);
  all.scale_offsets = c.input({E + 1}, Format::kI32);
  const std::vector<int64_t> counts = rows_of_experts(s, c.rng());
  int64_t rows = 0;
  int64_t scale_rows = 0;
  for (int64_t e = 0; e < E; ++e) {
    all.offsets.set(e, static_cast<double>(rows));
    all.scale_offsets.set(e, static_cast<double>(scale_rows));
    rows += counts[static_cast<size_t>(e)];
    scale_rows += align_up<int64_t>(counts[static_cast<size_t>(e)], kSwizzleRows);
  }
  all.offsets.set(E, static_cast<double>(rows));
  all.scale_offsets.set(E, static_cast<double>(scale_rows));
  if (s.topk > 0) {
    all.row_map = c.input({s.rows}, Format::kI32);
    // Far from the order of the tokens; every token topk times.
    all.row_map.fill([&](int64_t i) { return (i * 7 + i / tokens) % tokens; });
  }
  all.q = c.output({s.rows, s.k / 2}, Format::kU8, {.row_gap = s.row_gap});
  all.scales = c.output({scale_rows, ceil_div<int64_t>(s.k, 64) * 4}, Format::kE4m3);
  return all;
}

std::vector<RowPlace> places_of(const ExpertTensors& all, const std::vector<int64_t>& rows) {
  std::vector<RowPlace> places;
  for (int64_t i : rows) {
    int64_t e = 0;
    while (static_cast<int64_t>(all.offsets[e + 1]) <= i)
      ++e;
    const int64_t local = i - static_cast<int64_t>(all.offsets[e]);
    const int64_t columns = all.scales.dim(1);
    const int64_t region = static_cast<int64_t>(all.scale_offsets[e]) * columns;
    const int64_t blocks = all.x.dim(1) / kNvfp4Block;
    places.push_back(
        {.x_row = all.row_map.present() ? static_cast<int64_t>(all.row_map[i]) : i,
         .q_row = i,
         .gs = all.gs[e],
         .scale_at = [=](int64_t b) { return region + swizzled_128x4_offset(local, b, blocks); }});
  }
  return places;
}

void add_experts_case(CaseList& list, const ExpertShape& s) {
  add_case<Nvfp4QuantExperts>(list, s.spec, [s](CaseBuilder<Nvfp4QuantExperts>& c) {
    const ExpertTensors all = make_experts(c, s);
    c.bind([=](const Binding& at) {
      return Nvfp4QuantExperts::Args{.x = at(all.x),
                                     .gs = at(all.gs),
                                     .offsets = at(all.offsets),
                                     .scale_offsets = at(all.scale_offsets),
                                     .row_map = at(all.row_map),
                                     .q = at(all.q),
                                     .scales = at(all.scales)};
    });
    c.expect_all(all.scales, kScaleGate, [=](std::span<double> out) {
      std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());  // padding
      std::vector<int64_t> rows(static_cast<size_t>(s.rows));
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = static_cast<int64_t>(i);
      for (const RowPlace& place : places_of(all, rows)) {
        for (int64_t b = 0; b < s.k / kNvfp4Block; ++b) {
          out[static_cast<size_t>(place.scale_at(b))] =
              exact_scale(all.x, place.x_row, b, place.gs);
        }
      }
    });
    c.expect_that([=] {
      return check_rows(all.x, all.q, all.scales, places_of(all, chosen_rows(s.rows, s.k)));
    });
  });
}

void add_experts_cases(CaseList& list) {
  for (int64_t rows : {0, 1, 2, 3, 7, 127, 128, 129, 300}) {
    add_experts_case(list, {.spec = {.name = str_cat("r", rows, "_e5_k80")},
                            .rows = rows,
                            .experts = 5,
                            .k = 80,
                            .row_gap = 2});
  }
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t k : {16, 64, 272}) {
      add_experts_case(list,
                       {.spec = {.name = str_cat("r96_e7_k", k, "_gathered_", format_name(format))},
                        .rows = 96,
                        .experts = 7,
                        .k = k,
                        .topk = 4,
                        .format = format});
    }
  }
  add_experts_case(list, {.spec = {.name = "r140_e9_k96_all_on_one"},
                          .rows = 140,
                          .experts = 9,
                          .k = 96,
                          .load = Load::kOneExpert});
  add_experts_case(
      list, {.spec = {.name = "r37_e64_k96_most_are_empty"}, .rows = 37, .experts = 64, .k = 96});
  const auto add_bench = [&](std::string_view name, int64_t tokens, int64_t k, int64_t topk) {
    add_experts_case(list, {.spec = timed_spec(name, "experts", tokens),
                            .rows = 8 * tokens,
                            .experts = 256,
                            .k = k,
                            .topk = topk});
  };
  for (int64_t t : {1, 8, 64, 128, 512}) {
    add_bench("r1_gate_up", t, 7168, 8);
    add_bench("r1_down", t, 2048, 0);
  }
  const ReferenceLimit limit{.most_tokens = 2048,
                             .why = "the published benchmark has fewer tokens"};
  for (const ReferencePoint& p : reference_points(list, "nvfp4_quant_experts", limit)) {
    add_reference_case(list, p, {.op = "experts_quant"}, [&](CaseList& one) {
      add_experts_case(one, {.spec = {.name = "reference", .bench = true},
                             .rows = 8 * p.tokens(),
                             .experts = 256,
                             .k = 7168,
                             .topk = 8,
                             .load = Load::kEven});
    });
  }
  add_bench("r1_down_chunk", 6250, 2048, 0);  // 262 MB, which no cache holds
}

}  // namespace

void add_nvfp4_quant_cases(CaseList& list) {
  add_plain_cases(list);
  add_experts_cases(list);
}

}  // namespace fathom
