// Control tokens of the DeepSeek families. The bars are U+FF5C and the low lines U+2581, not ASCII.
#pragma once

#include <array>
#include <string_view>

namespace fathom::control {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";
inline constexpr std::string_view kToolCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kToolCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kToolCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kToolCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kToolSep = "<｜tool▁sep｜>";
inline constexpr std::string_view kToolOutputsBegin = "<｜tool▁outputs▁begin｜>";
inline constexpr std::string_view kToolOutputsEnd = "<｜tool▁outputs▁end｜>";
inline constexpr std::string_view kToolOutputBegin = "<｜tool▁output▁begin｜>";
inline constexpr std::string_view kToolOutputEnd = "<｜tool▁output▁end｜>";

// V3.2 and V4. The first is a token without brackets of its own: "<", token, "invoke name=...".
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kAction = "<｜action｜>";
inline constexpr std::string_view kQuery = "<｜query｜>";
inline constexpr std::string_view kAuthority = "<｜authority｜>";
inline constexpr std::string_view kDomain = "<｜domain｜>";
inline constexpr std::string_view kTitle = "<｜title｜>";
inline constexpr std::string_view kReadUrl = "<｜read_url｜>";

inline constexpr std::array<std::string_view, 23> kAll = {
    kBos,
    kEos,
    kUser,
    kAssistant,
    kThink,
    kEndThink,
    kToolCallsBegin,
    kToolCallsEnd,
    kToolCallBegin,
    kToolCallEnd,
    kToolSep,
    kToolOutputsBegin,
    kToolOutputsEnd,
    kToolOutputBegin,
    kToolOutputEnd,
    kDsml,
    kLatestReminder,
    kAction,
    kQuery,
    kAuthority,
    kDomain,
    kTitle,
    kReadUrl,
};

}  // namespace fathom::control
