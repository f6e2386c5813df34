// Several sets of kernels in one process, and calls that are chosen before they run.
#include "fathom/kernels/core/kernel_set/kernel_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/device/device.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "tests/support/allocation_count.h"

namespace fathom {
namespace {

using testing::HasSubstr;

// A kernel that kernels.def does not list.
struct Fill {
  static constexpr KernelInfo kInfo{
      .name = "fill_rows", .signature = "-> y[T,D]:f32", .limits = "D<=8"};

  struct Args {
    View y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.y}; }

  static Cost cost(const Args&) { return {}; }
};

template <int kValue>
Status fill(Exec&, const Fill::Args& a) {
  for (int64_t i = 0; i < a.y.numel(); ++i)
    a.y.as<float>()[i] = kValue;
  return {};
}

const VariantTable<Fill> kOnes{{"ones", Isa::kPortable, "", kDeterministic, fill<1>}};
const VariantTable<Fill> kTwos{{"narrow", Isa::kPortable, "D<=2", kDeterministic, fill<2>},
                               {"wide", Isa::kPortable, "D<=4", kDeterministic, fill<3>}};

// One thread, one recorder, the kernels of a set.
class Runner {
 public:
  explicit Runner(const KernelSet& kernels, Backend backend = Backend::kCpu) {
    ex_.backend = backend;
    ex_.kernels = &kernels;
    ex_.pool = pool_.get();
    ex_.scratch = &scratch_;
    ex_.recorder = &recorder_;
  }

  Exec& exec() { return ex_; }

  // Normalises a row of ones (shapes alone in a dry run). The variant that ran.
  std::string norm() {
    const auto data = [&](std::vector<float>& v) { return ex_.dry() ? nullptr : v.data(); };
    const Status status = launch<RmsNorm>(ex_, "norm",
                                          {.x = make_view(data(x_), {1, 64}, Format::kF32),
                                           .w = make_view(data(x_), {64}, Format::kF32),
                                           .y = make_view(data(y_), {1, 64}, Format::kF32)});
    return status.ok() ? last_variant() : status.message();
  }

  std::string fill_row(int64_t width) {
    const Status status =
        launch<Fill>(ex_, "fill", {.y = make_view(y_.data(), {1, width}, Format::kF32)});
    return status.ok() ? last_variant() : status.message();
  }

  float result() const { return y_[0]; }

  OpRecord last() const { return recorder_.records().back(); }

 private:
  std::string last_variant() const {
    const char* name = last().variant;
    return name == nullptr ? "" : name;
  }

  std::unique_ptr<ThreadPool> pool_ = ThreadPool::create(1, PinThreads::kNo).value();
  Arena scratch_;
  Recorder recorder_{RecordLevel::kShapes, 4};
  std::vector<float> x_ = std::vector<float>(64, 1.0f);
  std::vector<float> y_ = std::vector<float>(64);
  Exec ex_;
};

TEST(KernelSet, TwoDevicesAndPlansForOthersTakeTurnsInOneProcess) {
  const KernelSet portable = KernelSet::for_cpu(Isa::kPortable);
  const KernelSet best = KernelSet::for_cpu(best_isa());
  const KernelSet amx = KernelSet::planned_for_cpu(Isa::kAmx);
  const KernelSet hopper = KernelSet::for_cuda(90);
  Runner weak(portable);
  Runner strong(best);
  Runner plan_cpu(amx, Backend::kDry);
  Runner plan_gpu(hopper, Backend::kDry);
  const std::string alone = strong.norm();
  const std::string of_gpu = plan_gpu.norm();

  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(weak.norm(), "portable");
    EXPECT_EQ(plan_cpu.norm(), "avx512") << "also where this machine could not run it";
    EXPECT_EQ(strong.norm(), alone);
    EXPECT_EQ(plan_gpu.norm(), of_gpu);
  }

  EXPECT_EQ(alone, best_isa() >= Isa::kAvx512 ? "avx512" : "portable");
  if (hopper.table<RmsNorm>().empty()) {
    EXPECT_THAT(of_gpu, HasSubstr("rmsnorm has no variant for this call on cuda"));
  } else {
    EXPECT_EQ(of_gpu, hopper.table<RmsNorm>().front().name);
  }
}

TEST(KernelSet, WithChangesACopyAlone) {
  const KernelSet none = KernelSet::for_cpu(Isa::kPortable);
  const KernelSet ones = none.with<Fill>(kOnes);
  const KernelSet twos = ones.with<Fill>(kTwos);
  Runner a(ones);
  Runner b(twos);

  EXPECT_TRUE(none.table<Fill>().empty());
  EXPECT_EQ(a.fill_row(2), "ones");
  EXPECT_EQ(b.fill_row(2), "narrow");
  EXPECT_EQ(b.result(), 2.0f);
  EXPECT_EQ(b.fill_row(4), "wide");
  EXPECT_EQ(a.fill_row(4), "ones");
  EXPECT_EQ(a.result(), 1.0f);
  EXPECT_EQ(b.norm(), "portable") << "the listed kernels stay";
  EXPECT_EQ(Runner(ones.with<RmsNorm>({})).norm().find("norm: rmsnorm has no variant"), 0u);
}

bool suits_no_gpu(const Fill::Args&, const DeviceInfo&) {
  return false;
}

// In order: no claim; few rows alone; not asked how large a GPU is; what is left.
const VariantTable<Fill> kForms{
    {"tiles", Isa::kPortable, "", kDeterministic, fill<4>},
    {"few", Isa::kPortable, "D<=2", kBatchInvariant | kSomeRowCounts, fill<5>},
    {"streams", Isa::kPortable, "D<=4", kBatchInvariant, fill<6>, MathUnit::kF32, nullptr, nullptr,
     suits_no_gpu},
    {"any", Isa::kPortable, "", kBatchInvariant, fill<7>}};

TEST(KernelSet, BatchInvariantOneHasOneFormForAnyNumberOfRows) {
  const KernelSet all = KernelSet::for_cpu(Isa::kPortable).with<Fill>(kForms);
  const KernelSet invariant = all.batch_invariant();
  const KernelSet later = KernelSet::for_cpu(Isa::kPortable).batch_invariant().with<Fill>(kForms);
  DeviceInfo gpu;
  for (const KernelSet* set : {&invariant, &later}) {
    Runner r(*set);
    r.exec().device = &gpu;

    EXPECT_TRUE(set->is_batch_invariant());
    EXPECT_EQ(r.fill_row(2), "streams");
    EXPECT_EQ(r.fill_row(4), "streams");
    EXPECT_EQ(r.fill_row(8), "any");
    EXPECT_EQ(r.norm(), "portable");
  }

  Runner r(all);
  EXPECT_FALSE(all.is_batch_invariant());
  EXPECT_EQ(r.fill_row(2), "tiles");
  EXPECT_THAT(
      Runner(KernelSet::for_cpu(Isa::kPortable).with<Fill>(kTwos).batch_invariant()).fill_row(2),
      HasSubstr("fill: fill_rows has no batch-invariant variant for this call on cpu: none "));
}

TEST(KernelSet, OutlivesTheSetItWasMadeFrom) {
  auto first = std::make_unique<KernelSet>(KernelSet::for_cpu(Isa::kPortable));
  const KernelSet second = first->with<Fill>(kOnes);
  first.reset();

  EXPECT_EQ(Runner(second).norm(), "portable");
}

TEST(KernelSet, AnExecWithoutOneRunsNothingAndADryRunNamesNoVariant) {
  const KernelSet portable = KernelSet::for_cpu(Isa::kPortable);
  Runner real(portable);
  Runner dry(portable, Backend::kDry);
  real.exec().kernels = nullptr;
  dry.exec().kernels = nullptr;

  EXPECT_THAT(real.norm(), HasSubstr("the Exec has no KernelSet"));
  EXPECT_EQ(dry.norm(), "");
}

TEST(Choose, FindsTheVariantOnceAndRunTakesIt) {
  const KernelSet twos = KernelSet::for_cpu(Isa::kPortable).with<Fill>(kTwos);
  Runner r(twos);
  std::vector<float> y(4);

  const auto call =
      choose<Fill>(r.exec(), "fill", {.y = make_view(y.data(), {1, 4}, Format::kF32)}, {5});
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->variant->name, "wide");
  EXPECT_EQ(y[0], 0.0f) << "nothing ran yet";
  ASSERT_TRUE(run(r.exec(), *call).ok());

  EXPECT_EQ(y[0], 3.0f);
  EXPECT_STREQ(r.last().op.name, "fill");
  EXPECT_STREQ(r.last().variant, "wide");
  EXPECT_EQ(r.last().selection_row, 5);
  EXPECT_THAT(r.last().launch.function, HasSubstr("TestBody"));

  // The row is the call's own: the next call has none.
  EXPECT_EQ(r.fill_row(2), "narrow");
  EXPECT_EQ(r.last().selection_row, -1);
}

TEST(Choose, SaysWhyNoVariantTakesTheCall) {
  const KernelSet twos = KernelSet::for_cpu(Isa::kPortable).with<Fill>(kTwos);
  Runner r(twos);
  std::vector<float> y(16);
  const auto reason = [&](int64_t width) {
    const Fill::Args args{.y = make_view(y.data(), {1, width}, Format::kF32)};
    EXPECT_FALSE(choose_if_taken<Fill>(r.exec(), "fill", args).has_value());
    EXPECT_FALSE(accepts<Fill>(r.exec(), "fill", args));
    return choose<Fill>(r.exec(), "fill", args).status().message();
  };

  EXPECT_THAT(reason(5), HasSubstr("fill: fill_rows has no variant for this call on cpu: variant "
                                   "wide needs D<=4"));
  EXPECT_THAT(reason(9), HasSubstr("limit D<=8"));
}

TEST(Choose, TryingTheNextRowAllocatesNothing) {
  const KernelSet twos = KernelSet::for_cpu(Isa::kPortable).with<Fill>(kTwos);
  Runner r(twos);
  r.exec().recorder = nullptr;
  std::vector<float> y(16);
  const int64_t before = allocation_count();

  for (const int64_t width : {2, 4, 5, 9}) {
    const auto call = choose_if_taken<Fill>(r.exec(), "fill",
                                            {.y = make_view(y.data(), {1, width}, Format::kF32)});
    ASSERT_EQ(call.has_value(), width <= 4);
    if (call) {
      ASSERT_TRUE(run(r.exec(), *call).ok());
    }
  }

  EXPECT_EQ(allocation_count(), before);
}

}  // namespace
}  // namespace fathom
