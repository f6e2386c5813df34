#include "fathom/kernels/cpu/products/decoded_rows.h"

#include <array>

#include "fathom/base/check.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

template <class T>
constexpr std::array<uint16_t, 256> bf16_of_codes() {
  std::array<uint16_t, 256> out{};
  for (unsigned code = 0; code < 256; ++code) {
    out[code] = bf16_from_float(to_float(T{static_cast<uint8_t>(code)})).bits;
  }
  return out;
}

constexpr std::array<uint16_t, 256> kBf16OfE4m3 = bf16_of_codes<E4m3>();
constexpr std::array<uint16_t, 256> kBf16OfE5m2 = bf16_of_codes<E5m2>();

float load(const View& v, int64_t i) {
  if (v.format == Format::kF32) return v.as<const float>()[i];
  if (v.format == Format::kBf16) return to_float(v.as<const Bf16>()[i]);
  FATHOM_DCHECK(v.format == Format::kF16);
  return to_float(v.as<const F16>()[i]);
}

}  // namespace

const float* column_array(const View& v, int64_t n, float* memory) {
  if (!v.present()) return nullptr;
  for (int64_t i = 0; i < n; ++i)
    memory[i] = load(v, i);
  std::fill(memory + n, memory + padded_columns(n), 0.0f);
  return memory;
}

const float* row_array(const View& v, int64_t rows, float* memory) {
  for (int64_t i = 0; i < rows; ++i)
    memory[i] = load(v, i);
  return memory;
}

void decode_to_bf16(Format format, const uint8_t* codes, int64_t k, int64_t padded, void* out) {
  const auto& table = format == Format::kE5m2 ? kBf16OfE5m2 : kBf16OfE4m3;
  auto* values = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < k; ++i)
    values[i] = table[codes[i]];
  std::fill(values + k, values + padded, uint16_t{0});
}

void decode_to_f32(Format format, const uint8_t* codes, int64_t k, float* out) {
  const auto& table = format == Format::kE5m2 ? kBf16OfE5m2 : kBf16OfE4m3;
  for (int64_t i = 0; i < k; ++i)
    out[i] = to_float(Bf16{table[codes[i]]});
}

Status run_fp8_codes(
    Exec& ex, const Products& p, Format x_format, ProductLoop loop, ElementType type) {
  const auto* codes = static_cast<const uint8_t*>(p.x);
  const bool bf16 = type == ElementType::kBf16;
  const DecodedRow row = DecodedRow::of(bf16 ? 2 : 4, p.k, 0);
  Products decoded = p;
  decoded.x_type = type;
  if (bf16) decoded.k = align_up<int64_t>(p.k, 4);
  return run_decoded(ex, decoded, row, loop, [&](int64_t m, int64_t t, std::byte* out) {
    const uint8_t* from = codes + p.x_begin(m) + t * p.x_row_stride;
    if (bf16) {
      decode_to_bf16(x_format, from, p.k, row.scales_at, out);
    } else {
      decode_to_f32(x_format, from, p.k, reinterpret_cast<float*>(out));
    }
  });
}

int64_t fp8_codes_workspace(int64_t matrices, int64_t rows, int64_t k) {
  return decoded_workspace(matrices, rows, DecodedRow::of(4, k, 0));
}

}  // namespace fathom
