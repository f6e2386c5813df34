#include "cli/serve/step_profiler.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "fathom/base/log.h"
#include "fathom/os/clock.h"
#include "fathom/report/trace_files.h"
#include "fathom/serve/fields.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

constexpr int64_t kMostSteps = 10'000;
constexpr int64_t kDefaultSteps = 10;
constexpr int64_t kMostCallsOfAStep = 1 << 15;

bool is_plain_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         std::ranges::all_of(name, plain);
}

}  // namespace

Result<std::string> TraceProfiler::start(Engine& engine, const Json& request) {
  if (recorder_) return invalid_argument("a profile is being recorded; POST /stop_profile ends it");
  serve::Fields fields(request);
  const int64_t steps = fields.integer("steps", 1, kMostSteps).value_or(kDefaultSteps);
  const std::optional<std::string> output = fields.text("output", 64);
  fields.ignore("kernels");
  if (!fields.ok()) return invalid_argument(fields.error()->message);
  const auto is_taken = [this](const std::string& name) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::path(directory_) / name, error);
  };
  output_ = output.value_or("profile-1");
  for (int n = 2; !output && is_taken(output_); ++n)
    output_ = str_cat("profile-", n);
  if (!is_plain_name(output_)) {
    return invalid_argument(str_cat("output: found \"", output_,
                                    "\", expected a name of letters, digits, \".\", \"_\" and "
                                    "\"-\"; it becomes a folder of --profile-dir"));
  }
  if (is_taken(output_)) {
    return invalid_argument(
        str_cat("output: \"", output_, "\" is in --profile-dir, expected a name that is not"));
  }
  failure_ = {};
  recorder_ = std::make_unique<Recorder>(RecordLevel::kTimed, kMostCallsOfAStep);
  phases_ = std::make_unique<GatheredPhases>(engine.model().config().symbols());
  steps_left_ = steps;
  begin_ns_ = last_end_ns_ = monotonic_ns();
  prompt_tokens_ = engine.stats().prompt_tokens;
  generated_tokens_ = engine.stats().generated_tokens;
  engine.core().set_recorder(recorder_.get());
  return str_cat("{\"steps\":", steps, ",\"output\":\"", output_, "\"}");
}

// The step that just ended, as one of its kind.
Status TraceProfiler::keep(Engine& engine) {
  const std::vector<OpRecord> records = recorder_->records();
  if (records.empty()) return {};
  const CoreStats stats = engine.stats();
  const int64_t prompt = stats.prompt_tokens - prompt_tokens_;
  const int64_t all = prompt + stats.generated_tokens - generated_tokens_;
  prompt_tokens_ = stats.prompt_tokens;
  generated_tokens_ = stats.generated_tokens;
  const char* const name = prompt == 0 ? "decode" : "prefill";
  const char* const title = prompt == 0 ? "Decode" : "Prompts, with the decodes beside them";
  const TraceStep step{.start_ns = records.front().start_ns,
                       .end_ns = records.back().end_ns,
                       .tokens = std::max<int64_t>(all, 1)};
  Status added = phases_->add(name, title, *recorder_, records, step);
  recorder_->clear();
  return added;
}

void TraceProfiler::after_step(Engine& engine) {
  if (!recorder_) return;
  if (Status s = keep(engine); !s.ok()) {
    log_error("profile: ", s.message());
    engine.core().set_recorder(nullptr);
    recorder_.reset();
    failure_ = std::move(s);
    return;
  }
  if (--steps_left_ > 0) return;
  const Result<std::string> written = write(engine);
  if (!written.ok()) log_error("profile: ", written.status().message());
}

Result<std::string> TraceProfiler::write(Engine& engine) {
  engine.core().set_recorder(nullptr);
  recorder_.reset();
  Recording r;
  r.title = r.model =
      engine.options().model.empty() ? engine.options().preset : engine.options().model;
  r.command = "fathom serve, POST /start_profile";
  r.config = engine.model().config();
  r.symbols = r.config.symbols();
  r.weights = engine.model().weights().summary();
  r.settings.emplace_back("requests", "those of clients");
  r.timed = true;
  r.has_variants = true;
  r.begin_ns = begin_ns_;
  r.phases = phases_->take();
  phases_.reset();
  if (r.phases.empty()) {
    return invalid_argument("no step ran while the profile was recorded; send requests meanwhile");
  }
  const TraceFiles made = make_trace_files(r, {}, SourceLinks{}, nullptr, TraceDetail::kKernels);
  for (const std::string& failure : made.failures)
    log_warn("profile: ", failure);
  const std::string folder = str_cat(directory_, "/", output_);
  FATHOM_TRY(write_trace_directory(made.files, folder, Replace::kNo));
  log_info("profile: wrote ", folder);
  JsonWriter w;
  w.begin_object().key("output").string(output_).end_object();
  return w.take();
}

Result<std::string> TraceProfiler::stop(Engine& engine) {
  if (!failure_.ok()) return std::exchange(failure_, Status{});
  if (!recorder_) return invalid_argument("no profile is being recorded; POST /start_profile");
  return write(engine);
}

}  // namespace fathom::cli
