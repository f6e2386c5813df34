// Quantisers against groups that tests/golden/formats/make_vectors.py computed with rationals.
#include <charconv>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/integer/group_int.h"

namespace fathom {
namespace {

struct Group {
  uint32_t scale = 0;
  std::vector<uint32_t> codes;

  bool operator==(const Group&) const = default;
};

using Recipe = std::function<Group(const std::vector<float>& x, float parameter)>;

std::vector<uint32_t> unpack(const std::vector<uint8_t>& packed) {
  std::vector<uint32_t> codes;
  for (int64_t k = 0; k < 2 * std::ssize(packed); ++k) {
    codes.push_back(unpack_e2m1(packed.data(), k).bits);
  }
  return codes;
}

Group nvfp4_weights(const std::vector<float>& x, float global) {
  std::vector<uint8_t> packed(x.size() / 2);
  E4m3 scale{};
  const Status status = nvfp4_quantize_weights(x.data(), 1, 16, global, packed.data(), &scale);
  FATHOM_CHECK(status.ok(), status.message());
  return {scale.bits, unpack(packed)};
}

Group nvfp4_activations(const std::vector<float>& x, float gs) {
  std::vector<uint8_t> packed(x.size() / 2);
  E4m3 scale{};
  nvfp4_quantize_activations(x.data(), 1, 16, gs, packed.data(), &scale);
  return {scale.bits, unpack(packed)};
}

Recipe mxfp4(Mxfp4Rule rule) {
  return [rule](const std::vector<float>& x, float) {
    std::vector<uint8_t> packed(x.size() / 2);
    Ue8m0 scale{};
    mxfp4_quantize(x.data(), 1, 32, rule, packed.data(), &scale);
    return Group{scale.bits, unpack(packed)};
  };
}

Recipe fp8(const Fp8QuantOptions& options) {
  return [options](const std::vector<float>& x, float) {
    std::vector<E4m3> codes(x.size());
    float scale = 0;
    fp8_quantize_groups(x.data(), 1, std::ssize(x), 128, options, codes.data(), &scale);
    Group group{float_bits(scale), {}};
    for (const E4m3 code : codes)
      group.codes.push_back(code.bits);
    return group;
  };
}

template <class Quantise>
Recipe int8(Quantise quantise) {
  return [quantise](const std::vector<float>& x, float) {
    std::vector<int8_t> codes(x.size());
    float scale = 0;
    quantise(x.data(), std::ssize(x), codes.data(), &scale);
    Group group{float_bits(scale), {}};
    for (const int8_t code : codes)
      group.codes.push_back(static_cast<uint8_t>(code));
    return group;
  };
}

std::map<std::string, Recipe> recipes() {
  return {{"nvfp4_weights", nvfp4_weights},
          {"nvfp4_activations", nvfp4_activations},
          {"mxfp4_ocp", mxfp4(Mxfp4Rule::kOcpFloor)},
          {"mxfp4_ceil", mxfp4(Mxfp4Rule::kCeil)},
          {"fp8_v3_demo", fp8(kFp8V3Demo)},
          {"fp8_v32_demo", fp8(kFp8V32Demo)},
          {"fp8_v32_demo_ue8m0", fp8(kFp8V32DemoUe8m0)},
          {"fp8_sglang_group", fp8(kFp8SglangGroup)},
          {"fp8_sglang_group_v2", fp8(kFp8SglangGroupV2)},
          {"fp8_deep_gemm", fp8(kFp8DeepGemm)},
          {"fp8_per_token", fp8(kFp8PerToken)},
          {"int8_rows", int8([](const float* x, int64_t k, int8_t* codes, float* scale) {
             int8_quantize_rows(x, 1, k, codes, scale);
           })},
          {"int8_groups", int8([](const float* x, int64_t k, int8_t* codes, float* scale) {
             int8_quantize_groups(x, 1, k, 128, codes, scale);
           })}};
}

TEST(GoldenVectors, EveryRecipeReproducesExactRationalArithmetic) {
  const std::map<std::string, Recipe> by_name = recipes();
  std::map<std::string, int> lines;
  std::ifstream file(FATHOM_SOURCE_DIR "/tests/golden/formats/vectors.txt");
  ASSERT_TRUE(file.is_open());

  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, word;
    uint32_t parameter = 0;
    Group expected;
    std::vector<float> x;
    words >> name >> std::hex >> parameter;
    while (words >> word && word != ":") {
      uint16_t bits = 0;
      std::from_chars(word.data(), word.data() + word.size(), bits, 16);
      x.push_back(to_float(Bf16{bits}));
    }
    words >> std::hex >> expected.scale;
    for (uint32_t code = 0; words >> code;)
      expected.codes.push_back(code);
    ASSERT_EQ(by_name.count(name), 1u) << name;

    const Group found = by_name.at(name)(x, float_from_bits(parameter));

    EXPECT_EQ(found.scale, expected.scale) << line;
    EXPECT_EQ(found.codes, expected.codes) << line;
    ++lines[name];
  }
  for (const auto& [name, recipe] : by_name)
    EXPECT_GE(lines[name], 24) << name;
}

}  // namespace
}  // namespace fathom
