#include "fathom/formats/layout/tile_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

/// A row-major matrix with random codes, and the memory of its rows16 form between canaries.
struct Matrix {
  static constexpr uint8_t kCanary = 0xA5;

  Format format;
  int64_t n, k, groups;
  std::vector<uint8_t> values, scales, tiles;
  std::vector<float> tile_scales, tile_global;
  float global = 1.0f;

  Matrix(Format f, int64_t rows, int64_t cols, uint64_t seed)
      : format(f), n(rows), k(cols), groups(ceil_div(rows, kTileRows)) {
    Rng rng(seed, 0);
    const Format scale = format_info(f).scale;
    values.resize(static_cast<size_t>(value_bytes_for(f, n, k)));
    scales.resize(static_cast<size_t>(scale_count_for(f, n, k)) *
                  (scale == Format::kF32 ? sizeof(float) : 1));
    for (uint8_t& v : values)
      v = static_cast<uint8_t>(rng.next_below(256));
    for (uint8_t& s : scales)
      s = static_cast<uint8_t>(0x20 + rng.next_below(0x40));
    if (scale == Format::kF32) {
      for (size_t i = 0; i < scales.size() / 4; ++i) {
        const float value = 0.25f + static_cast<float>(rng.next_below(1000)) / 512.0f;
        std::memcpy(&scales[i * 4], &value, 4);
      }
    }
    if (f == Format::kNvfp4) global = 0.0371f;
    if (f == Format::kMxfp4) {
      for (uint8_t& s : scales)
        s = static_cast<uint8_t>(110 + rng.next_below(18));  // 17 powers apart
    }
    tiles.assign(static_cast<size_t>(groups * rows16_group_bytes(f, k)) + 64, kCanary);
    tile_scales.assign(static_cast<size_t>(groups * rows16_group_scales(f, k)), -1.0f);
    tile_global.assign(static_cast<size_t>(groups), -1.0f);
  }

  RowMajorMatrix row_major() const { return {format, n, k, values.data(), scales.data(), global}; }

  Rows16Matrix rows16() {
    return {format, n, k, tiles.data(), tile_scales.data(), tile_global.data()};
  }

  std::vector<float> row_major_row(int64_t row) const {
    std::vector<float> out(static_cast<size_t>(k), -7.0f);
    decode_row_major_row(row_major(), row, out);
    return out;
  }

  std::vector<float> rows16_row(int64_t row) {
    std::vector<float> out(static_cast<size_t>(k), -7.0f);
    decode_rows16_row(rows16(), row, out);
    return out;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr Format kTiled[] = {Format::kBf16,  Format::kFp8Block, Format::kFp8BlockUe8m0,
                             Format::kNvfp4, Format::kMxfp4,    Format::kMxfp8};

TEST(TileLayout, ExistsForSixFormats) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    const bool expected = format == Format::kBf16 || format == Format::kFp8Block ||
                          format == Format::kFp8BlockUe8m0 || format == Format::kNvfp4 ||
                          format == Format::kMxfp4 || format == Format::kMxfp8;
    EXPECT_EQ(has_rows16(format), expected) << format_name(format);
  }
}

TEST(TileLayout, GroupSizesAreThoseOfTheDiagram) {
  EXPECT_EQ(rows16_group_bytes(Format::kBf16, 1), 64);
  EXPECT_EQ(rows16_group_bytes(Format::kBf16, 7168), 3584 * 64);
  EXPECT_EQ(rows16_group_bytes(Format::kFp8Block, 5), 128);
  EXPECT_EQ(rows16_group_bytes(Format::kNvfp4, 64), 576);
  EXPECT_EQ(rows16_group_bytes(Format::kNvfp4, 80), 1152);
  EXPECT_EQ(rows16_group_bytes(Format::kNvfp4, 0), 0);
  EXPECT_EQ(rows16_group_bytes(Format::kMxfp8, 128), 2112);
  EXPECT_EQ(rows16_group_bytes(Format::kMxfp8, 160), 4224);
  EXPECT_EQ(rows16_group_scales(Format::kMxfp8, 129), 0);
  EXPECT_EQ(rows16_group_scales(Format::kFp8Block, 129), 2);
  EXPECT_EQ(rows16_group_scales(Format::kNvfp4, 129), 0);
}

TEST(TileLayout, PackedRowsDecodeToTheBitsOfTheirSource) {
  for (Format f : kTiled) {
    for (int64_t n : {1, 2, 15, 16, 17, 33, 150}) {
      for (int64_t k : {1, 2, 3, 4, 5, 15, 16, 17, 31, 64, 65, 80, 127, 128, 129, 200, 257}) {
        Matrix m(f, n, k, static_cast<uint64_t>(n * 1000 + k));
        pack_rows16(m.row_major(), m.rows16(), 0, m.groups);
        for (int64_t row = 0; row < n; ++row) {
          ASSERT_TRUE(same_bits(m.rows16_row(row), m.row_major_row(row)))
              << format_name(f) << " " << n << "x" << k << " row " << row;
        }
        for (size_t i = m.tiles.size() - 64; i < m.tiles.size(); ++i) {
          ASSERT_EQ(m.tiles[i], Matrix::kCanary) << "written past the end";
        }
      }
    }
  }
}

TEST(TileLayout, MissingRowsAndColumnsAreZero) {
  for (Format f : kTiled) {
    Matrix m(f, 19, 21, 5);
    pack_rows16(m.row_major(), m.rows16(), 0, m.groups);
    const Rows16Matrix stored = m.rows16();
    // The storage as a whole matrix: 32 rows, columns up to the end of the last tile.
    const int64_t k_all = f == Format::kNvfp4 ? 64 : f == Format::kBf16 ? 22 : 24;
    for (int64_t row = 0; row < 32; ++row) {
      std::vector<float> all(static_cast<size_t>(k_all));
      decode_rows16_row({f, 32, k_all, stored.tiles, stored.scales, stored.global}, row, all);
      const std::vector<float> known = row < 19 ? m.row_major_row(row) : std::vector<float>(21);
      for (size_t k = 0; k < all.size(); ++k) {
        const float expected = k < 21 ? known[k] : 0.0f;
        ASSERT_TRUE(all[k] == expected || (std::isnan(all[k]) && std::isnan(expected)))
            << format_name(f) << " row " << row << " k " << k;
      }
    }
  }
}

TEST(TileLayout, RangesOfGroupsTouchNothingElse) {
  for (Format f : kTiled) {
    Matrix whole(f, 70, 144, 9);
    Matrix parts = whole;
    pack_rows16(whole.row_major(), whole.rows16(), 0, whole.groups);
    const std::vector<uint8_t> before = parts.tiles;
    const auto group = static_cast<size_t>(rows16_group_bytes(f, 144));
    pack_rows16(parts.row_major(), parts.rows16(), 2, 3);
    for (size_t i = 0; i < parts.tiles.size(); ++i) {
      const bool inside = i >= 2 * group && i < 3 * group;
      ASSERT_EQ(parts.tiles[i], inside ? whole.tiles[i] : before[i]) << i;
    }
    pack_rows16(parts.row_major(), parts.rows16(), 0, 2);
    pack_rows16(parts.row_major(), parts.rows16(), 3, parts.groups);
    EXPECT_EQ(parts.tiles, whole.tiles);
    EXPECT_EQ(parts.tile_scales, whole.tile_scales);
  }
}

// The places of single values, straight from the diagrams.

TEST(TileLayout, Bf16PairsLieInLanes) {
  Matrix m(Format::kBf16, 32, 8, 1);
  for (size_t i = 0; i < m.values.size() / 2; ++i) {
    m.values[2 * i] = static_cast<uint8_t>(i);
    m.values[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  pack_rows16(m.row_major(), m.rows16(), 0, 2);
  // Group 1, pair 2 (k = 4, 5), lane 3: row 19.
  const size_t at = 4 * 64 + 2 * 64 + 3 * 4;
  EXPECT_EQ(m.tiles[at], (19 * 8 + 4) & 0xFF);
  EXPECT_EQ(m.tiles[at + 2], (19 * 8 + 5) & 0xFF);
}

TEST(TileLayout, Fp8QuadsLieInHalvesOfParts) {
  Matrix m(Format::kFp8Block, 16, 8, 1);
  for (size_t i = 0; i < m.values.size(); ++i)
    m.values[i] = static_cast<uint8_t>(i);
  pack_rows16(m.row_major(), m.rows16(), 0, 1);
  // Quad 1 (k = 4..7), row 6: part L = 1, j = 2.
  const size_t at = 64 + 16 + 2 * 2;
  EXPECT_EQ(m.tiles[at], 6 * 8 + 4);
  EXPECT_EQ(m.tiles[at + 1], 6 * 8 + 5);
  EXPECT_EQ(m.tiles[at + 8], 6 * 8 + 6);
  EXPECT_EQ(m.tiles[at + 9], 6 * 8 + 7);
}

TEST(TileLayout, Nvfp4NibblesAndScalesLieAsDrawn) {
  Matrix m(Format::kNvfp4, 16, 128, 1);
  m.values.assign(m.values.size(), 0);
  // Row 5, k = 64 + 16 + 8 + 2*3 + 1 = 95: super-tile 1, tile 1, vector 1, nibble 3, p = 1.
  m.values[5 * 64 + 95 / 2] = 0xB0;
  m.scales.assign(m.scales.size(), 0);
  m.scales[5 * 8 + 5] = 0x3A;  // block 5 = k 80..95
  pack_rows16(m.row_major(), m.rows16(), 0, 1);
  const size_t at = 576 + 128 + 64 + (2 * 5 + 1) * 2 + 1;  // upper byte of 16-bit lane 11
  EXPECT_EQ(m.tiles[at], 0xB0);
  EXPECT_EQ(m.tiles[576 + 512 + 16 + 5], 0x3A);
  for (size_t i = 0; i < 1152; ++i) {
    if (i != at && i != 576 + 512 + 16 + 5) {
      ASSERT_EQ(m.tiles[i], 0) << i;
    }
  }
}

TEST(TileLayout, Mxfp8QuadsAndScalesLieAsDrawn) {
  Matrix m(Format::kMxfp8, 16, 256, 1);
  m.values.assign(m.values.size(), 0);
  m.scales.assign(m.scales.size(), 0);
  // Row 6, k = 128 + 2*32 + 5: super-tile 1, block 2, quad 1, second of its first pair.
  m.values[6 * 256 + 197] = 0x3A;
  m.scales[6 * 8 + 6] = 130;
  pack_rows16(m.row_major(), m.rows16(), 0, 1);
  const size_t at = 2112 + 2 * 512 + 64 + 16 + 2 * 2 + 1;
  const size_t scale_at = 2112 + 2048 + 2 * 16 + 6;
  EXPECT_EQ(m.tiles[at], 0x3A);
  EXPECT_EQ(m.tiles[scale_at], 130);
  for (size_t i = 0; i < 4224; ++i) {
    if (i != at && i != scale_at) {
      ASSERT_EQ(m.tiles[i], 0) << i;
    }
  }
}

// ---- mxfp4

/// 32 rows of 64 codes of 1, all scales with the same byte.
Matrix powers_of_two(uint8_t byte) {
  Matrix m(Format::kMxfp4, 32, 64, 1);
  std::fill(m.values.begin(), m.values.end(), 0x22);
  std::fill(m.scales.begin(), m.scales.end(), byte);
  return m;
}

TEST(TileLayoutMxfp4, EveryScaleByteButNanIsExact) {
  for (int byte = 0; byte < 255; ++byte) {
    Matrix m = powers_of_two(static_cast<uint8_t>(byte));
    ASSERT_TRUE(check_mxfp4_tiles(m.row_major(), 0).ok()) << byte;

    pack_rows16(m.row_major(), m.rows16(), 0, m.groups);

    EXPECT_EQ(m.rows16_row(17), std::vector<float>(64, std::ldexp(1.0f, byte - 127))) << byte;
  }
}

TEST(TileLayoutMxfp4, SeventeenPowersLieInOneGroupAndEighteenAreRefused) {
  Matrix m = powers_of_two(120);
  m.scales[2 * 20 + 1] = 137;
  EXPECT_TRUE(check_mxfp4_tiles(m.row_major(), 0).ok());
  pack_rows16(m.row_major(), m.rows16(), 0, m.groups);
  EXPECT_EQ(m.rows16_row(20)[63], 0x1p10f);
  EXPECT_EQ(m.rows16_row(20)[0], 0x1p-7f);

  m.scales[2 * 20 + 1] = 138;
  const Status status = check_mxfp4_tiles(m.row_major(), 160);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("rows 176 to 191 are 2^-7 to 2^11, but tiles hold exponents up "
                                  "to 17 apart"),
            std::string::npos)
      << status.message();
}

TEST(TileLayoutMxfp4, GroupsMayBeFurtherApart) {
  Matrix m = powers_of_two(1);
  for (size_t i = 32; i < 64; ++i)
    m.scales[i] = 254;
  ASSERT_TRUE(check_mxfp4_tiles(m.row_major(), 0).ok());

  pack_rows16(m.row_major(), m.rows16(), 0, m.groups);

  EXPECT_EQ(m.rows16_row(0)[0], 0x1p-126f);
  EXPECT_EQ(m.rows16_row(31)[0], 0x1p127f);
}

TEST(TileLayoutMxfp4, ScalesOfZerosDoNotCount) {
  Matrix m = powers_of_two(250);
  std::fill(m.values.begin(), m.values.begin() + 16, uint8_t{0x80});  // 0 and -0
  m.scales[0] = 0;
  ASSERT_TRUE(check_mxfp4_tiles(m.row_major(), 0).ok());

  pack_rows16(m.row_major(), m.rows16(), 0, m.groups);

  EXPECT_TRUE(same_bits(m.rows16_row(0), m.row_major_row(0)));
}

TEST(TileLayoutMxfp4, RefusesTheScaleThatIsNan) {
  Matrix m = powers_of_two(120);
  m.scales[2 * 5 + 1] = 255;

  const Status status = check_mxfp4_tiles(m.row_major(), 32);

  EXPECT_NE(status.message().find("the scale of row 37, block 1 is NaN (byte 255)"),
            std::string::npos)
      << status.message();
}

TEST(TileLayout, EveryCodeDecodesToItsValue) {
  Matrix fp8(Format::kFp8Block, 1, 256, 1);
  for (size_t i = 0; i < 256; ++i)
    fp8.values[i] = static_cast<uint8_t>(i);
  const float scales[2] = {1.0f, 0.5f};
  std::memcpy(fp8.scales.data(), scales, sizeof scales);
  const std::vector<float> row = fp8.row_major_row(0);
  for (size_t i = 0; i < 256; ++i) {
    const float expected = to_float(E4m3{static_cast<uint8_t>(i)}) * scales[i / 128];
    ASSERT_TRUE(row[i] == expected || (std::isnan(row[i]) && std::isnan(expected))) << i;
  }

  Matrix fp4(Format::kNvfp4, 1, 16, 1);
  for (size_t i = 0; i < 8; ++i)
    fp4.values[i] = static_cast<uint8_t>(2 * i | (2 * i + 1) << 4);
  fp4.scales[0] = 0x40;  // 2
  fp4.global = 0.25f;
  const std::vector<float> codes = fp4.row_major_row(0);
  const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(codes[i], (i < 8 ? 0.5f : -0.5f) * magnitudes[i % 8]) << i;
  }
}

TEST(TileLayout, DenseAndScaledFormatsDecodeRowMajor) {
  const float values[4] = {1.5f, -2.0f, 0.0f, 1e-40f};
  std::vector<float> out(2);
  decode_row_major_row({.format = Format::kF32, .n = 2, .k = 2, .values = values}, 1, out);
  EXPECT_EQ(out, (std::vector<float>{0.0f, 1e-40f}));

  const uint8_t bytes[6] = {0x38, 0xB8, 0x40, 0x30, 0x01, 0x81};  // 1 -1 2 .5 2^-9 -2^-9
  const float per_row[2] = {3.0f, 512.0f};
  std::vector<float> three(3);
  decode_row_major_row(
      {.format = Format::kFp8Channel, .n = 2, .k = 3, .values = bytes, .scales = per_row}, 1,
      three);
  EXPECT_EQ(three, (std::vector<float>{256.0f, 1.0f, -1.0f}));

  const int8_t ints[3] = {-128, 0, 127};
  const float one[1] = {0.5f};
  decode_row_major_row(
      {.format = Format::kInt8Channel, .n = 1, .k = 3, .values = ints, .scales = one}, 0, three);
  EXPECT_EQ(three, (std::vector<float>{-64.0f, 0.0f, 63.5f}));
}

TEST(TileLayoutDeathTest, RefusesFormatsItDoesNotKnow) {
  EXPECT_DEATH(rows16_group_bytes(Format::kF32, 16), "f32 has no rows16 layout");
  std::vector<float> out(2);
  const uint8_t bytes[2] = {};
  EXPECT_DEATH(
      decode_row_major_row({.format = Format::kW4Fp8, .n = 1, .k = 2, .values = bytes}, 0, out),
      "w4_fp8");
}

}  // namespace
}  // namespace fathom
