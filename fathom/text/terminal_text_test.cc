#include "fathom/text/terminal_text.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

using std::string_literals::operator""s;

TEST(TerminalText, LeavesTextNewlinesAndTabs) {
  EXPECT_EQ(terminal_text("a\tb\nc äö 你好 \U0001F600"), "a\tb\nc äö 你好 \U0001F600");
  EXPECT_EQ(terminal_text(""), "");
}

TEST(TerminalText, EscapesWhatSteersATerminal) {
  EXPECT_EQ(terminal_text("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(terminal_text("over\rwritten\b\a\x7f"), "over\\x0dwritten\\x08\\x07\\x7f");
  EXPECT_EQ(terminal_text("a\0b"s), "a\\x00b");
}

TEST(TerminalText, EscapesControlCharactersOfTwoBytes) {
  EXPECT_EQ(terminal_text("\xC2\x9B"
                          "31m\xC2\xA0"),
            "\\xc2\\x9b31m\xC2\xA0");
}

TEST(TerminalText, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(terminal_text("\x9B"
                          "31m\xE4\xBD"),
            "\\x9b31m\\xe4\\xbd");
}

TEST(TerminalText, PiecesAddUpToTheWhole) {
  const std::string whole = "ä\x1b[0m\xC2\x85z";
  for (size_t cut : {2u, 3u, 6u, 8u})
    EXPECT_EQ(terminal_text(whole.substr(0, cut)) + terminal_text(whole.substr(cut)),
              terminal_text(whole))
        << cut;
}

}  // namespace
}  // namespace fathom
