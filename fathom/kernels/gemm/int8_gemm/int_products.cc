// The portable loop of integer products, and the rows that all of them read.
#include "fathom/kernels/gemm/int8_gemm/int_products.h"

#include <algorithm>
#include <cstring>

#include "fathom/formats/integer/qserve.h"
#include "fathom/kernels/gemm/int8_gemm/int_rows.h"

namespace fathom {
namespace {

constexpr int64_t kTileRows = 16;

/// Row n of the weight as the numbers that are multiplied.
void decode_row(const IntWeight& w, int64_t n, int8_t* out) {
  if (w.codes == IntCodes::kInt8) {
    std::memcpy(out, w.values + n * w.k, static_cast<size_t>(w.k));
    return;
  }
  for (int64_t k = 0; k < w.k; ++k) {
    const int byte = w.values[qserve_packed_offset(n, k, w.k)];
    const auto code = static_cast<uint8_t>(n % 32 < 16 ? byte & 15 : byte >> 4);
    if (w.codes == IntCodes::kW4a8Channel) {
      out[k] = static_cast<int8_t>(code);
    } else {
      const int64_t at = k / kQserveGroup * w.n + qserve_scale_position(n);
      out[k] = qserve_group_value(code, {w.group_scales[at], w.group_zeros[at]});
    }
  }
}

int32_t dot(const int8_t* x, const int8_t* w, int64_t k) {
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i)
    sum += int32_t{x[i]} * int32_t{w[i]};
  return sum;
}

}  // namespace

void int_products_portable(const Products& p, const WorkItem& item, void* scratch) {
  const auto& w = p.weight.as<IntWeight>();
  auto* rows = static_cast<int8_t*>(scratch);  // [16][k]
  for (int64_t g = item.group_begin; g < item.group_end; ++g) {
    const int64_t n0 = g * kTileRows;
    const int64_t num_n = std::min(kTileRows, p.n - n0);
    for (int64_t r = 0; r < num_n; ++r)
      decode_row(w, n0 + r, rows + r * w.k);
    for (int64_t t = item.row_begin; t < item.row_end; ++t) {
      const int8_t* x =
          static_cast<const int8_t*>(p.x) + p.x_begin(item.matrix) + t * p.x_row_stride;
      for (int64_t r = 0; r < num_n; ++r) {
        store_result(p, item.matrix, t, n0 + r, static_cast<float>(dot(x, rows + r * w.k, w.k)));
      }
    }
  }
}

Status run_int_codes(Exec& ex, const Products& p, const IntWeight& w, ProductLoop loop) {
  const auto* codes = static_cast<const int8_t*>(p.x);
  const DecodedRow row = DecodedRow::of(1, p.k, 1);
  Products decoded = p;
  decoded.k = align_up<int64_t>(p.k, 4);
  decoded.weight = &w;
  return run_decoded(ex, decoded, row, loop, [&](int64_t m, int64_t t, std::byte* out) {
    const int8_t* from = codes + p.x_begin(m) + t * p.x_row_stride;
    std::memcpy(out, from, static_cast<size_t>(p.k));
    std::memset(out + p.k, 0, static_cast<size_t>(row.scales_at - p.k));
    int32_t sum = 0;
    for (int64_t k = 0; k < p.k; ++k)
      sum += from[k];
    // Of codes without sign nothing must leave again.
    const int32_t offset = w.codes == IntCodes::kW4a8Channel ? 0 : 128 * sum;
    std::memcpy(out + row.scales_at, &offset, sizeof offset);
  });
}

int64_t int_codes_workspace(int64_t rows, int64_t k) {
  return decoded_workspace(1, rows, DecodedRow::of(1, k, 1));
}

}  // namespace fathom
