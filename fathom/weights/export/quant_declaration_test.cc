#include "fathom/weights/export/quant_declaration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/weights/checkpoint/quant_config.h"

namespace fathom {
namespace {

// What the reader makes of what the writer declares; both files agree, or reading fails.
QuantConfig read_back(const std::vector<ModuleFormat>& modules) {
  const QuantDeclaration d = declare_quantization(modules, "1.2");
  const Json config =
      parse_json("{\"quantization_config\": " + d.quantization_config + "}", {}, "c").value();
  if (d.sidecar.empty()) return parse_quant_config(&config, nullptr).value();
  const Json sidecar = parse_json(d.sidecar, {}, "s").value();
  return parse_quant_config(&config, &sidecar).value();
}

TEST(QuantDeclaration, OfOneFormatListsTheModulesWithoutIt) {
  const QuantConfig c =
      read_back({{"embed", Format::kBf16}, {"layers.0.attn.wq_a", Format::kNvfp4}});

  EXPECT_EQ(c.algo, QuantAlgo::kNvfp4);
  EXPECT_EQ(c.group_size, 16);
  EXPECT_TRUE(c.excludes("embed"));
  EXPECT_FALSE(c.excludes("layers.0.attn.wq_a"));
}

TEST(QuantDeclaration, OfExpertsInMxfp4BesideFp8IsThatOfDeepSeek) {
  const std::string text = declare_quantization({{"layers.0.ffn.experts.0.w1", Format::kMxfp4},
                                                 {"layers.0.attn.wq_a", Format::kFp8BlockUe8m0}},
                                                "1.2")
                               .quantization_config;
  const QuantConfig c = read_back({{"layers.0.ffn.experts.0.w1", Format::kMxfp4},
                                   {"layers.0.attn.wq_a", Format::kFp8BlockUe8m0}});

  EXPECT_EQ(c.method, "fp8");
  EXPECT_EQ(c.algo, QuantAlgo::kFp8Block);
  EXPECT_TRUE(c.ue8m0_scales);
  EXPECT_EQ(text.find("quant_algo"), std::string::npos) << text;
}

TEST(QuantDeclaration, OfExpertsInNvfp4BesideFp8IsThatOfNvidia) {
  for (const Format fp8 : {Format::kFp8BlockUe8m0, Format::kFp8Block}) {
    const QuantConfig c = read_back({{"head", Format::kBf16},
                                     {"layers.0.ffn.experts.0.w1", Format::kNvfp4},
                                     {"layers.0.attn.wq_a", fp8}});

    EXPECT_EQ(c.method, "fp8");
    EXPECT_EQ(c.algo, QuantAlgo::kMixed);
    EXPECT_EQ(c.ue8m0_scales, fp8 == Format::kFp8BlockUe8m0);
    EXPECT_EQ(c.block_n, 128);
    EXPECT_TRUE(c.excludes("layers.0.attn.wq_a"));
    EXPECT_FALSE(c.excludes("layers.0.ffn.experts.0.w1"));
  }
}

TEST(QuantDeclaration, OfOtherMixturesSaysSo) {
  EXPECT_EQ(read_back({{"a", Format::kMxfp4}, {"b", Format::kNvfp4}}).algo, QuantAlgo::kMixed);
  EXPECT_EQ(read_back({{"a", Format::kInt8Channel}, {"b", Format::kNvfp4}}).algo,
            QuantAlgo::kMixed);
}

TEST(QuantDeclaration, OfDenseWeightsIsEmpty) {
  const QuantDeclaration d = declare_quantization({{"a", Format::kBf16}}, "1.2");

  EXPECT_EQ(d.quantization_config, "");
  EXPECT_EQ(d.sidecar, "");
}

TEST(RewriteConfig, LeavesNoTraceOfADraftLayer) {
  constexpr std::string_view kConfig =
      R"({"num_hidden_layers": 2, "num_nextn_predict_layers": 1, "compress_ratios": [0, 4, 0]})";

  const Json with = parse_json(rewrite_config(kConfig, "", true).value(), {}, "c").value();
  const Json without = parse_json(rewrite_config(kConfig, "", false).value(), {}, "c").value();

  EXPECT_EQ(with.find("num_nextn_predict_layers")->as_int(), 1);
  EXPECT_EQ(with.find("compress_ratios")->items().size(), 3u);
  EXPECT_EQ(without.find("num_nextn_predict_layers")->as_int(), 0);
  EXPECT_EQ(without.find("compress_ratios")->items().size(), 2u);
  EXPECT_EQ(without.find("compress_ratios")->items()[1].as_int(), 4);
}

TEST(RewriteConfig, NamesTheFormatOfExperts) {
  const std::string config =
      rewrite_config(R"({"a": 1, "expert_dtype": "fp8", "b": 2})", "", true, "fp4").value();

  EXPECT_EQ(parse_json(config, {}, "c")->find("expert_dtype")->as_string(), "fp4");
  EXPECT_EQ(config.find("\"fp8\""), std::string::npos);
  EXPECT_THAT(rewrite_config(R"({"expert_dtype": "fp8"})", "", true).value(),
              testing::HasSubstr("\"fp8\""));
}

}  // namespace
}  // namespace fathom
