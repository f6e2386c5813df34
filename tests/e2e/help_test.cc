// What the program tells of itself: help, manual pages, the page of flags, completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <sys/ioctl.h>

#include "fathom/text/json.h"
#include "tests/e2e/on_terminal.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

/// The commands of `fathom help --json`.
const std::vector<Json>& commands() {
  static const Json document = [] {
    const ProgramResult r = run_fathom({"help", "--json"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    auto json = parse_json(r.out, {}, "help");
    EXPECT_TRUE(json.ok()) << r.out;
    return json.ok() ? *std::move(json) : Json::object({{"commands", Json::array()}});
  }();
  return document.find("commands")->items();
}

std::string text_of(const Json& object, const char* key) {
  return object.find(key)->as_string();
}

/// "fathom bench kernel" without its first word.
Words words_of(const Json& command) {
  std::istringstream line(text_of(command, "command"));
  Words words;
  for (std::string word; line >> word;)
    words.push_back(word);
  words.erase(words.begin());
  return words;
}

TEST(Help, KnowsEveryCommand) {
  std::set<std::string> names;
  for (const Json& command : commands())
    names.insert(text_of(command, "command"));

  for (const char* name : {"fathom",
                           "fathom run",
                           "fathom chat",
                           "fathom inspect",
                           "fathom doctor",
                           "fathom tokenize",
                           "fathom eval",
                           "fathom synth",
                           "fathom quantize",
                           "fathom bench",
                           "fathom bench kernel",
                           "fathom bench model",
                           "fathom bench serve",
                           "fathom bench compare",
                           "fathom trace",
                           "fathom trace diff",
                           "fathom roofline",
                           "fathom presets",
                           "fathom version",
                           "fathom help",
                           "fathom completion"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Help, OfEveryCommandHasUsageAndExamples) {
  for (const Json& command : commands()) {
    const std::string name = text_of(command, "command");

    EXPECT_GE(command.find("examples")->items().size(), 2u) << name;
    EXPECT_GE(command.find("usage")->items().size(), 1u) << name;
    for (const Json& usage : command.find("usage")->items())
      EXPECT_THAT(usage.as_string(), HasSubstr(name)) << name;
  }
}

TEST(Help, OfEveryFlagSaysWhatItDoesAndItsDefault) {
  int flags = 0;
  for (const Json& command : commands()) {
    for (const Json& flag : command.find("flags")->items()) {
      const std::string where = text_of(command, "command") + " --" + text_of(flag, "name") + ": " +
                                text_of(flag, "help");
      ++flags;
      EXPECT_GE(text_of(flag, "help").size(), 5u) << where;
      EXPECT_THAT(text_of(flag, "help"), Not(HasSubstr("(default"))) << where;
      EXPECT_NE(text_of(flag, "default"), "") << where;
      // "SHELL" is the name of an argument whose values are others.
      if (text_of(flag, "typed").find("--") != std::string::npos) {
        EXPECT_THAT(text_of(flag, "typed"), HasSubstr(text_of(flag, "value"))) << where;
      }
      for (const char* type : {"INT", "UINT", "FLOAT", "BOOLEAN"})
        EXPECT_NE(text_of(flag, "value"), type) << where;
    }
  }
  EXPECT_GT(flags, 200);
}

TEST(Help, ExamplesParse) {
  for (const Json& command : commands()) {
    for (const Json& example : command.find("examples")->items()) {
      std::string line = example.as_string();
      // The files that it names are not there: nothing is run and nothing written.
      const size_t at = line.find("fathom ");
      ASSERT_NE(at, std::string::npos) << line;
      line.insert(at + 7, "--print-config ");
      line = line.substr(0, line.find(" > "));
      line = line.substr(0, line.find(" | man"));

      const ProgramResult r = run_shell(line);

      EXPECT_EQ(r.exit_code, 0) << line << "\n" << r.err;
    }
  }
}

TEST(Help, IsTheSameHoweverItIsAskedFor) {
  for (const Json& command : commands()) {
    const Words words = words_of(command);
    Words with_flag = words;
    with_flag.push_back("--help");
    Words with_letter = words;
    with_letter.push_back("-h");
    Words asked{"help"};
    asked.insert(asked.end(), words.begin(), words.end());

    const std::string text = run_fathom(with_flag).out;

    EXPECT_THAT(text, HasSubstr("\nUsage:\n  fathom")) << testing::PrintToString(words);
    EXPECT_THAT(text, HasSubstr("\nExamples:\n")) << testing::PrintToString(words);
    EXPECT_THAT(text, HasSubstr("\nEvery command:\n  -v, --verbose"))
        << testing::PrintToString(words);
    EXPECT_EQ(run_fathom(asked).out, text);
    EXPECT_EQ(run_fathom(with_letter).out, text);
  }
}

// The help of `synth` on a terminal of so many columns.
std::string shown_at(uint16_t columns) {
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  return run_on_terminal({"synth", "--help"}, {}, STDOUT_FILENO,
                         [&size] {
                           if (ioctl(STDOUT_FILENO, TIOCSWINSZ, &size) != 0) _exit(127);
                         })
      .out;
}

Words words_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

size_t longest_line(const std::string& text) {
  std::istringstream in(text);
  size_t longest = 0;
  for (std::string line; std::getline(in, line);)
    longest = std::max(longest, line.size());
  return longest;
}

TEST(Help, FillsATerminalOf60To120Columns) {
  const std::string piped = run_fathom({"synth", "--help"}).out;
  const std::string narrow = shown_at(60);
  const std::string middle = shown_at(100);
  const std::string wide = shown_at(120);

  for (const auto& [text, columns] : std::vector<std::pair<std::string, size_t>>{
           {piped, 80}, {narrow, 60}, {middle, 100}, {wide, 120}}) {
    EXPECT_LE(longest_line(text), columns) << text;
    EXPECT_GT(longest_line(text), columns - 8) << text;
    EXPECT_EQ(words_in(text), words_in(piped)) << columns;
  }
  EXPECT_EQ(shown_at(20), narrow);
  EXPECT_EQ(shown_at(300), wide);
  EXPECT_EQ(shown_at(0), piped) << "a terminal that does not tell";
}

TEST(Help, ShowsFlagsAsTheyAreTypedWithUnitsAndDefaults) {
  const std::string text = run_fathom({"run", "--help"}).out;

  EXPECT_THAT(text, HasSubstr("  fathom run MODEL -p TEXT [OPTIONS]\n"));
  EXPECT_THAT(text, HasSubstr("  -n, --max-tokens TOKENS   Tokens to generate [default: to the "
                              "end]\n"));
  EXPECT_THAT(text, HasSubstr("      --dtype auto|bf16|f32"));
  EXPECT_THAT(text, HasSubstr("      --[no-]pin-threads"));
  EXPECT_THAT(text, Not(HasSubstr("FATHOM_MAX_TOKENS")));
  const std::string all = run_fathom({"run", "--help-all"}).out;
  EXPECT_THAT(all, HasSubstr("FATHOM_MAX_TOKENS"));
  EXPECT_THAT(all, HasSubstr("--n-predict"));
}

TEST(Help, OfACommandThatIsNotThereNamesNearOnes) {
  const ProgramResult r = run_fathom({"help", "bench", "kernl"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err,
              HasSubstr("'kernl' is no command of `fathom bench`\nhint: did you mean kernel"));
}

// ---- Manual pages

std::string escaped(const std::string& flag) {
  std::string out;
  for (const char c : flag)
    out += c == '-' ? "\\-" : std::string(1, c);
  return out;
}

TEST(ManPages, ThereIsOneOfEveryCommandWithEveryFlag) {
  const TempFolder folder;

  const ProgramResult r = run_fathom({"help", "--out-dir", folder.str()});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const Json& command : commands()) {
    std::string name = text_of(command, "command");
    std::replace(name.begin(), name.end(), ' ', '-');
    const std::string page = read_all(folder / ("man/man1/" + name + ".1"));
    EXPECT_THAT(page, testing::StartsWith(".TH \"FATHOM")) << name;
    EXPECT_THAT(page, HasSubstr(".SH \"EXAMPLES\"\n")) << name;
    for (const Json& flag : command.find("flags")->items()) {
      if (text_of(flag, "typed").find("--") == std::string::npos) continue;
      EXPECT_THAT(page, HasSubstr(escaped(text_of(flag, "name")))) << name;
    }
  }
  EXPECT_EQ(run_fathom({"help", "--man", "bench", "kernel"}).out,
            read_all(folder / "man/man1/fathom-bench-kernel.1"));
}

// No line begins with a request that is not ours, and none is left open.
TEST(ManPages, AreFreeOfWarnings) {
  if (run_shell("command -v groff").exit_code != 0) GTEST_SKIP() << "needs groff";
  const TempFolder folder;
  ASSERT_EQ(run_fathom({"help", "--out-dir", folder.str()}).exit_code, 0);

  for (const auto& page : std::filesystem::directory_iterator(folder / "man/man1")) {
    const ProgramResult r =
        run_shell("groff -man -Tutf8 -ww -z -rCHECKSTYLE=3 " + page.path().string());

    EXPECT_EQ(r.exit_code, 0) << page.path();
    EXPECT_EQ(r.err, "") << page.path();
  }
}

TEST(ManPages, ShowTextUnchanged) {
  if (run_shell("command -v groff").exit_code != 0) GTEST_SKIP() << "needs groff";

  const ProgramResult r =
      run_shell("fathom help --man run | groff -man -Tascii -P-cbou -rLL=2000n");

  EXPECT_THAT(r.out, HasSubstr("fathom run tiny-v3-nvfp4 -p \"Once upon a time\" -n 64"));
  EXPECT_THAT(r.out, HasSubstr("-n, --max-tokens, --n-predict"));
  EXPECT_THAT(r.out, HasSubstr("-f <(command)"));
}

// ---- Completion

/// The candidates for a command line whose last word is being typed.
Words candidates(const Words& line) {
  Words args{"completion", "--words", "--"};
  args.insert(args.end(), line.begin(), line.end());
  const ProgramResult r = run_fathom(args);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  Words out;
  std::istringstream lines(r.out);
  for (std::string text; std::getline(lines, text);)
    out.push_back(text.substr(0, text.find('\t')));
  return out;
}

TEST(Completion, KnowsCommandsFlagsWordsAndModels) {
  using testing::Contains;
  using testing::ElementsAre;
  using testing::IsEmpty;

  EXPECT_THAT(candidates({"r"}), ElementsAre("run", "roofline"));
  EXPECT_THAT(candidates({"bench", ""}), Contains("kernel"));
  EXPECT_THAT(candidates({"trace", "--dry", "di"}), ElementsAre("diff"));
  EXPECT_THAT(candidates({"run", "--temper"}), ElementsAre("--temperature"));
  EXPECT_THAT(candidates({"run", "tiny-v3-nvfp4", "--no-pin"}), ElementsAre("--no-pin-threads"));
  EXPECT_THAT(candidates({"-v", "run", "--dtype", ""}), ElementsAre("auto", "bf16", "f32"));
  EXPECT_THAT(candidates({"run", "--dtype=b"}), ElementsAre("--dtype=bf16"));
  EXPECT_THAT(candidates({"run", "--verb"}), ElementsAre("--verbose"));
  EXPECT_THAT(candidates({"inspect", "--as", "deepseek-r1"}),
              testing::IsSupersetOf({"deepseek-r1", "deepseek-r1-nvfp4"}));
  EXPECT_THAT(candidates({"run", "tiny-v3"}), ElementsAre("tiny-v3-nvfp4"));
  EXPECT_THAT(candidates({"help", "bench", "ker"}), ElementsAre("kernel"));
  EXPECT_THAT(candidates({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
}

TEST(Completion, LeavesFilesAndTextToTheShell) {
  EXPECT_THAT(candidates({"run", "-f", ""}), testing::IsEmpty());
  EXPECT_THAT(candidates({"run", "-p", "--te"}), testing::IsEmpty());
  EXPECT_THAT(candidates({"run", "tiny-v3-nvfp4", ""}), testing::IsEmpty());
}

TEST(Completion, WorksInBash) {
  const std::string script =
      "source <(fathom completion bash); "
      "COMP_WORDS=(fathom run --temper); COMP_CWORD=2; _fathom; printf '%s\\n' \"${COMPREPLY[@]}\";"
      "COMP_WORDS=(fathom bench k); COMP_CWORD=2; _fathom; printf '%s\\n' \"${COMPREPLY[@]}\";"
      "complete -p fathom";

  const ProgramResult r = run_shell(script);

  EXPECT_EQ(r.out, "--temperature\nkernel\ncomplete -o default -F _fathom fathom\n") << r.err;
}

TEST(Completion, HasAScriptForEachShellAndForNoOther) {
  EXPECT_THAT(run_fathom({"completion", "zsh"}).out, testing::StartsWith("#compdef fathom\n"));
  EXPECT_THAT(run_fathom({"completion", "fish"}).out, HasSubstr("complete -c fathom"));
  const ProgramResult none = run_fathom({"completion"});
  const ProgramResult other = run_fathom({"completion", "fihs"});
  EXPECT_EQ(none.exit_code, 64);
  EXPECT_EQ(other.exit_code, 64);
  EXPECT_THAT(other.err, HasSubstr("did you mean fish"));
}

// ---- The program itself

TEST(Version, BeginsWithTheLineOfTheFlagAndTellsTheBuild) {
  const std::string line = run_fathom({"--version"}).out;
  const ProgramResult r = run_fathom({"version"});
  const ProgramResult json = run_fathom({"version", "--json"});

  EXPECT_THAT(r.out, testing::StartsWith(line));
  EXPECT_THAT(r.out, HasSubstr("\ncpu kernels  portable, avx2, avx512, amx\n"));
  const auto facts = parse_json(json.out, {}, "version");
  ASSERT_TRUE(facts.ok()) << json.out;
  EXPECT_EQ(text_of(*facts, "schema"), "fathom.version/1");
  EXPECT_EQ("fathom " + text_of(*facts, "version") + "\n", line);
}

TEST(Presets, AreAllOfThoseThatInspectTakes) {
  const ProgramResult r = run_fathom({"presets", "--json"});
  const auto json = parse_json(r.out, {}, "presets");
  ASSERT_TRUE(json.ok()) << r.out << r.err;

  const ProgramResult refused = run_fathom({"inspect", "--as", "no-such-preset"});
  std::map<std::string, int64_t> parameters;
  for (const Json& preset : json->find("presets")->items()) {
    parameters[text_of(preset, "name")] = preset.find("parameters")->as_int();
    EXPECT_THAT(refused.err, HasSubstr(text_of(preset, "name")));
    EXPECT_GT(preset.find("bytes")->as_int(), 0);
  }
  EXPECT_EQ(parameters["deepseek-v3"], 671'026'419'200);
  EXPECT_EQ(parameters["deepseek-r1-nvfp4"], 671'026'419'200);
  EXPECT_THAT(run_fathom({"presets"}).out, HasSubstr("| deepseek-v2-lite "));
}

}  // namespace
}  // namespace fathom::e2e
