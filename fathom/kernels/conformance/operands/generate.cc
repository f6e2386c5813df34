#include "fathom/kernels/conformance/operands/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/super_tile.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

// Student t with 4 degrees of freedom: a normal over the root of a mean of four squares, which is
// -ln(u v) / 2 for uniform u and v.
float heavy_tail(Rng& rng) {
  const float z = rng.next_normal();
  const double u = 1.0 - double{rng.next_uniform()};
  const double v = 1.0 - double{rng.next_uniform()};
  const double spread = std::sqrt(-0.5 * std::log(u * v));
  return static_cast<float>(std::clamp(z / std::max(spread, 1e-3), -30.0, 30.0));
}

float draw(Dist dist, Rng& rng) {
  switch (dist) {
    case Dist::kNormal:
    case Dist::kOneHuge:
    case Dist::kMixedRows:
      return rng.next_normal();
    case Dist::kHeavyTail:
      return heavy_tail(rng);
    case Dist::kUniform:
      return rng.next_uniform();
    case Dist::kBytes:
      return static_cast<float>(rng.next_below(256));
    case Dist::kZeros:
      return 0.0f;
    case Dist::kDenormal:
      return static_cast<float>(static_cast<int>(rng.next_below(2001)) - 1000) * 0x1p-149f;
    case Dist::kOneSign:
      return std::fabs(rng.next_normal()) + 0.5f;
  }
  return 0.0f;
}

template <class T>
double load_as(const void* data, int64_t index) {
  return static_cast<double>(to_float(static_cast<const T*>(data)[index]));
}

template <class T>
double load_number(const void* data, int64_t index) {
  return static_cast<double>(static_cast<const T*>(data)[index]);
}

template <class T>
void store_number(void* data, int64_t index, double value) {
  static_cast<T*>(data)[index] = static_cast<T>(value);
}

// Integers get 0x7B in every byte: far beyond ids, slots and offsets of any case, and not -1, which
// means "none" in many of them.
std::byte poison_byte(Format format) {
  return format_info(format).is_float ? std::byte{0xFF} : std::byte{0x7B};
}

void quantise_fp8(const CaseWeightSpec& spec, const float* weights, WeightParts out) {
  const bool power_of_two = spec.format == Format::kFp8BlockUe8m0;
  const auto rounding =
      power_of_two ? Fp8QuantOptions::Rounding::kPowerOfTwoUp : Fp8QuantOptions::Rounding::kNone;
  std::vector<float> scales(
      static_cast<size_t>(scale_count_for(spec.format, spec.rows, spec.cols)));
  Status status = fp8_quantize_blocks(weights, spec.rows, spec.cols, rounding,
                                      reinterpret_cast<E4m3*>(out.values), scales.data());
  if (power_of_two && status.ok()) {
    status = fp8_scales_to_ue8m0(scales, {reinterpret_cast<Ue8m0*>(out.scales), scales.size()});
  } else if (!scales.empty()) {
    std::memcpy(out.scales, scales.data(), scales.size() * sizeof(float));
  }
  FATHOM_CHECK(status.ok(), status.message());
}

// One matrix in checkpoint layout.
void quantise_row_major(const CaseWeightSpec& spec, const float* weights, WeightParts out) {
  const int64_t count = spec.rows * spec.cols;
  switch (spec.format) {
    case Format::kF32:
    case Format::kBf16:
    case Format::kF16:
      for (int64_t i = 0; i < count; ++i) {
        store_element(spec.format, out.values, i, double{weights[i]});
      }
      return;
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return quantise_fp8(spec, weights, out);
    case Format::kNvfp4: {
      float amax = 0;
      for (int64_t i = 0; i < count; ++i)
        amax = std::max(amax, std::fabs(weights[i]));
      *out.global = nvfp4_global_scale(amax);
      const Status status = nvfp4_quantize_weights(weights, spec.rows, spec.cols, *out.global,
                                                   reinterpret_cast<uint8_t*>(out.values),
                                                   reinterpret_cast<E4m3*>(out.scales));
      FATHOM_CHECK(status.ok(), status.message());
      return;
    }
    case Format::kMxfp4:
      mxfp4_quantize(weights, spec.rows, spec.cols, Mxfp4Rule::kCeil,
                     reinterpret_cast<uint8_t*>(out.values), reinterpret_cast<Ue8m0*>(out.scales));
      return;
    case Format::kMxfp8:
      return mxfp8_quantize(weights, spec.rows, spec.cols, reinterpret_cast<E4m3*>(out.values),
                            reinterpret_cast<Ue8m0*>(out.scales));
    default:
      FATHOM_CHECK(false, str_cat("no test weights of format ", format_name(spec.format)));
  }
}

WeightBytes row_major_bytes(const CaseWeightSpec& spec) {
  WeightBytes bytes;
  bytes.values = value_bytes_for(spec.format, spec.rows, spec.cols);
  const FormatInfo& info = format_info(spec.format);
  if (info.scale != Format::kNone) {
    bytes.scales =
        scale_count_for(spec.format, spec.rows, spec.cols) * (format_info(info.scale).bits / 8);
  }
  bytes.global = info.has_global ? 4 : 0;
  return bytes;
}

WeightBytes rows16_bytes(const CaseWeightSpec& spec) {
  FATHOM_CHECK(has_rows16(spec.format), "float32 weights stay row-major");
  const int64_t groups = ceil_div(spec.rows, kTileRows);
  WeightBytes bytes;
  bytes.values = groups * rows16_group_bytes(spec.format, spec.cols);
  bytes.scales = groups * rows16_group_scales(spec.format, spec.cols) * 4;
  bytes.global = rows16_has_global(spec.format) ? groups * 4 : 0;
  return bytes;
}

// Bytes of one matrix of the stack.
WeightBytes matrix_bytes(const CaseWeightSpec& spec) {
  FATHOM_CHECK(
      spec.layout != WeightLayout::kRows16 || spec.num_experts == 0 || spec.rows % kTileRows == 0,
      "a stack in rows16 needs rows % 16 == 0");
  return spec.layout == WeightLayout::kRows16 ? rows16_bytes(spec) : row_major_bytes(spec);
}

WeightParts matrix_parts(const CaseWeightSpec& spec, const WeightParts& parts, int64_t e) {
  const WeightBytes one = matrix_bytes(spec);
  return {.values = parts.values + e * one.values,
          .scales = parts.scales == nullptr ? nullptr : parts.scales + e * one.scales,
          .global = parts.global == nullptr ? nullptr : parts.global + e * one.global / 4};
}

RowMajorMatrix as_row_major(const CaseWeightSpec& spec, const WeightParts& parts) {
  return {.format = spec.format,
          .n = spec.rows,
          .k = spec.cols,
          .values = parts.values,
          .scales = parts.scales,
          .global = parts.global == nullptr ? 1.0f : *parts.global};
}

Rows16Matrix as_rows16(const CaseWeightSpec& spec, const WeightParts& parts) {
  return {.format = spec.format,
          .n = spec.rows,
          .k = spec.cols,
          .tiles = parts.values,
          .scales = reinterpret_cast<float*>(parts.scales),
          .global = parts.global};
}

void quantise(const CaseWeightSpec& spec, const float* weights, WeightParts out) {
  const WeightBytes bytes = row_major_bytes(spec);
  if (spec.layout != WeightLayout::kRows16) {
    quantise_row_major(spec, weights, out);
    if (spec.layout == WeightLayout::kPairs)
      pair_codes({out.values, static_cast<size_t>(bytes.values)});
    return;
  }
  std::vector<std::byte> values(static_cast<size_t>(bytes.values));
  std::vector<float> scales(static_cast<size_t>(ceil_div<int64_t>(bytes.scales, 4)));
  float global = 1.0f;
  const WeightParts flat{values.data(), reinterpret_cast<std::byte*>(scales.data()), &global};
  quantise_row_major(spec, weights, flat);
  pack_rows16(as_row_major(spec, flat), as_rows16(spec, out), 0, ceil_div(spec.rows, kTileRows));
}

// Random bytes, the same for the same generator; eight at a time because it runs over gigabytes.
void random_bytes(Rng& rng, std::byte* out, int64_t count) {
  uint64_t state = rng.next_u64() | 1u;
  for (int64_t i = 0; i < count; i += 8) {
    state ^= state << 13;  // xorshift64: Marsaglia, "Xorshift RNGs"
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(out + i, &state, static_cast<size_t>(std::min<int64_t>(8, count - i)));
  }
}

// A period of 4099 (a prime, so that no tile repeats its neighbour) values of that size.
template <class T>
void repeat_values(Rng& rng, double scale, Format format, std::byte* out, int64_t bytes) {
  std::array<T, 4099> period;
  for (size_t i = 0; i < period.size(); ++i) {
    store_element(format, period.data(), static_cast<int64_t>(i), scale * rng.next_normal());
  }
  const auto whole = static_cast<int64_t>(sizeof(period));
  for (int64_t at = 0; at < bytes; at += whole) {
    std::memcpy(out + at, period.data(), static_cast<size_t>(std::min(whole, bytes - at)));
  }
}

// E4M3 bytes 0x30..0x4F: scales 0.5 to 7.5.
std::byte sensible_scale(std::byte random) {
  return std::byte(0x30 + std::to_integer<int>(random & std::byte{0x1F}));
}

constexpr double kNvfp4CodeSize = 9.0;  // of code times such a scale, root mean square, rounded

void nvfp4_codes(
    const CaseWeightSpec& spec, const WeightBytes& bytes, double scale, Rng& rng, WeightParts out) {
  random_bytes(rng, out.values, bytes.values);
  if (spec.layout == WeightLayout::kRows16) {
    constexpr int64_t kSuperTile = 576;
    constexpr int64_t kScalesAt = 512;
    for (int64_t tile = 0; tile < bytes.values; tile += kSuperTile) {
      for (int64_t i = kScalesAt; i < kSuperTile; ++i) {
        out.values[tile + i] = sensible_scale(out.values[tile + i]);
      }
    }
  } else {
    random_bytes(rng, out.scales, bytes.scales);
    for (int64_t i = 0; i < bytes.scales; ++i)
      out.scales[i] = sensible_scale(out.scales[i]);
  }
  for (int64_t i = 0; i < bytes.global / 4; ++i) {
    out.global[i] = static_cast<float>(scale / kNvfp4CodeSize * (1.0 + 0.01 * double(i % 7)));
  }
}

constexpr int kMxfp4Exponents = 4;       // of random blocks
constexpr double kMxfp4CodeSize = 10.0;  // of code times 2^0 .. 2^3, root mean square, rounded

/// Blocks of random codes with scales 2^0 to 2^3 times a power of two that gives the size.
void mxfp4_codes(
    const CaseWeightSpec& spec, const WeightBytes& bytes, double scale, Rng& rng, WeightParts out) {
  constexpr int kOne = 7;  // exponent of 1 in E4M3
  const int global = static_cast<int>(std::lround(std::log2(scale / kMxfp4CodeSize)));
  const auto drawn = [](std::byte random) {
    return std::to_integer<int>(random & std::byte{kMxfp4Exponents - 1});
  };
  random_bytes(rng, out.values, bytes.values);
  for (int64_t i = 0; i < bytes.global / 4; ++i)
    out.global[i] = std::ldexp(1.0f, global);
  if (spec.layout != WeightLayout::kRows16) {
    random_bytes(rng, out.scales, bytes.scales);
    for (int64_t i = 0; i < bytes.scales; ++i)
      out.scales[i] = std::byte(127 + global + drawn(out.scales[i]));
    return;
  }
  constexpr int64_t kTileScales = 16;  // of sixteen rows; two tiles share 32 k
  for (int64_t tile = 0; tile < bytes.values; tile += kSuperTileBytes) {
    std::byte* scales = out.values + tile + kSuperTileScales;
    for (int64_t i = 0; i < kSuperTileK; ++i) {
      const int64_t first = i / (2 * kTileScales) * (2 * kTileScales) + i % kTileScales;
      scales[i] = i == first ? std::byte((kOne + drawn(scales[i])) << 3) : scales[first];
    }
  }
}

constexpr double kE4m3CodeSize = 128.0;  // of uniform E4M3 codes, root mean square, rounded

/// Random E4M3 codes: 7F and FF are NaN.
void e4m3_codes(Rng& rng, std::byte* out, int64_t count) {
  random_bytes(rng, out, count);
  for (int64_t i = 0; i < count; ++i) {
    if ((out[i] & std::byte{0x7F}) == std::byte{0x7F}) out[i] ^= std::byte{0x04};
  }
}

/// Blocks of random codes with scales 2^0 to 2^3 times a power of two that gives the size.
void mxfp8_codes(
    const CaseWeightSpec& spec, const WeightBytes& bytes, double scale, Rng& rng, WeightParts out) {
  constexpr double kScaleSize = 4.6;  // of 2^0 .. 2^3
  const auto least =
      static_cast<int>(std::lround(std::log2(scale / (kE4m3CodeSize * kScaleSize)))) + 127;
  e4m3_codes(rng, out.values, bytes.values);
  const auto draw_scales = [&](std::byte* scales, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      scales[i] = std::byte(least + std::to_integer<int>(scales[i] & std::byte{3}));
  };
  if (spec.layout != WeightLayout::kRows16) {
    random_bytes(rng, out.scales, bytes.scales);
    return draw_scales(out.scales, bytes.scales);
  }
  for (int64_t tile = 0; tile < bytes.values; tile += kMxfp8TileBytes)
    draw_scales(out.values + tile + kMxfp8Scales, kMxfp8TileBytes - kMxfp8Scales);
}

void fp8_codes(
    const CaseWeightSpec& spec, const WeightBytes& bytes, double scale, Rng& rng, WeightParts out) {
  e4m3_codes(rng, out.values, bytes.values);
  const bool bytes_of_exponent =
      spec.layout == WeightLayout::kRowMajor && spec.format == Format::kFp8BlockUe8m0;
  const int64_t count = bytes_of_exponent ? bytes.scales : bytes.scales / 4;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(scale / kE4m3CodeSize * (1.0 + double(i % 3)));
    const Ue8m0 rounded = ue8m0_round_up(value);
    if (bytes_of_exponent) {
      reinterpret_cast<Ue8m0*>(out.scales)[i] = rounded;
    } else {
      reinterpret_cast<float*>(out.scales)[i] =
          spec.format == Format::kFp8BlockUe8m0 ? to_float(rounded) : value;
    }
  }
}

double weight_scale(const CaseWeightSpec& spec) {
  return spec.scale != 0 ? spec.scale
                         : 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, spec.cols)));
}

}  // namespace

void generate_row(const Fill& fill, int64_t index, Rng& rng, std::span<float> row) {
  Dist dist = fill.dist;
  if (dist == Dist::kMixedRows) {
    constexpr Dist kKinds[] = {Dist::kNormal,  Dist::kHeavyTail, Dist::kZeros,
                               Dist::kOneHuge, Dist::kDenormal,  Dist::kOneSign};
    dist = kKinds[index % 6];
  }
  const bool scaled = dist != Dist::kDenormal && dist != Dist::kBytes;
  const double scale = scaled ? fill.scale : 1.0;
  for (float& value : row)
    value = static_cast<float>(scale * draw(dist, rng) + fill.offset);
  if (dist == Dist::kOneHuge && !row.empty()) {
    row[rng.next_below(static_cast<uint32_t>(row.size()))] =
        static_cast<float>(1000.0 * fill.scale);
  }
}

double load_element(Format format, const void* data, int64_t index) {
  switch (format) {
    case Format::kF32:
      return load_number<float>(data, index);
    case Format::kF16:
      return load_as<F16>(data, index);
    case Format::kBf16:
      return load_as<Bf16>(data, index);
    case Format::kE4m3:
      return load_as<E4m3>(data, index);
    case Format::kE5m2:
      return load_as<E5m2>(data, index);
    case Format::kUe8m0:
      return load_as<Ue8m0>(data, index);
    case Format::kI8:
      return load_number<int8_t>(data, index);
    case Format::kU8:
    case Format::kBool:
      return load_number<uint8_t>(data, index);
    case Format::kI32:
      return load_number<int32_t>(data, index);
    case Format::kI64:
      return load_number<int64_t>(data, index);
    default:
      FATHOM_CHECK(false, str_cat(format_name(format), " has no single elements"));
  }
  return 0;
}

void store_element(Format format, void* data, int64_t index, double value) {
  const auto single = static_cast<float>(value);
  switch (format) {
    case Format::kF32:
      return store_number<float>(data, index, value);
    case Format::kF16:
      static_cast<F16*>(data)[index] = f16_from_float(single);
      return;
    case Format::kBf16:
      static_cast<Bf16*>(data)[index] = bf16_from_float(single);
      return;
    case Format::kE4m3:
      static_cast<E4m3*>(data)[index] = e4m3_from_float(single);
      return;
    case Format::kE5m2:
      static_cast<E5m2*>(data)[index] = e5m2_from_float(single);
      return;
    case Format::kUe8m0:
      static_cast<Ue8m0*>(data)[index] = ue8m0_round_up(single);
      return;
    case Format::kI8:
      return store_number<int8_t>(data, index, value);
    case Format::kU8:
    case Format::kBool:
      return store_number<uint8_t>(data, index, value);
    case Format::kI32:
      return store_number<int32_t>(data, index, value);
    case Format::kI64:
      return store_number<int64_t>(data, index, value);
    default:
      FATHOM_CHECK(false, str_cat(format_name(format), " has no single elements"));
  }
}

int64_t first_not_finite(Format format, const void* data, int64_t count) {
  // The wide formats in loops of their own: outputs have up to hundreds of millions of them.
  if (format == Format::kBf16) {
    const auto* x = static_cast<const uint16_t*>(data);
    return std::find_if(x, x + count, [](uint16_t b) { return (b & 0x7F80u) == 0x7F80u; }) - x;
  }
  if (format == Format::kF32) {
    const auto* x = static_cast<const float*>(data);
    return std::find_if(x, x + count, [](float v) { return !std::isfinite(v); }) - x;
  }
  int64_t i = 0;
  while (i < count && std::isfinite(load_element(format, data, i)))
    ++i;
  return i;
}

void poison_elements(Format format, void* data, int64_t count) {
  std::memset(data, static_cast<int>(poison_byte(format)),
              static_cast<size_t>(count * (format_info(format).bits / 8)));
}

bool is_poison(Format format, const void* data, int64_t index) {
  const int bytes = format_info(format).bits / 8;
  const auto* at = static_cast<const std::byte*>(data) + index * bytes;
  return std::all_of(at, at + bytes, [&](std::byte b) { return b == poison_byte(format); });
}

WeightBytes weight_bytes(const CaseWeightSpec& spec) {
  WeightBytes bytes = matrix_bytes(spec);
  bytes.values *= spec.matrices();
  bytes.scales *= spec.matrices();
  bytes.global *= spec.matrices();
  return bytes;
}

void generate_weight(const CaseWeightSpec& spec,
                     Rng& rng,
                     WeightParts out,
                     std::vector<float>* exact) {
  const Fill normal{.dist = Dist::kNormal, .scale = weight_scale(spec)};
  const Fill heavy{.dist = Dist::kHeavyTail, .scale = weight_scale(spec)};
  const int64_t count = spec.rows * spec.cols;
  std::vector<float> weights(static_cast<size_t>(count));
  for (int64_t e = 0; e < spec.matrices(); ++e) {
    for (int64_t n = 0; n < spec.rows; ++n) {
      const std::span row(weights.data() + n * spec.cols, static_cast<size_t>(spec.cols));
      generate_row(n % 7 == 6 ? heavy : normal, n, rng, row);
    }
    quantise(spec, weights.data(), matrix_parts(spec, out, e));
    if (exact != nullptr) exact->insert(exact->end(), weights.begin(), weights.end());
  }
}

void generate_weight_codes(const CaseWeightSpec& spec,
                           Rng& rng,
                           WeightParts out,
                           int64_t ring_bytes) {
  FATHOM_CHECK(spec.rows % kTileRows == 0 && spec.cols % kFp8Block == 0, "full tiles only");
  const double scale = weight_scale(spec);
  WeightBytes bytes = weight_bytes(spec);
  if (ring_bytes > 0) bytes.values = std::min(bytes.values, ring_bytes);
  switch (spec.format) {
    case Format::kF32:
      return repeat_values<float>(rng, scale, spec.format, out.values, bytes.values);
    case Format::kBf16:
      return repeat_values<Bf16>(rng, scale, spec.format, out.values, bytes.values);
    case Format::kNvfp4:
      return nvfp4_codes(spec, bytes, scale, rng, out);
    case Format::kMxfp4:
      return mxfp4_codes(spec, bytes, scale, rng, out);
    case Format::kMxfp8:
      return mxfp8_codes(spec, bytes, scale, rng, out);
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return fp8_codes(spec, bytes, scale, rng, out);
    default:
      FATHOM_CHECK(false, str_cat("no test weights of format ", format_name(spec.format)));
  }
}

void decode_weight_row(const CaseWeightSpec& spec,
                       const WeightParts& parts,
                       int64_t row,
                       std::span<float> out) {
  const WeightParts matrix = matrix_parts(spec, parts, row / std::max<int64_t>(1, spec.rows));
  const int64_t n = row % std::max<int64_t>(1, spec.rows);
  if (spec.layout == WeightLayout::kRows16) {
    decode_rows16_row(as_rows16(spec, matrix), n, out);
  } else if (spec.layout == WeightLayout::kRowMajor) {
    decode_row_major_row(as_row_major(spec, matrix), n, out);
  } else {
    const int64_t row_bytes = value_bytes_for(spec.format, 1, spec.cols);
    std::vector<std::byte> natural(matrix.values + n * row_bytes,
                                   matrix.values + (n + 1) * row_bytes);
    unpair_codes(natural);
    // The row alone, as a matrix of one.
    RowMajorMatrix one = as_row_major(spec, matrix);
    one.n = 1;
    one.values = natural.data();
    one.scales = matrix.scales + n * scale_count_for(spec.format, 1, spec.cols);
    decode_row_major_row(one, 0, out);
  }
}

}  // namespace fathom
