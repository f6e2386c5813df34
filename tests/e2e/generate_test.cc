// The shipped model through the program: text, determinism, files written, bad files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

std::vector<std::string> greedy(std::vector<std::string> more = {}) {
  std::vector<std::string> args{"run", shipped_model(), "-p", "Once upon a time", "--temperature",
                                "0",   "--max-tokens",  "24"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Generate, GreedyTextIsTheSameOnEveryRunAndForAnyNumberOfThreads) {
  const ProgramResult first = run_fathom(greedy({"--threads", "1"}));

  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_GT(first.out.size(), 40u);
  EXPECT_EQ(run_fathom(greedy({"--threads", "1"})).out, first.out);
  EXPECT_EQ(run_fathom(greedy({"--threads", "2"})).out, first.out);
  const ProgramResult many = run_fathom(greedy({"--threads", "1000"}));
  EXPECT_EQ(many.out, first.out);
  EXPECT_THAT(many.err, HasSubstr("warning: --threads 1000: this process may use "));
}

TEST(Generate, SeedFixesASampledText) {
  const auto sampled = [&](const char* seed) {
    return run_fathom({"run", shipped_model(), "-p", "Once upon a time", "--temperature", "1",
                       "--seed", seed, "--max-tokens", "24"})
        .out;
  };

  EXPECT_EQ(sampled("7"), sampled("7"));
  EXPECT_NE(sampled("7"), sampled("8"));
}

TEST(Generate, PromptComesFromAFileOrStandardInputToo) {
  TempFolder folder;
  std::ofstream(folder / "p.txt") << "Once upon a time";
  const std::string expected = run_fathom(greedy()).out;

  EXPECT_EQ(run_fathom({"run", shipped_model(), "-f", (folder / "p.txt").string(), "--temperature",
                        "0", "--max-tokens", "24"})
                .out,
            expected);
  EXPECT_EQ(run_fathom({"run", shipped_model(), "--temperature", "0", "--max-tokens", "24"},
                       "Once upon a time")
                .out,
            expected);
}

TEST(Generate, StopStringEndsTheTextBeforeItself) {
  const std::string whole = run_fathom(greedy()).out;
  const std::string stop = whole.substr(whole.size() / 2, 4);

  const ProgramResult r = run_fathom(greedy({"--stop", stop}));

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.out.find(stop), std::string::npos);
  EXPECT_LT(r.out.size(), whole.size());
}

TEST(Generate, IdsOutIsAJsonListOfTheGeneratedIds) {
  TempFolder folder;
  const std::string file = (folder / "ids.json").string();

  ASSERT_EQ(run_fathom(greedy({"--ids-out", file})).exit_code, 0);

  const std::string text = read_all(file);
  EXPECT_THAT(text, testing::StartsWith("["));
  EXPECT_EQ(std::count(text.begin(), text.end(), ','), 23);
}

TEST(Generate, EmptyPromptIsRefusedWithTheFix) {
  const ProgramResult r = run_fathom({"run", shipped_model(), "-p", ""});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("prompt"));
}

TEST(Generate, PromptBeyondTheContextIsRefusedWithBothNumbers) {
  std::string prompt;
  for (int i = 0; i < 3000; ++i)
    prompt += "story ";

  const ProgramResult r = run_fathom({"run", shipped_model(), "-f", "-"}, prompt);

  EXPECT_NE(r.exit_code, 0);
  EXPECT_THAT(r.err, HasSubstr("2048"));
}

class BrokenModel : public testing::Test {
 protected:
  BrokenModel() {
    std::filesystem::copy(shipped_model(), model_.str(), std::filesystem::copy_options::recursive);
  }

  ProgramResult run() { return run_fathom({"run", model_.str(), "-p", "x", "--max-tokens", "2"}); }

  std::filesystem::path weights() {
    for (const auto& entry : std::filesystem::directory_iterator(model_.str())) {
      if (entry.path().extension() == ".safetensors") return entry.path();
    }
    return {};
  }

  TempFolder model_;
};

TEST_F(BrokenModel, TruncatedShardNamesTheFileAndTheSizes) {
  const auto file = weights();
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1000);

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 65) << r.err;
  EXPECT_THAT(r.err, HasSubstr(file.filename().string()));
}

TEST_F(BrokenModel, ConfigThatContradictsTheTensorsNamesTensorAndBothShapes) {
  std::string config = read_all(model_ / "config.json");
  const std::string key = "\"moe_intermediate_size\": 128";
  ASSERT_NE(config.find(key), std::string::npos);
  config.replace(config.find(key), key.size(), "\"moe_intermediate_size\": 160");
  std::ofstream(model_ / "config.json") << config;

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 65) << r.err;
  EXPECT_THAT(r.err, HasSubstr("160"));
  EXPECT_THAT(r.err, HasSubstr("128"));
}

TEST_F(BrokenModel, ConfigThatIsNoJsonNamesTheByte) {
  std::ofstream(model_ / "config.json") << "{\"model_type\": }";

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("config.json"));
}

TEST_F(BrokenModel, MissingTokenizerIsNamed) {
  std::filesystem::remove(model_ / "tokenizer.json");

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("tokenizer.json"));
}

TEST_F(BrokenModel, PartialFileOfAnInterruptedWriterIsRefused) {
  std::ofstream(model_ / "model-00009-of-00009.safetensors.partial") << "x";

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr(".partial"));
}

}  // namespace
}  // namespace fathom::e2e
