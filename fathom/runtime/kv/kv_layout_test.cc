#include "fathom/runtime/kv/kv_layout.h"

#include <cmath>
#include <gtest/gtest.h>

namespace fathom {
namespace {

KvLayout v3_layout(Format format) {
  return {.num_layers = 61, .width = 576, .format = format, .page_size = 64};
}

// deepseek-v3 notes, 2.20: bytes per token over all layers.
TEST(KvCacheBytes, AreThoseOfThePublishedTable) {
  EXPECT_EQ(v3_layout(Format::kBf16).bytes_per_token(), 70'272);
  EXPECT_EQ(v3_layout(Format::kE4m3).bytes_per_token(), 35'136);
  EXPECT_EQ(kv_cache_bytes(v3_layout(Format::kBf16), 100).value(), 100ll * 64 * 70'272);
  EXPECT_EQ(kv_cache_bytes(v3_layout(Format::kBf16), 0).value(), 0);
}

TEST(KvCacheBytes, PadLayersTo64Bytes) {
  const KvLayout layout{.num_layers = 3, .width = 5, .format = Format::kF32, .page_size = 1};

  EXPECT_EQ(kv_cache_bytes(layout, 1).value(), 3 * 64);
}

TEST(KvCacheBytes, RefuseWhatCannotBeAddressed) {
  const Result<int64_t> bytes = kv_cache_bytes(v3_layout(Format::kF32), int64_t{1} << 60);

  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
}

TEST(KvStorage, GivesEachLayerItsOwnAlignedPages) {
  const KvLayout layout{.num_layers = 3, .width = 5, .format = Format::kF32, .page_size = 2};
  Result<KvStorage> storage = KvStorage::allocate(layout, 7);
  ASSERT_TRUE(storage.ok());
  const auto views = storage->views();
  ASSERT_EQ(views.size(), 3u);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(views[l].data) % 64, 0u);
    EXPECT_EQ(views[l].dim(0), 7);
    EXPECT_EQ(views[l].dim(1), 2);
    EXPECT_EQ(views[l].dim(2), 5);
    for (int64_t i = 0; i < 70; ++i)
      views[l].as<float>()[i] = static_cast<float>(l + 1);
  }
  for (size_t l = 0; l < 3; ++l) {
    for (int64_t i = 0; i < 70; ++i) {
      ASSERT_EQ(views[l].as<float>()[i], static_cast<float>(l + 1));
    }
  }
}

TEST(KvStorage, PoisonsOnePageInEveryLayer) {
  const KvLayout layout{.num_layers = 2, .width = 3, .format = Format::kF32, .page_size = 2};
  Result<KvStorage> storage = KvStorage::allocate(layout, 3);
  ASSERT_TRUE(storage.ok());

  storage->poison_page(1);

  for (const View& layer : storage->views()) {
    for (int64_t i = 0; i < 18; ++i) {
      EXPECT_EQ(std::isnan(layer.as<float>()[i]), i >= 6 && i < 12) << i;
    }
  }
}

TEST(KvStorage, EmptyCacheHasLayersWithoutPages) {
  Result<KvStorage> storage = KvStorage::allocate(v3_layout(Format::kBf16), 0);

  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->views().size(), 61u);
  EXPECT_EQ(storage->bytes(), 0);
}

}  // namespace
}  // namespace fathom
