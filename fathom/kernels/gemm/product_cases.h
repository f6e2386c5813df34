// Cases of the product kernels: shapes in, operands, oracle and gates out. One oracle serves all of
// them, the dot product of a row of x and a decoded row of w in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

struct ProductShape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format weight = Format::kBf16;
  Format x = Format::kBf16;
  Format y = Format::kBf16;
  WeightLayout layout = WeightLayout::kRows16;
  const char* op = "";  ///< name in a model; cases with one are timed
  int64_t heads = 0;    ///< 0: x[T,K]; else x[T,H,K], one matrix a head
  Dist dist = Dist::kNormal;
  int64_t x_gap = 6;  ///< between rows of x, which then begin anywhere; 8: at multiples of 16 bytes
  int64_t y_gap = 3;  ///< 0: rows of y begin anywhere on a GPU as well
};

inline std::string product_case_name(const ProductShape& s) {
  std::string name = *s.op == '\0' ? std::string() : str_cat(s.op, "_");
  str_append(name, str_cat("t", s.t, "_"));
  if (s.heads > 0) str_append(name, str_cat("h", s.heads, "_"));
  str_append(name, str_cat(s.n, "x", s.k, "_", format_name(s.weight)));
  if (s.x != Format::kBf16) str_append(name, str_cat("_x_", format_name(s.x)));
  if (s.y != Format::kBf16) str_append(name, str_cat("_y_", format_name(s.y)));
  if (s.layout == WeightLayout::kRowMajor) name += "_row_major";
  if (s.dist != Dist::kNormal) name += "_mixed";
  if (s.x_gap % 8 == 0) name += "_aligned";
  if (s.y_gap == 0) name += "_packed_y";
  return name;
}

// ---- operands that a case quantises itself ----

/// Random values [rows, cols]; kept for gate B by the functions that capture them.
inline std::shared_ptr<std::vector<float>> random_values(CaseData& c,
                                                         int64_t rows,
                                                         int64_t cols,
                                                         const Fill& fill) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    generate_row(
        fill, r, c.rng(),
        std::span(*values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols)));
  }
  return values;
}

/// Sum over k of a[row_a, k] * b[row_b, k] in double.
inline double dot_rows(const std::vector<float>& a,
                       int64_t row_a,
                       const std::vector<float>& b,
                       int64_t row_b,
                       int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    sum += double{a[static_cast<size_t>(row_a * k + i)]} *
           double{b[static_cast<size_t>(row_b * k + i)]};
  }
  return sum;
}

/// Codes to the elements of a tensor: integers as numbers, 8-bit floats by their value, or, in a
/// tensor of u8 that is bound as another format, bytes as they are.
template <class Code>
void put_codes(const Tensor& t, const std::vector<Code>& codes) {
  for (size_t i = 0; i < codes.size(); ++i) {
    if constexpr (std::is_integral_v<Code>) {
      t.set(static_cast<int64_t>(i), static_cast<double>(codes[i]));
    } else if (t.format() == Format::kU8) {
      t.set(static_cast<int64_t>(i), static_cast<double>(codes[i].bits));
    } else {
      t.set(static_cast<int64_t>(i), double{to_float(codes[i])});
    }
  }
}

/// Random bytes for a large tensor of u8 or i8, each through `fix`.
template <class Fix>
void put_random_bytes(CaseData& c, const Tensor& t, Fix&& fix) {
  uint64_t state = c.rng().next_u64() | 1u;
  const bool has_sign = t.format() == Format::kI8;
  t.fill([&](int64_t) {
    state ^= state << 13;  // xorshift64: Marsaglia, "Xorshift RNGs"
    state ^= state >> 7;
    state ^= state << 17;
    const uint8_t byte = fix(static_cast<uint8_t>(state >> 32));
    return has_sign ? static_cast<int>(static_cast<int8_t>(byte)) : static_cast<int>(byte);
  });
}

/// The view of a tensor as a quantised matrix of `cols` columns.
inline View as_format(View v, Format format, int64_t cols) {
  const int64_t per_element =
      v.rank == 0 || v.dim(v.rank - 1) == 0 ? 1 : std::max<int64_t>(1, cols / v.dim(v.rank - 1));
  v.format = format;
  v.dims[static_cast<size_t>(v.rank - 1)] = cols;
  for (int i = 0; i + 1 < v.rank; ++i)
    v.strides[static_cast<size_t>(i)] *= per_element;
  return v;
}

/// Rows of a weight as numbers, the last one kept: oracles ask for the same row many times.
class RowCache {
 public:
  RowCache(int64_t cols, std::function<double(int64_t row, int64_t k)> at)
      : values_(static_cast<size_t>(cols)), at_(std::move(at)) {}

  const std::vector<double>& operator()(int64_t row) {
    if (row != row_) {
      for (size_t k = 0; k < values_.size(); ++k)
        values_[k] = at_(row, static_cast<int64_t>(k));
      row_ = row;
    }
    return values_;
  }

 private:
  std::vector<double> values_;
  std::function<double(int64_t, int64_t)> at_;
  int64_t row_ = -1;
};

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

/// Name, phase and columns of a case of [t, k] times [n, k].
inline CaseSpec product_case_spec(
    const char* op, int64_t t, int64_t n, int64_t k, std::string_view suffix) {
  const bool bench = *op != '\0';
  return {
      .name = str_cat(op, bench ? "_t" : "t", t, "_", n, "x", k, suffix.empty() ? "" : "_", suffix),
      .op = op,
      .bench = bench,
      .phase = phase_of_case(bench, t),
      .columns = str_cat("M=", t, ";N=", n, ";K=", k)};
}

/// A weight of a case: of random codes where that is what it is timed with, and whole tiles.
inline Weight weight_of_case(CaseData& c,
                             const CaseWeightSpec& spec,
                             bool timed,
                             int64_t ring_bytes) {
  const bool whole_tiles = spec.rows % 16 == 0 && spec.cols % 128 == 0;
  return timed && whole_tiles ? c.weight_codes(spec, ring_bytes) : c.weight(spec);
}

/// Adds one case. Gate B is applied to those that are not timed, where there are enough outputs.
template <class K>
void add_product_case(CaseList& list, CaseSpec spec, const ProductShape& s) {
  const bool bench = spec.bench;
  add_case<K>(list, std::move(spec), [s, bench](CaseBuilder<K>& c) {
    const int64_t heads = s.heads == 0 ? 1 : s.heads;
    const auto dims = [&](int64_t width) {
      return s.heads == 0 ? std::vector<int64_t>{s.t, width}
                          : std::vector<int64_t>{s.t, heads, width};
    };
    c.set_batch(s.t);
    const Tensor x =
        c.input(dims(s.k), s.x, {.dist = s.dist}, {.row_gap = s.x_gap, .rows_per_batch = 1});
    const CaseWeightSpec w_spec{
        .num_experts = s.heads, .rows = s.n, .cols = s.k, .format = s.weight, .layout = s.layout};
    const Weight w = weight_of_case(c, w_spec, bench, 0);
    const Tensor y = c.output(dims(s.n), s.y, {.row_gap = s.y_gap, .rows_per_batch = 1});
    c.bind([=](const Binding& at) { return typename K::Args{.x = at(x), .w = at(w), .y = at(y)}; });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t row, int64_t n) {
      return dot(x.row(row), w.row(row % heads * s.n + n));
    });
    if (bench || s.t * heads * s.n < 4096 || s.dist != Dist::kNormal) return;
    c.expect_full_precision(y, gates::full_precision(s.weight), [=](int64_t row, int64_t n) {
      return dot(x.row(row), w.exact_row(row % heads * s.n + n));
    });
  });
}

/// The shapes with an op are timed; their rows follow each other.
template <class K>
void add_product_case(CaseList& list, ProductShape s) {
  CaseSpec spec = product_case_spec(s.op, s.t, s.n, s.k, "");
  spec.name = product_case_name(s);
  if (spec.bench) s.x_gap = s.y_gap = 0;
  add_product_case<K>(list, std::move(spec), s);
}

/// The case of a recorded product.
template <class K>
void add_product_call(CaseList& list, const RecordedCall& call, const CaseSpec& spec) {
  const int last = call.rank("w") - 1;
  add_product_case<K>(list, spec,
                      {.t = call.dim("x", 0),
                       .n = call.dim("w", last - 1),
                       .k = call.dim("w", last),
                       .weight = call.format("w"),
                       .x = call.format("x"),
                       .y = call.format("y"),
                       .heads = last == 2 ? call.dim("w", 0) : 0,
                       .x_gap = call.row_gap("x"),
                       .y_gap = call.row_gap("y")});
}

/// [n, k] at the points of the published benchmark that the kernel has rows at. `s` gives what does
/// not depend on the point.
template <class K>
void add_reference_products(CaseList& list,
                            const char* op,
                            ProductShape s,
                            const ReferenceLimit& limit = {}) {
  s.op = op;
  for (const ReferencePoint& p : reference_points(list, K::kInfo.name, limit)) {
    s.t = p.tokens();
    const double flops = 2.0 * static_cast<double>(s.t * s.n * s.k);
    add_reference_case(list, p, {.op = op, .flops = flops},
                       [&](CaseList& one) { add_product_case<K>(one, s); });
  }
}

/// The small shapes that every plain product kernel passes: few and many tokens, edges of the row
/// groups, of super-tiles, blocks and chunks of k, both layouts, both element types. `max_t` is the
/// kernel's limit; `y_types` what it may write.
template <class K>
void add_small_product_cases(CaseList& list,
                             Format weight,
                             int64_t max_t,
                             const std::vector<Format>& y_types) {
  const auto add = [&](ProductShape s) {
    s.weight = weight;
    if (s.t > max_t) s.t = max_t;
    s.y = y_types[static_cast<size_t>(s.t + s.n + s.k) % y_types.size()];
    add_product_case<K>(list, s);
  };
  for (int64_t t : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13})
    add({.t = t, .n = 48, .k = 144});
  for (int64_t n : {1, 15, 16, 17, 64, 81, 144}) {
    add({.t = 5, .n = n, .k = 128});
    add({.t = 11, .n = n, .k = 80});
  }
  for (int64_t k : {16, 32, 48, 64, 192, 256, 272, 528, 640}) {
    add({.t = 3, .n = 33, .k = k});
    add({.t = 12, .n = 33, .k = k});
  }
  for (Format x : {Format::kBf16, Format::kF32}) {
    add({.t = 1, .n = 33, .k = 144, .x = x, .layout = WeightLayout::kRowMajor});
    add({.t = 10, .n = 19, .k = 272, .x = x, .layout = WeightLayout::kRowMajor});
  }
  add({.t = 1, .n = 33, .k = 128, .x = Format::kF32});
  add({.t = 10, .n = 40, .k = 304, .x = Format::kF32});
  add({.t = 14, .n = 34, .k = 320, .dist = Dist::kMixedRows});
  add({.t = 9, .n = 17, .k = 4368});  // more columns than a loop takes at once
  // Rows that wide loads can take: edges of tiles of tokens, of rows of w and of slices of k.
  for (int64_t t : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129}) {
    if (t > max_t) continue;
    add({.t = t, .n = 130, .k = 448, .x_gap = 8});
  }
  for (int64_t n : {1, 2, 15, 17, 63, 64, 65, 127, 128, 129})
    add({.t = 6, .n = n, .k = 384, .x_gap = 8});
  for (int64_t k : {64, 128, 192, 320, 576, 1024, 1088, 2048, 4160, 7168})
    add({.t = 11, .n = 72, .k = k, .x_gap = 8});
  add({.t = 14, .n = 40, .k = 640, .dist = Dist::kMixedRows, .x_gap = 8});
  if (max_t >= 300) {
    // Tiles of many rows, whose outputs take two bytes.
    const auto add_tiles = [&](int64_t t, int64_t n, int64_t k) {
      add_product_case<K>(list, {.t = t, .n = n, .k = k, .weight = weight, .x_gap = 8});
    };
    for (int64_t t : {33, 64, 65, 127, 128, 129, 255, 256, 257, 520})
      add_tiles(t, 136, 448);
    for (int64_t n : {1, 8, 63, 64, 65, 127, 128, 129, 257})
      add_tiles(70, n, 256);
    for (int64_t k : {64, 128, 192, 256, 320, 576, 1088, 4160})
      add_tiles(140, 264, k);
    add_tiles(1024, 4500, 64);  // more tiles than multiprocessors: whole rounds, and the rest
    add({.t = 300, .n = 200, .k = 512, .x_gap = 8});
    for (int64_t t : {16, 17, 33})
      add({.t = t, .n = 144, .k = 208});
    add({.t = 300, .n = 80, .k = 304});  // more rows than a loop takes at once
  }
}

/// Rows sorted by expert: how many rows each expert gets, and rows before the first and after the
/// last one that belong to none.
struct GroupedShape {
  std::vector<int64_t> counts;
  int64_t n = 0;
  int64_t k = 0;
  Format weight = Format::kBf16;
  Format x = Format::kBf16;
  Format y = Format::kBf16;
  WeightLayout layout = WeightLayout::kRows16;
  int64_t before = 0;
  int64_t after = 0;
  int64_t top_k = 1;
  const char* op = "";
  int64_t ring_bytes = 0;
  int64_t x_gap = 6;  ///< as in ProductShape
  int64_t y_gap = 3;
  bool gated = false;  ///< the outputs are SwiGLU of gate and up rows (moe/gated_product.h)
  float limit = 0;

  int64_t width() const { return gated ? n / 2 : n; }  ///< of y

  int64_t experts() const { return static_cast<int64_t>(counts.size()); }

  int64_t routed() const {
    int64_t rows = 0;
    for (int64_t count : counts)
      rows += count;
    return rows;
  }

  int64_t rows() const { return before + routed() + after; }
};

/// Up to so many experts a case's name says how many rows each has.
inline constexpr int64_t kMostNamedExperts = 8;

inline std::string grouped_case_name(const GroupedShape& s) {
  std::string name = *s.op == '\0' ? std::string() : str_cat(s.op, "_");
  str_append(name, str_cat("r", s.rows(), "_e", s.experts(), "_", s.n, "x", s.k, "_",
                           format_name(s.weight)));
  if (*s.op == '\0' && s.experts() <= kMostNamedExperts) {
    for (int64_t count : s.counts)
      str_append(name, str_cat("_", count));
  }
  if (s.before + s.after > 0) str_append(name, str_cat("_gaps_", s.before, "_", s.after));
  if (s.x != Format::kBf16) str_append(name, str_cat("_x_", format_name(s.x)));
  if (s.y != Format::kBf16) str_append(name, str_cat("_y_", format_name(s.y)));
  if (s.layout == WeightLayout::kRowMajor) name += "_row_major";
  if (s.x_gap % 8 == 0) name += "_aligned";
  if (s.y_gap == 0) name += "_packed_y";
  if (s.gated) name += "_gated";
  if (s.limit > 0) str_append(name, str_cat("_limit", s.limit));
  return name;
}

/// SwiGLU in float64 of the products of a gate and an up row; a NaN stays one.
inline double swiglu_of(double gate, double up, double limit) {
  if (limit > 0) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  return gate / (1.0 + std::exp(-gate)) * up;
}

/// Gate B is applied to cases that are not timed, where there are enough outputs and no other rows.
template <class K>
void add_grouped_case(CaseList& list, CaseSpec spec, const GroupedShape& s) {
  const bool bench = spec.bench;
  spec.columns = str_cat("M=", s.routed() / s.top_k, ";N=", s.n, ";K=", s.k, ";E=", s.experts(),
                         ";topk=", s.top_k);
  spec.note = s.ring_bytes > 0 ? "experts mapped onto a ring" : "";
  add_case<K>(list, std::move(spec), [s, bench](CaseBuilder<K>& c) {
    std::vector<int64_t> expert(static_cast<size_t>(s.rows()), -1);
    const Tensor offsets = c.input({s.experts() + 1}, Format::kI32);
    int64_t at_row = s.before;
    for (int64_t e = 0; e < s.experts(); ++e) {
      offsets.set(e, static_cast<double>(at_row));
      for (int64_t i = 0; i < s.counts[static_cast<size_t>(e)]; ++i) {
        expert[static_cast<size_t>(at_row++)] = e;
      }
    }
    offsets.set(s.experts(), static_cast<double>(at_row));
    const Tensor x = c.input({s.rows(), s.k}, s.x, {}, {.row_gap = s.x_gap});
    const CaseWeightSpec w_spec{.num_experts = s.experts(),
                                .rows = s.n,
                                .cols = s.k,
                                .format = s.weight,
                                .layout = s.layout};
    const Weight w = weight_of_case(c, w_spec, bench, s.ring_bytes);
    const Tensor y = c.output({s.rows(), s.width()}, s.y, {.row_gap = s.y_gap});
    c.bind([=](const Binding& at) {
      typename K::Args a{
          .x = at(x), .w = at(w), .offsets = at(offsets), .y = at(y), .top_k = s.top_k};
      if constexpr (requires { a.gate; }) a.gate = {.on = s.gated, .limit = s.limit};
      return a;
    });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t row, int64_t n) {
      const int64_t e = expert[static_cast<size_t>(row)];
      // Rows of no expert keep the NaN that outputs start with.
      if (e < 0) return std::numeric_limits<double>::quiet_NaN();
      const double first = dot(x.row(row), w.row(e * s.n + n));
      if (!s.gated) return first;
      return swiglu_of(first, dot(x.row(row), w.row(e * s.n + s.width() + n)), s.limit);
    });
    if (bench || s.before + s.after > 0 || s.rows() * s.width() < 4096) return;
    Gate gate = gates::full_precision(s.weight);
    if (s.gated) gate.diff *= 2;  // a product of two that are so far off
    c.expect_full_precision(y, gate, [=](int64_t row, int64_t n) {
      const int64_t of_expert = expert[static_cast<size_t>(row)] * s.n;
      const double first = dot(x.row(row), w.exact_row(of_expert + n));
      if (!s.gated) return first;
      return swiglu_of(first, dot(x.row(row), w.exact_row(of_expert + s.width() + n)), s.limit);
    });
  });
}

template <class K>
void add_grouped_case(CaseList& list, GroupedShape s) {
  const bool bench = *s.op != '\0';
  const CaseSpec spec{.name = grouped_case_name(s),
                      .op = s.op,
                      .bench = bench,
                      .phase = phase_of_case(bench, s.routed() / s.top_k)};
  if (bench) s.x_gap = s.y_gap = 0;
  add_grouped_case<K>(list, spec, s);
}

/// Experts of so many bytes lie on a ring of memory.
inline constexpr int64_t kExpertRing = 1 << 30;

/// The case of a recorded grouped product: rows spread over as many experts as tokens that choose
/// at random are expected to reach, which is what its bytes count.
template <class K>
void add_grouped_call(CaseList& list, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t experts = call.dim("w", 0);
  const int64_t rows = call.dim("x", 0);
  const int64_t top_k = std::max<int64_t>(1, rows / std::max<int64_t>(1, call.context().tokens));
  const auto expected = std::llround(expected_experts(experts, rows, top_k));
  const auto reached = std::clamp<int64_t>(expected, 1, std::max<int64_t>(1, rows));
  GroupedShape s{.counts = std::vector<int64_t>(static_cast<size_t>(experts)),
                 .n = call.dim("w", 1),
                 .k = call.dim("w", 2),
                 .weight = call.format("w"),
                 .x = call.format("x"),
                 .y = call.format("y"),
                 .top_k = top_k,
                 .x_gap = call.row_gap("x"),
                 .y_gap = call.row_gap("y"),
                 .gated = call.dim("y", 1) != call.dim("w", 1)};
  for (int64_t row = 0; row < rows; ++row)
    ++s.counts[static_cast<size_t>(row % reached * experts / reached)];
  const CaseWeightSpec all{.num_experts = experts, .rows = s.n, .cols = s.k, .format = s.weight};
  if (weight_bytes(all).values > kExpertRing) s.ring_bytes = kExpertRing;
  add_grouped_case<K>(list, spec, s);
}

/// The small shapes that every grouped product kernel passes.
template <class K>
void add_small_grouped_cases(CaseList& list, Format weight) {
  const auto add = [&](GroupedShape s) {
    s.weight = weight;
    if (s.rows() % 2 == 1) s.y = Format::kF32;
    add_grouped_case<K>(list, s);
  };
  add({.counts = {0, 0, 0}, .n = 32, .k = 64});
  add({.counts = {1}, .n = 16, .k = 64});
  add({.counts = {1, 0, 2, 3}, .n = 48, .k = 144});
  add({.counts = {0, 0, 23, 0}, .n = 48, .k = 80});
  add({.counts = {5, 17, 0, 9, 1, 33}, .n = 32, .k = 272});
  add({.counts = {2, 0, 9, 4}, .n = 32, .k = 128, .before = 2, .after = 3});
  add({.counts = {300, 1, 20}, .n = 16, .k = 64});
  add({.counts = {0, 0, 0}, .n = 64, .k = 128, .x_gap = 8});
  add({.counts = {5, 17, 0, 9, 1, 33}, .n = 80, .k = 320, .before = 2, .after = 3, .x_gap = 8});
  add({.counts = {63, 64, 65, 1, 0, 129}, .n = 144, .k = 448, .x_gap = 8});
  add({.counts = {1, 0, 2, 8, 0, 7, 1, 1}, .n = 192, .k = 2112, .x_gap = 8});
  add({.counts = {300, 2, 0, 70}, .n = 144, .k = 384, .x_gap = 8});
  // Whole blocks of 128 k, odd numbers of them, and more tiles of rows than blocks of threads.
  add({.counts = {5, 17, 0, 9, 1, 33}, .n = 80, .k = 384, .x_gap = 8});
  add({.counts = {1, 0, 2, 8, 0, 7, 1, 1}, .n = 208, .k = 2176, .before = 1, .x_gap = 8});
  add({.counts = {1, 0, 2, 1, 0, 0, 1, 1}, .n = 640, .k = 896, .x_gap = 8});
  add({.counts = {2, 9, 0, 1}, .n = 9008, .k = 128, .x_gap = 8});
  add({.counts = {17, 40, 33, 18, 20, 16},
       .n = 272,
       .k = 320,
       .before = 3,
       .after = 3,
       .x_gap = 8});
  add({.counts = {0, 600, 0, 2}, .n = 128, .k = 1088, .x_gap = 8});
  add({.counts = {3, 10, 0, 1}, .n = 33, .k = 144, .layout = WeightLayout::kRowMajor});
  add({.counts = {3, 10, 0, 1}, .n = 48, .k = 144, .x = Format::kF32, .y = Format::kF32});
}

/// R1's and V2-Lite's experts for one token, eight and a prefill of 512: every expert of `tokens`
/// tokens that choose evenly, which is the expectation and the same everywhere.
template <class K>
void add_expert_cases(CaseList& list, Format weight) {
  const auto add = [&](const char* op, int64_t tokens, int64_t top_k, int64_t experts, int64_t n,
                       int64_t k) {
    std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
    // A stride that is odd visits every expert before it comes back.
    for (int64_t i = 0; i < tokens * top_k; ++i)
      ++counts[static_cast<size_t>(i * 37 % experts)];
    add_grouped_case<K>(list, {.counts = counts,
                               .n = n,
                               .k = k,
                               .weight = weight,
                               .top_k = top_k,
                               .op = op,
                               .ring_bytes = kExpertRing});
  };
  for (int64_t tokens : {1, 8, 512}) {
    add("r1_experts_gate_up", tokens, 8, 256, 4096, 7168);
    add("r1_experts_down", tokens, 8, 256, 7168, 2048);
    add("v2lite_experts_gate_up", tokens, 6, 64, 2816, 2048);
    add("v2lite_experts_down", tokens, 6, 64, 2048, 1408);
  }
}

}  // namespace fathom
