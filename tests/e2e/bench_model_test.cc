// What `fathom bench model` prints and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/memory.h"
#include "fathom/text/json.h"
#include "tests/e2e/bad_input.h"
#include "tests/support/draft_checkpoint.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kMicro = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";

ProgramResult bench_micro(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"bench", "model", kMicro, "-p", "4",         "-n", "2",
                                   "-r",    "1",     "-d",   "2",  "--threads", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return run_fathom(args);
}

std::vector<std::string> texts_of(const Json& rows, const char* key) {
  std::vector<std::string> out;
  for (const Json& row : rows.items())
    out.push_back(row.find(key)->as_string());
  return out;
}

TEST(BenchModel, SaysOfEachBatchWhatDraftsGive) {
  const ProgramResult r =
      bench_micro({"-b", "1,2", "--speculative", "ngram", "--speculative-tokens", "2"});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::string first = "drafts (ngram, at most 2): of ";
  const size_t at = r.out.find(first);
  ASSERT_NE(at, std::string::npos) << r.out;
  EXPECT_NE(r.out.find(first, at + 1), std::string::npos) << r.out;
  EXPECT_THAT(r.out, HasSubstr("accepted length: "));
  EXPECT_THAT(r.out, HasSubstr(" without in the same run: "));
  EXPECT_EQ(bench_micro({"--speculative-tokens", "0"}).exit_code, 64);
  EXPECT_THAT(bench_micro({"--speculative", "mtp"}).err, HasSubstr("no draft layer"));
}

TEST(BenchModel, WeightsThatDoNotFitAreRefusedWithBothSizes) {
  if (host_memory().available_bytes > 300ll << 30) GTEST_SKIP() << "they may fit here";
  const ProgramResult r =
      run_fathom({"bench", "model", "--as", "deepseek-r1-nvfp4", "--dummy-weights"});

  EXPECT_EQ(r.exit_code, 78);
  EXPECT_THAT(r.err, ContainsRegex("needs 361\\.[0-9][0-9] GiB for its weights, but "
                                   "[0-9]+\\.[0-9][0-9] [KMG]iB are available"));
}

TEST(BenchModel, WithoutWeightsTheHintNamesTheFlagThatNeedsNone) {
  const TempFolder folder;
  fs::copy_file(fs::path(shipped_model()) / "config.json", folder / "config.json");

  const ProgramResult r = run_fathom({"bench", "model", folder.str(), "--dummy-weights"});

  EXPECT_EQ(r.exit_code, 65) << r.err;
  EXPECT_THAT(r.err, HasSubstr("hint: --dummy-weights alone takes sizes and formats from the "
                               "weights; with --format FORMAT config.json is enough"));
}

// The command itself refuses answers that drafts changed.
TEST(BenchModel, SaysWhatTreesOfTheDraftLayerGive) {
  const DraftCheckpoint checkpoint;
  const std::vector<std::string> args = {"bench",
                                         "model",
                                         checkpoint.path(),
                                         "-p",
                                         "4",
                                         "-n",
                                         "12",
                                         "-r",
                                         "1",
                                         "-d",
                                         "2",
                                         "--threads",
                                         "2",
                                         "--batch-invariant",
                                         "-b",
                                         "2",
                                         "--speculative",
                                         "mtp",
                                         "--speculative-topk",
                                         "3"};

  const ProgramResult r = run_fathom(args);

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("drafts (mtp, trees of 9, 3 at a place, at most 3 deep): of "));
  EXPECT_THAT(r.out, HasSubstr("accepted at place 1: "));
  EXPECT_THAT(r.out, HasSubstr(", 3: "));
  EXPECT_THAT(r.out, Not(HasSubstr(", 4: "))) << "places are levels of the tree";
}

TEST(BenchModel, AListOfBatchesIsOneTableWithABlockForEach) {
  const ProgramResult r = bench_micro({"-b", "1,2,3", "--engine"});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::string table = r.out.substr(0, r.out.find("\n\n"));
  size_t at = 0;
  for (const char* test : {" pp4 ", " tg2 @ d2 ", " engine tg2 @ d2 ", " tg2 x 2 @ d2 ",
                           " engine tg2 x 2 @ d2 ", " tg2 x 3 @ d2 ", " engine tg2 x 3 @ d2 "}) {
    const size_t found = table.find(test, at);
    ASSERT_NE(found, std::string::npos) << test << "\n" << table;
    at = found + 1;
  }
  EXPECT_THAT(r.out, HasSubstr("decode of 1 sequence: "));
  EXPECT_THAT(r.out, HasSubstr("decode of 3 sequences: "));
  EXPECT_THAT(r.out, HasSubstr("decode op of 2 sequences (kernel, variant)"));
}

TEST(BenchModel, OneBatchNeedsNoNameForIt) {
  const ProgramResult r = bench_micro({"-b", "2"});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr(" tg2 x 2 @ d2 "));
  EXPECT_THAT(r.out, HasSubstr("\ndecode: "));
  EXPECT_THAT(r.out, HasSubstr("decode op (kernel, variant)"));
  EXPECT_THAT(r.out, testing::ContainsRegex("memory: weights [0-9.]+ MiB, .*; peak of the process "
                                            "[0-9.]+ [MG]iB"));
}

TEST(BenchModel, JsonHasARecordATestInTheTypesOfItsFields) {
  const TempFolder folder;
  const std::string file = (folder / "r.json").string();

  const ProgramResult r = bench_micro({"-b", "1,2", "-o", "json", "--out-file", file});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "");
  const Json json = parse_json(read_all(file), {}, "r.json").value();
  EXPECT_EQ(json.find("schema")->as_string(), "fathom.bench.model/1");
  for (const char* whole : {"threads", "bytes", "parameters", "repetitions", "host_cores"})
    EXPECT_TRUE(json.find(whole)->is_int()) << whole;
  const Json& rows = *json.find("rows");
  EXPECT_THAT(texts_of(rows, "test"), ElementsAre("pp4", "tg2 @ d2", "tg2 x 2 @ d2"));
  EXPECT_THAT(texts_of(rows, "phase"), ElementsAre("prefill", "decode", "decode"));
  const Json& last = rows.items().back();
  for (const auto& [key, value] : {std::pair{"batch", 2}, {"tokens", 2}, {"depth", 2}})
    EXPECT_EQ(last.find(key)->as_int(), value) << key;
  EXPECT_GT(last.find("tokens_per_s")->as_double(), 0);
  EXPECT_GT(json.find("peaks")->find("read_gbps")->as_double(), 0);
  EXPECT_THAT(texts_of(*json.find("passes"), "phase"), ElementsAre("prefill", "decode", "decode"));
  EXPECT_GT(json.find("passes")->items()[2].find("ops")->items().size(), 10u);
}

TEST(BenchModel, CsvAndJsonLinesHaveTheSameRecords) {
  const ProgramResult csv = bench_micro({"-b", "1,2", "-o", "csv"});
  const ProgramResult lines = bench_micro({"-b", "1,2", "-o", "jsonl"});

  EXPECT_THAT(csv.out, testing::StartsWith("schema,fathom_version,"));
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 4) << csv.out;
  EXPECT_THAT(csv.out, HasSubstr(",tg2 x 2 @ d2,decode,2,2,2,"));
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 3) << lines.out;
  EXPECT_THAT(lines.out, HasSubstr("\"test\":\"tg2 x 2 @ d2\",\"phase\":\"decode\",\"batch\":2,"));
}

TEST(BenchModel, BatchesAreWholeNumbers) {
  for (const char* batch : {"1,x", "0", "1,4097"}) {
    const ProgramResult r = bench_micro({"-b", batch});

    EXPECT_EQ(r.exit_code, 64) << batch << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr("--batch: found '")) << batch;
  }
}

// Rates of a model that gives no tokens are no rates.
TEST(BenchModel, LogitsThatAreNotFiniteEndTheRun) {
  const Scene scene;
  LooseSafetensors weights = scene.weights();
  std::string& head = weights["lm_head.weight"].data;
  for (size_t i = 0; i < head.size(); i += 2)
    head.replace(i, 2, "\xC0\x7F");  // NaN in bf16
  weights.write();

  const ProgramResult r =
      scene.fathom({"bench", "model", scene.model().string(), "-p", "4", "-n", "2", "-r", "1"});

  EXPECT_EQ(r.exit_code, 70) << r.err;
  EXPECT_THAT(r.err, HasSubstr("the logits of sequence 0 are not finite"));
  EXPECT_EQ(r.out, "");
}

}  // namespace
}  // namespace fathom::e2e
