#include "fathom/serve/answer/answer_run.h"

#include <algorithm>
#include <utility>

#include "fathom/serve/answer/choice_reader.h"
#include "fathom/serve/replay/call_tokens.h"

namespace fathom::serve {

void OpenAnswers::add(const std::string& id, const void* run, Abort abort) {
  answers_.emplace(id, std::pair(run, std::move(abort)));
}

void OpenAnswers::remove(const std::string& id, const void* run) {
  const auto [begin, end] = answers_.equal_range(id);
  for (auto it = begin; it != end; ++it) {
    if (it->second.first != run) continue;
    answers_.erase(it);
    return;
  }
}

int64_t OpenAnswers::abort(const std::string& id) {
  std::vector<Abort> aborts;  // each removes itself
  const auto [begin, end] = answers_.equal_range(id);
  for (auto it = begin; it != end; ++it)
    aborts.push_back(it->second.second);
  for (const Abort& abort : aborts)
    abort();
  return static_cast<int64_t>(aborts.size());
}

namespace {

// Lives on the event loop; the sinks of its requests keep it alive.
class AnswerRun : public std::enable_shared_from_this<AnswerRun> {
 public:
  AnswerRun(const AnswerHost& host,
            ExchangePtr exchange,
            std::vector<AnswerSpec> specs,
            std::unique_ptr<ReplyWriter> writer)
      : host_(host),
        exchange_(std::move(exchange)),
        specs_(std::move(specs)),
        writer_(std::move(writer)) {
    const Tokenizer* const tokenizer = host_.service->engine().tokenizer();
    has_text_ = tokenizer != nullptr;
    prompt_logprobs_.resize(specs_.size());
    for (size_t s = 0; s < specs_.size(); ++s) {
      const AnswerSpec& spec = specs_[s];
      // Here, on a worker: a long prompt takes the loop's time, which is everybody's.
      if (host_.trace != nullptr)
        traced_prompts_.push_back(has_text_ ? tokenizer->decode(spec.request.prompt) : "");
      usage_.prompt_tokens += static_cast<int64_t>(spec.request.prompt.size());
      for (int i = 0; i < spec.num_choices; ++i) {
        const bool may_call = spec.grammar && !spec.tools.empty();
        choices_.push_back(
            {.spec = s,
             .calls = may_call ? std::make_unique<CallTokens>(*tokenizer, *spec.grammar) : nullptr,
             .reader = ChoiceReader(tokenizer, spec.grammar, spec.tools,
                                    !spec.request.sampling.stop.empty())});
      }
    }
  }

  void start() {
    exchange_->on_gone([run = weak_from_this()] {
      if (const auto alive = run.lock()) alive->leave();
    });
    if (done_) return;  // it left before
    if (host_.on_answer) host_.on_answer(static_cast<int64_t>(choices_.size()));
    if (host_.open != nullptr) {
      host_.open->add(exchange_->id(), this, [run = weak_from_this()] {
        if (const auto alive = run.lock()) alive->abort();
      });
    }
    for (size_t c = 0; c < choices_.size() && !done_; ++c) {
      if (is_first_of_spec(c) || !waits_for_first(choices_[c].spec)) submit(c);
    }
    if (done_) return;  // it was refused, and a status of HTTP says so
    exchange_->on_silence([run = weak_from_this()] {
      const auto alive = run.lock();
      if (alive && !alive->done_ && !alive->begun_) alive->writer_->open();
    });
  }

 private:
  struct Choice {
    size_t spec = 0;
    std::unique_ptr<CallTokens> calls;  // null where there are no tools
    ChoiceReader reader;
    Ticket ticket = 0;
    bool submitted = false;
    bool ended = false;
    int64_t tokens = 0;
    int64_t cached_tokens = 0;
    RequestTimes times{};
    bool told = false;  // it had a delta
    TracedAnswer::Choice traced{};
  };

  bool is_first_of_spec(size_t c) const {
    return c == 0 || choices_[c - 1].spec != choices_[c].spec;
  }

  // Whether choices after the first have something of it: a block of the prompt in the cache, or
  // the log-probabilities of the prompt.
  bool waits_for_first(size_t spec) const {
    const Engine& engine = host_.service->engine();
    const auto length = static_cast<int64_t>(specs_[spec].request.prompt.size());
    return specs_[spec].request.prompt_logprobs >= 0 ||
           (engine.options().prefix_cache && length > engine.options().block_size);
  }

  void submit(size_t c) {
    Choice& choice = choices_[c];
    const AnswerSpec& spec = specs_[choice.spec];
    choice.submitted = true;
    Request request = spec.request;
    // Choices of one seed would all be the same.
    if (request.sampling.seed) *request.sampling.seed += index_in_spec(c);
    if (spec.constraint) request.constraint = spec.constraint->start();
    if (!is_first_of_spec(c)) request.prompt_logprobs = -1;  // those of the first are theirs
    Result<Ticket> ticket = host_.service->submit(
        std::move(request),
        [run = shared_from_this(), c](const ServiceEvent& event) { run->on_event(c, event); },
        spec.client);
    if (ticket.ok()) {
      choice.ticket = *ticket;
    } else {
      fail(api_error(ticket.status()));
    }
  }

  size_t index_in_spec(size_t c) const {
    size_t index = 0;
    while (index < c && choices_[c - index - 1].spec == choices_[c].spec)
      ++index;
    return index;
  }

  void on_event(size_t c, const ServiceEvent& event) {
    if (done_) return;
    Choice& choice = choices_[c];
    if (event.refusal) {
      fail(api_error(*event.refusal));
      return;
    }
    const bool last = event.finish != FinishReason::kNone;
    if (last && !finish_status(event.finish).ok()) {
      fail(api_error(event.finish));
      return;
    }
    choice.times = event.times;
    if (host_.trace != nullptr) keep_for_trace(choice, event);
    if (event.token >= 0) {
      ++choice.tokens;
      ++usage_.completion_tokens;
    }
    choice.cached_tokens = event.cached_tokens;
    if (!begun_) {
      begun_ = true;
      usage_.cached_tokens = event.cached_tokens;
      writer_->begin(usage_, specs_.size() == 1 ? event.prompt_logprobs.get() : nullptr);
    }
    if (event.prompt_logprobs) prompt_logprobs_[choice.spec] = event.prompt_logprobs;
    tell_delta(c, event);
    if (choice.tokens == 1 && event.token >= 0) submit_siblings(c);
    if (last && !done_) end_choice(c, event);
  }

  void tell_delta(size_t c, const ServiceEvent& event) {
    Choice& choice = choices_[c];
    ChoiceDelta delta;
    delta.choice = static_cast<int>(c);
    delta.parts = choice.reader.read(event);
    delta.completion_tokens = usage_.completion_tokens;
    if (event.token >= 0 && specs_[choice.spec].request.sampling.top_logprobs >= 0) {
      delta.tokens.push_back({event.token, event.logprob, event.top_logprobs});
    }
    if (!std::exchange(choice.told, true)) {
      delta.prompt_logprobs = prompt_logprobs_[choice.spec].get();
    }
    if (event.token >= 0 && choice.calls) choice.calls->push(event.token);
    // Without a tokenizer there is no text, and clients count pieces.
    const bool silent = delta.parts.empty() && delta.tokens.empty() && has_text_;
    if (!silent || delta.prompt_logprobs != nullptr) writer_->delta(delta);
  }

  void submit_siblings(size_t c) {
    for (size_t i = c + 1; i < choices_.size() && choices_[i].spec == choices_[c].spec; ++i) {
      if (!choices_[i].submitted && !done_) submit(i);
    }
  }

  void end_choice(size_t c, const ServiceEvent& event) {
    Choice& choice = choices_[c];
    const AnswerSpec& spec = specs_[choice.spec];
    choice.ended = true;
    usage_.drafted_tokens += event.drafted_tokens;
    usage_.accepted_draft_tokens += event.accepted_tokens;
    usage_.reasoning_tokens += choice.reader.reasoning_tokens();
    const AnswerRepairs* repairs = choice.reader.repairs();
    if (repairs != nullptr && host_.on_repairs) host_.on_repairs(*repairs);
    const int64_t length = static_cast<int64_t>(spec.request.prompt.size()) + choice.tokens;
    std::vector<int32_t> call_tokens;
    if (choice.calls && choice.reader.called_tools()) call_tokens = choice.calls->take();
    writer_->finish({.choice = static_cast<int>(c),
                     .finish = event.finish,
                     .called_tools = choice.reader.called_tools(),
                     .stop_text = event.stop_text,
                     .context_full = event.finish == FinishReason::kLength &&
                                     length >= host_.service->engine().options().max_model_len,
                     .call_tokens = std::move(call_tokens)});
    if (std::ranges::all_of(choices_, &Choice::ended)) end();
  }

  void end() {
    close();
    usage_.cached_tokens = 0;  // of each prompt once, however many choices it has
    for (size_t c = 0; c < choices_.size(); ++c) {
      if (index_in_spec(c) == 0) usage_.cached_tokens += choices_[c].cached_tokens;
    }
    const RequestTimes& t = choices_.front().times;
    writer_->end(usage_, {.queue_s = seconds_between(t.submitted_ns, t.started_ns),
                          .prompt_s = seconds_between(t.started_ns, t.first_token_ns),
                          .predicted_s = seconds_between(t.first_token_ns, t.last_token_ns)});
  }

  // False if it was closed before.
  bool close() {
    if (std::exchange(done_, true)) return false;
    if (host_.trace != nullptr) trace();
    if (host_.open != nullptr) host_.open->remove(exchange_->id(), this);
    return true;
  }

  static void keep_for_trace(Choice& choice, const ServiceEvent& event) {
    if (event.token >= 0) choice.traced.tokens.push_back(event.token);
    choice.traced.text += event.text;
    choice.traced.cached_tokens = event.cached_tokens;
    choice.traced.finish = finish_reason_name(event.finish);
  }

  // Takes what nobody needs after the end.
  void trace() {
    TracedAnswer out;
    out.id = exchange_->id();
    out.path = exchange_->request().path;
    out.error = error_code_;
    for (size_t s = 0; s < specs_.size(); ++s)
      out.specs.push_back({std::move(traced_prompts_[s]), std::move(specs_[s].request.prompt)});
    for (Choice& choice : choices_) {
      choice.traced.spec = choice.spec;
      if (const AnswerRepairs* r = choice.reader.repairs()) choice.traced.repairs = *r;
      out.choices.push_back(std::move(choice.traced));
    }
    host_.trace->add(std::move(out));
  }

  void abort() {
    fail({.status = 503,
          .code = "aborted",
          .message = "the request was ended by the operator of the server",
          .param = {}});
  }

  void cancel_rest() {
    for (const Choice& choice : choices_) {
      if (choice.ticket != 0 && !choice.ended) host_.service->cancel(choice.ticket);
    }
  }

  void fail(const ApiError& error) {
    error_code_ = error.code;
    if (!close()) return;
    cancel_rest();
    if (host_.on_error) host_.on_error(error);
    writer_->fail(error);
  }

  void leave() {
    error_code_ = "client_gone";
    if (close()) cancel_rest();
  }

  AnswerHost host_;
  ExchangePtr exchange_;
  std::vector<AnswerSpec> specs_;
  std::unique_ptr<ReplyWriter> writer_;
  std::vector<Choice> choices_;
  AnswerUsage usage_;
  std::vector<std::shared_ptr<const std::vector<PromptLogprobs>>> prompt_logprobs_;  // by spec
  std::vector<std::string> traced_prompts_;  // by spec, of --trace-requests
  std::string error_code_;
  bool has_text_ = false;
  bool begun_ = false;
  bool done_ = false;
};

}  // namespace

void run_answer(const AnswerHost& host,
                ExchangePtr exchange,
                std::vector<AnswerSpec> specs,
                std::unique_ptr<ReplyWriter> writer) {
  auto run =
      std::make_shared<AnswerRun>(host, std::move(exchange), std::move(specs), std::move(writer));
  host.post([run] { run->start(); });
}

}  // namespace fathom::serve
