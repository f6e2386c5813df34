#include "fathom/models/cache_layout.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

CacheGroup latent(Format format) {
  return {.name = "latent",
          .layers = std::vector<int>(61),
          .rows = 64,
          .codec = PageCodec::dense("mla latent bf16", format, 576, nullptr)};
}

CacheLayout v3_layout(Format format) {
  return {.block_tokens = 64, .groups = {latent(format)}};
}

// DeepSeek-V4's main row: 448 E4M3 and 64 BF16 numbers in one plane, 7 scales and a pad byte in
// another. vLLM and FlashMLA pad pages to multiples of 576 bytes.
PageCodec v4_codec() {
  return {.name = "fp8_ds_mla",
          .plane_bytes = {576, 8},
          .fields = {{.name = "values", .format = Format::kE4m3, .width = 448},
                     {.name = "rope", .format = Format::kBf16, .width = 64, .offset = 448},
                     {.name = "scales", .format = Format::kU8, .width = 7, .plane = 1}},
          .alignment = 576};
}

CacheLayout v4_layout() {
  return {
      .block_tokens = 256,
      .groups = {
          {.name = "csa", .layers = {0, 2}, .tokens_per_row = 4, .rows = 64, .codec = v4_codec()},
          {.name = "hca", .layers = {1}, .tokens_per_row = 128, .rows = 2, .codec = v4_codec()},
          {.name = "window",
           .layers = {0, 1, 2},
           .extent = CacheExtent::kWindow,
           .window = 128,
           .rows = 132,
           .codec = v4_codec()}}};
}

// deepseek-v3 notes, 2.20: bytes per token over all layers.
TEST(CacheBytes, AreThoseOfThePublishedTable) {
  EXPECT_EQ(v3_layout(Format::kBf16).bytes_per_block(), 64 * 70'272);
  EXPECT_EQ(v3_layout(Format::kE4m3).bytes_per_block(), 64 * 35'136);
  EXPECT_EQ(cache_bytes(v3_layout(Format::kBf16), 100, 0).value(), 100ll * 64 * 70'272);
  EXPECT_EQ(cache_bytes(v3_layout(Format::kBf16), 0, 0).value(), 0);
}

// deepseek-v4 notes, 3.3: a page of 64 rows is 37,376 bytes padded to 37,440, one of 2 rows 1,168
// padded to 1,728.
TEST(CacheBytes, OfPagesWithPlanesArePadded) {
  EXPECT_EQ(v4_codec().page_bytes(64), 37'440);
  EXPECT_EQ(v4_codec().page_bytes(2), 1'728);
  EXPECT_EQ(v4_layout().bytes_per_block(), 2 * 37'440 + 1'728);
  EXPECT_EQ(v4_layout().bytes_per_slot(), 3 * v4_codec().page_bytes(132));
}

TEST(CacheBytes, PadLayersTo64Bytes) {
  const CacheLayout layout{.block_tokens = 1,
                           .groups = {{.name = "g",
                                       .layers = {0, 1, 2},
                                       .rows = 1,
                                       .codec = PageCodec::dense("g", Format::kF32, 5, nullptr)}}};

  EXPECT_EQ(cache_bytes(layout, 1, 0).value(), 3 * 64);
}

TEST(CacheBytes, RefuseWhatCannotBeAddressed) {
  const Result<int64_t> bytes = cache_bytes(v3_layout(Format::kF32), int64_t{1} << 60, 0);

  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
}

TEST(PageCodec, FieldsLieWhereTheDiagramSays) {
  std::vector<std::byte> memory(static_cast<size_t>(2 * v4_codec().page_bytes(64)));
  const auto at = [&](size_t field, int64_t page, int64_t row) {
    const View v = v4_codec().view(field, memory.data(), 2, 64);
    const int64_t element = element_bytes(v.format);
    return static_cast<std::byte*>(v.data) + (page * v.stride(0) + row * v.stride(1)) * element -
           memory.data();
  };

  EXPECT_EQ(at(0, 0, 3), 3 * 576);
  EXPECT_EQ(at(1, 0, 3), 3 * 576 + 448);
  EXPECT_EQ(at(2, 0, 3), 64 * 576 + 3 * 8);
  EXPECT_EQ(at(2, 1, 63), 37'440 + 64 * 576 + 63 * 8);
}

TEST(CacheLayout, SlackIsWhatRingsHoldBeyondTheirWindow) {
  EXPECT_EQ(v3_layout(Format::kBf16).slack(), INT64_MAX);
  EXPECT_FALSE(v3_layout(Format::kBf16).has_slots());
  EXPECT_EQ(v4_layout().slack(), 4);
  CacheLayout with_state = v4_layout();
  with_state.groups[2].extent = CacheExtent::kState;
  EXPECT_EQ(with_state.slack(), 0);
}

// Every token of a tree may complete a row on its own path, where a path may complete one at all.
TEST(CacheLayout, TreesMayTakeBlocksForRowsThatArePooled) {
  CacheLayout layout = v4_layout();
  EXPECT_EQ(layout.blocks_for_tree(120, 17), 1) << "rows are not pooled";
  EXPECT_FALSE(layout.keeps_rows());
  layout.groups[0].pool_ring = 2;
  layout.groups[1].pool_ring = 2;
  EXPECT_TRUE(layout.keeps_rows());

  EXPECT_EQ(layout.blocks_for_tree(100, 17), 1);
  EXPECT_EQ(layout.blocks_for_tree(110, 17), 1);
  EXPECT_EQ(layout.blocks_for_tree(111, 17), 9);
  EXPECT_EQ(layout.blocks_for_tree(127, 1), 1);
  EXPECT_EQ(layout.blocks_for_tree(200, 17), 2);
  EXPECT_EQ(layout.blocks_for_tree(250, 17), 9);
  EXPECT_EQ(v3_layout(Format::kBf16).blocks_for_tree(60, 5), 2);
}

TEST(CacheLayout, SaysBytesPerTokenAndPerSequence) {
  const CacheLayout v3 = v3_layout(Format::kBf16);
  EXPECT_EQ(v3.describe(v3.groups[0]),
            "latent: mla latent bf16, 61 layers x 576 x 2 bytes = 70272 bytes per token, 64 tokens "
            "per page");
  const CacheLayout v4 = v4_layout();
  EXPECT_EQ(
      v4.describe(v4.groups[0]),
      "csa: fp8_ds_mla, 2 layers x 584 bytes / 4 tokens = 292 bytes per token, 256 tokens per "
      "page");
  EXPECT_EQ(v4.describe(v4.groups[2]),
            str_cat("window: fp8_ds_mla, 3 layers x 584 bytes x 132 rows = ",
                    3 * v4_codec().page_bytes(132), " bytes per sequence"));
}

TEST(CacheLayout, RefusesGroupsThatContradictThemselves) {
  EXPECT_TRUE(v3_layout(Format::kBf16).validate().ok());
  EXPECT_TRUE(v4_layout().validate().ok());
  CacheLayout layout = v4_layout();
  layout.groups[1].rows = 3;
  EXPECT_FALSE(layout.validate().ok()) << "a page is not a block";
  layout = v4_layout();
  layout.groups[2].window = 133;
  EXPECT_FALSE(layout.validate().ok()) << "the ring is smaller than the window";
  layout = v4_layout();
  layout.groups[0].codec.fields[1].offset = 449;
  EXPECT_FALSE(layout.validate().ok()) << "the field ends outside the plane";
}

TEST(CacheLayout, FingerprintChangesWithEverythingThatShapesAPage) {
  const std::string base = v4_layout().fingerprint();
  CacheLayout layout = v4_layout();
  layout.groups[0].codec.fields[0].format = Format::kI8;
  EXPECT_NE(layout.fingerprint(), base);
  layout = v4_layout();
  layout.groups[0].codec.plane_bytes[1] = 16;
  EXPECT_NE(layout.fingerprint(), base);
  layout = v4_layout();
  layout.groups[2].rows = 140;
  EXPECT_NE(layout.fingerprint(), base);
  EXPECT_EQ(v4_layout().fingerprint(), base);
}

}  // namespace
}  // namespace fathom
