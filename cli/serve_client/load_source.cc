#include "cli/serve_client/load_source.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "fathom/base/rng.h"
#include "fathom/os/file.h"
#include "fathom/serve/load/arrivals.h"
#include "fathom/serve/load/datasets.h"

namespace fathom::cli {

using serve::FileRequest;
using serve::TextRequest;
using serve::TextRoute;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kDefaultOutput = 128;
constexpr double kUsualTokensPerWord = 1.1;
constexpr int64_t kBytesPerToken = 4;
constexpr int64_t kMaxFileBytes = int64_t{2} << 30;

// Streams of random numbers; those of datasets.h are 1 and 2.
constexpr uint64_t kPromptStream = uint64_t{3} << 32;
constexpr uint64_t kWarmupStream = uint64_t{4} << 32;

Result<double> parse_rate(const std::optional<std::string>& text) {
  if (!text || *text == "inf") return kInfinity;
  double rate = 0;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, rate);
  if (error == std::errc{} && at == end && std::isfinite(rate) && rate > 0) return rate;
  return invalid_argument(
      str_cat("--request-rate is '", *text, "', expected a number above 0, or inf"));
}

Result<Json> extra_members(const BenchServeFlags& flags) {
  Json extra = Json::object();
  if (!flags.extra_body.empty()) {
    Result<Json> given = parse_json(flags.extra_body, {}, "--extra-body");
    if (!given.ok()) return invalid_argument(given.status().message());
    if (!given->is_object()) {
      return invalid_argument(
          str_cat("--extra-body is ", given->kind_name(), ", expected an object"));
    }
    extra = std::move(given).value();
  }
  if (flags.temperature && extra.find("temperature") == nullptr) {
    extra.members().emplace_back("temperature", Json::number(*flags.temperature));
  }
  return extra;
}

class SourceMaker {
 public:
  SourceMaker(const BenchServeFlags& flags, const ModelFacts& model, serve::HttpClient& client)
      : flags_(flags), model_(model), client_(client) {}

  Result<LoadSource> make() {
    FATHOM_ASSIGN(out_.request_rate, parse_rate(flags_.request_rate));
    FATHOM_ASSIGN(base_.extra, extra_members(flags_));
    base_.model = model_.id;
    base_.ignore_eos = flags_.ignore_eos;
    FATHOM_TRY(choose_route());
    if (flags_.dataset == "random") {
      add_random();
    } else if (flags_.dataset == "agent") {
      add_sessions();
    } else {
      FATHOM_TRY(add_file());
    }
    add_warmup();
    return std::move(out_);
  }

 private:
  Status choose_route() {
    const bool agent = flags_.dataset == "agent";
    out_.plan.route = agent ? TextRoute::kChat : TextRoute::kCompletions;
    if (!flags_.endpoint.empty()) {
      FATHOM_ASSIGN(out_.plan.route, serve::parse_text_route(flags_.endpoint));
    }
    if (!agent || out_.plan.route == TextRoute::kChat) return {};
    return invalid_argument(str_cat("--dataset agent needs --endpoint ",
                                    text_route_path(TextRoute::kChat), ", found ",
                                    flags_.endpoint));
  }

  void note(std::string text) {
    if (std::find(out_.notes.begin(), out_.notes.end(), text) == out_.notes.end()) {
      out_.notes.push_back(std::move(text));
    }
  }

  bool takes_ids() const { return out_.plan.route == TextRoute::kCompletions; }

  // Ids that the server takes: of its vocabulary, else those that words have there; else none.
  std::vector<int32_t> ids(Rng& rng, int64_t count) {
    if (model_.vocab_size > 0) return serve::random_ids(rng, count, model_.vocab_size);
    if (!asked_for_pool_) {
      asked_for_pool_ = true;
      Rng words(flags_.seed, kPromptStream);
      constexpr int64_t kPoolWords = 2000;
      pool_ = tokenize_there(client_, model_.id, serve::random_words(words, kPoolWords))
                  .value_or(std::vector<int32_t>{});
    }
    std::vector<int32_t> out;
    for (int64_t i = 0; i < count && !pool_.empty(); ++i)
      out.push_back(pool_[rng.next_below(static_cast<uint32_t>(pool_.size()))]);
    return out;
  }

  // How many tokens a word has there, measured once.
  double tokens_per_word() {
    if (tokens_per_word_ > 0) return tokens_per_word_;
    constexpr int64_t kWords = 500;
    Rng rng(flags_.seed, kWarmupStream);
    const auto tokens = tokenize_there(client_, model_.id, serve::random_words(rng, kWords));
    const bool known = tokens && !tokens->empty();
    tokens_per_word_ = known ? static_cast<double>(tokens->size()) / kWords : kUsualTokensPerWord;
    if (!known) {
      note(
          "The server has no /tokenize: lengths of prompts are estimates, "
          "1.1 tokens a word; the counts are the server's.");
    }
    return tokens_per_word_;
  }

  // Words of this many tokens: cut to them exactly where the server turns tokens into text.
  std::string text_of_tokens(Rng& rng, int64_t tokens) {
    constexpr double kMargin = 1.1;
    const double words = static_cast<double>(tokens) / tokens_per_word();
    const auto exact = [&]() -> std::optional<std::string> {
      if (!can_detokenize_) return std::nullopt;
      Rng copy = rng;
      const auto more = static_cast<int64_t>(words * kMargin) + 8;
      auto there = tokenize_there(client_, model_.id, serve::random_words(copy, more));
      if (!there || static_cast<int64_t>(there->size()) < tokens) return std::nullopt;
      there->resize(static_cast<size_t>(tokens));
      return detokenize_there(client_, model_.id, *there);
    };
    if (auto text = exact(); text && !text->empty()) return *text;
    can_detokenize_ = false;
    return serve::random_words(rng, std::max<int64_t>(std::llround(words), 1));
  }

  // A prompt of this many tokens, made of the stream.
  void fill_prompt(Rng& rng, int64_t tokens, TextRequest& request) {
    if (takes_ids()) {
      std::vector<int32_t> more = ids(rng, tokens);
      request.ids.insert(request.ids.end(), more.begin(), more.end());
      if (!more.empty()) return;
      note("The server names neither its vocabulary nor /tokenize: prompts are text.");
    }
    if (!request.text.empty()) request.text += ' ';
    request.text += text_of_tokens(rng, tokens);
  }

  void add_random() {
    serve::RandomLengths lengths = flags_.lengths;
    lengths.output = flags_.output_len.value_or(kDefaultOutput);
    const auto shapes = serve::random_shapes(lengths, flags_.num_prompts, flags_.seed);
    uint64_t number = 0;
    for (const serve::PromptShape& shape : shapes) {
      PlannedRequest planned{.request = base_, .prompt_tokens = shape.input};
      Rng rng(flags_.seed, kPromptStream + ++number);
      fill_prompt(rng, shape.input, planned.request);
      planned.request.max_tokens = shape.output;
      out_.plan.requests.push_back(std::move(planned));
    }
    arrive_by_rate();
  }

  void arrive_by_rate() {
    const auto times = serve::arrival_times_ns(
        static_cast<int64_t>(out_.plan.requests.size()),
        {.rate = out_.request_rate, .burstiness = flags_.burstiness, .seed = flags_.seed});
    for (size_t i = 0; i < times.size(); ++i)
      out_.plan.requests[i].at_ns = times[i];
  }

  void add_sessions() {
    serve::AgentOptions options = flags_.agent;
    options.seed = flags_.seed;
    options.tokens_per_word = tokens_per_word();
    options.output_len = static_cast<double>(flags_.output_len.value_or(kDefaultOutput));
    if (!flags_.keep_prefixes) {
      std::random_device entropy;
      options.salt = str_cat(entropy(), "-", entropy());
    }
    out_.plan.agent = serve::make_agent_trace(options);
    out_.plan.agent_request = base_;
    out_.plan.agent_request.tools = out_.plan.agent.tools;
    out_.plan.session_at_ns = serve::arrival_times_ns(
        options.sessions,
        {.rate = out_.request_rate, .burstiness = flags_.burstiness, .seed = flags_.seed});
  }

  Status add_file() {
    const std::string& path = flags_.dataset_path;
    FATHOM_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
    const bool trace = flags_.dataset == "trace";
    std::vector<FileRequest> all;
    if (trace) {
      FATHOM_ASSIGN(all, serve::read_trace_requests(text, path));
      const auto count = std::min<size_t>(all.size(), static_cast<size_t>(flags_.num_prompts));
      all.resize(count);
    } else if (flags_.dataset == "jsonl") {
      FATHOM_ASSIGN(all, serve::read_jsonl_requests(text, path));
    } else {
      FATHOM_ASSIGN(all, serve::read_sharegpt_requests(text, path));
    }
    if (!trace) all = serve::choose_requests(std::move(all), flags_.num_prompts, flags_.seed);
    const bool messages = std::any_of(all.begin(), all.end(),
                                      [](const FileRequest& r) { return !r.messages.empty(); });
    if (messages && flags_.endpoint.empty()) out_.plan.route = TextRoute::kChat;
    uint64_t number = 0;
    for (FileRequest& request : all)
      FATHOM_TRY(add_from_file(std::move(request), number++));
    if (!trace || flags_.request_rate) {
      arrive_by_rate();
    }
    return {};
  }

  Status add_from_file(FileRequest&& file, uint64_t number) {
    PlannedRequest planned{.request = base_, .prompt_tokens = file.input_len};
    TextRequest& request = planned.request;
    planned.at_ns = file.at_ns.value_or(0);
    for (const serve::TraceBlock& block : trace_blocks(file, number)) {
      Rng rng(flags_.seed, block.stream);
      fill_prompt(rng, block.tokens, request);
    }
    if (!takes_ids() && !file.ids.empty()) {
      return invalid_argument(str_cat(flags_.dataset_path, " has prompts of ids, which only ",
                                      text_route_path(TextRoute::kCompletions), " takes"));
    }
    if (takes_ids() && !file.messages.empty()) {
      return invalid_argument(str_cat(
          flags_.dataset_path, " has messages, which ", text_route_path(TextRoute::kCompletions),
          " does not take; --endpoint ", text_route_path(TextRoute::kChat), " does"));
    }
    if (!file.ids.empty()) {
      planned.prompt_tokens = static_cast<int64_t>(file.ids.size());
      request.ids = std::move(file.ids);
    }
    if (!file.text.empty()) request.text = std::move(file.text);
    request.messages = std::move(file.messages);
    request.tools = std::move(file.tools);
    request.max_tokens = output_tokens(file);
    out_.plan.requests.push_back(std::move(planned));
    return {};
  }

  int64_t output_tokens(const FileRequest& file) {
    if (flags_.output_len) return *flags_.output_len;
    if (file.output_len > 0) return file.output_len;
    if (file.expected.empty()) return kDefaultOutput;
    if (can_tokenize_) {
      const auto tokens = tokenize_there(client_, model_.id, file.expected);
      if (tokens) return std::max<int64_t>(static_cast<int64_t>(tokens->size()), 1);
      can_tokenize_ = false;
      note("The server has no /tokenize: lengths of answers are estimates, four bytes a token.");
    }
    return std::max<int64_t>(static_cast<int64_t>(file.expected.size()) / kBytesPerToken, 1);
  }

  // Of tokens that no prompt begins with.
  void add_warmup() {
    constexpr int64_t kPrompt = 16, kAnswer = 8;
    out_.warmup = base_;
    Rng rng(flags_.seed, kWarmupStream);
    const bool has_ids = !out_.plan.requests.empty() && !out_.plan.requests[0].request.ids.empty();
    if (has_ids) out_.warmup.ids = ids(rng, kPrompt);
    if (out_.warmup.ids.empty()) out_.warmup.text = serve::random_words(rng, kPrompt);
    out_.warmup.max_tokens = kAnswer;
  }

  const BenchServeFlags& flags_;
  const ModelFacts& model_;
  serve::HttpClient& client_;
  LoadSource out_;
  TextRequest base_{};
  std::vector<int32_t> pool_;
  double tokens_per_word_ = 0;
  bool asked_for_pool_ = false;
  bool can_detokenize_ = true;
  bool can_tokenize_ = true;
};

}  // namespace

Status check_load_source(const BenchServeFlags& flags) {
  const bool from_file = flags.dataset != "random" && flags.dataset != "agent";
  if (from_file && flags.dataset_path.empty()) {
    return invalid_argument(str_cat("--dataset ", flags.dataset, " needs --dataset-path FILE"));
  }
  if (!from_file && !flags.dataset_path.empty()) {
    return invalid_argument(str_cat("--dataset-path is '", flags.dataset_path, "', and --dataset ",
                                    flags.dataset, " reads no file"));
  }
  if (from_file && path_kind(flags.dataset_path) == PathKind::kMissing) {
    return errno_status("open", flags.dataset_path, ENOENT);
  }
  FATHOM_TRY(parse_rate(flags.request_rate).status());
  return extra_members(flags).status();
}

Result<LoadSource> make_load_source(const BenchServeFlags& flags,
                                    const ModelFacts& model,
                                    serve::HttpClient& client) {
  return SourceMaker(flags, model, client).make();
}

}  // namespace fathom::cli
