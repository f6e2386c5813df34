// Commands of `fathom chat`, with lines from a pipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

ProgramResult chat(const std::string& input, const Words& flags = {}) {
  Words args{"chat", shipped_model(), "--threads", "1", "-n", "8"};
  const Words greedy{"--temperature", "0"};
  const Words& more = flags.empty() ? greedy : flags;
  args.insert(args.end(), more.begin(), more.end());
  return run_fathom(args, input);
}

/// The answer to a message that stands at the beginning, with its newline.
std::string answer_to(const std::string& message) {
  return chat(message + "\n").out;
}

std::vector<std::string> contents_of(const std::filesystem::path& file) {
  const auto json = parse_json(read_all(file), {}, file.string());
  EXPECT_TRUE(json.ok()) << file;
  std::vector<std::string> out;
  if (!json.ok()) return out;
  for (const Json& message : json->find("messages")->items())
    out.push_back(message.find("role")->as_string() + ": " + message.find("content")->as_string());
  return out;
}

TEST(ChatCommands, OutputOfAPipeIsTheAnswersAlone) {
  const ProgramResult r = chat("Once\n/set temperature 0\n/clear\n/exit\n");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, answer_to("Once"));
  EXPECT_EQ(r.err, "");
  EXPECT_EQ(chat("Once\n/exit\n").out, r.out);
}

TEST(ChatCommands, RegenerateAnswersTheLastMessageAgain) {
  TempFolder folder;
  const std::string file = (folder / "c.json").string();

  const ProgramResult r = chat("Once\n/regenerate\n/save " + file + "\n");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  const std::string once = answer_to("Once");
  EXPECT_EQ(r.out, once + once);
  EXPECT_EQ(contents_of(file),
            (Words{"user: Once", "assistant: " + once.substr(0, once.size() - 1)}));
}

TEST(ChatCommands, RegenerateTakesTheNextSeed) {
  const auto seeded = [](const char* seed) { return Words{"--temperature", "1", "--seed", seed}; };
  const std::string first = chat("Tell me a story.\n", seeded("7")).out;
  const std::string second = chat("Tell me a story.\n", seeded("8")).out;
  const std::string third = chat("Tell me a story.\n", seeded("9")).out;
  ASSERT_NE(first, second);

  EXPECT_EQ(chat("Tell me a story.\n/regenerate\n/regenerate\n", seeded("7")).out,
            first + second + third);
  EXPECT_EQ(chat("Tell me a story.\n/regenerate\n/edit Tell me a story.\n", seeded("7")).out,
            first + second + first);
}

TEST(ChatCommands, RegenerateNeedsAMessage) {
  EXPECT_THAT(chat("/regenerate\n").err, HasSubstr("there is no message yet that /regenerate"));
  EXPECT_THAT(chat("/edit x\n").err, HasSubstr("there is no message yet that /edit"));
}

TEST(ChatCommands, EditAnswersAnotherMessageInPlaceOfTheLast) {
  TempFolder folder;
  const std::string file = (folder / "c.json").string();

  const ProgramResult r = chat("Once\n/edit The king\n/save " + file + "\n/edit\n");

  EXPECT_EQ(r.out, answer_to("Once") + answer_to("The king"));
  EXPECT_EQ(contents_of(file).front(), "user: The king");
  EXPECT_EQ(contents_of(file).size(), 2u);
  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("here it needs a text"));
}

TEST(ChatCommands, BlocksAndContinuedLinesAreOneMessage) {
  TempFolder folder;
  const std::string file = (folder / "c.json").string();

  const ProgramResult r =
      chat("one\\\ntwo\n\"\"\"\n/help\nthree\n\"\"\"\n//four\n/save " + file + "\n");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  const Words contents = contents_of(file);
  ASSERT_EQ(contents.size(), 6u);
  EXPECT_EQ(contents[0], "user: one\ntwo");
  EXPECT_EQ(contents[2], "user: /help\nthree");
  EXPECT_EQ(contents[4], "user: /four");
}

TEST(ChatCommands, AnInputThatEndsInABlockIsRefused) {
  const ProgramResult r = chat("\"\"\"\nnever said\n");

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("ends within a message"));
}

TEST(ChatCommands, SetIsWhatTheFlagIs) {
  const Words flags{"--temperature", "1", "--seed", "7"};
  const std::string by_flags = chat("Tell me a story.\n", flags).out;

  EXPECT_EQ(chat("/set temperature 1\n/set seed 7\nTell me a story.\n").out, by_flags);
  EXPECT_EQ(
      chat("/set temp 1\n/set seed 7\n/set max_tokens 3\n/set n-predict 8\nTell me a story.\n").out,
      by_flags);
  EXPECT_NE(chat("/set seed 8\nTell me a story.\n", flags).out, by_flags);
}

TEST(ChatCommands, SetShowsWhatCounts) {
  const ProgramResult r = chat(
      "/set temperature\n/set temperature 0.25\n/set temperature\n/set temperature default\n"
      "/set temperature\n/set top_p\n/set seed\n/set\n");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  // The model asks for 0.8 and 0.95 itself.
  EXPECT_THAT(r.out, testing::StartsWith("temperature 0\ntemperature 0.25\ntemperature 0.8\n"
                                         "top-p 0.95\nseed -\n"));
  EXPECT_THAT(r.out, HasSubstr("\nmax-tokens           8          Tokens to generate"));
  EXPECT_THAT(r.out, HasSubstr("\nthinking             default    "));
  EXPECT_THAT(r.out, Not(HasSubstr("chat-format")));
}

TEST(ChatCommands, SetRefusesWhatTheFlagRefuses) {
  const struct {
    const char* line;
    const char* flag;
    const char* value;
  } cases[] = {
      {"/set temperature abc", "--temperature", "abc"},
      {"/set temperature 7", "--temperature", "7"},
      {"/set top_p 0", "--top-p", "0"},
      {"/set seed -1", "--seed", "-1"},
      {"/set max_tokens 0", "--max-tokens", "0"},
      {"/set thinking maybe", "--thinking", "maybe"},
      {"/set reasoning loud", "--reasoning", "loud"},
      {"/set logit_bias x", "--logit-bias", "x"},
  };

  for (const auto& c : cases) {
    const ProgramResult r = chat(std::string(c.line) + "\nOnce\n");
    const std::string by_flag = chat("Once\n", {c.flag, c.value}).err;

    EXPECT_EQ(r.exit_code, 64) << c.line;
    EXPECT_EQ(r.out, "") << c.line;
    const std::string message = r.err.substr(0, r.err.find('\n'));
    EXPECT_THAT(by_flag, testing::StartsWith(message)) << c.line;
  }
  EXPECT_THAT(
      chat("/set temprature 1\n").err,
      HasSubstr("'temprature' is no setting of a chat\nhint: did you mean temperature? /set"));
}

TEST(ChatCommands, ASavedConversationGoesOn) {
  TempFolder folder;
  const std::string file = (folder / "my talk.json").string();
  const Words flags{"--temperature", "0", "--system", "Be brief."};
  const ProgramResult saved = chat("Once\n/save " + file + "\nAnd then\n", flags);
  ASSERT_EQ(saved.exit_code, 0) << saved.err;

  const ProgramResult loaded = chat("/load " + file + "\nAnd then\n");

  EXPECT_EQ(loaded.exit_code, 0) << loaded.err;
  EXPECT_EQ(loaded.out, saved.out.substr(saved.out.size() - loaded.out.size()));
  EXPECT_EQ(contents_of(file).front(), "system: Be brief.");
  EXPECT_THAT(read_all(file), testing::StartsWith("{\n  \"schema\": \"fathom.chat/1\",\n"));
  // What reads conversations reads it too.
  EXPECT_EQ(run_fathom({"tokenize", shipped_model(), "--chat", file, "--ids"}).exit_code, 0);
}

TEST(ChatCommands, ForgottenTurnsAreSavedToo) {
  TempFolder folder;
  const std::string file = (folder / "c.json").string();
  std::string input;
  for (int i = 0; i < 6; ++i)
    input += "Once upon a time there was a cat.\n";

  const ProgramResult r = chat(input + "/tokens\n/save " + file + "\n",
                               {"--temperature", "0", "--max-model-len", "64"});

  EXPECT_THAT(r.err, HasSubstr("the oldest messages were forgotten"));
  EXPECT_THAT(r.out,
              testing::ContainsRegex("a context of 64, [0-9]+ left; [0-9]+ messages forgotten"));
  EXPECT_EQ(contents_of(file).size(), 12u);
}

TEST(ChatCommands, BadFilesAreRefusedByName) {
  TempFolder folder;

  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "c.json"},
      {"[1]", "messages[0]"},
      {R"({"schema": "fathom.chat/2", "messages": []})",
       "schema is \"fathom.chat/2\", expected \"fathom.chat/1\""},
      {R"({"schema": "fathom.chat/1", "messages": []})", "messages is empty"},
      {R"({"schema": "fathom.chat/1"})", "without messages"},
      {R"({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]})", "c.json"},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function",
           "function": {"name": "f"}}]})",
       "has tools"},
  };

  const std::string file = (folder / "c.json").string();
  for (const auto& c : cases) {
    std::ofstream(file) << c.text;
    const ProgramResult r = chat("/load " + file + "\nOnce\n");

    EXPECT_EQ(r.exit_code, 65) << c.text << r.err;
    EXPECT_THAT(r.err, HasSubstr("c.json")) << c.text;
    EXPECT_THAT(r.err, HasSubstr(c.says)) << c.text;
    EXPECT_EQ(r.out, "") << c.text;
  }
  const ProgramResult missing = chat("/load " + (folder / "none.json").string() + "\n");
  EXPECT_EQ(missing.exit_code, 65);
  EXPECT_THAT(missing.err, HasSubstr("none.json"));
  EXPECT_THAT(chat("/save " + (folder / "c.json").string() + "\n").err,
              HasSubstr("there is nothing to save"));
}

TEST(ChatCommands, TokensAreThoseOfThePrompt) {
  const ProgramResult r =
      chat("/tokens\nOnce\n/tokens\n", {"--temperature", "0", "--max-model-len", "64"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, testing::StartsWith("0 tokens of conversation, a context of 64, 64 left\n"));
  const size_t last = r.out.rfind('\n', r.out.size() - 2) + 1;
  const long tokens = std::strtol(r.out.c_str() + last, nullptr, 10);
  EXPECT_GT(tokens, 8);
  EXPECT_THAT(r.out, EndsWith("a context of 64, " + std::to_string(64 - tokens) + " left\n"));
}

TEST(ChatCommands, AnUnknownCommandEndsAScript) {
  const ProgramResult r = chat("Once\n/regen\nnever\n");

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_EQ(r.out, answer_to("Once"));
  EXPECT_THAT(r.err, HasSubstr("unknown command '/regen'\nhint: did you mean /regenerate?"));
}

TEST(ChatCommands, SystemShowsAndSetsTheSystemMessage) {
  const ProgramResult r = chat("/system\n/system Be brief.\n/system\n");

  EXPECT_EQ(r.out, "no system message\nBe brief.\n");
}

TEST(ChatCommands, FoldedReasoningIsALine) {
  const Words flags{"--temperature", "0", "--thinking", "on", "--reasoning", "fold"};

  const ProgramResult folded = chat("Once\n", flags);
  const ProgramResult set =
      chat("/set reasoning fold\nOnce\n", {"--temperature", "0", "--thinking", "on"});

  // The model was never taught to end its thoughts: all eight tokens are some.
  EXPECT_EQ(folded.out, "(reasoned for 8 tokens)\n");
  EXPECT_EQ(set.out, folded.out);
}

}  // namespace
}  // namespace fathom::e2e
