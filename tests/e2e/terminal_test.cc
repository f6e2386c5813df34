// What the program prints of texts that it did not write: all bytes where they are read on, nothing
// that steers where a person looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/on_terminal.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;
using std::string_literals::operator""s;

/// The ids of a text in the shipped vocabulary, as --decode takes them.
std::string ids_of(const std::string& text) {
  const ProgramResult r = run_fathom({"tokenize", shipped_model(), "-f", "-", "--ids"}, text);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r.out;
}

/// Flags for an answer of one token, this one.
Words answering(const std::string& text) {
  const std::string ids = ids_of(text);  // "[42]\n"
  EXPECT_EQ(ids.find(','), std::string::npos) << text << " is more than one token";
  return {
      "--temperature", "0", "-n", "1", "--logit-bias", ids.substr(1, ids.find(']') - 1) + "=100"};
}

Words with(Words args, const Words& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Output, ZeroBytesAndWhatFollowsThemArePrinted) {
  const std::string text = "Once\0upon"s;

  const ProgramResult decoded = run_fathom({"tokenize", shipped_model(), "--decode", ids_of(text)});
  const ProgramResult echoed =
      run_fathom({"run", shipped_model(), "-f", "-", "--echo", "-n", "1", "-q"}, text);

  EXPECT_EQ(decoded.out, text + "\n");
  EXPECT_EQ(echoed.exit_code, 0) << echoed.err;
  EXPECT_EQ(echoed.out.substr(0, text.size()), text);
}

TEST(Output, OfAModelDoesNotSteerATerminal) {
  const Words answer = answering("\x1b");

  const struct {
    Words args;
    std::string input;
  } cases[] = {
      {with({"run", shipped_model(), "-p", "Once", "-q"}, answer), ""},
      {with({"chat", shipped_model(), "-q"}, answer), "Once\n"},
      {{"tokenize", shipped_model(), "--decode", ids_of("\x1b")}, ""},
      {with({"run", shipped_model(), "-f", "-", "--echo", "-q"}, answer), "\x1b[31m"},
  };

  for (const auto& [args, input] : cases) {
    const ProgramResult shown = run_on_terminal(args, input);
    const ProgramResult piped = run_fathom(args, input);

    EXPECT_EQ(shown.exit_code, 0) << args[0] << shown.err;
    EXPECT_THAT(shown.out, HasSubstr("\\x1b")) << args[0];
    EXPECT_THAT(shown.out, Not(HasSubstr("\x1b"))) << args[0];
    EXPECT_THAT(piped.out, HasSubstr("\x1b")) << args[0];
  }
}

TEST(Output, NewlinesAndTabsStayOnATerminal) {
  const ProgramResult r =
      run_on_terminal({"tokenize", shipped_model(), "--decode", ids_of("a\tb\nc")});

  EXPECT_EQ(r.out, "a\tb\nc\n");
}

}  // namespace
}  // namespace fathom::e2e
