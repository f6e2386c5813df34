#include "cli/engine/text_engine.h"

#include <atomic>
#include <charconv>
#include <csignal>
#include <random>

#include "cli/io/terminal.h"
#include "fathom/os/memory.h"
#include "fathom/os/sha256.h"
#include "fathom/weights/loader.h"

namespace fathom::cli {
namespace {

constexpr int64_t kDefaultContext = 8192;

std::atomic<bool> g_interrupted{false};

void on_interrupt(int) {
  g_interrupted.store(true);
}

// "42=-1.5" as token and bias.
Result<std::pair<int32_t, float>> parse_bias(const std::string& text) {
  const size_t sign = text.find('=');
  int32_t id = 0;
  float bias = 0;
  const char* end = text.data() + text.size();
  const bool good =
      sign != std::string::npos &&
      std::from_chars(text.data(), text.data() + sign, id).ptr == text.data() + sign &&
      std::from_chars(text.data() + sign + 1, end, bias).ptr == end && sign > 0 &&
      sign + 1 < text.size();
  if (!good) {
    return invalid_argument(
        str_cat("--logit-bias is '", text, "', expected ID=BIAS such as 42=-5"));
  }
  return std::pair{id, bias};
}

std::vector<int32_t> end_ids_of(const Tokenizer& tokenizer,
                                const ModelConfig& config,
                                const GenerationConfig& generation) {
  std::vector<int32_t> ids;
  const auto add = [&](int64_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int32_t>(id));
  };
  if (tokenizer.eos_id()) add(*tokenizer.eos_id());
  for (int64_t id : config.eos_token_ids)
    add(id);
  for (int64_t id : generation.eos_token_ids)
    add(id);
  return ids;
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

bool take_interrupt() {
  return g_interrupted.exchange(false);
}

void install_interrupt_handler() {
  struct sigaction action {};

  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  app.add_option("--temperature", flags.temperature, "0 is greedy (default: the model's, else 1)");
  app.add_option("--top-p", flags.top_p, "Keep the likeliest tokens of this mass");
  app.add_option("--top-k", flags.top_k, "Keep this many tokens; -1: all");
  app.add_option("--min-p", flags.min_p, "Keep tokens of this share of the likeliest one");
  app.add_option("--presence-penalty", flags.presence_penalty, "-2 to 2");
  app.add_option("--frequency-penalty", flags.frequency_penalty, "-2 to 2");
  app.add_option("--repetition-penalty", flags.repetition_penalty, "Above 1 discourages; 1: off");
  app.add_option("--logit-bias", flags.logit_bias, "ID=BIAS, added to a token's logit (repeat)");
  app.add_option("--seed", flags.seed, "Same seed, same text (default: random)");
  app.add_option("--stop", flags.stop, "Text that ends the answer (repeat)");
  app.add_option("-n,--max-tokens", flags.max_tokens, "Tokens to generate (default: to the end)");
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the end token");
}

Result<SamplingParams> sampling_params(const SamplingFlags& flags,
                                       const GenerationConfig& defaults) {
  SamplingParams p;
  const bool greedy_by_default = defaults.do_sample.has_value() && !*defaults.do_sample;
  p.temperature = static_cast<float>(
      flags.temperature.value_or(greedy_by_default ? 0.0 : defaults.temperature.value_or(1.0)));
  p.top_p = static_cast<float>(flags.top_p.value_or(defaults.top_p.value_or(1.0)));
  p.min_p = static_cast<float>(flags.min_p.value_or(0.0));
  p.top_k = flags.top_k.value_or(defaults.top_k.value_or(-1));
  p.presence_penalty = static_cast<float>(flags.presence_penalty.value_or(0.0));
  p.frequency_penalty = static_cast<float>(flags.frequency_penalty.value_or(0.0));
  p.repetition_penalty = static_cast<float>(
      flags.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0)));
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

Result<GenerationConfig> read_generation_config(const std::string& directory) {
  Result<std::string> text = read_model_text(directory, "generation_config.json");
  if (text.ok()) {
    return parse_generation_config(text.value(), directory + "/generation_config.json");
  }
  if (text.status().code() == StatusCode::kNotFound) return GenerationConfig{};
  return std::move(text).status();
}

std::string Answer::summary() const {
  const auto count = static_cast<int64_t>(ids.size());
  std::string out = str_cat(prompt_tokens, " prompt tokens, first token after ",
                            format_fixed(first_token_seconds * 1e3, 0), " ms; ", count, " tokens");
  if (count > 1 && decode_seconds > 0) {
    const double rate = static_cast<double>(count - 1) / decode_seconds;
    str_append(out, str_cat(", ", format_fixed(rate, 1), " tokens/s"));
  }
  return str_cat(out, " (", finish_reason_name(finish), ")");
}

Result<std::unique_ptr<TextEngine>> TextEngine::open(const ModelFlags& flags,
                                                     const GlobalFlags& globals,
                                                     Machine machine,
                                                     Tokenizer tokenizer,
                                                     const GenerationConfig& generation,
                                                     int64_t length) {
  std::unique_ptr<TextEngine> engine(new TextEngine(std::move(machine), std::move(tokenizer)));
  const int64_t available = host_memory().available_bytes;
  FATHOM_ASSIGN(engine->opened_, open_for(flags, globals, *engine->machine_.pool));
  const Model& model = *engine->opened_.model;
  const int64_t context = model.config().max_position_embeddings;
  if (length > context) {
    return invalid_argument(str_cat("prompt and answer have ", length,
                                    " tokens, but the model's context holds ", context,
                                    "; shorten the prompt or lower --max-tokens"));
  }
  MemoryRequest request;
  request.max_model_len = length > 0 ? length : std::min(context, kDefaultContext);
  request.max_num_seqs = 1;
  request.num_ids = std::min<int64_t>(model.config().vocab_size, engine->tokenizer_.vocab_size());
  request.num_threads = engine->machine_.pool->size();
  request.available_bytes = available;
  CoreSettings settings;
  FATHOM_ASSIGN(settings.plan, plan_memory(model, request));
  settings.seed = random_seed();
  settings.end_ids = end_ids_of(engine->tokenizer_, model.config(), generation);
  settings.model_fingerprint = to_hex(sha256(engine->opened_.title));  // pages live in this process
  FATHOM_ASSIGN(engine->core_,
                EngineCore::create(std::move(settings), model, *engine->machine_.pool,
                                   &engine->tokenizer_, engine->clock_));
  return engine;
}

Result<Answer> TextEngine::answer(std::vector<int32_t> prompt,
                                  const SamplingParams& params,
                                  const OnText& on_text) {
  Answer out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t begin = clock_.now_ns();
  int64_t first_token = 0;
  bool stop = false;
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = params;
  request.on_token = [&](const TokenEvent& event) {
    if (event.token >= 0) {
      if (out.ids.empty()) first_token = clock_.now_ns();
      out.ids.push_back(event.token);
    }
    if (event.finish != FinishReason::kNone) out.finish = event.finish;
    if (!stop && (event.token >= 0 || !event.text.empty())) {
      stop = !on_text(event.text, event.token);
    }
  };
  FATHOM_ASSIGN(const RequestId id, core_->submit(std::move(request)));
  while (!core_->idle()) {
    FATHOM_TRY(core_->step());
    if (stop) core_->cancel(id);
  }
  out.first_token_seconds = static_cast<double>(first_token - begin) * 1e-9;
  out.decode_seconds = static_cast<double>(clock_.now_ns() - first_token) * 1e-9;
  if (out.finish != FinishReason::kAborted) FATHOM_TRY(finish_status(out.finish));
  return out;
}

}  // namespace fathom::cli
