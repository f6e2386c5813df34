#include "fathom/base/near_names.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(NearNames, DistanceCountsInsertionsDeletionsAndSubstitutions) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("rmsnorm", "rmsnrm"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

TEST(NearNames, NearestFirstTiesByNameAndNothingFarAway) {
  const std::vector<std::string> names{"--top-p", "--top-k", "--prompt", "--temperature"};
  EXPECT_EQ(near_names("--top-q", names), (std::vector<std::string>{"--top-k", "--top-p"}));
  EXPECT_EQ(near_names("--temprature", names, 1), (std::vector<std::string>{"--temperature"}));
  EXPECT_TRUE(near_names("zzzz", names).empty());
  EXPECT_TRUE(near_names("--top-q", {}).empty());
}

}  // namespace
}  // namespace fathom
