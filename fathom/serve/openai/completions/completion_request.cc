#include "fathom/serve/openai/completions/completion_request.h"

#include <algorithm>

#include "fathom/serve/prompt/answer_shape.h"

namespace fathom::serve {
namespace {

struct CompletionFields {
  SamplingParams sampling;
  std::optional<ContentShape> shape;
  CacheScope scope;
  bool echo = false;
  int prompt_logprobs = -1;
};

CompletionFields read_fields(Fields& fields,
                             const ServedModel& model,
                             std::string_view key_digest,
                             CompletionStyle& style) {
  CompletionFields read;
  style.reply = read_reply_style(fields, model, "cmpl-");
  read.sampling = model.sampling;
  read_sampling(fields, model.vocab_size, read.sampling);
  if (const auto most = fields.integer("max_tokens", 1, INT64_MAX))
    read.sampling.max_tokens = *most;
  read.shape = read_content_shape(fields, nullptr);
  read.scope = read_cache_scope(fields, key_digest);
  read.echo = fields.boolean("echo").value_or(false);
  read.prompt_logprobs = read_prompt_logprobs(fields);
  style.reply.prompt_logprobs = read.prompt_logprobs >= 0;
  style.num_choices = read_num_choices(fields);
  const auto logprobs = fields.integer("logprobs", 0, kMaxTopLogprobs);
  style.reply.logprobs = logprobs.has_value();
  read.sampling.top_logprobs = static_cast<int>(logprobs.value_or(-1));
  style.top_logprobs = std::max(0, read.sampling.top_logprobs);
  // The log-probabilities of what is echoed are those of the prompt.
  if (read.echo) read.prompt_logprobs = std::max(read.prompt_logprobs, read.sampling.top_logprobs);
  if (read.echo && !fields.text("suffix", INT64_MAX).value_or("").empty()) {
    fields.fail(bad_value("echo", "echo: not together with suffix", "unsupported_parameter"));
  }
  if (style.reply.prompt_logprobs && style.reply.stream) {
    fields.fail(
        bad_value("prompt_logprobs", "prompt_logprobs: not with stream", "unsupported_parameter"));
  }
  if (model.tokenizer == nullptr && (style.reply.logprobs || style.reply.prompt_logprobs)) {
    const std::string field = style.reply.logprobs ? "logprobs" : "prompt_logprobs";
    fields.fail(bad_value(field, str_cat(field, ": the model has no tokenizer to name tokens with"),
                          "unsupported_parameter"));
  }
  read_idle_fields(fields);
  return read;
}

Result<std::vector<AnswerSpec>> make_answers(const ServedModel& model,
                                             const CompletionFields& read,
                                             const CompletionStyle& style,
                                             const std::vector<EchoedPrompt>& prompts) {
  int64_t places = 0;
  for (const EchoedPrompt& prompt : prompts)
    places += static_cast<int64_t>(prompt.tokens.size()) - 1;
  if (style.reply.prompt_logprobs) {
    FATHOM_TRY(limit_prompt_logprobs(places, read.prompt_logprobs, style.num_choices));
  }
  if (read.echo) {
    FATHOM_TRY(
        limit_prompt_logprobs(places, read.sampling.top_logprobs, style.num_choices, "logprobs"));
  }
  FATHOM_ASSIGN(const auto constraint, compile_answer(model, read.shape, {}, {}, {}));
  std::vector<AnswerSpec> answers;
  for (const EchoedPrompt& prompt : prompts) {
    AnswerSpec spec;
    spec.request.prompt = prompt.tokens;
    spec.request.sampling = read.sampling;
    spec.request.cache_salt = salt_of(read.scope);
    spec.request.prompt_logprobs = read.prompt_logprobs;
    spec.constraint = constraint;
    spec.num_choices = style.num_choices;
    FATHOM_TRY(limit_tokens(model, static_cast<int64_t>(prompt.tokens.size()), kMaxDefaultTokens,
                            "max_tokens", spec.request.sampling));
    answers.push_back(std::move(spec));
  }
  return answers;
}

}  // namespace

Parsed<CompletionRequest> parse_completion_request(const HttpRequest& request,
                                                   const ServedModel& model,
                                                   std::string_view key_digest) {
  const ParsedBody body = parse_body(request.body);
  if (body.error) return *body.error;
  Fields fields(body.json);
  CompletionRequest completion;
  CompletionStyle& style = completion.style;
  const CompletionFields read = read_fields(fields, model, key_digest, style);
  std::vector<EchoedPrompt> prompts = read_prompts(fields, model);
  if (model.strict_api) fields.refuse_unknown();
  if (fields.error()) return *fields.error();

  Result<std::vector<AnswerSpec>> answers = make_answers(model, read, style, prompts);
  if (!answers.ok()) return api_error(answers.status());
  completion.answers = std::move(answers).value();
  style.num_prompts = static_cast<int>(prompts.size());
  if (read.echo) style.prompts = std::move(prompts);
  return completion;
}

}  // namespace fathom::serve
