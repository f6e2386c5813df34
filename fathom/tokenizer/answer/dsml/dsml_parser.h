// Splits an answer of V3.2 or V4 into reasoning, content and calls, while it arrives.
//
//   reasoning </think> content \n\n<｜DSML｜tool_calls>\n
//   <｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x"
//   string="true">VALUE</｜DSML｜parameter>\n
//   </｜DSML｜invoke>\n ... </｜DSML｜tool_calls>
//
// Line ends before and behind reasoning, before content and before calls belong to neither.
//
// The parser is total: any text gives an answer. However the text is cut into pieces, the pieces of
// each part add up to the same. What may become a marker or a tag is held back, so neither appears
// in content or arguments. Time is linear. Finished arguments are always a JSON object.
//
// Put right, and counted (AnswerRepairs): sections that are missing, misspelt, of another version
// or without an end; calls before </think>; tags without ｜DSML｜, within a section, and around a
// section whose first call is of a tool that was declared; parameters without an end, without a
// type (the schema of the tool says it, else whether the value is JSON) or twice; arguments within
// a parameter named arguments or input, or as JSON without parameters; calls without a name, whose
// text becomes content. An answer that ends within a call keeps what there is of it; one that ends
// within a tag loses the tag. Text behind the calls is content.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/tokenizer/answer/answer_parser.h"
#include "fathom/tokenizer/answer/dsml/dsml_arguments.h"
#include "fathom/tokenizer/answer/dsml/dsml_tags.h"
#include "fathom/tokenizer/answer/dsml/folded_markers.h"

namespace fathom {

class DsmlParser {
 public:
  /// `tools`: those the model was told of; may be empty. `in_text`: the markers to look for in
  /// text; others count only through push_marker.
  explicit DsmlParser(AnswerGrammar grammar,
                      std::vector<ToolDefinition> tools = {},
                      AnswerMarkerSet in_text = AnswerMarkerSet{}.set());

  DsmlParser(const DsmlParser&) = delete;
  DsmlParser& operator=(const DsmlParser&) = delete;

  /// Takes the next piece of text.
  AnswerDelta push(std::string_view text);

  /// Takes a marker that came as a token of its own.
  AnswerDelta push_marker(AnswerMarker marker);

  /// Ends the answer and settles what was held back. The parser must not be used afterwards.
  AnswerDelta finish();

  /// Whether the answer is within its reasoning now.
  bool in_reasoning() const { return phase_ == Phase::kReasoning; }

  const AnswerRepairs& repairs() const { return repairs_; }

 private:
  enum class Phase {
    kReasoning,
    kContent,
    kSection,  // between calls
    kCall,     // between parameters
    kValue,
  };

  // The steps return how many bytes they took, 0 to wait for more.
  void run(AnswerDelta& delta);
  size_t step_marker(char marker, AnswerDelta& delta);
  size_t step_tag(std::string_view rest, AnswerDelta& delta);
  size_t drop_cut_tag(std::string_view rest, const DsmlTag& tag, AnswerDelta& delta);

  DsmlTagMatch match_tag(std::string_view rest) const;
  DsmlTagMatch match_section_without_marker(std::string_view rest, DsmlTagMatch section) const;
  DsmlTagMatch match_end_of_value_without_marker(std::string_view rest, DsmlTagMatch end) const;
  bool may_matter_without_marker(const DsmlTag& tag) const;
  bool is_live(const DsmlTag& tag) const;
  const ToolDefinition* find_tool(std::string_view name) const;

  void take_text(std::string_view text, AnswerDelta& delta);
  void take_tag(const DsmlTag& tag, AnswerDelta& delta);
  void take_tag_of_section(const DsmlTag& tag, AnswerDelta& delta);
  void take_tag_of_call(const DsmlTag& tag, AnswerDelta& delta);

  void begin_part(Phase phase, bool trims_start);
  void add_part_text(std::string_view text, std::string& part);
  void add_text_between(std::string_view text, AnswerDelta& delta);
  void flush_part_lines(std::string& part);

  void open_section(const DsmlTag& tag);
  void close_section();
  void open_call(const DsmlTag& tag, AnswerDelta& delta);
  void close_call(AnswerDelta& delta);
  void open_parameter(const DsmlTag& tag, AnswerDelta& delta);
  void close_parameter(AnswerDelta& delta);
  void add_arguments(std::string_view text, AnswerDelta& delta);

  AnswerGrammar grammar_;
  std::vector<ToolDefinition> tools_;
  MarkerFolder folder_;
  std::string pending_;  // folded text that is not settled
  bool is_finished_ = false;
  Phase phase_;
  AnswerRepairs repairs_;

  // Of the reasoning or content that is being written.
  bool part_has_text_ = false;  // something besides line ends
  bool part_trims_start_;
  size_t part_lines_ = 0;  // line ends that may be the last ones

  bool in_section_ = false;
  int num_calls_ = 0;
  std::optional<DsmlArguments> arguments_;  // of the call at hand; none if it has no name
  std::string body_;                        // text of the call outside of parameters
  bool value_has_marker_ = false;           // the parameter began with a marked tag
};

}  // namespace fathom
