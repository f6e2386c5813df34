#include "cli/chat/chat_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::cli {
namespace {

using testing::HasSubstr;

std::string problem_of(std::string_view line) {
  const Result<ChatCommand> command = parse_chat_command(line);
  return command.ok() ? "none" : command.status().message();
}

TEST(ChatCommand, HasANameAndAnArgument) {
  const Result<ChatCommand> set = parse_chat_command("/set  temperature 0.5 ");
  const Result<ChatCommand> system = parse_chat_command("/system one\n two");

  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->verb, ChatVerb::kSet);
  EXPECT_EQ(set->argument, "temperature 0.5");
  ASSERT_TRUE(system.ok());
  EXPECT_EQ(system->argument, "one\n two");
  EXPECT_EQ(parse_chat_command("/quit")->verb, ChatVerb::kExit);
}

TEST(ChatCommand, AnUnknownNameIsNamedWithTheNearest) {
  EXPECT_EQ(
      problem_of("/regen now"),
      "unknown command '/regen'\nhint: did you mean /regenerate? (a message that begins with / is "
      "written //regen)");
  EXPECT_THAT(problem_of("/sytem x"), HasSubstr("did you mean /system"));
  EXPECT_THAT(problem_of("/usr/bin/ls"), HasSubstr("'/usr/bin/ls'; /help lists them"));
  EXPECT_THAT(problem_of("/"), HasSubstr("unknown command '/'"));
}

TEST(ChatCommand, ArgumentsAreThereWhereTheyAreNeeded) {
  EXPECT_EQ(problem_of("/save"), "/save needs a FILE");
  EXPECT_EQ(problem_of("/load \t"), "/load needs a FILE");
  EXPECT_EQ(problem_of("/clear all"), "/clear takes nothing behind it, found 'all'");
  EXPECT_EQ(problem_of("/edit"), "none");
  EXPECT_EQ(problem_of("/set"), "none");
}

TEST(ChatCommand, NamesAreWholeWords) {
  EXPECT_TRUE(names_chat_command("/edit\ntext"));
  EXPECT_FALSE(names_chat_command("/edited text"));
}

TEST(ChatCommand, HelpListsEveryName) {
  for (const char* name : {"/help", "/regenerate", "/edit", "/clear", "/system", "/set", "/save",
                           "/load", "/tokens", "/stats", "/exit"})
    EXPECT_THAT(chat_help(), HasSubstr(std::string("  ") + name + " ")) << name;
}

}  // namespace
}  // namespace fathom::cli
