#include "fathom/report/docs/source_links.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(SharedLinks, LinksThatOccurTwiceHaveTheirTargetsAtTheEnd) {
  EXPECT_EQ(with_shared_links("`f()` in [a.cc](../x/a.cc), [b.cc](../b.cc)\n"
                              "`g()` in [a.cc](../x/a.cc)\n"
                              "`h()` in [a.cc](../y/a.cc), [a.cc](../y/a.cc)\n"),
            "`f()` in [a.cc][1], [b.cc](../b.cc)\n"
            "`g()` in [a.cc][1]\n"
            "`h()` in [a.cc][2], [a.cc][2]\n"
            "\n"
            "[1]: ../x/a.cc\n"
            "[2]: ../y/a.cc\n");
}

TEST(SharedLinks, APageWithoutThemStays) {
  for (const char* page : {"", "text\n", "[a](b)\n", "x[1](2 and 3) x[1](2 and 3)\n", "open ](\n"})
    EXPECT_EQ(with_shared_links(page), page);
}

}  // namespace
}  // namespace fathom
