#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant_rows.h"

namespace fathom {
namespace {

int64_t num_blocks(const View& x) {
  return x.dim(1) / kNvfp4Block;
}

void bytes_of_rows(int64_t rows, const View& x, Cost& cost) {
  cost.bytes_read = rows * x.dim(1) * element_bytes(x.format);
  cost.bytes_written = rows * (x.dim(1) / 2 + num_blocks(x));
}

Status check_global_scales(const View& gs) {
  if (!gs.readable()) return {};
  for (int64_t e = 0; e < gs.dim(0); ++e) {
    const float scale = gs.as<float>()[e];
    if (scale > 0.0f && std::isfinite(scale)) continue;
    return invalid_argument(str_cat("gs[", e, "] is ", scale, " but must be finite and positive"));
  }
  return {};
}

Status check_offsets(const Nvfp4QuantExperts::Args& a) {
  const auto* offsets = a.offsets.as<int32_t>();
  const auto* scale_offsets = a.scale_offsets.as<int32_t>();
  for (int64_t e = 0; e < a.gs.dim(0); ++e) {
    const int64_t begin = offsets[e];
    const int64_t end = offsets[e + 1];
    if (begin < 0 || end < begin || end > a.q.dim(0)) {
      return invalid_argument(str_cat("offsets[", e, "..", e + 1, "] are ", begin, " and ", end,
                                      " but must rise within 0..", a.q.dim(0)));
    }
    if (begin == end) continue;
    const int64_t first = scale_offsets[e];
    const int64_t last = first + align_up<int64_t>(end - begin, kSwizzleRows);
    if (first < 0 || first % kSwizzleRows != 0 || last > scale_offsets[e + 1] ||
        last > a.scales.dim(0)) {
      return invalid_argument(str_cat("scale_offsets[", e, "..", e + 1, "] are ", first, " and ",
                                      scale_offsets[e + 1], " but ", end - begin, " rows need ",
                                      last - first, " scale rows from a multiple of ", kSwizzleRows,
                                      " on, of ", a.scales.dim(0)));
    }
  }
  return {};
}

Status check_row_map(const Nvfp4QuantExperts::Args& a) {
  const int64_t R = a.q.dim(0);
  const int64_t M = a.x.dim(0);
  if (!a.row_map.present()) {
    if (R == M) return {};
    return invalid_argument(
        str_cat("q has ", R, " rows but x has ", M, " and there is no row_map"));
  }
  if (a.row_map.dim(0) != R) {
    return invalid_argument(str_cat("row_map has ", a.row_map.dim(0), " rows but q has ", R));
  }
  if (!a.row_map.readable()) return {};
  for (int64_t i = 0; i < R; ++i) {
    const int64_t row = a.row_map.as<int32_t>()[i];
    if (row >= 0 && row < M) continue;
    return invalid_argument(str_cat("row_map[", i, "] is ", row, " but x has rows 0..", M - 1));
  }
  return {};
}

}  // namespace

void Nvfp4Quant::bytes(const Args& a, Cost& cost) {
  bytes_of_rows(a.x.dim(0), a.x, cost);
  cost.bytes_read += 4;
}

Status Nvfp4Quant::check(const Args& a) {
  const bool row_major = a.layout == Nvfp4ScaleLayout::kRowMajor;
  const int64_t tile = row_major                                      ? 1
                       : a.layout == Nvfp4ScaleLayout::kSwizzled128x4 ? kSwizzleRows
                                                                      : kSwizzleSmallRows;
  const int64_t rows = align_up<int64_t>(a.x.dim(0), tile);
  const int64_t columns =
      row_major ? num_blocks(a.x) : align_up<int64_t>(num_blocks(a.x), kSwizzleColumns);
  if (a.scales.dim(0) < rows || a.scales.dim(0) % tile != 0 || a.scales.dim(1) != columns) {
    return invalid_argument(str_cat("scales are ", describe(a.scales), " but the layout needs ",
                                    rows, " rows (or more, in tiles of ", tile, ") of ", columns));
  }
  if (!row_major && !a.scales.contiguous()) {
    return invalid_argument("swizzled scales must be contiguous");
  }
  return check_global_scales(a.gs);
}

void Nvfp4QuantExperts::bytes(const Args& a, Cost& cost) {
  bytes_of_rows(a.q.dim(0), a.x, cost);
  const int64_t map = a.row_map.present() ? a.row_map.dim(0) : 0;
  cost.bytes_read += 4 * (a.gs.dim(0) + 2 * a.offsets.dim(0) + map);
}

Status Nvfp4QuantExperts::check(const Args& a) {
  FATHOM_TRY(check_row_map(a));
  if (!a.scales.contiguous()) return invalid_argument("swizzled scales must be contiguous");
  if (!a.offsets.readable()) return {};
  FATHOM_TRY(check_offsets(a));
  return check_global_scales(a.gs);
}

namespace {

template <class A>
void quantise_row(const Nvfp4Row& row) {
  const auto* x = static_cast<const A*>(row.x);
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    float values[kNvfp4Block];
    for (int64_t i = 0; i < kNvfp4Block; ++i)
      values[i] = to_float(x[b * kNvfp4Block + i]);
    E4m3 scale{};
    nvfp4_quantize_activations(values, 1, kNvfp4Block, row.gs, row.q + b * kNvfp4Block / 2, &scale);
    row.scales[b / 4 * row.scale_step + b % 4] = scale.bits;
  }
}

void quantise_row_portable(const Nvfp4Row& row) {
  with_float_type(row.format, [&]<class A>(A) { quantise_row<A>(row); });
}

using RowLoop = void (*)(const Nvfp4Row& row);

/// First byte of the scales of row t, and the distance of groups of four.
std::pair<int64_t, int64_t> scale_place(const Nvfp4Quant::Args& a, int64_t t) {
  const int64_t columns = num_blocks(a.x);
  switch (a.layout) {
    case Nvfp4ScaleLayout::kSwizzled128x4:
      return {swizzled_128x4_offset(t, 0, columns), kSwizzleRows * kSwizzleColumns};
    case Nvfp4ScaleLayout::kSwizzled8x4:
      return {swizzled_8x4_offset(t, 0, columns), kSwizzleSmallRows * kSwizzleColumns};
    case Nvfp4ScaleLayout::kRowMajor:
      break;
  }
  return {t * a.scales.stride(0), kSwizzleColumns};
}

/// Rows that a prefetch looks ahead: some 8 KiB of x.
int64_t rows_ahead(const View& x) {
  const int64_t bytes = std::max<int64_t>(1, x.dim(1) * element_bytes(x.format));
  return ceil_div<int64_t>(8192, bytes);
}

const std::byte* row_bytes(const View& v, int64_t row) {
  return v.as<std::byte>() + row * v.stride(0) * element_bytes(v.format);
}

template <RowLoop Loop>
Status run_plain(Exec& ex, const Nvfp4Quant::Args& a) {
  const int64_t ahead = rows_ahead(a.x);
  for_rows(ex, a.x.dim(0), 3 * a.x.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto [at, step] = scale_place(a, t);
      const int64_t next = std::min(t + ahead, end - 1);
      Loop({.format = a.x.format,
            .x = row_bytes(a.x, t),
            .num_blocks = num_blocks(a.x),
            .gs = *a.gs.as<float>(),
            .q = a.q.row<uint8_t>(t),
            .scales = a.scales.as<uint8_t>() + at,
            .scale_step = step,
            .next_x = row_bytes(a.x, next),
            .next_q = a.q.row<uint8_t>(next)});
    }
  });
  return {};
}

/// Where row i of q comes from.
const std::byte* source_row(const Nvfp4QuantExperts::Args& a, int64_t i) {
  return row_bytes(a.x, a.row_map.present() ? a.row_map.as<int32_t>()[i] : i);
}

template <RowLoop Loop>
Status run_experts(Exec& ex, const Nvfp4QuantExperts::Args& a) {
  const int64_t columns = num_blocks(a.x);
  const auto* offsets = a.offsets.as<int32_t>();
  const int64_t E = a.gs.dim(0);
  const int64_t ahead = rows_ahead(a.x);
  for_rows(ex, a.q.dim(0), 3 * a.x.dim(1), [&](int64_t begin, int64_t end) {
    int64_t e = std::upper_bound(offsets, offsets + E + 1, begin) - offsets - 1;
    for (int64_t i = begin; i < end; ++i) {
      while (e < E && offsets[e + 1] <= i)
        ++e;
      if (e < 0 || e == E) continue;  // a row of no expert
      const int64_t row = a.scale_offsets.as<int32_t>()[e] + i - offsets[e];
      const int64_t next = std::min(i + ahead, end - 1);
      Loop({.format = a.x.format,
            .x = source_row(a, i),
            .num_blocks = columns,
            .gs = a.gs.as<float>()[e],
            .q = a.q.row<uint8_t>(i),
            .scales = a.scales.as<uint8_t>() + swizzled_128x4_offset(row, 0, columns),
            .scale_step = kSwizzleRows * kSwizzleColumns,
            .next_x = source_row(a, next),
            .next_q = a.q.row<uint8_t>(next)});
    }
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<Nvfp4Quant> nvfp4_quant_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_plain<avx512::nvfp4_quant_row>},
    {"portable", Isa::kPortable, "", kTraits, run_plain<quantise_row_portable>},
};

constinit const VariantTable<Nvfp4QuantExperts> nvfp4_quant_experts_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_experts<avx512::nvfp4_quant_row>},
    {"portable", Isa::kPortable, "", kTraits, run_experts<quantise_row_portable>},
};

}  // namespace fathom
