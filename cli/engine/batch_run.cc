#include "cli/engine/batch_run.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "cli/engine/completion_json.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"
#include "fathom/base/log.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/clock.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"

namespace fathom::cli {
namespace {

struct PromptLine {
  std::string id;
  std::string prompt;
  std::vector<int32_t> tokens;
  uint64_t number = 0;  // of its line, from 0
};

// Calls `read(line, place)` for each line that is not empty; `place` is "FILE: line 3".
template <class Read>
Status for_each_line(std::string_view text, const std::string& path, const Read& read) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    ++number;
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    FATHOM_TRY(read(line, number, str_cat(path, ": line ", number)));
  }
  return {};
}

Result<std::string> id_of(const Json& object, int64_t number, const std::string& place) {
  const Json* id = object.find("id");
  if (id == nullptr) return str_cat(number);
  if (id->is_string()) return id->as_string();
  if (id->is_int()) return str_cat(id->as_int());
  return corrupt(str_cat(place, ": id is ", id->kind_name(), ", expected a text or an integer"));
}

Result<PromptLine> read_prompt_line(std::string_view line,
                                    int64_t number,
                                    const std::string& place) {
  FATHOM_ASSIGN(const Json object, parse_json(line, {.max_bytes = kMaxInputBytes}, place));
  if (!object.is_object()) {
    return corrupt(str_cat(place, ": is ", object.kind_name(), ", expected {\"prompt\": \"...\"}"));
  }
  for (const auto& [key, value] : object.members()) {
    if (key != "id" && key != "prompt") {
      return corrupt(str_cat(place, ": has \"", key, "\", expected id and prompt alone"));
    }
  }
  const Json* prompt = object.find("prompt");
  if (prompt == nullptr || !prompt->is_string() || prompt->as_string().empty()) {
    return corrupt(str_cat(place, ": prompt is ",
                           prompt == nullptr     ? "absent"
                           : prompt->is_string() ? "empty"
                                                 : prompt->kind_name(),
                           ", expected some text"));
  }
  PromptLine out;
  FATHOM_ASSIGN(out.id, id_of(object, number, place));
  out.prompt = prompt->as_string();
  out.number = static_cast<uint64_t>(number) - 1;
  return out;
}

Result<std::vector<PromptLine>> read_prompts(const std::string& path) {
  FATHOM_ASSIGN(const std::string text, read_text(path));
  std::vector<PromptLine> out;
  std::set<std::string> ids;
  FATHOM_TRY(for_each_line(
      text, path, [&](std::string_view line, int64_t number, const std::string& place) -> Status {
        FATHOM_ASSIGN(PromptLine prompt, read_prompt_line(line, number, place));
        if (!ids.insert(prompt.id).second) {
          return corrupt(str_cat(place, ": id \"", prompt.id, "\" appears twice"));
        }
        out.push_back(std::move(prompt));
        return {};
      }));
  if (out.empty()) return corrupt(str_cat(path, ": has no line with a prompt"));
  return out;
}

// The answers that are there, and the bytes up to the last whole line: a run that was killed may
// have left half a line.
struct EarlierAnswers {
  std::set<std::string> ids;
  int64_t failed = 0;  // of them
  int64_t bytes = 0;
};

Result<EarlierAnswers> read_answers(const std::string& path) {
  EarlierAnswers out;
  if (path_kind(path) == PathKind::kMissing) return out;
  constexpr int64_t kMaxBytes = int64_t{4} << 30;
  FATHOM_ASSIGN(std::string text, read_file(path, kMaxBytes));
  const size_t whole = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
  constexpr std::string_view kBegin = R"({"schema":"fathom.run/1")";
  if (!std::string_view(text).substr(whole).starts_with(kBegin.substr(0, text.size() - whole))) {
    return corrupt(str_cat(path, ": its last line is no answer of fathom.run/1 and has no end"));
  }
  text.resize(whole);
  out.bytes = static_cast<int64_t>(text.size());
  FATHOM_TRY(for_each_line(
      text, path, [&](std::string_view line, int64_t number, const std::string& place) -> Status {
        FATHOM_ASSIGN(const Json answer, parse_json(line, {.max_bytes = kMaxInputBytes}, place));
        const Json* schema = answer.find("schema");
        if (schema == nullptr || !schema->is_string() || schema->as_string() != "fathom.run/1") {
          return corrupt(str_cat(place,
                                 ": is no answer of fathom.run/1\nhint: name another file with "
                                 "--out, or remove this one"));
        }
        FATHOM_ASSIGN(std::string id, id_of(answer, number, place));
        out.ids.insert(std::move(id));
        const Json* finish = answer.find("finish_reason");
        out.failed += finish != nullptr && finish->is_string() &&
                      finish->as_string() == finish_reason_name(FinishReason::kNumericalError);
        return {};
      }));
  return out;
}

// One answer on its way.
struct Running {
  const PromptLine* line = nullptr;
  SamplingParams params;
  Completion answer;
  int64_t begin_ns = 0;
};

class Batch {
 public:
  Batch(Engine& engine,
        const SamplingParams& params,
        const std::string& model,
        std::vector<PromptLine> lines,
        AppendFile out,
        bool quiet)
      : engine_(engine),
        params_(params),
        model_(model),
        lines_(std::move(lines)),
        out_(std::move(out)),
        bar_("answering", "prompts", quiet) {}

  // The engine outlives this, and what runs calls back.
  ~Batch() {
    for (const RequestId id : std::set<RequestId>(active_))
      engine_.cancel(id);
  }

  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// The requests wait in the engine, which runs as many at once as it was planned for.
  Result<int> run(int64_t at_once) {
    const auto total = static_cast<int64_t>(lines_.size());
    while (done_ < total) {
      while (next_ < lines_.size() && static_cast<int64_t>(next_) - done_ < 2 * at_once)
        FATHOM_TRY(submit(lines_[next_++]));
      FATHOM_TRY(engine_.step());
      FATHOM_TRY(std::move(write_error_));
      bar_.update(done_, total);
      if (take_interrupt()) return kExitInterrupted;
    }
    return failed_ > 0 ? kExitEngineFault : kExitOk;
  }

 private:
  Status submit(const PromptLine& line) {
    auto running = std::make_shared<Running>();
    running->line = &line;
    running->params = params_;
    running->params.seed = *params_.seed + line.number;
    running->answer.prompt_tokens = static_cast<int64_t>(line.tokens.size());
    running->begin_ns = monotonic_ns();
    Request request;
    request.prompt = line.tokens;
    request.sampling = running->params;
    request.on_token = [this, running](const TokenEvent& event) { add(*running, event); };
    FATHOM_ASSIGN(const RequestId id, engine_.core().submit(std::move(request)));
    active_.insert(id);
    return {};
  }

  void add(Running& running, const TokenEvent& event) {
    Completion& answer = running.answer;
    const double seconds = static_cast<double>(monotonic_ns() - running.begin_ns) * 1e-9;
    if (event.token >= 0) {
      if (answer.tokens.empty()) answer.first_token_s = seconds;
      answer.tokens.push_back(event.token);
    }
    answer.text += event.text;
    answer.cached_tokens = event.cached_tokens;
    answer.finish = event.finish;
    if (event.finish == FinishReason::kNone) return;
    active_.erase(event.id);
    if (event.finish == FinishReason::kAborted) return;  // by Ctrl-C: asked again another time
    answer.total_s = seconds;
    ++done_;
    if (!finish_status(event.finish).ok()) ++failed_;
    const CompletionFacts facts{.model = model_,
                                .id = running.line->id,
                                .prompt = {},
                                .params = running.params,
                                .answer = answer};
    Status written = out_.append_line(completion_json(facts, JsonStyle::kCompact));
    if (write_error_.ok()) write_error_ = std::move(written);
  }

  Engine& engine_;
  const SamplingParams& params_;
  const std::string& model_;
  const std::vector<PromptLine> lines_;
  AppendFile out_;
  Progress bar_;
  std::set<RequestId> active_;
  size_t next_ = 0;
  int64_t done_ = 0;
  int64_t failed_ = 0;
  Status write_error_;
};

}  // namespace

Result<int> run_batch(const BatchFlags& flags,
                      const SamplingFlags& sampling,
                      const GlobalFlags& globals) {
  FATHOM_ASSIGN(std::vector<PromptLine> lines, read_prompts(flags.prompts));
  FATHOM_ASSIGN(const EarlierAnswers earlier, read_answers(flags.out));
  const size_t all = lines.size();
  std::erase_if(lines, [&](const PromptLine& line) { return earlier.ids.contains(line.id); });
  if (!globals.quiet && lines.size() < all) {
    std::fprintf(stderr, "fathom: %s has %zu of %zu answers\n", flags.out.c_str(),
                 all - lines.size(), all);
  }
  if (earlier.failed > 0) {
    log_warn(flags.out, ": ", earlier.failed, " answers ended with numerical_error; remove their ",
             "lines, and they are asked for again");
  }
  const int without_new = earlier.failed > 0 ? kExitEngineFault : kExitOk;
  if (lines.empty()) return without_new;
  FATHOM_ASSIGN(TextModel model, open_text_model(globals.engine, flags.at_once));
  const Tokenizer& tokenizer = *model.source.tokenizer;
  FATHOM_ASSIGN(SamplingParams params,
                sampling_params(sampling, sampling_defaults(model.source.model.generation)));
  FATHOM_TRY(validate(params, tokenizer.vocab_size()));
  int64_t longest = 0;
  uint64_t longest_line = 0;
  for (PromptLine& line : lines) {
    line.tokens = tokenizer.encode(
        line.prompt, {.add_bos = AddBos::kAsConfigured, .added_tokens = AddedTokens::kParse});
    const auto length = static_cast<int64_t>(line.tokens.size());
    if (length > longest) longest_line = line.number + 1;
    longest = std::max(longest, length);
  }
  const int64_t context = model.source.model.config.max_position_embeddings;
  const int64_t given = model.options.max_model_len;
  const bool is_given = given > 0 && given < context;
  const int64_t needed = longest + params.max_tokens.value_or(1);
  if (const int64_t room = is_given ? given : context; needed > room) {
    return invalid_argument(
        str_cat(flags.prompts, ": line ", longest_line, ": the prompt of ", longest,
                " tokens and its answer need room for ", needed, ", but ",
                is_given ? "--max-model-len is " : "the model's context holds ", room));
  }
  if (model.options.max_model_len == 0 && params.max_tokens) model.options.max_model_len = needed;
  FATHOM_ASSIGN(AppendFile out, AppendFile::open(flags.out, earlier.bytes));
  FATHOM_ASSIGN(const auto engine, load_engine(std::move(model), globals, longest));
  if (!params.seed) params.seed = engine->options().seed;
  install_interrupt_handler();
  Batch batch(*engine, params, globals.engine.model, std::move(lines), std::move(out),
              globals.quiet);
  FATHOM_ASSIGN(const int code, batch.run(flags.at_once));
  return code == kExitOk ? without_new : code;
}

}  // namespace fathom::cli
