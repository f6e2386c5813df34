// serve: a model behind HTTP. Puts engine, routes, sockets and metrics together, and takes them
// apart again.
//
//   main thread     starts everything, waits for a signal, drains
//   event loop      sockets, replies                     fathom/serve/http
//   engine thread   loads and steps the engine           fathom/serve/service
//   workers         read requests, encode prompts        fathom/serve/server
//   watchdog        looks whether the engine goes on
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/engine/model_setup.h"
#include "cli/flags.h"
#include "cli/io/chat_input.h"
#include "cli/serve/serve_flags.h"
#include "cli/serve/server_info.h"
#include "cli/serve/step_profiler.h"
#include "cli/serve/step_table.h"
#include "fathom/base/hint.h"
#include "fathom/base/log.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "fathom/os/sha256.h"
#include "fathom/serve/answer/request_trace.h"
#include "fathom/serve/http/http_server.h"
#include "fathom/serve/kv_events/kv_publisher.h"
#include "fathom/serve/metrics/server_metrics.h"
#include "fathom/serve/prompt/thinking.h"
#include "fathom/serve/replay/replay_store.h"
#include "fathom/serve/server/server.h"
#include "fathom/serve/server/watchdog.h"
#include "fathom/text/figures.h"

namespace fathom::cli {
namespace {

using serve::EngineService;
using serve::HttpServer;
using serve::ServedModel;
using serve::Server;
using serve::ServerState;

// ---- Signals: a handler writes one byte, and the main thread reads it.

int g_signal_pipe[2] = {-1, -1};
std::atomic<bool> g_serving{false};

void on_signal(int number) {
  if (!g_serving.load(std::memory_order_relaxed))  // nothing to drain
    _exit(number == SIGTERM ? kExitOk : kExitInterrupted);
  const char byte = 's';
  [[maybe_unused]] const ssize_t written = ::write(g_signal_pipe[1], &byte, 1);
}

Status install_signals() {
  if (::pipe(g_signal_pipe) != 0)
    return io_error(errno_status("make", "a pipe for signals", errno).message());

  struct sigaction action {};

  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return {};
}

void wait_for_signal() {
  char byte = 0;
  while (::read(g_signal_pipe[0], &byte, 1) < 0 && errno == EINTR) {
  }
}

// A second signal while the server drains ends the process at once.
void exit_at_second_signal() {
  std::thread([] {
    wait_for_signal();
    _exit(kExitInterrupted);
  }).detach();
}

// ---- Parts

class PhaseClock {
 public:
  void end(const std::string& name, int64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    begin_ = now;
    phases_.push_back({name, seconds, bytes});
    log_info(name, ": ", format_seconds(seconds), bytes > 0 ? ", " : "",
             bytes > 0 ? format_memory(bytes) : "");
  }

  const std::vector<StartPhase>& phases() const { return phases_; }

 private:
  static std::string format_seconds(double s) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f s", s);
    return text;
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<StartPhase> phases_;
};

// Defaults of a server, where nobody gave another value.
Result<EngineOptions> serving_options(const CLI::App& app, const EngineOptions& given) {
  EngineOptions o = given;
  const auto silent = [&](const char* flag) { return app.get_option(flag)->results().empty(); };
  const bool gpu = o.device.kind == DeviceKind::kCuda;
  if (gpu && silent("--max-num-seqs")) o.max_num_seqs = 64;
  if (gpu && silent("--max-num-batched-tokens")) o.max_num_batched_tokens = 8192;
  if (silent("--kv-pool")) o.kv_pool = KvSizing::kRemaining;
  return checked_options(o);
}

std::string fingerprint(const Engine& engine) {
  Sha256 hash;
  hash.update(version_json()).update(engine.core().settings().model_fingerprint);
  for (const auto& [name, value] : effective_mode(engine))
    hash.update(name).update(value);
  return str_cat("fp_", to_hex(hash.finish()).substr(0, 12));
}

// What requests change: --chat-template-kwargs, and the flags over them.
Result<ChatOptions> default_chat_options(const ServeFlags& flags) {
  ServedModel silent;
  if (!flags.chat_template_kwargs.empty()) {
    // A flag is at fault, no file.
    Result<Json> kwargs = parse_json(flags.chat_template_kwargs, {}, "--chat-template-kwargs");
    if (!kwargs.ok()) return invalid_argument(kwargs.status().message());
    const Json request = Json::object({{"chat_template_kwargs", *std::move(kwargs)}});
    serve::Fields fields(request);
    const serve::ThinkingAsk ask = serve::read_thinking(fields);
    if (!fields.ok()) {
      return invalid_argument(str_cat("--chat-template-kwargs: ", fields.error()->message));
    }
    silent.chat_options = serve::chat_options(silent, ask);
  }
  ChatOptions options = silent.chat_options;
  if (flags.default_thinking == "on") options.thinking = Thinking::kOn;
  if (flags.default_thinking == "off") options.thinking = Thinking::kOff;
  if (flags.tool_schema == "raw") options.tool_schema = ToolSchema::kRaw;
  return options;
}

// How the server reads messages.
struct ServedChat {
  const ChatFormat* format = nullptr;  // of prompts; null: `refused` says why there is none
  std::string refused;
  ChatOptions options;
};

// The format is what the flags name, else what the checkpoint says.
Result<ServedChat> choose_chat(const ServeFlags& flags,
                               const EngineSource& source,
                               const EngineOptions& options) {
  ServedChat out;
  FATHOM_ASSIGN(out.options, default_chat_options(flags));
  FATHOM_ASSIGN(const std::string name, named_chat_format(flags));
  if (!source.tokenizer) {
    out.refused = "this server has no tokenizer: /v1/completions takes token ids";
    return out;
  }
  Result<const ChatFormat*> format =
      chat_format_of_model(source.model.config.model_type, options.model, *source.tokenizer, name);
  if (format.ok()) {
    out.format = *format;
    return out;
  }
  if (!name.empty()) return std::move(format).status();
  out.refused = in_one_line(format.status().message());
  log_warn("chat routes are refused: ", out.refused);
  return out;
}

std::vector<std::string> served_names(const ServeFlags& flags, const EngineOptions& options) {
  return flags.served_model_names.empty() ? std::vector{short_name(options)}
                                          : flags.served_model_names;
}

ServedModel served_model(const ServeFlags& flags, const Engine& engine, const ServedChat& chat) {
  const EngineOptions& o = engine.options();
  ServedModel m;
  m.names = served_names(flags, o);
  m.any_name = flags.allow_any_model;
  m.tokenizer = engine.tokenizer();
  m.chat_format = chat.format;
  m.no_chat = chat.refused;
  m.chat_options = chat.options;
  m.sampling = engine.default_sampling();
  m.recipe_defaults =
      flags.recipe_defaults && m.chat_format != nullptr && m.chat_format->name().starts_with("v4");
  m.tool_grammar = flags.tool_grammar == "off"    ? ToolGrammar::kOff
                   : flags.tool_grammar == "full" ? ToolGrammar::kFull
                                                  : ToolGrammar::kLight;
  m.reasoning_field = flags.reasoning_field == "reasoning" ? serve::ReasoningField::kReasoning
                      : flags.reasoning_field == "both"    ? serve::ReasoningField::kBoth
                                                        : serve::ReasoningField::kReasoningContent;
  m.strict_api = flags.strict_api;
  for (const WeightSummary& w : engine.model().weights().summary()) {
    if (w.draft) continue;
    m.num_params += w.parameters;
    m.weight_bytes += w.bytes;
    const std::string format(format_name(w.format));
    if (std::ranges::find(m.formats, format) == m.formats.end()) m.formats.push_back(format);
  }
  m.max_model_len = o.max_model_len;
  m.vocab_size = engine.memory_plan().shape.num_ids;
  m.created_s = std::chrono::duration_cast<std::chrono::seconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count();
  m.system_fingerprint = fingerprint(engine);
  return m;
}

serve::HttpSettings http_settings(const ServeFlags& f) {
  serve::HttpSettings s;
  s.host = f.host;
  s.port = f.port;
  s.uds_path = f.uds;
  s.tls_key_file = f.tls_key;
  s.tls_cert_file = f.tls_certificate;
  s.root_path = f.root_path;
  s.cors_origins = f.cors_origins;
  s.allowed_hosts = f.allowed_hosts;
  s.max_connections = f.max_connections;
  s.max_body_bytes = f.max_body_mb << 20;
  s.idle_timeout_ms = static_cast<int64_t>(f.idle_timeout_s * 1e3);
  s.ping_interval_ms = static_cast<int64_t>(f.sse_ping_interval_s * 1e3);
  return s;
}

// Everything that lives as long as the server, in the order in which it is taken apart.
class Running {
 public:
  Running(const ServeFlags& flags, const GlobalFlags& globals) : flags_(flags), globals_(globals) {}

  ~Running() {
    if (watchdog_) watchdog_->stop_looking();
    if (server_) server_->stop_workers();
    http_.reset();     // clients that are left go, while the service still hears it
    service_.reset();  // what it posts to the loop from here on is dropped
    server_.reset();
    watchdog_.reset();  // until here it ends what hangs
  }

  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Status start(EngineOptions options);

  /// Until a signal; then drains.
  void serve();

 private:
  Status open_access();
  Status start_metrics(const ServedModel& model);
  Status start_kv_events(const EngineOptions& options, const MemoryPlan& plan);
  std::string metrics_text() const;
  Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  Status make_ready();
  Status warm_up();
  void start_watchdog();

  const ServeFlags& flags_;
  const GlobalFlags& globals_;
  serve::Access access_;
  serve::LifeCycle life_;
  std::optional<EngineSource> source_;  // from its opening until the engine has it
  ServedChat chat_;
  StepTable step_table_;
  std::unique_ptr<TraceProfiler> profiler_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<serve::ReplayStore> replay_;
  std::unique_ptr<serve::RequestTrace> trace_;
  std::unique_ptr<serve::ServerMetrics> metrics_;
  std::unique_ptr<serve::KvPublisher> kv_events_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<HttpServer> http_;
  serve::Post post_;  // of the event loop, also when that has ended
  std::unique_ptr<EngineService> service_;
  std::unique_ptr<serve::Watchdog> watchdog_;
  PhaseClock clock_;
};

Status Running::open_access() {
  const std::string environment_key = environment("FATHOM_API_KEY");
  const bool is_argument = flags_.api_key != environment_key;  // a flag takes it from there too
  serve::KeySources keys{.file = flags_.api_key_file,
                         .argument = is_argument ? flags_.api_key : std::string(),
                         .environment = environment_key};
  FATHOM_ASSIGN(access_, serve::Access::load(keys));
  if (flags_.admin && access_.open()) {
    return with_hint(invalid_argument("--admin: its routes need an API key, and there is none"),
                     "give --api-key-file FILE, --api-key KEY or FATHOM_API_KEY");
  }
  return serve::check_bind(
      http_settings(flags_), !access_.open(),
      flags_.insecure_no_auth ? serve::NoAuth::kInsecure : serve::NoAuth::kRefused);
}

Result<std::unique_ptr<Engine>> Running::load(const EngineOptions& options) {
  FATHOM_ASSIGN(std::unique_ptr<Engine> engine, Engine::load(options, *std::move(source_)));
  source_.reset();
  clock_.end("load", engine->memory_plan().weight_bytes);
  return engine;
}

Status Running::start(EngineOptions options) {
  FATHOM_TRY(open_access());
  FATHOM_ASSIGN(metrics_, serve::ServerMetrics::create(flags_.metrics_prefix));
  if (flags_.admin && path_kind(flags_.profile_dir) != PathKind::kMissing)
    FATHOM_TRY(check_writable(flags_.profile_dir + "/profile"));
  profiler_ = std::make_unique<TraceProfiler>(flags_.profile_dir);
  if (!flags_.trace_requests.empty()) {
    FATHOM_ASSIGN(trace_, serve::RequestTrace::open(flags_.trace_requests));
    log_warn("--trace-requests writes what users write to ", flags_.trace_requests);
  }
  // What cannot be served is refused before anybody is told that it is.
  FATHOM_ASSIGN(source_, EngineSource::open(options));
  clock_.end("open", 0);
  FATHOM_ASSIGN(chat_, choose_chat(flags_, *source_, options));
  FATHOM_ASSIGN(const MemoryPlan plan, Engine::plan(options, *source_));
  if (plan.max_model_len < 2) {
    return invalid_argument(str_cat("--max-model-len is ", plan.max_model_len,
                                    ", expected at least 2: a token of a prompt and one of an "
                                    "answer"));
  }
  if (!flags_.kv_events.empty()) FATHOM_TRY(start_kv_events(options, plan));
  clock_.end("plan", 0);
  const serve::Post post = [this](std::function<void()> f) { post_(std::move(f)); };
  serve::ServerParts parts;
  parts.post = post;
  parts.life = &life_;
  parts.version_json = version_json();
  parts.measure_step = [this](Engine& engine, std::string_view phase) {
    return step_table_.measure(engine, phase);
  };
  parts.metrics_text = [this] { return metrics_text(); };
  parts.count_answer = [this](int64_t num_choices) { metrics_->on_answer(num_choices); };
  const auto count_error = [this](const serve::ApiError& error) { metrics_->on_error(error.code); };
  parts.count_error = count_error;
  parts.count_repairs = [this](const AnswerRepairs& repairs) { metrics_->on_repairs(repairs); };
  parts.profiler = profiler_.get();
  parts.trace = trace_.get();
  server_ = std::make_unique<Server>(
      serve::ServerSettings{.access = access_,
                            .metrics = flags_.metrics,
                            .metrics_without_key = flags_.metrics_no_auth,
                            .shared_prefix_cache = flags_.shared_prefix_cache,
                            .admin = flags_.admin,
                            .stall_timeout_s = flags_.stall_timeout_s},
      std::move(parts));
  FATHOM_ASSIGN(
      http_, HttpServer::start(
                 http_settings(flags_), [this](const serve::ExchangePtr& e) { server_->handle(e); },
                 [this](const serve::HttpRequest& head) { return server_->refuse_head(head); },
                 count_error));
  post_ = http_->post();
  log_info("listening on ", http_->address(), ", loading ", options.model);
  service_ = std::make_unique<EngineService>(
      [this, options] { return load(options); },
      serve::ServiceSettings{
          .post = post, .observer = metrics_.get(), .after_step = [this](Engine& engine) {
            profiler_->after_step(engine);
            if (kv_events_) kv_events_->end_step();
          }});
  server_->set_service(*service_);
  start_watchdog();
  FATHOM_TRY(service_->wait_until_loaded());
  return make_ready();
}

Status Running::start_metrics(const ServedModel& model) {
  const Engine& engine = service_->engine();
  const MemoryPlan& plan = engine.memory_plan();
  const bool gpu = engine.machine().gpu != nullptr;
  serve::MetricsFacts facts;
  facts.model_name = model.name();
  facts.version = FATHOM_VERSION;
  facts.commit = build_commit();
  facts.arch = gpu ? str_cat("sm_", engine.machine().gpu->info().sm)
                   : str_cat("x86-64/", isa_name(engine.machine().isa));
  facts.block_size = plan.cache.block_tokens;
  (gpu ? facts.num_gpu_blocks : facts.num_cpu_blocks) = plan.num_blocks;
  facts.cache_dtype = format_name(engine.model().options().cache_format());
  facts.max_model_len = model.max_model_len;
  for (const auto& [kind, bytes] : memory_regions(plan))
    facts.memory.push_back({find_option("device")->get(engine.options()), kind, bytes});
  for (const StartPhase& phase : clock_.phases())
    facts.startup.push_back({phase.name, phase.seconds});
  const TokenCost cost = token_cost(engine.model());
  facts.flops_per_token = cost.flops;
  facts.bytes_per_step = cost.bytes_per_step;
  facts.bytes_per_token = cost.bytes_per_token;
  return metrics_->open(std::move(facts));
}

Status Running::start_kv_events(const EngineOptions& options, const MemoryPlan& plan) {
  serve::KvPublisherSettings settings;
  if (!options.prefix_cache) {
    log_warn(
        "--kv-events tells of cached prefixes, and --no-prefix-cache keeps none: nothing is sent");
  }
  settings.endpoint = flags_.kv_events;
  settings.replay_endpoint = flags_.kv_events_replay;
  settings.pod_id = flags_.pod_id;
  if (settings.pod_id.empty()) settings.pod_id = environment("POD_IP");
  if (settings.pod_id.empty()) settings.pod_id = environment("POD_NAME");
  settings.model_name = served_names(flags_, options).front();
  settings.frame.block_size = plan.cache.block_tokens;
  settings.frame.medium = options.device.kind == DeviceKind::kCuda ? "GPU" : "CPU";
  if (flags_.kv_events_form == "array") settings.frame.form = serve::KvEventForm::kArray;
  FATHOM_ASSIGN(kv_events_, serve::KvPublisher::create(std::move(settings)));
  log_info("KV events on ", kv_events_->endpoint(), ", topic ", kv_events_->topic());
  return {};
}

std::string Running::metrics_text() const {
  serve::MetricsFigures now;
  now.service = service_->stats();
  now.now_ns = monotonic_ns();
  const auto stall_ns = static_cast<int64_t>(flags_.stall_timeout_s * 1e9);
  now.healthy = life_.state() != ServerState::kFaulted &&
                serve::progress_of(now.service, now.now_ns, stall_ns) == serve::Progress::kGoing;
  now.connections = http_->counts().connections;
  if (grammars_) now.grammar = grammars_->stats();
  if (kv_events_) {
    now.kv_batches_published = kv_events_->num_published();
    now.kv_batches_dropped = kv_events_->num_dropped();
  }
  return metrics_->text(now);
}

// One token through everything: memory is touched, graphs are captured.
Status Running::warm_up() {
  Status result;
  service_->with_engine([&](Engine& engine) {
    const int32_t token = engine.tokenizer() != nullptr && engine.tokenizer()->bos_id()
                              ? *engine.tokenizer()->bos_id()
                              : 0;
    const std::vector<int32_t> prompt{token};
    SamplingParams params = greedy_sampling();
    params.max_tokens = std::min<int64_t>(2, engine.memory_plan().max_model_len - 1);
    params.ignore_eos = true;
    const Result<Completion> answer = engine.generate(prompt, params);
    if (!answer.ok()) result = internal_error(answer.status().message());
  });
  clock_.end("warm-up", 0);
  return result;
}

Status Running::make_ready() {
  FATHOM_TRY(warm_up());
  const Engine& engine = service_->engine();
  ServedModel model = served_model(flags_, engine, chat_);
  if (grammar_available() && engine.tokenizer() != nullptr) {
    FATHOM_ASSIGN(grammars_,
                  GrammarCompiler::create(*engine.tokenizer(), engine.memory_plan().shape.num_ids,
                                          engine.core().settings().end_ids));
    model.grammars = grammars_.get();
    clock_.end("grammar", 0);
  }
  FATHOM_TRY(start_metrics(model));
  if (kv_events_) {
    service_->with_engine([&](Engine& e) { e.core().set_prefix_observer(kv_events_.get()); });
  }
  const std::string info =
      server_info_json(engine, model, clock_.phases(), globals_.effective_config());
  if (model.chat_format != nullptr) {
    replay_ = std::make_unique<serve::ReplayStore>(
        *engine.tokenizer(), model.chat_format->answer_grammar(model.chat_options));
    model.replay = replay_.get();
  }
  server_->set_ready(std::move(model), info);
  return {};
}

void Running::start_watchdog() {
  watchdog_ = std::make_unique<serve::Watchdog>(
      serve::WatchdogSettings{.stats = [this] { return service_->stats(); },
                              .life = &life_,
                              .stall_timeout_s = flags_.stall_timeout_s,
                              .stall_grace_s = std::min(30.0, flags_.stall_timeout_s),
                              .exit = [](int code) { _exit(code); }});
}

void Running::serve() {
  g_serving.store(true);
  std::printf("ready %s\n", http_->address().c_str());
  std::fflush(stdout);
  wait_for_signal();
  exit_at_second_signal();
  log_info("shutting down: running requests have ", flags_.drain_timeout_s, " s to end");
  constexpr double kTeardownS = 5;
  watchdog_->end_by(monotonic_ns() +
                    static_cast<int64_t>((flags_.drain_timeout_s + kTeardownS) * 1e9));
  http_->stop_accepting();
  server_->drain(flags_.drain_timeout_s);
  // No orderly teardown after a fault.
  if (life_.state() == ServerState::kFaulted || service_->stats().faulted) _exit(kExitEngineFault);
  if (!http_->wait_idle(2000)) log_warn("some clients did not take their last bytes");
}

Result<int> serve_model(const CLI::App& app, ServeFlags flags, const GlobalFlags& globals) {
  FATHOM_TRY(check_serve_flags(flags));
  FATHOM_ASSIGN(EngineOptions options, serving_options(app, globals.engine));
  if (flags.stall_timeout_s == 0) {
    flags.stall_timeout_s = options.device.kind == DeviceKind::kCuda ? 60 : 600;
  }
  FATHOM_TRY(install_signals());
  // Prompts and keys would be in it.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  Running running(flags, globals);
  FATHOM_TRY(running.start(std::move(options)));
  running.serve();
  return kExitOk;
}

}  // namespace

Command add_serve(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* sub = app.add_subcommand(
      "serve", "Serve a model over HTTP: the OpenAI and Anthropic APIs, and a page");
  add_serve_flags(*sub, *flags);
  add_engine_flags(
      *sub, globals.engine, kServe,
      {OptionGroup::kModel, OptionGroup::kBuiltIn, OptionGroup::kDevice, OptionGroup::kNumbers,
       OptionGroup::kMemory, OptionGroup::kRequests, OptionGroup::kDrafts, OptionGroup::kKernels});
  sub->get_option("--kv-pool")->default_str("remaining");  // serving_options()
  return {sub, [flags, sub](const GlobalFlags& given) { return serve_model(*sub, *flags, given); }};
}

}  // namespace fathom::cli
