#include "cli/serve_client/bench_load.h"

#include <cmath>
#include <cstdio>
#include <ctime>

#include "cli/engine/text_engine.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/serve_client/load_run.h"
#include "cli/serve_client/load_source.h"
#include "cli/serve_client/server_facts.h"
#include "fathom/api/open.h"
#include "fathom/base/log.h"
#include "fathom/bench/files/report.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "fathom/serve/load/load_report.h"

namespace fathom::cli {
namespace {

constexpr std::string_view kMarkdownFile = "serve.md", kJsonFile = "serve.json",
                           kRequestsFile = "requests.csv";

std::string local_date(std::time_t now) {
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return {text, length};
}

std::string_view backend_name(serve::TextRoute route) {
  switch (route) {
    case serve::TextRoute::kCompletions:
      return "openai";
    case serve::TextRoute::kChat:
      return "openai-chat";
    case serve::TextRoute::kMessages:
      return "anthropic";
  }
  return "openai";
}

// The server must answer small requests before it gets others.
Status warm_up(serve::HttpClient& client, const LoadSource& source, int64_t count) {
  LoadPlan plan;
  plan.route = source.plan.route;
  plan.requests.push_back({.request = source.warmup, .prompt_tokens = 0, .at_ns = 0});
  for (int64_t i = 0; i < count; ++i) {
    const LoadOutcome outcome = LoadRun(client, plan, {}, {}).run();
    if (outcome.interrupted) return cancelled("interrupted while warming up");
    const serve::LoadRecord& record = outcome.records.front();
    if (record.ok) continue;
    return unavailable(str_cat("the request that warms up failed: ", text_route_path(plan.route),
                               " at ", client.url().str(), ": ", record.error_code, ": ",
                               record.error));
  }
  return {};
}

std::vector<JsonMember> own_members(const BenchServeFlags& flags,
                                    const GlobalFlags& globals,
                                    const serve::HttpClient& client,
                                    const LoadSource& source,
                                    const LoadOutcome& outcome) {
  const Result<Isa> isa = usable_isa(globals.engine);
  const BenchConditions host =
      bench_conditions(isa.ok() ? *isa : Isa::kPortable, thread_count(globals.engine));
  const auto text = [](std::string_view t) { return Json::string(std::string(t)); };
  std::vector<JsonMember> own{
      {"fathom_version", text(host.fathom_version)},
      {"commit", text(host.commit)},
      {"timestamp", text(host.timestamp)},
      {"client", Json::object({{"cpu", text(host.host_cpu)},
                               {"cores", Json::integer(host.host_cores)},
                               {"mem_bytes", Json::integer(host.host_mem_bytes)}})},
      {"base_url", text(client.url().str())},
      {"endpoint", text(text_route_path(source.plan.route))},
      {"dataset", text(flags.dataset)},
      {"seed", flags.seed <= INT64_MAX ? Json::integer(static_cast<int64_t>(flags.seed))
                                       : Json::unsigned_integer(flags.seed)},
      {"ignore_eos", Json::boolean(flags.ignore_eos)},
      {"left_out", Json::integer(outcome.left_out)},
      {"interrupted", Json::boolean(outcome.interrupted)}};
  if (flags.dataset == "agent") {
    const serve::AgentOptions& a = flags.agent;
    own.emplace_back("agent",
                     Json::object({{"sessions", Json::integer(a.sessions)},
                                   {"turns", Json::integer(a.turns)},
                                   {"projects", Json::integer(a.projects)},
                                   {"shared_prefix_len", Json::integer(a.shared_prefix_len)},
                                   {"task_len", Json::integer(a.task_len)},
                                   {"tool_result_len", Json::number(a.tool_result_len)},
                                   {"tool_result_sigma", Json::number(a.tool_result_sigma)},
                                   {"tool_result_max", Json::integer(a.tool_result_max)},
                                   {"think_time_s", Json::number(a.think_time_s)},
                                   {"keep_prefixes", Json::boolean(flags.keep_prefixes)}}));
  }
  return own;
}

Status write_outputs(const BenchServeFlags& flags, const serve::LoadReport& report) {
  const auto detail = flags.save_detailed ? serve::LoadDetail::kRequests : serve::LoadDetail::kSums;
  std::string text = load_report_markdown(report);
  if (!flags.out_dir.empty()) {
    FATHOM_TRY(make_directories(flags.out_dir));
    const auto write = [&](std::string_view name, const std::string& content) {
      return write_file(join_path(flags.out_dir, name), content);
    };
    FATHOM_TRY(write(kMarkdownFile, text));
    FATHOM_TRY(write(kJsonFile, load_report_json(report, detail)));
    FATHOM_TRY(write(kRequestsFile, load_report_csv(report)));
    if (flags.out_file.empty()) return {};
  }
  if (flags.output == "json") text = load_report_json(report, detail);
  if (flags.output == "csv") text = load_report_csv(report);
  if (!flags.out_file.empty()) return write_file(flags.out_file, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

Status check_outputs(const BenchServeFlags& flags) {
  if (!flags.out_dir.empty()) {
    FATHOM_TRY(check_output_directory(flags.out_dir, flags.force ? Overwrite::kYes : Overwrite::kNo,
                                      {kMarkdownFile, kJsonFile, kRequestsFile}));
  }
  return flags.out_file.empty() ? Status{} : check_writable(flags.out_file);
}

LoadOutcome run_with_progress(serve::HttpClient& client,
                              const LoadPlan& plan,
                              const LoadLimits& limits,
                              bool quiet) {
  Progress progress("sending", "requests", quiet);
  const int64_t count = plan.num_requests();
  LoadOutcome outcome =
      LoadRun(client, plan, limits, [&](int64_t ended, int64_t running, int64_t failed) {
        progress.update(ended, count, str_cat(running, " running, ", failed, " failed"));
      }).run();
  progress.erase();
  return outcome;
}

void add_notes(const LoadOutcome& outcome, bool simulated, serve::LoadReport& report) {
  if (simulated) {
    report.notes.emplace_back(
        "simulated acceptance: the server says that its drafts are accepted by a rule, "
        "not by the model");
  }
  if (outcome.left_out > 0) {
    report.notes.push_back(str_cat(outcome.left_out, " planned requests were not sent or not ended",
                                   outcome.interrupted ? " (interrupted)" : ""));
  }
}

}  // namespace

Result<int> run_bench_load(const BenchServeFlags& flags, const GlobalFlags& globals) {
  FATHOM_TRY(check_outputs(flags));
  FATHOM_TRY(check_load_source(flags));
  FATHOM_ASSIGN(const serve::GoodputTargets targets, serve::parse_goodput(flags.goodput));
  Result<std::unique_ptr<serve::HttpClient>> made = connect_client(flags.base_url, flags.server);
  if (!made.ok()) return std::move(made).status().add_context("--base-url");
  serve::HttpClient& client = **made;
  FATHOM_ASSIGN(const ModelFacts model, find_model(client, flags.model));
  FATHOM_ASSIGN(const LoadSource source, make_load_source(flags, model, client));
  install_interrupt_handler();
  FATHOM_TRY(warm_up(client, source, flags.num_warmups));
  const bool simulated = simulates_acceptance(client);
  const auto drafts_before = draft_counters_there(client);
  const std::string date = local_date(std::time(nullptr));
  const LoadLimits limits{.max_concurrency = flags.max_concurrency, .duration_s = flags.duration_s};
  LoadOutcome outcome = run_with_progress(client, source.plan, limits, globals.quiet);
  const auto drafts_after = draft_counters_there(client);

  serve::LoadReport report;
  report.date = date;
  report.backend = backend_name(source.plan.route);
  report.model_id = model.id;
  report.tokenizer_id = model.root;
  report.num_prompts = source.plan.num_requests();
  report.request_rate = source.request_rate;
  report.burstiness = flags.burstiness;
  if (flags.max_concurrency > 0) report.max_concurrency = flags.max_concurrency;
  report.has_goodput = targets.any();
  report.dataset = flags.dataset;
  report.metrics = measure_load(outcome.records, outcome.duration_s, targets,
                                flags.dataset == "agent" ? flags.agent.turns : 0);
  if (drafts_before && drafts_after) report.drafts = *drafts_after - *drafts_before;
  report.own = own_members(flags, globals, client, source, outcome);
  report.notes = source.notes;
  add_notes(outcome, simulated, report);
  report.records = std::move(outcome.records);
  FATHOM_TRY(write_outputs(flags, report));
  if (outcome.interrupted) return kExitInterrupted;
  if (report.metrics.completed > 0) return kExitOk;
  for (const serve::LoadRecord& record : report.records) {
    log_error("no request was answered: ", record.error_code, ": ", record.error);
    break;
  }
  return kExitCheckFailed;
}

}  // namespace fathom::cli
