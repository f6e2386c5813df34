#include "fathom/report/record/dry_trace.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "fathom/base/checked_math.h"
#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"
#include "fathom/models/dry/dry_records.h"
#include "fathom/models/registry.h"
#include "fathom/report/record/live_passes.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/runtime/sample/sampler.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

struct PhasePlan {
  const char* name;
  const char* what;
  BatchShape shape;
  DryPass pass = DryPass::kForward;
  bool samples = false;  // tokens are drawn behind it
  int64_t branches = 1;  // of the level that is chosen behind it; 1: none
};

std::string title_of(const PhasePlan& plan) {
  const BatchShape::Requests& r =
      plan.shape.prefill.count > 0 ? plan.shape.prefill : plan.shape.decode;
  return str_cat(plan.what, ": ", r.count, r.count == 1 ? " request of " : " requests of ",
                 r.new_tokens, r.new_tokens == 1 ? " new token" : " new tokens", " after ",
                 r.cached, " in the cache");
}

std::vector<PhasePlan> plans_of(const Model& model, const TraceShape& shape) {
  BatchShape prefill;
  prefill.prefill = {.count = shape.batch, .new_tokens = shape.prompt_tokens, .cached = 0};
  BatchShape chunked;
  chunked.prefill = {
      .count = shape.batch, .new_tokens = shape.prompt_tokens, .cached = shape.kv_len};
  BatchShape draft;
  draft.decode = {.count = shape.batch, .new_tokens = 1, .cached = shape.kv_len - 1};
  BatchShape decode = draft;
  if (shape.gpu != nullptr) decode.padding.requests = decode_bucket(shape.batch);
  std::vector<PhasePlan> plans = {{"prefill", "Prefill", prefill},
                                  {"prefill_chunked", "Prefill after a cached prefix", chunked},
                                  {"decode", "Decode", decode}};
  if (model.has_draft()) {
    plans.push_back({kDraftPhase.name, kDraftPhase.title, draft, DryPass::kDraft});
  }
  if (shape.speculative == Speculative::kOff) return plans;
  const DraftShape& drafts = shape.drafts;
  if (shape.speculative == Speculative::kMtp && drafts.tokens > 1) {
    BatchShape chain = draft;
    chain.decode.new_tokens = drafts.branches;
    chain.trees = drafts.is_tree();
    plans.push_back({kDraftChainPhase.name, kDraftChainPhase.title, chain, DryPass::kDraft, true,
                     drafts.branches});
  }
  BatchShape verify = decode;
  verify.decode.new_tokens = 1 + drafts.drafts();
  verify.trees = drafts.is_tree();
  plans.push_back({kVerifyPhase.name, kVerifyPhase.title, verify, DryPass::kForward, true});
  return plans;
}

Status check_length(int64_t length, std::string_view what, const ModelConfig& config) {
  if (length <= config.max_position_embeddings) return {};
  return invalid_argument(str_cat(what, " is ", length, " tokens, but the model's context holds ",
                                  config.max_position_embeddings));
}

// What executors launch on the logits of a pass: the most probable tokens; and in trees, whose
// guesses a CPU finds without a kernel, the nodes of the next level.
Result<std::vector<OpRecord>> sampling_records(const Model& model,
                                               const PhasePlan& plan,
                                               const TraceShape& s) {
  const BatchShape& step = plan.shape;
  const int64_t rows = std::max(step.decode.count, step.padding.requests) * step.decode.new_tokens;
  const int64_t vocabulary = model.config().vocab_size;
  Arena scratch;
  Recorder recorder(RecordLevel::kShapes, 8);
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = s.kernels;
  ex.device = s.gpu;
  ex.scratch = &scratch;
  ex.recorder = &recorder;
  const Scope scope(&recorder, "sample");
  const View logits = make_view(nullptr, {rows, vocabulary}, Format::kF32, "R,V");
  const auto numbers = [rows](Format format, const char* axis) {
    return make_view(nullptr, {rows}, format, axis);
  };
  const auto guesses = [rows](int64_t count, Format format, const char* axes) {
    return make_view(nullptr, {rows, count}, format, axes);
  };
  const bool level = plan.branches > 1;
  if (level && s.gpu != nullptr) {
    const int64_t best = std::min<int64_t>(kMaxTopLogprobs, vocabulary);
    FATHOM_TRY(launch<TopLogprobs>(ex, "sample_logprobs",
                                   {.logits = logits,
                                    .ids = guesses(best, Format::kI32, "R,guesses"),
                                    .logprobs = guesses(best, Format::kF32, "R,guesses"),
                                    .largest = numbers(Format::kF32, "R")}));
  }
  FATHOM_TRY(sample(ex, logits, {.num_ids = vocabulary}, numbers(Format::kI32, "R"),
                    numbers(Format::kI32, "R")));
  if (level) {
    FATHOM_TRY(launch<DraftLevel>(ex, "draft_level",
                                  {.ids = guesses(plan.branches, Format::kI32, "T,guesses"),
                                   .logprobs = guesses(plan.branches, Format::kF32, "T,guesses"),
                                   .paths = numbers(Format::kF32, "T"),
                                   .masks = numbers(Format::kI64, "T"),
                                   .tokens = numbers(Format::kI32, "T"),
                                   .rows = numbers(Format::kI32, "T"),
                                   .next_paths = numbers(Format::kF32, "T"),
                                   .next_masks = numbers(Format::kI64, "T")}));
  }
  return recorder.records();
}

Result<TracePhase> run_phase(const Model& model, const PhasePlan& plan, const TraceShape& s) {
  FATHOM_ASSIGN(std::vector<OpRecord> records,
                dry_records(model, plan.shape,
                            {.num_threads = s.num_threads,
                             .kernels = s.kernels,
                             .gpu = s.gpu,
                             .pass = plan.pass,
                             .selects_states = plan.pass == DryPass::kDraft && plan.samples}));
  if (plan.samples) {
    FATHOM_ASSIGN(const std::vector<OpRecord> behind, sampling_records(model, plan, s));
    records.insert(records.end(), behind.begin(), behind.end());
  }
  return make_phase(plan.name, title_of(plan), records, {}, model.config().symbols());
}

// What tells layers of a model apart.
std::tuple<bool, bool, int> kind_of_layer(const ModelConfig& c, int64_t layer) {
  return {c.is_moe_layer(layer), layer < c.num_hash_layers,
          c.is_v4() ? static_cast<int>(c.compress_ratio(layer)) : 0};
}

// The first layers that have one of each kind, two at least: the first one has no residual to add.
ModelConfig few_layers(const ModelConfig& config) {
  std::set<std::tuple<bool, bool, int>> kinds;
  int64_t layers = 1;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (kinds.insert(kind_of_layer(config, layer)).second) layers = layer + 1;
  }
  return first_layers(config, std::min(std::max<int64_t>(layers, 2), config.num_hidden_layers));
}

bool has_expert_layers(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    if (config.is_moe_layer(layer)) return true;
  return false;
}

// Tokens up to which an indexer keeps every row; 0 without one.
int64_t index_topk_tokens(const ModelConfig& c) {
  if (c.is_v4()) return c.index_topk * static_cast<int64_t>(CompressRatio::kSparse);
  return c.index_topk;
}

// A prefill that every form of attention may serve, after a prefix of key chunks; not of the sizes
// that were asked for, which may leave no room for one of them.
TraceShape few_tokens(const Model& model, const TraceShape& shape) {
  const int64_t half = std::max<int64_t>(model.config().max_position_embeddings / 2, 1);
  const int64_t chunk = std::min(model.options().attention.prefill_chunk, half);
  // An indexer chooses where it has more rows than it may keep.
  const int64_t choosing = index_topk_tokens(model.config());
  return {.batch = 1,
          .prompt_tokens = chunk,
          .kv_len = std::min(std::max(chunk, align_up(choosing + 1, chunk)), std::max(half, chunk)),
          .num_threads = shape.num_threads,
          .kernels = shape.kernels,
          .gpu = shape.gpu};
}

struct Choice {
  std::string flags;
  ModelOptions options;
};

std::vector<Choice> attention_choices(const ModelOptions& base) {
  std::vector<Choice> out;
  ModelOptions absorbed = base;
  absorbed.attention.always_absorbed = true;
  out.push_back({"--attention absorbed", absorbed});
  ModelOptions fused = base;
  fused.attention.always_absorbed = false;
  fused.attention.fused_rope = true;
  out.push_back({"--attention fused_rope", fused});
  return out;
}

bool is_refusal(const Status& s) {
  return s.code() == StatusCode::kUnsupported || s.code() == StatusCode::kInvalidArgument;
}

Result<std::vector<TracePhase>> run_variation(const Preset& preset,
                                              const ModelOptions& options,
                                              const TraceShape& shape) {
  OpenOptions dry;
  dry.model = options;
  dry.weights = WeightOrigin::kNone;
  const Placement placement{.device = shape.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda};
  FATHOM_ASSIGN(const std::unique_ptr<Model> model,
                open_model(ModelSource::describe(preset), placement, dry));
  return dry_phases(*model, few_tokens(*model, shape));
}

// How a preset runs on the device of the shape. What a GPU has no kernels for is followed by how a
// CPU runs it: the kernels that it takes are reached there.
Status add_variation(std::string flags,
                     Preset preset,
                     const ModelOptions& options,
                     const TraceShape& shape,
                     std::vector<Variation>& out) {
  preset.config = few_layers(preset.config);
  Result<std::vector<TracePhase>> phases = run_variation(preset, options, shape);
  if (phases.ok()) {
    out.push_back({std::move(flags), std::move(phases).value(), {}});
    return {};
  }
  if (!is_refusal(phases.status())) return std::move(phases).status().add_context(flags);
  out.push_back({flags, {}, in_one_line(phases.status().message())});
  if (shape.gpu == nullptr) return {};
  TraceShape of_cpu = shape;
  of_cpu.kernels = nullptr;
  of_cpu.gpu = nullptr;
  phases = run_variation(preset, options, of_cpu);
  if (phases.ok()) {
    out.push_back({str_cat(flags, " --device cpu"), std::move(phases).value(), {}});
    return {};
  }
  return is_refusal(phases.status()) ? Status{} : std::move(phases).status().add_context(flags);
}

// A row that asks for everything that the flags can ask of sampling.
SamplingParams all_of_sampling() {
  SamplingParams params;
  params.repetition_penalty = 1.1f;
  params.top_k = 40;
  params.top_p = 0.9f;
  params.min_p = 0.05f;
  params.logit_bias = {{0, 0.0f}};
  return params;
}

constexpr std::string_view kSamplingFlags =
    "fathom run --top-k 40 --repetition-penalty 1.1, with a grammar";

// What follows a forward pass: the token of a row of logits, greedy and with everything.
Result<TracePhase> sampling_phase(const Model& model, const KernelSet* kernels) {
  const ModelConfig& config = model.config();
  Arena activations;
  Arena scratch;
  Recorder recorder(RecordLevel::kShapes, 1 << 10);
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = kernels;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.recorder = &recorder;
  const TokenCounts counts;
  const std::vector<uint32_t> mask(static_cast<size_t>(mask_words(config.vocab_size)), ~0u);
  Sampler sampler(config.vocab_size, 1);
  const View logits = make_view(nullptr, {1, config.vocab_size}, Format::kF32, "R,V");
  for (const SamplingParams& params : {greedy_sampling(), all_of_sampling()}) {
    SampleRow row{.params = &params, .counts = &counts, .banned = {}};
    if (!params.greedy()) row.mask = mask;
    SampleResult result;
    FATHOM_TRY(sampler.sample(ex, logits, {&row, 1}, {&result, 1}));
  }
  return make_phase("sampling", "Sampling: one row of logits", recorder.records(), {},
                    config.symbols());
}

// ---- Variations

// Kernels that an op of a variation runs.
void add_reached(const Variation& v, std::set<std::string_view>& kernels) {
  for (const TracePhase& phase : v.phases)
    for (const TraceOp& op : phase.ops)
      kernels.insert(op.kernel);
}

bool has_place(const KernelEntry& kernel, const std::set<std::string_view>& reached) {
  return !kernel.info.outside.empty() || reached.contains(kernel.info.name);
}

// The model in every format, with each strategy of the experts and each form of attention.
Status add_own(const Model& model, const TraceShape& shape, std::vector<Variation>& out) {
  ModelOptions base = model.options();
  base.moe = {};
  base.nvfp4_inputs = Nvfp4Inputs::kExact;
  base.draft = true;
  // The form that was asked for is that of the recording: here each has its turn.
  base.attention.always_absorbed = base.attention.fused_rope = false;
  Preset preset{.name = "", .config = model.config(), .formats = {}};
  for (std::string_view format : preset_format_names()) {
    FATHOM_ASSIGN(preset.formats, preset_formats(format, preset.config));
    const std::string flags = str_cat("--format ", format);
    FATHOM_TRY(add_variation(flags, preset, base, shape, out));
    for (const MoeRow& row : moe_rows()) {
      if (row.pin == MoePin::kNever) continue;
      ModelOptions options = base;
      options.moe.strategy = row.strategy;
      FATHOM_TRY(add_variation(str_cat(flags, " --moe ", row.name), preset, options, shape, out));
    }
    for (const Choice& choice : attention_choices(base)) {
      FATHOM_TRY(
          add_variation(str_cat(flags, " ", choice.flags), preset, choice.options, shape, out));
    }
  }
  return {};
}

// The built-in models as they are without flags: what was asked of this one need not fit them.
Status add_presets(const TraceShape& shape, std::vector<Variation>& out) {
  const ModelOptions usual;
  for (std::string_view name : preset_names()) {
    FATHOM_ASSIGN(const Preset other, find_preset(name));
    FATHOM_TRY(add_variation(str_cat("--as ", name), other, usual, shape, out));
    if (other.config.index_topk == 0) continue;
    ModelOptions scaled_rows = usual;
    scaled_rows.kv_format = Format::kE4m3;
    FATHOM_TRY(add_variation(str_cat("--as ", name, " --kv-cache-dtype fp8_e4m3"), other,
                             scaled_rows, shape, out));
  }
  return {};
}

constexpr std::string_view kLarge = "deepseek-v3";

// What this model refuses may run in a larger one with another router; of a model that was cut to
// its dense layers nothing is known of experts.
Status add_large(const ModelConfig& config, const TraceShape& shape, std::vector<Variation>& out) {
  const ModelOptions usual;
  const bool has_experts = has_expert_layers(config);
  FATHOM_ASSIGN(Preset large, find_preset(kLarge));
  ModelOptions fp8_experts = usual;
  fp8_experts.moe.activations = MoeActivations::kFp8;
  FATHOM_ASSIGN(large.formats, preset_formats("nvfp4", large.config));
  FATHOM_TRY(add_variation(str_cat("--as ", kLarge, " --format nvfp4 --moe-activations fp8"), large,
                           fp8_experts, shape, out));
  ModelOptions w4a4 = usual;
  w4a4.nvfp4_inputs = Nvfp4Inputs::kQuantised;
  FATHOM_TRY(add_variation(str_cat("--as ", kLarge, " --format nvfp4 --activations nvfp4"), large,
                           w4a4, shape, out));
  for (std::string_view format : preset_format_names()) {
    FATHOM_ASSIGN(large.formats, preset_formats(format, large.config));
    const std::string flags = str_cat("--as ", kLarge, " --format ", format);
    FATHOM_TRY(add_variation(flags, large, usual, shape, out));
    // A model with an indexer has fewer forms of attention, V1 and V4 have one.
    if (config.has_indexer() || config.is_v4() || config.is_v1()) {
      for (const Choice& choice : attention_choices(usual)) {
        FATHOM_TRY(
            add_variation(str_cat(flags, " ", choice.flags), large, choice.options, shape, out));
      }
    }
    for (const MoeRow& row : moe_rows()) {
      if (row.pin == MoePin::kNever) continue;
      ModelOptions options = usual;
      options.moe.strategy = row.strategy;
      if (!has_experts || std::none_of(out.begin(), out.end(), [&](const Variation& v) {
            return v.flags == str_cat("--format ", format, " --moe ", row.name) &&
                   !v.phases.empty();
          })) {
        FATHOM_TRY(add_variation(str_cat(flags, " --moe ", row.name), large, options, shape, out));
      }
    }
  }
  return {};
}

// A context or a cache may leave no room for a form of attention: the larger model has it.
Status add_forms_of_large(const TraceShape& shape, std::vector<Variation>& out) {
  FATHOM_ASSIGN(const Preset large, find_preset(kLarge));
  for (const Choice& choice : attention_choices({})) {
    FATHOM_TRY(add_variation(str_cat("--as ", kLarge, " ", choice.flags), large, choice.options,
                             shape, out));
  }
  return {};
}

// Trees by the model's own draft layer; of a model that has none, by that of the larger one.
Status add_drafting(const Model& model, const TraceShape& shape, std::vector<Variation>& out) {
  constexpr DraftShape kTree{.tokens = 3, .branches = 2};
  const auto add = [&](std::string flags, const Model& drafting) -> Status {
    TraceShape few = few_tokens(drafting, shape);
    few.speculative = Speculative::kMtp;
    few.drafts = kTree;
    Result<std::vector<TracePhase>> phases = dry_phases(drafting, few);
    if (phases.ok()) {
      out.push_back({std::move(flags), std::move(phases).value(), {}});
      return {};
    }
    if (!is_refusal(phases.status())) return std::move(phases).status().add_context(flags);
    out.push_back({std::move(flags), {}, in_one_line(phases.status().message())});
    return {};
  };
  if (check_speculative(Speculative::kMtp, kTree, model).ok()) {
    return add(std::string(kDraftingFlags), model);
  }
  FATHOM_ASSIGN(Preset large, find_preset(kLarge));
  large.config = few_layers(large.config);
  OpenOptions dry;
  dry.model.draft = true;
  dry.weights = WeightOrigin::kNone;
  const Placement placement{.device = shape.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda};
  FATHOM_ASSIGN(const std::unique_ptr<Model> other,
                open_model(ModelSource::describe(large), placement, dry));
  return add(str_cat("--as ", kLarge, " ", kDraftingFlags), *other);
}

}  // namespace

Result<std::vector<TracePhase>> dry_phases(const Model& model, const TraceShape& shape) {
  FATHOM_TRY(check_length(shape.kv_len + shape.prompt_tokens,
                          "cached tokens and new ones (--kv-len and --prompt-tokens) together",
                          model.config()));
  if (shape.speculative != Speculative::kOff) {
    FATHOM_TRY(check_length(shape.kv_len + shape.drafts.drafts(),
                            "keys (--kv-len) and drafts together", model.config()));
  }
  std::vector<TracePhase> phases;
  for (const PhasePlan& plan : plans_of(model, shape)) {
    FATHOM_ASSIGN(TracePhase phase, run_phase(model, plan, shape));
    phases.push_back(std::move(phase));
  }
  return phases;
}

Result<TracePhase> dry_phase(const Model& model, std::string_view name, const TraceShape& shape) {
  for (const PhasePlan& plan : plans_of(model, shape))
    if (name == plan.name) return run_phase(model, plan, shape);
  return invalid_argument(str_cat("the model has no phase ", name));
}

std::string attention_form_of(const TracePhase& phase) {
  for (const TraceOp& op : phase.ops) {
    // Of attention's kernels those that a row of the table chose carry it.
    const KernelEntry* kernel = find_kernel(op.kernel);
    if (kernel == nullptr || kernel->family != "attn" || op.selection_row < 0) continue;
    return std::string(attention_rows()[static_cast<size_t>(op.selection_row)].name);
  }
  return {};
}

Result<std::vector<Variation>> dry_variations(const Model& model, const TraceShape& shape) {
  std::vector<Variation> out;
  FATHOM_ASSIGN(std::vector<TracePhase> own, dry_phases(model, few_tokens(model, shape)));
  out.push_back({"as recorded", std::move(own), {}});
  FATHOM_TRY(add_own(model, shape, out));
  FATHOM_TRY(add_presets(shape, out));
  FATHOM_TRY(add_large(model.config(), shape, out));
  FATHOM_TRY(add_drafting(model, shape, out));
  Variation sampling{std::string(kSamplingFlags), {}, {}};
  FATHOM_ASSIGN(sampling.phases.emplace_back(),
                sampling_phase(model, shape.gpu == nullptr ? shape.kernels : nullptr));
  std::set<std::string_view> reached;
  add_reached(sampling, reached);
  for (const Variation& v : out)
    add_reached(v, reached);
  const auto kernels = all_kernels();
  if (!std::all_of(kernels.begin(), kernels.end(),
                   [&](const KernelEntry& kernel) { return has_place(kernel, reached); })) {
    FATHOM_TRY(add_forms_of_large(shape, out));
  }
  out.push_back(std::move(sampling));
  return out;
}

}  // namespace fathom
