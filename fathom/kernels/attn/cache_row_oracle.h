// Exact answers for the kernels that write rows of a cache: the fields of a row as operands of a
// case, and what they must hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/attn/cache_row.h"
#include "fathom/kernels/conformance/operands/operands.h"
#include "fathom/kernels/conformance/recorded_call.h"

namespace fathom::oracle {

/// A row by the formats of its fields.
struct RowKind {
  Format values = Format::kBf16;
  Format scales = Format::kNone;
  int64_t group = 0;  ///< channels of a scale
  bool rope = false;  ///< the last R channels are a field of their own
  CacheScale scale = CacheScale::kPowerOfTwo;

  bool dense() const { return scales == Format::kNone; }

  std::string name() const {
    if (dense()) return std::string(format_name(values));
    return str_cat(values == Format::kU8 ? "e2m1" : format_name(values), "_", format_name(scales),
                   "_", group, rope ? "_rope" : "");
  }
};

inline constexpr RowKind kBf16Row{};
inline constexpr RowKind kF32Row{.values = Format::kF32};
inline constexpr RowKind kFp8Row{
    .values = Format::kE4m3, .scales = Format::kUe8m0, .group = 64, .rope = true};
inline constexpr RowKind kNvfp4Row{
    .values = Format::kU8, .scales = Format::kE4m3, .group = 16, .rope = true};
/// Keys of an indexer of `channels` channels.
inline constexpr RowKind kMxfp4Key{.values = Format::kU8, .scales = Format::kUe8m0, .group = 32};

inline constexpr RowKind fp8_key(int64_t channels) {
  return {.values = Format::kE4m3, .scales = Format::kF32, .group = channels};
}

/// The rows of `channels` channels that a recorded call writes; their fields are called values,
/// rope and scales.
inline RowKind row_kind_of(const RecordedCall& call, int64_t channels) {
  RowKind kind{.values = call.format("values"), .rope = call.has("rope")};
  if (!call.has("scales")) return kind;
  const int64_t coded = channels - (kind.rope ? call.dim("rope", 2) : 0);
  kind.scales = call.format("scales");
  kind.group = coded / call.dim("scales", 2);
  return kind;
}

struct RowTensors {
  RowKind kind;
  Tensor values, rope, scales;
  int64_t num_values = 0;
};

/// Outputs for rows of D channels, the last R of them rotary. Rows lie apart, as in a page.
inline RowTensors make_rows(
    CaseData& c, const RowKind& kind, int64_t pages, int64_t page_size, int64_t D, int64_t R) {
  RowTensors rows{.kind = kind, .values = {}, .rope = {}, .scales = {}};
  rows.num_values = kind.rope ? D - R : D;
  const int64_t width = kind.values == Format::kU8 ? rows.num_values / 2 : rows.num_values;
  const auto field = [&](int64_t columns, Format format, int64_t gap) {
    return c.output({pages, page_size, columns}, format, {.row_gap = gap});
  };
  rows.values = field(width, kind.values, kind.dense() ? 0 : 128);
  if (kind.rope) rows.rope = field(R, Format::kBf16, 224);
  if (!kind.dense()) rows.scales = field(rows.num_values / kind.group, kind.scales, 1);
  return rows;
}

/// The row that a slot must hold before it is rounded; false where nothing is written.
using ExactRow = std::function<bool(int64_t slot, std::vector<double>& row)>;

/// How far a row that was computed may be from the exact one, before its last rounding.
struct RowNoise {
  double rel = 1e-6;   ///< of each channel
  double abs = 1e-30;  ///< in units of the largest channel of a group
};

inline double rounded_bf16(double x) {
  return double{to_float(bf16_from_float(static_cast<float>(x)))};
}

/// The largest magnitude of a group, as bf16.
inline double group_amax(const RowKind& kind, const std::vector<double>& row, int64_t g) {
  double amax = 0;
  for (int64_t i = g * kind.group; i < (g + 1) * kind.group; ++i)
    amax = std::max(amax, std::fabs(rounded_bf16(row[static_cast<size_t>(i)])));
  return amax;
}

inline double exact_scale(const RowKind& kind, double amax) {
  if (kind.values == Format::kE4m3 && kind.scale == CacheScale::kAmax)
    return std::max(amax / 448, 0x1p-126);
  if (kind.values == Format::kE4m3)
    return std::exp2(std::ceil(std::log2(std::max(amax, 1e-4) / 448)));
  if (kind.scales == Format::kE4m3) return std::min(amax / 6, 448.0);  // rounded by its gate
  return std::exp2(std::ceil(std::log2(std::max(amax / 6, 0x1p-126))));
}

/// Half the distance of neighbouring codes at v.
inline double half_step(Format values, double v) {
  const double a = std::fabs(v);
  if (values == Format::kU8) return a < 2 ? 0.25 : a < 4 ? 0.5 : 1.0;
  return a < 0x1p-6 ? 0x1p-10 : std::exp2(std::floor(std::log2(a)) - 4);
}

inline double code_value(const RowTensors& rows, int64_t slot, int64_t i) {
  if (rows.kind.values == Format::kE4m3) return rows.values[slot * rows.num_values + i];
  const auto byte = static_cast<int>(rows.values[slot * rows.num_values / 2 + i / 2]);
  return double{to_float(E2m1{static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4)})};
}

/// Dequantised values and exact ones, for gate B.
struct Dequantised {
  std::vector<double> found, exact;
};

/// Each code is the nearest for the scale that was stored (gate A).
inline std::string check_codes(const RowTensors& rows,
                               int64_t slot,
                               const std::vector<double>& row,
                               const RowNoise& noise,
                               Dequantised& all) {
  const RowKind& kind = rows.kind;
  const double largest = kind.values == Format::kE4m3 ? 448 : 6;
  for (int64_t i = 0; i < rows.num_values; ++i) {
    const int64_t g = i / kind.group;
    const double scale = rows.scales[slot * (rows.num_values / kind.group) + g];
    const double exact = row[static_cast<size_t>(i)];
    const double wanted = scale == 0 ? 0 : rounded_bf16(exact) / scale;
    const double clamped = std::clamp(wanted, -largest, largest);
    const double code = code_value(rows, slot, i);
    const double room = scale == 0 ? 0 : noise.abs * group_amax(kind, row, g) / scale;
    const double bound =
        half_step(kind.values, clamped) * (1 + 1e-6) + noise.rel * std::fabs(clamped) + room;
    if (!(std::fabs(code - clamped) <= bound)) {
      return str_cat("values of slot ", slot, " have code ", code, " at channel ", i,
                     ", expected the nearest to ", wanted);
    }
    all.found.push_back(code * scale);
    all.exact.push_back(exact);
  }
  return {};
}

/// Values of a slot that nothing is written to.
inline std::string check_untouched(const RowTensors& rows, int64_t slot) {
  const int64_t width = rows.values.dim(2);
  for (int64_t i = 0; i < width; ++i) {
    const double v = rows.values[slot * width + i];
    if (std::isnan(v) || (rows.kind.values == Format::kU8 && v == 0x7B)) continue;
    return str_cat("values of slot ", slot, " were written and must not be");
  }
  return {};
}

inline std::string check_values(const RowTensors& rows,
                                const RowNoise& noise,
                                const ExactRow& row_of) {
  const int64_t slots = rows.values.dim(0) * rows.values.dim(1);
  const int64_t step = std::max<int64_t>(1, slots * rows.num_values / (1 << 19));
  Dequantised all;
  std::vector<double> row;
  for (int64_t at = 0; at < slots + step; at += step) {
    const int64_t slot = std::min(at, slots - 1);  // the last is a written one in large caches
    const std::string why =
        row_of(slot, row) ? check_codes(rows, slot, row, noise, all) : check_untouched(rows, slot);
    if (!why.empty()) return why;
  }
  if (all.found.size() < 4096) return {};
  const Gate gate{.diff = rows.kind.values == Format::kE4m3 ? 1e-3 : 7e-3};
  const Verdict verdict = judge(gate, all.found, all.exact);
  return verdict.passed ? "" : str_cat("gate B of dequantised values: ", verdict.why);
}

/// Expectations for all fields. `dense_gate` is for values and rope that are no codes.
inline void expect_cache_rows(CaseData& c,
                              const RowTensors& rows,
                              const Gate& dense_gate,
                              const RowNoise& noise,
                              ExactRow row_of) {
  const auto expect_part = [&](const Tensor& field, int64_t first) {
    c.expect_rows(field, dense_gate, [=](int64_t slot, std::span<double> out) {
      std::vector<double> row;
      std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());
      if (row_of(slot, row)) std::copy_n(row.begin() + first, out.size(), out.begin());
    });
  };
  if (rows.rope.present()) expect_part(rows.rope, rows.num_values);
  if (rows.kind.dense()) return expect_part(rows.values, 0);
  const bool e4m3_scales = rows.kind.scales == Format::kE4m3;
  const bool amax_scales = rows.kind.scale == CacheScale::kAmax;
  // Half a step of E4M3 and, where amax is computed, one of bf16.
  const Gate gate = e4m3_scales   ? Gate{.abs = 0x1.001p-10, .rel = 0x1.001p-4 + noise.rel}
                    : amax_scales ? Gate{.rel = 0x1p-22}
                                  : gates::exact();
  c.expect_rows(rows.scales, gate, [=](int64_t slot, std::span<double> out) {
    std::vector<double> row;
    std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());
    if (!row_of(slot, row)) return;
    for (size_t g = 0; g < out.size(); ++g)
      out[g] = exact_scale(rows.kind, group_amax(rows.kind, row, static_cast<int64_t>(g)));
  });
  c.expect_that([=] { return check_values(rows, noise, row_of); });
}

}  // namespace fathom::oracle
