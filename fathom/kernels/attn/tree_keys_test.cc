#include "fathom/kernels/attn/tree_keys.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

// Counted place by place: what is seen, how much before a place, and where each of it lies.
TEST(TreeKeys, AreCountedInTheOrderOfTheirPlaces) {
  Rng rng(1);
  std::vector<uint64_t> masks{0, 1, 2, uint64_t{1} << 63, ~uint64_t{0}, 0x8000'0000'0000'0001};
  for (int i = 0; i < 50; ++i)
    masks.push_back(uint64_t{rng.next_below(1u << 31)} << 33 ^ rng.next_below(1u << 31) << 1);
  for (const int64_t begin : {0, 1, 63, 64, 1000}) {
    for (const uint64_t mask : masks) {
      const TreeToken token{begin, mask};
      int64_t count = 0;
      for (int64_t place = 0; place < begin + 70; ++place) {
        const int64_t row = place - begin;
        const bool seen = row < 0 || (row < 64 && (mask >> row & 1) != 0);
        ASSERT_EQ(sees_place(token, place), seen) << place;
        ASSERT_EQ(seen_before(token, place), count) << place;
        if (!seen) continue;
        ASSERT_EQ(place_of_seen(token, count), place);
        ++count;
      }
      ASSERT_EQ(num_seen(token), count);
    }
  }
}

TEST(TreeKeys, ThatDoNotFitARequestAreRefused) {
  std::vector<int64_t> masks{0b111, -1};
  std::vector<int32_t> lens{5, 70};
  const auto refused = [&](std::vector<int32_t> begins) {
    return check_trees(make_view(masks.data(), {2, 1}, Format::kI64),
                       make_view(begins.data(), {2}, Format::kI32),
                       make_view(lens.data(), {2}, Format::kI32))
        .message();
  };

  EXPECT_EQ(refused({2, 6}), "");
  EXPECT_EQ(refused({3, 6}),
            "tree_masks[0,0] names rows of the tree behind the last one, expected bits below 2");
  EXPECT_EQ(refused({2, 7}),
            "tree_masks[1,0] names rows of the tree behind the last one, expected bits below 63");
  EXPECT_EQ(refused({6, 6}),
            "tree_begins[0] is 6 of 5 keys, expected one of them with at most 64 keys from there "
            "on");
  EXPECT_EQ(refused({2, 5}),
            "tree_begins[1] is 5 of 70 keys, expected one of them with at most 64 keys from there "
            "on");
  EXPECT_EQ(check_tree_operands(make_view(masks.data(), {2, 1}, Format::kI64), {}).message(),
            "tree_masks are there without tree_begins");
}

}  // namespace
}  // namespace fathom
