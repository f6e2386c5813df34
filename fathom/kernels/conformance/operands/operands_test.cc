#include "fathom/kernels/conformance/operands/operands.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/core/kernel_set/variants.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

// A kernel of this test: y = 2 x, with the mistakes that the harness must find.
struct Twice {
  static constexpr KernelInfo kInfo{.name = "twice", .signature = "x[T,D]:f32 -> y[T,D]:f32"};

  struct Args {
    View x, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.x.numel())}; }

  static int64_t workspace(const Args&, int) { return 64; }
};

Status twice(Exec&, const Twice::Args& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t d = 0; d < a.x.dim(1); ++d)
      a.y.row<float>(t)[d] = 2 * a.x.row<float>(t)[d];
  }
  return {};
}

Status forgets_last_row(Exec& ex, const Twice::Args& a) {
  Twice::Args all_but_one = a;
  all_but_one.x.dims[0] -= 1;
  return twice(ex, all_but_one);
}

Status writes_into_the_gap(Exec& ex, const Twice::Args& a) {
  a.y.row<float>(0)[a.y.dim(1)] = 0;
  return twice(ex, a);
}

Status changes_its_input(Exec& ex, const Twice::Args& a) {
  Status s = twice(ex, a);
  a.x.row<float>(0)[0] += 1;
  return s;
}

Status counts_its_calls(Exec& ex, const Twice::Args& a) {
  static float calls = 0;
  Status s = twice(ex, a);
  a.y.row<float>(0)[0] += 1e-7f * ++calls;
  return s;
}

Status looks_at_the_batch(Exec& ex, const Twice::Args& a) {
  Status s = twice(ex, a);
  a.y.row<float>(0)[0] *= 1.0f + 1e-7f * static_cast<float>(a.x.dim(0));
  return s;
}

Status looks_at_the_threads(Exec& ex, const Twice::Args& a) {
  Status s = twice(ex, a);
  a.y.row<float>(0)[0] *= 1.0f + 1e-7f * static_cast<float>(ex.pool->size());
  return s;
}

Status writes_past_the_workspace(Exec& ex, const Twice::Args& a) {
  static_cast<char*>(ex.workspace)[64] = 0;
  return twice(ex, a);
}

using RunTwice = Status (*)(Exec&, const Twice::Args&);

KernelSet set_with(RunTwice run) {
  return cpu_kernels().with<Twice>(
      {{"tested", Isa::kPortable, "", kDeterministic | kBatchInvariant, run}});
}

std::unique_ptr<CaseInstance> make_case() {
  CaseList list;
  add_case<Twice>(list, {.name = "t5_d3"}, [](CaseBuilder<Twice>& c) {
    c.set_batch(5);
    const RowPlacement rows{.row_gap = 2, .rows_per_batch = 1};
    const Tensor x = c.input({5, 3}, Format::kF32, {.offset = 1}, rows);
    const Tensor y = c.output({5, 3}, Format::kF32, rows);
    c.bind([=](const Binding& at) { return Twice::Args{.x = at(x), .y = at(y)}; });
    c.expect_each(y, {.rel_l2 = 1e-5}, [=](int64_t i, int64_t j) { return 2 * x.at(i, j); });
  });
  return list.of("twice")[0]->make(1);
}

std::string fault_of(RunTwice run) {
  const KernelSet kernels = set_with(run);
  const auto instance = make_case();
  CaseRunner runner(kernels, 2);
  const CheckReport report = runner.run_checked(*instance);
  return report.passed ? "" : report.why;
}

std::string broken_trait_of(RunTwice run) {
  return check_traits(set_with(run), *make_case(), "twice", "", kDeterministic | kBatchInvariant,
                      {});
}

TEST(CaseHarness, PassesACorrectKernel) {
  EXPECT_EQ(fault_of(twice), "");
  EXPECT_EQ(broken_trait_of(twice), "");
}

TEST(CaseHarness, FindsUnwrittenRow) {
  EXPECT_NE(fault_of(forgets_last_row), "");
}

TEST(CaseHarness, FindsWriteIntoTheGapBetweenRows) {
  EXPECT_EQ(fault_of(writes_into_the_gap), "bytes outside of y were written");
}

TEST(CaseHarness, FindsChangedInput) {
  EXPECT_EQ(fault_of(changes_its_input), "input x was written");
}

TEST(CaseHarness, FindsWriteBeyondTheWorkspace) {
  EXPECT_NE(fault_of(writes_past_the_workspace), "");
}

TEST(CaseHarness, FindsResultsThatChangeFromLaunchToLaunch) {
  EXPECT_EQ(broken_trait_of(counts_its_calls), "launch 2 on equal input gave other bits");
}

TEST(CaseHarness, FindsRowsThatDependOnTheBatch) {
  EXPECT_EQ(broken_trait_of(looks_at_the_batch), "y row 0 has other bits when rows 0..0 run alone");
}

TEST(CaseHarness, FindsRowsThatDependOnTheThreads) {
  EXPECT_EQ(broken_trait_of(looks_at_the_threads), "2 threads give other bits than one");
}

// Variant `of_many` takes four rows or more of the case's five, so of its pieces rows 1 to 4 alone.
std::string broken_trait_of_many(RunTwice run) {
  constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;
  const KernelSet kernels =
      cpu_kernels().with<Twice>({{"of_many", Isa::kPortable, "", kTraits, run, MathUnit::kF32,
                                  [](const Twice::Args& a) { return a.x.dim(0) >= 4; }},
                                 {"any", Isa::kPortable, "", kTraits, twice}});
  return check_traits(kernels, *make_case(), "twice", "of_many", kTraits, {});
}

TEST(CaseHarness, PassesOverPiecesThatThePinnedVariantIsNotFor) {
  EXPECT_EQ(broken_trait_of_many(twice), "");
}

TEST(CaseHarness, FindsRowsThatDependOnTheBatchInThePiecesThatAVariantTakes) {
  EXPECT_EQ(broken_trait_of_many([](Exec& ex, const Twice::Args& a) {
              Status s = twice(ex, a);
              a.y.row<float>(a.x.dim(0) - 1)[0] *= 1.0f + 1e-7f * static_cast<float>(a.x.dim(0));
              return s;
            }),
            "y row 4 has other bits when rows 1..4 run alone");
}

// ---- large outputs, of which a sample is compared ----

constexpr int64_t kManyRows = 70000;

bool is_left_alone(int64_t row) {
  return row % 1000 == 501;
}

/// y = 2 x, but rows of the oracle above are not written, and `odd_row` is NaN.
template <int64_t odd_row>
Status leaves_rows_alone(Exec&, const Twice::Args& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    if (is_left_alone(t)) continue;
    a.y.row<float>(t)[0] = t == odd_row ? std::nanf("") : 2 * a.x.row<float>(t)[0];
  }
  return {};
}

CheckReport report_of_many_rows(RunTwice run, bool by_rows) {
  CaseList list;
  add_case<Twice>(list, {.name = "many"}, [by_rows](CaseBuilder<Twice>& c) {
    const int64_t width = by_rows ? 16 : 1;
    const Tensor x = c.input({kManyRows, width}, Format::kF32, {.offset = 1});
    const Tensor y = c.output({kManyRows, width}, Format::kF32);
    c.bind([=](const Binding& at) { return Twice::Args{.x = at(x), .y = at(y)}; });
    if (by_rows) {
      c.expect_rows(y, gates::exact(), [=](int64_t row, std::span<double> out) {
        for (size_t i = 0; i < out.size(); ++i)
          out[i] = 2 * x.row(row)[i];
      });
      return;
    }
    c.expect_each(y, gates::exact(), [=](int64_t row, int64_t) {
      return is_left_alone(row) ? std::nan("") : 2 * x[row];
    });
  });
  const KernelSet kernels = set_with(run);
  CaseRunner runner(kernels, 2);
  return runner.run_checked(*list.of("twice")[0]->make(1));
}

TEST(LargeOutputs, SayHowMuchOfThemWasCompared) {
  const CheckReport rows = report_of_many_rows(twice, true);
  EXPECT_EQ(rows.why, "");
  EXPECT_TRUE(rows.checked.ends_with(" of 70000 rows")) << rows.checked;
  const CheckReport values = report_of_many_rows(leaves_rows_alone<-1>, false);
  EXPECT_EQ(values.why, "");
  EXPECT_TRUE(values.checked.ends_with(" of 70000 values")) << values.checked;
  const KernelSet kernels = set_with(twice);
  EXPECT_EQ(CaseRunner(kernels, 2).run_checked(*make_case()).checked, "");
}

TEST(LargeOutputs, HoldNoNanOutsideOfTheSampleWhereTheOracleHasANumber) {
  const CheckReport report = report_of_many_rows(leaves_rows_alone<30000>, false);
  EXPECT_FALSE(report.passed);
  EXPECT_TRUE(report.why.starts_with("outside of the sample y[30000,0] is ")) << report.why;
}

TEST(RowsThatRepeat, LieOnARingWhereTheyRunOnAGpu) {
  constexpr int64_t kRows = 40000;  // of 2,048 bytes, gap included
  const RowPlacement repeats{.row_gap = 24, .may_repeat = true};
  CaseData gpu(7, Side::kGpu);
  const Tensor x = gpu.input({kRows, 1000}, Format::kBf16, {}, repeats);
  const int64_t ring = ((int64_t{32} << 20) / ring_unit(2048) | 1) * ring_unit(2048) / 2048;
  ASSERT_LT(ring + 3, kRows);
  EXPECT_EQ(x.row(3), x.row(ring + 3));
  EXPECT_NE(x.row(3), x.row(4));
  for (const double value : x.row(kRows - 1))
    ASSERT_TRUE(std::isfinite(value));

  CaseData host(7);
  const Tensor y = host.input({kRows, 1000}, Format::kBf16, {}, repeats);
  EXPECT_NE(y.row(3), y.row(ring + 3));
}

TEST(CaseHarness, SameSeedGivesSameInputs) {
  const KernelSet kernels = set_with(twice);
  CaseRunner runner(kernels, 1);
  const auto a = make_case();
  const auto b = make_case();

  ASSERT_TRUE(runner.run_checked(*a).passed);
  ASSERT_TRUE(runner.run_checked(*b).passed);

  EXPECT_EQ(a->output_bytes(0), b->output_bytes(0));
  EXPECT_EQ(a->shape(), "T=5;D=3");
}

TEST(CaseHarness, CopiesHoldTheSameInputsInOtherMemory) {
  const KernelSet kernels = set_with(twice);
  CaseRunner runner(kernels, 1);
  const auto instance = make_case();
  ASSERT_TRUE(instance->make_copies(3).ok());
  ASSERT_TRUE(runner.run_checked(*instance).passed);
  const std::vector<std::byte> untouched = instance->output_bytes(2);

  ASSERT_TRUE(instance->run(runner.exec(), 1).ok());

  EXPECT_EQ(instance->output_bytes(1), instance->output_bytes(0));
  EXPECT_EQ(instance->output_bytes(2), untouched);
}

// ---- generated weights ----

struct WeightForm {
  Format format;
  WeightLayout layout;
  double bound;  // largest relative error (L2) of the stored form
};

class GeneratedWeight : public testing::TestWithParam<WeightForm> {};

TEST_P(GeneratedWeight, DecodesToItsExactValuesUpToTheFormat) {
  CaseData data(3);
  const CaseWeightSpec spec{.num_experts = 2,
                            .rows = 48,
                            .cols = 192,
                            .format = GetParam().format,
                            .layout = GetParam().layout};
  const Weight w = data.weight(spec);
  double error = 0;
  double size = 0;
  for (int64_t r = 0; r < 2 * 48; ++r) {
    for (size_t k = 0; k < 192; ++k) {
      const double exact = double{w.exact_row(r)[k]};
      error += std::pow(double{w.row(r)[k]} - exact, 2);
      size += exact * exact;
    }
  }

  EXPECT_LE(std::sqrt(error / size), GetParam().bound);
  EXPECT_GT(size, 0);
}

TEST_P(GeneratedWeight, RandomCodesDecodeToFiniteValuesOfSensibleSize) {
  CaseData data(4);
  const Weight w = data.weight_codes({.num_experts = 2,
                                      .rows = 16,
                                      .cols = 256,
                                      .format = GetParam().format,
                                      .layout = GetParam().layout});
  double sum = 0;
  for (int64_t r = 0; r < 32; ++r) {
    for (float v : w.row(r))
      sum += double{v} * double{v};
  }

  // Asked for 1/sqrt(256) root mean square.
  EXPECT_GT(std::sqrt(sum / (32 * 256)), 0.25 / 16);
  EXPECT_LT(std::sqrt(sum / (32 * 256)), 4.0 / 16);
}

// Errors: bf16 half a step of 2^-8; E4M3 2^-4 at most; E2M1 diff 0.005.
INSTANTIATE_TEST_SUITE_P(
    Forms,
    GeneratedWeight,
    testing::Values(WeightForm{Format::kF32, WeightLayout::kRowMajor, 0},
                    WeightForm{Format::kBf16, WeightLayout::kRowMajor, 0.004},
                    WeightForm{Format::kBf16, WeightLayout::kRows16, 0.004},
                    WeightForm{Format::kFp8Block, WeightLayout::kRowMajor, 0.04},
                    WeightForm{Format::kFp8Block, WeightLayout::kRows16, 0.04},
                    WeightForm{Format::kFp8BlockUe8m0, WeightLayout::kRowMajor, 0.04},
                    WeightForm{Format::kFp8BlockUe8m0, WeightLayout::kRows16, 0.04},
                    WeightForm{Format::kNvfp4, WeightLayout::kRowMajor, 0.12},
                    WeightForm{Format::kNvfp4, WeightLayout::kPairs, 0.12},
                    WeightForm{Format::kNvfp4, WeightLayout::kRows16, 0.12}),
    [](const testing::TestParamInfo<WeightForm>& form) {
      return str_cat(format_name(form.param.format), "_",
                     form.param.layout == WeightLayout::kRows16  ? "rows16"
                     : form.param.layout == WeightLayout::kPairs ? "pairs"
                                                                 : "row_major");
    });

TEST(GeneratedWeightRing, RepeatsItsRowsAndTakesNoMemoryOfItsOwn) {
  CaseData data(5);
  const CaseWeightSpec spec{.num_experts = 64, .rows = 64, .cols = 128, .format = Format::kBf16};
  const int64_t matrix_bytes = 64 * 128 * 2;
  const Weight w = data.weight_codes(spec, 4 * matrix_bytes);

  const std::vector<float> first(w.row(3).begin(), w.row(3).end());
  const std::vector<float> fifth(w.row(4 * 64 + 3).begin(), w.row(4 * 64 + 3).end());
  const std::vector<float> second(w.row(64 + 3).begin(), w.row(64 + 3).end());

  EXPECT_EQ(first, fifth);
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace fathom
