#include "fathom/weights/repack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/minifloat.h"
#include "fathom/formats/qserve.h"

namespace fathom {
namespace {

template <class T>
const T* part_of(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const T*>(base + offset);
}

// One row of packed QServe weights.
void decode_qserve_row(const WeightItem& item,
                       const std::byte* base,
                       int64_t row,
                       std::span<float> out) {
  const auto* codes = part_of<uint8_t>(base, item.values_offset);
  for (int64_t c = 0; c < item.k; ++c) {
    const uint8_t pair = codes[qserve_packed_offset(row, c, item.k)];
    const auto code = static_cast<uint8_t>(row % 32 < 16 ? pair & 15 : pair >> 4);
    float value = 0.0f;
    if (item.format == Format::kW4a8Channel) {
      value = static_cast<float>(code) * to_float(part_of<F16>(base, item.scales_offset)[row]) -
              to_float(part_of<F16>(base, item.zeros_offset)[row]);
    } else {
      const int64_t at = c / kQserveGroup * item.n + qserve_scale_position(row);
      const QserveGroup group{.scale = part_of<int8_t>(base, item.scales_offset)[at],
                              .stored_zero = part_of<int8_t>(base, item.zeros_offset)[at]};
      value = static_cast<float>(qserve_group_value(code, group)) *
              to_float(part_of<F16>(base, item.row_scales_offset)[row]);
    }
    out[static_cast<size_t>(c)] = value;
  }
}

// Row `row` of a kv_b that lies in the store, as float32.
void decode_row(const WeightItem& item, std::byte* base, int64_t row, std::span<float> out) {
  if (item.layout() == WeightLayout::kRows16) {
    decode_rows16_row(rows16_slice(item, base, 0, item.n), row, out);
    return;
  }
  if (item.zeros_offset >= 0) return decode_qserve_row(item, base, row, out);
  const RowMajorMatrix m{
      .format = item.format,
      .n = item.n,
      .k = item.k,
      .values = base + item.values_offset,
      .scales = base + std::max<int64_t>(item.scales_offset, 0),
      .global = item.global_offset < 0 ? 1.0f : *part_of<float>(base, item.global_offset)};
  decode_row_major_row(m, row, out);
}

// Head `head` of an absorbed copy from its row-major matrix [n, k].
void store_head(const WeightItem& item, std::byte* base, int64_t head, std::span<const float> m) {
  if (item.format == Format::kF32) {
    std::memcpy(base + item.values_offset + head * item.n * item.k * 4, m.data(), m.size_bytes());
    return;
  }
  std::vector<Bf16> rounded(m.size());
  for (size_t i = 0; i < m.size(); ++i)
    rounded[i] = bf16_from_float(m[i]);
  if (item.layout() == WeightLayout::kRowMajor) {
    std::memcpy(base + item.values_offset + head * item.n * item.k * 2, rounded.data(),
                rounded.size() * 2);
    return;
  }
  const RowMajorMatrix src{
      .format = Format::kBf16, .n = item.n, .k = item.k, .values = rounded.data()};
  const int64_t groups = item.groups_per_matrix();
  pack_rows16(src, rows16_slice(item, base, head * groups, item.n), 0, groups);
}

// ---- random weights

// A mixing function whose inputs are (stream, word index): random access, so any thread can make
// any part. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators".
uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Each number has a random sign and mantissa and the given exponent: magnitude in [2^e, 2^(e+1)).
constexpr float kRmsOfMantissa = 1.5275252f;  // sqrt(7/3), of a number uniform in [1, 2)

int exponent_for(float rms) {
  return static_cast<int>(std::floor(std::log2(rms / kRmsOfMantissa) + 0.5f));
}

// 64 random bits as codes of a format; what bits must not be set is masked, what must be is set.
struct CodeMask {
  uint64_t random = ~uint64_t{0};
  uint64_t fixed = 0;
};

uint64_t repeat(uint64_t value, int bits) {
  for (int width = bits; width < 64; width *= 2)
    value |= value << width;
  return value;
}

CodeMask code_mask(Format format, float rms) {
  const auto exponent = static_cast<uint64_t>(127 + exponent_for(rms));
  switch (format) {
    case Format::kF32:
      return {repeat(0x807FFFFFu, 32), repeat(exponent << 23, 32)};
    case Format::kBf16:
      return {repeat(0x807Fu, 16), repeat(exponent << 7, 16)};
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
    case Format::kFp8Channel:
      return {repeat(0x87u, 8), repeat(0x38u, 8)};  // [1, 2)
    default:
      return {};  // any code is a number
  }
}

void fill_codes(std::span<std::byte> out, uint64_t stream, uint64_t first_word, CodeMask mask) {
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t word = (mix(stream ^ mix(first_word + i / 8)) & mask.random) | mask.fixed;
    std::memcpy(out.data() + i, &word, std::min<size_t>(8, out.size() - i));
  }
}

constexpr float kRmsOfE2m1 = 2.9261749f;  // of codes drawn uniformly

// One row group of a quantised or bf16 matrix, in place.
void random_group(const WeightItem& item, std::byte* base, int64_t group, uint64_t stream) {
  const float rms = 1.0f / std::sqrt(static_cast<float>(item.k));
  const int64_t bytes = rows16_group_bytes(item.format, item.k);
  const Rows16Matrix out = rows16_slice(item, base, group, kTileRows);
  auto* tiles = static_cast<std::byte*>(out.tiles);
  const auto first_word = static_cast<uint64_t>(group * ceil_div<int64_t>(bytes, 8));
  fill_codes({tiles, static_cast<size_t>(bytes)}, stream, first_word, code_mask(item.format, rms));
  if (item.format == Format::kNvfp4) {
    constexpr int64_t kSuperTile = 576;
    for (int64_t at = 512; at < bytes; at += kSuperTile) {
      for (int64_t i = at; i < at + 64; ++i)
        tiles[i] = (tiles[i] & std::byte{7}) | std::byte{0x38};
    }
    *out.global = rms / (kRmsOfE2m1 * kRmsOfMantissa);  // scales are drawn from [1, 2)
  }
  const int64_t scales = rows16_group_scales(item.format, item.k);
  std::fill_n(out.scales, scales, rms / kRmsOfMantissa);
}

// Zero rows and columns past the end, which random codes have overwritten: repack the group from
// its own decoded size. Only sizes that do not fill the tiles need it.
void random_group_padded(const WeightItem& item, std::byte* base, int64_t group, uint64_t stream) {
  const float rms = 1.0f / std::sqrt(static_cast<float>(item.k));
  const int64_t in_matrix = group % item.groups_per_matrix();
  const int64_t rows = std::min(kTileRows, item.n - in_matrix * kTileRows);
  const int64_t bytes = value_bytes_for(item.format, rows, item.k);
  std::vector<std::byte> values(static_cast<size_t>(bytes));
  const auto first_word = static_cast<uint64_t>(group * ceil_div<int64_t>(bytes, 8));
  fill_codes(values, stream, first_word, code_mask(item.format, rms));
  const bool nvfp4 = item.format == Format::kNvfp4;
  const int64_t num_scales = scale_count_for(item.format, rows, item.k);
  const Format scale_format = format_info(item.format).scale;
  std::vector<std::byte> scales(static_cast<size_t>(num_scales * 4), std::byte{0x38});
  if (scale_format == Format::kF32) {
    const float scale = rms / kRmsOfMantissa;
    for (int64_t i = 0; i < num_scales; ++i)
      std::memcpy(scales.data() + i * 4, &scale, 4);
  } else if (scale_format == Format::kUe8m0) {
    std::fill(scales.begin(), scales.end(), static_cast<std::byte>(127 + exponent_for(rms)));
  }
  const RowMajorMatrix src{.format = item.format,
                           .n = rows,
                           .k = item.k,
                           .values = values.data(),
                           .scales = scales.data(),
                           .global = nvfp4 ? rms / kRmsOfE2m1 : 1.0f};
  pack_rows16(src, rows16_slice(item, base, group, rows), 0, 1);
}

int64_t columns_per_tile(Format format) {
  if (format == Format::kNvfp4) return 64;
  return format == Format::kBf16 ? 2 : 128;
}

// Root mean square of what random codes stand for, before the scale of the row.
float rms_of_codes(Format format) {
  switch (format) {
    case Format::kFp8Channel:
    case Format::kFp8Block:
      return kRmsOfMantissa;
    case Format::kInt8Channel:
      return 73.9f;  // uniform in -128 .. 127
    case Format::kW4a8Group:
      return 16.0f * 4.61f;  // 16 * (code - 7.5), see below
    default:
      return 4.61f;  // sixteen equal steps
  }
}

// One scale that gives a row-major matrix of random codes its size; zero points in their middle.
void fill_row_major_scales(const WeightItem& item, std::byte* base, float rms) {
  if (item.scales_offset < 0) return;
  const float scale = rms / rms_of_codes(item.format);
  std::byte* scales = base + item.scales_offset;
  if (item.format == Format::kW4a8Channel) {
    std::fill_n(reinterpret_cast<F16*>(scales), item.n, f16_from_float(scale));
    std::fill_n(reinterpret_cast<F16*>(base + item.zeros_offset), item.n,
                f16_from_float(7.5f * scale));
  } else if (item.format == Format::kW4a8Group) {
    const int64_t count = item.k / kQserveGroup * item.n;
    std::fill_n(reinterpret_cast<int8_t*>(scales), count, int8_t{16});
    std::fill_n(reinterpret_cast<int8_t*>(base + item.zeros_offset), count, int8_t{-120});
    std::fill_n(reinterpret_cast<F16*>(base + item.row_scales_offset), item.n,
                f16_from_float(scale));
  } else {
    const int64_t count = item.e * scale_count_for(item.format, item.n, item.k);
    std::fill_n(reinterpret_cast<float*>(scales), count, scale);
  }
}

void random_dense(const WeightItem& item, std::byte* base, ThreadPool& pool, uint64_t stream) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t bytes = item.e * value_bytes_for(item.format, item.n, item.k);
  const float rms = 1.0f / std::sqrt(static_cast<float>(item.k));
  pool.for_blocks(ceil_div(bytes, kPiece), [&](int64_t piece) {
    const int64_t begin = piece * kPiece;
    fill_codes(
        {base + item.values_offset + begin, static_cast<size_t>(std::min(kPiece, bytes - begin))},
        stream, static_cast<uint64_t>(begin / 8), code_mask(item.format, rms));
  });
  fill_row_major_scales(item, base, rms);
}

void fill_ones(const WeightItem& item, std::byte* base) {
  for (int64_t i = 0; i < item.k; ++i) {
    if (item.format == Format::kF32) {
      reinterpret_cast<float*>(base + item.values_offset)[i] = 1.0f;
    } else {
      reinterpret_cast<Bf16*>(base + item.values_offset)[i] = bf16_from_float(1.0f);
    }
  }
}

}  // namespace

Rows16Matrix rows16_slice(const WeightItem& item,
                          std::byte* base,
                          int64_t first_group,
                          int64_t rows) {
  Rows16Matrix m{.format = item.format, .n = rows, .k = item.k};
  m.tiles = base + item.values_offset + first_group * rows16_group_bytes(item.format, item.k);
  if (item.scales_offset >= 0) {
    m.scales = reinterpret_cast<float*>(base + item.scales_offset) +
               first_group * rows16_group_scales(item.format, item.k);
  }
  if (item.global_offset >= 0) {
    m.global = reinterpret_cast<float*>(base + item.global_offset) + first_group;
  }
  return m;
}

void build_absorbed(const WeightItem& kv_b,
                    const WeightItem& item,
                    std::byte* base,
                    ThreadPool& pool) {
  const bool keys = item.kind == WeightItem::Kind::kAbsorbedK;
  const int64_t head_rows = item.head_rows_k + item.head_rows_v;
  const int64_t first = keys ? 0 : item.head_rows_k;
  const int64_t count = keys ? item.head_rows_k : item.head_rows_v;
  pool.for_blocks(item.e, [&](int64_t head) {
    std::vector<float> row(static_cast<size_t>(kv_b.k));
    std::vector<float> matrix(static_cast<size_t>(item.n * item.k));
    for (int64_t r = 0; r < count; ++r) {
      decode_row(kv_b, base, head * head_rows + first + r, row);
      for (int64_t c = 0; c < kv_b.k; ++c) {
        matrix[static_cast<size_t>(keys ? c * item.k + r : r * item.k + c)] =
            row[static_cast<size_t>(c)];
      }
    }
    store_head(item, base, head, matrix);
  });
}

std::vector<RandomPart> random_parts(const WeightItem& item) {
  const auto constant = [](float value) { return repeat(std::bit_cast<uint32_t>(value), 32); };
  std::vector<RandomPart> parts;
  if (item.kind == WeightItem::Kind::kVector) {
    const bool ones = item.role != WeightRole::kRouterBias;
    const uint64_t one = item.format == Format::kF32 ? constant(1.0f) : repeat(0x3F80u, 16);
    parts.push_back({.offset = item.values_offset,
                     .bytes = item.k * element_bytes(item.format),
                     .fixed = ones ? one : 0});
    return parts;
  }
  const float rms = 1.0f / std::sqrt(static_cast<float>(item.k));
  const CodeMask codes = code_mask(item.format, rms);
  parts.push_back({.offset = item.values_offset,
                   .bytes = item.e * value_bytes_for(item.format, item.n, item.k),
                   .random = codes.random,
                   .fixed = codes.fixed});
  if (item.scales_offset >= 0) {
    const Format type = format_info(item.format).scale;
    RandomPart scales{
        .offset = item.scales_offset,
        .bytes = item.e * scale_count_for(item.format, item.n, item.k) * element_bytes(type)};
    if (type == Format::kE4m3) {
      scales.random = repeat(0x07u, 8);  // [1, 2)
      scales.fixed = repeat(0x38u, 8);
    } else if (type == Format::kUe8m0) {
      scales.fixed = repeat(static_cast<uint64_t>(127 + exponent_for(rms)), 8);
    } else {
      scales.fixed = constant(rms / rms_of_codes(item.format));
    }
    parts.push_back(scales);
  }
  if (item.global_offset >= 0) {
    parts.push_back({.offset = item.global_offset,
                     .bytes = item.e * 4,
                     .fixed = constant(rms / (kRmsOfE2m1 * kRmsOfMantissa))});
  }
  if (item.input_scale_offset >= 0) {
    parts.push_back({.offset = item.input_scale_offset,
                     .bytes = item.num_input_scales() * 4,
                     .fixed = constant(1.0f)});
  }
  return parts;
}

void fill_random_part(const RandomPart& part,
                      uint64_t stream,
                      std::span<std::byte> out,
                      ThreadPool& pool) {
  constexpr int64_t kPiece = 1 << 16;
  const auto bytes = static_cast<int64_t>(out.size());
  pool.for_blocks(ceil_div(bytes, kPiece), [&](int64_t piece) {
    const auto begin = static_cast<size_t>(piece * kPiece);
    fill_codes(out.subspan(begin, std::min(static_cast<size_t>(kPiece), out.size() - begin)),
               mix(stream ^ static_cast<uint64_t>(part.offset)), begin / 8,
               {.random = part.random, .fixed = part.fixed});
  });
}

void fill_random(
    const WeightItem& item, uint64_t index, std::byte* base, ThreadPool& pool, uint64_t seed) {
  const uint64_t stream = mix(seed ^ mix(index));
  if (item.kind == WeightItem::Kind::kVector) {
    if (item.role != WeightRole::kRouterBias) fill_ones(item, base);  // a bias stays 0
    return;
  }
  if (item.input_scale_offset >= 0) {
    std::fill_n(reinterpret_cast<float*>(base + item.input_scale_offset), item.num_input_scales(),
                1.0f);
  }
  if (item.kind == WeightItem::Kind::kTable || item.layout() == WeightLayout::kRowMajor) {
    return random_dense(item, base, pool, stream);
  }
  const bool full = item.n % kTileRows == 0 && item.k % columns_per_tile(item.format) == 0;
  pool.for_blocks(item.groups(), [&](int64_t group) {
    full ? random_group(item, base, group, stream) : random_group_padded(item, base, group, stream);
  });
}

}  // namespace fathom
