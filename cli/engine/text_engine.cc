#include "cli/engine/text_engine.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "cli/integers.h"
#include "cli/io/progress.h"
#include "fathom/text/figures.h"

namespace fathom::cli {
namespace {

constexpr int64_t kDefaultContext = 8192;
constexpr int64_t kMostTokens = int64_t{1} << 30;

// The whole of a text as a number that its type can hold.
template <class Number>
bool parse_whole(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && at == end;
}

// "42=-1.5" as token and bias.
Result<std::pair<int32_t, float>> parse_bias(const std::string& text) {
  const size_t sign = text.find('=');
  int32_t id = 0;
  float bias = 0;
  const bool good = sign != std::string::npos &&
                    parse_whole(std::string_view(text).substr(0, sign), id) &&
                    parse_whole(std::string_view(text).substr(sign + 1), bias);
  if (!good) {
    return invalid_argument(
        str_cat("--logit-bias is '", text, "', expected ID=BIAS such as 42=-5"));
  }
  return std::pair{id, bias};
}

}  // namespace

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  app.add_option("--temperature,--temp", flags.temperature,
                 "0 takes the likeliest token (default: the model's, else 1)");
  app.add_option("--top-p", flags.top_p,
                 "Keep the likeliest tokens of this mass (default: the model's, else 1)");
  app.add_option("--top-k", flags.top_k,
                 "Keep this many tokens; -1: all (default: the model's, else all)")
      ->check(integer_range(int64_t{-1}, kMostTokens).description(""));
  app.add_option("--min-p", flags.min_p,
                 "Keep tokens of this share of the likeliest one (default: 0, all)");
  app.add_option("--presence-penalty", flags.presence_penalty,
                 "Off the logit of each token that the answer has; -2 to 2 (default: 0, off)");
  app.add_option("--frequency-penalty", flags.frequency_penalty,
                 "Off it for each time that the answer has it; -2 to 2 (default: 0, off)");
  app.add_option("--repetition-penalty,--repeat-penalty", flags.repetition_penalty,
                 "Above 1 discourages tokens of prompt and answer (default: the model's, else 1, "
                 "off)");
  // Texts as they are: lists would take "[END]" apart, and the word behind it.
  app.add_option("--logit-bias", flags.logit_bias, "ID=BIAS, added to a token's logit (repeat)")
      ->allow_extra_args(false);
  app.add_option("-s,--seed", flags.seed, "Same seed, same text (default: random)")
      ->check(integer_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()).description(""));
  app.add_option("--stop", flags.stop, "Text that ends the answer (repeat)")
      ->allow_extra_args(false);
  app.add_option("-n,--max-tokens,--n-predict,--predict,--num-predict,--max-new-tokens",
                 flags.max_tokens, "Tokens to generate (default: to the end)")
      ->check(integer_range(int64_t{1}, kMostTokens).description(""));
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the end token");
}

Result<SamplingParams> sampling_params(const SamplingFlags& flags, const SamplingParams& defaults) {
  SamplingParams p = defaults;
  const auto set = [](float& to, const std::optional<double>& flag) {
    if (flag) to = static_cast<float>(*flag);
  };
  set(p.temperature, flags.temperature);
  set(p.top_p, flags.top_p);
  set(p.min_p, flags.min_p);
  set(p.presence_penalty, flags.presence_penalty);
  set(p.frequency_penalty, flags.frequency_penalty);
  set(p.repetition_penalty, flags.repetition_penalty);
  if (flags.top_k) p.top_k = *flags.top_k;
  for (const std::string& text : flags.logit_bias) {
    FATHOM_ASSIGN(const auto bias, parse_bias(text));
    p.logit_bias.push_back(bias);
  }
  p.seed = flags.seed;
  p.max_tokens = flags.max_tokens;
  p.stop = flags.stop;
  p.ignore_eos = flags.ignore_eos;
  return p;
}

Result<TextModel> open_text_model(const EngineOptions& options, int64_t at_once) {
  EngineOptions planned = options;
  planned.max_num_seqs = at_once;
  FATHOM_ASSIGN(EngineOptions checked, checked_options(planned));
  FATHOM_ASSIGN(Tokenizer tokenizer, load_tokenizer(checked.model));
  FATHOM_ASSIGN(ModelSource files, open_source(checked));
  return TextModel{.options = std::move(checked),
                   .source = {.model = std::move(files), .tokenizer = std::move(tokenizer)}};
}

Result<std::unique_ptr<Engine>> load_engine(TextModel model,
                                            const GlobalFlags& globals,
                                            int64_t prompt_tokens) {
  const ModelConfig& config = model.source.model.config;
  int64_t& length = model.options.max_model_len;
  FATHOM_TRY(check_max_model_len(length, config));
  if (length == 0)
    length = std::min(config.max_position_embeddings, prompt_tokens + kDefaultContext);
  Progress bar("loading", "", globals.quiet);
  return Engine::load(model.options, std::move(model.source),
                      [&](int64_t done, int64_t total) { bar.update(done, total); });
}

double tokens_per_second(const Completion& answer) {
  const double decode_s = answer.total_s - answer.first_token_s;
  const auto count = static_cast<double>(answer.tokens.size());
  return count > 1 && decode_s > 0 ? (count - 1) / decode_s : 0;
}

std::string summary_of(const Completion& answer) {
  const auto count = static_cast<int64_t>(answer.tokens.size());
  std::string out = str_cat(answer.prompt_tokens, " prompt tokens, first token after ",
                            format_fixed(answer.first_token_s * 1e3, 0), " ms; ", count, " tokens");
  if (const double rate = tokens_per_second(answer); rate > 0) {
    str_append(out, str_cat(", ", format_fixed(rate, 1), " tokens/s"));
  }
  if (answer.drafted_tokens > 0) {
    str_append(out, str_cat(", ", answer.accepted_tokens, " of ", answer.drafted_tokens,
                            " drafts were right"));
  }
  return str_cat(out, " (", finish_reason_name(answer.finish), ")");
}

}  // namespace fathom::cli
