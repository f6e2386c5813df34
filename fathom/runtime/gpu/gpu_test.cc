// What can be said of the GPU engine without a GPU.
#include "fathom/runtime/gpu/gpu.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/models/dry/one_form.h"
#include "fathom/models/registry.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/runtime/memory_plan.h"

namespace fathom {
namespace {

using testing::HasSubstr;

TEST(Gpu, IsRefusedWithAHintThatSaysWhatToDo) {
  if (cuda_devices().ok()) GTEST_SKIP() << "this machine has a GPU";

  const auto gpu = Gpu::open();

  ASSERT_FALSE(gpu.ok());
  EXPECT_EQ(gpu.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(gpu.status().message(), HasSubstr("--device cuda: "));
  EXPECT_THAT(gpu.status().message(), HasSubstr("--device cpu"));
  const std::string message = gpu.status().message();
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;  // one hint
}

TEST(GpuShapes, BucketsCoverEveryCountAndFewMore) {
  for (int64_t count = 1; count <= 1024; ++count) {
    EXPECT_GE(decode_bucket(count), count);
    EXPECT_LE(decode_bucket(count), count + std::max<int64_t>(7, count / 4));
    EXPECT_EQ(decode_bucket(decode_bucket(count)), decode_bucket(count));
  }
  EXPECT_EQ(decode_buckets(20), (std::vector<int64_t>{1, 2, 4, 8, 16, 24}));
  EXPECT_EQ(page_buckets(70), (std::vector<int64_t>{4, 8, 16, 32, 64, 70}));
  EXPECT_EQ(page_buckets(1), (std::vector<int64_t>{1}));
}

TEST(DecodeShapes, BlockTablesAreAsWideAsTheBlocksOfTheLongestSequence) {
  const std::vector<int32_t> token(1);
  const std::vector<SequenceStep> steps = {{.tokens = token, .cached = 131072},
                                           {.tokens = token, .cached = 5}};
  // V4 has 256 tokens a block: 513 blocks, and no sequence has more than 520.
  EXPECT_EQ(decode_padding(steps, {.block_tokens = 256, .groups = {}}, 520 * 256).pages, 520);
  EXPECT_EQ(decode_padding(steps, {.block_tokens = 64, .groups = {}}, 520 * 256).pages, 2080);
  EXPECT_EQ(decode_padding(std::span(steps).last(1), {.block_tokens = 256, .groups = {}}, 520 * 256)
                .pages,
            4);
  EXPECT_EQ(decode_padding(steps, {.block_tokens = 256, .groups = {}}, 520 * 256).requests, 2);
}

const KernelSet& hopper_kernels() {
  static const KernelSet kernels = KernelSet::for_cuda(90);
  return kernels;
}

// A Hopper that is not there: its limits are numbers.
DeviceInfo hopper() {
  DeviceInfo info;
  info.name = "a Hopper";
  info.sm = 90;
  info.num_sms = 132;
  info.shared_bytes = 227 << 10;
  return info;
}

Result<std::unique_ptr<Model>> dry_model(std::string_view preset_name, std::string_view format) {
  FATHOM_ASSIGN(Preset preset, find_preset(preset_name));
  if (!format.empty()) {
    FATHOM_ASSIGN(preset.formats, preset_formats(format, preset.config));
  }
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  return open_model(ModelSource::describe(preset), {.device = DeviceKind::kCuda}, open);
}

TEST(GpuPlan, NamesTheKernelThatAGpuLacks) {
  const DeviceInfo gpu = hopper();
  for (const char* format : {"int8", "w4a8"}) {
    const auto model = dry_model("deepseek-v2-lite", format);
    ASSERT_TRUE(model.ok()) << model.status().message();

    const auto plan =
        plan_memory(**model, {.max_model_len = 256, .kernels = &hopper_kernels(), .gpu = &gpu});

    ASSERT_FALSE(plan.ok()) << format;
    EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(plan.status().message(), HasSubstr("cuda")) << format;
  }
}

TEST(GpuPlan, FitsModelsThatRunThere) {
  if (!cuda_is_built()) GTEST_SKIP() << "this build knows no kernels of a GPU";
  const DeviceInfo gpu = hopper();
  for (const char* name :
       {"deepseek-r1-nvfp4", "deepseek-v3-fp8", "deepseek-v2-lite", "deepseek-moe-16b"}) {
    const auto model = dry_model(name, "");
    ASSERT_TRUE(model.ok()) << model.status().message();

    const auto plan = plan_memory(**model, {.max_model_len = 4096,
                                            .max_num_seqs = 64,
                                            .max_num_batched_tokens = 2048,
                                            .num_ids = 1000,
                                            .kernels = &hopper_kernels(),
                                            .gpu = &gpu});

    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status().message();
    EXPECT_GT(plan->step.activation_bytes, 0);
  }
}

// Every family, weights in every format that a GPU reads, caches in every one that a model has.
TEST(GpuPlan, BatchInvariantStepsRunTheSameVariantsForAnyNumberOfRows) {
  if (!cuda_is_built()) GTEST_SKIP() << "this build knows no kernels of a GPU";
  const DeviceInfo gpu = hopper();
  const KernelSet kernels = hopper_kernels().batch_invariant();

  struct Run {
    const char* preset;
    const char* format = "";
    std::optional<Format> cache = {};
  };

  for (const Run& run : {Run{"deepseek-moe-16b"},
                         {"deepseek-v2-lite"},
                         {"deepseek-v2"},
                         {"deepseek-v3-fp8"},
                         {"deepseek-v3-fp8", "", Format::kE4m3},
                         {"deepseek-v3-fp8", "bf16"},
                         {"deepseek-r1-nvfp4"},
                         {"deepseek-r1-nvfp4", "", Format::kF32},
                         {"deepseek-v3.2"},
                         {"deepseek-v3.2", "", Format::kE4m3},
                         {"deepseek-v4-flash"},
                         {"deepseek-v4-flash", "", Format::kE4m3},
                         {"deepseek-v4-pro-nvfp4", "", Format::kNvfp4},
                         {"deepseek-v4-pro", "nvfp4_all", Format::kNvfp4}}) {
    SCOPED_TRACE(str_cat(run.preset, " ", run.format, " ",
                         run.cache ? format_name(*run.cache) : std::string_view("default")));
    Preset preset = std::move(find_preset(run.preset)).value();
    if (*run.format != '\0') preset.formats = preset_formats(run.format, preset.config).value();
    preset.config = first_layers(preset.config, 5);
    OpenOptions open;
    open.weights = WeightOrigin::kNone;
    open.model.kv_format = run.cache;
    open.model.attention.always_absorbed = true;
    open.model.batch_invariant = true;
    const auto model =
        open_model(ModelSource::describe(preset), {.device = DeviceKind::kCuda}, open);
    ASSERT_TRUE(model.ok()) << model.status().message();

    const Status one_form = check_one_form(**model, {.kernels = &kernels, .gpu = &gpu});
    const Status others = check_one_form(**model, {.kernels = &hopper_kernels(), .gpu = &gpu});

    EXPECT_TRUE(one_form.ok()) << one_form.message();
    EXPECT_FALSE(others.ok());
  }
}

TEST(GpuPlan, HasRoomForEveryPromptInTheAbsorbedForm) {
  if (!cuda_is_built()) GTEST_SKIP() << "this build knows no kernels of a GPU";
  const DeviceInfo gpu = hopper();
  Preset preset = std::move(find_preset("deepseek-v2-lite")).value();
  preset.config.num_hidden_layers = 2;
  OpenOptions open;
  open.model.attention.always_absorbed = true;
  open.weights = WeightOrigin::kNone;
  const auto model = open_model(ModelSource::describe(preset), {.device = DeviceKind::kCuda}, open);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto plan = plan_memory(**model, {.max_model_len = 4096,
                                          .max_num_seqs = 8,
                                          .num_ids = 1000,
                                          .kernels = &hopper_kernels(),
                                          .gpu = &gpu});
  ASSERT_TRUE(plan.ok()) << plan.status().message();

  for (const int64_t cached : {0, 500, 2000, 3000, 3500}) {
    for (int64_t tokens = 1; tokens <= plan->shape.max_num_batched_tokens; tokens += 3) {
      BatchShape shape;
      shape.prefill = {.count = 1, .new_tokens = tokens, .cached = cached};
      const auto needs = dry_run(**model, shape, {.kernels = &hopper_kernels(), .gpu = &gpu});
      ASSERT_TRUE(needs.ok()) << needs.status().message();
      ASSERT_LE(needs->scratch_bytes, plan->step.scratch_bytes)
          << tokens << " tokens behind " << cached;
    }
  }
}

TEST(GpuPlan, SaysWhatDoesNotFitTheGpu) {
  if (!cuda_is_built()) GTEST_SKIP() << "this build knows no kernels of a GPU";
  const DeviceInfo gpu = hopper();
  const auto model = dry_model("deepseek-r1-nvfp4", "");
  ASSERT_TRUE(model.ok());

  const auto plan = plan_memory(**model, {.max_model_len = 4096,
                                          .kernels = &hopper_kernels(),
                                          .gpu = &gpu,
                                          .available_bytes = int64_t{140} << 30});

  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(plan.status().message(), HasSubstr("this GPU"));
}

}  // namespace
}  // namespace fathom
