// `fathom trace` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json.h"
#include "tests/e2e/bad_input.h"
#include "tests/support/draft_checkpoint.h"
#include "tests/support/trace_events.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kDryLite = {"trace", "--dry", "--as", "deepseek-v2-lite"};

ProgramResult run_with(std::vector<std::string> args, std::initializer_list<std::string> more) {
  args.insert(args.end(), more);
  return run_fathom(args);
}

TEST(Trace, DryRunWithoutADirectoryPrintsTheGraph) {
  const ProgramResult r = run_with(kDryLite, {"--isa", "avx2"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("## Prefill: 1 request of 1024 new tokens"),
                           HasSubstr("├─ layers 1-26, MoE (26 of them)"), HasSubstr("(avx2)"),
                           Not(HasSubstr("avx512"))));
}

TEST(Trace, EveryFormatStrategyAndFormOfAttentionCanBeShown) {
  const std::vector<std::string> r1 = {"trace",    "--dry", "--as", "deepseek-r1-nvfp4",
                                       "--layers", "3-3"};

  const struct {
    std::vector<std::string> flags;
    const char* shows;
  } cases[] = {
      {{"--format", "bf16"}, "bf16_group_gemm"},
      {{"--format", "fp8_block"}, "fp8_block_gemm"},
      {{"--format", "fp8"}, "fp8_gemm"},
      {{"--format", "int8"}, "int8_gemm"},
      {{"--format", "w4a8"}, "w4a8_gemm_channel"},
      {{"--format", "nvfp4"}, "nvfp4_group_gemm"},
      {{"--moe", "grouped"}, "permute_rows"},
      {{"--moe", "sorted"}, "sorted_moe_gemm"},
      {{"--moe", "fused"}, "fused_moe_nvfp4"},
      {{"--moe-activations", "fp8"}, "nvfp4_fp8_group_gemm"},
      {{"--moe-activations", "fp8"}, "group_quant_fp8"},
      {{"--activations", "nvfp4"}, "input_quant                   nvfp4_quant "},
      {{"--activations", "nvfp4"}, "nvfp4_quant_experts"},
      {{"--attention", "mha"}, "ragged_attention"},
      {{"--attention", "chunked"}, "merge_state"},
      {{"--attention", "absorbed"}, "mla_decode"},
      {{"--attention", "fused_rope"}, "mla_rope_write"},
  };

  for (const auto& c : cases) {
    std::vector<std::string> args = r1;
    args.insert(args.end(), c.flags.begin(), c.flags.end());
    const ProgramResult r = run_fathom(args);
    EXPECT_EQ(r.exit_code, 0) << c.flags[1] << ": " << r.err;
    EXPECT_THAT(r.out, HasSubstr(c.shows)) << c.flags[1];
  }
}

TEST(Trace, AttentionFormKeepsThePhasesThatHaveIt) {
  const ProgramResult mha = run_with(kDryLite, {"--attention", "mha", "--prompt-tokens", "3000"});
  const ProgramResult fused = run_with(kDryLite, {"--attention", "fused_rope"});

  EXPECT_THAT(mha.out, AllOf(HasSubstr("Prefill: 1 request of 3000"), Not(HasSubstr("## Decode")),
                             Not(HasSubstr("cached prefix:"))));
  EXPECT_THAT(fused.out, AllOf(HasSubstr("## Decode"), Not(HasSubstr("## Prefill"))));
}

TEST(Trace, DirectoryOfAModelGivesItsOwnFormats) {
  const ProgramResult r = run_fathom({"trace", "--dry", shipped_model()});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("w nvfp4 [Nh*Dq, Lq]"));
}

TEST(Trace, RealRunWritesEveryDocumentAndNestedEvents) {
  TempFolder folder;
  const fs::path out = folder / "t";

  const ProgramResult r = run_fathom({"trace", shipped_model(), "-p", "Once", "--gen", "4",
                                      "--threads", "1", "--out-dir", out.string()});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("decode: "), HasSubstr("4 steps"), HasSubstr("% of it in kernels")));
  for (const char* name :
       {"config.md", "execution_graph.md", "ops.md", "kernels.md", "cross_check.md", "share.md",
        "decode.svg", "layer.svg", "ops.csv", "summary.csv", "trace.json", "peaks.json"}) {
    EXPECT_GT(fs::file_size(out / name), 200u) << name;
  }
  const auto json = parse_json(read_all(out / "trace.json"), {.max_bytes = 1 << 26}, "trace.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  const test::TraceEvents events = test::check_trace_events(*json);
  EXPECT_THAT(events.errors, testing::IsEmpty());
  int kernels = 0;
  for (const test::TraceSlice& slice : events.slices) {
    if (slice.category != "kernel") continue;
    ++kernels;
    // step > model > layer > self_attn, mlp and their parts > op > kernel; some ops are outside.
    const auto& around = slice.around;
    ASSERT_GE(around.size(), 4u) << slice.name;
    EXPECT_EQ(around[0], "step");
    EXPECT_EQ(around[1], "scope");
    EXPECT_EQ(around[around.size() - 2], "op");
  }
  EXPECT_GT(kernels, 500);
  const auto chains =
      std::count_if(events.slices.begin(), events.slices.end(), [](const test::TraceSlice& slice) {
        return slice.around == std::vector<std::string>{"step", "scope", "layer", "op", "kernel"};
      });
  EXPECT_GE(chains, 5 * 7 * 2) << "two norms in each of seven layers, a prompt and four tokens";
  EXPECT_THAT(read_all(out / "summary.csv"),
              HasSubstr("fathom.trace.summary/1,tiny-v3-nvfp4,timed,decode,phase,"));
}

// The validator itself: each of these is no trace.
TEST(TraceEvents, ValidatorFindsEachMistake) {
  const auto errors_of = [](const std::string& events) {
    const auto json = parse_json("{\"traceEvents\":" + events + "}", {}, "test");
    EXPECT_TRUE(json.ok()) << json.status().message();
    return test::check_trace_events(*json).errors;
  };
  const std::string a =
      R"({"ph":"X","pid":1,"tid":1,"name":"a","cat":"c","ts":0,"dur":10,"args":{}})";
  const auto with = [&](const std::string& second) {
    return errors_of("[" + a + "," + second + "]");
  };

  EXPECT_THAT(with(R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":2,"dur":8})"),
              testing::IsEmpty());
  EXPECT_THAT(with(R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":10,"dur":8})"),
              testing::IsEmpty());
  EXPECT_THAT(with(R"({"ph":"X","pid":1,"tid":2,"name":"b","cat":"c","ts":2,"dur":80})"),
              testing::IsEmpty());
  EXPECT_THAT(with(R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":2,"dur":9})"),
              testing::ElementsAre("event 1: 'b' ends after 'a', in which it begins"));
  const std::pair<const char*, const char*> mistakes[] = {
      {R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":2})", "dur is no time"},
      {R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":2,"dur":-1})", "dur is no time"},
      {R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":"2","dur":1})", "ts is no time"},
      {R"({"ph":"X","tid":1,"name":"b","cat":"c","ts":2,"dur":1})", "pid is no integer"},
      {R"({"ph":"X","pid":1,"tid":"x","name":"b","cat":"c","ts":2,"dur":1})", "tid is no integer"},
      {R"({"ph":"X","pid":1,"tid":1,"cat":"c","ts":2,"dur":1})", "name is no text"},
      {R"({"ph":"X","pid":1,"tid":1,"name":"b","ts":2,"dur":1})", "cat is no text"},
      {R"({"ph":"X","pid":1,"tid":1,"name":"b","cat":"c","ts":2,"dur":1,"args":[]})",
       "args is no object"},
      {R"({"ph":"Z","pid":1,"tid":1,"name":"b"})", "ph is 'Z', expected X or M"},
      {R"({"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{}})", "args.name is no text"},
      {R"({"pid":1})", "ph is no text"},
      {"3", "is no object"},
  };
  for (const auto& [event, error] : mistakes)
    EXPECT_THAT(with(event), testing::ElementsAre(std::string("event 1: ") + error));
  EXPECT_THAT(errors_of("{}"), testing::ElementsAre("traceEvents is no array"));
}

TEST(Trace, OverheadOfRecordingIsMeasuredWithinOneRun) {
  TempFolder folder;

  const ProgramResult r =
      run_fathom({"trace", shipped_model(), "-p", "Once", "--gen", "3", "--overhead", "--threads",
                  "1", "--out-dir", (folder / "t").string()});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, testing::ContainsRegex(
                         "recording costs -?[0-9.]+ % of a decode step: [0-9.]+ ms with, [0-9.]+ "
                         "ms without .medians of 3 in turn"));
}

TEST(Trace, DiffOfTheSameRunTwiceFindsNoOtherValues) {
  TempFolder folder;
  for (const char* name : {"a", "b"}) {
    const ProgramResult r =
        run_fathom({"trace", shipped_model(), "-p", "Once", "--gen", "2", "--probe", "--threads",
                    "1", "--out-dir", (folder / name).string()});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }

  const ProgramResult r =
      run_fathom({"trace", "diff", (folder / "a").string(), (folder / "b").string() + "/ops.csv",
                  "--tolerance", "0", "--fail-slower", "1000000"});

  EXPECT_EQ(r.exit_code, 0) << r.out;
  EXPECT_THAT(r.out, HasSubstr("First op with other work, of each phase\n\nNone."));
  EXPECT_THAT(r.out, HasSubstr("Ops with other values (beyond 0.000 %)\n\nNone."));
}

TEST(Trace, DiffNamesTheFirstOpOfAnotherKernelAndExits1) {
  TempFolder folder;
  ASSERT_EQ(run_with(kDryLite, {"--out-dir", (folder / "a").string()}).exit_code, 0);
  ASSERT_EQ(
      run_with(kDryLite, {"--format", "nvfp4", "--out-dir", (folder / "b").string()}).exit_code, 0);

  const ProgramResult r =
      run_fathom({"trace", "diff", (folder / "a").string(), (folder / "b").string()});

  EXPECT_EQ(r.exit_code, 1);
  EXPECT_THAT(r.out, HasSubstr("kernel: bf16_gemm in A, nvfp4_gemm in B"));
}

TEST(Trace, DiffRefusesWhatIsNoTraceByLineAndColumn) {
  TempFolder folder;
  ASSERT_EQ(run_with(kDryLite, {"--out-dir", (folder / "a").string()}).exit_code, 0);
  const std::string csv = (folder / "a/ops.csv").string();
  std::string text = read_all(csv);
  text.replace(text.find(",dry,"), 5, ",wet,");
  std::ofstream(folder / "bad.csv") << text;

  const ProgramResult r = run_fathom({"trace", "diff", csv, (folder / "bad.csv").string()});
  const ProgramResult missing = run_fathom({"trace", "diff", csv, (folder / "none").string()});

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("bad.csv: line 2: column level: 'wet' is no level"));
  EXPECT_EQ(missing.exit_code, 65);
}

TEST(Trace, DirectoryIsNotReplacedWithoutForce) {
  TempFolder folder;
  const std::string out = (folder / "t").string();
  ASSERT_EQ(run_with(kDryLite, {"--out-dir", out}).exit_code, 0);

  const ProgramResult refused = run_with(kDryLite, {"--out-dir", out});

  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(run_with(kDryLite, {"--out-dir", out, "--force"}).exit_code, 0);
}

TEST(Trace, UnknownNamesAreAnsweredWithNearOnes) {
  const struct {
    std::vector<std::string> args;
    int code;
    const char* says;
  } cases[] = {
      {{"trace", "--dry", "--as", "deepseek-r1-nvfp"}, 64, "did you mean deepseek-r1-nvfp4"},
      {{"trace", "--dry", "deepseek-v2-lit"}, 65, "--as deepseek-v2-lite"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--device", "h20"}, 64, "did you mean"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--format", "nvfp5"}, 64, "nvfp4"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--isa", "avx1024"}, 64, "avx512"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--moe", "sort"}, 64, "sorted"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--moe-activations", "fp4"}, 64, "auto|fp8"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--format", "bf16", "--moe-activations", "fp8"},
       78,
       "experts in bf16 do not read activations in fp8"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--activations", "fp8"}, 64, "auto|nvfp4"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--format", "bf16", "--activations", "nvfp4"},
       78,
       "deepseek-v3 has no weights in nvfp4"},
      {{"trace", "--dry", "--as", "deepseek-v3", "--activations", "nvfp4", "--moe-activations",
        "fp8"},
       64,
       "--moe-activations is fp8\nhint: leave one of the two out"},
      {{"trace", "--dry", "--as", "deepseek-r1-nvfp4", "--activations", "nvfp4", "--moe", "sorted"},
       78,
       "activations in nvfp4 are for grouped products"},
      {{"trace", "--dri"}, 64, "did you mean --dry"},
  };

  for (const auto& c : cases) {
    const ProgramResult r = run_fathom(c.args);
    EXPECT_EQ(r.exit_code, c.code) << c.args.back() << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(c.says)) << c.args.back();
  }
}

TEST(Trace, FlagsThatContradictAreRefused) {
  const std::vector<std::vector<std::string>> cases = {
      {"trace"},
      {"trace", "--dry"},
      {"trace", "--dry", shipped_model(), "--as", "deepseek-v3"},
      {"trace", shipped_model()},
      {"trace", "--dry", "--as", "deepseek-v3", "--layers", "9-3"},
      {"trace", "--dry", "--as", "deepseek-v3", "--layers", "62"},
      {"trace", "--dry", "--as", "deepseek-v3", "--layers", "0-999"},
      {"trace", "--as", "deepseek-v3", "--dummy-weights", "--layers", "0-999", "--prompt-tokens",
       "1"},
      {"trace", shipped_model(), "-p", "text", "--layers", "0-999"},
      {"trace", "--dry", "--as", "deepseek-v3", "--layers", "3-x"},
      {"trace", "--dry", "--as", "deepseek-v3", "--kv-len", "163840"},
      {"trace", "--dry", "--as", "deepseek-v3", "--batch", "0"},
      {"trace", "--as", "deepseek-v2-lite", "--dummy-weights", "--layers", "0-0", "-p", "text"},
      {"trace", "--dry", "--as", "deepseek-v3", "-p", "text"},
      {"trace", "--dry", "--as", "deepseek-v3", "--probe"},
      {"trace", "--dry", "--as", "deepseek-v3", "--overhead"},
      {"trace", "--dry", "--as", "deepseek-v3", "--dummy-weights"},
      {"trace", shipped_model(), "-p", "text", "--kv-len", "64"},
      {"trace", shipped_model(), "-p", "text", "--device", "h200"},
      {"trace", "--dry", "--as", "deepseek-v3", "--device", "cuda"},
  };
  for (const auto& args : cases) {
    const ProgramResult r = run_fathom(args);
    EXPECT_EQ(r.exit_code, 64) << args.back() << ": " << r.err;
    EXPECT_FALSE(r.err.empty());
  }
}

// What a GPU does not record is refused before one is looked for.
TEST(Trace, FlagsThatAGpuDoesNotHaveAreNamed) {
  const std::vector<std::string> on_gpu = {"trace", shipped_model(), "-p",
                                           "text",  "--device",      "cuda"};

  const struct {
    std::vector<std::string> flags;
    const char* says;
  } cases[] = {
      {{"--probe"}, "--probe has no use in a real run on a GPU"},
      {{"--overhead"}, "--overhead has no use in a real run on a GPU"},
      {{"--isa", "avx2"}, "--isa has no use in a real run on a GPU"},
      {{"--kv-len", "64"}, "--kv-len has no use in a real run on a GPU"},
      {{"--dry", "--kv-len", "64"}, "-p has no use in a dry run"},
  };

  for (const auto& c : cases) {
    std::vector<std::string> args = on_gpu;
    args.insert(args.end(), c.flags.begin(), c.flags.end());
    const ProgramResult r = run_fathom(args);
    EXPECT_EQ(r.exit_code, 64) << c.flags[0] << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(c.says));
  }
}

TEST(Trace, DevicesOfDryAndOfRealRunsAreToldApart) {
  const ProgramResult real =
      run_fathom({"trace", shipped_model(), "-p", "text", "--device", "h200"});
  const ProgramResult dry = run_fathom({"trace", "--dry", shipped_model(), "--device", "cuda"});

  EXPECT_THAT(real.err, HasSubstr("a real run is on cpu or cuda"));
  EXPECT_THAT(dry.err, HasSubstr("h100, h200, b200 or gb200"));
}

// A build without CUDA says so; one with it shows a plan in which every call has a variant.
TEST(Trace, DryRunForAGpuNeedsItsKernelsAndNoGpu) {
  const ProgramResult r = run_with(kDryLite, {"--device", "h200", "--prompt-tokens", "64"});

  if (r.exit_code == 69) {
    EXPECT_THAT(r.err, HasSubstr("built without CUDA"));
    return;
  }
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, AllOf(HasSubstr("chosen_experts_gate_up"), HasSubstr("mla_rope_write")));
}

TEST(Trace, CommandOfARealRunMakesItAgain) {
  TempFolder folder;
  const std::string out = (folder / "t").string();

  const ProgramResult r =
      run_fathom({"trace", shipped_model(), "--dummy-weights", "--prompt-tokens", "6", "--chunk",
                  "4", "--gen", "1", "--threads", "1", "--out-dir", out});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(read_all(folder / "t/config.md"),
              HasSubstr("--dummy-weights --prompt-tokens 6 --gen 1 --chunk 4`"));
  EXPECT_THAT(read_all(folder / "t/ops.csv"), HasSubstr(",prefill_chunked,"));
}

// A token must not be made of what is no number.
TEST(Trace, LogitsThatAreNotFiniteEndTheRun) {
  const Scene scene;
  LooseSafetensors weights = scene.weights();
  std::string& norm = weights["model.norm.weight"].data;
  for (size_t i = 0; i < norm.size(); i += 2)
    norm.replace(i, 2, "\xC0\x7F");  // NaN in bf16
  weights.write();

  const ProgramResult r = scene.fathom({"trace", scene.model().string(), "-p", "hello", "--gen",
                                        "2", "--out-dir", scene.beside("t").string()});

  EXPECT_EQ(r.exit_code, 70) << r.err;
  EXPECT_THAT(r.err, HasSubstr("are not finite"));
  EXPECT_FALSE(fs::exists(scene.beside("t/ops.csv")));
}

TEST(Trace, RealRunWithDraftsShowsThemAndTheirVerification) {
  const DraftCheckpoint checkpoint;
  TempFolder folder;
  const fs::path out = folder / "t";

  const ProgramResult r = run_fathom(
      {"trace", checkpoint.path(), "-p", "hello", "--gen", "3", "--threads", "1", "--speculative",
       "mtp", "--speculative-tokens", "3", "--speculative-topk", "2", "--out-dir", out.string()});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.err, Not(HasSubstr("warning")));
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("draft: "), HasSubstr("draft_chain: "), HasSubstr("verify: ")));
  EXPECT_THAT(read_all(out / "execution_graph.md"),
              AllOf(HasSubstr("## Verification of drafts: 3 steps, 7 tokens in the first"),
                    HasSubstr("Taking back drafts is no op"), HasSubstr("draft_level")));
  const auto json = parse_json(read_all(out / "trace.json"), {.max_bytes = 1 << 26}, "trace.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_THAT(test::check_trace_events(*json).errors, testing::IsEmpty());
}

TEST(Trace, DryRunWithDraftsHasAStepThatVerifies) {
  const std::vector<std::string> v3 = {"trace", "--dry", "--as", "deepseek-v3", "--layers", "61"};

  const ProgramResult plain = run_fathom(v3);
  const ProgramResult tree = run_with(
      v3, {"--speculative", "mtp", "--speculative-tokens", "2", "--speculative-topk", "3"});
  const ProgramResult ngram = run_with(v3, {"--speculative", "ngram"});

  EXPECT_THAT(plain.out, Not(HasSubstr("Verification")));
  EXPECT_THAT(tree.out,
              AllOf(HasSubstr("## Draft head on its own output: 1 request of 3 new tokens"),
                    HasSubstr("## Verification of drafts: 1 request of 7 new tokens"),
                    HasSubstr("draft_level"), HasSubstr("[T, guesses]")))
      << tree.err;
  EXPECT_THAT(ngram.out, AllOf(HasSubstr("## Verification of drafts: 1 request of 4 new tokens"),
                               Not(HasSubstr("on its own output"))))
      << ngram.err;
}

TEST(Trace, DraftsThatCannotBeMadeAreRefused) {
  const ProgramResult no_layer = run_with(kDryLite, {"--speculative", "mtp"});
  const ProgramResult overhead =
      run_fathom({"trace", shipped_model(), "-p", "a", "--overhead", "--speculative", "ngram"});
  const ProgramResult width = run_fathom({"trace", "--dry", "--as", "deepseek-v3", "--speculative",
                                          "mtp", "--speculative-width", "4"});

  EXPECT_NE(no_layer.exit_code, 0);
  EXPECT_THAT(no_layer.err, HasSubstr("--speculative mtp: this model has no draft layer"));
  EXPECT_NE(overhead.exit_code, 0);
  EXPECT_THAT(overhead.err, HasSubstr("--overhead has no use in a real run: steps with drafts"));
  EXPECT_NE(width.exit_code, 0);
  EXPECT_THAT(width.err, HasSubstr("--speculative-width is 4 with --speculative-topk 1"));
}

// What else a model could run is for the documents: it must not cost the trace.
TEST(Trace, FlagsThatHideKernelsFromOtherRunsLeaveATrace) {
  const std::string micro = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";
  const std::vector<std::vector<std::string>> runs = {
      {"--dry", "--as", "deepseek-r1-nvfp4", "--prompt-tokens", "1"},
      {shipped_model(), "--prompt-tokens", "1", "--gen", "1", "--threads", "1"},
      {micro, "--prompt-tokens", "3", "--gen", "1", "--threads", "1", "--batch-invariant"},
      {micro, "--prompt-tokens", "3", "--gen", "1", "--threads", "1", "--attention", "absorbed"},
  };

  for (const std::vector<std::string>& run : runs) {
    TempFolder folder;
    std::vector<std::string> args = {"trace", "--out-dir", (folder / "t").string()};
    args.insert(args.end(), run.begin(), run.end());
    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, 0) << run.back() << ": " << r.err;
    EXPECT_THAT(r.err, Not(HasSubstr("warning"))) << run.back();
    EXPECT_TRUE(fs::exists(folder / "t/ops.csv")) << run.back();
  }
}

// The chunked prefill of each request makes calls of its own: alike, they are recorded once.
TEST(Trace, DryRunOfManyRequestsHasTheRowsOfTwo) {
  const auto graph_of = [](const char* batch) {
    const ProgramResult r = run_with(kDryLite, {"--batch", batch});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  };
  const std::string two = graph_of("2");
  const std::string many = graph_of("4096");

  EXPECT_EQ(std::count(many.begin(), many.end(), '\n'), std::count(two.begin(), two.end(), '\n'));
  EXPECT_THAT(two, HasSubstr("└─ 2 requests  · "));
  EXPECT_THAT(many, HasSubstr("└─ 4096 requests  · "));
}

// Experts are then reached in another model.
TEST(Trace, ModelCutToItsDenseLayersHasAllDocuments) {
  TempFolder folder;

  const ProgramResult r = run_fathom({"trace", "--as", "deepseek-v2-lite", "--format", "nvfp4",
                                      "--dummy-weights", "--layers", "0-0", "--prompt-tokens", "4",
                                      "--gen", "1", "--out-dir", (folder / "t").string()});

  EXPECT_EQ(r.exit_code, 0) << r.err;
}

}  // namespace
}  // namespace fathom::e2e
