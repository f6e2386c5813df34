// What a user sees who types something wrong.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

TEST(Usage, VersionIsOneLineOnStandardOutput) {
  const ProgramResult r = run_fathom({"version"});

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_THAT(r.out, testing::StartsWith("fathom "));
}

TEST(Usage, WordsBesideTheVersionAreRefused) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--version", "extra"}, {"extra", "--version"}}) {
    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, 64);
    EXPECT_EQ(r.out, "");
    EXPECT_THAT(r.err, HasSubstr("unknown argument 'extra'\nhint: `fathom --help`"));
  }
  EXPECT_EQ(run_fathom({"run", "--version"}).out, run_fathom({"--version"}).out);
}

TEST(Usage, EveryCommandHasHelp) {
  for (const char* command : {"run", "chat", "inspect", "doctor", "tokenize", "eval", "synth",
                              "quantize", "verify", "bench"}) {
    const ProgramResult r = run_fathom({command, "--help"});

    EXPECT_EQ(r.exit_code, 0) << command;
    EXPECT_THAT(r.out, HasSubstr("--")) << command;
  }
}

TEST(Usage, UnknownFlagGetsTheNearestName) {
  const ProgramResult r = run_fathom({"run", shipped_model(), "--temprature", "1"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("--temperature"));
}

TEST(Usage, UnknownCommandIsNamedWithNearOnes) {
  const ProgramResult r = run_fathom({"runn", "/nowhere/model", "-p", "x"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("'runn' is no command of `fathom`\nhint: did you mean run"));
  EXPECT_THAT(run_fathom({"bench", "kernl"}).err,
              HasSubstr("'kernl' is no command of `fathom bench`\nhint: did you mean kernel"));
}

TEST(Usage, CommandLikeNoOtherListsThemAll) {
  const ProgramResult r = run_fathom({"xxxxxxxxxxxxxxxxxxxx"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("is no command of `fathom`, expected run, chat, inspect,"));
}

TEST(Usage, MissingCommandListsThem) {
  EXPECT_EQ(run_fathom({}).exit_code, 64);
  EXPECT_THAT(run_fathom({"bench"}).err,
              HasSubstr("`fathom bench` needs a command: kernel, model, serve, compare"));
}

TEST(Usage, HintNamesTheWholeCommand) {
  EXPECT_THAT(run_fathom({"bench", "kernel", "--repz", "3"}).err,
              HasSubstr("`fathom bench kernel --help` lists the flags"));
  EXPECT_THAT(run_fathom({"trace", "diff", "--repz"}).err,
              HasSubstr("`fathom trace diff --help` lists the flags"));
  EXPECT_THAT(run_fathom({"run", "--repz"}).err, HasSubstr("`fathom run --help` lists the flags"));
}

TEST(Usage, MissingModelFolderIsBadInputAndNamed) {
  const ProgramResult r = run_fathom({"run", "/nowhere/model", "-p", "x"});

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("/nowhere/model"));
}

TEST(Usage, UnknownPresetListsTheKnownOnes) {
  const ProgramResult r = run_fathom({"inspect", "--as", "deepseek-r9"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("deepseek-r1-nvfp4"));
}

TEST(Usage, ValuesOutOfRangeAreUsageErrors) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--temperature", "-1"},
                                             {"--temperature", "nan"},
                                             {"--top-p", "0"},
                                             {"--top-p", "1.5"},
                                             {"--min-p", "2"},
                                             {"--max-tokens", "0"},
                                             {"--dtype", "f64"},
                                             {"--threads", "100000"}}) {
    std::vector<std::string> args{"run", shipped_model(), "-p", "Once"};
    args.insert(args.end(), flags.begin(), flags.end());
    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, 64) << flags[0] << " " << flags[1] << ": " << r.err;
    EXPECT_EQ(r.out, "") << flags[0];
  }
}

TEST(Usage, ConfigFileMayHoldFlagsOfNestedCommands) {
  TempFolder folder;
  std::ofstream(folder / "c.yaml") << "min-time: 0.001\nfail-slower: 5%\nfilter: argmax/t1_*\n";

  const ProgramResult other = run_fathom(
      {"tokenize", shipped_model(), "-p", "x", "--config", (folder / "c.yaml").string()});
  const ProgramResult list =
      run_fathom({"bench", "kernel", "--list", "--config", (folder / "c.yaml").string()});

  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, testing::StartsWith("argmax  t1_"));
}

TEST(Usage, ConfigFileKeysThatNobodyKnowsAreNamed) {
  TempFolder folder;
  std::ofstream(folder / "c.yaml") << "temprature: 1\n";

  const ProgramResult r =
      run_fathom({"run", shipped_model(), "-p", "x", "--config", (folder / "c.yaml").string()});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("temprature"));
}

TEST(Usage, DoctorTellsTheCudaOfTheBuildFromThatOfTheMachine) {
  const ProgramResult text = run_fathom({"doctor", "--no-measure"});
  const ProgramResult json = run_fathom({"doctor", "--no-measure", "--json"});

  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, testing::ContainsRegex("CUDA of this build +\\| (none|runtime)"));
  EXPECT_THAT(text.out, testing::ContainsRegex("CUDA of this machine +\\| (no )?NVIDIA driver"));
  EXPECT_THAT(json.out, HasSubstr("\"cuda\": {"));
  EXPECT_THAT(json.out, HasSubstr("\"driver_runs_up_to\": "));
}

TEST(Usage, DoctorGivesMemoryInPowersOfTwo) {
  const ProgramResult r = run_fathom({"doctor", "--no-measure"});

  EXPECT_THAT(r.out, testing::ContainsRegex("memory +\\| [0-9.]+ GiB, available [0-9.]+ [MG]iB"));
  EXPECT_THAT(r.out, testing::ContainsRegex("caches +\\| L1d [0-9.]+ KiB"));
}

// In the process that becomes the program: standard output is the device that is always full.
void fill_the_disk() {
  const int fd = ::open("/dev/full", O_WRONLY);
  if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0) _exit(127);
}

TEST(StandardOutput, ThatIsFullIsAnErrorOfEveryCommand) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"version"},
                                             {"--version"},
                                             {"--help"},
                                             {"bench", "kernel", "--help"},
                                             {"bench", "kernel", "--list"},
                                             {"inspect", shipped_model()},
                                             {"tokenize", shipped_model(), "-p", "Once"}}) {
    const ProgramResult r = run_fathom(args, {}, fill_the_disk);

    EXPECT_EQ(r.exit_code, 74) << args[0] << r.err;
    EXPECT_THAT(r.err, HasSubstr("cannot write standard output: No space left on device"))
        << args[0];
  }
}

TEST(StandardOutput, ThatIsClosedIsAnError) {
  const ProgramResult r = run_fathom({"version"}, {}, [] { close(STDOUT_FILENO); });

  EXPECT_EQ(r.exit_code, 74);
  EXPECT_THAT(r.err, HasSubstr("cannot write standard output: Bad file descriptor"));
}

TEST(StandardOutput, BeyondTheLimitOfFilesIsAnError) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--list"}, {}, [] {
    const rlimit limit{1000, 1000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(127);
  });

  EXPECT_EQ(r.exit_code, 74);
  EXPECT_THAT(r.err, HasSubstr("cannot write standard output: File too large"));
  EXPECT_EQ(r.out.size(), 1000u);
}

TEST(StandardOutput, ThatIsFullDoesNotHideAnEarlierError) {
  EXPECT_EQ(run_fathom({"inspect", "/nowhere/model"}, {}, fill_the_disk).exit_code, 65);
}

TEST(StandardOutput, ThatIsClosedDoesNotLeadIntoAnotherFile) {
  TempFolder folder;
  const std::string ids = (folder / "ids").string();

  const ProgramResult r = run_fathom(
      {"run", shipped_model(), "-p", "Once", "--max-tokens", "2", "--ids-out", ids, "-q"}, {},
      [] { close(STDOUT_FILENO); });

  EXPECT_EQ(r.exit_code, 74) << r.err;
  EXPECT_THAT(read_all(ids), testing::MatchesRegex("\\[[0-9]+, [0-9]+\\]\n"));
}

TEST(StandardOutput, WhoseReaderIsGoneEndsTheProgramAsOthers) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--list"}, {}, [] {
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) _exit(127);
    close(ends[0]);
    close(ends[1]);
    signal(SIGPIPE, SIG_DFL);
  });

  EXPECT_EQ(r.exit_code, 128 + SIGPIPE);
  EXPECT_EQ(r.err, "");
}

TEST(StandardInput, ThatIsClosedIsAnErrorOfChat) {
  const ProgramResult r = run_fathom({"chat", shipped_model()}, {}, [] { close(STDIN_FILENO); });

  EXPECT_EQ(r.exit_code, 74);
  EXPECT_THAT(r.err, HasSubstr("cannot read standard input: Bad file descriptor"));
}

}  // namespace
}  // namespace fathom::e2e
