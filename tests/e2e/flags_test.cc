// Flags that contradict each other, and values that mean something else than they look like.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

/// What a command line is refused with.
struct Refused {
  Words args;
  std::string says;
};

void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    const ProgramResult r = run_fathom(c.args);
    const std::string line = testing::PrintToString(c.args);

    EXPECT_EQ(r.exit_code, 64) << line << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(c.says)) << line;
    EXPECT_EQ(r.out, "") << line;
  }
}

/// fathom run MODEL for one token, with these flags.
Words run_with(const Words& flags) {
  Words args{"run", shipped_model(), "-p", "Once", "--temperature", "0"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

TEST(Flags, ModelAndBuiltInDescriptionExcludeEachOther) {
  const std::string model = shipped_model();
  const std::string says = "MODEL is '" + model + "' and --as is 'deepseek-v3'";

  expect_refused({
      {{"bench", "model", model, "--as", "deepseek-v3"}, says},
      {{"inspect", model, "--as", "deepseek-v3"}, says},
      {{"trace", "--dry", model, "--as", "deepseek-v3"}, says},
      {{"trace", model, "--as", "deepseek-v3", "-p", "x"}, says},
  });
}

TEST(Flags, FlagsOfABuiltInDescriptionAreRefusedWithAModel) {
  const std::string model = shipped_model();

  expect_refused({
      {{"bench", "model", model, "--format", "nvfp4"}, "--format is 'nvfp4'"},
      {{"bench", "model", model, "--layers", "1"}, "--layers is 1"},
      {{"inspect", model, "--format", "nvfp4"}, "--format is 'nvfp4'"},
      {{"trace", model, "--format", "nvfp4", "-p", "x"}, "--format is 'nvfp4'"},
  });
}

TEST(Flags, DryTraceShowsAModelInAnotherFormat) {
  const ProgramResult r = run_fathom({"trace", "--dry", shipped_model(), "--format", "int8"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("int8_gemm"));
}

TEST(Flags, BiasThatDoesNotFitIsNoBiasOfAnotherToken) {
  expect_refused({
      {run_with({"--logit-bias", "99999999999999999999=1"}),
       "--logit-bias is '99999999999999999999"},
      {run_with({"--logit-bias", "1=1e400"}), "--logit-bias is '1=1e400'"},
      {run_with({"--logit-bias", "1=nan"}), "logit_bias of token 1 is nan"},
      {run_with({"--logit-bias", "=1"}), "--logit-bias is '=1'"},
      {run_with({"--logit-bias", "1="}), "--logit-bias is '1='"},
  });
}

TEST(Flags, RealNumbersAreFinite) {
  const TempFolder folder;
  const std::string out = (folder / "out").string();

  expect_refused({
      {{"quantize", shipped_model(), out, "--shard-gb", "nan"}, "--shard-gb"},
      {{"quantize", shipped_model(), out, "--shard-gb", "inf"}, "--shard-gb"},
      {{"bench", "model", shipped_model(), "--temperature", "nan"}, "--temperature"},
      {{"trace", "diff", "a", "b", "--tolerance", "nan"}, "--tolerance"},
      {{"trace", "diff", "a", "b", "--fail-slower", "nan"}, "--fail-slower"},
  });
}

TEST(Flags, IntegersAreReadAsTheyAreWritten) {
  expect_refused({
      {run_with({"-n", "010"}), "--max-tokens: found '010', expected an integer from 1 to"},
      {run_with({"-n", "0x10"}), "--max-tokens: found '0x10'"},
      {run_with({"-n", "+2"}), "--max-tokens: found '+2'"},
      {run_with({"-n", "2 "}), "--max-tokens: found '2 '"},
      {run_with({"-n", "99999999999999999999"}), "--max-tokens: found '99999999999999999999'"},
      {run_with({"--seed", "18446744073709551616"}),
       "--seed: found '18446744073709551616', expected an integer from 0 to 18446744073709551615"},
      {run_with({"--seed", "-1"}), "--seed: found '-1'"},
      {run_with({"--top-k", "07"}), "--top-k: found '07'"},
      {run_with({"--block-size", "0100"}), "--block-size: found '0100'"},
      {run_with({"--max-model-len", "0100"}), "--max-model-len: found '0100'"},
      {{"inspect", shipped_model(), "--max-num-seqs", "010"}, "--max-num-seqs: found '010'"},
      {{"bench", "model", shipped_model(), "-b", "010"}, "--batch: found '010'"},
      {{"trace", shipped_model(), "-p", "x", "--gen", "010"}, "--gen: found '010'"},
  });
}

TEST(Flags, SeedTakesEveryNumberOf64Bits) {
  for (const char* seed : {"0", "18446744073709551615"}) {
    const ProgramResult r = run_fathom(run_with({"-n", "1", "--seed", seed, "--top-k", "-1"}));

    EXPECT_EQ(r.exit_code, 0) << seed << ": " << r.err;
  }
}

TEST(Flags, LengthBeyondTheContextNamesTheFlagThatAskedForIt) {
  const std::string says = "--max-model-len is 100000, expected 1 to 2048 (the model's context)";

  expect_refused({
      {run_with({"--max-model-len", "100000"}), says},
      {{"chat", shipped_model(), "--max-model-len", "100000"}, says},
      {{"inspect", shipped_model(), "--max-model-len", "100000"}, says},
      {run_with({"-n", "100000"}), "lower --max-tokens"},
  });
}

TEST(Flags, PlanIsRefusedBeforeAnythingIsPrinted) {
  expect_refused({
      {{"inspect", "--as", "deepseek-r1", "--max-model-len", "16777216"},
       "--max-model-len is 16777216"},
      {{"inspect", shipped_model(), "--device", "h2000"}, "--device is 'h2000'"},
  });
}

// Of as many tokens as the context holds, too: a plan writes down none of them.
TEST(Flags, PlanOfManySequencesIsMade) {
  const ProgramResult r = run_fathom({"inspect", "--as", "deepseek-r1", "--max-num-seqs", "65536"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("65536 sequences"));
}

TEST(Flags, TextComesFromOnePlace) {
  const TempFolder folder;
  const std::string file = (folder / "text").string();
  std::ofstream(file) << "x";
  const std::string model = shipped_model();

  expect_refused({
      {{"tokenize", model, "-p", "a", "-f", file}, "exclude each other"},
      {{"tokenize", model, "-p", "a", "--chat", file}, "exclude each other"},
      {{"tokenize", model, "-f", file, "--chat", file}, "exclude each other"},
      {{"tokenize", model, "--decode", "1", "-p", "a"}, "exclude each other"},
      {{"tokenize", model, "--decode", "1", "-f", file}, "exclude each other"},
      {{"tokenize", model, "--decode", "1", "--chat", file}, "exclude each other"},
      {{"tokenize", model, "--decode", "1", "--bos"}, "exclude each other"},
      {{"tokenize", model, "--decode", "1", "--ids"}, "exclude each other"},
      {{"tokenize", model, "--chat", file, "--plain"}, "exclude each other"},
      {{"tokenize", model, "-p", "a", "--thinking", "on"}, "--chat"},
      {{"tokenize", model, "-p", "a", "--chat-format", "v3"}, "--chat"},
      {run_with({"-f", file}), "exclude each other"},
  });
}

TEST(Flags, IdsToDecodeAreAListWithoutHoles) {
  const std::string model = shipped_model();
  const auto decode = [&](const std::string& ids) {
    return std::vector<std::string>{"tokenize", model, "--decode", ids};
  };

  for (const char* ids : {"1 2", "1,2", "[1, 2]", " [ 1 2 ] ", "1 , 2"}) {
    const ProgramResult r = run_fathom(decode(ids));
    EXPECT_EQ(r.exit_code, 0) << ids << ": " << r.err;
    EXPECT_EQ(r.out, run_fathom(decode("1 2")).out) << ids;
  }
  EXPECT_EQ(run_fathom(decode("[]")).out, "\n");
  expect_refused({
      {decode("1,,2"), "ids: byte 2 is ',2', expected a token id such as 42"},
      {decode("[[1]]"), "ids: byte 1 is '[1]]', expected a token id such as 42"},
      {decode("1,2,"), "ids: the list ends at byte 4, expected a token id such as 42"},
      {decode("[1,2"), "ids: the list ends at byte 4, expected ]"},
      {decode("[1]2"), "ids: byte 3 is '2', expected nothing behind the ids"},
      {decode("1]"), "ids: byte 1 is ']', expected nothing behind the ids"},
      {decode("1-2"), "ids: byte 1 is '-2', expected a comma or a space behind an id"},
      {decode(","), "ids: byte 0 is ',', expected a token id such as 42"},
  });
}

TEST(Flags, EmptyTextIsATextAndEmptyNameIsNoFile) {
  const std::string model = shipped_model();

  const ProgramResult none = run_fathom({"tokenize", model, "-p", ""}, "not this");
  const ProgramResult ids = run_fathom({"tokenize", model, "--decode", ""}, "1 2 3");

  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_EQ(none.out, "0 tokens\n");
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(ids.out, "\n");
  expect_refused({
      {{"tokenize", model, "-f", ""}, "--file: is empty"},
      {{"tokenize", model, "--chat", ""}, "--chat: is empty"},
      {{"run", model, "-f", ""}, "--file: is empty"},
  });
}

TEST(Flags, BosOfAVocabularyWithoutOneIsRefused) {
  const Scene scene;
  scene.put("tokenizer_config.json", "{}");

  const ProgramResult without = scene.fathom({"tokenize", scene.model().string(), "-p", "a"});
  const ProgramResult r = scene.fathom({"tokenize", scene.model().string(), "-p", "a", "--bos"});

  EXPECT_EQ(without.exit_code, 0) << without.err;
  EXPECT_EQ(r.exit_code, 64) << r.err;
  EXPECT_THAT(r.err, HasSubstr("--bos: " + scene.model().string()));
  EXPECT_EQ(r.out, "");
}

// docs/bad-input.md has the messages; `inspect` alone would not show what other commands read.
TEST(Flags, EveryCommandThatOpensAModelRefusesAMalformedDeclaration) {
  const std::pair<const char*, int> declarations[] = {
      {"", 65}, {"[]", 65}, {"{\"quantization\": {\"quant_algo\": \"FP3\"}}", 78}};

  for (const auto& [text, code] : declarations) {
    const Scene scene;
    scene.put("hf_quant_config.json", text);
    const std::string model = scene.model().string();
    const std::string ids = scene.beside("ids.json").string();
    std::ofstream(ids) << "{\"prompts\": [[1]]}";
    for (const Words& args : {Words{"run", model, "-p", "x", "-n", "1"},
                              {"chat", model},
                              {"inspect", model},
                              {"eval", model, "--ids", ids, "--logits-out", ids + ".out"},
                              {"eval", shipped_model(), "--ids", ids, "--compare", model},
                              {"bench", "model", model},
                              {"trace", "--dry", model},
                              {"trace", model, "-p", "x", "--out-dir", ids + ".trace"}}) {
      const ProgramResult r = scene.fathom(args);

      EXPECT_EQ(r.exit_code, code) << testing::PrintToString(args) << ": " << r.err;
      EXPECT_THAT(r.err, HasSubstr("hf_quant_config.json")) << testing::PrintToString(args);
    }
  }
}

TEST(Flags, DeclarationInTheConfigurationIsReadByEveryCommandToo) {
  const Scene scene;
  scene.edit("config.json", "\"hidden_size\": 64",
             "\"quantization_config\": 5, \"hidden_size\": 64");

  const ProgramResult r = scene.run();

  EXPECT_EQ(r.exit_code, 65) << r.err;
  EXPECT_THAT(r.err, HasSubstr("quantization_config is an integer, expected an object"));
}

TEST(Flags, StopTextsAreTakenAsTheyAre) {
  const Words run{"run", shipped_model(), "-p", "Once upon a time", "--temperature", "0", "-n",
                  "30"};
  const auto with = [&](const char* stop) {
    Words args = run;
    args.insert(args.end(), {"--stop", stop});
    return run_fathom(args).out;
  };

  const std::string whole = run_fathom(run).out;

  ASSERT_NE(whole.find("king"), std::string::npos);
  EXPECT_EQ(with("[king]"), whole) << "brackets are no list";
  EXPECT_EQ(with("king"), whole.substr(0, whole.find("king")) + "\n");
}

TEST(Flags, OfTheEngineComeFromItsTable) {
  const Words run{"run", shipped_model(), "-p", "Once", "-n", "1", "--temperature", "0"};
  const auto with = [&](const char* flag, const char* value) {
    Words args = run;
    args.insert(args.end(), {flag, value});
    return run_fathom(args);
  };

  EXPECT_EQ(with("--pin", "q_b_proj=portable").exit_code, 0);
  EXPECT_EQ(with("--max-num-batched-tokens", "1k").exit_code, 0);
  const auto share = with("--memory-fraction", "2");
  EXPECT_EQ(share.exit_code, 64);
  EXPECT_NE(share.err.find("--memory-fraction: is '2', expected above 0 and at most 1"),
            std::string::npos)
      << share.err;
  EXPECT_EQ(with("--pin", "q_b_proj").exit_code, 64);
}

TEST(Flags, UnknownPinsAreRefusedWithNearNamesBeforeTheModelLoads) {
  TempFolder folder;
  const std::vector<Words> commands = {
      {"run", shipped_model(), "-p", "Once", "-n", "1"},
      {"chat", shipped_model()},
      {"eval", shipped_model(), "--ppl", "/dev/null"},
      {"trace", shipped_model(), "-p", "Once", "--out-dir", (folder / "t").string()},
  };
  const std::pair<const char*, const char*> pins[] = {
      {"q_b_prj=portable",
       "--pin q_b_prj=portable: 'q_b_prj' is unknown: no op of this model, no kernel\nhint: did "
       "you mean "
       "q_b_proj"},
      {"q_b_proj=portabel",
       "--pin q_b_proj=portabel: variant 'portabel' is unknown: nvfp4_gemm has "}};
  for (const Words& command : commands) {
    for (const auto& [pin, message] : pins) {
      Words args = command;
      args.insert(args.end(), {"--pin", pin});

      const ProgramResult r = run_fathom(args);

      EXPECT_EQ(r.exit_code, 64) << command[0] << ": " << r.err;
      EXPECT_THAT(r.err, testing::HasSubstr(message)) << command[0];
      EXPECT_THAT(r.err, testing::HasSubstr("did you mean ")) << command[0];
      EXPECT_THAT(r.err, testing::Not(testing::HasSubstr("engine fault"))) << command[0];
      EXPECT_THAT(r.err, testing::Not(testing::HasSubstr("loading"))) << command[0];
    }
  }
}

TEST(Flags, FormatsAreThoseThatTheCommandWrites) {
  const TempFolder folder;
  const std::string out = (folder / "out").string();
  const std::string written = "expected nvfp4, mxfp4, mxfp8, fp8_block, fp8_block_ue8m0, int8, ";

  expect_refused({
      {{"quantize", shipped_model(), out, "--format", "q4_k_m"},
       "--format: found 'q4_k_m', " + written},
      {{"quantize", shipped_model(), out, "--format", "i8"}, "--format: found 'i8', " + written},
      {{"quantize", shipped_model(), out, "--format", "nvpf4"}, "did you mean nvfp4"},
      {{"synth", out, "--format", "int8"},
       "--format: found 'int8', expected bf16, fp8_block, nvfp4 or mxfp4"},
  });
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Flags, MissingModelIsBadInputOfEveryCommand) {
  const TempFolder folder;
  const std::string out = (folder / "out").string();
  for (const char* model : {"nowhere", "./nowhere", "/nowhere/model", "models/nowhere"}) {
    for (const Words& args : {Words{"run", model, "-p", "x"},
                              {"chat", model},
                              {"inspect", model},
                              {"tokenize", model, "-p", "x"},
                              {"verify", model},
                              {"eval", model, "--ppl", "/dev/null"},
                              {"quantize", model, out},
                              {"bench", "model", model},
                              {"trace", model, "-p", "x", "--out-dir", out}}) {
      const ProgramResult r = run_fathom(args);

      EXPECT_EQ(r.exit_code, 65) << testing::PrintToString(args) << ": " << r.err;
      EXPECT_THAT(r.err, HasSubstr("nowhere")) << testing::PrintToString(args);
    }
  }
}

/// An option of a command that takes a value.
struct ValuedOption {
  Words command;
  std::string name;
};

/// The cells of a row of Markdown.
Words cells_of(const std::string& row) {
  Words cells{""};
  for (size_t i = 1; i < row.size(); ++i) {
    if (row[i] == '|' && row[i - 1] != '\\') {
      cells.emplace_back();
    } else {
      cells.back() += row[i];
    }
  }
  return cells;
}

Words words_in(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;)
    words.push_back(word);
  return words;
}

/// "`-b,--batch`" as --batch.
std::string long_name_in(const std::string& cell) {
  const size_t begin = cell.find("--");
  return cell.substr(begin, cell.find_first_of("`,", begin) - begin);
}

/// All that --help-all lists: sections of commands, and tables of the engine that name theirs.
std::vector<ValuedOption> valued_options() {
  std::vector<ValuedOption> out;
  std::istringstream lines(run_fathom({"--help-all"}).out);
  Words command;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) command = words_in(line.substr(3));
    if (!line.starts_with("| `-")) continue;
    const Words cells = cells_of(line);
    if (words_in(cells[1]).empty()) continue;                // a switch
    if (cells[1].find("[=") != std::string::npos) continue;  // the next word is not its value
    Words of{"run"};
    if (command[0] == "fathom") {
      of.assign(command.begin() + 1, command.end());
    } else if (command[0] == "Options") {
      const std::string takers = cells[4].substr(0, cells[4].find(','));
      if (words_in(takers)[0] != "all") of = words_in(takers);
    }
    out.push_back({of, long_name_in(cells[0])});
  }
  return out;
}

TEST(Flags, EveryOptionOfEveryCommandRefusesAnEmptyValue) {
#ifdef FATHOM_SANITIZED
  constexpr size_t kStep = 7;  // each starts the program, which takes long here
#else
  constexpr size_t kStep = 1;
#endif
  const std::vector<ValuedOption> options = valued_options();
  ASSERT_GT(options.size(), 150u);
  for (size_t i = 0; i < options.size(); i += kStep) {
    const auto& [command, name] = options[i];
    const bool text = name == "--prompt" && (command[0] == "run" || command[0] == "tokenize");
    if (text || name == "--decode" || name == "--system") continue;  // empty texts are texts
    Words args = command;
    args.insert(args.end(), {name, ""});

    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, 64) << testing::PrintToString(args) << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(name)) << testing::PrintToString(args);
    EXPECT_THAT(r.err, testing::AnyOf(HasSubstr("is empty, expected "), HasSubstr("found ''"),
                                      HasSubstr("is '', expected"), HasSubstr("not in {")))
        << testing::PrintToString(args);
    EXPECT_EQ(r.out, "") << testing::PrintToString(args);
  }
}

TEST(Flags, EmptyPositionsAreRefused) {
  expect_refused({
      {{"run", "", "-p", "x"}, "is empty"},
      {{"tokenize", "", "-p", "x"}, "is empty"},
      {{"quantize", shipped_model(), ""}, "DST: is empty"},
      {{"synth", ""}, "DST: is empty"},
      {{"roofline", ""}, "INPUT: is empty"},
  });
}

TEST(Flags, EmptyValueBehindAnEqualsSignDoesNotTakeTheNextWord) {
  const TempFolder folder;

  expect_refused({
      {run_with({"--ids-out=", "--echo"}), "--ids-out: is empty"},
      {{"bench", "kernel", "--out-dir=", "--list"}, "--out-dir: is empty"},
      {{"inspect", shipped_model(), "--explain="}, "--explain: is empty"},
  });
  EXPECT_EQ(run_fathom({"run", shipped_model(), "--prompt="}).exit_code, 64);
}

TEST(Flags, ListsHaveAValueAtEachComma) {
  expect_refused({
      {{"bench", "kernel", "--list", "--kernels", ","}, "--kernels: found ','"},
      {{"bench", "kernel", "--list", "--kernels", "rmsnorm,,argmax"}, "--kernels: found"},
      {{"bench", "kernel", "--batch", ",", "--list"}, "--batch: found ','"},
      {{"bench", "kernel", "--list", "--seq", "1,"}, "--seq: found '1,'"},
      {{"bench", "kernel", "--list", "--batch", "1,x"}, "--batch: found 'x'"},
  });
  EXPECT_EQ(run_fathom({"bench", "kernel", "--list", "--batch", "1,8", "--batch", "64"}).exit_code,
            0);
}

TEST(Flags, ModelsOfTheHuggingFaceCacheAreFoundByName) {
  const TempFolder folder;
  const auto cache = folder / "hub";
  const auto model = cache / "models--deepseek-ai--tiny";
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  std::filesystem::create_directories(model / "snapshots");
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directory_symlink(shipped_model(), model / "snapshots" / commit);
  std::ofstream(model / "refs" / "main") << commit;
  const auto tokenize = [&](const char* variable, const std::string& value, const char* name) {
    return run_fathom({"tokenize", name, "-p", "Once", "--ids"}, "", [&] {
      unsetenv("HF_HOME");
      unsetenv("HF_HUB_CACHE");
      setenv(variable, value.c_str(), 1);
    });
  };
  const std::string ids = run_fathom({"tokenize", shipped_model(), "-p", "Once", "--ids"}).out;

  EXPECT_EQ(tokenize("HF_HUB_CACHE", cache.string(), "deepseek-ai/tiny").out, ids);
  EXPECT_EQ(tokenize("HF_HOME", folder.str(), "deepseek-ai/tiny").out, ids);
  EXPECT_EQ(tokenize("HF_HOME", folder.str(), ("deepseek-ai/tiny@" + commit).c_str()).out, ids);
  const ProgramResult absent = tokenize("HF_HOME", folder.str(), "deepseek-ai/other");
  EXPECT_EQ(absent.exit_code, 65);
  EXPECT_THAT(absent.err, HasSubstr("not in the cache (" + cache.string() +
                                    ")\nhint: fathom does not download: hf download "
                                    "deepseek-ai/other"));
  const ProgramResult revision = tokenize("HF_HOME", folder.str(), "deepseek-ai/tiny@v2");
  EXPECT_EQ(revision.exit_code, 65);
  EXPECT_THAT(revision.err, HasSubstr("has no revision v2"));
}

}  // namespace
}  // namespace fathom::e2e
