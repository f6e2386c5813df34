// What a section of tool calls looks like, as a format (format_parts.h).
//
//   fenced  <calls begin> <call begin>function<sep>NAME\n```json\nARGS\n```<call end> [\n call ...]
//           <calls end>
//   bare    <calls begin> <call begin>NAME<sep>ARGS<call end> [call ...] <calls end>
//   DSML    <｜DSML｜tool_calls>\n
//           <｜DSML｜invoke name="NAME">\n
//           <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>\n ...
//           </｜DSML｜invoke>\n ...
//           </｜DSML｜tool_calls>
//
// kFull: arguments follow the schema of the tool; parameters of DSML come in its order, and only
// those that it names (any, where it has no "properties" and is not closed). A parameter that may
// be a string is written string="true" and follows enum, const, pattern and lengths, but no format;
// any other value is JSON by its schema. kLight: names of tools and of parameters are enforced, and
// that arguments are a JSON object; values of DSML are any text or any JSON.
#pragma once

#include "fathom/base/status.h"
#include "fathom/grammar/call_markers.h"
#include "fathom/grammar/grammar.h"
#include "fathom/grammar/schema_check.h"
#include "fathom/text/json.h"

namespace fathom {

/// Where the format begins.
enum class SectionStart {
  kWhole,          ///< with the marker that opens it; line ends may stand before it
  kBehindTrigger,  ///< behind the marker (DSML: behind ｜DSML｜) that came in free text
};

/// The format of the calls of a spec that has them. Errors: InvalidArgument `invalid_schema: ...`
/// and `grammar_too_complex: ...`, naming the tool.
Result<Json> call_section_format(const GrammarSpec& spec,
                                 const CallMarkers& markers,
                                 const SchemaLimits& limits,
                                 SectionStart start);

}  // namespace fathom
