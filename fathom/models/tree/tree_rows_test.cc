#include "fathom/models/tree/tree_rows.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::vector<int64_t> positions_of(const TreeRows& tree) {
  std::vector<int64_t> positions;
  for (int64_t row = 0; row < tree.size(); ++row)
    positions.push_back(tree.position(row));
  return positions;
}

// The picture of tree_rows.h.
TEST(TreeRows, TokensThatCompleteARowHaveOneEach) {
  const std::vector<int32_t> parents{-1, 0, 0, 1, 2, 3};
  TreeRows tree;
  tree.set(7, parents);

  GroupTree twos;
  tree.pool(2, twos);

  EXPECT_EQ(positions_of(tree), (std::vector<int64_t>{7, 8, 8, 9, 9, 10}));
  EXPECT_EQ(twos.begin, 4);
  EXPECT_EQ(twos.places, (std::vector<int64_t>{3, -1, -1, 4, 5, -1}));
  EXPECT_EQ(twos.masks, (std::vector<uint64_t>{0, 0, 0, 0b1, 0b10, 0b1}));
}

TEST(TreeRows, AGroupWithARowATokenHasThemWhereTheTokensLie) {
  const std::vector<int32_t> parents{-1, 0, 0, 1, 2, 3};
  TreeRows tree;
  tree.set(7, parents);

  GroupTree ones;
  tree.pool(1, ones);

  EXPECT_EQ(ones.begin, tree.begin());
  for (int64_t row = 0; row < tree.size(); ++row) {
    EXPECT_EQ(ones.places[static_cast<size_t>(row)], tree.place(row));
    EXPECT_EQ(ones.masks[static_cast<size_t>(row)], tree.token(row).mask);
  }
}

TEST(TreeRows, ATreeWithoutARootBeginsBehindWhatIsKnown) {
  const std::vector<int32_t> parents{-1, -1, 0, 1};
  TreeRows tree;
  tree.set(3, parents);

  GroupTree fours;
  tree.pool(4, fours);

  EXPECT_EQ(positions_of(tree), (std::vector<int64_t>{3, 3, 4, 4}));
  EXPECT_EQ(fours.begin, 0);
  EXPECT_EQ(fours.places, (std::vector<int64_t>{0, 1, -1, -1}));
  EXPECT_EQ(fours.masks, (std::vector<uint64_t>{0b1, 0b10, 0b1, 0b10}));
}

TEST(TreeRows, RowsOfAChainLieWhereTheyStand) {
  TreeRows tree;
  tree.set_chain(5, 9);

  GroupTree fours;
  tree.pool(4, fours);

  EXPECT_EQ(fours.places, (std::vector<int64_t>{-1, -1, 1, -1, -1, -1, 2, -1, -1}));
  EXPECT_EQ(fours.masks.back(), 0b11u);
}

}  // namespace
}  // namespace fathom
