#include "fathom/formats/layout/tile_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/block/mxfp4_as_nvfp4.h"
#include "fathom/formats/layout/super_tile.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

constexpr int64_t kVectorBytes = 64;  // one 512-bit vector
constexpr int64_t kTileK = 16;        // nvfp4: k of a tile, one block scale a row
constexpr int64_t kTileBytes = 128;
constexpr int64_t kFp8BlockK = 128;

const uint8_t* row_values(const RowMajorMatrix& m, int64_t row) {
  return static_cast<const uint8_t*>(m.values) + row * value_bytes_for(m.format, 1, m.k);
}

/// Scale `index` of an array of scales in that format.
float scale_at(const void* scales, Format format, int64_t index) {
  switch (format) {
    case Format::kF32:
      return static_cast<const float*>(scales)[index];
    case Format::kE4m3:
      return to_float(static_cast<const E4m3*>(scales)[index]);
    case Format::kUe8m0:
      return to_float(static_cast<const Ue8m0*>(scales)[index]);
    default:
      FATHOM_CHECK(false, str_cat("no scales in format ", format_name(format)));
  }
  return 0.0f;
}

/// The scale byte of (row, k) in row-major nvfp4.
uint8_t nvfp4_scale_byte(const RowMajorMatrix& m, int64_t row, int64_t block) {
  return static_cast<const uint8_t*>(m.scales)[row * ceil_div(m.k, kNvfp4Block) + block];
}

void pack_bf16_row(const uint8_t* values, int64_t k, int64_t lane, uint8_t* group) {
  uint8_t* out = group + lane * 4;
  for (int64_t p = 0; p < k / 2; ++p)
    std::memcpy(out + p * kVectorBytes, values + p * 4, 4);
  if (k % 2 != 0) std::memcpy(out + k / 2 * kVectorBytes, values + (k - 1) * 2, 2);
}

void pack_fp8_row(const uint8_t* values, int64_t k, int64_t lane, uint8_t* group) {
  uint8_t* out = group + lane / 4 * 16 + lane % 4 * 2;
  for (int64_t i = 0; i < k; ++i) {
    out[i / 4 * kVectorBytes + i % 4 / 2 * 8 + i % 2] = values[i];
  }
}

/// Where mxfp8 has the scale of a row's block of 32 k; its codes begin kMxfp8BlockBytes apart.
int64_t mxfp8_scale_offset(int64_t block, int64_t lane) {
  return block / 4 * kMxfp8TileBytes + kMxfp8Scales + block % 4 * 16 + lane;
}

int64_t mxfp8_code_offset(int64_t block) {
  return block / 4 * kMxfp8TileBytes + block % 4 * kMxfp8BlockBytes;
}

void pack_mxfp8_row(const RowMajorMatrix& src, int64_t row, int64_t lane, uint8_t* group) {
  const int64_t blocks = ceil_div(src.k, kMxfp8Block);
  const auto* scales = static_cast<const uint8_t*>(src.scales) + row * blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = b * kMxfp8Block;
    pack_fp8_row(row_values(src, row) + first, std::min(kMxfp8Block, src.k - first), lane,
                 group + mxfp8_code_offset(b));
    group[mxfp8_scale_offset(b, lane)] = scales[b];
  }
}

/// The low nibbles of four bytes, side by side.
uint16_t gather_low_nibbles(uint32_t bytes) {
  uint32_t x = bytes & 0x0F0F0F0Fu;
  x = (x | x >> 4) & 0x00FF00FFu;
  return static_cast<uint16_t>(x | x >> 8);
}

// ---- exponents of mxfp4

uint8_t mxfp4_scale_byte(const RowMajorMatrix& m, int64_t row, int64_t block) {
  return static_cast<const uint8_t*>(m.scales)[row * ceil_div(m.k, kMxfp4Block) + block];
}

bool is_zero_block(const RowMajorMatrix& m, int64_t row, int64_t block) {
  return is_zero_mxfp4_block(row_values(m, row), m.k, block);
}

/// Exponents of the blocks of a group that are not zero; least > most where there is none.
struct ExponentRange {
  int least = 256;
  int most = -256;
};

ExponentRange exponents_of(const RowMajorMatrix& m, int64_t group) {
  ExponentRange range;
  const int64_t end = std::min(m.n, (group + 1) * kTileRows);
  for (int64_t row = group * kTileRows; row < end; ++row) {
    for (int64_t block = 0; block < ceil_div(m.k, kMxfp4Block); ++block) {
      const int exponent = mxfp4_scale_byte(m, row, block) - 127;
      if (exponent >= range.least && exponent <= range.most) continue;
      if (is_zero_block(m, row, block)) continue;
      range.least = std::min(range.least, exponent);
      range.most = std::max(range.most, exponent);
    }
  }
  return range;
}

/// g of a group: its largest scale becomes the largest power of two that E4M3 has.
int global_exponent(const ExponentRange& range) {
  if (range.least > range.most) return 0;
  return mxfp4_global_exponent(range.most);
}

// ---- rows into tiles

/// The E4M3 byte of block `block` of 16 k.
uint8_t tile_scale_byte(const RowMajorMatrix& src, int64_t row, int64_t block, int exponent) {
  if (src.format == Format::kNvfp4) return nvfp4_scale_byte(src, row, block);
  const int64_t wide = block * kTileK / kMxfp4Block;
  if (is_zero_block(src, row, wide)) return 0;
  return e4m3_of_exponent(mxfp4_scale_byte(src, row, wide) - 127 - exponent);
}

/// nvfp4 and mxfp4; 2^exponent is the global scale of mxfp4.
void pack_fp4_row(
    const RowMajorMatrix& src, int64_t row, int64_t lane, int exponent, uint8_t* group) {
  const uint8_t* values = row_values(src, row);
  const int64_t bytes = value_bytes_for(src.format, 1, src.k);
  for (int64_t first = 0; first < bytes; first += 4) {  // 8 codes: one vector of one tile
    uint32_t codes = 0;
    std::memcpy(&codes, values + first, static_cast<size_t>(std::min<int64_t>(4, bytes - first)));
    if (first * 2 + 8 > src.k && src.k % 2 != 0) {  // the high nibble past the end is padding
      codes &= (1u << (src.k - first * 2) * 4) - 1u;
    }
    const uint16_t lanes[2] = {gather_low_nibbles(codes), gather_low_nibbles(codes >> 4)};
    uint8_t* tile = group + first / 32 * kSuperTileBytes + first % 32 / 8 * kTileBytes;
    std::memcpy(tile + first % 8 / 4 * kVectorBytes + lane * 4, lanes, 4);
  }
  for (int64_t block = 0; block < ceil_div(src.k, kTileK); ++block) {
    group[block / 4 * kSuperTileBytes + kSuperTileScales + block % 4 * 16 + lane] =
        tile_scale_byte(src, row, block, exponent);
  }
}

void pack_group(const RowMajorMatrix& src, int64_t group, int exponent, uint8_t* out) {
  const int64_t first = group * kTileRows;
  const int64_t rows = std::min(kTileRows, src.n - first);
  if (rows < kTileRows || src.k % kFp8BlockK != 0) {  // something may stay unwritten
    std::memset(out, 0, static_cast<size_t>(rows16_group_bytes(src.format, src.k)));
  }
  for (int64_t lane = 0; lane < rows; ++lane) {
    if (src.format == Format::kBf16) {
      pack_bf16_row(row_values(src, first + lane), src.k, lane, out);
    } else if (rows16_has_global(src.format)) {
      pack_fp4_row(src, first + lane, lane, exponent, out);
    } else if (src.format == Format::kMxfp8) {
      pack_mxfp8_row(src, first + lane, lane, out);
    } else {
      pack_fp8_row(row_values(src, first + lane), src.k, lane, out);
    }
  }
}

/// The float32 scales of a group of fp8 rows, which lie in one row of 128x128 blocks.
void pack_group_scales(const RowMajorMatrix& src, int64_t group, float* out) {
  const int64_t blocks = ceil_div(src.k, kFp8BlockK);
  const int64_t block_row = group * kTileRows / kFp8BlockK;
  for (int64_t b = 0; b < blocks; ++b) {
    out[b] = scale_at(src.scales, format_info(src.format).scale, block_row * blocks + b);
  }
}

void decode_bf16_lane(const uint8_t* group, int64_t lane, std::span<float> out) {
  for (size_t k = 0; k < out.size(); ++k) {
    Bf16 value{};
    std::memcpy(&value, group + k / 2 * kVectorBytes + lane * 4 + k % 2 * 2, sizeof value);
    out[k] = to_float(value);
  }
}

void decode_fp8_lane(const uint8_t* group,
                     const float* scales,
                     int64_t lane,
                     std::span<float> out) {
  const uint8_t* codes = group + lane / 4 * 16 + lane % 4 * 2;
  for (size_t k = 0; k < out.size(); ++k) {
    const uint8_t code = codes[k / 4 * kVectorBytes + k % 4 / 2 * 8 + k % 2];
    out[k] = to_float(E4m3{code}) * scales[k / kFp8BlockK];
  }
}

void decode_mxfp8_lane(const uint8_t* group, int64_t lane, std::span<float> out) {
  constexpr auto kBlock = static_cast<size_t>(kMxfp8Block);
  for (size_t k = 0; k < out.size(); k += kBlock) {
    const auto block = static_cast<int64_t>(k / kBlock);
    const float scale = to_float(Ue8m0{group[mxfp8_scale_offset(block, lane)]});
    decode_fp8_lane(group + mxfp8_code_offset(block), &scale, lane,
                    out.subspan(k, std::min(kBlock, out.size() - k)));
  }
}

void decode_fp4_lane(const uint8_t* group, float global, int64_t lane, std::span<float> out) {
  for (size_t k = 0; k < out.size(); ++k) {
    const uint8_t* super_tile = group + k / kSuperTileK * kSuperTileBytes;
    const size_t tile = k % kSuperTileK / kTileK;
    const size_t in_tile = k % kTileK;
    // Nibble n of 16-bit lane 2*lane + p of vector z holds k = 8z + 2n + p.
    const uint8_t* vector = super_tile + tile * kTileBytes + in_tile / 8 * kVectorBytes;
    const size_t n = in_tile % 8 / 2;
    const uint8_t byte = vector[lane * 4 + static_cast<int64_t>(k % 2 * 2 + n / 2)];
    const E2m1 code{static_cast<uint8_t>(n % 2 == 0 ? byte & 15u : byte >> 4)};
    const E4m3 scale{super_tile[kSuperTileScales + static_cast<int64_t>(tile) * 16 + lane]};
    out[k] = to_float(code) * (to_float(scale) * global);
  }
}

template <class T>
void decode_dense(const uint8_t* values, std::span<float> out) {
  for (size_t k = 0; k < out.size(); ++k) {
    T value{};
    std::memcpy(&value, values + k * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, float>) {
      out[k] = value;
    } else {
      out[k] = to_float(value);
    }
  }
}

void decode_codes(Format format, const uint8_t* values, std::span<float> out) {
  switch (format) {
    case Format::kF32:
      return decode_dense<float>(values, out);
    case Format::kF16:
      return decode_dense<F16>(values, out);
    case Format::kBf16:
      return decode_dense<Bf16>(values, out);
    case Format::kE5m2:
      return decode_dense<E5m2>(values, out);
    case Format::kUe8m0:
      return decode_dense<Ue8m0>(values, out);
    case Format::kE4m3:
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
    case Format::kFp8Group:
    case Format::kFp8GroupUe8m0:
    case Format::kFp8Channel:
    case Format::kFp8Tensor:
    case Format::kMxfp8:
      return decode_dense<E4m3>(values, out);
    case Format::kNvfp4:
    case Format::kMxfp4:
      for (size_t k = 0; k < out.size(); ++k) {
        out[k] = to_float(unpack_e2m1(values, static_cast<int64_t>(k)));
      }
      return;
    case Format::kI8:
    case Format::kInt8Channel:
      for (size_t k = 0; k < out.size(); ++k) {
        out[k] = static_cast<float>(static_cast<int8_t>(values[k]));
      }
      return;
    default:
      FATHOM_CHECK(false, str_cat("rows of ", format_name(format), " cannot be decoded"));
  }
}

}  // namespace

bool can_decode_rows(Format format) {
  switch (format) {
    case Format::kF32:
    case Format::kF16:
    case Format::kBf16:
    case Format::kE4m3:
    case Format::kE5m2:
    case Format::kUe8m0:
    case Format::kI8:
    case Format::kNvfp4:
    case Format::kMxfp4:
    case Format::kMxfp8:
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
    case Format::kFp8Group:
    case Format::kFp8GroupUe8m0:
    case Format::kFp8Channel:
    case Format::kFp8Tensor:
    case Format::kInt8Channel:
      return true;
    case Format::kNone:
    case Format::kU8:
    case Format::kI32:
    case Format::kI64:
    case Format::kBool:
    case Format::kF64:
    case Format::kW4a8Channel:
    case Format::kW4a8Group:
    case Format::kW4Fp8:
      return false;
  }
  return false;
}

bool has_rows16(Format format) {
  return format == Format::kBf16 || format == Format::kMxfp8 || rows16_has_global(format) ||
         is_fp8_block(format);
}

bool rows16_has_global(Format format) {
  return format == Format::kNvfp4 || format == Format::kMxfp4;
}

int64_t rows16_group_bytes(Format format, int64_t k) {
  FATHOM_CHECK(has_rows16(format), str_cat(format_name(format), " has no rows16 layout"));
  if (format == Format::kBf16) return ceil_div<int64_t>(k, 2) * kVectorBytes;
  if (rows16_has_global(format)) return ceil_div(k, kSuperTileK) * kSuperTileBytes;
  if (format == Format::kMxfp8) return ceil_div(k, kMxfp8TileK) * kMxfp8TileBytes;
  return ceil_div<int64_t>(k, 4) * kVectorBytes;
}

int64_t rows16_group_scales(Format format, int64_t k) {
  return is_fp8_block(format) ? ceil_div(k, kFp8BlockK) : 0;
}

Status check_mxfp4_tiles(const RowMajorMatrix& src, int64_t first_row) {
  const int64_t blocks = ceil_div(src.k, kMxfp4Block);
  for (int64_t row = 0; row < src.n; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      if (mxfp4_scale_byte(src, row, block) == kUe8m0Nan) {
        return unsupported(str_cat("the scale of row ", first_row + row, ", block ", block,
                                   " is NaN (byte 255), expected bytes 0 to 254"));
      }
    }
  }
  for (int64_t group = 0; group < ceil_div(src.n, kTileRows); ++group) {
    const ExponentRange range = exponents_of(src, group);
    if (range.least - global_exponent(range) >= kLeastE4m3Exponent) continue;
    const int64_t last = std::min(src.n, (group + 1) * kTileRows) - 1;
    return unsupported(str_cat("the scales of rows ", first_row + group * kTileRows, " to ",
                               first_row + last, " are 2^", range.least, " to 2^", range.most,
                               ", but tiles hold exponents up to ",
                               kLargestE4m3Exponent - kLeastE4m3Exponent, " apart"));
  }
  return {};
}

void pack_rows16(const RowMajorMatrix& src,
                 const Rows16Matrix& dst,
                 int64_t group_begin,
                 int64_t group_end) {
  FATHOM_CHECK(dst.n == src.n && dst.k == src.k && dst.format == src.format,
               str_cat("source is ", src.n, "x", src.k, " ", format_name(src.format),
                       " but destination is ", dst.n, "x", dst.k, " ", format_name(dst.format)));
  const int64_t group_bytes = rows16_group_bytes(src.format, src.k);
  const int64_t group_scales = rows16_group_scales(src.format, src.k);
  for (int64_t group = group_begin; group < group_end; ++group) {
    const bool powers = src.format == Format::kMxfp4;
    const int exponent = powers ? global_exponent(exponents_of(src, group)) : 0;
    pack_group(src, group, exponent, static_cast<uint8_t*>(dst.tiles) + group * group_bytes);
    if (group_scales > 0) pack_group_scales(src, group, dst.scales + group * group_scales);
    if (src.format == Format::kNvfp4) dst.global[group] = src.global;
    if (powers) dst.global[group] = std::ldexp(1.0f, exponent);
  }
}

void decode_rows16_row(const Rows16Matrix& src, int64_t row, std::span<float> out) {
  FATHOM_CHECK(static_cast<int64_t>(out.size()) == src.k,
               str_cat("a row has ", src.k, " columns but ", out.size(), " floats are given"));
  const int64_t group = row / kTileRows;
  const int64_t lane = row % kTileRows;
  const uint8_t* tiles =
      static_cast<const uint8_t*>(src.tiles) + group * rows16_group_bytes(src.format, src.k);
  if (src.format == Format::kBf16) {
    decode_bf16_lane(tiles, lane, out);
  } else if (rows16_has_global(src.format)) {
    decode_fp4_lane(tiles, src.global[group], lane, out);
  } else if (src.format == Format::kMxfp8) {
    decode_mxfp8_lane(tiles, lane, out);
  } else {
    decode_fp8_lane(tiles, src.scales + group * rows16_group_scales(src.format, src.k), lane, out);
  }
}

void decode_row_major_row(const RowMajorMatrix& src, int64_t row, std::span<float> out) {
  FATHOM_CHECK(static_cast<int64_t>(out.size()) == src.k,
               str_cat("a row has ", src.k, " columns but ", out.size(), " floats are given"));
  decode_codes(src.format, row_values(src, row), out);
  const FormatInfo& info = format_info(src.format);
  if (info.scale == Format::kNone || src.k == 0) return;
  const int64_t block_k = info.block_k == 0 ? src.k : info.block_k;
  const int64_t first = info.block_n == 0 ? 0 : row / info.block_n * ceil_div(src.k, block_k);
  for (int64_t k = 0; k < src.k; ++k) {
    const float scale = scale_at(src.scales, info.scale, first + k / block_k);
    out[static_cast<size_t>(k)] *= info.has_global ? scale * src.global : scale;
  }
}

}  // namespace fathom
