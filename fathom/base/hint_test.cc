#include "fathom/base/hint.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Hint, IsTheSecondLineOfAMessage) {
  const Status status = with_hint(not_found("no case"), "`--list` shows them");

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no case\nhint: `--list` shows them");
  EXPECT_EQ(without_hint(status.message()), "no case");
  EXPECT_EQ(in_one_line(status.message()), "no case; `--list` shows them");
}

TEST(Hint, OfWhereAnErrorWasMadeStays) {
  Status near = with_hint(not_found("no case"), "near");
  near.add_context("reading x");

  EXPECT_EQ(with_hint(std::move(near), "far").message(), "reading x: no case\nhint: near");
}

TEST(Hint, OfWhoKnowsMoreReplacesAnother) {
  EXPECT_EQ(with_hint_instead(with_hint(not_found("no case"), "near"), "far").message(),
            "no case\nhint: far");
  EXPECT_EQ(with_hint_instead(not_found("no case"), "far").code(), StatusCode::kNotFound);
  EXPECT_TRUE(with_hint_instead(Status{}, "far").ok());
}

TEST(Hint, ChangesNeitherASuccessNorAnErrorWithoutOne) {
  EXPECT_TRUE(with_hint(Status{}, "help").ok());
  EXPECT_EQ(with_hint(io_error("full"), "").message(), "full");
  EXPECT_EQ(without_hint("full"), "full");
  EXPECT_EQ(in_one_line("full"), "full");
}

}  // namespace
}  // namespace fathom
