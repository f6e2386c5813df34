#include "fathom/weights/export/quantizer.h"

#include <chrono>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/weights/export/journal.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_checkpoint.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;

// One layer: four weights that are quantised, and two tensors that are copied.
struct Source {
  Source() {
    for (const char* name : {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.o_proj"})
      files.matrix(str_cat("model.layers.0.", name, ".weight"), 32, 32, Format::kBf16);
    files.vector("model.norm.weight", {1, 2}, Format::kBf16);
    files.matrix("lm_head.weight", 16, 32, Format::kBf16);
    write_bytes(files.open().directory() + "/config.json", "{\"num_hidden_layers\": 1}");
  }

  // Writes the file, with the time of its last change as the test has it.
  Checkpoint open() const {
    Checkpoint checkpoint = files.open();
    fs::last_write_time(fs::path(checkpoint.directory()) / "model.safetensors", changed);
    return checkpoint;
  }

  TestCheckpoint files;
  fs::file_time_type changed = fs::file_time_type::clock::now();
};

Result<QuantizeReport> quantize(const Source& source,
                                const std::string& target,
                                std::vector<std::string> ignore = {}) {
  QuantizeOptions options;
  options.ignore = std::move(ignore);
  options.max_shard_bytes = 1024;  // one matrix in each
  return quantize_checkpoint(source.open(), target, options);
}

// Every file of a folder with its digest, but for the journal, which tells the order of writing.
std::string digests_of(const std::string& directory) {
  std::string all;
  const std::vector<std::string> names = list_directory(directory).value();
  for (const std::string& name : names) {
    if (name != kJournalName)
      all += digest_file(directory, name).value().sha256 + " " + name + "\n";
  }
  return all;
}

TEST(QuantizeCheckpoint, ResumesOverTheSameSourceAndMeasuresWhatItQuantises) {
  const Source source;
  const TempDir dir;
  const QuantizeReport first = quantize(source, dir.file("out")).value();
  const std::string expected = digests_of(dir.file("out"));
  fs::remove(dir.file("out/model-00002-of-00005.safetensors"));

  const Result<QuantizeReport> second = quantize(source, dir.file("out"));

  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(first.num_weights, 4);
  EXPECT_EQ(first.weights.size(), 4u);
  EXPECT_EQ(first.num_shards, 5);
  EXPECT_EQ(second->num_weights, 4);
  EXPECT_EQ(second->reused_shards, 4);
  ASSERT_EQ(second->weights.size(), 1u);
  EXPECT_GT(second->total.relative(), 0.0);
  EXPECT_EQ(digests_of(dir.file("out")), expected);
}

TEST(QuantizeCheckpoint, DoesNotResumeOverASourceThatChanged) {
  Source source;
  const TempDir dir;
  ASSERT_TRUE(quantize(source, dir.file("out")).ok());
  fs::remove(dir.file("out/model-00002-of-00005.safetensors"));
  const std::string before = digests_of(dir.file("out"));
  source.files.tensor("lm_head.weight").bytes[0] ^= std::byte{1};
  source.changed += std::chrono::milliseconds(1);

  const Result<QuantizeReport> second = quantize(source, dir.file("out"));

  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(second.status().message(),
              EndsWith("out: holds a write of another source, or of this one before its files "
                       "changed\nhint: choose another directory or delete this one"));
  EXPECT_EQ(digests_of(dir.file("out")), before);
}

TEST(QuantizeCheckpoint, DeclaresMxfp8AsModelOptDoes) {
  const Source source;
  const TempDir dir;
  QuantizeOptions options;
  options.format = Format::kMxfp8;
  ASSERT_TRUE(quantize_checkpoint(source.open(), dir.file("out"), options).ok());

  const QuantConfig declared = read_quant_config(dir.file("out")).value();

  EXPECT_EQ(declared.source, "config.json and hf_quant_config.json");
  EXPECT_EQ(declared.algo, QuantAlgo::kMxfp8);
  EXPECT_EQ(declared.group_size, 32);
  EXPECT_TRUE(declared.excludes("lm_head"));
  EXPECT_FALSE(declared.excludes("model.layers.0.mlp.down_proj"));
  EXPECT_THAT(read_file(dir.file("out/hf_quant_config.json"), 1 << 20).value(),
              HasSubstr("\"quant_algo\": \"MXFP8\""));
}

TEST(QuantizeCheckpoint, KeepsWhatAPatternMatches) {
  const Source source;
  const TempDir dir;

  const Result<QuantizeReport> report =
      quantize(source, dir.file("out"), {"*.o_proj", "model.layers.0.mlp.up_proj.weight"});

  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->num_weights, 2);
}

QuantizeOptions calibrated(float down) {
  QuantizeOptions options;
  options.input_amax = {{"model.layers.0.mlp.down_proj.weight", down},
                        {"model.layers.0.mlp.up_proj.weight", 0.0f},
                        {"lm_head.weight", 3.0f}};
  return options;
}

TEST(QuantizeCheckpoint, WritesTheInputScalesOfWhatItQuantises) {
  const Source source;
  const TempDir dir;

  const auto report = quantize_checkpoint(source.open(), dir.file("out"), calibrated(2688));

  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->num_input_scales, 1);
  const Checkpoint out = Checkpoint::open(dir.file("out")).value();
  const StoredLinear down = describe_linear(out, "model.layers.0.mlp.down_proj.weight").value();
  ASSERT_NE(down.input_scale, nullptr);
  EXPECT_EQ(read_tensor_scale(out, *down.input_scale).value(), 1.0f);  // 2688 / (6 * 448)
  EXPECT_EQ(out.find("model.layers.0.mlp.up_proj.input_scale"), nullptr) << "it read zeros";
  EXPECT_EQ(out.find("lm_head.input_scale"), nullptr) << "it is not quantised";
}

TEST(QuantizeCheckpoint, DoesNotResumeWithOtherInputScales) {
  const Source source;
  const TempDir dir;
  ASSERT_TRUE(quantize_checkpoint(source.open(), dir.file("out"), calibrated(1)).ok());

  const auto other = quantize_checkpoint(source.open(), dir.file("out"), calibrated(2));

  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
}

TEST(QuantizeCheckpoint, OtherFormatsHaveNoInputScale) {
  const Source source;
  const TempDir dir;
  QuantizeOptions options = calibrated(1);
  options.format = Format::kMxfp4;

  const auto report = quantize_checkpoint(source.open(), dir.file("out"), options);

  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->num_input_scales, 0);
}

// The configs would declare a format that no tensor has.
TEST(QuantizeCheckpoint, RefusesWhereNoWeightIsLeftAndWritesNothing) {
  const Source source;
  const TempDir dir;
  TestCheckpoint other;
  other.matrix("transformer.h.0.attn.c_proj.weight", 32, 32, Format::kBf16);
  write_bytes(other.open().directory() + "/config.json", "{\"num_hidden_layers\": 1}");

  const Status ignored = quantize(source, dir.file("a"), {"*"}).status();
  const Status foreign = quantize_checkpoint(other.open(), dir.file("b"), {}).status();

  EXPECT_EQ(ignored.code(), StatusCode::kUnsupported);
  EXPECT_EQ(ignored.message(), "nothing to quantise: --ignore leaves out all 4 weights of --scope");
  EXPECT_EQ(foreign.code(), StatusCode::kUnsupported);
  EXPECT_THAT(foreign.message(), HasSubstr("nothing to quantise: of the 1 tensors of "));
  EXPECT_FALSE(fs::exists(dir.file("a")));
  EXPECT_FALSE(fs::exists(dir.file("b")));
}

TEST(QuantizeCheckpoint, RefusesEachPatternThatMatchesNoWeight) {
  const Source source;
  const TempDir dir;
  const std::pair<const char*, const char*> cases[] = {
      {"zzz",
       "matches no weight, expected a pattern of modules such as "
       "\"model.layers.0.mlp.gate_proj\""},
      {"", "matches no weight, expected"},
      {"*.o_prj", "matches no weight\nhint: did you mean \"*.o_proj\"?"},
      {"model.layers.0.self_attn.o_prj",
       "matches no weight\nhint: did you mean \"model.layers.0.self_attn.o_proj\"?"},
      {"model.layers.0", "matches no weight\nhint: did you mean \"model.layers.0.*\"?"},
      {"o_proj", "matches no weight\nhint: did you mean \"*o_proj*\"?"},
      {"*.weight_scale", "matches no weight"}};
  for (const auto& [pattern, message] : cases) {
    // The others are good: one bad pattern is enough.
    const Result<QuantizeReport> report =
        quantize(source, dir.file("out"), {"lm_head", pattern, "*.down_proj"});

    ASSERT_FALSE(report.ok()) << pattern;
    EXPECT_EQ(report.status().code(), StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(report.status().message(), HasSubstr(str_cat("--ignore \"", pattern, "\" ")));
    EXPECT_THAT(report.status().message(), HasSubstr(message));
  }
  EXPECT_FALSE(fs::exists(dir.file("out")));
}

}  // namespace
}  // namespace fathom
