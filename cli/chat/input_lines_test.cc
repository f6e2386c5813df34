#include "cli/chat/input_lines.h"

#include <gtest/gtest.h>
#include <vector>

namespace fathom::cli {
namespace {

using Inputs = std::vector<std::string>;

/// What lines become: messages as they are, commands behind "> ".
Inputs inputs_of(const Inputs& lines) {
  InputLines reader;
  Inputs out;
  const auto take = [&](const std::optional<ChatInput>& input) {
    if (!input) return;
    out.push_back((input->kind == ChatInput::Kind::kCommand ? "> " : "") + input->text);
  };
  for (const std::string& line : lines)
    take(reader.add(line));
  take(reader.finish());
  return out;
}

TEST(InputLines, ALineIsAMessage) {
  EXPECT_EQ(inputs_of({"hello", "", "a \\ b", "say \"\"\" now"}),
            (Inputs{"hello", "", "a \\ b", "say \"\"\" now"}));
}

TEST(InputLines, ABackslashAtTheEndGoesOn) {
  EXPECT_EQ(inputs_of({"one\\", "two\\", "three", "four"}), (Inputs{"one\ntwo\nthree", "four"}));
  EXPECT_EQ(inputs_of({"one\\", ""}), (Inputs{"one\n"}));
  EXPECT_EQ(inputs_of({"one\\", "\"\"\"", "two"}), (Inputs{"one\n\"\"\"", "two"}));
  EXPECT_EQ(inputs_of({"/system be\\", "brief"}), (Inputs{"> /system be\nbrief"}));
}

TEST(InputLines, TheEndOfTheInputEndsAContinuedLine) {
  EXPECT_EQ(inputs_of({"one\\"}), (Inputs{"one"}));
}

TEST(InputLines, QuotesHoldABlockAsItStands) {
  EXPECT_EQ(inputs_of({"\"\"\"", "/help", "  two\\", "", "\"\"\"", "next"}),
            (Inputs{"/help\n  two\\\n", "next"}));
  EXPECT_EQ(inputs_of({"\"\"\"one", "two\"\"\" ", "next"}), (Inputs{"one\ntwo", "next"}));
  EXPECT_EQ(inputs_of({"\"\"\"one\"\"\""}), (Inputs{"one"}));
  EXPECT_EQ(inputs_of({"\"\"\"\"\"\""}), (Inputs{""}));
  EXPECT_EQ(inputs_of({"\"\"\"", "a\nb\"\"\""}), (Inputs{"a\nb"}));
}

TEST(InputLines, ABlockWithoutItsEndIsNone) {
  InputLines reader;

  EXPECT_FALSE(reader.add("\"\"\"").has_value());
  EXPECT_FALSE(reader.add("text").has_value());

  EXPECT_TRUE(reader.in_block());
  EXPECT_FALSE(reader.finish().has_value());
}

TEST(InputLines, WhatWasPastedIsOneMessage) {
  EXPECT_EQ(inputs_of({"one\ntwo\\", "next"}), (Inputs{"one\ntwo\\", "next"}));
  EXPECT_EQ(inputs_of({"// a comment\nint i;"}), (Inputs{"// a comment\nint i;"}));
  EXPECT_EQ(inputs_of({"/usr/bin\n/usr/lib"}), (Inputs{"/usr/bin\n/usr/lib"}));
  EXPECT_EQ(inputs_of({"/system one\ntwo"}), (Inputs{"> /system one\ntwo"}));
}

TEST(InputLines, ASlashBeginsACommandAndTwoAMessage) {
  EXPECT_EQ(inputs_of({"/nonsense x", "//usr", "///", "/"}),
            (Inputs{"> /nonsense x", "/usr", "//", "> /"}));
}

TEST(InputLines, DroppedLinesAreForgotten) {
  InputLines reader;
  EXPECT_FALSE(reader.add("one\\").has_value());
  EXPECT_TRUE(reader.open());

  reader.drop();

  EXPECT_FALSE(reader.open());
  EXPECT_EQ(reader.add("two")->text, "two");
}

}  // namespace
}  // namespace fathom::cli
