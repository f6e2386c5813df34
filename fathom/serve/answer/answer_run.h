// Runs what a protocol asks for: submits a request for each choice, reads their events into parts,
// and tells the writer. Cancels when the client goes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fathom/grammar/grammar.h"
#include "fathom/serve/answer/reply_writer.h"
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
  /// Text that stands before the answer of every choice (`echo`).
  std::string echo;
};

/// Runs in the life of a server.
struct AnswerHost {
  EngineService& service;
  /// Counts what parsers put right; may be empty.
  std::function<void(const AnswerRepairs&)> on_repairs;
};

/// Starts an answer on the event loop or on a worker. The writer's calls come on the event loop.
/// A refusal of the engine is a fail() of the writer. When the exchange's client goes, all choices
/// are cancelled and the writer hears nothing more.
void run_answer(AnswerHost host,
                ExchangePtr exchange,
                AnswerSpec spec,
                std::unique_ptr<ReplyWriter> writer);

}  // namespace fathom::serve
