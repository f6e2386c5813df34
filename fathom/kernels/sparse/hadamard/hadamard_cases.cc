#include <bit>
#include <cmath>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sparse/hadamard/hadamard.h"

namespace fathom {
namespace {

/// The definition, entry by entry, where that is cheap; else the recursion on halves, in float64.
std::vector<double> transformed(std::vector<double> x) {
  const size_t width = x.size();
  if (width <= 512) {
    std::vector<double> y(width, 0.0);
    for (size_t i = 0; i < width; ++i) {
      for (size_t j = 0; j < width; ++j)
        y[i] += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
    }
    return y;
  }
  const size_t half = std::bit_ceil(width) / 2;
  x.resize(2 * half, 0.0);
  const std::vector<double> low = transformed({x.begin(), x.begin() + static_cast<int64_t>(half)});
  const std::vector<double> high = transformed({x.begin() + static_cast<int64_t>(half), x.end()});
  for (size_t i = 0; i < half; ++i) {
    x[i] = low[i] + high[i];
    x[half + i] = low[i] - high[i];
  }
  x.resize(width);
  return x;
}

enum class Where { kApart, kInPlace };

struct Shape {
  int64_t rows;
  int64_t width;
  Format format = Format::kBf16;
  Fill fill{.dist = Dist::kMixedRows};
  double scale = 0;  ///< 0: width^-0.5
  Where where = Where::kApart;
  std::string suffix{};
};

void add(CaseList& list, const Shape& s, bool bench = false, std::string_view phase = "") {
  const CaseSpec spec{
      .name = str_cat("n", s.rows, "_d", s.width, "_", format_name(s.format), s.suffix),
      .op = "index_hadamard",
      .bench = bench,
      .phase = std::string(phase),
      .columns = str_cat("M=", s.rows, ";D=", s.width)};
  add_case<Hadamard>(list, spec, [=](CaseBuilder<Hadamard>& c) {
    c.set_batch(s.rows);
    const RowPlacement rows{.row_gap = 3, .rows_per_batch = 1};
    const bool in_place = s.where == Where::kInPlace;
    const Tensor x = in_place ? c.inout({s.rows, s.width}, s.format, s.fill, rows)
                              : c.input({s.rows, s.width}, s.format, s.fill, rows);
    const Tensor y = in_place ? x : c.output({s.rows, s.width}, s.format, rows);
    const auto scale =
        static_cast<float>(s.scale != 0 ? s.scale : std::pow(static_cast<double>(s.width), -0.5));
    c.bind(
        [=](const Binding& at) { return Hadamard::Args{.x = at(x), .y = at(y), .scale = scale}; });
    // float32 sums in a tree: at most log2(D) roundings of values no larger than the sum of all
    // magnitudes of the row, of which the largest row here (one value of 3000) decides.
    Gate gate = gates::row_op(s.format);
    gate.abs = s.fill.dist == Dist::kMixedRows ? 2e-3 : 4e-6;
    c.expect_rows(y, gate, [=](int64_t n, std::span<double> out) {
      const std::vector<double> exact = transformed(x.row(n));
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = double{scale} * exact[i];
    });
  });
}

}  // namespace

void add_hadamard_cases(CaseList& list) {
  for (Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t n : {0, 1, 2, 3, 37})
      add(list, {.rows = n, .width = 128, .format = format});
    for (int64_t d : {1,  2,   3,   4,   7,   8,   15,  16,  17,   31,   33,
                      64, 127, 129, 137, 255, 256, 257, 512, 1000, 1024, 4099})
      add(list, {.rows = 5, .width = d, .format = format, .fill = {.dist = Dist::kNormal}});
    add(list, {.rows = 8,
               .width = 128,
               .format = format,
               .where = Where::kInPlace,
               .suffix = "_in_place"});
    add(list, {.rows = 8,
               .width = 700,
               .format = format,
               .fill = {.dist = Dist::kHeavyTail},
               .where = Where::kInPlace,
               .suffix = "_in_place"});
  }
  add(list, {.rows = 2, .width = 32767, .format = Format::kF32, .fill = {.dist = Dist::kNormal}});
  add(list, {.rows = 2, .width = 32768, .format = Format::kBf16, .fill = {.dist = Dist::kNormal}});
  add(list, {.rows = 4,
             .width = 137,
             .format = Format::kF32,
             .fill = {.dist = Dist::kOneSign},
             .scale = 1.0 / 137,
             .suffix = "_scaled"});
  // Queries of 64 heads and keys of the indexer, at decode and prefill.
  const Fill normal{.dist = Dist::kNormal};
  add(list, {.rows = 64, .width = 128, .fill = normal}, true, "decode");
  add(list, {.rows = 128 * 64, .width = 128, .fill = normal}, true, "decode");
  add(list, {.rows = 8192, .width = 128, .fill = normal, .suffix = "_keys"}, true, "prefill");
  add(list, {.rows = 8192 * 64, .width = 128, .fill = normal}, true, "prefill");
}

}  // namespace fathom
