#include "fathom/runtime/check_pins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/models/config/presets.h"
#include "fathom/models/dry/dry_records.h"
#include "fathom/models/registry.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<Model> dry_preset(const char* name, const ModelOptions& options = {}) {
  Preset preset = find_preset(name).value();
  preset.config.num_hidden_layers = 3;
  preset.config.first_k_dense_replace = 1;
  OpenOptions open;
  open.model = options;
  open.weights = WeightOrigin::kNone;
  auto model = open_model(ModelSource::describe(preset), {}, open);
  FATHOM_CHECK(model.ok(), model.ok() ? "" : model.status().message());
  return std::move(model).value();
}

class CheckPins : public testing::Test {
 protected:
  Status check(const Pins& pins) { return check_pins(pins, *model_, compute_); }

  ThreadPool pool_{2, PinThreads::kNo};
  const KernelSet kernels_ = KernelSet::for_cpu(Isa::kPortable);
  const Compute compute_{.pool = &pool_, .cpu_kernels = &kernels_};
  const std::unique_ptr<Model> model_ = dry_preset("deepseek-v3");
};

TEST_F(CheckPins, TakeOpsKernelsAndReferenceNames) {
  const Status status = check({{"q_b_proj", "portable"},
                               {"rmsnorm", "portable"},
                               {"fused_add_rmsnorm", "portable"},
                               {"sample_argmax", "portable"},
                               {"sample_draw", "portable"},
                               {"sample_penalty", "portable"}});

  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(CheckPins, TakeAKernelThatThisModelDoesNotRun) {
  EXPECT_TRUE(check({{"hadamard", "portable"}}).ok());
}

TEST_F(CheckPins, RefuseAnUnknownNameWithNearOnes) {
  const Status status = check({{"rmsnorm", "portable"}, {"q_b_prj", "portable"}});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--pin q_b_prj=portable: 'q_b_prj' is unknown"),
                                      HasSubstr("did you mean q_b_proj")));
}

TEST_F(CheckPins, RefuseAnUnknownVariantWithNearOnes) {
  for (const char* name : {"q_b_proj", "rmsnorm", "sample_draw", "hadamard"}) {
    const Status status = check({{name, "portabel"}});

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr(str_cat("--pin ", name, "=portabel: variant 'portabel' is unknown")),
              HasSubstr("did you mean portable")));
  }
}

TEST_F(CheckPins, RefuseAVariantOfAnotherMachine) {
  EXPECT_THAT(check({{"q_b_proj", "avx512"}}).message(), HasSubstr("variant 'avx512' is unknown"));
}

// What some step runs, at whatever size, is known to the check with the variant that runs it.
TEST_F(CheckPins, KnowEveryOpOfEverySizeOfStep) {
  for (const char* preset : {"deepseek-v2-lite", "deepseek-r1-nvfp4"}) {
    for (const std::optional<MoeStrategy> strategy :
         {std::optional<MoeStrategy>(), std::optional(MoeStrategy::kGrouped),
          std::optional(MoeStrategy::kSorted)}) {
      ModelOptions options;
      options.moe.strategy = strategy;
      const std::unique_ptr<Model> model = dry_preset(preset, options);
      const Compute compute{.pool = &pool_, .cpu_kernels = &cpu_kernels()};
      Pins pins;
      for (int64_t tokens = 1; tokens <= 600; tokens += 1 + tokens / 4) {
        BatchShape shape;
        shape.prefill = {.count = 1, .new_tokens = tokens, .cached = 7 * tokens};
        shape.decode = {.count = tokens, .new_tokens = 1, .cached = 9};
        const auto records = dry_records(*model, shape, {.kernels = &cpu_kernels()});
        ASSERT_TRUE(records.ok()) << records.status().message();
        for (const OpRecord& call : *records) {
          std::pair<std::string, std::string> pin(call.op.name, call.variant);
          if (std::ranges::find(pins, pin) == pins.end()) pins.push_back(std::move(pin));
        }
      }

      const Status status = check_pins(pins, *model, compute);

      EXPECT_TRUE(status.ok()) << preset << ": " << status.message();
    }
  }
}

}  // namespace
}  // namespace fathom
