#include "fathom/base/status.h"

#include <cstdio>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <type_traits>

namespace fathom {
namespace {

using ::testing::StartsWith;

TEST(Status, DefaultIsSuccessWithNothingToSay) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.origin(), "");
}

TEST(Status, SuccessTakesOnePointer) {
  EXPECT_EQ(sizeof(Status), sizeof(void*));
}

TEST(Status, ErrorCarriesCodeMessageAndOrigin) {
  const Status status = corrupt("tensor x: offset 18 beyond 16");
  const int line = __LINE__ - 1;
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "tensor x: offset 18 beyond 16");
  EXPECT_EQ(status.origin(), str_cat("fathom/base/status_test.cc:", line));
}

TEST(Status, EveryFactoryMakesItsCode) {
  EXPECT_EQ(invalid_argument("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(not_found("").code(), StatusCode::kNotFound);
  EXPECT_EQ(unsupported("").code(), StatusCode::kUnsupported);
  EXPECT_EQ(corrupt("").code(), StatusCode::kCorrupt);
  EXPECT_EQ(unavailable("").code(), StatusCode::kUnavailable);
  EXPECT_EQ(out_of_memory("").code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(overloaded("").code(), StatusCode::kOverloaded);
  EXPECT_EQ(cancelled("").code(), StatusCode::kCancelled);
  EXPECT_EQ(numerical_error("").code(), StatusCode::kNumerical);
  EXPECT_EQ(device_lost("").code(), StatusCode::kDeviceLost);
  EXPECT_EQ(io_error("").code(), StatusCode::kIo);
  EXPECT_EQ(internal_error("").code(), StatusCode::kInternal);
}

TEST(Status, CodesHaveTheNamesOfTheDocumentation) {
  EXPECT_EQ(status_code_name(StatusCode::kOk), "Ok");
  EXPECT_EQ(status_code_name(StatusCode::kInvalidArgument), "InvalidArgument");
  EXPECT_EQ(status_code_name(StatusCode::kDeviceLost), "DeviceLost");
  EXPECT_EQ(status_code_name(StatusCode::kIo), "Io");
}

TEST(Status, ContextsArePrintedOutermostFirst) {
  Status status = corrupt("offset 18 beyond 16");
  status.add_context("tensor x");
  EXPECT_EQ(std::move(status).add_context("while loading shard 3").message(),
            "while loading shard 3: tensor x: offset 18 beyond 16");
}

TEST(Status, ContextDoesNothingToASuccess) {
  Status status;
  status.add_context("while loading");
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.message(), "");
}

TEST(Status, OriginDoesNotDependOnWhereTheTreeLies) {
  const auto origin = [](const char* file) {
    return Status::error(StatusCode::kInternal, "", file, 7).origin();
  };
  EXPECT_EQ(origin("/home/a/fathom/fathom/weights/loader.cc"), "fathom/weights/loader.cc:7");
  EXPECT_EQ(origin("/home/a/fathom/cli/main.cc"), "cli/main.cc:7");
  EXPECT_EQ(origin("elsewhere.cc"), "elsewhere.cc:7");
}

Status fail_when_negative(int x) {
  if (x < 0) return invalid_argument(str_cat("x is ", x));
  return {};
}

Status try_two(int first, int second, int& reached) {
  FATHOM_TRY(fail_when_negative(first));
  reached = 1;
  FATHOM_TRY(fail_when_negative(second));
  reached = 2;
  return {};
}

TEST(FathomTry, ReturnsTheFirstErrorAndRunsNothingBehindIt) {
  int reached = 0;
  EXPECT_EQ(try_two(-1, -2, reached).message(), "x is -1");
  EXPECT_EQ(reached, 0);
  EXPECT_EQ(try_two(1, -2, reached).message(), "x is -2");
  EXPECT_EQ(reached, 1);
  EXPECT_TRUE(try_two(1, 2, reached).ok());
  EXPECT_EQ(reached, 2);
}

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument(str_cat(x, " is odd"));
  return x / 2;
}

Result<int> quarter(int x) {
  FATHOM_ASSIGN(const int h, half(x));
  int q = 0;
  FATHOM_ASSIGN(q, half(h));
  return q;
}

TEST(FathomAssign, TakesTheValueOrReturnsTheError) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(quarter(5).status().message(), "5 is odd");
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 5);
}

TEST(Result, GivesAccessToMembers) {
  const Result<std::string> result = std::string("abc");
  EXPECT_EQ(result->size(), 3u);
  EXPECT_EQ(result.value(), "abc");
}

TEST(ResultDeathTest, ValueOfAnErrorAbortsWithItsMessage) {
  const Result<int> result = not_found("no tensor y");
  EXPECT_DEATH((void)result.value(), "no tensor y");
}

TEST(ResultDeathTest, CannotBeMadeOfASuccess) {
  EXPECT_DEATH((void)Result<int>(Status{}), "a Result needs a value or an error");
}

TEST(CheckDeathTest, PrintsConditionPlaceAndDetail) {
  const int pages = -1;
  EXPECT_DEATH(FATHOM_CHECK(pages >= 0, str_cat("pages = ", pages)),
               "check failed: pages >= 0 .*status_test.cc:[0-9]+.*pages = -1");
}

TEST(CheckDeathTest, RunsCrashHooksOnceEvenIfOneFailsItself) {
  const auto crash = [] {
    add_crash_hook([] {
      std::fputs("hook ran\n", stderr);
      FATHOM_CHECK(false, "inside the hook");
    });
    FATHOM_CHECK(false, "outside");
  };
  EXPECT_DEATH(crash(), "outside\nhook ran\n.*inside the hook\n$");
}

TEST(Check, EvaluatesItsConditionOnceAndPasses) {
  int evaluations = 0;
  FATHOM_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

}  // namespace
}  // namespace fathom
