#include <cmath>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"

namespace fathom {
namespace {

constexpr int64_t kPositions = 512;

struct Shape {
  CaseSpec spec;
  int64_t t;
  int64_t h;
  int64_t d = 512;
  int64_t r = 64;
  Format format = Format::kBf16;
  int64_t groups = 1;              ///< of the quantised output
  Format scales = Format::kUe8m0;  ///< of the quantised output
};

struct Rotation {
  Tensor positions, table;
};

Rotation make_rotation(CaseData& c, const Shape& s) {
  Rotation all;
  all.positions = c.input({s.t}, Format::kI32, {}, {.rows_per_batch = 1});
  all.positions.fill([](int64_t t) { return (t * 37 + 5) % kPositions; });
  all.table = c.input({kPositions, s.r}, Format::kF32);
  oracle::fill_rope_rows(all.table, all.positions);
  return all;
}

/// A head as it is turned back.
std::vector<double> rotated_back(std::vector<double> head, const Rotation& by, int64_t t) {
  oracle::rotate_back(head, by.table, static_cast<int64_t>(by.positions[t]));
  return head;
}

Fill fill_of(const CaseSpec& spec) {
  return {.dist = spec.bench ? Dist::kNormal : Dist::kMixedRows, .scale = 2};
}

void add_plain(CaseList& list, const Shape& s) {
  add_case<InverseRope>(list, s.spec, [s](CaseBuilder<InverseRope>& c) {
    c.set_batch(s.t);
    const RowPlacement placed{.row_gap = s.spec.bench ? 0 : 3, .rows_per_batch = 1};
    const Tensor o = c.inout({s.t, s.h, s.d}, s.format, fill_of(s.spec), placed);
    const Rotation by = make_rotation(c, s);
    c.bind([=](const Binding& at) {
      return InverseRope::Args{.o = at(o), .positions = at(by.positions), .table = at(by.table)};
    });
    Gate gate = gates::row_op(s.format);
    gate.abs = 1e-3;  // the largest value here is 6000, and the terms of a pair may nearly cancel
    c.expect_rows(o, gate, [=](int64_t row, std::span<double> out) {
      const std::vector<double> head = rotated_back(o.row(row), by, row / s.h);
      std::copy(head.begin(), head.end(), out.begin());
    });
  });
}

double amax_of_group(const std::vector<double>& head, int64_t begin) {
  double amax = 1e-4;
  for (int64_t i = begin; i < begin + 128; ++i)
    amax = std::max(amax, std::fabs(head[static_cast<size_t>(i)]));
  return amax;
}

double scale_of_group(const std::vector<double>& head, int64_t begin) {
  return std::exp2(std::ceil(std::log2(amax_of_group(head, begin) / 448)));
}

void add_quant(CaseList& list, const Shape& s) {
  add_case<InverseRopeQuant>(list, s.spec, [s](CaseBuilder<InverseRopeQuant>& c) {
    c.set_batch(s.t);
    const int64_t k = s.h * s.d / s.groups;
    const RowPlacement placed{.row_gap = s.spec.bench ? 0 : 3, .rows_per_batch = 1};
    const Tensor o = c.input({s.t, s.h, s.d}, s.format, fill_of(s.spec), placed);
    const Rotation by = make_rotation(c, s);
    const Tensor y = c.output({s.t, s.groups, k}, Format::kE4m3, placed);
    const Tensor scales = c.output({s.t, s.groups, k / 128}, s.scales, placed);
    c.bind([=](const Binding& at) {
      return InverseRopeQuant::Args{.o = at(o),
                                    .positions = at(by.positions),
                                    .table = at(by.table),
                                    .y = at(y),
                                    .s = at(scales)};
    });
    const int64_t heads_per_group = s.h / s.groups;
    // Row t * groups + g of y holds heads g * heads_per_group and on.
    const auto head_of = [=](int64_t row, int64_t j) {
      return rotated_back(o.row(row * heads_per_group + j), by, row / s.groups);
    };
    c.expect_rows(scales, gates::exact(), [=](int64_t row, std::span<double> out) {
      for (int64_t j = 0; j < heads_per_group; ++j) {
        const std::vector<double> head = head_of(row, j);
        for (int64_t i = 0; i < s.d; i += 128)
          out[static_cast<size_t>((j * s.d + i) / 128)] = scale_of_group(head, i);
      }
    });
    // Half a step of E4M3: 2^-4 of the value, 2^-10 among the subnormals.
    const Gate gate = {.abs = 0x1.001p-10, .rel = 0x1.001p-4};
    c.expect_rows(y, gate, [=](int64_t row, std::span<double> out) {
      for (int64_t j = 0; j < heads_per_group; ++j) {
        const std::vector<double> head = head_of(row, j);
        for (int64_t i = 0; i < s.d; ++i)
          out[static_cast<size_t>(j * s.d + i)] =
              head[static_cast<size_t>(i)] / scale_of_group(head, i / 128 * 128);
      }
    });
    if (y.numel() < 4096) return;
    c.expect_full_precision(y, {.diff = 1e-3}, [=](int64_t row, int64_t col) {
      const std::vector<double> head = head_of(row, col / s.d);
      return head[static_cast<size_t>(col % s.d)] / scale_of_group(head, col % s.d / 128 * 128);
    });
  });
}

void add_plain_cases(CaseList& list) {
  for (const Format format : {Format::kBf16, Format::kF32}) {
    const auto name = [&](int64_t t, int64_t h, int64_t d, int64_t r) -> CaseSpec {
      return {.name = str_cat("t", t, "_h", h, "_d", d, "_r", r, "_", format_name(format))};
    };
    for (int64_t t : {0, 1, 2, 3, 7, 40})
      add_plain(list, {.spec = name(t, 3, 512, 64), .t = t, .h = 3, .format = format});
    for (int64_t r : {0, 2, 4, 6, 14, 30, 32, 34, 62, 66, 130}) {
      add_plain(
          list,
          {.spec = name(5, 4, r + 7, r), .t = 5, .h = 4, .d = r + 7, .r = r, .format = format});
    }
    add_plain(list,
              {.spec = name(5, 2, 16, 16), .t = 5, .h = 2, .d = 16, .r = 16, .format = format});
  }
  for (const auto& [model, heads] : {std::pair{"v4_flash", 64}, std::pair{"v4_pro", 128}}) {
    for (int64_t t : {1, 64, 512})
      add_plain(list, {.spec = timed_spec(model, "attn_inverse_rope", t), .t = t, .h = heads});
  }
}

void add_quant_cases(CaseList& list) {
  for (const Format format : {Format::kBf16, Format::kF32}) {
    for (const Format scales : {Format::kUe8m0, Format::kF32}) {
      const auto name = [&](int64_t t, int64_t h, int64_t g, int64_t d, int64_t r) -> CaseSpec {
        return {.name = str_cat("t", t, "_h", h, "_g", g, "_d", d, "_r", r, "_",
                                format_name(format), "_", format_name(scales))};
      };
      const auto add = [&](int64_t t, int64_t h, int64_t g, int64_t d, int64_t r) {
        add_quant(list, {.spec = name(t, h, g, d, r),
                         .t = t,
                         .h = h,
                         .d = d,
                         .r = r,
                         .format = format,
                         .groups = g,
                         .scales = scales});
      };
      for (int64_t t : {0, 1, 2, 3, 19})
        add(t, 4, 2, 512, 64);
      for (int64_t g : {1, 2, 3, 6})
        add(3, 6, g, 128, 64);
      for (int64_t r : {0, 2, 34, 126, 128, 130, 200, 256})
        add(4, 2, 1, 256, r);
    }
  }

  struct Model {
    std::string_view name;
    int64_t heads, groups;
  };

  for (const Model& m : {Model{"v4_flash", 64, 8}, Model{"v4_pro", 128, 16}}) {
    for (int64_t t : {1, 64, 512}) {
      add_quant(
          list,
          {.spec = timed_spec(m.name, "o_quant", t), .t = t, .h = m.heads, .groups = m.groups});
    }
  }
}

}  // namespace

void add_inverse_rope_cases(CaseList& list) {
  add_plain_cases(list);
  add_quant_cases(list);
}

}  // namespace fathom
