// Properties that hold for every product kernel and every variant: bits that depend on nothing but
// the row, layouts that agree, codes that decode exactly, errors that say what is wrong.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/cpu/products/product_operands_test.h"
#include "fathom/kernels/gemm/int8_gemm/int_products.h"
#include "fathom/kernels/kernels.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

/// Threads and scratch memory for calls of product kernels.
struct Caller {
  ThreadPool pool;
  Arena scratch;
  Pins pins;
  Exec ex;

  explicit Caller(int threads, std::string_view variant = "")
      : pool(threads, PinThreads::kNo),
        scratch(Buffer::allocate(DeviceKind::kCpu, 16 << 20, "test").value()) {
    if (!variant.empty()) pins.emplace_back("product", variant);
    ex.kernels = &cpu_kernels();
    ex.pool = &pool;
    ex.num_threads = threads;
    ex.scratch = &scratch;
    ex.pins = &pins;
  }

  Status call(const View& x, const QuantView& w, const View& y) {
    switch (w.format()) {
      case Format::kBf16:
      case Format::kF32:
        return launch<Bf16Gemm>(ex, "product", {.x = x, .w = w, .y = y});
      case Format::kNvfp4:
        return launch<Nvfp4Gemm>(ex, "product", {.x = x, .w = w, .y = y});
      case Format::kMxfp8:
        return launch<Mxfp8Gemm>(ex, "product", {.x = x, .w = w, .y = y});
      default:
        return launch<Fp8BlockGemm>(ex, "product", {.x = x, .w = w, .y = y});
    }
  }

  Status grouped(const View& x, const QuantView& w, const View& offsets, const View& y) {
    switch (w.format()) {
      case Format::kBf16:
        return launch<Bf16GroupGemm>(ex, "product", {.x = x, .w = w, .offsets = offsets, .y = y});
      case Format::kNvfp4:
        return launch<Nvfp4GroupGemm>(ex, "product", {.x = x, .w = w, .offsets = offsets, .y = y});
      case Format::kMxfp8:
        return launch<Mxfp8GroupGemm>(ex, "product", {.x = x, .w = w, .offsets = offsets, .y = y});
      default:
        return launch<Fp8GroupGemm>(ex, "product", {.x = x, .w = w, .offsets = offsets, .y = y});
    }
  }

  /// y = x w^T in float32.
  std::vector<float> multiply(const Bf16* x, int64_t rows, const QuantView& w) {
    std::vector<float> y(static_cast<size_t>(rows * w.rows()), -1.0f);
    const View xv = make_view(const_cast<Bf16*>(x), {rows, w.cols()}, Format::kBf16);
    const Status status = call(xv, w, make_view(y.data(), {rows, w.rows()}, Format::kF32));
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }
};

/// Those that all weight formats have: without the ones for row-major weights and quantised x,
/// which are named after them (avx512_row_major).
std::vector<std::string_view> variants() {
  std::vector<std::string_view> names;
  for (const Variant<Nvfp4Gemm>& v : cpu_kernels().table<Nvfp4Gemm>()) {
    if (v.name.find('_') == std::string_view::npos) names.push_back(v.name);
  }
  return names;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Products, RowHasTheSameBitsInEveryBatch) {
  for (std::string_view variant : variants()) {
    Caller caller(2, variant);
    for (Format f : kFormats) {
      Stored w({.rows = 90, .cols = 576, .format = f}, 1);
      const std::vector<Bf16> x = random_x(290, 576, 2);
      const std::vector<float> all = caller.multiply(x.data(), 290, w.view());
      for (int64_t t : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33}) {
        for (int64_t begin : {int64_t{0}, int64_t{255}, 290 - t}) {
          const std::vector<float> part = caller.multiply(x.data() + begin * 576, t, w.view());
          const std::vector<float> expected(all.begin() + begin * 90,
                                            all.begin() + (begin + t) * 90);
          ASSERT_TRUE(same_bits(part, expected))
              << variant << " " << format_name(f) << ": rows " << begin << " + " << t;
        }
      }
    }
  }
}

TEST(Products, BlocksOfColumnsDoNotShow) {
  const int64_t k = 16384 + 128 + 64;  // more columns than any loop takes at once
  const std::vector<Bf16> x = random_x(13, k, 22);
  for (std::string_view variant : variants()) {
    Caller caller(2, variant);
    for (Format f : kFormats) {
      Stored w({.rows = 20, .cols = k, .format = f}, 23);
      const std::vector<float> all = caller.multiply(x.data(), 13, w.view());
      for (int64_t t : {0, 5, 12}) {
        const std::vector<float> one = caller.multiply(x.data() + t * k, 1, w.view());
        const std::vector<float> expected(all.begin() + t * 20, all.begin() + (t + 1) * 20);
        ASSERT_TRUE(same_bits(one, expected)) << variant << " " << format_name(f) << " row " << t;
      }
    }
  }
}

TEST(Products, BitsDoNotDependOnThreads) {
  for (std::string_view variant : variants()) {
    for (Format f : kFormats) {
      Stored w({.rows = 100, .cols = 384, .format = f}, 3);
      for (int64_t t : {1, 7, 70}) {
        const std::vector<Bf16> x = random_x(t, 384, 4);
        const std::vector<float> one = Caller(1, variant).multiply(x.data(), t, w.view());
        for (int threads : {2, 3, 8, 19}) {
          ASSERT_TRUE(same_bits(Caller(threads, variant).multiply(x.data(), t, w.view()), one))
              << variant << " " << format_name(f) << " t " << t << " threads " << threads;
        }
      }
    }
  }
}

TEST(Products, BothLayoutsGiveTheSameBitsInThePortableVariant) {
  Caller caller(2, "portable");
  for (Format f : kFormats) {
    for (int64_t n : {1, 16, 37}) {
      CaseWeightSpec spec{.rows = n, .cols = 272, .format = f};
      Stored tiled(spec, 5);
      spec.layout = WeightLayout::kRowMajor;
      Stored plain(spec, 5);
      const std::vector<Bf16> x = random_x(11, 272, 6);
      EXPECT_TRUE(same_bits(caller.multiply(x.data(), 11, tiled.view()),
                            caller.multiply(x.data(), 11, plain.view())))
          << format_name(f) << " n " << n;
    }
  }
}

TEST(Products, VariantsAgreeToFloat32Rounding) {
  for (Format f : kFormats) {
    Stored w({.rows = 48, .cols = 512, .format = f}, 7);
    const std::vector<Bf16> x = random_x(5, 512, 8);
    const std::vector<float> expected = Caller(1, "portable").multiply(x.data(), 5, w.view());
    for (std::string_view variant : variants()) {
      const std::vector<float> y = Caller(1, variant).multiply(x.data(), 5, w.view());
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], 2e-5f) << variant << " " << format_name(f) << " at " << i;
      }
    }
  }
}

TEST(Products, GroupedRowsHaveTheBitsOfThePlainProduct) {
  const std::vector<int32_t> offsets{0, 0, 3, 3, 12, 13, 40, 40};
  for (std::string_view variant : variants()) {
    Caller caller(2, variant);
    for (Format f : kFormats) {
      Stored stack({.num_experts = 7, .rows = 48, .cols = 320, .format = f}, 9);
      const QuantView w = stack.view();
      const std::vector<Bf16> x = random_x(40, 320, 10);
      std::vector<float> y(40 * 48, -1.0f);
      const View xv = make_view(const_cast<Bf16*>(x.data()), {40, 320}, Format::kBf16);
      const View ov = make_view(const_cast<int32_t*>(offsets.data()), {8}, Format::kI32);
      ASSERT_TRUE(caller.grouped(xv, w, ov, make_view(y.data(), {40, 48}, Format::kF32)).ok());
      for (size_t e = 0; e < 7; ++e) {
        QuantView one;  // the groups of expert e
        one.layout = w.layout;
        one.values = make_view(nullptr, {48, 320}, f);
        one.values.data = stack.values.data() + e * (stack.values.size() / 7);
        if (!stack.scales.empty()) {
          one.scales = make_view(stack.scales.data() + e * (stack.scales.size() / 7),
                                 {static_cast<int64_t>(stack.scales.size()) / 7 / 4}, Format::kF32);
        }
        if (!stack.global.empty()) {
          one.global = make_view(stack.global.data() + e * 3, {3}, Format::kF32);
        }
        const int64_t begin = offsets[e];
        const int64_t rows = offsets[e + 1] - begin;
        const std::vector<float> expected = caller.multiply(x.data() + begin * 320, rows, one);
        const std::vector<float> found(y.begin() + begin * 48, y.begin() + (begin + rows) * 48);
        ASSERT_TRUE(same_bits(found, expected))
            << variant << " " << format_name(f) << " expert " << e;
      }
    }
  }
}

TEST(Products, HeadsHaveTheBitsOfThePlainProduct) {
  for (std::string_view variant : variants()) {
    Caller caller(2, variant);
    Stored stack({.num_experts = 5, .rows = 32, .cols = 96, .format = Format::kBf16}, 11);
    const std::vector<Bf16> x = random_x(9 * 5, 96, 12);  // [9, 5, 96]
    std::vector<Bf16> y(9 * 5 * 32);
    const View xv = make_view(const_cast<Bf16*>(x.data()), {9, 5, 96}, Format::kBf16);
    ASSERT_TRUE(
        launch<Bf16Bmm>(
            caller.ex, "product",
            {.x = xv, .w = stack.view(), .y = make_view(y.data(), {9, 5, 32}, Format::kBf16)})
            .ok());
    for (int64_t h = 0; h < 5; ++h) {
      View head = make_view(const_cast<Bf16*>(x.data()) + h * 96, {9, 96}, Format::kBf16);
      head.strides[0] = 5 * 96;
      QuantView w = stack.view();
      w.values = make_view(nullptr, {32, 96}, Format::kBf16);
      w.values.data = stack.values.data() + static_cast<size_t>(h) * (stack.values.size() / 5);
      std::vector<Bf16> expected(9 * 32);
      ASSERT_TRUE(caller.call(head, w, make_view(expected.data(), {9, 32}, Format::kBf16)).ok());
      for (int64_t t = 0; t < 9; ++t) {
        for (int64_t n = 0; n < 32; ++n) {
          ASSERT_EQ(y[static_cast<size_t>((t * 5 + h) * 32 + n)],
                    expected[static_cast<size_t>(t * 32 + n)])
              << variant << " head " << h << " token " << t << " column " << n;
        }
      }
    }
  }
}

TEST(Products, SkinnyKernelsHaveTheBitsOfBf16Gemm) {
  Stored w({.rows = 50, .cols = 300, .format = Format::kBf16}, 13);
  const std::vector<Bf16> x = random_x(16, 300, 14);
  const View xv = make_view(const_cast<Bf16*>(x.data()), {16, 300}, Format::kBf16);
  for (std::string_view variant : variants()) {
    Caller caller(2, variant);
    const std::vector<float> expected = caller.multiply(x.data(), 16, w.view());
    std::vector<float> latent(expected.size()), router(expected.size());
    const View latent_y = make_view(latent.data(), {16, 50}, Format::kF32);
    const View router_y = make_view(router.data(), {16, 50}, Format::kF32);
    ASSERT_TRUE(launch<LatentDownGemm>(caller.ex, "product", {xv, w.view(), latent_y}).ok());
    ASSERT_TRUE(launch<RouterGemm>(caller.ex, "product", {xv, w.view(), router_y}).ok());
    EXPECT_TRUE(same_bits(latent, expected)) << variant;
    EXPECT_TRUE(same_bits(router, expected)) << variant;
  }
}

/// Rows of x that pick one column each: y[k, n] is then w[n, k].
std::vector<Bf16> unit_rows(int64_t k) {
  std::vector<Bf16> x(static_cast<size_t>(k * k), Bf16{0});
  for (int64_t i = 0; i < k; ++i)
    x[static_cast<size_t>(i * k + i)] = bf16_from_float(1.0f);
  return x;
}

TEST(Products, EveryE4m3CodeIsExactInEveryVariant) {
  // Column k of row n holds code (16 k + n) % 256, subnormals and NaN included.
  const int64_t k = 64;
  std::vector<uint8_t> tiles(static_cast<size_t>(k * 16));
  float scale[1] = {0.5f};
  std::vector<uint8_t> codes(static_cast<size_t>(16 * k));
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t i = 0; i < k; ++i) {
      codes[static_cast<size_t>(n * k + i)] = static_cast<uint8_t>(16 * i + n);
    }
  }
  pack_rows16({Format::kFp8Block, 16, k, codes.data(), scale, 1.0f},
              {Format::kFp8Block, 16, k, tiles.data(), scale, nullptr}, 0, 1);
  QuantView w;
  w.layout = WeightLayout::kRows16;
  w.values = make_view(nullptr, {16, k}, Format::kFp8Block);
  w.values.data = tiles.data();
  w.scales = make_view(scale, {1, 1}, Format::kF32);
  const std::vector<Bf16> x = unit_rows(k);
  for (std::string_view variant : variants()) {
    Caller caller(1, variant);
    for (int64_t rows : {int64_t{1}, k}) {  // both the streaming and the panel form
      for (int64_t begin = 0; begin < k; begin += rows) {
        const std::vector<float> y = caller.multiply(x.data() + begin * k, rows, w);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t n = 0; n < 16; ++n) {
            // A NaN in the row reaches every product with it: 0 * NaN.
            bool nan = false;
            for (int64_t i = 0; i < k; ++i)
              nan |= (codes[static_cast<size_t>(n * k + i)] & 127) == 127;
            const float value =
                to_float(E4m3{codes[static_cast<size_t>(n * k + begin + t)]}) * 0.5f;
            const float found = y[static_cast<size_t>(t * 16 + n)];
            if (nan) {
              ASSERT_TRUE(std::isnan(found)) << variant << " row " << n;
            } else {
              ASSERT_EQ(found, value) << variant << " row " << n << " k " << begin + t;
            }
          }
        }
      }
    }
  }
}

TEST(Products, EveryE2m1CodeAndScaleIsExactInEveryVariant) {
  // Block b of row n has scale byte (16 b + n) % 127: subnormals included, never NaN. Column i of a
  // block holds code (i + n) % 16.
  const int64_t blocks = 8;
  const int64_t k = 16 * blocks;
  std::vector<uint8_t> codes(static_cast<size_t>(16 * k / 2)), scales(16 * 8), tiles(2 * 576);
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t i = 0; i < k; i += 2) {
      codes[static_cast<size_t>((n * k + i) / 2)] =
          static_cast<uint8_t>((i + n) % 16 | (i + 1 + n) % 16 << 4);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      scales[static_cast<size_t>(n * blocks + b)] = static_cast<uint8_t>((16 * b + n) % 127);
    }
  }
  float global[1] = {0};
  pack_rows16({Format::kNvfp4, 16, k, codes.data(), scales.data(), 0.25f},
              {Format::kNvfp4, 16, k, tiles.data(), nullptr, global}, 0, 1);
  QuantView w;
  w.layout = WeightLayout::kRows16;
  w.values = make_view(nullptr, {16, k}, Format::kNvfp4);
  w.values.data = tiles.data();
  w.global = make_view(global, {1}, Format::kF32);
  const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const std::vector<Bf16> x = unit_rows(k);
  for (std::string_view variant : variants()) {
    Caller caller(1, variant);
    for (int64_t rows : {int64_t{1}, k}) {
      for (int64_t begin = 0; begin < k; begin += rows) {
        const std::vector<float> y = caller.multiply(x.data() + begin * k, rows, w);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t n = 0; n < 16; ++n) {
            const int64_t i = begin + t;
            const int64_t code = (i + n) % 16;
            const uint8_t scale = scales[static_cast<size_t>(n * blocks + i / 16)];
            const float magnitude = magnitudes[code % 8] * to_float(E4m3{scale}) * 0.25f;
            ASSERT_EQ(y[static_cast<size_t>(t * 16 + n)], code < 8 ? magnitude : -magnitude)
                << variant << " row " << n << " k " << i;
          }
        }
      }
    }
  }
}

TEST(Products, NanAndInfinityReachExactlyTheirOwnRow) {
  for (std::string_view variant : variants()) {
    Caller caller(2, variant);
    for (Format f : kFormats) {
      Stored w({.rows = 20, .cols = 80, .format = f}, 15);
      for (int64_t t : {3, 12}) {
        std::vector<Bf16> x = random_x(t, 80, 16);
        const std::vector<float> clean = caller.multiply(x.data(), t, w.view());
        x[80 + 79] = Bf16{0x7FC0};
        const std::vector<float> y = caller.multiply(x.data(), t, w.view());
        for (size_t i = 0; i < y.size(); ++i) {
          if (i / 20 == 1) {
            ASSERT_TRUE(std::isnan(y[i])) << variant << " " << format_name(f);
          } else {
            ASSERT_EQ(y[i], clean[i]) << variant << " " << format_name(f);
          }
        }
      }
    }
  }
}

TEST(Products, NoRowsOrColumnsIsNoWork) {
  Caller caller(2);
  Stored w({.rows = 16, .cols = 64, .format = Format::kBf16}, 17);
  Bf16 x{};
  EXPECT_TRUE(caller.multiply(&x, 0, w.view()).empty());
  // k = 0: an empty sum is zero.
  QuantView empty;
  empty.layout = WeightLayout::kRows16;
  empty.values = make_view(nullptr, {16, 0}, Format::kBf16);
  EXPECT_EQ(caller.multiply(&x, 2, empty), std::vector<float>(32, 0.0f));
}

TEST(Products, ErrorsNameTheOffsetThatIsWrong) {
  Caller caller(1);
  Stored w({.num_experts = 2, .rows = 16, .cols = 64, .format = Format::kNvfp4}, 18);
  std::vector<Bf16> x(4 * 64), y(4 * 16);
  const View xv = make_view(x.data(), {4, 64}, Format::kBf16);
  const View yv = make_view(y.data(), {4, 16}, Format::kBf16);
  const auto message = [&](std::vector<int32_t> offsets) {
    const View ov = make_view(offsets.data(), {3}, Format::kI32);
    const Status status = caller.grouped(xv, w.view(), ov, yv);
    EXPECT_EQ(status.code(), offsets.empty() ? StatusCode::kOk : StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(message({0, 3, 2}).find("offsets[2] is 2, expected 3 to 4"), std::string::npos);
  EXPECT_NE(message({-1, 3, 4}).find("offsets[0] is -1"), std::string::npos);
  EXPECT_NE(message({0, 3, 5}).find("offsets[2] is 5"), std::string::npos);
}

TEST(Products, ErrorsNameThePartOfAWeightThatIsWrong) {
  Caller caller(1);
  std::vector<Bf16> x(64), y(20);
  const View xv = make_view(x.data(), {1, 64}, Format::kBf16);
  const View yv = make_view(y.data(), {1, 20}, Format::kBf16);
  const auto message = [&](const QuantView& w) {
    const Status status = caller.call(xv, w, yv);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };

  Stored nvfp4({.rows = 20, .cols = 64, .format = Format::kNvfp4}, 19);
  QuantView w = nvfp4.view();
  w.global = View{};
  EXPECT_NE(message(w).find("w has no global"), std::string::npos);
  w.global = make_view(nvfp4.global.data(), {1}, Format::kF32);
  EXPECT_NE(message(w).find("expected 2 packed values of f32"), std::string::npos);

  Stored fp8(
      {.rows = 20, .cols = 64, .format = Format::kFp8Block, .layout = WeightLayout::kRowMajor}, 20);
  w = fp8.view();
  w.scales = View{};
  EXPECT_NE(message(w).find("w has no scales"), std::string::npos);

  Stored f32({.rows = 20, .cols = 64, .format = Format::kF32, .layout = WeightLayout::kRowMajor},
             21);
  w = f32.view();
  w.layout = WeightLayout::kRows16;
  EXPECT_NE(message(w).find("f32 in layout rows16"), std::string::npos);
  w = f32.view();
  w.values.strides[0] = 65;
  EXPECT_NE(message(w).find("must be packed"), std::string::npos);
}

TEST(Products, StacksInRows16NeedWholeGroups) {
  QuantView w;
  w.layout = WeightLayout::kRows16;
  w.values = make_view(nullptr, {2, 20, 64}, Format::kBf16);
  EXPECT_NE(check_weight(w).message().find("needs a multiple of 16"), std::string::npos);
}

TEST(Products, GroupedTrafficCountsTheExpectedExperts) {
  const View x = make_view(nullptr, {8, 64}, Format::kBf16);
  const View w = make_view(nullptr, {256, 16, 64}, Format::kNvfp4);
  const View offsets = make_view(nullptr, {257}, Format::kI32);
  const View y = make_view(nullptr, {8, 16}, Format::kBf16);
  const int64_t others = 8 * 64 * 2 + 257 * 4;
  const int64_t matrix = bytes_for(Format::kNvfp4, 16, 64);
  Cost cost;

  // One token with eight experts reads eight matrices.
  grouped_product_bytes(x, w, offsets, y, 8, cost);
  EXPECT_EQ(cost.bytes_read, others + 8 * matrix);
  EXPECT_EQ(cost.bytes_written, 8 * 16 * 2);

  // Two tokens with four each: 256 (1 - (252/256)^2) = 7.9375 of them.
  grouped_product_bytes(x, w, offsets, y, 4, cost);
  EXPECT_EQ(cost.bytes_read, others + std::llround(7.9375 * static_cast<double>(matrix)));
}

TEST(WeightSource, GivesOnlyTheDescriptionThatItHolds) {
  const QuantView view;
  const WeightSource source = &view;

  EXPECT_EQ(&source.as<QuantView>(), &view);
  EXPECT_DEATH(source.as<IntWeight>(), "wants weights of kind 2 .* but the call has kind 5");
  EXPECT_DEATH(WeightSource{}.as<QuantView>(), "wants weights of kind 5 .* has kind 0");
}

}  // namespace
}  // namespace fathom
