#include "fathom/weights/load/absorb.h"

#include <cstring>
#include <vector>

#include "fathom/formats/integer/qserve.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

// One row of packed QServe weights.
void decode_qserve_row(const HostMatrix& m, int64_t row, std::span<float> out) {
  const WeightItem& item = *m.item;
  const auto* codes = m.part<uint8_t>(item.values_offset);
  for (int64_t c = 0; c < item.k; ++c) {
    const uint8_t pair = codes[qserve_packed_offset(row, c, item.k)];
    const auto code = static_cast<uint8_t>(row % 32 < 16 ? pair & 15 : pair >> 4);
    float value = 0.0f;
    if (item.format == Format::kW4a8Channel) {
      value = static_cast<float>(code) * to_float(m.part<F16>(item.scales_offset)[row]) -
              to_float(m.part<F16>(item.zeros_offset)[row]);
    } else {
      const int64_t at = c / kQserveGroup * item.n + qserve_scale_position(row);
      const QserveGroup group{.scale = m.part<int8_t>(item.scales_offset)[at],
                              .stored_zero = m.part<int8_t>(item.zeros_offset)[at]};
      value = static_cast<float>(qserve_group_value(code, group)) *
              to_float(m.part<F16>(item.row_scales_offset)[row]);
    }
    out[static_cast<size_t>(c)] = value;
  }
}

// The codes of a row of kPairs in their own order, the scales where they are.
void decode_paired_row(const HostMatrix& m, int64_t row, std::span<float> out) {
  const WeightItem& item = *m.item;
  const int64_t row_bytes = value_bytes_for(item.format, 1, item.k);
  const auto* codes = m.part<std::byte>(item.values_offset) + row * row_bytes;
  std::vector<std::byte> plain(codes, codes + row_bytes);
  unpair_codes(plain);
  const RowMajorMatrix one{.format = item.format,
                           .n = 1,
                           .k = item.k,
                           .values = plain.data(),
                           .scales = m.part<std::byte>(item.scales_offset) +
                                     row * scale_count_for(item.format, 1, item.k),
                           .global = *m.part<float>(item.global_offset)};
  decode_row_major_row(one, 0, out);
}

// One head as its row-major matrix [n, k].
std::vector<float> head_of(const HostMatrix& kv_b, const WeightItem& item, int64_t head) {
  const bool keys = item.kind == WeightItem::Kind::kAbsorbedK;
  const int64_t first =
      head * (item.head_rows_k + item.head_rows_v) + (keys ? 0 : item.head_rows_k);
  const int64_t count = keys ? item.head_rows_k : item.head_rows_v;
  std::vector<float> row(static_cast<size_t>(kv_b.item->k));
  std::vector<float> matrix(static_cast<size_t>(item.n * item.k));
  for (int64_t r = 0; r < count; ++r) {
    decode_row(kv_b, first + r, row);
    for (int64_t c = 0; c < kv_b.item->k; ++c) {
      matrix[static_cast<size_t>(keys ? c * item.k + r : r * item.k + c)] =
          row[static_cast<size_t>(c)];
    }
  }
  return matrix;
}

void store_head(const WeightItem& item, std::span<const float> m, std::byte* out) {
  if (item.format == Format::kF32) {
    std::memcpy(out, m.data(), m.size_bytes());
    return;
  }
  std::vector<Bf16> rounded(m.size());
  for (size_t i = 0; i < m.size(); ++i)
    rounded[i] = bf16_from_float(m[i]);
  if (!item.in_tiles()) {
    std::memcpy(out, rounded.data(), rounded.size() * sizeof(Bf16));
    return;
  }
  const RowMajorMatrix src{
      .format = Format::kBf16, .n = item.n, .k = item.k, .values = rounded.data()};
  const Rows16Matrix tiles{.format = Format::kBf16, .n = item.n, .k = item.k, .tiles = out};
  pack_rows16(src, tiles, 0, item.groups_per_matrix());
}

}  // namespace

void decode_row(const HostMatrix& m, int64_t row, std::span<float> out) {
  const WeightItem& item = *m.item;
  if (item.in_tiles()) {
    Rows16Matrix tiles{.format = item.format, .n = item.n, .k = item.k};
    // Only read.
    tiles.tiles = const_cast<std::byte*>(m.part<std::byte>(item.values_offset));
    if (item.scales_offset >= 0)
      tiles.scales = const_cast<float*>(m.part<float>(item.scales_offset));
    if (item.global_offset >= 0)
      tiles.global = const_cast<float*>(m.part<float>(item.global_offset));
    return decode_rows16_row(tiles, row, out);
  }
  if (item.layout == WeightLayout::kPairs) return decode_paired_row(m, row, out);
  if (item.zeros_offset >= 0) return decode_qserve_row(m, row, out);
  RowMajorMatrix plain{.format = item.format,
                       .n = item.n,
                       .k = item.k,
                       .values = m.part<std::byte>(item.values_offset)};
  if (item.scales_offset >= 0) plain.scales = m.part<std::byte>(item.scales_offset);
  if (item.global_offset >= 0) plain.global = *m.part<float>(item.global_offset);
  decode_row_major_row(plain, row, out);
}

FillJob absorb_job(const HostMatrix& kv_b, const WeightItem& item) {
  FillJob job;
  job.units = item.e;
  job.parts = {{.offset = item.values_offset,
                .unit_bytes = item.value_bytes() / item.e,
                .bytes = item.value_bytes()}};
  job.fill = [kv_b, &item, unit = job.parts[0].unit_bytes](const FillCall& call) -> Status {
    for (int64_t head = call.begin; head < call.end; ++head) {
      store_head(item, head_of(kv_b, item, head),
                 call.parts[0].data() + (head - call.begin) * unit);
    }
    return {};
  };
  return job;
}

}  // namespace fathom
