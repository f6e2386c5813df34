// What long commands say on a terminal while they run, and what Ctrl-C leaves.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "fathom/text/json.h"
#include "tests/e2e/on_terminal.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

TEST(Progress, IsALineThatGoesOnATerminalAndNothingElsewhere) {
  const TempFolder folder;
  const std::string text = (folder / "text").string();
  std::ofstream(text) << "Once upon a time there was a king.";
  const std::string model = shipped_model();
  const std::pair<Words, std::string> cases[] = {
      {{"verify", model}, "verifying ["},
      {{"eval", model, "--ppl", text}, "scoring ["},
      {{"quantize", FATHOM_SOURCE_DIR "/tests/golden/micro-v3", "OUT", "--format", "fp8_block"},
       "quantising ["},
      {{"synth", "OUT", "--layers", "2", "--hidden", "64", "--experts", "8"}, "writing ["},
      {{"bench", "kernel", "--kernels", "argmax", "--filter", "argmax/t1_*", "--min-time", "0",
        "--reps", "1"},
       "timing ["},
      {{"bench", "model", model, "-p", "4", "-n", "2", "-r", "1"}, "timing ["},
  };
  int count = 0;
  for (const auto& [command, line] : cases) {
    const auto args = [&, &words = command] {
      Words out = words;
      for (std::string& word : out) {
        if (word == "OUT") word = (folder / std::to_string(++count)).string();
      }
      return out;
    };

    const ProgramResult shown = run_on_terminal(args(), {}, STDERR_FILENO);
    const ProgramResult piped = run_fathom(args());

    EXPECT_EQ(shown.exit_code, 0) << command[0] << shown.err;
    EXPECT_THAT(shown.err, AllOf(HasSubstr("\r" + line), HasSubstr(" \r"))) << command[0];
    EXPECT_LT(shown.err.rfind(line), shown.err.rfind(" \r")) << command[0];
    EXPECT_THAT(piped.err, AllOf(Not(HasSubstr(line)), Not(HasSubstr("\r")))) << command[0];
  }
}

// Sends SIGINT to the program, whose process this becomes, once `ready` says true.
std::function<void()> interrupt_when(std::function<bool()> ready) {
  return [ready = std::move(ready)] {
    const pid_t program = getpid();
    std::signal(SIGINT, SIG_DFL);  // whoever runs the tests may ignore it
    if (fork() != 0) return;
    for (int tries = 0; tries < 30'000 && getppid() == program; ++tries) {
      if (ready()) {
        kill(program, SIGINT);
        break;
      }
      usleep(2'000);
    }
    _exit(0);
  };
}

// Writes a text where the program reads it; opening waits for the program.
bool write_to_pipe(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY);
  if (fd < 0) return false;
  const bool all = text.empty() || ::write(fd, text.data(), text.size()) > 0;
  if (!text.empty()) close(fd);  // an open end lets the program wait for more
  return all;
}

TEST(Interrupt, OfAWriteLeavesWhatTheSameCommandGoesOnWith) {
  const TempFolder folder;
  const fs::path out = folder / "out";
  const Words args{"synth", out.string(), "--layers", "16"};

  const ProgramResult r =
      run_fathom(args, {}, interrupt_when([&] { return fs::exists(out) && !fs::is_empty(out); }));

  EXPECT_EQ(r.exit_code, 130) << r.err;
  EXPECT_THAT(r.err,
              EndsWith("fathom: interrupted: what is written stays; the same command goes on "
                       "where it stopped\n"));
  EXPECT_EQ(run_fathom({"inspect", out.string()}).exit_code, 65) << "not finished";
  EXPECT_EQ(run_fathom(args).exit_code, 0);
  EXPECT_EQ(run_fathom({"verify", out.string()}).exit_code, 0);
}

TEST(Interrupt, TakesTheLineOfProgressAwayWithoutEscapeCodes) {
  const TempFolder folder;
  const fs::path out = folder / "out";
  const auto begun = [&] { return fs::exists(out) && !fs::is_empty(out); };

  const ProgramResult r =
      run_on_terminal({"synth", out.string(), "--layers", "16", "--color", "off"}, {},
                      STDERR_FILENO, interrupt_when(begun));

  EXPECT_EQ(r.exit_code, 130) << r.err;
  EXPECT_THAT(r.err, AllOf(HasSubstr("fathom: interrupted: "), Not(HasSubstr("\033"))));
  EXPECT_TRUE(r.err.starts_with("fathom: interrupted") || r.err.find(" \rfathom: ") != r.err.npos)
      << r.err;
}

TEST(Interrupt, OfAPerplexityGivesWhatIsScored) {
  const TempFolder folder;
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text;
  while (text.size() < 40'000)
    text += "Once upon a time there was a king. ";

  const ProgramResult r = run_fathom({"eval", shipped_model(), "--ppl", pipe}, {},
                                     interrupt_when([&] { return write_to_pipe(pipe, text); }));

  EXPECT_EQ(r.exit_code, 130) << r.err;
  EXPECT_THAT(r.out, HasSubstr("perplexity"));
  EXPECT_THAT(r.err, testing::ContainsRegex("interrupted: this is of the first [0-9]+ of [0-9]+ "
                                            "tokens"));
}

TEST(Interrupt, OfABenchmarkOfAModelGivesTheRowsThatThereAre) {
  const TempFolder folder;
  const std::string rows = (folder / "rows.json").string();
  // The second row takes seconds: a hundred runs.
  const Words args{"bench",      "model", FATHOM_SOURCE_DIR "/tests/golden/micro-v3",
                   "-p",         "1",     "-n",
                   "100",        "-r",    "100",
                   "-b",         "1,2",   "--json",
                   "--out-file", rows,    "--log-level",
                   "debug"};
  const auto decodes = [] {
    return read_all("/proc/self/fd/2").find("timing decode") != std::string::npos;
  };

  const ProgramResult r = run_fathom(args, {}, interrupt_when(decodes));

  EXPECT_EQ(r.exit_code, 130) << r.err;
  EXPECT_THAT(r.err, EndsWith("fathom: warning: interrupted: 1 of 3 rows are measured, left out: "
                              "tg100, tg100 x 2\n"));
  const Result<Json> report = parse_json(read_all(rows), {}, rows);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->find("rows")->items().size(), 1u);
  EXPECT_EQ(report->find("rows")->items()[0].find("test")->as_string(), "pp1");
}

TEST(Interrupt, OfWhatWritesNothingSaysSo) {
  const TempFolder folder;
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);

  const ProgramResult r = run_fathom({"tokenize", shipped_model(), "-f", pipe}, {},
                                     interrupt_when([&] { return write_to_pipe(pipe, ""); }));

  EXPECT_EQ(r.exit_code, 130) << r.err;
  EXPECT_EQ(r.err, "fathom: interrupted: nothing was written\n");
}

}  // namespace
}  // namespace fathom::e2e
