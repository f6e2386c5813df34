// Tags of DSML in folded text (folded_markers.h):
//
//   <｜DSML｜tool_calls>  <｜DSML｜invoke name="f">  <｜DSML｜parameter name="x" string="true">
//   </｜DSML｜parameter>  </｜DSML｜invoke>  </｜DSML｜tool_calls>
//
// Known besides: the names of other versions (function_calls, calls), names with blanks before
// them, tags without a marker, tags that end themselves (<｜DSML｜invoke name="f"/>), single
// quotes.
#pragma once

#include <cstddef>
#include <string_view>

namespace fathom {

struct DsmlTag {
  enum class Kind { kSection, kInvoke, kParameter, kOther };
  enum class Type { kString, kJson, kUnsaid };

  Kind kind = Kind::kOther;
  bool is_end = false;        ///< </...>
  bool is_marked = false;     ///< has ｜DSML｜
  bool ends_itself = false;   ///< <.../>
  std::string_view word{};    ///< the name of the tag: "invoke"
  std::string_view name{};    ///< the attribute; empty if there is none
  Type type = Type::kUnsaid;  ///< the attribute string
  size_t size = 0;            ///< in bytes
};

struct DsmlTagMatch {
  enum class State {
    kNo,
    kMore,  ///< the text ends within what may be a tag
    kTag,
  };
  State state;
  DsmlTag tag{};  ///< views into the text; of kTag, and is_marked also of kNo and kMore
};

/// The tag at the beginning of a text that begins with "<". Decides with the byte that settles it,
/// so a longer text never gives another answer. At most 2048 bytes are a tag. Other names than
/// those known are tags only with a marker.
DsmlTagMatch match_dsml_tag(std::string_view text);

}  // namespace fathom
