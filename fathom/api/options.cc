#include "fathom/api/options.h"

#include <cctype>
#include <type_traits>

#include "fathom/api/option_kinds.h"
#include "fathom/base/near_names.h"
#include "fathom/os/thread_pool.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

using O = EngineOptions;
using option::Choice;
using option::Count;
using option::Device;
using option::PinList;
using option::PresetName;
using option::Real;
using option::Seed;
using option::Switch;
using option::Text;

// ---- Values that are words

constexpr std::optional<PresetFormatName> kFormats[] = {
    {},
    PresetFormatName::kBf16,
    PresetFormatName::kFp8Block,
    PresetFormatName::kNvfp4,
    PresetFormatName::kMxfp4,
    PresetFormatName::kFp8,
    PresetFormatName::kInt8,
    PresetFormatName::kW4a8,
    PresetFormatName::kW4a8Group,
    PresetFormatName::kNvfp4All,
};
constexpr std::optional<Isa> kIsas[] = {{}, Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};
constexpr std::optional<Format> kActivations[] = {{}, Format::kBf16, Format::kF32};
constexpr std::optional<Format> kCacheFormats[] = {
    {}, Format::kF32, Format::kBf16, Format::kE4m3, Format::kNvfp4};
constexpr std::optional<Format> kIndexFormats[] = {
    {}, Format::kF32, Format::kBf16, Format::kE4m3, Format::kMxfp4};
constexpr Nvfp4Inputs kNvfp4Inputs[] = {Nvfp4Inputs::kExact, Nvfp4Inputs::kQuantised};
constexpr MoeActivations kMoeActivations[] = {MoeActivations::kAuto, MoeActivations::kFp8};
constexpr KvSizing kPools[] = {KvSizing::kByRequest, KvSizing::kRemaining};
constexpr std::optional<MoeStrategy> kStrategies[] = {
    {}, MoeStrategy::kGrouped, MoeStrategy::kSorted, MoeStrategy::kFused};
constexpr AttentionChoice kForms[] = {AttentionChoice::kByPhase, AttentionChoice::kAbsorbed,
                                      AttentionChoice::kFusedRope};
constexpr Speculative kDraftings[] = {Speculative::kOff, Speculative::kNgram, Speculative::kMtp};
constexpr bool kOnOff[] = {true, false};

// fp8_ds_mla: vLLM's and FlashMLA's name of the rows that fp8_e4m3 means where rows have scales.
struct CacheFormat : Choice<&O::kv_cache_dtype, kCacheFormats> {
  bool read(O& o, std::string_view text) const {
    return Choice::read(o, text == "fp8_ds_mla" ? "fp8_e4m3" : text);
  }
};

// ---- The table

// What a row says besides its value.
struct Row {
  OptionGroup group;
  unsigned uses;
  std::string_view flag;
  std::string_view aliases;
  std::string_view unit;
  std::string_view help;
};

template <auto Kind>
constexpr OptionInfo option_row(const Row& row) {
  OptionInfo info{.flag = row.flag,
                  .aliases = row.aliases,
                  .unit = row.unit,
                  .help = row.help,
                  .group = row.group,
                  .uses = row.uses,
                  .repeats = std::is_same_v<std::remove_cv_t<decltype(Kind)>, PinList>,
                  .read = [](O& o, std::string_view text) { return Kind.read(o, text); },
                  .get = [](const O& o) { return Kind.get(o); },
                  .holds = [](const O&) { return true; },
                  .expected = [] { return std::string(); },
                  .words = [] { return std::vector<std::string_view>{}; }};
  if constexpr (requires(const O& o) { Kind.holds(o); }) {
    info.holds = [](const O& o) { return Kind.holds(o); };
  }
  if constexpr (requires { Kind.expected(); }) {
    info.expected = [] { return Kind.expected(); };
  }
  if constexpr (requires { Kind.words(); }) {
    info.words = [] { return Kind.words(); };
  }
  return info;
}

constexpr int64_t kMostTokens = int64_t{1} << 30;
constexpr unsigned kGenerate = kComplete | kConverse | kServe;
constexpr unsigned kRuns = kGenerate | kForward;
constexpr unsigned kWithoutFiles = kForward | kDryPlan | kServe;
using enum OptionGroup;

// clang-format off
constexpr OptionInfo kTable[] = {
    option_row<Text{&O::model}>(
        {kModel, kEveryUse, "model", "m", "MODEL",
         "checkpoint directory in the Hugging Face layout, the name of a shipped model, or "
         "ORG/NAME in the local cache"}),
    option_row<Text{&O::tokenizer}>(
        {kModel, kServe, "tokenizer", "", "DIR",
         "directory whose tokenizer.json counts in place of the model's; --as has none"}),

    option_row<PresetName{{&O::preset}}>(
        {kBuiltIn, kWithoutFiles, "as", "", "PRESET",
         "a built-in description in place of a MODEL, such as deepseek-r1-nvfp4"}),
    option_row<Choice<&O::format, kFormats>{}>(
        {kBuiltIn, kWithoutFiles, "format", "", "",
         "with --as, or with a MODEL and --dummy-weights, which then needs its config.json alone: "
         "weights in this format (default: the description's own)"}),
    option_row<Count{&O::layers, 0, 1024}>(
        {kBuiltIn, kWithoutFiles, "layers", "", "N",
         "with --as: the first layers only, where the whole does not fit; 0: all"}),
    option_row<Switch{&O::dummy_weights}>(
        {kBuiltIn, kForward | kServe, "dummy-weights", "", "",
         "random weights of the right shapes and formats; none are read"}),
    option_row<Seed<&O::dummy_seed>{}>(
        {kBuiltIn, kForward | kServe, "dummy-seed", "", "N", "seed of dummy weights"}),

    option_row<Count{&O::threads, 0, ThreadPool::kMaxThreads}>(
        {kMachine, kEveryUse, "threads", "t", "N", "CPU threads; 0: one a physical core"}),
    option_row<Choice<&O::isa, kIsas>{}>(
        {kMachine, kEveryUse, "isa", "", "",
         "use at most this instruction set; auto: all that the machine has"}),

    option_row<Device{&O::device}>(
        {kDevice, kRuns, "device", "", "cpu|cuda|cuda:N", "where the model runs"}),
    option_row<Choice<&O::cuda_graphs, kOnOff>{}>(
        {kDevice, kRuns, "cuda-graphs", "", "",
         "on a GPU: on replays captured decode steps, off launches each kernel"}),
    option_row<Switch{&O::pin_threads}>(
        {kDevice, kRuns, "pin-threads", "", "", "keep each thread on its CPU"}),

    option_row<Choice<&O::dtype, kActivations>{}>(
        {kNumbers, kEveryUse, "dtype", "", "",
         "activations; auto is bf16, f32 is for comparisons"}),
    option_row<CacheFormat{}>(
        {kNumbers, kEveryUse, "kv-cache-dtype", "cache-type-k ctk", "",
         "KV cache; auto is the type of the activations; fp8_e4m3 has scales in its rows in V3.2 "
         "and V4 (also fp8_ds_mla); nvfp4 is for V4"}),
    option_row<Choice<&O::indexer_dtype, kIndexFormats>{}>(
        {kNumbers, kEveryUse, "indexer-dtype", "", "",
         "keys and queries of the indexer; auto is as it was trained: fp8_e4m3 in V3.2, mxfp4 in "
         "V4"}),
    option_row<Choice<&O::activations, kNvfp4Inputs>{}>(
        {kNumbers, kEveryUse, "activations", "", "",
         "what products with weights in nvfp4 read; auto: activations as they are; nvfp4: NVFP4 "
         "by the checkpoint's input_scale (W4A4), lossy"}),
    option_row<Choice<&O::moe_activations, kMoeActivations>{}>(
        {kNumbers, kEveryUse, "moe-activations", "", "",
         "what products of routed experts read; auto: activations as they are; fp8: E4M3 with a "
         "scale for 128 values, lossy, for experts in nvfp4, mxfp4 and fp8_block"}),
    option_row<Count{&O::block_size, 1, 1024}>({kNumbers, kEveryUse, "block-size",
                                            "page-size tokens-per-block", "N",
                                            "tokens of a KV page and of a prefix hit"}),

    option_row<Count{&O::max_model_len, 0, kMostTokens}>(
        {kMemory, kGenerate | kDryPlan, "max-model-len", "context-length ctx-size num-ctx c", "N",
         "tokens of prompt and answer to make room for; 0: the model's, or what is needed and "
         "fits"}),
    option_row<Count{&O::max_num_seqs, 1, 65'536}>({kMemory, kServe | kDryPlan, "max-num-seqs",
                                                "max-running-requests np parallel", "N",
                                                "sequences that run at once"}),
    option_row<Count{&O::max_num_batched_tokens, 1, kMostTokens}>(
        {kMemory, kGenerate, "max-num-batched-tokens", "chunked-prefill-size max-num-tokens", "N",
         "tokens of a step"}),
    option_row<Count{&O::prefill_chunk, 0, kMostTokens}>(
        {kMemory, kGenerate, "prefill-chunk", "", "N",
         "prompt tokens of one request in a step; 0: the whole budget"}),
    option_row<Count{&O::step_target_ms, 0, 60'000}>(
        {kMemory, kServe, "step-target-ms", "", "MS",
         "what a step may take while answers are written: prompts are cut so; 0: no limit"}),
    option_row<Real{&O::memory_fraction, 1, true}>({kMemory, kGenerate, "memory-fraction",
                                                "gpu-memory-utilization mem-fraction-static", "F",
                                                "share of the free memory to use"}),
    option_row<Choice<&O::kv_pool, kPools>{}>(
        {kMemory, kServe, "kv-pool", "", "",
         "pages: for max-num-seqs sequences of max-model-len, or all the memory that is left"}),

    option_row<Count{&O::max_queue, 1, 1 << 20}>(
        {kRequests, kServe, "max-queue", "", "N", "waiting requests, more are refused"}),
    option_row<Count{&O::max_waiting_tokens, 1}>(
        {kRequests, kServe, "max-waiting-tokens", "", "N", "prompt tokens of waiting requests"}),
    option_row<Real{&O::queue_timeout_s, 86'400}>(
        {kRequests, kServe, "queue-timeout", "", "SECONDS",
         "seconds a served request may wait; 0: no limit"}),
    option_row<Real{&O::request_timeout_s, 864'000}>(
        {kRequests, kServe, "request-timeout", "timeout to", "SECONDS",
         "seconds a served request may take; 0: no limit"}),
    option_row<Switch{&O::prefix_cache}>({kRequests, kConverse | kServe, "prefix-cache",
                                      "enable-prefix-caching", "",
                                      "reuse pages of equal prefixes"}),
    option_row<Seed<&O::seed>{}>({kRequests, kServe, "seed", "s", "N|random",
                                  "base of the random numbers of requests without a seed"}),

    option_row<Choice<&O::speculative, kDraftings>{}>(
        {kDrafts, kRuns, "speculative", "speculative-algorithm spec-type", "",
         "guess tokens and verify several in a step; the answer is the same. ngram: what followed "
         "the same words before, in prompt and answer; mtp: by the model's draft layer"}),
    option_row<Count{&O::speculative_tokens, 1, kMostDrafts}>(
        {kDrafts, kRuns, "speculative-tokens", "num-speculative-tokens draft-max", "N",
         "with --speculative: tokens that are guessed one behind the other, at most"}),
    option_row<Count{&O::speculative_topk, 1, kMostBranches}>(
        {kDrafts, kRuns, "speculative-topk", "speculative-eagle-topk", "K",
         "with --speculative mtp: guesses at one place; 1: a chain of them, more: a tree"}),
    option_row<Count{&O::speculative_width, 0, kMostTreeDrafts}>(
        {kDrafts, kRuns, "speculative-width", "", "W",
         "with --speculative-topk 2 or more: guesses that a step verifies, the most probable of "
         "the tree; 0: tokens times topk"}),

    option_row<Choice<&O::moe, kStrategies>{}>(
        {kKernels, kEveryUse, "moe", "", "", "how experts run; auto: by call"}),
    option_row<Choice<&O::attention, kForms>{}>(
        {kKernels, kEveryUse, "attention", "", "",
         "form of attention; auto: by phase; absorbed: one for all; fused_rope: fused decode "
         "preparation"}),
    option_row<Count{&O::attention_key_chunk, 1, 1 << 20}>(
        {kKernels, kEveryUse, "attention-key-chunk", "", "N",
         "keys expanded at once in prefill; a multiple of the block size"}),
    option_row<Switch{&O::batch_invariant}>(
        {kKernels, kEveryUse, "batch-invariant", "deterministic enable-deterministic-inference", "",
         "one form of attention and kernels: a token's bits never depend on how it was computed; "
         "slower on a GPU"}),
    option_row<PinList{&O::pins}>({kKernels, kRuns, "pin", "", "OP=VARIANT",
                               "use this variant for an op or kernel; may be repeated"}),
};

// clang-format on

std::string_view without_dashes(std::string_view flag) {
  while (!flag.empty() && flag.front() == '-')
    flag.remove_prefix(1);
  return flag;
}

bool has_alias(std::string_view aliases, std::string_view name) {
  for (size_t at = 0; at < aliases.size();) {
    const size_t end = std::min(aliases.find(' ', at), aliases.size());
    if (aliases.substr(at, end - at) == name) return true;
    at = end + 1;
  }
  return false;
}

// "auto|bf16|f32"; a value without a word is what the option is when it is not given.
std::string join_words(const std::vector<std::string_view>& words) {
  std::string out;
  for (std::string_view word : words) {
    if (!word.empty()) str_append(out, str_cat(out.empty() ? "" : "|", word));
  }
  return out;
}

// "--block-size: found '0', expected an integer from 1 to 1024".
Status refuse(const OptionInfo& row, std::string_view found) {
  const std::vector<std::string_view> words = row.words();
  const std::string expected = words.empty() ? row.expected() : "one of " + join_words(words);
  const bool is_count = row.expected().starts_with("an integer");
  return invalid_argument(
      str_cat("--", row.flag, is_count ? ": found '" : " is '", found.substr(0, 64), "', expected ",
              expected,
              words.empty() ? "" : did_you_mean(near_names(found, {words.begin(), words.end()}))));
}

}  // namespace

std::string_view group_heading(OptionGroup group) {
  constexpr std::string_view kHeadings[] = {"Model",    "Model without files",
                                            "Machine",  "Device",
                                            "Numbers",  "Memory",
                                            "Requests", "Drafts",
                                            "Kernels"};
  return kHeadings[static_cast<size_t>(group)];
}

std::string OptionInfo::value() const {
  return unit.empty() ? join_words(words()) : std::string(unit);
}

std::string OptionInfo::environment() const {
  return environment_name(flag);
}

std::string environment_name(std::string_view flag) {
  std::string out = "FATHOM_";
  for (char c : flag)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::span<const OptionInfo> option_table() {
  return kTable;
}

const OptionInfo* find_option(std::string_view flag) {
  const std::string_view name = without_dashes(flag);
  for (const OptionInfo& row : kTable) {
    if (row.flag == name || has_alias(row.aliases, name)) return &row;
  }
  return nullptr;
}

Status set_option(EngineOptions& options, std::string_view flag, std::string_view text) {
  const OptionInfo* row = find_option(flag);
  if (row == nullptr) {
    return invalid_argument(str_cat("unknown option --", without_dashes(flag).substr(0, 64)));
  }
  EngineOptions changed = options;
  if (!row->read(changed, text) || !row->holds(changed)) return refuse(*row, text);
  options = std::move(changed);
  return {};
}

Status check_source(const EngineOptions& o, SourceUse use) {
  if (!o.model.empty() && !o.preset.empty()) {
    return invalid_argument(str_cat("MODEL is '", o.model, "' and --as is '", o.preset,
                                    "', expected one of the two: a model's files, or a built-in "
                                    "description"));
  }
  if (o.model.empty() && o.preset.empty()) {
    return invalid_argument(
        "a MODEL is missing, expected a directory or ORG/NAME in the local cache (or --as PRESET, "
        "in commands that a built-in description will do for)");
  }
  if (o.preset.empty() && o.format && !o.dummy_weights) {
    return invalid_argument(str_cat("--format is '", option::word_of(o.format),
                                    "', but a MODEL has the formats of its files; --format is for "
                                    "--as PRESET and for --dummy-weights, and `fathom quantize` "
                                    "writes another format"));
  }
  if (o.preset.empty() && o.layers > 0) {
    return invalid_argument(str_cat("--layers is ", o.layers,
                                    ", but a MODEL has all of its layers; --layers is for --as "
                                    "PRESET"));
  }
  if (!o.dummy_weights && o.dummy_seed != 0) {
    return invalid_argument(str_cat("--dummy-seed is ", o.dummy_seed,
                                    ", but weights are random with --dummy-weights alone"));
  }
  if (use == SourceUse::kWeights && !o.preset.empty() && !o.dummy_weights) {
    return invalid_argument(
        str_cat("--as ", o.preset, " has no weights\nhint: add --dummy-weights, or name a MODEL"));
  }
  return {};
}

Status validate(const EngineOptions& o, SourceUse use) {
  for (const OptionInfo& row : kTable) {
    if (!row.holds(o)) return refuse(row, row.get(o));
  }
  FATHOM_TRY(check_source(o, use));
  if (o.max_num_batched_tokens < o.max_num_seqs && use == SourceUse::kWeights) {
    return invalid_argument(str_cat("--max-num-batched-tokens is ", o.max_num_batched_tokens,
                                    ", expected at least --max-num-seqs, ", o.max_num_seqs,
                                    ": each running sequence needs a token of a step"));
  }
  if (o.attention_key_chunk % o.block_size != 0) {
    // Named is the one that was changed: the other is as it was without a word of the user.
    if (o.attention_key_chunk == EngineOptions{}.attention_key_chunk) {
      return invalid_argument(str_cat("--block-size is ", o.block_size, ", expected a divisor of ",
                                      o.attention_key_chunk,
                                      ", such as 16, 32, 64 or 128\nhint: "
                                      "--attention-key-chunk may be a multiple of it instead"));
    }
    return invalid_argument(str_cat("--attention-key-chunk is ", o.attention_key_chunk,
                                    ", expected a multiple of --block-size, ", o.block_size));
  }
  if (o.activations == Nvfp4Inputs::kQuantised && o.moe_activations != MoeActivations::kAuto) {
    return invalid_argument(
        str_cat("--activations nvfp4 is for routed experts too, but --moe-activations is ",
                option::word_of(o.moe_activations), "\nhint: leave one of the two out"));
  }
  if (o.batch_invariant && o.attention == AttentionChoice::kFusedRope) {
    return invalid_argument(
        "--batch-invariant fixes the absorbed form; --attention fused_rope "
        "is another one");
  }
  return {};
}

std::string options_json(const EngineOptions& options) {
  JsonWriter writer;
  writer.begin_object();
  for (const OptionInfo& row : kTable)
    writer.key(row.flag).string(row.get(options));
  writer.end_object();
  return writer.take();
}

}  // namespace fathom
