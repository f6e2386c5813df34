#include "fathom/weights/checkpoint/linear_format.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/base/str_cat.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

// A checkpoint of one layer "x" with the tensors given by suffix.
class OneLayer {
 public:
  explicit OneLayer(std::vector<TestTensor> tensors) {
    for (TestTensor& tensor : tensors)
      tensor.name = "x." + tensor.name;
    write_safetensors(dir_.file("model.safetensors"), tensors);
    auto opened = Checkpoint::open(dir_.path());
    FATHOM_CHECK(opened.ok(), opened.status().message());
    checkpoint_ = std::move(*opened);
  }

  Result<StoredLinear> describe() const { return describe_linear(checkpoint_, "x.weight"); }

  const TensorRef* find(std::string_view name) const {
    return checkpoint_.find(str_cat("x.", name));
  }

  // The message without the file's path and the byte, which vary.
  std::string error() const {
    const auto linear = describe();
    if (linear.ok()) return str_cat("accepted as ", format_name(linear->format));
    std::string text = linear.status().message();
    const std::string path = dir_.file("model.safetensors");
    for (size_t at = text.find(path); at != std::string::npos; at = text.find(path)) {
      text.replace(at, path.size(), "F");
    }
    for (size_t at = text.find(" at byte "); at != std::string::npos; at = text.find(" at byte ")) {
      const size_t end = text.find(' ', at + 9);
      text.erase(at, end - at);
    }
    return text;
  }

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  TempDir dir_;
  Checkpoint checkpoint_;
};

struct Accepted {
  const char* what;
  std::vector<TestTensor> tensors;
  Format format;
  int64_t n;
  int64_t k;
};

TEST(LinearFormat, EachFormatIsRecognisedByItsTensors) {
  const std::vector<Accepted> cases = {
      {"bf16", {{"weight", Format::kBf16, {6, 10}}}, Format::kBf16, 6, 10},
      {"f32", {{"weight", Format::kF32, {6, 10}}}, Format::kF32, 6, 10},
      {"f16", {{"weight", Format::kF16, {6, 10}}}, Format::kF16, 6, 10},
      {"norm", {{"weight", Format::kBf16, {6}}}, Format::kBf16, 6, 1},
      {"scalar", {{"weight", Format::kF32, {}}}, Format::kF32, 1, 1},
      {"fused experts", {{"weight", Format::kBf16, {2, 6, 10}}}, Format::kBf16, 12, 10},
      {"fp8 block, partial edges",
       {{"weight", Format::kE4m3, {576, 300}}, {"weight_scale_inv", Format::kF32, {5, 3}}},
       Format::kFp8Block,
       576,
       300},
      {"fp8 block under compressed-tensors' name",
       {{"weight", Format::kE4m3, {256, 384}}, {"weight_scale", Format::kF32, {2, 3}}},
       Format::kFp8Block,
       256,
       384},
      {"fp8 block of one block",
       {{"weight", Format::kE4m3, {1, 1}}, {"weight_scale_inv", Format::kF32, {1, 1}}},
       Format::kFp8Block,
       1,
       1},
      {"V4 fp8",
       {{"weight", Format::kE4m3, {130, 128}}, {"scale", Format::kUe8m0, {2, 1}}},
       Format::kFp8BlockUe8m0,
       130,
       128},
      {"fp8 ue8m0",
       {{"weight", Format::kE4m3, {128, 128}}, {"weight_scale_inv", Format::kUe8m0, {1, 1}}},
       Format::kFp8BlockUe8m0,
       128,
       128},
      {"fp8 channel",
       {{"weight", Format::kE4m3, {6, 10}}, {"weight_scale", Format::kF32, {6, 1}}},
       Format::kFp8Channel,
       6,
       10},
      {"fp8 channel, flat",
       {{"weight", Format::kE4m3, {6, 10}}, {"weight_scale", Format::kF32, {6}}},
       Format::kFp8Channel,
       6,
       10},
      {"fp8 tensor",
       {{"weight", Format::kE4m3, {6, 10}},
        {"weight_scale", Format::kF32, {}},
        {"input_scale", Format::kF32, {}}},
       Format::kFp8Tensor,
       6,
       10},
      {"fp8 tensor of one element",
       {{"weight", Format::kE4m3, {6, 10}}, {"weight_scale", Format::kF32, {1}}},
       Format::kFp8Tensor,
       6,
       10},
      {"nvfp4",
       {{"weight", Format::kU8, {6, 24}},
        {"weight_scale", Format::kE4m3, {6, 3}},
        {"weight_scale_2", Format::kF32, {}},
        {"input_scale", Format::kF32, {}}},
       Format::kNvfp4,
       6,
       48},
      {"nvfp4 with scalars of one element",
       {{"weight", Format::kU8, {6, 8}},
        {"weight_scale", Format::kE4m3, {6, 1}},
        {"weight_scale_2", Format::kF32, {1}}},
       Format::kNvfp4,
       6,
       16},
      {"mxfp4",
       {{"weight", Format::kU8, {6, 32}}, {"weight_scale", Format::kUe8m0, {6, 2}}},
       Format::kMxfp4,
       6,
       64},
      {"mxfp4 with byte scales",
       {{"weight", Format::kU8, {6, 32}}, {"weight_scale", Format::kU8, {6, 2}}},
       Format::kMxfp4,
       6,
       64},
      {"V4 experts",
       {{"weight", Format::kI8, {6, 32}}, {"scale", Format::kUe8m0, {6, 2}}},
       Format::kMxfp4,
       6,
       64},
      {"mxfp8 of ModelOpt",
       {{"weight", Format::kE4m3, {6, 64}}, {"weight_scale", Format::kU8, {6, 2}}},
       Format::kMxfp8,
       6,
       64},
      {"mxfp8 with E8M0 scales",
       {{"weight", Format::kE4m3, {6, 64}}, {"weight_scale_inv", Format::kUe8m0, {6, 2}}},
       Format::kMxfp8,
       6,
       64},
      {"int8 channel",
       {{"weight", Format::kI8, {6, 10}}, {"weight_scale", Format::kF32, {6, 1}}},
       Format::kInt8Channel,
       6,
       10},
      {"w4afp8",
       {{"weight", Format::kI8, {6, 128}},
        {"weight_scale_inv", Format::kF32, {6, 2}},
        {"input_scale", Format::kF32, {1}}},
       Format::kW4Fp8,
       6,
       256},
      {"w4afp8 with bf16 scales",
       {{"weight", Format::kI8, {6, 128}}, {"weight_scale_inv", Format::kBf16, {6, 2}}},
       Format::kW4Fp8,
       6,
       256},
  };
  for (const Accepted& c : cases) {
    const OneLayer layer(c.tensors);
    const auto linear = layer.describe();
    ASSERT_TRUE(linear.ok()) << c.what << ": " << linear.status().message();
    EXPECT_EQ(format_name(linear->format), format_name(c.format)) << c.what;
    EXPECT_EQ(linear->n, c.n) << c.what;
    EXPECT_EQ(linear->k, c.k) << c.what;
    EXPECT_EQ(linear->weight, layer.find("weight")) << c.what;
    EXPECT_EQ(linear->input_scale, layer.find("input_scale")) << c.what;
    EXPECT_EQ(linear->global_scale, layer.find("weight_scale_2")) << c.what;
    const TensorRef* scale = layer.find("weight_scale");
    if (scale == nullptr) scale = layer.find("weight_scale_inv");
    if (scale == nullptr) scale = layer.find("scale");
    EXPECT_EQ(linear->scale, scale) << c.what;
  }
}

TEST(LinearFormat, MissingScaleIsNamed) {
  EXPECT_EQ(OneLayer({{"weight", Format::kE4m3, {6, 10}}}).error(),
            "F: tensor \"x.weight\" is F8_E4M3 [6, 10] and has no scale beside it (weight_scale, "
            "weight_scale_inv or scale)");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kU8, {6, 8}}, {"weight_scale", Format::kE4m3, {6, 1}}}).error(),
      "F: tensor \"x.weight_scale\" is F8_E4M3 [6, 1], as for NVFP4, and has no weight_scale_2 "
      "beside it");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kU8, {6, 8}}, {"weight_scale_2", Format::kF32, {}}}).error(),
      "F: tensor \"x.weight\" is U8 [6, 8] and has no scale beside it (weight_scale, "
      "weight_scale_inv or scale)");
}

TEST(LinearFormat, ScaleOfTheWrongShapeOrTypeIsNamedWithWhatWasExpected) {
  EXPECT_EQ(
      OneLayer({{"weight", Format::kE4m3, {576, 300}}, {"weight_scale_inv", Format::kF32, {4, 3}}})
          .error(),
      "F: tensor \"x.weight_scale_inv\" is F32 [4, 3], expected F32 or F8_E8M0 [5, 3] for "
      "F8_E4M3 [576, 300]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kE4m3, {576, 300}}, {"weight_scale_inv", Format::kBf16, {5, 3}}})
          .error(),
      "F: tensor \"x.weight_scale_inv\" is BF16 [5, 3], expected F32 or F8_E8M0 [5, 3] for "
      "F8_E4M3 [576, 300]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kE4m3, {6, 10}}, {"weight_scale", Format::kF32, {10}}}).error(),
      "F: tensor \"x.weight_scale\" is F32 [10], expected F32 or F8_E8M0 [1, 1], or F32 [], "
      "[1], [6] or [6, 1] for F8_E4M3 [6, 10]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kU8, {6, 8}},
                {"weight_scale", Format::kE4m3, {1, 6}},
                {"weight_scale_2", Format::kF32, {}}})
          .error(),
      "F: tensor \"x.weight_scale\" is F8_E4M3 [1, 6], expected F8_E4M3 [6, 1] for U8 [6, 8]");
  EXPECT_EQ(OneLayer({{"weight", Format::kU8, {6, 8}},
                      {"weight_scale", Format::kE4m3, {6, 1}},
                      {"weight_scale_2", Format::kF32, {6}}})
                .error(),
            "F: tensor \"x.weight_scale_2\" is F32 [6], expected F32 [] or [1] for U8 [6, 8]");
  EXPECT_EQ(OneLayer({{"weight", Format::kU8, {6, 7}},
                      {"weight_scale", Format::kE4m3, {6, 1}},
                      {"weight_scale_2", Format::kF32, {}}})
                .error(),
            "F: tensor \"x.weight\" is U8 [6, 7], expected rows of a multiple of 8 bytes, for "
            "groups of 16 values");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kU8, {6, 32}}, {"weight_scale", Format::kUe8m0, {6, 4}}})
          .error(),
      "F: tensor \"x.weight_scale\" is F8_E8M0 [6, 4], expected F8_E8M0 [6, 2] for U8 [6, 32]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kE4m3, {6, 64}}, {"weight_scale", Format::kU8, {6, 4}}}).error(),
      "F: tensor \"x.weight_scale\" is U8 [6, 4], expected U8 [6, 2], as for MXFP8, for F8_E4M3 "
      "[6, 64]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kE4m3, {6, 48}}, {"weight_scale", Format::kU8, {6, 2}}}).error(),
      "F: tensor \"x.weight_scale\" is U8 [6, 2], expected rows of a multiple of 32, as for MXFP8, "
      "for F8_E4M3 [6, 48]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kI8, {6, 10}}, {"weight_scale", Format::kF32, {1}}}).error(),
      "F: tensor \"x.weight_scale\" is F32 [1], expected F32 [6, 1] or [6] for I8 [6, 10]");
  EXPECT_EQ(
      OneLayer({{"weight", Format::kI8, {6, 128}}, {"weight_scale_inv", Format::kF32, {6, 1}}})
          .error(),
      "F: tensor \"x.weight_scale_inv\" is F32 [6, 1], expected F32 or BF16 [6, 2] for I8 "
      "[6, 128]");
}

TEST(LinearFormat, SuperfluousScaleIsNamed) {
  EXPECT_EQ(
      OneLayer({{"weight", Format::kBf16, {6, 10}}, {"weight_scale", Format::kF32, {6}}}).error(),
      "F: tensor \"x.weight_scale\" is F32 [6], expected no scale for BF16 [6, 10]");
  EXPECT_EQ(OneLayer({{"weight", Format::kE4m3, {6, 10}},
                      {"weight_scale", Format::kF32, {}},
                      {"weight_scale_2", Format::kF32, {}}})
                .error(),
            "F: tensor \"x.weight_scale_2\" is F32 [], expected no second scale for F8_E4M3 "
            "[6, 10]");
  EXPECT_EQ(OneLayer({{"weight", Format::kE4m3, {6, 10}},
                      {"weight_scale", Format::kF32, {}},
                      {"weight_scale_inv", Format::kF32, {1, 1}}})
                .error(),
            "F: tensor \"x.weight_scale_inv\" and F: tensor \"x.weight_scale\" both scale "
            "\"x.weight\"");
}

TEST(LinearFormat, InputScaleIsChecked) {
  EXPECT_EQ(
      OneLayer({{"weight", Format::kBf16, {6, 10}}, {"input_scale", Format::kBf16, {}}}).error(),
      "F: tensor \"x.input_scale\" is BF16 [], expected F32 [] or [1] for BF16 [6, 10]");
}

TEST(LinearFormat, Int8InBlocksIsUnsupportedByName) {
  const OneLayer layer(
      {{"weight", Format::kI8, {256, 256}}, {"weight_scale_inv", Format::kF32, {2, 2}}});
  EXPECT_EQ(layer.describe().status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(layer.error(),
            "F: tensor \"x.weight\" is I8 [256, 256] with scales per block (int8 in blocks), which "
            "no kernel supports\nhint: use a checkpoint with scales per channel");
}

TEST(LinearFormat, WeightsOfOtherTypesAreRefused) {
  EXPECT_EQ(
      OneLayer({{"weight", Format::kI64, {6, 10}}}).error(),
      "F: tensor \"x.weight\" is I64 [6, 10], expected F32, F16, BF16, F8_E4M3, U8 or I8 for a "
      "weight");
  EXPECT_EQ(OneLayer({{"weight", Format::kE4m3, {60}}, {"weight_scale", Format::kF32, {}}}).error(),
            "F: tensor \"x.weight\" is F8_E4M3 [60], expected two dimensions, or F32, F16, BF16");
}

TEST(LinearFormat, OtherTensorsAreWhatTheirDtypeSays) {
  const OneLayer layer({{"bias", Format::kF32, {16}},
                        {"tid2eid", Format::kI64, {32, 4}},
                        {"weight_scale", Format::kE4m3, {6, 3}}});
  EXPECT_EQ(describe_linear(layer.checkpoint(), "x.bias")->format, Format::kF32);
  EXPECT_EQ(describe_linear(layer.checkpoint(), "x.tid2eid")->format, Format::kI64);
  EXPECT_EQ(describe_linear(layer.checkpoint(), "x.weight_scale")->format, Format::kE4m3);
  EXPECT_EQ(describe_linear(layer.checkpoint(), "x.tid2eid")->k, 4);
}

TEST(LinearFormat, AbsentWeightIsNotFound) {
  const OneLayer layer({{"weight", Format::kBf16, {6, 10}}});
  EXPECT_EQ(describe_linear(layer.checkpoint(), "y.weight").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fathom
