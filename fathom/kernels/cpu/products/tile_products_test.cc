// Tile products bit for bit: the loops on a unit in plain C++, and the kernels where the processor
// has the real one, against a loop that follows the order of sums as tile_loops.h states it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/cpu/products/product_operands_test.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/cpu/products/tile_loops.h"
#include "fathom/kernels/cpu/products/tile_weights.h"
#include "fathom/kernels/kernels.h"

namespace fathom {
namespace {

float flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

/// TDPBF16PS for one output: `step` of tile_loops.h, added to c.
template <class X, class W>
float add_step(X&& x, W&& w, float c) {
  float even = 0.0f, odd = 0.0f;
  for (int64_t i = 0; i < 16; ++i) {
    even = flush(std::fma(flush(x(2 * i)), flush(w(2 * i)), even));
    odd = flush(std::fma(flush(x(2 * i + 1)), flush(w(2 * i + 1)), odd));
  }
  return flush(flush(c) + flush(even + odd));
}

// ---- A unit in plain C++ ----

struct ScalarVector {
  using F32 = float;
  static constexpr int kWidth = 1;

  static F32 splat(float value) { return value; }

  static F32 mul(F32 a, F32 b) { return a * b; }

  static F32 fma(F32 a, F32 b, F32 c) { return std::fma(a, b, c); }

  static F32 load(const float* p) { return *p; }

  static void store_first(float* p, F32 a, int64_t) { *p = a; }

  static void store_first(Bf16* p, F32 a, int64_t) { *p = bf16_from_float(a); }

  static void store_first(F16* p, F32 a, int64_t) { *p = f16_from_float(a); }
};

struct PlainTiles {
  using V = ScalarVector;

  struct Tile {
    uint8_t bytes[16][64];
  };

  static inline thread_local Tile tiles[8];
  static inline thread_local int64_t rows;

  static void configure(int64_t x_rows) {
    rows = x_rows;
    std::memset(tiles, 0, sizeof tiles);
  }

  static void release() { rows = 0; }

  template <int T>
  static int64_t rows_of() {
    return T < 6 ? rows : 16;
  }

  template <int T>
  static void zero() {
    std::memset(&tiles[T], 0, sizeof(Tile));
  }

  template <int T>
  static void load(const void* from, int64_t stride) {
    zero<T>();
    for (int64_t r = 0; r < rows_of<T>(); ++r) {
      std::memcpy(tiles[T].bytes[r], static_cast<const uint8_t*>(from) + r * stride, 64);
    }
  }

  template <int T>
  static void store(void* to, int64_t stride) {
    for (int64_t r = 0; r < rows_of<T>(); ++r) {
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles[T].bytes[r], 64);
    }
  }

  static float bf16_at(const uint8_t* row, int64_t i) {
    Bf16 value;
    std::memcpy(&value, row + 2 * i, sizeof value);
    return to_float(value);
  }

  template <int C, int A, int B>
  static void dot() {
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < 16; ++n) {
        float c;
        std::memcpy(&c, tiles[C].bytes[m] + 4 * n, sizeof c);
        c = add_step([&](int64_t k) { return bf16_at(tiles[A].bytes[m], k); },
                     [&](int64_t k) { return bf16_at(tiles[B].bytes[k / 2], 2 * n + k % 2); }, c);
        std::memcpy(tiles[C].bytes[m] + 4 * n, &c, sizeof c);
      }
    }
  }

  static void add_scaled(const float* s, float scale, bool first, int64_t count, float* sums) {
    for (int64_t i = 0; i < count * 16; ++i)
      sums[i] = std::fma(s[i], scale, first ? 0.0f : sums[i]);
  }
};

// ---- The sums as stated ----

/// A row of a kRows16 weight without its scales of 128 k and its global scale, and those scales.
struct StatedRow {
  std::vector<float> values;
  std::vector<float> scales;  // one of 1 where the format has none
  float global = 1.0f;

  StatedRow(const QuantView& w, int64_t row) : values(static_cast<size_t>(w.cols())) {
    const Format format = w.format();
    const int64_t groups = ceil_div(w.rows(), kTileRows);
    std::vector<float> ones(static_cast<size_t>(groups * ceil_div<int64_t>(w.cols(), 128) + 1),
                            1.0f);
    decode_rows16_row({.format = format,
                       .n = w.rows(),
                       .k = w.cols(),
                       .tiles = const_cast<uint8_t*>(w.values.as<const uint8_t>()),
                       .scales = ones.data(),
                       .global = ones.data()},
                      row, values);
    if (format == Format::kNvfp4) global = w.global.as<const float>()[row / 16];
    const int64_t count = rows16_group_scales(format, w.cols());
    for (int64_t b = 0; b < count; ++b) {
      scales.push_back(w.scales.as<const float>()[row / 16 * count + b]);
    }
  }
};

float stated_sum(const Bf16* x, const StatedRow& w) {
  const auto k = static_cast<int64_t>(w.values.size());
  const auto step = [&](int64_t k0, float c) {
    return add_step(
        [&](int64_t i) { return k0 + i < k ? to_float(x[k0 + i]) : 0.0f; },
        [&](int64_t i) { return k0 + i < k ? w.values[static_cast<size_t>(k0 + i)] : 0.0f; }, c);
  };
  float acc = 0.0f;
  if (w.scales.empty()) {
    for (int64_t k0 = 0; k0 < k; k0 += 32)
      acc = step(k0, acc);
    return acc * w.global;
  }
  for (int64_t b = 0; b < ceil_div<int64_t>(k, 128); ++b) {
    float s = 0.0f;
    for (int64_t k0 = b * 128; k0 < std::min(k, b * 128 + 128); k0 += 32)
      s = step(k0, s);
    acc = std::fma(s, w.scales[static_cast<size_t>(b)], acc);
  }
  return acc;
}

/// y[t, n] of a plain product.
std::vector<float> stated_product(const std::vector<Bf16>& x, int64_t rows, const QuantView& w) {
  std::vector<float> y(static_cast<size_t>(rows * w.rows()));
  for (int64_t n = 0; n < w.rows(); ++n) {
    const StatedRow row(w, n);
    for (int64_t t = 0; t < rows; ++t)
      y[static_cast<size_t>(t * w.rows() + n)] = stated_sum(x.data() + t * w.cols(), row);
  }
  return y;
}

// ---- Runs ----

ProductLoop plain_loop(Format format) {
  switch (format) {
    case Format::kBf16:
      return TileLoops<PlainTiles, Bf16TileWeights>::run;
    case Format::kNvfp4:
      return TileLoops<PlainTiles, Nvfp4TileWeights>::run;
    case Format::kMxfp8:
      return TileLoops<PlainTiles, Mxfp8TileWeights>::run;
    default:
      return TileLoops<PlainTiles, Fp8TileWeights>::run;
  }
}

ProductLoop amx_loop(Format format) {
  switch (format) {
    case Format::kBf16:
      return bf16_products_amx;
    case Format::kNvfp4:
      return nvfp4_products_amx;
    case Format::kMxfp8:
      return mxfp8_products_amx;
    default:
      return fp8_products_amx;
  }
}

void run_loop(const Products& p, ProductLoop loop) {
  TestExec exec(2);
  const int64_t bytes = 2 * product_scratch_bytes(p.rows, p.k);
  const Buffer scratch = Buffer::allocate(DeviceKind::kCpu, bytes, "tiles").value();
  (*exec).workspace = scratch.data();
  std::memset(scratch.data(), 0xFF, static_cast<size_t>(bytes));  // NaN
  FATHOM_EXPECT_OK(run_products(*exec, p, loop));
}

std::vector<float> multiply(const std::vector<Bf16>& x,
                            int64_t rows,
                            const QuantView& w,
                            ProductLoop loop) {
  std::vector<float> y(static_cast<size_t>(rows * w.rows()),
                       std::numeric_limits<float>::quiet_NaN());
  const View xv = make_view(const_cast<Bf16*>(x.data()), {rows, w.cols()}, Format::kBf16);
  run_loop(make_products(xv, w, make_view(y.data(), {rows, w.rows()}, Format::kF32)), loop);
  return y;
}

void expect_same_bits(const std::vector<float>& found,
                      const std::vector<float>& expected,
                      const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(float_bits(found[i]), float_bits(expected[i]))
        << what << " element " << i << ": " << found[i] << " " << expected[i];
  }
}

struct Shape {
  int64_t t, n, k;
};

// One row tile and more, odd numbers of them, rows left over; one group to more than a block of
// them; columns that end in a tile, in a block of scales and in a chunk.
constexpr Shape kShapes[] = {
    {1, 16, 32},   {1, 70, 288},  {2, 33, 272},  {3, 17, 16},   {5, 48, 640}, {15, 80, 256},
    {16, 64, 544}, {17, 40, 304}, {31, 16, 128}, {32, 33, 80},  {33, 48, 96}, {48, 90, 256},
    {70, 50, 336}, {9, 530, 272}, {40, 550, 48}, {530, 36, 48},
};

// Few rows, whole steps: those that go to vectors instead.
constexpr Shape kFewRowShapes[] = {
    {1, 16, 64},  {1, 70, 128},  {1, 100, 448}, {2, 33, 64},   {2, 70, 320},
    {3, 50, 192}, {3, 16, 1088}, {4, 33, 640},  {1, 130, 768},
};

void expect_stated(Format f, const Shape& s, ProductLoop loop) {
  Stored w({.rows = s.n, .cols = s.k, .format = f}, 1);
  const std::vector<Bf16> x = random_x(s.t, s.k, 2);
  const std::vector<float> y = multiply(x, s.t, w.view(), loop);
  expect_same_bits(y, stated_product(x, s.t, w.view()),
                   str_cat(format_name(f), " ", s.t, "x", s.n, "x", s.k));
}

void expect_stated_sums(ProductLoop (*loop_of)(Format)) {
  for (Format f : kFormats) {
    for (const Shape& s : kShapes)
      expect_stated(f, s, loop_of(f));
  }
  for (Format f : kFormats) {
    for (const Shape& s : kFewRowShapes)
      expect_stated(f, s, loop_of(f));
  }
  // Lengths of k that fill no pair or no quad.
  for (Format f : {Format::kBf16, Format::kFp8Block, Format::kMxfp8}) {
    for (const Shape& s : {Shape{1, 17, 1}, {2, 17, 3}, {20, 17, 33}, {18, 5, 255}, {3, 16, 131}}) {
      Stored w({.rows = s.n, .cols = s.k, .format = f}, 3);
      const std::vector<Bf16> x = random_x(s.t, s.k, 4);
      expect_same_bits(multiply(x, s.t, w.view(), loop_of(f)), stated_product(x, s.t, w.view()),
                       str_cat(format_name(f), " ", s.t, "x", s.n, "x", s.k));
    }
  }
}

/// Products and sums below the smallest normal number, and subnormal operands.
void expect_flushed(Format format, int64_t rows, ProductLoop loop) {
  const int64_t k = 192;
  Stored w({.rows = 80, .cols = k, .format = format}, 5);
  std::vector<Bf16> x = random_x(rows, k, 6);
  Rng rng(7, 0);
  for (Bf16& value : x) {
    // 2^-133 to 2^-118: subnormals among them, and sums to either side of the smallest normal.
    value =
        bf16_from_float(std::ldexp(to_float(value), -118 - static_cast<int>(rng.next_below(16))));
  }
  const std::vector<float> y = multiply(x, rows, w.view(), loop);
  const std::vector<float> stated = stated_product(x, rows, w.view());
  expect_same_bits(y, stated, str_cat(format_name(format), " subnormals, rows ", rows));
  EXPECT_TRUE(std::any_of(stated.begin(), stated.end(), [](float v) { return v != 0.0f; }));
}

// ---- Few rows ----

constexpr int64_t few_rows_of(Format format) {
  return format == Format::kNvfp4 ? 3 : 4;
}

/// The vector form by itself, which must take the item.
template <bool (*kFewRows)(const Products&, const WorkItem&, void*)>
void few_rows_only(const Products& p, const WorkItem& item, void* scratch) {
  EXPECT_TRUE(kFewRows(p, item, scratch)) << item.row_end - item.row_begin << " rows, k " << p.k;
}

ProductLoop few_rows_loop(Format format) {
  if (format == Format::kMxfp8) return few_rows_only<mxfp8_few_rows_amx>;
  return format == Format::kNvfp4 ? few_rows_only<nvfp4_few_rows_amx>
                                  : few_rows_only<fp8_few_rows_amx>;
}

bool takes_few_rows(Format format, const std::vector<Bf16>& x, int64_t rows, const QuantView& w) {
  std::vector<float> y(static_cast<size_t>(rows * w.rows()), 7.0f);
  const View xv = make_view(const_cast<Bf16*>(x.data()), {rows, w.cols()}, Format::kBf16);
  const Products p = make_products(xv, w, make_view(y.data(), {rows, w.rows()}, Format::kF32));
  const Buffer scratch =
      Buffer::allocate(DeviceKind::kCpu, product_scratch_bytes(rows, p.k), "few rows").value();
  const WorkItem item{0, 0, p.groups, 0, rows};
  const auto few_rows = format == Format::kMxfp8   ? mxfp8_few_rows_amx
                        : format == Format::kNvfp4 ? nvfp4_few_rows_amx
                                                   : fp8_few_rows_amx;
  const bool taken = few_rows(p, item, scratch.data());
  const bool written = std::any_of(y.begin(), y.end(), [](float v) { return v != 7.0f; });
  EXPECT_EQ(written, taken);
  return taken;
}

bool has_amx() {
  return best_isa() >= Isa::kAmx;
}

TEST(TileProducts, LoopsGiveTheStatedSums) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "decoding into tiles needs AVX-512";
  expect_stated_sums(plain_loop);
}

TEST(TileProducts, LoopsTakeEachHeadAndExpertFromItsPlace) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "decoding into tiles needs AVX-512";
  const int64_t rows = 20, heads = 3, k = 96, n = 32;
  Stored stack({.num_experts = heads, .rows = n, .cols = k, .format = Format::kFp8Block}, 8);
  const QuantView w = stack.view();
  const std::vector<Bf16> x = random_x(rows * heads, k, 9);  // [rows, heads, k]
  std::vector<float> y(static_cast<size_t>(rows * heads * n));
  const View xv = make_view(const_cast<Bf16*>(x.data()), {rows, heads, k}, Format::kBf16);

  run_loop(make_products(xv, w, make_view(y.data(), {rows, heads, n}, Format::kF32)),
           plain_loop(Format::kFp8Block));

  for (int64_t h = 0; h < heads; ++h) {
    QuantView one = w;
    one.values = make_view(nullptr, {n, k}, Format::kFp8Block);
    one.values.data = stack.values.data() + h * static_cast<int64_t>(stack.values.size()) / heads;
    one.scales.data = stack.scales.data() + h * static_cast<int64_t>(stack.scales.size()) / heads;
    for (int64_t i = 0; i < n; ++i) {
      const StatedRow row(one, i);
      for (int64_t t = 0; t < rows; ++t) {
        ASSERT_EQ(y[static_cast<size_t>((t * heads + h) * n + i)],
                  stated_sum(x.data() + (t * heads + h) * k, row));
      }
    }
  }
}

TEST(TileProducts, LoopsFlushAsTheInstructionDoes) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "the file needs AVX-512";
  expect_flushed(Format::kBf16, 19, plain_loop(Format::kBf16));
}

TEST(TileProducts, NoColumnsGiveZeros) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "decoding into tiles needs AVX-512";
  QuantView empty;
  empty.layout = WeightLayout::kRows16;
  empty.values = make_view(nullptr, {40, 0}, Format::kBf16);
  for (int64_t rows : {2, 50}) {
    EXPECT_EQ(multiply({}, rows, empty, plain_loop(Format::kBf16)),
              std::vector<float>(static_cast<size_t>(rows * 40), 0.0f));
  }
}

TEST(TileProducts, AmxGivesTheStatedSums) {
  if (!has_amx()) GTEST_SKIP() << "this machine has no AMX";
  expect_stated_sums(amx_loop);
}

TEST(TileProducts, AmxFlushesAsStated) {
  if (!has_amx()) GTEST_SKIP() << "this machine has no AMX";
  for (Format f : kFormats) {
    for (int64_t rows : {1, 2, 3, 4, 19})
      expect_flushed(f, rows, amx_loop(f));
  }
}

TEST(TileProducts, FewRowsInVectorsGiveTheStatedSums) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "the vector form needs AVX-512";
  for (Format f : kFormats) {
    if (f == Format::kBf16) continue;  // tiles in place, for any number of rows
    for (const Shape& s : kFewRowShapes) {
      for (int64_t t = 1; t <= few_rows_of(f); ++t) {
        expect_stated(f, {t, s.n, s.k}, few_rows_loop(f));
      }
    }
  }
}

TEST(TileProducts, FewRowsInVectorsFlushAsTilesDo) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "the vector form needs AVX-512";
  for (Format f : kFormats) {
    if (f == Format::kBf16) continue;
    for (int64_t t = 1; t <= few_rows_of(f); ++t)
      expect_flushed(f, t, few_rows_loop(f));
  }
}

TEST(TileProducts, FewRowsInVectorsLeaveFloatingPointAsItWas) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "the vector form needs AVX-512";
  for (Format f : {Format::kFp8Block, Format::kNvfp4, Format::kMxfp8}) {
    Stored w({.rows = 32, .cols = 64, .format = f}, 10);
    EXPECT_TRUE(takes_few_rows(f, random_x(1, 64, 11), 1, w.view()));
    volatile float smallest = std::numeric_limits<float>::min();
    EXPECT_GT(smallest * 0.5f, 0.0f);
  }
}

TEST(TileProducts, VectorsLeaveManyRowsAndWhatTheyCannotRepeatToTiles) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "the vector form needs AVX-512";
  for (Format f : {Format::kFp8Block, Format::kNvfp4, Format::kMxfp8}) {
    Stored w({.rows = 32, .cols = 64, .format = f}, 12),
        tail({.rows = 32, .cols = 80, .format = f}, 13);
    const int64_t most = few_rows_of(f);
    EXPECT_TRUE(takes_few_rows(f, random_x(most, 64, 14), most, w.view()));
    EXPECT_FALSE(takes_few_rows(f, random_x(most + 1, 64, 14), most + 1, w.view()));
    EXPECT_FALSE(takes_few_rows(f, random_x(1, 80, 15), 1, tail.view()));
    for (float value : {0x1p116f, 0x1.02p116f, -0x1p120f, HUGE_VALF, NAN}) {
      std::vector<Bf16> x = random_x(2, 64, 16);
      x[101] = bf16_from_float(value);
      EXPECT_EQ(takes_few_rows(f, x, 2, w.view()), value == 0x1p116f) << value;
    }
  }
}

TEST(TileProducts, EveryE4m3CodeDecodesExactly) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "decoding into tiles needs AVX-512";
  const int64_t k = 16;
  std::vector<uint8_t> codes(static_cast<size_t>(16 * k)), tiles(codes.size());
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i);
  float scale[1] = {1.0f};
  pack_rows16({Format::kFp8Block, 16, k, codes.data(), scale, 1.0f},
              {Format::kFp8Block, 16, k, tiles.data(), scale, nullptr}, 0, 1);
  std::vector<uint8_t> out(static_cast<size_t>(k / 4 * 128));

  decode_fp8_tiles_amx(tiles.data(), k / 4, tiles.data(), out.data());

  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t i = 0; i < k; ++i) {
      const float expected = to_float(E4m3{codes[static_cast<size_t>(n * k + i)]});
      const float found = PlainTiles::bf16_at(out.data() + i / 2 * 64, 2 * n + i % 2);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(found));
      } else {
        EXPECT_EQ(found, expected) << "row " << n << " k " << i;
      }
    }
  }
}

/// What bf16 does not hold becomes zero, which subnormals count as, or infinite.
TEST(TileProducts, EveryE4m3CodeTimesEveryPowerDecodesExactly) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "decoding into tiles needs AVX-512";
  // Row n has scale byte 64 s + 4 n + b/2 in block b; the 8 blocks of 32 k hold all codes.
  const int64_t k = 256;
  for (int s = 0; s < 4; ++s) {
    std::vector<uint8_t> codes(static_cast<size_t>(16 * k)), scales(static_cast<size_t>(16 * 8));
    for (size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<uint8_t>(i);
    for (size_t i = 0; i < scales.size(); ++i)
      scales[i] = static_cast<uint8_t>(std::min<size_t>(64 * static_cast<size_t>(s) + i / 2, 254));
    std::vector<uint8_t> tiles(2 * 2112), out(2 * 4096);
    pack_rows16({Format::kMxfp8, 16, k, codes.data(), scales.data()},
                {Format::kMxfp8, 16, k, tiles.data()}, 0, 1);

    decode_mxfp8_tiles_amx(tiles.data(), 2, tiles.data(), out.data());

    for (int64_t n = 0; n < 16; ++n) {
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t scale = scales[static_cast<size_t>(n * 8 + i / 32)];
        const double weight =
            std::ldexp(double{to_float(E4m3{static_cast<uint8_t>(i)})}, int{scale} - 127);
        const double found = PlainTiles::bf16_at(out.data() + i / 2 * 64, 2 * n + i % 2);
        const std::string what = str_cat("scale ", int{scale}, " code ", i);
        if (std::isnan(weight)) {
          ASSERT_TRUE(std::isnan(found)) << what;
        } else if (std::fabs(weight) < 0x1p-126) {
          ASSERT_LT(std::fabs(found), 0x1p-126) << what;
        } else if (std::fabs(weight) >= 0x1p128) {
          ASSERT_EQ(found, std::copysign(HUGE_VAL, weight)) << what;
        } else {
          ASSERT_EQ(found, weight) << what;
        }
      }
    }
  }
}

TEST(TileProducts, EveryE2m1CodeTimesEveryScaleDecodesExactly) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "decoding into tiles needs AVX-512";
  // Row n has scale byte 16 s + n in all blocks of super-tile s, and every code in each block.
  const int64_t k = 8 * 64;
  std::vector<uint8_t> codes(static_cast<size_t>(16 * k / 2)), scales(static_cast<size_t>(k));
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(2 * i % 16 | (2 * i + 1) % 16 << 4);
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t b = 0; b < k / 16; ++b) {
      scales[static_cast<size_t>(n * k / 16 + b)] =
          static_cast<uint8_t>(std::min<int64_t>(16 * (b / 4) + n, 126));
    }
  }
  std::vector<uint8_t> tiles(8 * 576), out(8 * 2048);
  float global[1];
  pack_rows16({Format::kNvfp4, 16, k, codes.data(), scales.data(), 1.0f},
              {Format::kNvfp4, 16, k, tiles.data(), nullptr, global}, 0, 1);

  decode_nvfp4_tiles_amx(tiles.data(), 8, tiles.data(), out.data());

  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t i = 0; i < k; ++i) {
      const uint8_t scale = scales[static_cast<size_t>(n * k / 16 + i / 16)];
      const float expected = to_float(E2m1{static_cast<uint8_t>(i % 16)}) * to_float(E4m3{scale});
      ASSERT_EQ(PlainTiles::bf16_at(out.data() + i / 2 * 64, 2 * n + i % 2), expected)
          << "scale " << int{scale} << " code " << i % 16;
    }
  }
}

}  // namespace
}  // namespace fathom
