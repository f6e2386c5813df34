// eval: perplexity of a text, comparison with reference outputs, logits of given ids.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/config/lists.h"
#include "cli/engine/model_setup.h"
#include "cli/engine/text_blocks.h"
#include "cli/eval/eval_output.h"
#include "cli/flags.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"
#include "cli/not_empty.h"
#include "fathom/base/log.h"
#include "fathom/os/atomic_file.h"
#include "fathom/runtime/eval/compare_logits.h"
#include "fathom/runtime/eval/evaluate.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/tokenizer.h"
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom::cli {
namespace {

constexpr int64_t kGreedyTokens = 64;

struct Flags {
  EngineOptions engine;
  std::string text;
  std::string vectors;
  std::string ids;
  std::string logits_out;
  std::string compare;
  std::vector<std::string> compare_options;
  bool by_layer = false;
  bool json = false;
  std::optional<double> max_kl;    ///< nats
  std::optional<double> min_top1;  ///< share
};

// What was found, and the exit code of what was missed.
template <class Found>
int print(const Found& found, const Flags& flags, const std::vector<std::string>& missed = {}) {
  std::printf("%s", shown(found, flags.json ? EvalForm::kJson : EvalForm::kText).c_str());
  return missed.empty() ? kExitOk : kExitCheckFailed;
}

Result<std::unique_ptr<ForwardSession>> make_session(const Model& model,
                                                     const Machine& machine,
                                                     const EngineOptions& engine,
                                                     int64_t longest,
                                                     bool draft) {
  SessionOptions options;
  options.cuda_graphs = engine.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  options.pins = engine.pins;
  options.max_tokens = longest;
  options.prefill_logits = LogitRows::kAll;
  options.draft = draft;
  return ForwardSession::create(model, machine.compute(), options);
}

Result<int> eval_perplexity(const Flags& flags,
                            const OpenedModel& opened,
                            const Machine& machine,
                            bool quiet) {
  // The first Ctrl-C gives what is scored so far.
  install_interrupt_handler();
  FATHOM_ASSIGN(const TextTokens text, read_tokens(opened.directory, flags.text));
  FATHOM_ASSIGN(const auto session,
                make_session(*opened.model, machine, flags.engine, kTextBlock + 1, false));
  bool interrupted = false;
  Progress bar("scoring", "tokens", quiet);
  FATHOM_ASSIGN(const Perplexity result, perplexity(*session, text.ids, text.bos, kTextBlock,
                                                    [&](int64_t done, int64_t total) {
                                                      bar.update(done, total);
                                                      interrupted = take_interrupt();
                                                      return !interrupted;
                                                    }));
  bar.erase();
  const auto num_ids = static_cast<int64_t>(text.ids.size());
  const double share = static_cast<double>(result.tokens) / static_cast<double>(num_ids);
  const PerplexityFound found{
      .model = opened.title,
      .result = result,
      .text_bytes = std::llround(share * static_cast<double>(text.text_bytes))};
  const int code = print(found, flags);
  if (!interrupted) return code;
  log_warn("interrupted: this is of the first ", result.tokens, " of ", num_ids, " tokens");
  return kExitInterrupted;
}

// --vectors names the golden.json for people; the numbers lie in golden.safetensors beside it.
std::string tensor_file_of(const std::string& vectors) {
  constexpr std::string_view kJson = ".json";
  if (!vectors.ends_with(kJson)) return vectors;
  return vectors.substr(0, vectors.size() - kJson.size()) + ".safetensors";
}

// The formats that a comparison ran with.
std::string numbers_of(const Model& model) {
  const ModelOptions& o = model.options();
  const ModelConfig& c = model.config();
  std::string out = str_cat("activations ", format_name(o.activations), ", KV cache ",
                            format_name(o.cache_format()));
  if (chooses_rows(c)) str_append(out, str_cat(", indexer ", format_name(o.index_format(c))));
  return out;
}

Result<int> eval_vectors(const Flags& flags, const OpenedModel& opened, const Machine& machine) {
  const std::string file = tensor_file_of(flags.vectors);
  FATHOM_ASSIGN(const SafetensorsFile header, open_safetensors(file));
  int64_t longest = 1;
  for (const TensorEntry& t : header.header.tensors) {
    if (t.name.ends_with(".input_ids") && !t.shape.empty()) longest = std::max(longest, t.shape[0]);
  }
  FATHOM_ASSIGN(const auto session,
                make_session(*opened.model, machine, flags.engine, longest + kGreedyTokens,
                             opened.model->has_draft()));
  const bool float32 = runs_in_float32(*opened.model);
  VectorBudget budget = vector_budget(*opened.model);
  if (flags.max_kl) budget.max_kl = *flags.max_kl;
  if (flags.min_top1) budget.min_top1_share = *flags.min_top1;
  if (float32 && (flags.max_kl || flags.min_top1)) {
    return invalid_argument(str_cat(flags.max_kl ? "--max-kl" : "--min-top1",
                                    " is a bound of quantised runs; activations, KV cache and "
                                    "indexer are float32 here, which logits are held against"));
  }
  FATHOM_ASSIGN(const VectorComparison result,
                compare_vectors(*opened.model, *session, file, budget));
  VectorsFound found{.model = opened.title,
                     .numbers = numbers_of(*opened.model),
                     .result = result,
                     .missed = check_vectors(result, budget, float32)};
  return print(found, flags, found.missed);
}

Result<std::vector<std::vector<int32_t>>> read_prompts(const std::string& path,
                                                       const ModelConfig& config) {
  const int64_t vocabulary = config.vocab_size;
  FATHOM_ASSIGN(const std::string text, read_text(path));
  FATHOM_ASSIGN(const Json json, parse_json(text, {.max_bytes = kMaxInputBytes}, path));
  const Json* list = json.find("prompts");
  if (list == nullptr || !list->is_array()) {
    return corrupt(str_cat(path, ": expected {\"prompts\": [[id, ...], ...]}"));
  }
  if (list->items().empty()) return corrupt(str_cat(path, ": prompts is empty, expected a list"));
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& item : list->items()) {
    const std::string where = str_cat(path, ": prompts[", prompts.size(), "]");
    if (!item.is_array()) {
      return corrupt(str_cat(where, " is ", item.kind_name(), ", expected a list of ids"));
    }
    const auto count = static_cast<int64_t>(item.items().size());
    if (count < 1 || count > config.max_position_embeddings) {
      return corrupt(str_cat(where, " has ", count, " ids, expected 1 to ",
                             config.max_position_embeddings, ", the model's context"));
    }
    std::vector<int32_t> ids;
    for (const Json& id : item.items()) {
      if (!id.is_int() || id.as_int() < 0 || id.as_int() >= vocabulary) {
        return corrupt(str_cat(where, "[", ids.size(), "] is ",
                               id.is_int() ? str_cat(id.as_int()) : std::string(id.kind_name()),
                               ", expected an id from 0 to ", vocabulary - 1));
      }
      ids.push_back(static_cast<int32_t>(id.as_int()));
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

Result<int> eval_logits(const Flags& flags, const OpenedModel& opened, const Machine& machine) {
  const int64_t vocabulary = opened.model->config().vocab_size;
  FATHOM_ASSIGN(const auto prompts, read_prompts(flags.ids, opened.model->config()));
  int64_t longest = 1;
  std::vector<TensorEntry> tensors;
  int64_t bytes = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto rows = static_cast<int64_t>(prompts[i].size());
    longest = std::max(longest, rows);
    tensors.push_back(
        {.name = str_cat("logits.", i), .dtype = Format::kF32, .shape = {rows, vocabulary}});
    bytes += rows * vocabulary * 4;
  }
  FATHOM_ASSIGN(const auto session,
                make_session(*opened.model, machine, flags.engine, longest, false));
  const std::string header = format_safetensors_header(tensors, {{"format", "pt"}});
  end_at_interrupt(str_cat(flags.logits_out, kPartialSuffix, " is left, which a new run replaces"));
  FATHOM_ASSIGN(AtomicFile file,
                AtomicFile::create(flags.logits_out,
                                   {.reserve_bytes = bytes + static_cast<int64_t>(header.size())}));
  FATHOM_TRY(file.append(header));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string prompt = str_cat(flags.ids, ": prompts[", i, "]");
    const auto append_rows = [&](int64_t first, const StepResults& out) -> Status {
      FATHOM_TRY(check_finite_logits(out.logits, first).add_context(prompt));
      const std::span values(out.logits.row<float>(0), static_cast<size_t>(out.logits.numel()));
      return file.append(std::as_bytes(values));
    };
    session->reset();
    FATHOM_TRY(session->prefill(0, prompts[i], LogitRows::kAll, append_rows));
  }
  FATHOM_TRY(file.commit());
  return print(LogitsWritten{.model = opened.title,
                             .file = flags.logits_out,
                             .prompts = static_cast<int64_t>(prompts.size())},
               flags);
}

// Blocks of a text, or the prompts of a file.
Result<std::vector<std::vector<int32_t>>> comparison_input(const Flags& flags,
                                                           const OpenedModel& opened) {
  if (!flags.ids.empty()) return read_prompts(flags.ids, opened.model->config());
  FATHOM_ASSIGN(const Tokenizer tokenizer, load_tokenizer(opened.directory));
  FATHOM_ASSIGN(const std::string text, read_text(flags.text));
  const std::vector<int32_t> ids = tokenizer.encode(text);
  if (ids.empty()) return corrupt(str_cat(flags.text, ": has no tokens, expected some text"));
  return in_blocks(ids, tokenizer.bos_id());
}

// KEY=VALUE of one option of the other model.
Status set_reference_options(const std::vector<std::string>& settings, EngineOptions& options) {
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      return invalid_argument(str_cat("--compare-options ", setting,
                                      ": expected OPTION=VALUE, such as kv-cache-dtype=f32"));
    }
    FATHOM_TRY(set_option(options, std::string_view(setting).substr(0, equals),
                          std::string_view(setting).substr(equals + 1)));
  }
  return {};
}

Result<int> eval_comparison(const Flags& flags,
                            const OpenedModel& opened,
                            const GlobalFlags& globals,
                            const Machine& machine) {
  FATHOM_ASSIGN(const auto sequences, comparison_input(flags, opened));
  EngineOptions other = flags.engine;
  other.model = flags.compare;
  FATHOM_TRY(set_reference_options(flags.compare_options, other));
  FATHOM_ASSIGN(const OpenedModel reference, open_for(other, globals, machine, false));
  const int64_t width = opened.model->config().vocab_size;
  const int64_t other_width = reference.model->config().vocab_size;
  if (width != other_width) {
    return invalid_argument(str_cat("--compare: the vocabulary of ", reference.title, " has ",
                                    other_width, " tokens, expected ", width, ", as in ",
                                    opened.title));
  }
  size_t longest = 1;
  for (const auto& ids : sequences)
    longest = std::max(longest, ids.size());
  const auto length = static_cast<int64_t>(longest);
  FATHOM_ASSIGN(const auto found,
                make_session(*opened.model, machine, flags.engine, length, false));
  FATHOM_ASSIGN(const auto expected, make_session(*reference.model, machine, other, length, false));
  TapComparison taps;
  Progress bar("comparing", "tokens", globals.quiet);
  FATHOM_ASSIGN(const LogitComparison c,
                compare_logits(
                    *expected, *found, sequences,
                    [&](int64_t done, int64_t total) { bar.update(done, total); },
                    flags.by_layer ? &taps : nullptr));
  ModelsCompared compared{.model = opened.title,
                          .reference = reference.title,
                          .result = c,
                          .layers = flags.by_layer ? &taps : nullptr,
                          .missed = {}};
  if (flags.max_kl && c.mean_kl() > *flags.max_kl) {
    compared.missed.push_back(str_cat("mean KL ", scientific(c.mean_kl()), ", at most ",
                                      scientific(*flags.max_kl), " wanted (--max-kl)"));
  }
  if (flags.min_top1 && c.top1_share() < *flags.min_top1) {
    compared.missed.push_back(str_cat("same first choice ", format_fixed(c.top1_share(), 4),
                                      ", at least ", format_fixed(*flags.min_top1, 4),
                                      " wanted (--min-top1)"));
  }
  return print(compared, flags, compared.missed);
}

// Flags that would do nothing are mistakes: a bound that nobody holds is never missed.
Status check_flags(const Flags& flags) {
  const int asked = !flags.text.empty() + !flags.vectors.empty() + !flags.ids.empty();
  if (asked != 1) {
    return invalid_argument("eval needs one of --ppl FILE, --vectors FILE and --ids FILE");
  }
  const bool compares = !flags.compare.empty();
  if (compares && !flags.vectors.empty()) {
    return invalid_argument("--compare takes its tokens from --ppl FILE or --ids FILE");
  }
  if (!compares && flags.vectors.empty() && (flags.max_kl || flags.min_top1)) {
    return invalid_argument(str_cat(flags.max_kl ? "--max-kl" : "--min-top1",
                                    " is a bound of a comparison\nhint: name the other model with "
                                    "--compare MODEL, or outputs with --vectors FILE"));
  }
  if (!compares && (flags.by_layer || !flags.compare_options.empty())) {
    return invalid_argument(str_cat(flags.by_layer ? "--by-layer" : "--compare-options",
                                    " belongs to --compare MODEL"));
  }
  const bool writes = !flags.ids.empty() && !compares;
  if (writes && flags.logits_out.empty()) {
    return invalid_argument("--ids needs --logits-out FILE.safetensors, or --compare MODEL");
  }
  if (!writes && !flags.logits_out.empty()) {
    return invalid_argument(str_cat("--logits-out writes the logits of --ids FILE, not those of ",
                                    compares              ? "--compare"
                                    : !flags.text.empty() ? "--ppl"
                                                          : "--vectors"));
  }
  return {};
}

// Reference outputs are those of float32, which tells a fault from rounding. Not for a model whose
// weights are quantised, nor where a bound or a format says that another run is asked for.
bool takes_float32(const Flags& flags, const QuantConfig& declared) {
  const EngineOptions& o = flags.engine;
  const auto is_f32 = [](const std::optional<Format>& f) { return !f || *f == Format::kF32; };
  return !flags.vectors.empty() && !o.dtype && is_f32(o.kv_cache_dtype) &&
         is_f32(o.indexer_dtype) && !flags.max_kl && !flags.min_top1 &&
         o.device.kind == DeviceKind::kCpu && declared.algo == QuantAlgo::kNone;
}

Result<int> eval(Flags flags, const GlobalFlags& globals) {
  FATHOM_TRY(check_flags(flags));
  FATHOM_ASSIGN(flags.engine, checked_options(flags.engine));
  FATHOM_ASSIGN(const ModelSource source, open_source(flags.engine));
  if (takes_float32(flags, source.declared)) {
    EngineOptions& o = flags.engine;
    o.dtype = o.kv_cache_dtype = o.indexer_dtype = Format::kF32;
    log_info(
        "--vectors: float32 for activations, KV cache and indexer, as the reference has it; "
        "--dtype bf16 compares what other commands run");
  }
  FATHOM_ASSIGN(const Machine machine, set_up_machine(flags.engine));
  FATHOM_ASSIGN(const OpenedModel opened,
                open_from(source, flags.engine, globals, machine, !flags.vectors.empty()));
  if (!flags.compare.empty()) {
    return eval_comparison(flags, opened, globals, machine);
  }
  if (!flags.text.empty()) return eval_perplexity(flags, opened, machine, globals.quiet);
  if (!flags.vectors.empty()) return eval_vectors(flags, opened, machine);
  return eval_logits(flags, opened, machine);
}

}  // namespace

Command add_eval(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "eval", "Perplexity, comparison with reference outputs, logits of given ids");
  sub->add_option("--ppl", flags->text, "Perplexity of this text file, in blocks of 511 tokens")
      ->check(not_empty("a file"));
  sub->add_option("--vectors", flags->vectors,
                  "Compare with golden.json / golden.safetensors, in float32 unless --dtype says "
                  "otherwise; exit 1 when a budget is missed")
      ->check(not_empty("a file"));
  sub->add_option("--ids", flags->ids, "JSON file {\"prompts\": [[id, ...], ...]}")
      ->check(not_empty("a file"));
  sub->add_option("--logits-out", flags->logits_out, "With --ids: safetensors file of all logits")
      ->check(not_empty("a file"));
  sub->add_option("--compare", flags->compare,
                  "With --ppl or --ids: hold the logits against those of this model")
      ->check(not_empty("a model directory, or ORG/NAME"));
  add_list(*sub, "--compare-options", flags->compare_options,
           "With --compare: OPTION=VALUE,... that the other model runs with");
  sub->add_flag("--by-layer", flags->by_layer,
                "With --compare: cosines of attention, feed-forward and residual of each layer");
  sub->add_option("--max-kl", flags->max_kl,
                  "With --compare or --vectors: exit 1 above this mean KL, in nats")
      ->check(finite_range(0, 1e6));
  sub->add_option("--min-top1", flags->min_top1,
                  "With --compare or --vectors: exit 1 below this share of equal first choices")
      ->check(finite_range(0, 1));
  sub->add_flag("--json", flags->json, "Print JSON (fathom.eval/1)");
  add_engine_flags(
      *sub, globals.engine, kForward,
      {OptionGroup::kModel, OptionGroup::kDevice, OptionGroup::kNumbers, OptionGroup::kKernels});
  return {sub, [flags](const GlobalFlags& given) {
            flags->engine = given.engine;
            return eval(*flags, given);
          }};
}

}  // namespace fathom::cli
