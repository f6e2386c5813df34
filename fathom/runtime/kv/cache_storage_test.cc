#include "fathom/runtime/kv/cache_storage.h"

#include <cmath>
#include <gtest/gtest.h>

#include "tests/support/pooled_layout.h"

namespace fathom {
namespace {

CacheGroup latent(int layers, int64_t width, Format format, int64_t rows) {
  return {.name = "latent",
          .layers = std::vector<int>(static_cast<size_t>(layers)),
          .rows = rows,
          .codec = PageCodec::dense("mla latent", format, width, nullptr)};
}

CacheLayout one_group(int layers, int64_t width, Format format, int64_t block) {
  return {.block_tokens = block, .groups = {latent(layers, width, format, block)}};
}

TEST(KvFormat, AutoFollowsTheActivations) {
  EXPECT_EQ(choose_kv_format("auto", Format::kBf16).value(), Format::kBf16);
  EXPECT_EQ(choose_kv_format("auto", Format::kF32).value(), Format::kF32);
  EXPECT_EQ(choose_kv_format("bf16", Format::kF32).value(), Format::kBf16);
  EXPECT_EQ(choose_kv_format("f32", Format::kBf16).value(), Format::kF32);
  EXPECT_EQ(choose_kv_format("fp8_e4m3", Format::kBf16).value(), Format::kE4m3);
}

TEST(KvFormat, NamesFlagAndChoicesWhenRefused) {
  const Result<Format> result = choose_kv_format("nvfp4", Format::kBf16);

  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(result.status().message().find("--kv-cache-dtype is nvfp4"), std::string::npos);
}

TEST(CacheStorage, GivesEachLayerItsOwnAlignedPages) {
  Result<CacheStorage> storage = CacheStorage::allocate(one_group(3, 5, Format::kF32, 2), 7, 0);
  ASSERT_TRUE(storage.ok());
  const GroupRows& rows = storage->groups()[0];
  ASSERT_EQ(rows.views.size(), 3u);
  for (size_t l = 0; l < 3; ++l) {
    const View& v = rows.at(l);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data) % 64, 0u);
    EXPECT_EQ(v.dim(0), 7);
    EXPECT_EQ(v.dim(1), 2);
    EXPECT_EQ(v.dim(2), 5);
    for (int64_t i = 0; i < 70; ++i)
      v.as<float>()[i] = static_cast<float>(l + 1);
  }
  for (size_t l = 0; l < 3; ++l) {
    for (int64_t i = 0; i < 70; ++i) {
      ASSERT_EQ(rows.at(l).as<float>()[i], static_cast<float>(l + 1));
    }
  }
}

TEST(CacheStorage, PoisonsOneBlockInEveryLayer) {
  Result<CacheStorage> storage = CacheStorage::allocate(one_group(2, 3, Format::kF32, 2), 3, 0);
  ASSERT_TRUE(storage.ok());

  storage->poison_block(1);

  for (const View& layer : storage->groups()[0].views) {
    for (int64_t i = 0; i < 18; ++i) {
      EXPECT_EQ(std::isnan(layer.as<float>()[i]), i >= 6 && i < 12) << i;
    }
  }
}

TEST(CacheStorage, EmptyCacheHasLayersWithoutPages) {
  Result<CacheStorage> storage =
      CacheStorage::allocate(one_group(61, 576, Format::kBf16, 64), 0, 0);

  ASSERT_TRUE(storage.ok());
  EXPECT_EQ(storage->groups()[0].views.size(), 61u);
  EXPECT_EQ(storage->bytes(), 0);
}

// Rows that mix formats, with scales apart: DeepSeek-V4's main row (fp8_ds_mla), 584 bytes in two
// planes, pages padded to multiples of 576 bytes.
PageCodec mixed_codec() {
  return {.name = "fp8_ds_mla",
          .plane_bytes = {576, 8},
          .fields = {{.name = "values", .format = Format::kE4m3, .width = 448, .plane = 0},
                     {.name = "rope", .format = Format::kBf16, .width = 64, .offset = 448},
                     {.name = "scales", .format = Format::kU8, .width = 7, .plane = 1}},
          .alignment = 576};
}

TEST(CacheStorage, CopiesRingsAndStatesFromSlotToSlotInOrder) {
  CacheLayout layout = one_group(2, 3, Format::kF32, 4);
  layout.groups.push_back({.name = "window",
                           .layers = {0, 1},
                           .extent = CacheExtent::kWindow,
                           .window = 3,
                           .rows = 5,
                           .codec = mixed_codec()});
  Result<CacheStorage> storage = CacheStorage::allocate(layout, 2, 3);
  ASSERT_TRUE(storage.ok());
  const auto scale = [&](size_t layer, int64_t slot, int64_t row) -> uint8_t& {
    const View& v = storage->groups()[1].at(layer, 2);
    return v.as<uint8_t>()[slot * v.stride(0) + row * v.stride(1) + 6];
  };
  for (size_t l = 0; l < 2; ++l) {
    for (int64_t slot = 0; slot < 3; ++slot) {
      for (int64_t row = 0; row < 5; ++row)
        scale(l, slot, row) = static_cast<uint8_t>(100 * l + 10 * slot + row);
    }
  }
  const std::vector<SlotCopy> copies{{.from = 0, .to = 1}, {.from = 1, .to = 2}};

  ASSERT_TRUE(storage->copy_slots(copies, nullptr).ok());

  for (size_t l = 0; l < 2; ++l) {
    for (int64_t slot = 0; slot < 3; ++slot) {
      for (int64_t row = 0; row < 5; ++row)
        EXPECT_EQ(scale(l, slot, row), 100 * l + row) << l << " " << slot;
    }
  }
}

// A row of page p and place r, in each plane.
TEST(CacheStorage, MovesRowsOfATreeToWhereThoseOfAChainLie) {
  CacheLayout layout = one_group(2, 3, Format::kF32, 4);
  layout.groups.push_back({.name = "index", .layers = {0}, .rows = 4, .codec = mixed_codec()});
  Result<CacheStorage> storage = CacheStorage::allocate(layout, 6, 0);
  ASSERT_TRUE(storage.ok());
  const std::vector<PageId> pages{4, 1, 5};
  const auto latent_at = [&](size_t layer, int64_t token) -> float& {
    const View& v = storage->groups()[0].at(layer);
    return v.as<float>()[pages[static_cast<size_t>(token / 4)] * v.stride(0) +
                         token % 4 * v.stride(1) + 2];
  };
  const auto byte_at = [&](size_t field, int64_t token) -> uint8_t& {
    const View& v = storage->groups()[1].at(0, field);
    return v.as<uint8_t>()[pages[static_cast<size_t>(token / 4)] * v.stride(0) +
                           token % 4 * v.stride(1) + 5];
  };
  for (int64_t token = 0; token < 12; ++token) {
    for (size_t layer = 0; layer < 2; ++layer)
      latent_at(layer, token) = static_cast<float>(100 * layer) + static_cast<float>(token);
    for (const size_t field : {size_t{0}, size_t{2}})
      byte_at(field, token) = static_cast<uint8_t>(100 * field + static_cast<size_t>(token));
  }
  // Tokens 3, 6, 7 and 11 are a path.
  const std::vector<int32_t> parents{-1, 0, 0, 0, 3, 3, 3, 3, 4};
  TreeRows tree;
  tree.set(3, parents);
  RowMoves moves(layout);
  moves.add(tree, std::vector<int32_t>{0, 3, 4, 8}, pages, kNoPage);
  const View all = moves.all();
  EXPECT_EQ(moves.of_group(1, all).dim(0), 3) << "a row that is right where it is stays";

  ASSERT_TRUE(storage->move_rows(moves, all, nullptr).ok());

  // Tokens 3 to 6 are those of the path; what lies elsewhere stays.
  const std::vector<int64_t> found{0, 1, 2, 3, 6, 7, 11, 7, 8, 9, 10, 11};
  for (int64_t token = 0; token < 12; ++token) {
    const int64_t is = found[static_cast<size_t>(token)];
    for (size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(latent_at(layer, token), static_cast<float>(100 * layer) + static_cast<float>(is));
    }
    for (const size_t field : {size_t{0}, size_t{2}})
      EXPECT_EQ(byte_at(field, token), 100 * field + static_cast<size_t>(is)) << field;
  }
}

// A ring of twelve rows, and rows of four tokens: path 0 2 4 of a tree whose root is token 5.
TEST(CacheStorage, MovesRowsOfRingsAndPooledRows) {
  const CacheLayout layout = pooled_rows();
  Result<CacheStorage> storage = CacheStorage::allocate(layout, 8, 3);
  ASSERT_TRUE(storage.ok());
  const auto value_at = [&](size_t group, int64_t slot) -> float& {
    return storage->groups()[group].at(0).as<float>()[slot];
  };
  for (int64_t slot = 0; slot < 16; ++slot)
    value_at(1, slot) = static_cast<float>(slot);
  for (int64_t slot = 0; slot < 36; ++slot)
    value_at(0, slot) = static_cast<float>(slot);
  const std::vector<PageId> pages{5, 3, 7};
  const std::vector<int32_t> parents{-1, 0, 0, 1, 2};
  TreeRows tree;
  tree.set(5, parents);
  RowMoves moves(layout);
  moves.add(tree, std::vector<int32_t>{2, 4}, pages, 2);

  ASSERT_TRUE(storage->move_rows(moves, moves.all(), nullptr).ok());

  // Tokens 6 and 7 are those that lay in rows 7 and 9 of the ring; the row of tokens 4 to 7 lay
  // behind that of the other path.
  for (int64_t slot = 0; slot < 36; ++slot) {
    const int64_t from = slot == 24 + 6 ? 24 + 7 : slot == 24 + 7 ? 24 + 9 : slot;
    EXPECT_EQ(value_at(0, slot), static_cast<float>(from)) << slot;
  }
  for (int64_t slot = 0; slot < 16; ++slot)
    EXPECT_EQ(value_at(1, slot), static_cast<float>(slot == 11 ? 6 : slot)) << slot;
}

}  // namespace
}  // namespace fathom
