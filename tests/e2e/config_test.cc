// Where values come from, and which flags a command takes.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>

#include "fathom/text/json.h"
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;
using Environment = std::vector<std::pair<std::string, std::string>>;

ProgramResult run_with(const Words& args, const Environment& environment) {
  return run_fathom(args, {}, [&] {
    for (const auto& [name, value] : environment)
      setenv(name.c_str(), value.c_str(), 1);
  });
}

struct Setting {
  std::string value;
  std::string source;

  bool operator==(const Setting&) const = default;
};

using Settings = std::map<std::string, Setting>;

/// What --print-config=json says.
Settings settings_of(Words args, const Environment& environment = {}) {
  args.push_back("--print-config=json");
  const ProgramResult r = run_with(args, environment);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  Settings out;
  const auto json = parse_json(r.out, {}, "--print-config");
  EXPECT_TRUE(json.ok()) << r.out;
  if (!json.ok()) return out;
  for (const auto& [name, setting] : json->members()) {
    const Json& value = *setting.find("value");
    out[name] = {value.is_string() ? value.as_string() : "a list",
                 setting.find("source")->as_string()};
  }
  return out;
}

/// A flag with a value for each place that may give one.
struct Flag {
  std::string name;
  std::string command_line, environment, file, usual;
};

// Command line > environment > file > default, for every set of places and every kind of flag.
TEST(Config, FirstPlaceThatGivesAValueWins) {
  const Flag flags[] = {{"block-size", "16", "32", "128", "64"},
                        {"dtype", "f32", "bf16", "f32", "auto"},
                        {"memory-fraction", "0.5", "0.25", "0.75", "0.9"},
                        {"device", "cuda:1", "cuda", "cuda:2", "cpu"},
                        {"batch-invariant", "true", "off", "true", "false"},
                        {"cuda-graphs", "off", "on", "off", "on"},
                        {"pin", "a=b", "c=d", "e=f", ""},
                        {"threads", "1", "2", "3", "0"},
                        {"isa", "portable", "avx2", "avx512", "auto"},
                        {"temperature", "0.1", "0.2", "0.3", ""},
                        {"log-level", "warn", "error", "debug", "info"}};
  const TempFolder folder;
  const std::string file = (folder / "flags.yaml").string();
  for (const Flag& flag : flags) {
    std::string variable = "FATHOM_" + flag.name;
    for (char& c : variable)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    for (int places = 0; places < 8; ++places) {
      SCOPED_TRACE(flag.name + ", places " + std::to_string(places));
      Words args{"run", shipped_model(), "-p", "x"};
      Environment environment{{"OMP_NUM_THREADS", ""}};
      std::optional<Setting> expected;
      if (!flag.usual.empty()) expected = Setting{flag.usual, "default"};
      if ((places & 4) != 0) {
        std::ofstream(file) << flag.name << ": " << flag.file << "\n";
        args.insert(args.end(), {"--config", file});
        expected = Setting{flag.file, file};
      }
      if ((places & 2) != 0) {
        environment.emplace_back(variable, flag.environment);
        expected = Setting{flag.environment, "environment " + variable};
      }
      if ((places & 1) != 0) {
        args.push_back("--" + flag.name);
        if (flag.name != "batch-invariant") args.push_back(flag.command_line);
        expected = Setting{flag.command_line, "command line"};
      }

      const Settings found = settings_of(args, environment);

      const auto at = found.find(flag.name);
      ASSERT_EQ(at != found.end(), expected.has_value());
      if (expected) {
        EXPECT_EQ(at->second.value, expected->value);
        EXPECT_EQ(at->second.source, expected->source);
      }
    }
  }
}

// The values are those that the engine runs with, not only those that are printed.
TEST(Config, ValuesOfEveryPlaceReachTheEngine) {
  const TempFolder folder;
  const std::string file = (folder / "flags.yaml").string();
  std::ofstream(file) << "memory-fraction: 1e-9\n";
  const Words run{"run", shipped_model(), "-p", "x", "-n", "1"};
  Words with_file = run;
  with_file.insert(with_file.end(), {"--config", file});
  Words with_flag = with_file;
  with_flag.insert(with_flag.end(), {"--memory-fraction", "0.9"});

  EXPECT_EQ(run_fathom(with_file).exit_code, 78);
  EXPECT_EQ(run_with(run, {{"FATHOM_CONFIG", file}}).exit_code, 78);
  EXPECT_EQ(run_with(with_file, {{"FATHOM_MEMORY_FRACTION", "0.9"}}).exit_code, 0);
  EXPECT_EQ(run_with(with_flag, {{"FATHOM_MEMORY_FRACTION", "1e-9"}}).exit_code, 0);
}

TEST(Config, ThreadsOfOpenMpAreADefault) {
  const Words run{"run", shipped_model(), "-p", "x"};
  const Setting omp{"2", "environment OMP_NUM_THREADS"};
  const Setting own{"3", "environment FATHOM_THREADS"};
  Words with_flag = run;
  with_flag.insert(with_flag.end(), {"--threads", "1"});

  EXPECT_EQ(settings_of(run, {{"OMP_NUM_THREADS", "2"}})["threads"], omp);
  EXPECT_EQ(settings_of(run, {{"OMP_NUM_THREADS", "2"}, {"FATHOM_THREADS", "3"}})["threads"], own);
  EXPECT_EQ(settings_of(with_flag, {{"OMP_NUM_THREADS", "2"}})["threads"].value, "1");
  EXPECT_EQ(settings_of(run, {{"OMP_NUM_THREADS", "2,3"}})["threads"], omp);
  const ProgramResult odd = run_with({"inspect", shipped_model()}, {{"OMP_NUM_THREADS", "x,2"}});
  EXPECT_EQ(odd.exit_code, 0);
  EXPECT_THAT(odd.err, HasSubstr("OMP_NUM_THREADS='x,2' is not a number of threads"));
}

TEST(Config, BadValuesAreNamedWithTheirPlace) {
  const TempFolder folder;
  const std::string file = (folder / "flags.yaml").string();
  std::ofstream(file) << "cuda-graphs: maybe\n";
  const Words run{"run", shipped_model(), "-p", "x"};
  Words with_file = run;
  with_file.insert(with_file.end(), {"--config", file});

  const ProgramResult from_file = run_fathom(with_file);
  const ProgramResult from_environment = run_with(run, {{"FATHOM_BATCH_INVARIANT", "maybe"}});

  EXPECT_EQ(from_file.exit_code, 64);
  EXPECT_THAT(from_file.err, HasSubstr(file + ": cuda-graphs: --cuda-graphs: is 'maybe', expected "
                                              "one of on|off"));
  EXPECT_EQ(from_environment.exit_code, 64);
  EXPECT_THAT(from_environment.err, HasSubstr("FATHOM_BATCH_INVARIANT: "));
  EXPECT_THAT(from_environment.err, HasSubstr("is 'maybe', expected true or false"));
}

TEST(Config, FileTakesEverySpellingOfAFlagOnce) {
  const TempFolder folder;
  const std::string file = (folder / "flags.yaml").string();
  const auto with = [&](const std::string& text) {
    std::ofstream(file) << text;
    return Words{"run", shipped_model(), "-p", "x", "--config", file};
  };

  EXPECT_EQ(settings_of(with("temp: 0.5\n"))["temperature"].value, "0.5");
  EXPECT_EQ(settings_of(with("max_model_len: 256\n"))["max-model-len"].value, "256");
  EXPECT_EQ(settings_of(with("n-predict: 3\n"))["max-tokens"].value, "3");
  const ProgramResult twice = run_fathom(with("temp: 0.5\ntop-k: 3\ntemperature: 1\n"));
  EXPECT_EQ(twice.exit_code, 65);
  EXPECT_THAT(twice.err, HasSubstr("line 1: temp is temperature, which line 3 has"));
  const ProgramResult opposite = run_fathom(with("no-pin-threads: true\n"));
  EXPECT_EQ(opposite.exit_code, 64);
  EXPECT_THAT(opposite.err,
              HasSubstr("no command has a flag --no-pin-threads\nhint: did you mean "));
}

// YAML that is fed back gives the same values, lists too.
TEST(Config, WhatIsPrintedCanBeFedBack) {
  const TempFolder folder;
  const std::string file = (folder / "flags.yaml").string();
  const Words given{"run", shipped_model(),   "--stop", "a, b: #c", "--prompt", "",        "--pin",
                    "a=b", "--pin",           "c=d",    "-c",       "1k",       "--dtype", "f32",
                    "-vv", "--no-pin-threads"};
  Words yaml = given;
  yaml.push_back("--print-config");
  const ProgramResult printed = run_fathom(yaml);
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("block-size: 64  # default"));
  EXPECT_THAT(printed.out, HasSubstr("max-model-len: 1k  # command line"));
  std::ofstream(file) << printed.out;

  Settings expected = settings_of(given);
  Settings found = settings_of({"run", "--config", file});

  for (auto& [name, setting] : expected)
    EXPECT_EQ(found[name], (Setting{setting.value, file})) << name;
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_EQ(run_fathom({"run", "--config", file, "--print-config=xml"}).exit_code, 64);
}

TEST(Config, FlagThatDoesNothingInACommandIsRefused) {
  const std::string model = shipped_model();

  for (const Words& args : {Words{"run", model, "--kv-pool", "remaining"},
                            {"run", model, "--prefix-cache"},
                            {"run", model, "--as", "deepseek-v3"},
                            {"chat", model, "--max-num-seqs", "4"},
                            {"eval", model, "--memory-fraction", "0.5"},
                            {"eval", model, "--dummy-weights"},
                            {"inspect", model, "--cuda-graphs", "off"},
                            {"inspect", model, "--pin", "a=b"},
                            {"trace", "--dry", model, "--memory-fraction", "0.5"},
                            {"bench", "model", model, "--max-model-len", "64"},
                            {"tokenize", model, "--dtype", "f32"}}) {
    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, 64) << testing::PrintToString(args);
    EXPECT_THAT(r.err, HasSubstr("unknown argument '" + args[args.size() > 4 ? 3 : 2]))
        << testing::PrintToString(args);
  }
  const ProgramResult pin =
      run_fathom({"trace", "--dry", "--as", "deepseek-v2-lite", "--pin", "q_b_proj=portable"});
  EXPECT_EQ(pin.exit_code, 64);
  EXPECT_THAT(pin.err, HasSubstr("--pin has no use in a dry run"));
}

TEST(Config, OptionsOfTheTableChangeWhatCommandsDo) {
  const auto inspect = [](const Words& flags) {
    Words args{"inspect", shipped_model()};
    args.insert(args.end(), flags.begin(), flags.end());
    const ProgramResult r = run_fathom(args);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  };

  EXPECT_THAT(inspect({"--kv-cache-dtype", "fp8_e4m3"}), HasSubstr("mla latent e4m3"));
  EXPECT_THAT(inspect({"-c", "256"}), HasSubstr("Decode at a context of 256 tokens"));
  EXPECT_THAT(run_fathom({"inspect", "--as", "deepseek-r1", "--layers", "2"}).out,
              HasSubstr("2: 2 dense, 0 with experts"));
  EXPECT_THAT(run_fathom({"run", shipped_model(), "-p", "x", "-n", "1", "--page-size", "48"}).err,
              HasSubstr("--block-size is 48, expected a divisor of 1024"));
}

TEST(Config, DevicesByNumberAreLookedFor) {
  const ProgramResult r =
      run_fathom({"run", shipped_model(), "-p", "x", "-n", "1", "--device", "cuda:99"});

  EXPECT_EQ(r.exit_code, 69) << r.err;
  EXPECT_EQ(run_fathom({"run", shipped_model(), "-p", "x", "--device", "cuda:x"}).exit_code, 64);
  EXPECT_EQ(run_fathom({"trace", shipped_model(), "-p", "x", "--device", "cuda:x"}).exit_code, 64);
}

// docs/generated/flags.md is what the program prints.
TEST(Config, PageOfFlagsIsWhatTheProgramPrints) {
  const ProgramResult r = run_fathom({"--help-all"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(r.out == read_all(FATHOM_SOURCE_DIR "/docs/generated/flags.md"))
      << "docs/generated/flags.md is out of date; run ./dev docs";
}

}  // namespace
}  // namespace fathom::e2e
