// What routes know of the model and of how the server was started.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/api/engine.h"
#include "fathom/grammar/grammar.h"
#include "fathom/serve/api_error.h"
#include "fathom/tokenizer/chat/chat_formats.h"

namespace fathom::serve {

class ReplayStore;

/// Where the reasoning of an answer stands in chat completions.
enum class ReasoningField : uint8_t { kReasoningContent, kReasoning, kBoth };

/// Set once, before the first request; read by all threads.
struct ServedModel {
  std::vector<std::string> names;  ///< the first is canonical
  bool any_name = false;           ///< --allow-any-model
  const Tokenizer* tokenizer = nullptr;
  const ChatFormat* chat_format = nullptr;  ///< null: chat routes are refused, with `no_chat`
  std::string no_chat;
  ChatOptions chat_options;             ///< what requests change
  SamplingParams sampling;              ///< defaults
  bool recipe_defaults = false;         ///< V4: serving.md 4.8's defaults where a request is silent
  GrammarCompiler* grammars = nullptr;  ///< null: constrained decoding is refused
  ToolGrammar tool_grammar = ToolGrammar::kLight;
  ReplayStore* replay = nullptr;  ///< null: calls in history are always rendered anew
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool strict_api = false;
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;  ///< ids of requests are below
  int64_t num_params = 0;
  int64_t weight_bytes = 0;
  std::vector<std::string> formats;  ///< of its tensors: "nvfp4"
  int64_t created_s = 0;             ///< Unix time of the start
  std::string system_fingerprint;    ///< "fp_" and 12 hex digits of build, weights and kernel plan

  const std::string& name() const { return names.front(); }

  /// Whether a request may name the model so. 404 model_not_found else.
  std::optional<ApiError> check_name(const std::optional<std::string>& asked) const;
};

}  // namespace fathom::serve
