#include "fathom/kernels/core/launch.h"

#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "tests/support/allocation_count.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

// A kernel for these tests alone: y = a * x.
struct Scale {
  static constexpr KernelInfo kInfo{
      .name = "scale_rows",
      .reference_names = {"reference_scale", "reference_scale_v2"},
      .signature = "x[T,D]:f32 s?[T]:f32 -> y[T,D]:f32",
      .limits = "D<=64",
  };

  struct Args {
    View x, s, y;
    float factor = 1;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.s, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.x.numel())}; }

  static int64_t workspace(const Args&, int num_threads) { return 64 * num_threads; }
};

Status scale_by_rows(Exec&, const Scale::Args& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t d = 0; d < a.x.dim(1); ++d) {
      a.y.row<float>(t)[d] = a.factor * a.x.row<float>(t)[d];
    }
  }
  return {};
}

Status scale_in_eights(Exec& ex, const Scale::Args& a) {
  return scale_by_rows(ex, a);
}

const VariantTable<Scale> kScaleTable{
    {"eights", Isa::kPortable, "D%8==0, T>=1", kDeterministic, scale_in_eights},
    {"rows", Isa::kPortable, "D<=48", kDeterministic, scale_by_rows},
};

class Launch : public testing::Test {
 protected:
  Launch() {
    ex_.kernels = &kernels_;
    ex_.scratch = &scratch_;
    std::iota(x_.begin(), x_.end(), 1.0f);
  }

  Scale::Args args(int64_t rows, int64_t columns) {
    return {.x = make_view(x_.data(), {rows, columns}, Format::kF32),
            .s = {},
            .y = make_view(y_.data(), {rows, columns}, Format::kF32),
            .factor = 2};
  }

  const KernelSet kernels_ = cpu_kernels().with<Scale>(kScaleTable);
  std::vector<float> x_ = std::vector<float>(256);
  std::vector<float> y_ = std::vector<float>(256);
  Arena scratch_ = Arena(Buffer::allocate(DeviceKind::kCpu, 4096, "test").value());
  Exec ex_;
};

TEST_F(Launch, RunsTheFirstVariantWhoseLimitsHold) {
  Recorder recorder(RecordLevel::kShapes, 8);
  ex_.recorder = &recorder;

  ASSERT_TRUE(launch<Scale>(ex_, "double", args(2, 16)).ok());
  ASSERT_TRUE(launch<Scale>(ex_, "double", args(2, 15)).ok());

  EXPECT_EQ(y_[29], 60.0f);
  EXPECT_STREQ(recorder.records()[0].variant, "eights");
  EXPECT_STREQ(recorder.records()[1].variant, "rows");
}

TEST_F(Launch, RefusesOperandsThatDisagreeAndNamesOpKernelAndAxis) {
  Scale::Args a = args(2, 16);
  a.y = make_view(y_.data(), {2, 8}, Format::kF32);

  const Status s = launch<Scale>(ex_, "double", a);

  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("double: scale_rows: y[D] is 8 but x[T,D] has D=16"),
            std::string::npos)
      << s.message();
  EXPECT_NE(s.message().find("launch_test.cc"), std::string::npos) << s.message();
}

TEST_F(Launch, RefusesACallBeyondTheContractsLimits) {
  std::vector<float> big(130);
  Scale::Args a{.x = make_view(big.data(), {1, 65}, Format::kF32),
                .s = {},
                .y = make_view(big.data(), {1, 65}, Format::kF32)};

  EXPECT_NE(launch<Scale>(ex_, "double", a).message().find("limit D<=64"), std::string::npos);
}

TEST_F(Launch, NamesTheLimitOfTheLastVariantWhenNoneFits) {
  const Status s = launch<Scale>(ex_, "double", args(1, 63));

  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_NE(s.message().find("variant rows needs D<=48"), std::string::npos) << s.message();
}

TEST_F(Launch, ObeysAPinAndRefusesOneThatCannotApply) {
  Recorder recorder(RecordLevel::kShapes, 8);
  ex_.recorder = &recorder;
  const Pins rows{{"scale_rows", "rows"}};
  ex_.pins = &rows;

  ASSERT_TRUE(launch<Scale>(ex_, "double", args(2, 16)).ok());
  EXPECT_STREQ(recorder.records()[0].variant, "rows");
  EXPECT_EQ(launch<Scale>(ex_, "double", args(1, 64)).code(), StatusCode::kUnsupported);
}

TEST_F(Launch, PinTakesAReferenceName) {
  const Pins rows = {{"reference_scale_v2", "rows"}};
  const Pins other = {{"reference_scale_v3", "rows"}};
  Recorder recorder(RecordLevel::kShapes, 4);
  ex_.recorder = &recorder;

  ex_.pins = &rows;
  ASSERT_TRUE(launch<Scale>(ex_, "op", args(2, 8)).ok());
  ex_.pins = &other;
  ASSERT_TRUE(launch<Scale>(ex_, "op", args(2, 8)).ok());

  EXPECT_STREQ(recorder.records()[0].variant, "rows");
  EXPECT_STREQ(recorder.records()[1].variant, "eights");
}

TEST_F(Launch, DryRunRecordsShapesAndCountsTheWorkspaceWithoutTouchingMemory) {
  Recorder recorder(RecordLevel::kShapes, 8);
  Arena counting;
  Exec dry{.backend = Backend::kDry, .scratch = &counting, .recorder = &recorder, .num_threads = 3};
  Scale::Args a{.x = make_view(nullptr, {1000, 64}, Format::kF32),
                .s = {},
                .y = make_view(nullptr, {1000, 64}, Format::kF32)};

  ASSERT_TRUE(launch<Scale>(dry, "double", a).ok());

  const OpRecord record = recorder.records()[0];
  EXPECT_EQ(record.operands[0].dims[0], 1000);
  EXPECT_EQ(record.cost.flops, 64000);
  EXPECT_EQ(record.cost.bytes_read, 256000);
  EXPECT_EQ(record.cost.bytes_written, 256000);
  EXPECT_EQ(counting.high_water(), 192);
}

TEST_F(Launch, AllocatesNothing) {
  const Scale::Args a = args(2, 16);
  const int64_t before = allocation_count();

  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(launch<Scale>(ex_, "double", a).ok());

  EXPECT_EQ(allocation_count(), before);
}

TEST_F(Launch, TimedRecordsHaveAStartAndAnEnd) {
  Recorder recorder(RecordLevel::kTimed, 8);
  ex_.recorder = &recorder;

  ASSERT_TRUE(launch<Scale>(ex_, "double", args(2, 16)).ok());

  EXPECT_GT(recorder.records()[0].start_ns, 0);
  EXPECT_GE(recorder.records()[0].end_ns, recorder.records()[0].start_ns);
}

// The best of many short runs: one of them was undisturbed.
template <class Call>
double best_ns(const Call& call) {
  constexpr int kCalls = 20'000;
  double best = 1e30;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i)
      call();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    best = std::min(best, spent.count() / kCalls);
  }
  return best;
}

// Prints what a launch costs over the bare call of its first variant; the figure is not judged.
template <Contract K>
void report_cost(const char* what, Exec& ex, const typename K::Args& args) {
  Status (*volatile bare)(Exec&, const typename K::Args&) = ex.kernels->table<K>().front().run;
  const double direct = best_ns([&] { ASSERT_TRUE(bare(ex, args).ok()); });
  const double launched = best_ns([&] { ASSERT_TRUE(launch<K>(ex, "op", args).ok()); });
  std::printf("launch of %s: %.1f ns, bare call %.1f ns, difference %.1f ns\n", what, launched,
              direct, launched - direct);
}

TEST_F(Launch, ReportsItsCostOverTheBareCall) {
  const View rows = make_view(x_.data(), {0, 64}, Format::kF32);
  const RmsNorm::Args listed{
      .x = rows, .w = make_view(x_.data(), {64}, Format::kF32), .y = rows, .eps = 1e-6f};

  report_cost<RmsNorm>("a kernel of kernels.def", ex_, listed);
  report_cost<Scale>("another, with a workspace", ex_, args(0, 16));

  EXPECT_EQ(y_[0], 0.0f);
}

}  // namespace
}  // namespace fathom
