// Runs what a protocol asks for: submits a request for each choice, reads their events into parts,
// and tells the writer. Cancels when the client goes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fathom/grammar/grammar.h"
#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/answer/request_trace.h"
#include "fathom/serve/service/engine_service.h"
#include "fathom/tokenizer/answer/answer_decoder.h"

namespace fathom::serve {

/// What a protocol makes of a request body. Complete: nothing else decides what is computed.
struct AnswerSpec {
  Request request;  ///< prompt, sampling, salt, timeouts; of each choice
  /// What each choice must keep to: started anew for each, as Request::constraint has a state.
  std::shared_ptr<const CompiledGrammar> constraint;
  int num_choices = 1;
  /// How the answer is cut into parts; absent: it is plain text (/v1/completions).
  std::optional<AnswerGrammar> grammar;
  std::vector<ToolDefinition> tools;  ///< the model was told of
  std::string client;                 ///< digest of the key, for its limit of waiting requests
};

/// Answers that run, by the id of their exchange. Of the event loop alone.
class OpenAnswers {
 public:
  using Abort = std::function<void()>;

  /// Ids may repeat: clients choose them.
  void add(const std::string& id, const void* run, Abort abort);
  void remove(const std::string& id, const void* run);

  /// Ends the answers of that id; how many there were.
  int64_t abort(const std::string& id);

  size_t size() const { return answers_.size(); }

 private:
  std::multimap<std::string, std::pair<const void*, Abort>> answers_;
};

/// Lives as long as the server.
struct AnswerHost {
  EngineService* service = nullptr;
  Post post;
  /// Counts answers, with how many choices each has; may be empty.
  std::function<void(int64_t num_choices)> on_answer{};
  /// Counts what parsers put right, at the end of each choice; may be empty.
  std::function<void(const AnswerRepairs&)> on_repairs{};
  /// Counts errors by code; may be empty.
  std::function<void(const ApiError&)> on_error{};
  OpenAnswers* open = nullptr;    ///< may be null
  RequestTrace* trace = nullptr;  ///< may be null
};

/// Starts an answer, from any thread. Choices are numbered through the specs: those of the first,
/// then those of the second. Choices of one prompt share it: the others start when the first has
/// its first token, and find the prompt in the prefix cache. The writer's calls come on the event
/// loop. A refusal of the engine is a fail() of the writer, as is an end that is an error; the
/// other choices end with it. When the exchange's client goes, all are cancelled and the writer
/// hears nothing more.
void run_answer(const AnswerHost& host,
                ExchangePtr exchange,
                std::vector<AnswerSpec> specs,
                std::unique_ptr<ReplyWriter> writer);

}  // namespace fathom::serve
