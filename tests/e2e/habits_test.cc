// What people type who come from llama.cpp, vLLM and ollama, and what shells do to command lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

/// What a flag is after these words, as --print-config says; empty where it is not listed.
std::string value_after(Words args, const std::string& flag) {
  args.push_back("--print-config=json");
  const ProgramResult r = run_fathom(args);
  EXPECT_EQ(r.exit_code, 0) << testing::PrintToString(args) << r.err;
  const auto json = parse_json(r.out, {}, "--print-config");
  if (!json.ok() || json->find(flag) == nullptr) return {};
  const Json& value = *json->find(flag)->find("value");
  return value.is_string() ? value.as_string() : std::string(value.kind_name());
}

TEST(Habits, SpellingsOfOtherProgramsMeanTheSame) {
  struct Case {
    Words words;
    std::string flag, value;
  };

  const Case cases[] = {
      {{"-m", "dir"}, "model", "dir"},
      {{"--model=dir"}, "model", "dir"},
      {{"dir"}, "model", "dir"},
      {{"--temp", "0.5"}, "temperature", "0.5"},
      {{"-s", "5"}, "seed", "5"},
      {{"-t", "2"}, "threads", "2"},
      {{"-n", "7"}, "max-tokens", "7"},
      {{"--n-predict", "7"}, "max-tokens", "7"},
      {{"--predict", "7"}, "max-tokens", "7"},
      {{"--num_predict", "7"}, "max-tokens", "7"},
      {{"--max_new_tokens=7"}, "max-tokens", "7"},
      {{"--max_tokens", "7"}, "max-tokens", "7"},
      {{"-c", "256"}, "max-model-len", "256"},
      {{"--ctx-size", "256"}, "max-model-len", "256"},
      {{"--ctx_size=256"}, "max-model-len", "256"},
      {{"--num_ctx", "256"}, "max-model-len", "256"},
      {{"--max_model_len", "256"}, "max-model-len", "256"},
      {{"--top_p", "0.5"}, "top-p", "0.5"},
      {{"--repeat-penalty", "1.1"}, "repetition-penalty", "1.1"},
      {{"-ctk", "f32"}, "kv-cache-dtype", "f32"},
      {{"--cache-type-k", "f32"}, "kv-cache-dtype", "f32"},
      {{"--kv_cache_dtype", "f32"}, "kv-cache-dtype", "f32"},
      {{"--gpu-memory-utilization", "0.5"}, "memory-fraction", "0.5"},
      {{"--no_pin_threads"}, "pin-threads", "false"},
      {{"--log_level", "warn"}, "log-level", "warn"},
  };
  for (const Case& c : cases) {
    Words args{"run", "-p", "x"};
    args.insert(args.end(), c.words.begin(), c.words.end());
    EXPECT_EQ(value_after(args, c.flag), c.value) << testing::PrintToString(c.words);
  }
}

#ifdef FATHOM_WITH_SERVER
TEST(Habits, ServersMeanTheSameToo) {
  EXPECT_EQ(value_after({"serve", "dir", "-np", "4"}, "max-num-seqs"), "4");
  EXPECT_EQ(value_after({"serve", "dir", "--max_num_seqs", "4"}, "max-num-seqs"), "4");
  EXPECT_EQ(value_after({"serve", "dir", "--to", "9"}, "request-timeout"), "9");
  EXPECT_EQ(value_after({"serve", "dir", "--no-metrics"}, "metrics"), "false");
  EXPECT_EQ(value_after({"serve", "dir"}, "metrics"), "true");
  EXPECT_EQ(value_after({"serve", "dir", "-a", "me"}, "served-model-name"), "me");
}
#endif

TEST(Habits, LastOfAFlagWithOneValueCounts) {
  EXPECT_EQ(value_after({"run", "dir", "-p", "x", "--seed", "1", "--seed", "2"}, "seed"), "2");
  EXPECT_EQ(value_after({"run", "dir", "-p", "x", "-t", "1", "--threads=2"}, "threads"), "2");
  EXPECT_EQ(value_after({"run", "dir", "-p", "a", "-p", "b"}, "prompt"), "b");
  EXPECT_EQ(
      value_after({"run", "dir", "-p", "a", "--no-pin-threads", "--pin-threads"}, "pin-threads"),
      "true");
  EXPECT_EQ(value_after({"run", "dir", "-p", "a", "--dtype", "f32", "--dtype", "bf16"}, "dtype"),
            "bf16");
  EXPECT_EQ(value_after({"run", "dir", "-p", "a", "--stop", "x", "--stop", "y"}, "stop"),
            "an array");
  const Words run{"run", shipped_model(), "-p", "Once", "-n", "9", "--temperature", "0", "-n", "1"};
  EXPECT_THAT(run_fathom(run).err, HasSubstr(" 1 tokens"));
}

TEST(Habits, ValuesThatLookLikeFlagsStayValues) {
  EXPECT_EQ(value_after({"run", "dir", "-p", "--top_p"}, "prompt"), "--top_p");
  EXPECT_EQ(value_after({"run", "dir", "-p", "-ngl"}, "prompt"), "-ngl");
  EXPECT_EQ(value_after({"run", "dir", "--prompt=a_b --c_d"}, "prompt"), "a_b --c_d");
  EXPECT_EQ(value_after({"run", "dir", "-pa_b"}, "prompt"), "a_b");
  EXPECT_EQ(value_after({"run", "dir", "-p", "x", "--stop", "a_b"}, "stop"), "a_b");
}

struct Refused {
  Words args;
  std::string message;
  std::string hint;
};

TEST(Habits, FlagsThatAreNotHereGetAnAnswer) {
  const Refused cases[] = {
      {{"run", "dir", "-p", "x", "-ngl", "99"},
       "-ngl 99 is a flag of llama.cpp, not of `fathom run`",
       "--device cuda has the whole model on the GPU"},
      {{"run", "dir", "--n_gpu_layers=99"},
       "--n-gpu-layers 99 is a flag of llama.cpp",
       "--device cuda"},
      {{"run", "dir", "-r", "User:"}, "-r User: is a flag of llama.cpp", "--stop TEXT"},
      {{"chat", "dir", "--enforce-eager"},
       "--enforce-eager is a flag of vLLM and SGLang",
       "--cuda-graphs off"},
      {{"run", "dir", "--format", "json"},
       "--format json is a flag of ollama",
       "requests to `fathom serve`"},
      {{"run", "dir", "--tensor-parallel-size", "2"},
       "--tensor-parallel-size 2 is a flag of vLLM and SGLang",
       "a process has one GPU"},
      {{"pull", "deepseek"}, "'pull' is no command of `fathom`", "hf download ORG/NAME"},
      {{"show"}, "'show' is no command of `fathom`", "fathom inspect MODEL"},
      {{"man"}, "'man' is no command of `fathom`", "`fathom help --man` prints the manual page"},
  };
  for (const Refused& c : cases) {
    const ProgramResult r = run_fathom(c.args);
    const std::string line = testing::PrintToString(c.args);

    EXPECT_EQ(r.exit_code, 64) << line;
    EXPECT_THAT(r.err, testing::StartsWith("fathom: error: " + c.message)) << line;
    EXPECT_THAT(r.err, HasSubstr("\nhint: ")) << line;
    EXPECT_THAT(r.err, HasSubstr(c.hint)) << line;
    EXPECT_EQ(r.out, "") << line;
  }
}

TEST(Habits, FlagsThatSayWhatIsTheCaseAreTaken) {
  const Words run{"run",
                  "dir",
                  "-p",
                  "x",
                  "--tp",
                  "1",
                  "--quantization=auto",
                  "--no-mmap",
                  "--no-display-prompt",
                  "-n",
                  "5"};

  EXPECT_EQ(value_after(run, "max-tokens"), "5");
}

// `bench model` has an -r and a -b of its own.
TEST(Habits, LettersOfACommandAreItsOwn) {
  EXPECT_EQ(value_after({"bench", "model", "dir", "-r", "2", "-b", "4"}, "repetitions"), "2");
}

// ---- Errors

TEST(Errors, OfTheCommandLineSpeakOurLanguage) {
  const std::string model = shipped_model();
  const Refused cases[] = {
      {{"run", model, "--temperature", "abc"},
       "--temperature is 'abc', expected a number",
       "`fathom run --help` lists the flags"},
      {{"synth", "dir", "--layers", "x"}, "--layers is 'x', expected an integer", ""},
      {{"run", model, "-p", "x", "--seed"}, "--seed needs a value: N", ""},
      {{"synth"}, "DST is missing: Directory to write", "`fathom synth --help`"},
      {{"run", model, "-p", "x", "--temprature", "1"},
       "unknown argument '--temprature'",
       "did you mean --temperature?"},
      {{"presets", "--verbose=99999999999999999999"},
       "--verbose is '99999999999999999999', expected true, false or nothing",
       ""},
      {{"run", model, "hello"}, "unknown argument 'hello'", "a text is given with -p; `fathom run"},
      {{model}, "is no command of `fathom`", "`fathom run " + model + " -p TEXT`"},
      {{"run", model, "-p", "x", "y"}, "unknown argument 'y'", "`fathom run --help` lists the"},
      {{"run", model, "-p", "x", "-f", "y"},
       "--prompt and --file exclude each other",
       "give one of them"},
      {{"tokenize", model, "--thinking", "on"}, "--thinking needs --chat", ""},
      {{"trace", model, "--level", "opp"}, "--level: is 'opp', expected one of op|kernel", ""},
      {{"run", model, "-p", "x", "--echo=maybe"}, "--echo is 'maybe', expected true or false", ""},
  };
  for (const Refused& c : cases) {
    const ProgramResult r = run_fathom(c.args);
    const std::string line = testing::PrintToString(c.args);

    EXPECT_EQ(r.exit_code, 64) << line << r.err;
    EXPECT_THAT(r.err, HasSubstr("fathom: error: ")) << line;
    EXPECT_THAT(r.err, HasSubstr(c.message)) << line;
    EXPECT_THAT(r.err, HasSubstr(c.hint)) << line;
    for (const char* noise : {"INT", "FLOAT", "TEXT ", "Could not", "required but", " requires "})
      EXPECT_THAT(r.err, testing::Not(HasSubstr(noise))) << line;
  }
}

// ---- Prompts

TEST(Prompts, OfFilesAndPipesLoseOneNewline) {
  const std::string run = "fathom run " + shipped_model() + " --temperature 0 -n 8 -q --echo ";
  const std::string once = run_shell(run + "-p 'Once upon'").out;
  const std::string with_newline = run_shell(run + "-p $'Once upon\\n'").out;
  ASSERT_NE(once, with_newline);
  ASSERT_THAT(once, testing::StartsWith("Once upon"));

  EXPECT_EQ(run_shell("echo 'Once upon' | " + run).out, once);
  EXPECT_EQ(run_shell("printf 'Once upon' | " + run).out, once);
  EXPECT_EQ(run_shell("printf 'Once upon\\n\\n' | " + run).out, with_newline);
  EXPECT_EQ(run_shell("echo 'Once upon' | " + run + "-p -").out, once);
  EXPECT_EQ(run_shell("echo 'Once upon' | " + run + "-f -").out, once);
  EXPECT_EQ(run_shell("echo 'Once upon' | " + run + "-f /dev/stdin").out, once);
  EXPECT_EQ(run_shell(run + "-f <(echo 'Once upon')").out, once);
  EXPECT_EQ(run_shell(run + "-f /dev/stdin", "Once upon\n").out, once);
  const TempFolder folder;
  std::ofstream(folder / "prompt") << "Once upon\n";
  EXPECT_EQ(run_shell(run + "-f " + (folder / "prompt").string()).out, once);
}

TEST(Prompts, WithoutAnEndAreRefused) {
  const ProgramResult r = run_fathom({"run", shipped_model(), "-f", "/dev/zero"});

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("/dev/zero: is longer than 67108864 bytes"));
}

// ---- Names of models

TEST(Models, ThatCameWithTheProgramGoByTheirNames) {
  const ProgramResult r =
      run_shell("cd / && fathom run tiny-v3-nvfp4 -p Once --temperature 0 -n 2 -q");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, run_fathom({"run", shipped_model(), "-p", "Once", "--temperature", "0", "-n",
                               "2", "-q"})
                       .out);
}

TEST(Models, OfANameThatIsNotThereAreAnsweredWithNearOnes) {
  const ProgramResult r = run_shell("cd / && fathom inspect tiny-v3");

  EXPECT_NE(r.exit_code, 0);
  EXPECT_THAT(r.err, HasSubstr("did you mean tiny-v3-nvfp4?"));
}

TEST(Models, InAFolderOfTheirNameComeFirst) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "tiny-v3-nvfp4");

  const ProgramResult r = run_shell("cd " + folder.str() + " && fathom inspect tiny-v3-nvfp4");

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("tiny-v3-nvfp4"));
}

}  // namespace
}  // namespace fathom::e2e
