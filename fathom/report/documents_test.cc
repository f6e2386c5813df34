// The documents as a whole: names for every axis of every model and flag, no blank cell, no kernel
// without a place.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "fathom/report/docs/cross_check.h"
#include "fathom/report/docs/graph_doc.h"
#include "fathom/report/docs/share_doc.h"
#include "fathom/report/pictures/layer_picture.h"
#include "fathom/report/test_models_test.h"
#include "fathom/report/trace_files.h"

namespace fathom {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Documents : public testing::TestWithParam<std::string_view> {};

const KernelSet& avx512() {
  static const KernelSet kernels = KernelSet::planned_for_cpu(Isa::kAvx512);
  return kernels;
}

struct Made {
  Recording recording;
  std::vector<Variation> variations;
};

Made make(std::string_view preset, const KernelSet* kernels = nullptr) {
  const auto model = dry_model(preset);
  Made made;
  made.recording.title = made.recording.model = preset;
  made.recording.config = model->config();
  made.recording.symbols = model->config().symbols();
  made.recording.weights = model->weights().summary();
  made.recording.has_variants = true;
  // Of 4,096 cached keys, or as many as the model takes beside a prompt.
  TraceShape shape{.kernels = kernels};
  shape.kv_len =
      std::min(shape.kv_len, model->config().max_position_embeddings - shape.prompt_tokens);
  auto phases = dry_phases(*model, shape);
  FATHOM_CHECK(phases.ok(), phases.status().message());
  made.recording.phases = std::move(phases).value();
  auto variations = dry_variations(*model, shape);
  FATHOM_CHECK(variations.ok(), variations.status().message());
  made.variations = std::move(variations).value();
  return made;
}

TEST_P(Documents, EveryAxisHasANameAndNoCellIsBlank) {
  const Made made = make(GetParam(), &avx512());

  const TraceFiles files =
      make_trace_files(made.recording, made.variations, {}, nullptr, TraceDetail::kKernels);

  EXPECT_THAT(files.failures, IsEmpty());
  for (const TracePhase& phase : made.recording.phases) {
    EXPECT_FALSE(phase.ops.empty());
    for (const TraceOp& op : phase.ops) {
      EXPECT_FALSE(op.variant.empty()) << op.op;
      for (const TraceOperand& o : op.operands())
        EXPECT_EQ(o.axes.size(), o.dims.size()) << op.op << " " << o.name;
    }
  }
}

TEST_P(Documents, VariantsDoNotDependOnThisMachine) {
  // A weaker plan gives weaker variants, whatever this machine has.
  const KernelSet portable = KernelSet::planned_for_cpu(Isa::kPortable);
  const Made made = make(GetParam(), &portable);

  for (const TracePhase& phase : made.recording.phases) {
    for (const TraceOp& op : phase.ops)
      EXPECT_THAT(std::string(op.variant), Not(HasSubstr("avx"))) << op.op;
  }
}

INSTANTIATE_TEST_SUITE_P(Presets,
                         Documents,
                         testing::Values("deepseek-r1-nvfp4",
                                         "deepseek-v3-fp8",
                                         "deepseek-v2-lite",
                                         "deepseek-v2",
                                         "deepseek-moe-16b"),
                         [](const auto& p) {
                           std::string name(p.param);
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(GraphDoc, LineOfAnOpHasKernelAndShapesInSymbolsAndNumbers) {
  const auto model = dry_model("deepseek-r1-nvfp4");
  const auto decode = dry_phase(*model, "decode", {.kernels = &avx512()});
  ASSERT_TRUE(decode.ok());

  const std::string tree = tree_text(build_tree(decode->ops));

  EXPECT_THAT(tree, HasSubstr("├─ layers 3-60, MoE (58 of them)  · decoder_layer() in "
                              "fathom/models/deepseek/deepseek_v3.cc\n"));
  EXPECT_THAT(tree, HasSubstr("x bf16 [T, Lq] = [T, 1536], w bf16 [Nh*Dq, Lq] = [24576, 1536] -> y "
                              "bf16 [T, Nh*Dq] = [T, 24576]\n"));
  EXPECT_THAT(tree, HasSubstr("mla_decode (avx512_bf16)"));
  // The dense layers have their own width.
  EXPECT_THAT(tree, HasSubstr("w nvfp4 [2*Id, H] = [36864, 7168]"));
}

TEST(CrossCheck, EveryReasonIsNeededAndEveryKernelHasAPlace) {
  const Made made = make("deepseek-r1-nvfp4");
  int reached = 0;
  for (const KernelStanding& s : kernel_standings(made.recording, made.variations)) {
    EXPECT_NE(s.reached(), !s.reason.empty())
        << s.kernel->info.name
        << (s.reached() ? ": is reached and has a reason why not" : ": has no place");
    reached += s.reached() ? 1 : 0;
    EXPECT_TRUE(!s.recorded || s.reached()) << s.kernel->info.name;
  }
  EXPECT_GT(reached, 30);
}

TEST(CrossCheck, SamplingReachesTheKernelsBehindTheForwardPass) {
  const Made made = make("deepseek-v2-lite");
  std::set<std::string_view> found;
  for (const KernelStanding& s : kernel_standings(made.recording, made.variations))
    if (s.kernel->family == "sample" && s.reached()) found.insert(s.kernel->info.name);

  EXPECT_THAT(found, testing::UnorderedElementsAre("apply_token_mask", "argmax", "penalty",
                                                   "sample_from_logits"));
}

// What was asked of the recording itself must not hide a kernel: few tokens, a short context, one
// form of attention for all, a cache of another format.
TEST(CrossCheck, FlagsOfTheRecordingHideNoKernel) {
  const auto failures_of = [](const Preset& preset, const ModelOptions& options,
                              const TraceShape& shape) {
    OpenOptions dry{.model = options, .weights = WeightOrigin::kNone};
    const auto model = open_model(ModelSource::describe(preset), {}, dry).value();
    Recording r;
    r.config = model->config();
    r.phases = dry_phases(*model, shape).value();
    return cross_check(r, dry_variations(*model, shape).value(), {}).failures;
  };
  Preset short_context = small_preset();
  short_context.config.max_position_embeddings = 64;
  ModelOptions absorbed;
  absorbed.attention.always_absorbed = true;
  ModelOptions long_chunks;
  long_chunks.attention.prefill_chunk = 1 << 16;
  ModelOptions scaled;
  scaled.kv_format = Format::kE4m3;
  const TraceShape few{.prompt_tokens = 1, .kv_len = 1};

  EXPECT_THAT(failures_of(find_preset("deepseek-r1-nvfp4").value(), {}, few), IsEmpty());
  EXPECT_THAT(failures_of(small_preset(), absorbed, few), IsEmpty());
  EXPECT_THAT(failures_of(small_preset(), long_chunks, few), IsEmpty());
  EXPECT_THAT(failures_of(small_preset(), scaled, few), IsEmpty());
  EXPECT_THAT(failures_of(short_context, {}, few), IsEmpty());
}

TEST(CrossCheck, KernelWithoutAPlaceFailsTheRun) {
  const Made made = make("deepseek-v2-lite");

  const CrossCheck check = cross_check(made.recording, std::span(made.variations).last(1), {});
  const CrossCheck blind = cross_check(made.recording, {}, {});

  EXPECT_THAT(check.failures, testing::Contains(HasSubstr("kernel rmsnorm is reached by no op")));
  EXPECT_THAT(check.text, HasSubstr("# Kernels against ops"));
  EXPECT_THAT(check.text, HasSubstr("\n0 calls: the phase has no such op; "));
  EXPECT_THAT(blind.failures, testing::Each(Not(HasSubstr("is reached by no op"))))
      << "nothing was looked for";
}

TEST(CrossCheck, OpWithoutAPlannedVariantFailsTheRun) {
  const Made made = make("deepseek-v2-lite");

  const CrossCheck check = cross_check(made.recording, made.variations, {});

  EXPECT_THAT(check.failures, testing::Contains(HasSubstr("no variant of embed is planned")));
}

TEST(BlankCells, FindsDashesAndEmptyCellsInTablesAlone) {
  const std::string page =
      "| a | b |\n|---|--:|\n| x | 1 |\n| - | 2 |\n| y |   |\n\ntext - with | bars\n"
      "```text\n| c |\n|---|\n| - |\n```\n";

  EXPECT_THAT(blank_cells(page), testing::ElementsAre("line 4, column a", "line 5, column b"));
}

TEST(Share, BarsAddUpToTheWhole) {
  const Made made = make("deepseek-v2-lite");
  double share = 0;
  for (const SummaryRow& row : summarise(made.recording, nullptr)) {
    if (row.kind == SummaryKind::kOp && row.phase == "decode") share += row.share_of_bytes;
  }

  EXPECT_NEAR(share, 1, 1e-9);
  const auto rows = summarise(made.recording, nullptr);
  EXPECT_THAT(share_bars(rows, "decode"), HasSubstr("gate_up_proj (bf16_group_gemm)"));
  EXPECT_THAT(write_share_svg(made.recording, rows, "decode"), testing::StartsWith("<svg "));
  EXPECT_EQ(write_share_svg(made.recording, rows, "verify"), "");
}

TEST(LayerPicture, HasEveryOpOfALayerAndAStopForEachUseOfTheResidual) {
  const Made made = make("deepseek-r1-nvfp4");
  const std::string svg = write_layer_picture(made.recording, "decode");

  EXPECT_THAT(svg, HasSubstr("One of 58 MoE layers (layers 3-60) of deepseek-r1-nvfp4"));
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1))
      ++found;
    return found;
  };
  int ops = 0;
  int residual = 0;
  const auto decode = std::find_if(made.recording.phases.begin(), made.recording.phases.end(),
                                   [](const TracePhase& p) { return p.name == "decode"; });
  for (const TraceOp& op : decode->ops) {
    if (op.index_in("layer") != 10) continue;
    ++ops;
    residual += op.operand("h") != nullptr ? 1 : 0;
    EXPECT_THAT(svg, HasSubstr("<g><title>" + std::string(op.op) + ": "));
  }
  EXPECT_EQ(count("<g><title>"), ops);
  EXPECT_EQ(count("<circle"), residual);
  EXPECT_EQ(write_layer_picture(made.recording, "verify"), "");
}

class TraceDirectory : public testing::Test {
 protected:
  TraceDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-trace-XXXXXX").string();
    FATHOM_CHECK(mkdtemp(name.data()) != nullptr, name);
    root_ = name;
  }

  ~TraceDirectory() override { std::filesystem::remove_all(root_); }

  std::string target() const { return (root_ / "t").string(); }

  std::filesystem::path root_;
};

const std::vector<TraceFile> kFiles = {{"ops.csv", "a"}, {"config.md", "b"}};

TEST_F(TraceDirectory, AppearsWithAllFiles) {
  ASSERT_TRUE(write_trace_directory(kFiles, target() + "/", Replace::kNo).ok());

  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(target()))
    names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"ops.csv", "config.md"}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_), {}), 1);
}

TEST_F(TraceDirectory, IsReplacedOnlyWhenAsked) {
  ASSERT_TRUE(write_trace_directory(kFiles, target(), Replace::kNo).ok());

  const Status refused = write_trace_directory(kFiles, target(), Replace::kNo);

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("--force"));
  ASSERT_TRUE(write_trace_directory({{"share.md", "c"}}, target(), Replace::kYes).ok());
  EXPECT_FALSE(std::filesystem::exists(target() + "/ops.csv"));
  EXPECT_TRUE(std::filesystem::exists(target() + "/share.md"));
}

TEST_F(TraceDirectory, WithOtherFilesIsNeverReplaced) {
  std::filesystem::create_directory(target());
  std::ofstream(target() + "/thesis.md") << "precious";

  const Status refused = write_trace_directory(kFiles, target(), Replace::kYes);

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("thesis.md"));
  EXPECT_TRUE(std::filesystem::exists(target() + "/thesis.md"));
}

TEST_F(TraceDirectory, WhatIsNoTraceIsNotRemovedFromItsWay) {
  std::filesystem::create_directory(target() + ".partial");
  std::ofstream(target() + ".partial/thesis.md") << "precious";

  const Status refused = write_trace_directory(kFiles, target(), Replace::kNo);

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("thesis.md"));
  EXPECT_TRUE(std::filesystem::exists(target() + ".partial/thesis.md"));
}

TEST_F(TraceDirectory, LeftoversOfAnInterruptedRunAreReplaced) {
  std::filesystem::create_directory(target() + ".partial");
  std::ofstream(target() + ".partial/ops.csv") << "half";
  std::ofstream(target() + ".partial/trace.json.partial") << "half";

  ASSERT_TRUE(write_trace_directory(kFiles, target(), Replace::kNo).ok());

  EXPECT_FALSE(std::filesystem::exists(target() + ".partial"));
}

TEST_F(TraceDirectory, LeavesNothingBehindWhenAFileCannotBeWritten) {
  const Status failed =
      write_trace_directory({{"ops.csv", "a"}, {"no/such.md", "b"}}, target(), Replace::kNo);

  EXPECT_EQ(failed.code(), StatusCode::kIo);
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

}  // namespace
}  // namespace fathom
