// `fathom chat` with a person at the terminal.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json.h"
#include "tests/e2e/typing.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

const std::string kCtrlC = "\003", kCtrlD = "\004", kCtrlR = "\022", kCtrlU = "\025",
                  kCtrlW = "\027", kCtrlZ = "\032", kUp = "\033[A", kLeft = "\033[D";

Words chat_words(const Words& flags) {
  Words words{"chat", shipped_model(), "--temperature", "0", "--threads", "1"};
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

class Chat : public Typing {
 public:
  explicit Chat(const Words& flags = {"-n", "4"}, const Environment& environment = {})
      : Typing(FATHOM_PROGRAM, chat_words(flags), environment) {}

  /// Types a line when it is awaited.
  void line(const std::string& keys) {
    // A line that is being edited may be drawn again, prompt and all.
    EXPECT_TRUE(!typed_ || sees("\n")) << shown();
    EXPECT_TRUE(sees("> ")) << shown();
    type(keys + "\r");
    typed_ = true;
  }

  /// The same, and waits for the end of the answer to it.
  void message(const std::string& keys) {
    line(keys);
    EXPECT_TRUE(sees(" tokens")) << shown();
  }

  /// What the user said so far, by /save; ends the chat.
  Words said() {
    TempFolder folder;
    const std::string file = (folder / "c.json").string();
    line("/save " + file);
    EXPECT_TRUE(sees("messages saved to")) << shown();
    const std::string text = read_all(file);
    line("/exit");
    EXPECT_EQ(end(), 0) << shown();
    const auto json = parse_json(text, {}, "c.json");
    Words out;
    if (!json.ok()) return out;
    for (const Json& message : json->find("messages")->items())
      if (message.find("role")->as_string() == "user")
        out.push_back(message.find("content")->as_string());
    return out;
  }

 private:
  bool typed_ = false;
};

TEST(ChatTyping, APasteIsOneMessage) {
  Chat chat;

  chat.message("look: " + paste("one\ntwo\n\nthree\n"));
  chat.message(paste("/usr/bin\n\tand \xe2\x82\xac"));

  EXPECT_EQ(chat.said(), (Words{"look: one\ntwo\n\nthree", "/usr/bin\n\tand \xe2\x82\xac"}));
}

TEST(ChatTyping, APasteOfManyLinesIsOneMessage) {
  Chat chat({"-n", "1"});
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += "line " + std::to_string(i) + "\n";

  chat.message(paste(text));

  EXPECT_EQ(chat.said(), Words{text.substr(0, text.size() - 1)});
}

TEST(ChatTyping, ABackslashAndQuotesGoOnInTheNextLine) {
  Chat chat;

  chat.line("one\\");
  EXPECT_TRUE(chat.sees(". "));
  chat.type("two\r");
  EXPECT_TRUE(chat.sees(" tokens")) << chat.shown();
  chat.line("\"\"\"");
  EXPECT_TRUE(chat.sees(". "));
  chat.type("/three\r");
  EXPECT_TRUE(chat.sees(". "));
  chat.type("four\"\"\"\r");
  EXPECT_TRUE(chat.sees(" tokens")) << chat.shown();

  EXPECT_EQ(chat.said(), (Words{"one\ntwo", "/three\nfour"}));
}

TEST(ChatTyping, LinesAreEditedAndComeBack) {
  Chat chat({"-n", "2"}, {{"LC_ALL", "C"}});

  chat.message("wrong words" + kCtrlU + "gr\xc3\xb6\xc3\x9f" + kLeft + "x" + kLeft + "\005e");
  chat.message(kUp + " two" + kCtrlW + "one");
  chat.message(kCtrlR + "one");

  const Words said = chat.said();
  ASSERT_EQ(said.size(), 3u) << chat.shown();
  EXPECT_EQ(said[0],
            "gr\xc3\xb6x\xc3\x9f"
            "e");
  EXPECT_EQ(said[1],
            "gr\xc3\xb6x\xc3\x9f"
            "e one");
  EXPECT_EQ(said[2], said[1]);
}

TEST(ChatTyping, RegenerateAndEditLeaveOneMessage) {
  Chat chat({"-n", "4"}, {{"EDITOR", "sed -i s/Once/Twice/"}, {"VISUAL", ""}});

  chat.message("Once");
  chat.message("/regenerate");
  chat.message("/edit");

  EXPECT_EQ(chat.said(), Words{"Twice"});
}

TEST(ChatTyping, EditTakesATextToo) {
  Chat chat;

  chat.message("Once");
  chat.message("/edit Thrice");

  EXPECT_EQ(chat.said(), Words{"Thrice"});
}

TEST(ChatTyping, AnEditorThatFailsLeavesTheMessage) {
  Chat chat({"-n", "4"}, {{"EDITOR", "false"}, {"VISUAL", ""}});

  chat.message("Once");
  chat.line("/edit");
  EXPECT_TRUE(chat.sees("the editor 'false' did not end well (exit code 1)")) << chat.shown();

  EXPECT_EQ(chat.said(), Words{"Once"});
}

TEST(ChatTyping, MistakesAreToldAndTheChatGoesOn) {
  Chat chat;

  chat.line("/regen");
  EXPECT_TRUE(chat.sees("did you mean /regenerate?"));
  chat.line("/set temperature abc");
  EXPECT_TRUE(chat.sees("--temperature is 'abc', expected a number"));
  chat.line("/load /nowhere.json");
  EXPECT_TRUE(chat.sees("/nowhere.json"));
  chat.line("/set temperature 0.5");
  EXPECT_TRUE(chat.sees("temperature 0.5"));
  chat.message("Once");

  EXPECT_EQ(chat.said(), Words{"Once"});
}

TEST(ChatTyping, CtrlCAtThePromptDropsTheLine) {
  Chat chat;

  EXPECT_TRUE(chat.sees("> "));
  chat.type("never said");
  EXPECT_TRUE(chat.sees("never said")) << chat.shown();
  chat.type(kCtrlC);
  EXPECT_TRUE(chat.sees("^C")) << chat.shown();
  chat.line("\"\"\"");
  EXPECT_TRUE(chat.sees(". "));
  chat.type(kCtrlC);
  EXPECT_TRUE(chat.sees("^C")) << chat.shown();
  chat.message("Once");

  EXPECT_EQ(chat.said(), Words{"Once"});
}

TEST(ChatTyping, CtrlCStopsAnAnswerAndKeepsIt) {
  Chat chat({"--ignore-eos", "-n", "1900"});
  TempFolder folder;
  const std::string file = (folder / "c.json").string();

  chat.line("Once upon a time there was a king.");
  EXPECT_TRUE(chat.sees("king.")) << chat.shown();
  EXPECT_TRUE(chat.sees("the ")) << chat.shown();  // the answer has begun
  chat.type(kCtrlC);
  EXPECT_TRUE(chat.sees("aborted")) << chat.shown();
  chat.line("/save " + file);
  EXPECT_TRUE(chat.sees("2 messages saved")) << chat.shown();
  chat.line("/exit");

  EXPECT_EQ(chat.end(), 0);
  const auto json = parse_json(read_all(file), {}, file);
  ASSERT_TRUE(json.ok());
  EXPECT_THAT(json->find("messages")->items()[1].find("content")->as_string(), HasSubstr("the "));
}

TEST(ChatTyping, CtrlDEndsTheChat) {
  Chat chat;

  chat.message("Once");
  EXPECT_TRUE(chat.sees("> "));
  chat.type(kCtrlD);

  EXPECT_EQ(chat.end(), 0);
}

TEST(ChatTyping, CtrlZStopsAndTheLineComesBack) {
  std::string line = "set -m; '" + std::string(FATHOM_PROGRAM) + "'";
  for (const std::string& word : chat_words({"-n", "4"}))
    line += " '" + word + "'";
  Typing shell("/bin/bash", {"--norc", "-c", line + "; echo STOPPED; fg; echo ENDED $?"});

  EXPECT_TRUE(shell.sees("> ")) << shell.shown();
  shell.type("Once");
  EXPECT_TRUE(shell.sees("Once")) << shell.shown();
  shell.type(kCtrlZ);
  EXPECT_TRUE(shell.sees("STOPPED")) << shell.shown();
  EXPECT_TRUE(shell.sees("> Once")) << shell.shown();
  shell.type(" more\r");
  EXPECT_TRUE(shell.sees(" tokens")) << shell.shown();
  EXPECT_TRUE(shell.sees("> "));
  shell.type(kUp);
  EXPECT_TRUE(shell.sees("Once more")) << shell.shown();
  shell.type(kCtrlZ);  // the second time is as good as the first

  EXPECT_EQ(shell.end(), 0) << shell.shown();
}

TEST(ChatTyping, AQuietLineStandsBelowAnAnswer) {
  Chat chat;
  chat.message("Once");
  EXPECT_TRUE(chat.sees("> "));
  const std::string dimmed = chat.shown();
  Chat quiet({"-n", "4", "-q"});
  quiet.line("Once");
  EXPECT_TRUE(quiet.sees("> "));

  EXPECT_THAT(dimmed, testing::ContainsRegex("\033\\[2m\\(4 tokens, [0-9.]+ tokens/s, length\\)"));
  EXPECT_THAT(quiet.shown(), Not(HasSubstr("tokens")));
}

TEST(ChatTyping, FoldedReasoningCountsAndIsOneLine) {
  Chat chat({"-n", "4", "--thinking", "on", "--reasoning", "fold", "--color", "off"});

  chat.line("Once");
  EXPECT_TRUE(chat.sees("\r(reasoning: 1 tokens)\r(reasoning: 2 tokens)")) << chat.shown();
  EXPECT_TRUE(chat.sees("\r(reasoned for 4 tokens)\r\n")) << chat.shown();
}

/// Everything of a chat with reasoning and a paste.
std::string shown_with(const Words& flags, const Typing::Environment& environment) {
  Words all{"-n", "4", "--thinking", "on"};
  all.insert(all.end(), flags.begin(), flags.end());
  Chat chat(all, environment);
  chat.message("Once" + kLeft + "x");
  chat.line("/set reasoning fold");
  chat.message(kUp + kUp);
  chat.line("/exit");
  EXPECT_EQ(chat.end(), 0);
  return chat.shown();
}

TEST(ChatTyping, NoEscapeCodesWhereNoneMayBe) {
  EXPECT_THAT(shown_with({}, {}), HasSubstr("\033[2m"));
  EXPECT_THAT(shown_with({}, {}), HasSubstr("\033[?2004h"));
  EXPECT_THAT(shown_with({}, {{"TERM", "dumb"}}), Not(HasSubstr("\033")));
  EXPECT_THAT(shown_with({}, {{"NO_COLOR", "1"}}), Not(HasSubstr("\033")));
  EXPECT_THAT(shown_with({"--color", "off"}, {}), Not(HasSubstr("\033")));
  EXPECT_THAT(shown_with({"--color", "never"}, {}), Not(HasSubstr("\033")));
  EXPECT_THAT(shown_with({"--color", "on"}, {{"NO_COLOR", "1"}}), HasSubstr("\033[2m"));
}

TEST(ChatTyping, ColoursGoToAPipeOnlyWhereTheyAreAskedFor) {
  const Words thinking = chat_words({"-n", "4", "--thinking", "on"});
  const auto with = [&](const char* color) {
    Words words = thinking;
    words.insert(words.end(), {"--color", color});
    return run_fathom(words, "Once\n").out;
  };

  EXPECT_THAT(with("on"), testing::StartsWith("\033[2m"));
  EXPECT_THAT(with("auto"), Not(HasSubstr("\033")));
  EXPECT_EQ(run_fathom({"version", "--color", "loud"}).exit_code, 64);
}

}  // namespace
}  // namespace fathom::e2e
