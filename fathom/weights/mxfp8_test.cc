// MXFP8 from weights through a file to memory.
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

// An enumerator of quant_config.h would be shadowed by kFp8Block.
// clang-format off
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/formats/block/block_fp8.h"
// clang-format on
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/weights/export/quantizer.h"
#include "fathom/weights/loader.h"
#include "tests/support/test_checkpoint.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// x.weight [n, k]: all codes but NaN, and scale bytes around 120 with `byte` in row 3.
struct StoredMatrix {
  int64_t n, k;
  std::vector<uint8_t> codes, scales;

  StoredMatrix(int64_t rows, int64_t cols, uint8_t byte) : n(rows), k(cols) {
    for (int64_t i = 0; i < n * k; ++i)
      codes.push_back(static_cast<uint8_t>(i % 254 < 127 ? i % 254 : i % 254 + 1));
    for (int64_t i = 0; i < n * k / 32; ++i)
      scales.push_back(static_cast<uint8_t>(115 + i % 11));
    scales[static_cast<size_t>(3 * k / 32)] = byte;
  }

  void add_to(TestCheckpoint& files, Format scale_type) const {
    files.codes("x.weight", Format::kE4m3, {n, k}, codes);
    files.codes("x.weight_scale", scale_type, {n, k / 32}, scales);
  }

  std::vector<float> decoded() const {
    std::vector<float> out(codes.size());
    fp8_dequantize_groups(reinterpret_cast<const E4m3*>(codes.data()),
                          reinterpret_cast<const Ue8m0*>(scales.data()), n, k, kMxfp8Block,
                          out.data());
    return out;
  }
};

/// Matrix e of a weight in the store.
std::vector<float> values_of(const LinearWeight& w, int64_t e = 0) {
  const QuantView& q = w.w;
  const int64_t groups = (q.rows() + kTileRows - 1) / kTileRows;
  const Rows16Matrix m{
      .format = q.format(),
      .n = q.rows(),
      .k = q.cols(),
      .tiles = q.values.as<std::byte>() + e * groups * rows16_group_bytes(q.format(), q.cols())};
  std::vector<float> out(static_cast<size_t>(q.rows() * q.cols()));
  for (int64_t row = 0; row < q.rows(); ++row)
    decode_rows16_row(
        m, row,
        std::span(out).subspan(static_cast<size_t>(row * q.cols()), static_cast<size_t>(q.cols())));
  return out;
}

Result<WeightStore> load(const WeightPlan& plan, const Checkpoint& checkpoint) {
  ThreadPool pool(2, PinThreads::kNo);
  return load_weights(plan, checkpoint, pool);
}

TEST(Mxfp8, LiesInTilesWithTheStoredValues) {
  for (Format scale_type : {Format::kUe8m0, Format::kU8}) {
    for (const uint8_t byte : {uint8_t{0}, uint8_t{103}, uint8_t{246}}) {
      const StoredMatrix stored(40, 160, byte);
      TestCheckpoint files;
      stored.add_to(files, scale_type);
      const Checkpoint checkpoint = files.open();
      WeightPlan plan(symbols({{"N", 40}, {"K", 160}}), tensors_of(checkpoint));
      LinearWeight w;
      ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());

      const Result<WeightStore> store = load(plan, checkpoint);

      ASSERT_TRUE(store.ok()) << store.status().message();
      EXPECT_EQ(w.w.format(), Format::kMxfp8);
      EXPECT_EQ(w.w.layout, WeightLayout::kRows16);
      EXPECT_FALSE(w.w.scales.present() || w.w.global.present() || w.input_scale.present());
      EXPECT_EQ(values_of(w), stored.decoded());
    }
  }
}

TEST(Mxfp8, AScaleThatIsNanIsRefusedByName) {
  for (Format scale_type : {Format::kUe8m0, Format::kU8}) {
    TestCheckpoint files;
    StoredMatrix(40, 96, 255).add_to(files, scale_type);
    const Checkpoint checkpoint = files.open();
    WeightPlan plan(symbols({{"N", 40}, {"K", 96}}), tensors_of(checkpoint));
    LinearWeight w;
    ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());

    const Result<WeightStore> store = load(plan, checkpoint);

    ASSERT_FALSE(store.ok());
    EXPECT_THAT(store.status().message(),
                AllOf(HasSubstr("x.weight_scale"), HasSubstr("scale 9 at byte"),
                      HasSubstr("is nan, expected a finite number")));
  }
}

/// Columns are cut where blocks end, and scales with them.
TEST(Mxfp8, RanksHaveTheirPartsOfTheScales) {
  const StoredMatrix stored(32, 192, 103);
  TestCheckpoint files;
  stored.add_to(files, Format::kU8);
  const Checkpoint checkpoint = files.open();
  const std::vector<float> whole = stored.decoded();
  for (int rank = 0; rank < 2; ++rank) {
    WeightPlan plan(symbols({{"H", 32}, {"Id", 192}}), tensors_of(checkpoint),
                    {.shard = {.rank = rank, .count = 2}});
    LinearWeight w;
    ASSERT_TRUE(plan.matrix("x.weight", "H,Id", WeightRole::kMlp, &w).ok());
    const Result<WeightStore> store = load(plan, checkpoint);
    ASSERT_TRUE(store.ok()) << store.status().message();
    const std::vector<float> part = values_of(w);
    ASSERT_EQ(part.size(), whole.size() / 2);
    for (size_t i = 0; i < part.size(); ++i)
      ASSERT_EQ(part[i], whole[i / 96 * 192 + static_cast<size_t>(rank) * 96 + i % 96]) << i;
  }
}

TEST(Mxfp8, RandomWeightsHaveUnitGain) {
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{256, 512}, {40, 160}}) {
    WeightPlan plan(symbols({{"E", 2}, {"N", n}, {"K", k}}),
                    [](const WeightSpec&) -> Result<Format> { return Format::kMxfp8; });
    LinearWeight w;
    ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());
    ThreadPool pool(2, PinThreads::kNo);
    const WeightStore store = random_weights(plan, pool, 9).value();
    double squares = 0;
    for (float x : values_of(w))
      squares += double{x} * double{x};
    EXPECT_GT(squares / static_cast<double>(n), 0.45) << n << "x" << k;
    EXPECT_LT(squares / static_cast<double>(n), 2.2) << n << "x" << k;
  }
}

/// The loader has what quantize wrote: the plain loops' weights, within half a step of the
/// original.
TEST(Mxfp8, QuantisedCheckpointsLoadAgain) {
  TestCheckpoint files;
  files.matrix("model.layers.0.mlp.down_proj.weight", 48, 96, Format::kF32);
  files.matrix("lm_head.weight", 16, 32, Format::kBf16);
  const Checkpoint source = files.open();
  write_bytes(source.directory() + "/config.json", "{\"num_hidden_layers\": 1}");
  std::vector<float> original(48 * 96);
  ASSERT_TRUE(source
                  .read(*source.find("model.layers.0.mlp.down_proj.weight"),
                        std::as_writable_bytes(std::span(original)))
                  .ok());
  const TempDir dir;
  QuantizeOptions options;
  options.format = Format::kMxfp8;
  ASSERT_TRUE(quantize_checkpoint(source, dir.file("out"), options).ok());

  const Checkpoint written = Checkpoint::open(dir.file("out")).value();
  WeightPlan plan(symbols({{"N", 48}, {"K", 96}}), tensors_of(written));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("model.layers.0.mlp.down_proj.weight", "N,K", WeightRole::kMlp, &w).ok());
  const Result<WeightStore> store = load(plan, written);
  ASSERT_TRUE(store.ok()) << store.status().message();

  std::vector<E4m3> codes(original.size());
  std::vector<Ue8m0> scales(original.size() / 32);
  std::vector<float> expected(original.size());
  mxfp8_quantize(original.data(), 48, 96, codes.data(), scales.data());
  fp8_dequantize_groups(codes.data(), scales.data(), 48, 96, kMxfp8Block, expected.data());
  EXPECT_EQ(values_of(w), expected);
  for (size_t i = 0; i < original.size(); ++i)
    ASSERT_NEAR(expected[i], original[i],
                std::max(std::fabs(original[i]) / 16, to_float(scales[i / 32]) * 0x1p-10f));
}

}  // namespace
}  // namespace fathom
