// Output for programs: every document names its schema, and its values are those of the text.
#include "fathom/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

Json parsed(const std::string& text) {
  auto json = parse_json(text, {.max_bytes = 1 << 26}, "output");
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *std::move(json) : Json::object();
}

/// What a command prints with --json.
Json json_of(Words args, int exit_code = 0) {
  args.push_back("--json");
  const ProgramResult r = run_fathom(args);
  EXPECT_EQ(r.exit_code, exit_code) << testing::PrintToString(args) << r.err;
  return parsed(r.out);
}

std::string text_at(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "(none)";
}

Words run_with(const Words& flags) {
  Words args{"run", shipped_model(), "-p", "Once upon", "-n", "8"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

TEST(Json, OfEveryCommandNamesItsSchema) {
  const TempFolder folder;
  const std::string ids = (folder / "ids.json").string();
  const std::string text = (folder / "text").string();
  std::ofstream(ids) << R"({"prompts": [[1, 2, 3]]})";
  std::ofstream(text) << "Once upon a time there was a king.";
  const std::string model = shipped_model();
  const std::string rows = (folder / "rows").string();
  run_fathom({"bench", "kernel", "--kernels", "argmax", "--filter", "argmax/t1_*", "--min-time",
              "0", "--reps", "1", "-q", "--out-dir", rows});
  const std::pair<Words, std::string> cases[] = {
      {run_with({"--temperature", "0"}), "fathom.run/1"},
      {{"tokenize", model, "-p", "Once"}, "fathom.tokenize/1"},
      {{"inspect", model}, "fathom.inspect/1"},
      {{"doctor", "--no-measure"}, "fathom.doctor/1"},
      {{"eval", model, "--ppl", text}, "fathom.eval/1"},
      {{"eval", model, "--ppl", text, "--compare", model}, "fathom.eval/1"},
      {{"eval", model, "--ids", ids, "--logits-out", ids + ".out"}, "fathom.eval/1"},
      {{"trace", "--dry", "--as", "deepseek-v2-lite"}, "fathom.trace.summary/1"},
      {{"verify", model}, "fathom.verify/1"},
      {{"bench", "model", model, "-p", "4", "-n", "2", "-r", "1", "-q"}, "fathom.bench.model/1"},
      {{"roofline", rows}, "fathom.roofline/1"},
      {{"bench", "kernel", "--kernels", "argmax", "--filter", "argmax/t1_*", "--in-process",
        "--min-time", "0", "--reps", "1", "-q"},
       "fathom.bench.kernel/1"},
      {{"presets"}, "fathom.presets/1"},
      {{"version"}, "fathom.version/1"},
      {{"help"}, "fathom.help/1"},
  };
  const std::string page = read_all(FATHOM_SOURCE_DIR "/docs/json.md");
  for (const auto& [args, schema] : cases) {
    const Json json = json_of(args);

    EXPECT_EQ(text_at(json, "schema"), schema) << args[0];
    EXPECT_THAT(page, HasSubstr("`" + schema + "`"));
  }
}

// A command whose --json no test above reads would be one whose page is not held either.
TEST(Json, OfEveryCommandThatHasTheFlagIsOnThePage) {
  const std::string page = read_all(FATHOM_SOURCE_DIR "/docs/json.md");
  const Json help = json_of({"help"});
  int found = 0;
  for (const Json& command : help.find("commands")->items()) {
    for (const Json& flag : command.find("flags")->items()) {
      if (text_at(flag, "name") != "json") continue;
      ++found;
      const std::string words = text_at(command, "command").substr(sizeof "fathom");
      EXPECT_THAT(page, HasSubstr("| `" + words + " --json` | ")) << words;
    }
  }
  EXPECT_GE(found, 14);
}

TEST(Json, OfAnAnswerHoldsWhatIsPrintedOtherwise) {
  const std::string text = run_fathom(run_with({"--temperature", "0"})).out;

  const Json json = json_of(run_with({"--temperature", "0", "--echo"}));

  EXPECT_EQ(text_at(json, "text") + "\n", text);
  EXPECT_EQ(text_at(json, "prompt"), "Once upon");
  EXPECT_EQ(text_at(json, "finish_reason"), "length");
  EXPECT_EQ(json.find("tokens")->items().size(), 8u);
  EXPECT_EQ(json.find("completion_tokens")->as_int(), 8);
}

TEST(Json, SeedThatWasDrawnGivesTheSameTextAgain) {
  const Json drawn = json_of(run_with({"--temperature", "1"}));
  const std::string seed = std::to_string(drawn.find("seed")->as_uint());

  const Json again = json_of(run_with({"--temperature", "1", "--seed", seed}));

  EXPECT_EQ(text_at(again, "text"), text_at(drawn, "text"));
  const Json other = json_of(run_with({"--temperature", "1"}));
  EXPECT_NE(other.find("seed")->as_uint(), drawn.find("seed")->as_uint());
  EXPECT_THAT(run_fathom(run_with({"-v", "--seed", "77"})).err, HasSubstr("seed 77"));
}

TEST(Json, OfTokensGivesTheTextBack) {
  const Json json = json_of({"tokenize", shipped_model(), "-p", "Once upon a time"});

  std::string text;
  for (const Json& token : json.find("tokens")->items())
    text += text_at(token, "text");
  EXPECT_EQ(text, "Once upon a time");
  EXPECT_EQ(json.find("count")->as_int(),
            static_cast<int64_t>(json.find("tokens")->items().size()));
}

TEST(Json, OfAnInspectionAddsUp) {
  const Json json = json_of({"inspect", "--as", "deepseek-v3"});

  int64_t parameters = 0;
  int64_t bytes = 0;
  for (const Json& row : json.find("weights")->items()) {
    parameters += row.find("parameters")->as_int();
    bytes += row.find("bytes")->as_int();
  }
  EXPECT_EQ(parameters, 671'026'419'200);
  // What the model computes beside its tensors, such as cosines, is in the second alone.
  EXPECT_LE(bytes, json.find("weight_bytes")->as_int());
  EXPECT_EQ(text_at(json, "verdict"), "fits on 8xh200");
  EXPECT_EQ(json.find("model")->find("layers")->as_int(), 61);
  EXPECT_EQ(json.find("cache")->items().size(), 1u);
  EXPECT_GT(json.find("decode")->find("ops")->items().size(), 20u);
}

TEST(Json, OfAComparisonOfAModelWithItselfIsZero) {
  const TempFolder folder;
  std::ofstream(folder / "text") << "Once upon a time there was a king.";

  const Json json = json_of({"eval", shipped_model(), "--ppl", (folder / "text").string(),
                             "--compare", shipped_model(), "--by-layer"});

  EXPECT_EQ(text_at(json, "kind"), "comparison");
  EXPECT_EQ(json.find("mean_kl")->as_double(), 0);
  EXPECT_EQ(json.find("top1_share")->as_double(), 1);
  EXPECT_GT(json.find("layers")->items().size(), 10u);
}

// ---- Batches

/// Answers of a file by id.
std::map<std::string, std::string> answers_in(const std::filesystem::path& path) {
  std::map<std::string, std::string> out;
  std::istringstream lines(read_all(path));
  for (std::string line; std::getline(lines, line);) {
    const Json answer = parsed(line);
    EXPECT_EQ(text_at(answer, "schema"), "fathom.run/1");
    EXPECT_TRUE(out.emplace(text_at(answer, "id"), text_at(answer, "text")).second) << line;
  }
  return out;
}

class Batch : public testing::Test {
 protected:
  Batch() {
    std::ofstream prompts(folder_ / "in.jsonl");
    for (int i = 0; i < 6; ++i)
      prompts << "{\"id\": \"p" << i << "\", \"prompt\": \"Once upon a time " << i << "\"}\n";
  }

  ProgramResult run(const Words& flags = {}) const {
    Words args{"run",       shipped_model(),
               "--prompts", (folder_ / "in.jsonl").string(),
               "--out",     out().string(),
               "-n",        "6",
               "--seed",    "3"};
    args.insert(args.end(), flags.begin(), flags.end());
    return run_fathom(args);
  }

  std::filesystem::path out() const { return folder_ / "out.jsonl"; }

  TempFolder folder_;
};

TEST_F(Batch, AnswersEveryPromptOnceHoweverManyRunTogether) {
  const ProgramResult together = run();
  ASSERT_EQ(together.exit_code, 0) << together.err;
  const auto answers = answers_in(out());
  std::filesystem::remove(out());

  const ProgramResult alone = run({"--batch", "1"});

  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(answers.size(), 6u);
  EXPECT_EQ(answers_in(out()), answers);
}

TEST_F(Batch, GoesOnWhereItWas) {
  ASSERT_EQ(run().exit_code, 0);
  const auto answers = answers_in(out());
  // The last lines are lost, one of them half.
  const std::string text = read_all(out());
  size_t end = 0;
  for (int lines = 0; lines < 3; ++lines)
    end = text.find('\n', end) + 1;
  std::ofstream(out()) << text.substr(0, end + 20);

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("has 3 of 6 answers"));
  EXPECT_EQ(read_all(out()).substr(0, end), text.substr(0, end));
  EXPECT_EQ(answers_in(out()), answers);
  const std::string done = read_all(out());
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_EQ(read_all(out()), done);
}

TEST_F(Batch, EndsWithTheErrorOfAnEarlierAnswerAgain) {
  ASSERT_EQ(run().exit_code, 0);
  std::string text = read_all(out());
  const std::string_view good = R"("finish_reason":"length")";
  const size_t at = text.find(good);
  ASSERT_NE(at, text.npos) << text;
  text.replace(at, good.size(), R"("finish_reason":"numerical_error")");
  std::ofstream(out()) << text;

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 70) << r.err;
  EXPECT_THAT(r.err, HasSubstr("1 answers ended with numerical_error; remove their lines"));
  EXPECT_EQ(read_all(out()), text);
}

TEST_F(Batch, OfBadLinesIsRefusedBeforeAnythingIsWritten) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\": \"a\"}\n{\"prompt\": 5}\n",
       "line 2: prompt is an integer, expected some text"},
      {"{\"id\": \"a\", \"prompt\": \"x\"}\n\n{\"id\": \"a\", \"prompt\": \"y\"}\n",
       "line 3: id \"a\" appears twice"},
      {"{\"text\": \"x\"}\n", "line 1: has \"text\", expected id and prompt alone"},
      {"[1]\n", "line 1: is an array"},
      {"{\"prompt\": \"\"}\n", "line 1: prompt is empty"},
      {"\n", "has no line with a prompt"},
  };
  for (const auto& [text, says] : cases) {
    std::ofstream(folder_ / "in.jsonl") << text;

    const ProgramResult r = run();

    EXPECT_EQ(r.exit_code, 65) << text;
    EXPECT_THAT(r.err, HasSubstr(says));
    EXPECT_FALSE(std::filesystem::exists(out())) << text;
  }
}

TEST_F(Batch, LeavesAFileOfAnotherKindAlone) {
  std::ofstream(out()) << "{\"some\": \"thing\"}\n";

  const ProgramResult r = run();

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("out.jsonl: line 1: is no answer of fathom.run/1"));
  EXPECT_EQ(read_all(out()), "{\"some\": \"thing\"}\n");
  std::ofstream(out()) << "a note";
  EXPECT_EQ(run().exit_code, 65);
  EXPECT_EQ(read_all(out()), "a note");
}

TEST_F(Batch, NeedsBothFilesAndTakesNoOtherPrompt) {
  EXPECT_THAT(run_fathom({"run", shipped_model(), "--prompts", "x"}).err,
              HasSubstr("--prompts needs --out"));
  EXPECT_THAT(run({"-p", "x"}).err, HasSubstr("exclude each other"));
}

}  // namespace
}  // namespace fathom::e2e
