#include "fathom/runtime/kv/random_rows.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <set>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

CacheGroup group_of(PageCodec codec) {
  return {.name = "rows", .layers = {0}, .rows = 32, .codec = std::move(codec)};
}

PageCodec mixed_codec() {
  return {.name = "row",
          .plane_bytes = {448 + 2 * 64, 8, 4},
          .fields = {{.name = "values", .format = Format::kE4m3, .width = 448},
                     {.name = "rope", .format = Format::kBf16, .width = 64, .offset = 448},
                     {.name = "scales", .format = Format::kUe8m0, .width = 7, .plane = 1},
                     {.name = "scales", .format = Format::kF32, .width = 1, .plane = 2}},
          .alignment = 576};
}

template <typename T>
float number_at(const View& v, int64_t page, int64_t row, int64_t i) {
  T x;
  std::memcpy(&x, static_cast<const T*>(v.data) + page * v.stride(0) + row * v.stride(1) + i,
              sizeof(T));
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return to_float(x);
}

float number_at(const View& v, int64_t page, int64_t row, int64_t i) {
  switch (v.format) {
    case Format::kE4m3:
      return number_at<E4m3>(v, page, row, i);
    case Format::kBf16:
      return number_at<Bf16>(v, page, row, i);
    case Format::kUe8m0:
      return number_at<Ue8m0>(v, page, row, i);
    default:
      return number_at<float>(v, page, row, i);
  }
}

TEST(RandomPages, EveryNumberIsBetweenOneAndTwoInItsFormat) {
  const CacheGroup group = group_of(mixed_codec());
  constexpr int64_t kPages = 3;
  std::vector<std::byte> pages = random_pages(group, kPages, 7);
  ASSERT_EQ(pages.size(), static_cast<size_t>(kPages * group.codec.page_bytes(32)));

  for (size_t f = 0; f < group.codec.fields.size(); ++f) {
    const View v = group.codec.view(f, pages.data(), kPages, 32);
    const bool scales = group.codec.fields[f].name == "scales";
    std::set<float> found;
    for (int64_t page = 0; page < kPages; ++page) {
      for (int64_t row = 0; row < 32; ++row) {
        for (int64_t i = 0; i < v.dim(2); ++i) {
          const float x = number_at(v, page, row, i);
          EXPECT_GE(std::abs(x), 1.0f);
          EXPECT_LE(std::abs(x), 2.0f);
          if (scales) {
            EXPECT_GT(x, 0.0f);
          }
          found.insert(x);
        }
      }
    }
    EXPECT_GE(found.size(), v.format == Format::kUe8m0 ? 2u : 16u) << f;
  }
}

TEST(RandomPages, FollowTheirSeed) {
  const CacheGroup group = group_of(mixed_codec());
  EXPECT_EQ(random_pages(group, 2, 1), random_pages(group, 2, 1));
  EXPECT_NE(random_pages(group, 2, 1), random_pages(group, 2, 2));
}

TEST(RandomPages, PairsOfCodesAreAnyByte) {
  const CacheGroup group =
      group_of({.name = "codes",
                .plane_bytes = {64},
                .fields = {{.name = "keys", .format = Format::kU8, .width = 64}}});
  const std::vector<std::byte> pages = random_pages(group, 4, 3);
  EXPECT_GT(std::set<std::byte>(pages.begin(), pages.end()).size(), 200u);
}

}  // namespace
}  // namespace fathom
