#include "fathom/kernels/attn/cache_row.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"

namespace fathom {
namespace {

constexpr uint8_t kUntouched = 0xAA;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// A field at `offset` bytes of a page that is the only one, rows `row_bytes` apart.
View field_at(std::vector<uint8_t>& page,
              int64_t offset,
              int64_t row_bytes,
              int64_t rows,
              int64_t width,
              Format format) {
  View v = make_view(page.data() + offset, {1, rows, width}, format);
  v.strides[0] = static_cast<int64_t>(page.size()) / element_bytes(format);
  v.strides[1] = row_bytes / element_bytes(format);
  return v;
}

using StoreRow = void (*)(const CodedRows&, int64_t, const float*);
using LoadRow = void (*)(const CodedRows&, int64_t, float*);

struct Form {
  const char* name;
  StoreRow store;
  LoadRow load;
};

/// The forms that this machine runs.
std::vector<Form> forms() {
  std::vector<Form> all = {{"portable", store_cache_row, load_cache_row}};
  if (best_isa() >= Isa::kAvx512)
    all.push_back({"avx512", avx512::store_cache_row, avx512::load_cache_row});
  return all;
}

/// Two rows of DeepSeek-V4: 448 codes, 64 bf16 in one plane, scales in another, padded to 1728.
struct V4Page {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(1728, kUntouched);
  CacheFields fields{.values = field_at(bytes, 0, 576, 2, 448, Format::kE4m3),
                     .rope = field_at(bytes, 448, 576, 2, 64, Format::kBf16),
                     .scales = field_at(bytes, 1152, 8, 2, 7, Format::kUe8m0)};
};

TEST(CacheRow, OfV4HasTheBytesWorkedOutByHand) {
  std::vector<float> x(512, 0.0f);
  x[0] = 1.0f;  // group 0: amax 1, scale 2^-8
  x[1] = 0.5f;
  x[2] = -1.0f;
  x[64] = 448.0f;   // group 1: scale 1
  x[65] = 17.0f;    // between 16 and 18, to the even one
  x[66] = 19.0f;    // between 18 and 20
  x[128] = 7.0f;    // group 2: scale 2^-6; group 3 is zeros: amax 1e-4, scale 2^-22
  x[256] = 3.0f;    // group 4: scale 2^-7
  x[320] = 1.751f;  // group 5: 1.75 in bf16, so scale 2^-8, where 1.751 itself would have 2^-7
  x[384] = 2.0f;    // group 6: scale 2^-7
  x[385] = NAN;
  x[448] = 1.0f;
  x[511] = -2.0f;
  for (const Form& form : forms()) {
    V4Page page;

    form.store(cache_rows(page.fields), 1, x.data());

    std::vector<uint8_t> expected(1728, kUntouched);
    uint8_t* row = expected.data() + 576;
    std::memset(row, 0, 576);
    row[0] = 0x78;
    row[1] = 0x70;
    row[2] = 0xF8;
    row[64] = 0x7E;
    row[65] = 0x58;
    row[66] = 0x5A;
    row[128] = 0x7E;
    row[256] = 0x7C;
    row[320] = 0x7E;
    row[384] = 0x78;
    row[385] = 0x7F;
    row[448] = 0x80;
    row[449] = 0x3F;
    row[574] = 0x00;
    row[575] = 0xC0;
    const uint8_t scales[7] = {119, 127, 121, 105, 120, 119, 120};
    std::memcpy(expected.data() + 1160, scales, 7);
    EXPECT_EQ(page.bytes, expected) << form.name;
  }
}

/// Two rows in NVFP4: 224 bytes of codes and 64 bf16, then 32 bytes of scales a row.
struct Nvfp4Page {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(768, kUntouched);
  CacheFields fields{.values = field_at(bytes, 0, 352, 2, 224, Format::kU8),
                     .rope = field_at(bytes, 224, 352, 2, 64, Format::kBf16),
                     .scales = field_at(bytes, 704, 32, 2, 28, Format::kE4m3)};
};

TEST(CacheRow, OfNvfp4HasTheBytesWorkedOutByHand) {
  std::vector<float> x(512, 0.0f);
  const float first[6] = {6, -0.5f, 0.25f, 0.75f, 5, 2.5f};  // scale 1
  std::copy(first, first + 6, x.begin());
  x[16] = 2688.0f;  // scale 448
  x[32] = 3.0f;     // scale 0.5
  x[33] = 1.0f;
  x[449] = 1.0f;
  for (const Form& form : forms()) {
    Nvfp4Page page;

    form.store(cache_rows(page.fields), 1, x.data());

    std::vector<uint8_t> expected(768, kUntouched);
    uint8_t* row = expected.data() + 352;
    std::memset(row, 0, 352);
    row[0] = 0x97;  // 6, -0.5: the even channel in the low nibble
    row[1] = 0x20;  // 0.25 to 0, 0.75 to 1
    row[2] = 0x46;  // 5 to 4, 2.5 to 2
    row[8] = 0x07;
    row[16] = 0x47;
    row[226] = 0x80;
    row[227] = 0x3F;
    uint8_t* scales = expected.data() + 736;
    std::memset(scales, 0, 28);
    scales[0] = 0x38;
    scales[1] = 0x7E;
    scales[2] = 0x30;
    EXPECT_EQ(page.bytes, expected) << form.name;
  }
}

/// Two rows of DeepSeek-V3.2, 656 bytes each.
struct V32Page {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(1312, kUntouched);
  CacheFields fields{.values = field_at(bytes, 0, 656, 2, 512, Format::kE4m3),
                     .rope = field_at(bytes, 528, 656, 2, 64, Format::kBf16),
                     .scales = field_at(bytes, 512, 656, 2, 4, Format::kF32)};
};

TEST(CacheRow, OfV32HasTheBytesWorkedOutByHand) {
  std::vector<float> x(576, 0.0f);
  x[0] = 448.0f;  // scale 1
  x[128] = 7.0f;  // scale 2^-6
  x[129] = -3.5f;
  x[256] = 896.0f;  // scale 2; the last tile is zeros: scale 2^-126
  x[512] = 1.0f;
  for (const Form& form : forms()) {
    V32Page page;

    form.store(cache_rows(page.fields, CacheScale::kAmax), 1, x.data());

    std::vector<uint8_t> expected(1312, kUntouched);
    uint8_t* row = expected.data() + 656;
    std::memset(row, 0, 656);
    row[0] = 0x7E;
    row[128] = 0x7E;
    row[129] = 0xF6;  // -224
    row[256] = 0x7E;
    const uint8_t scales[16] = {0, 0, 0x80, 0x3F, 0, 0, 0x80, 0x3C, 0, 0, 0, 0x40, 0, 0, 0x80, 0};
    std::memcpy(row + 512, scales, 16);
    row[528] = 0x80;
    row[529] = 0x3F;
    EXPECT_EQ(page.bytes, expected) << form.name;
  }
}

TEST(CacheRow, OfV32IsTheRowOfTheFormat) {
  Rng rng(11);
  std::vector<float> x(576);
  for (float& v : x)
    v = to_float(bf16_from_float(20.0f * rng.next_normal()));
  std::vector<Bf16> rope;
  for (int64_t i = 512; i < 576; ++i)
    rope.push_back(bf16_from_float(x[static_cast<size_t>(i)]));
  std::vector<uint8_t> expected(656);
  ds_mla_pack_row(x.data(), rope.data(), DsMlaScale::kAmax, expected.data());
  for (const Form& form : forms()) {
    V32Page page;

    form.store(cache_rows(page.fields, CacheScale::kAmax), 0, x.data());

    EXPECT_EQ(std::vector<uint8_t>(page.bytes.begin(), page.bytes.begin() + 656), expected)
        << form.name;
  }
}

/// Two index keys of 128 channels: values, then scales.
struct KeyPage {
  std::vector<uint8_t> bytes;
  CacheFields fields;

  explicit KeyPage(bool fp4) : bytes(fp4 ? 136 : 264, kUntouched) {
    if (fp4) {
      fields = {.values = field_at(bytes, 0, 64, 2, 64, Format::kU8),
                .scales = field_at(bytes, 128, 4, 2, 4, Format::kUe8m0)};
    } else {
      fields = {.values = field_at(bytes, 0, 128, 2, 128, Format::kE4m3),
                .scales = field_at(bytes, 256, 4, 2, 1, Format::kF32)};
    }
  }
};

TEST(CacheRow, OfAnIndexKeyInMxfp4HasTheBytesWorkedOutByHand) {
  std::vector<float> x(128, 0.0f);
  for (size_t i = 0; i < 32; ++i)
    x[i] = i % 2 == 0 ? 0.70710678f : -0.70710678f;  // scale 2^-3, so +-6
  x[32] = 6.0f;                                      // scale 1
  x[64] = 5.0f;                                      // scale 1, a tie to 4
  for (const Form& form : forms()) {
    KeyPage page(true);

    form.store(cache_rows(page.fields), 1, x.data());

    std::vector<uint8_t> expected(136, kUntouched);
    std::memset(expected.data() + 64, 0, 64);
    std::memset(expected.data() + 64, 0xF7, 16);
    expected[64 + 16] = 0x07;
    expected[64 + 32] = 0x06;
    const uint8_t scales[4] = {124, 127, 127, 1};  // zeros have the smallest: 2^-126
    std::memcpy(expected.data() + 132, scales, 4);
    EXPECT_EQ(page.bytes, expected) << form.name;
  }
}

TEST(CacheRow, OfAnIndexKeyInFp8HasOnePowerOfTwo) {
  std::vector<float> x(128, 0.0f);
  x[3] = 5.0f;  // 5 / 448 is above 2^-7: scale 2^-6
  x[9] = -0.5f;
  for (const Form& form : forms()) {
    KeyPage page(false);

    form.store(cache_rows(page.fields), 1, x.data());

    std::vector<uint8_t> expected(264, kUntouched);
    std::memset(expected.data() + 128, 0, 128);
    expected[128 + 3] = 0x7A;  // 320
    expected[128 + 9] = 0xE0;  // -32
    const uint8_t scale[4] = {0, 0, 0x80, 0x3C};
    std::memcpy(expected.data() + 260, scale, 4);
    EXPECT_EQ(page.bytes, expected) << form.name;
  }
}

TEST(CacheRow, ReadsWhatTheCodesSay) {
  for (const Form& form : forms()) {
    V4Page page;
    std::memset(page.bytes.data(), 0, page.bytes.size());
    page.bytes[0] = 0x78;    // 256
    page.bytes[70] = 0x81;   // -2^-9
    page.bytes[447] = 0xFE;  // -448
    page.bytes[449] = 0x40;  // 2
    page.bytes[1152] = 119;  // 2^-8
    page.bytes[1153] = 136;  // 2^9
    page.bytes[1158] = 127;
    std::vector<float> x(512, NAN);

    form.load(cache_rows(page.fields), 0, x.data());

    EXPECT_EQ(x[0], 1.0f) << form.name;
    EXPECT_EQ(x[70], -1.0f) << form.name;
    EXPECT_EQ(x[447], -448.0f) << form.name;
    EXPECT_EQ(x[448], 2.0f) << form.name;
    EXPECT_EQ(x[511], 0.0f) << form.name;
  }
}

/// Pages of every kind of row, and the channels of a row.
struct AnyPage {
  const char* name;
  std::vector<uint8_t>* bytes;
  CodedRows rows;
  int64_t channels;
};

TEST(CacheRow, EveryFormHasTheBitsOfThePortableOne) {
  V4Page v4;
  Nvfp4Page nvfp4;
  V32Page v32;
  KeyPage fp4_key(true);
  KeyPage fp8_key(false);
  std::vector<uint8_t> bf16(2 * 2 * 77);
  std::vector<uint8_t> f32(4 * 2 * 77);
  const AnyPage pages[] = {
      {"v4", &v4.bytes, cache_rows(v4.fields), 512},
      {"nvfp4", &nvfp4.bytes, cache_rows(nvfp4.fields), 512},
      {"v3.2", &v32.bytes, cache_rows(v32.fields, CacheScale::kAmax), 576},
      {"v3.2 power of two", &v32.bytes, cache_rows(v32.fields), 576},
      {"fp4 key", &fp4_key.bytes, cache_rows(fp4_key.fields), 128},
      {"fp8 key", &fp8_key.bytes, cache_rows(fp8_key.fields), 128},
      {"bf16", &bf16, cache_rows({.values = field_at(bf16, 0, 154, 2, 77, Format::kBf16)}), 77},
      {"f32", &f32, cache_rows({.values = field_at(f32, 0, 308, 2, 77, Format::kF32)}), 77}};
  Rng rng(5);
  for (const AnyPage& page : pages) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(static_cast<size_t>(page.channels));
      for (float& v : x)
        v = rng.next_normal() * std::ldexp(1.0f, static_cast<int>(rng.next_below(24)) - 12);
      if (round % 4 == 1) x[rng.next_below(70)] = NAN;
      if (round % 4 == 2) x[rng.next_below(70)] = -kInf;
      if (round % 4 == 3) x.assign(x.size(), 0x1p-130f);
      std::vector<uint8_t> expected;
      std::vector<float> expected_values;
      for (const Form& form : forms()) {
        std::memset(page.bytes->data(), kUntouched, page.bytes->size());
        std::vector<float> values(x.size(), -7.0f);

        form.store(page.rows, 1, x.data());
        form.load(page.rows, 1, values.data());

        if (expected.empty()) {
          expected = *page.bytes;
          expected_values = values;
        }
        EXPECT_EQ(*page.bytes, expected) << page.name << " " << form.name << " round " << round;
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_TRUE(values[i] == expected_values[i] ||
                      (std::isnan(values[i]) && std::isnan(expected_values[i])))
              << page.name << " " << form.name << " round " << round << " channel " << i;
        }
      }
    }
  }
}

TEST(CacheRow, EveryCodeIsReadAlike) {
  for (const Form& form : forms()) {
    std::vector<uint8_t> bytes(16 + 256 + 4);
    for (int i = 0; i < 256; ++i)
      bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
    bytes[259] = 0x40;  // 2.0
    const CacheFields fields{.values = field_at(bytes, 0, 256, 1, 256, Format::kE4m3),
                             .scales = field_at(bytes, 256, 4, 1, 1, Format::kF32)};
    std::vector<float> x(256);

    form.load(cache_rows(fields), 0, x.data());

    for (int i = 0; i < 256; ++i) {
      const float expected = 2.0f * to_float(E4m3{static_cast<uint8_t>(i)});
      const float found = x[static_cast<size_t>(i)];
      EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << i;
    }
  }
}

TEST(CacheRow, TakesTheWidthsOfOtherModels) {
  std::vector<uint8_t> bytes(4096);
  const View values = field_at(bytes, 0, 512, 2, 512, Format::kE4m3);
  const View scales = field_at(bytes, 1024, 16, 2, 16, Format::kUe8m0);

  EXPECT_TRUE(
      check_cache_row({.values = values, .scales = scales}, 512, CacheScale::kPowerOfTwo).ok());
  EXPECT_EQ(cache_rows({.values = values, .scales = scales}).group, 32);
}

TEST(CacheRow, NamesWhatIsWrongWithFields) {
  std::vector<uint8_t> bytes(4096);
  const auto field = [&](int64_t width, Format format) {
    return field_at(bytes, 0, 1024, 2, width, format);
  };
  const auto why = [](const CacheFields& f, int64_t channels,
                      CacheScale scale = CacheScale::kPowerOfTwo) {
    return check_cache_row(f, channels, scale).message();
  };
  const View bf16 = field(64, Format::kBf16);

  EXPECT_EQ(why({.values = bf16}, 64), "");
  EXPECT_EQ(why({.values = bf16}, 65), "the fields of a row have 64 channels, expected 65");
  EXPECT_EQ(why({.values = bf16, .rope = bf16}, 128),
            "values is bf16, which takes neither rope nor scales");
  EXPECT_EQ(why({.values = field(448, Format::kE4m3), .rope = bf16}, 512),
            "values is e4m3 but scales is left out");
  EXPECT_EQ(
      why({.values = field(448, Format::kE4m3), .rope = bf16, .scales = field(6, Format::kUe8m0)},
          512),
      "scales has 6, which does not divide the 448 channels of values");
  EXPECT_EQ(why({.values = field(448, Format::kE4m3), .scales = field(7, Format::kE4m3)}, 448),
            "scales is e4m3 but values is e4m3, expected ue8m0 or f32");
  EXPECT_EQ(why({.values = field(224, Format::kU8), .scales = field(7, Format::kE4m3)}, 448),
            "scales has 7 of e4m3 but 448 channels in e2m1 need one per 16");
  EXPECT_EQ(why({.values = field(448, Format::kE4m3), .scales = field(7, Format::kUe8m0)}, 448,
                CacheScale::kAmax),
            "scales is ue8m0 but only f32 holds amax / 448");
}

TEST(CacheRow, CountsTheBytesOfItsFields) {
  EXPECT_EQ(cache_row_bytes(V4Page().fields), 583);
  EXPECT_EQ(cache_row_bytes(V32Page().fields), 656);
  EXPECT_EQ(cache_row_bytes(KeyPage(true).fields), 68);
}

}  // namespace
}  // namespace fathom
