#include "fathom/weights/checkpoint/quant_config.h"

#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

// Either text may be empty: no such file.
Result<QuantConfig> parse(std::string_view config, std::string_view sidecar = "") {
  std::optional<Json> parts[2];
  for (int i = 0; i < 2; ++i) {
    const std::string_view text = i == 0 ? config : sidecar;
    if (!text.empty()) {
      FATHOM_ASSIGN(parts[i], parse_json(text, {}, "test"));
    }
  }
  return parse_quant_config(parts[0] ? &*parts[0] : nullptr, parts[1] ? &*parts[1] : nullptr);
}

// The quantization_config alone.
Result<QuantConfig> parse_declared(const std::string& declared) {
  return parse("{\"quantization_config\":" + declared + "}");
}

std::string error_of(const Result<QuantConfig>& result) {
  return result.ok() ? "accepted" : result.status().message();
}

TEST(QuantConfig, SilenceMeansNone) {
  for (const char* config : {"", "{}", R"({"quantization_config":null})"}) {
    const auto quant = parse(config);
    ASSERT_TRUE(quant.ok()) << quant.status().message();
    EXPECT_EQ(quant->algo, QuantAlgo::kNone);
    EXPECT_EQ(quant->source, "");
    EXPECT_EQ(quant->kv_cache, KvQuant::kNone);
  }
}

// deepseek-ai/DeepSeek-V3 config.json.
TEST(QuantConfig, ReadsTheOfficialFp8Declaration) {
  const auto quant =
      parse_declared(R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",)"
                     R"("weight_block_size":[128,128]})");

  ASSERT_TRUE(quant.ok()) << quant.status().message();
  EXPECT_EQ(quant->source, "config.json");
  EXPECT_EQ(quant->method, "fp8");
  EXPECT_EQ(quant->algo, QuantAlgo::kFp8Block);
  EXPECT_EQ(quant->block_n, 128);
  EXPECT_EQ(quant->block_k, 128);
  EXPECT_FALSE(quant->ue8m0_scales);
}

// deepseek-ai/DeepSeek-V3.1 config.json.
TEST(QuantConfig, ReadsTheScaleFormatOfV31) {
  const auto quant = parse_declared(
      R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","scale_fmt":"ue8m0",)"
      R"("weight_block_size":[128,128]})");

  ASSERT_TRUE(quant.ok()) << quant.status().message();
  EXPECT_EQ(quant->algo, QuantAlgo::kFp8Block);
  EXPECT_TRUE(quant->ue8m0_scales);
}

// nvidia/DeepSeek-R1-NVFP4-v2 hf_quant_config.json, shortened.
constexpr const char* kSidecar =
    R"({"producer":{"name":"modelopt","version":"0.33"},"quantization":{"quant_algo":"NVFP4",)"
    R"("kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head",)"
    R"("model.layers.*.self_attn.q_a_proj","model.layers.61*"]}})";

TEST(QuantConfig, ReadsModeloptsSidecar) {
  const auto quant = parse("{}", kSidecar);

  ASSERT_TRUE(quant.ok()) << quant.status().message();
  EXPECT_EQ(quant->source, "hf_quant_config.json");
  EXPECT_EQ(quant->method, "NVFP4");
  EXPECT_EQ(quant->algo, QuantAlgo::kNvfp4);
  EXPECT_EQ(quant->group_size, 16);
  EXPECT_EQ(quant->kv_cache, KvQuant::kFp8);
  EXPECT_EQ(quant->exclude.size(), 3u);
}

TEST(QuantConfig, ReadsModeloptsFormOfConfigJson) {
  const auto quant = parse_declared(
      R"({"config_groups":{"group_0":{"weights":{"num_bits":4,"type":"float","group_size":16},)"
      R"("targets":["Linear"]}},"ignore":["lm_head"],"quant_algo":"NVFP4","kv_cache_scheme":)"
      R"({"dynamic":false,"num_bits":8,"type":"float"},"producer":{"name":"modelopt"},)"
      R"("quant_method":"modelopt"})");

  ASSERT_TRUE(quant.ok()) << quant.status().message();
  EXPECT_EQ(quant->algo, QuantAlgo::kNvfp4);
  EXPECT_EQ(quant->group_size, 16);
  EXPECT_EQ(quant->kv_cache, KvQuant::kFp8);
  EXPECT_EQ(quant->exclude, std::vector<std::string>{"lm_head"});
}

TEST(QuantConfig, ReadsModeloptsFileCopiedIntoConfigJson) {
  const auto quant = parse_declared(kSidecar);
  ASSERT_TRUE(quant.ok()) << quant.status().message();
  EXPECT_EQ(quant->algo, QuantAlgo::kNvfp4);
  EXPECT_EQ(quant->source, "config.json");
}

TEST(QuantConfig, TwoAgreeingSourcesAreJoined) {
  const auto quant = parse(
      R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"nvfp4","group_size":16,)"
      R"("kv_cache_scheme":{"num_bits":8,"type":"float"},"ignore":["a"]}})",
      kSidecar);

  ASSERT_TRUE(quant.ok()) << quant.status().message();
  EXPECT_EQ(quant->source, "config.json and hf_quant_config.json");
  EXPECT_EQ(quant->exclude,
            (std::vector<std::string>{"a", "lm_head", "model.layers.*.self_attn.q_a_proj",
                                      "model.layers.61*"}));
}

TEST(QuantConfig, ContradictingSourcesAreRefusedNamingBoth) {
  EXPECT_EQ(error_of(parse(R"({"quantization_config":{"quant_method":"fp8",)"
                           R"("weight_block_size":[128,128]}})",
                           kSidecar)),
            "the quantisation is fp8_block in config.json: quantization_config and nvfp4 in "
            "hf_quant_config.json; one of the two files is wrong");
  EXPECT_EQ(error_of(parse(R"({"quantization_config":{"quant_method":"modelopt",)"
                           R"("quant_algo":"NVFP4"}})",
                           kSidecar)),
            "the KV cache is none in config.json: quantization_config and fp8 in "
            "hf_quant_config.json; one of the two files is wrong");
  EXPECT_EQ(parse(R"({"quantization_config":{"quant_method":"mxfp4"}})", kSidecar).status().code(),
            StatusCode::kCorrupt);
}

TEST(QuantConfig, ContradictingGroupSizesAreRefused) {
  EXPECT_EQ(error_of(parse(
                R"({"quantization_config":{"quant_method":"fp8","quant_algo":"MIXED_PRECISION",)"
                R"("group_size":32,"weight_block_size":[128,128]}})",
                R"({"quantization":{"quant_algo":"MIXED_PRECISION","group_size":16}})")),
            "group_size is 32 in config.json: quantization_config and 16 in hf_quant_config.json; "
            "one of the two files is wrong");
}

TEST(QuantConfig, KnowsTheMethodsOfPublishedCheckpoints) {
  const std::pair<const char*, QuantAlgo> cases[] = {
      {R"({"quant_method":"fp8"})", QuantAlgo::kFp8Tensor},
      {R"({"quant_method":"FP8","weight_block_size":[128,128]})", QuantAlgo::kFp8Block},
      {R"({"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]})", QuantAlgo::kMxfp4},
      {R"({"quant_method":"modelopt","quant_algo":"MXFP8","group_size":32})", QuantAlgo::kMxfp8},
      {R"({"quant_method":"mxfp8"})", QuantAlgo::kMxfp8},
      {R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":)"
       R"({"num_bits":8,"type":"float","strategy":"group","group_size":32}}}})",
       QuantAlgo::kMxfp8},
      {R"({"quant_method":"w8a8_int8"})", QuantAlgo::kInt8Channel},
      {R"({"quant_method":"blockwise_int8","weight_block_size":[128,128]})", QuantAlgo::kInt8Block},
      {R"({"quant_method":"w8a8_fp8"})", QuantAlgo::kFp8Channel},
      {R"({"quant_method":"w4afp8","group_size":128,"weight_block_size":[128,128]})",
       QuantAlgo::kW4Fp8},
      {R"({"quant_method":"fp8","weight_block_size":[128,128],"moe_quant_algo":"NVFP4",)"
       R"("quant_algo":"MIXED_PRECISION","group_size":16,"ignore":["lm_head"]})",
       QuantAlgo::kMixed},
      {R"({"quant_method":"modelopt","quant_algo":"FP8"})", QuantAlgo::kFp8Tensor},
      {R"({"quant_method":"modelopt","quant_algo":"FP8_PER_CHANNEL_PER_TOKEN"})",
       QuantAlgo::kFp8Channel},
      {R"({"quant_method":"modelopt","quant_algo":"fp8_pb_wo"})", QuantAlgo::kFp8Block},
      {R"({"quant_method":"modelopt","quant_algo":null})", QuantAlgo::kNone},
      {R"({"quant_algo":"NVFP4"})", QuantAlgo::kNvfp4},
      {R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":)"
       R"({"num_bits":8,"type":"float","strategy":"block"}}}})",
       QuantAlgo::kFp8Block},
      {R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":)"
       R"({"num_bits":8,"type":"int","strategy":"channel"}}}})",
       QuantAlgo::kInt8Channel},
      {R"({"quant_method":"compressed-tensors","config_groups":{"a":{},"b":{}}})",
       QuantAlgo::kMixed}};
  for (const auto& [text, algo] : cases) {
    const auto quant = parse_declared(text);
    ASSERT_TRUE(quant.ok()) << text << ": " << quant.status().message();
    EXPECT_EQ(quant_algo_name(quant->algo), quant_algo_name(algo)) << text;
  }
}

TEST(QuantConfig, WhatIsUnknownIsUnsupportedByName) {
  EXPECT_EQ(
      error_of(parse_declared(R"({"quant_method":"awq"})")),
      "config.json: quantization_config: quant_method \"awq\" is unknown, expected one of fp8, "
      "modelopt, modelopt_fp4, modelopt_fp8, modelopt_mixed, compressed-tensors, mxfp4, "
      "mxfp8, w8a8_int8, blockwise_int8, w8a8_fp8, w4afp8");
  EXPECT_EQ(error_of(parse("", R"({"quantization":{"quant_algo":"W4A16_AWQ"}})")),
            "hf_quant_config.json: quantization: quant_algo \"W4A16_AWQ\" is unknown, expected one "
            "of nvfp4, fp8, fp8_per_channel_per_token, fp8_pb_wo, mxfp4, mxfp8, w4a8_fp8, "
            "mixed_precision");
  EXPECT_EQ(
      error_of(parse_declared(R"({"quant_method":"fp8","weight_block_size":[64,128]})")),
      "config.json: quantization_config: weight_block_size is [64, 128], expected [128, 128]");
  EXPECT_EQ(error_of(parse("", R"({"quantization":{"quant_algo":"NVFP4","group_size":32}})")),
            "hf_quant_config.json: quantization: group_size is 32, expected 16 for nvfp4");
  EXPECT_EQ(error_of(parse("", R"({"quantization":{"quant_algo":"MXFP8","group_size":16}})")),
            "hf_quant_config.json: quantization: group_size is 16, expected 32 for mxfp8");
  EXPECT_EQ(error_of(parse_declared(R"({"quant_method":"fp8","fmt":"e5m2"})")),
            "config.json: quantization_config: fmt \"e5m2\", expected \"e4m3\"");
  EXPECT_EQ(
      error_of(parse_declared(R"({"quant_method":"fp8","scale_fmt":"bf16"})")),
      "config.json: quantization_config: scale_fmt \"bf16\", expected \"ue8m0\" or \"float32\"");
  EXPECT_EQ(error_of(parse("", R"({"quantization":{"kv_cache_quant_algo":"FP2"}})")),
            "hf_quant_config.json: quantization: kv_cache_quant_algo \"FP2\" is unknown, expected "
            "FP8, INT8, NVFP4 or null");
  EXPECT_EQ(parse_declared(R"({"quant_method":"awq"})").status().code(), StatusCode::kUnsupported);
}

TEST(QuantConfig, WrongTypesAreCorrupt) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "config.json: quantization_config is an array, expected an object"},
      {R"({"quant_method":3})",
       "config.json: quantization_config: quant_method is an integer, expected a string"},
      {R"({"quant_method":"fp8","weight_block_size":128})",
       "config.json: quantization_config: weight_block_size, expected two integers"},
      {R"({"quant_method":"fp8","weight_block_size":[128,128.0]})",
       "config.json: quantization_config: weight_block_size, expected two integers"},
      {R"({"quant_method":"w4afp8","group_size":-1})",
       "config.json: quantization_config: group_size is -1, expected 1 to 65536"},
      {R"({"quant_method":"w4afp8","group_size":"128"})",
       "config.json: quantization_config: group_size is a string, expected an integer"},
      {R"({"quant_method":"fp8","ignore":"lm_head"})",
       "config.json: quantization_config: ignore is a string, expected an array of strings"},
      {R"({"quant_method":"fp8","ignore":[1]})",
       "config.json: quantization_config: an element of ignore is an integer, expected a string"},
      {R"({"quant_method":"fp8","kv_cache_scheme":8})",
       "config.json: quantization_config: kv_cache_scheme is an integer, expected an object"},
      {R"({"quant_method":"compressed-tensors"})",
       "config.json: quantization_config: config_groups is absent, expected an object with a "
       "group"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"g":{}}})",
       "config.json: quantization_config.config_groups.\"g\".weights is absent, expected an "
       "object"}};
  for (const auto& [text, message] : cases) {
    const auto quant = parse_declared(text);
    EXPECT_EQ(error_of(quant), message);
    if (!quant.ok()) {
      EXPECT_EQ(quant.status().code(), StatusCode::kCorrupt) << text;
    }
  }
  EXPECT_EQ(error_of(parse("", "{}")),
            "hf_quant_config.json: quantization is absent, expected an object");
}

TEST(QuantConfig, ExcludesModulesByWholeNameOrParent) {
  QuantConfig quant;
  quant.exclude = {"lm_head", "model.layers.*.self_attn.q_a_proj", "model.layers.61*", "re:.*"};

  EXPECT_TRUE(quant.excludes("lm_head"));
  EXPECT_TRUE(quant.excludes("model.layers.3.self_attn.q_a_proj"));
  EXPECT_TRUE(quant.excludes("model.layers.61.mlp.experts.0.up_proj"));
  EXPECT_TRUE(quant.excludes("lm_head.inner"));
  EXPECT_FALSE(quant.excludes("model.layers.6.mlp.up_proj"));
  EXPECT_FALSE(quant.excludes("model.layers.3.self_attn.q_a_proj_with_mqa"));
  EXPECT_FALSE(quant.excludes("my.lm_head"));
  EXPECT_FALSE(quant.excludes("lm_head2"));
}

TEST(MatchesGlob, StarStandsForAnyText) {
  EXPECT_TRUE(matches_glob("", ""));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("*", "abc"));
  EXPECT_TRUE(matches_glob("a*c", "abbbc"));
  EXPECT_TRUE(matches_glob("a*b*c", "a.b.b.c"));
  EXPECT_TRUE(matches_glob("**a**", "bab"));
  EXPECT_FALSE(matches_glob("", "a"));
  EXPECT_FALSE(matches_glob("a", ""));
  EXPECT_FALSE(matches_glob("a*c", "abcd"));
  EXPECT_FALSE(matches_glob("a.c", "abc"));
  EXPECT_FALSE(matches_glob("a?c", "abc"));
}

TEST(MatchesGlob, ManyStarsStayCheap) {
  std::string pattern;
  for (int i = 0; i < 200; ++i)
    pattern += "a*";
  EXPECT_FALSE(matches_glob(pattern + "b", std::string(20'000, 'a')));
}

TEST(ReadQuantConfig, ReadsBothFilesOfADirectory) {
  const TempDir dir;
  ASSERT_TRUE(read_quant_config(dir.path()).ok());
  EXPECT_EQ(read_quant_config(dir.path())->algo, QuantAlgo::kNone);

  write_bytes(dir.file("hf_quant_config.json"), kSidecar);
  EXPECT_EQ(read_quant_config(dir.path())->algo, QuantAlgo::kNvfp4);

  write_bytes(dir.file("config.json"),
              R"({"max":1000000000000000000000000000000,"quantization_config":)"
              R"({"quant_method":"mxfp4"}})");
  EXPECT_EQ(error_of(read_quant_config(dir.path())),
            dir.path() +
                ": the quantisation is mxfp4 in config.json: quantization_config and nvfp4 "
                "in hf_quant_config.json; one of the two files is wrong");
}

TEST(ReadQuantConfig, MalformedFilesAreNamed) {
  const TempDir dir;
  write_bytes(dir.file("config.json"), "{");
  const auto quant = read_quant_config(dir.path());
  EXPECT_EQ(quant.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(error_of(quant).find(dir.file("config.json")), 0u) << error_of(quant);
}

}  // namespace
}  // namespace fathom
