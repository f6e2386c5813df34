#include "fathom/weights/export/shard_plan.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/text/json.h"

namespace fathom {
namespace {

std::vector<TensorEntry> byte_tensors(const std::vector<int64_t>& sizes) {
  std::vector<TensorEntry> tensors;
  for (size_t i = 0; i < sizes.size(); ++i) {
    tensors.push_back({str_cat("t", i), Format::kU8, {sizes[i]}, 0, 0});
  }
  return tensors;
}

std::vector<std::vector<size_t>> shards_of(const std::vector<int64_t>& sizes, int64_t max_bytes) {
  const auto shards = plan_shards(byte_tensors(sizes), max_bytes, {});
  std::vector<std::vector<size_t>> out;
  if (!shards.ok()) return out;
  for (const ShardPlan& shard : *shards)
    out.push_back(shard.tensors);
  return out;
}

std::string error_of(const std::vector<TensorEntry>& tensors) {
  const auto shards = plan_shards(tensors, 100, {});
  return shards.ok() ? "accepted" : shards.status().message();
}

using Shards = std::vector<std::vector<size_t>>;

TEST(ShardPlan, FillsShardsInOrderUpToTheLimit) {
  EXPECT_EQ(shards_of({}, 10), (Shards{{}}));
  EXPECT_EQ(shards_of({4, 6}, 10), (Shards{{0, 1}}));
  EXPECT_EQ(shards_of({4, 7}, 10), (Shards{{0}, {1}}));
  EXPECT_EQ(shards_of({4, 6, 1, 0}, 10), (Shards{{0, 1}, {2, 3}}));
  EXPECT_EQ(shards_of({100, 1, 100}, 10), (Shards{{0}, {1}, {2}}));
  EXPECT_EQ(shards_of({0, 0, 100}, 10), (Shards{{0, 1}, {2}}));
}

TEST(ShardPlan, NamesFollowTheNumberOfShards) {
  const auto one = plan_shards(byte_tensors({1, 2}), 10, {});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ((*one)[0].name, "model.safetensors");

  const auto many = plan_shards(byte_tensors(std::vector<int64_t>(12, 10)), 10, {});
  ASSERT_TRUE(many.ok());
  EXPECT_EQ((*many)[0].name, "model-00001-of-00012.safetensors");
  EXPECT_EQ((*many)[11].name, "model-00012-of-00012.safetensors");
}

TEST(ShardPlan, HeaderDescribesTheShard) {
  const auto shards = plan_shards(byte_tensors({3, 5}), 10, {{"format", "pt"}});
  ASSERT_TRUE(shards.ok());
  const ShardPlan& shard = (*shards)[0];
  EXPECT_EQ(shard.data_bytes, 8);
  EXPECT_EQ(shard.file_bytes(), static_cast<int64_t>(shard.header.size()) + 8);

  const auto header =
      parse_safetensors_header(std::string_view(shard.header).substr(8), shard.file_bytes(), "F");

  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors[0].name, "t0");
  EXPECT_EQ(header->tensors[1].begin, static_cast<int64_t>(shard.header.size()) + 3);
  EXPECT_EQ(header->data_begin % 8, 0);
}

TEST(ShardPlan, KeepsTheOrderWhereEverythingIsAligned) {
  const std::vector<TensorEntry> tensors = {{"a", Format::kU8, {16}, 0, 0},
                                            {"b", Format::kF32, {}, 0, 0},
                                            {"c", Format::kBf16, {2}, 0, 0},
                                            {"d", Format::kI64, {1}, 0, 0}};
  EXPECT_EQ((*plan_shards(tensors, 1000, {}))[0].tensors, (std::vector<size_t>{0, 1, 2, 3}));
}

TEST(ShardPlan, OrdersByElementSizeWhereAlignmentNeedsIt) {
  const std::vector<TensorEntry> tensors = {
      {"a", Format::kU8, {3}, 0, 0},  {"b", Format::kBf16, {3}, 0, 0},
      {"c", Format::kF32, {}, 0, 0},  {"d", Format::kBf16, {1}, 0, 0},
      {"e", Format::kI64, {1}, 0, 0}, {"f", Format::kE4m3, {5}, 0, 0}};
  const auto shards = plan_shards(tensors, 1000, {});
  ASSERT_TRUE(shards.ok());
  EXPECT_EQ((*shards)[0].tensors, (std::vector<size_t>{4, 2, 1, 3, 0, 5}));
}

TEST(ShardPlan, BadTensorsAreRefusedByName) {
  EXPECT_EQ(error_of({{"a", Format::kU8, {1}, 0, 0}, {"a", Format::kU8, {1}, 0, 0}}),
            "tensor \"a\" is there twice");
  EXPECT_EQ(error_of({{"", Format::kU8, {1}, 0, 0}}),
            "tensor name \"\", expected 1 to 1024 bytes of UTF-8");
  EXPECT_EQ(error_of({{"__metadata__", Format::kU8, {1}, 0, 0}}),
            "tensor name \"__metadata__\", expected 1 to 1024 bytes of UTF-8");
  EXPECT_EQ(error_of({{"\xff", Format::kU8, {1}, 0, 0}}),
            "tensor name \"\\ufffd\", expected 1 to 1024 bytes of UTF-8");
  EXPECT_EQ(error_of({{std::string(1025, 'a'), Format::kU8, {1}, 0, 0}}).substr(0, 13),
            "tensor name \"");
  EXPECT_EQ(error_of({{"a", Format::kNvfp4, {1}, 0, 0}}),
            "tensor \"a\" of format nvfp4, expected a dense format");
  EXPECT_EQ(error_of({{"a", Format::kNone, {1}, 0, 0}}).substr(0, 20), "tensor \"a\" of format");
  EXPECT_EQ(error_of({{"a", Format::kU8, {-1}, 0, 0}}),
            "tensor \"a\": U8 [-1] is beyond the limits of the format");
  EXPECT_EQ(error_of({{"a", Format::kU8, {int64_t{1} << 40, 2}, 0, 0}}),
            "tensor \"a\": U8 [1099511627776, 2] is beyond the limits of the format");
}

TEST(ShardPlan, IndexNamesEveryTensorOnceSortedByName) {
  const std::vector<TensorEntry> tensors = {
      {"b", Format::kU8, {8}, 0, 0}, {"a", Format::kU8, {8}, 0, 0}, {"c", Format::kU8, {1}, 0, 0}};
  const auto shards = plan_shards(tensors, 16, {});
  ASSERT_TRUE(shards.ok());

  EXPECT_EQ(format_index(tensors, *shards),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 17\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\": \"model-00001-of-00002.safetensors\",\n"
            "    \"b\": \"model-00001-of-00002.safetensors\",\n"
            "    \"c\": \"model-00002-of-00002.safetensors\"\n"
            "  }\n"
            "}\n");
}

}  // namespace
}  // namespace fathom
