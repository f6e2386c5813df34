#include "fathom/kernels/moe/route/route.h"

#include <gtest/gtest.h>
#include <vector>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/launch.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

using Ints = std::vector<int32_t>;

View view_of(Ints& v) {
  return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kI32);
}

class RouteTest : public testing::Test {
 protected:
  Status route(Ints& ids, int64_t top_k) {
    const auto rows = static_cast<int64_t>(ids.size()) / top_k;
    src_row.assign(ids.size(), -9);
    dest.assign(ids.size(), -9);
    return launch<RouteOffsets>(runner.exec(), "experts",
                                {.ids = make_view(ids.data(), {rows, top_k}, Format::kI32),
                                 .offsets = view_of(offsets),
                                 .src_row = view_of(src_row),
                                 .dest = make_view(dest.data(), {rows, top_k}, Format::kI32)});
  }

  Status align(Ints& ids, int block, int num_experts) {
    Arena scratch(Buffer::allocate(DeviceKind::kCpu, 4096, "scratch").value());
    runner.exec().scratch = &scratch;
    Status s = launch<AlignExperts>(
        runner.exec(), "experts",
        {.ids = make_view(ids.data(), {static_cast<int64_t>(ids.size()), 1}, Format::kI32),
         .sorted_ids = view_of(sorted),
         .block_expert = view_of(blocks),
         .num_padded = view_of(padded),
         .block = block,
         .num_experts = num_experts,
         .starts = starts.empty() ? View{} : view_of(starts)});
    runner.exec().scratch = nullptr;
    return s;
  }

  CaseRunner runner{cpu_kernels(), 1};
  Ints offsets, src_row, dest, sorted, blocks, starts;
  Ints padded = {-9};
};

TEST_F(RouteTest, OffsetsOfTheExampleInTheHeader) {
  Ints ids = {2, 0, 0, -1};
  offsets.resize(4);

  ASSERT_TRUE(route(ids, 2).ok());

  EXPECT_EQ(offsets, (Ints{0, 2, 2, 3}));
  EXPECT_EQ(src_row, (Ints{0, 1, 0, -1}));
  EXPECT_EQ(dest, (Ints{2, 0, 1, -1}));
}

TEST_F(RouteTest, BlocksOfTheExampleInTheHeader) {
  Ints ids = {1, -1, 1};
  sorted.resize(6);
  blocks.resize(3);

  ASSERT_TRUE(align(ids, 2, 2).ok());

  EXPECT_EQ(sorted, (Ints{1, 3, 0, 2, 3, 3}));
  EXPECT_EQ(blocks, (Ints{-1, 1, -1}));
  EXPECT_EQ(padded, (Ints{4}));
}

TEST_F(RouteTest, RefusesIdsThatAreNoExpert) {
  Ints ids = {0, 3};
  offsets.resize(4);
  EXPECT_NE(route(ids, 1).message().find("ids[1,0] is 3, expected -1 to 2"), std::string::npos);
  ids = {-2, 0};
  EXPECT_NE(route(ids, 2).message().find("ids[0,0] is -2"), std::string::npos);
}

TEST_F(RouteTest, RefusesBuffersThatAreTooSmallAndNamesWhatSuffices) {
  Ints ids = {0, 1, 1};
  sorted.resize(7);
  blocks.resize(2);

  EXPECT_NE(align(ids, 4, 2).message().find("12 slots always suffice"), std::string::npos);
  sorted.resize(8);
  EXPECT_TRUE(align(ids, 4, 2).ok());
}

TEST_F(RouteTest, UnknownIdsAreSkippedWhenAskedFor) {
  Ints ids = {0, 3, -5, 2};
  offsets.resize(4);
  src_row.assign(4, -9);
  dest.assign(4, -9);
  RouteOffsets::Args args{.ids = make_view(ids.data(), {4, 1}, Format::kI32),
                          .offsets = view_of(offsets),
                          .src_row = view_of(src_row),
                          .dest = make_view(dest.data(), {4, 1}, Format::kI32)};
  EXPECT_FALSE(launch<RouteOffsets>(runner.exec(), "experts", args).ok());
  args.unknown = UnknownIds::kSkip;

  ASSERT_TRUE(launch<RouteOffsets>(runner.exec(), "experts", args).ok());

  EXPECT_EQ(offsets, (Ints{0, 1, 1, 2}));
  EXPECT_EQ(dest, (Ints{0, -1, -1, 1}));
  EXPECT_EQ(src_row, (Ints{0, 3, -1, -1}));
}

TEST_F(RouteTest, StartsNeedRoomForEveryBucketAndAnEnd) {
  Ints ids = {0, 1};
  sorted.resize(8);
  blocks.resize(4);
  starts.resize(3);

  EXPECT_NE(align(ids, 2, 2).message().find("starts holds 3 values, expected 4"),
            std::string::npos);
  starts.resize(4);
  EXPECT_TRUE(align(ids, 2, 2).ok());
  EXPECT_EQ(starts, (Ints{0, 0, 2, 4}));
}

TEST_F(RouteTest, CapacityIsTheWorstCaseOfEverySplit) {
  // All ways to give 4 slots to 3 buckets.
  for (int block : {1, 2, 3, 5}) {
    int64_t worst = 0;
    for (int a = 0; a <= 4; ++a) {
      for (int b = 0; a + b <= 4; ++b) {
        int64_t total = 0;
        for (int n : {a, b, 4 - a - b})
          total += (n + block - 1) / block * block;
        worst = std::max(worst, total);
      }
    }
    EXPECT_GE(AlignExperts::capacity(4, 2, block), worst) << block;
    EXPECT_LT(AlignExperts::capacity(4, 2, block), worst + block) << block;
  }
}

}  // namespace
}  // namespace fathom
