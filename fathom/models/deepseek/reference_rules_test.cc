// What the reference does at configurations that no released checkpoint has, against the oracle.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/log.h"
#include "fathom/base/rng.h"
#include "fathom/models/synth.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using testing::HasSubstr;

// A small checkpoint whose config.json can be changed.
class Checkpoints : public testing::Test {
 protected:
  void synthesize(const std::string& version) {
    std::filesystem::remove_all(dir_.path());
    SynthOptions options;
    options.version = version;
    options.layers = 2;
    options.hidden = 128;
    const auto report = synthesize_checkpoint(dir_.path(), options);
    FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
  }

  void edit(const std::string& from, const std::string& to) {
    std::string config = read_model_text(dir_.path(), "config.json").value();
    FATHOM_CHECK(config.find(from) != std::string::npos, from);
    config.replace(config.find(from), from.size(), to);
    std::ofstream(dir_.file("config.json")) << config;
  }

  // Without that tensor.
  void remove(const std::string& name) {
    std::vector<TensorEntry> entries;
    std::string data;
    {
      const Checkpoint checkpoint = Checkpoint::open(dir_.path()).value();
      for (const TensorRef& ref : checkpoint.tensors()) {
        if (ref.entry.name == name) continue;
        std::string bytes(static_cast<size_t>(ref.entry.bytes()), ' ');
        FATHOM_CHECK(
            checkpoint.read(ref, std::as_writable_bytes(std::span(bytes.data(), bytes.size())))
                .ok());
        entries.push_back({ref.entry.name, ref.entry.dtype, ref.entry.shape, 0, 0});
        data += bytes;
      }
      for (const std::string& file : checkpoint.file_names())
        std::filesystem::remove(dir_.file(file));
      std::filesystem::remove(dir_.file("model.safetensors.index.json"));
      std::filesystem::remove(dir_.file(kJournalName));  // of the files as they were
    }
    std::ofstream(dir_.file("model.safetensors"), std::ios::binary)
        << format_safetensors_header(entries, {}) << data;
  }

  // |a - b| / |b| of the logits of a prompt, in float32 and by the oracle.
  double distance_from_oracle() {
    oracle::ReferenceModel reference(dir_.path());
    ModelOptions options;
    options.activations = Format::kF32;
    ModelRunner runner(dir_.path(), options);
    Rng rng(3);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 17; ++i)
      tokens.push_back(static_cast<int32_t>(
          rng.next_below(static_cast<uint32_t>(reference.config().vocab_size))));
    const std::vector<float> found = runner.prefill(tokens).logits;
    const oracle::Matrix expected = reference.logits(reference.hidden(tokens));
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double d = static_cast<double>(found[i]) - expected.v[i];
      error += d * d;
      size += expected.v[i] * expected.v[i];
    }
    return std::sqrt(error / size);
  }

  static constexpr double kFloat32 = 3e-6;

  TempDir dir_;
};

using ReferenceRules = Checkpoints;

TEST_F(ReferenceRules, NormsOfLatentsHaveAnEpsilonOfTheirOwn) {
  for (const char* version : {"v3", "v2-lite"}) {
    synthesize(version);
    edit("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0.01");

    EXPECT_LE(distance_from_oracle(), kFloat32) << version;
  }
}

// Not divided by itself, which would be 1, but multiplied by the factor.
TEST_F(ReferenceRules, OneExpertOfV2IsScaledAndNotNormalised) {
  synthesize("v2");
  edit("\"norm_topk_prob\": false", "\"norm_topk_prob\": true");
  edit("\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 1");

  EXPECT_LE(distance_from_oracle(), kFloat32);
}

TEST_F(ReferenceRules, SeveralExpertsOfV2AreNormalisedAndNotScaled) {
  synthesize("v2");
  edit("\"norm_topk_prob\": false", "\"norm_topk_prob\": true");

  EXPECT_LE(distance_from_oracle(), kFloat32);
}

TEST_F(ReferenceRules, GreedyChoiceLooksAtNoGroups) {
  synthesize("v2-lite");
  edit("\"n_group\": 1", "\"n_group\": 3");  // of 8 experts
  edit("\"topk_group\": 1", "\"topk_group\": 5");

  EXPECT_LE(distance_from_oracle(), kFloat32);
}

std::vector<std::string>& log_lines() {
  static std::vector<std::string> lines;
  return lines;
}

TEST_F(ReferenceRules, ATiedHeadThatIsInTheFileIsTakenAndNamedOnce) {
  synthesize("v2-lite");
  edit("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  log_lines().clear();
  set_log_sink([](LogLevel, std::string_view line) { log_lines().emplace_back(line); });

  const double distance = distance_from_oracle();

  set_log_sink(nullptr);
  EXPECT_LE(distance, kFloat32);
  EXPECT_THAT(log_lines(),
              testing::Contains(HasSubstr("the logits are made with lm_head.weight, not with "
                                          "model.embed_tokens.weight"))
                  .Times(1));
}

TEST_F(ReferenceRules, ATiedHeadThatIsNotInTheFileIsTheEmbedding) {
  synthesize("v2-lite");
  edit("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  remove("lm_head.weight");

  EXPECT_LE(distance_from_oracle(), kFloat32);
}

}  // namespace
}  // namespace fathom
