// EngineOptions: every knob of the engine, with its default, its range and one check.
//
// One table describes them all. Embedding programs, the command line, the environment, a YAML file,
// the help and the pages of docs/ iterate it; nothing about an option is written down elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/models/config/presets.h"
#include "fathom/os/cpu_info.h"
#include "fathom/runtime/draft/speculative.h"
#include "fathom/runtime/memory_plan.h"
#include "fathom/weights/plan/placement.h"

namespace fathom {

/// Which form of attention runs.
enum class AttentionChoice : uint8_t {
  kByPhase,    ///< auto: expanded keys in prefill, the absorbed form in decode
  kAbsorbed,   ///< one form for all
  kFusedRope,  ///< decode with the fused preparation
};

/// The device of `--device`.
struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;  ///< of the GPU; 0 on the CPU
};

/// How an engine is loaded and run. Names are those that servers of language models use.
struct EngineOptions {
  // What is loaded.
  std::string model;                       ///< directory of a checkpoint
  std::string tokenizer;                   ///< directory of another tokenizer; empty: the model's
  std::string preset;                      ///< built-in description in place of one (`--as`)
  std::optional<PresetFormatName> format;  ///< weights of a preset; absent: its own
  int64_t layers = 0;                      ///< of a preset: its first layers only; 0: all
  bool dummy_weights = false;              ///< random weights of the right shapes and formats
  uint64_t dummy_seed = 0;                 ///< of dummy weights

  // Where it runs.
  DeviceChoice device;
  bool cuda_graphs = true;  ///< replay captured decode steps
  int64_t threads = 0;      ///< 0: one a physical core
  bool pin_threads = true;  ///< each thread stays on its CPU
  std::optional<Isa> isa;   ///< at most this one; absent: the machine's best

  // How numbers are kept.
  std::optional<Format> dtype;           ///< of activations: bf16 or f32; absent: bf16
  std::optional<Format> kv_cache_dtype;  ///< f32, bf16, e4m3 or nvfp4; absent: as the activations
  std::optional<Format> indexer_dtype;   ///< f32, bf16, e4m3 or mxfp4; absent: the model's
  Nvfp4Inputs activations = Nvfp4Inputs::kExact;  ///< what products with weights in NVFP4 read
  MoeActivations moe_activations = MoeActivations::kAuto;  ///< what products of experts read
  int64_t block_size = 64;                                 ///< tokens of a KV page

  // How much there is.
  int64_t max_model_len = 0;             ///< tokens of prompt and answer; 0: the model's, to fit
  int64_t max_num_seqs = 8;              ///< sequences that run at once
  int64_t max_num_batched_tokens = 512;  ///< tokens of a step
  int64_t prefill_chunk = 0;             ///< prompt tokens of one request in a step; 0: no limit
  int64_t step_target_ms = 250;          ///< of a step beside decodes: cuts prompts; 0: no limit
  double memory_fraction = 0.9;          ///< of the memory that is free at start
  KvSizing kv_pool = KvSizing::kByRequest;

  // What requests may do.
  int64_t max_queue = 1024;  ///< waiting requests
  int64_t max_waiting_tokens = 8'388'608;
  double queue_timeout_s = 120;     ///< of served requests; 0: none
  double request_timeout_s = 3600;  ///< of served requests; 0: none
  bool prefix_cache = true;
  /// Base of the random numbers of requests without a seed; absent: chosen at random when loading.
  std::optional<uint64_t> seed;

  // How tokens are drafted. What comes out is the same.
  Speculative speculative = Speculative::kOff;
  int64_t speculative_tokens = 3;  ///< drafts one behind the other in a step at most
  int64_t speculative_topk = 1;    ///< drafts at one place; 1: chains
  int64_t speculative_width = 0;   ///< drafts of a tree in a step at most; 0: tokens * topk

  // Which ways are taken.
  std::optional<MoeStrategy> moe;  ///< absent: by call
  AttentionChoice attention = AttentionChoice::kByPhase;
  int64_t attention_key_chunk = 1024;  ///< keys expanded at once in prefill
  bool batch_invariant = false;        ///< a token's bits never depend on how it was computed
  Pins pins;                           ///< variant of an op or kernel

  /// Where its weights go: whole, on the device.
  Placement placement() const { return {.device = device.kind}; }

  DraftShape draft_shape() const {
    return {.tokens = speculative_tokens, .branches = speculative_topk, .width = speculative_width};
  }
};

/// Options that belong together; the order of the help.
enum class OptionGroup : uint8_t {
  kModel,
  kBuiltIn,  ///< models without files
  kMachine,  ///< of every command
  kDevice,
  kNumbers,
  kMemory,
  kRequests,
  kDrafts,
  kKernels,
};

/// "Numbers", the heading of a group.
std::string_view group_heading(OptionGroup group);

/// What a program does with a model. An option names those in which it changes anything; elsewhere
/// it would do nothing, and is refused.
enum OptionUse : unsigned {
  kComplete = 1,  ///< one prompt, one answer
  kConverse = 2,  ///< one conversation
  kForward = 4,   ///< passes without a scheduler: scores, rates, recordings
  kDryPlan = 8,   ///< shapes alone
  kServe = 16,    ///< many requests at once
  kEveryUse = 31,
};

/// One option.
struct OptionInfo {
  std::string_view flag;     ///< canonical, without dashes: "max-model-len"
  std::string_view aliases;  ///< other spellings, separated by spaces
  std::string_view unit;     ///< what follows: "N", "DIR"; empty for a switch and for words
  std::string_view help;
  OptionGroup group;
  unsigned uses;  ///< of OptionUse
  bool repeats;   ///< may be given more than once, and adds up

  bool (*read)(EngineOptions& options, std::string_view text);  ///< false: no such value
  std::string (*get)(const EngineOptions& options);             ///< what `read` takes
  bool (*holds)(const EngineOptions& options);                  ///< the limits of this one value
  std::string (*expected)();                 ///< "an integer from 1 to 1024", for messages
  std::vector<std::string_view> (*words)();  ///< all values, where they are words; else none

  /// "N", "auto|bf16|f32"; empty for a switch.
  std::string value() const;

  /// "FATHOM_MAX_MODEL_LEN".
  std::string environment() const;
};

/// All of them, in the order of their groups.
std::span<const OptionInfo> option_table();

/// The environment variable of a flag, of this table or another: upper case, FATHOM_ in front.
std::string environment_name(std::string_view flag);

/// The option of that name or alias, with or without leading dashes; null if there is none.
const OptionInfo* find_option(std::string_view flag);

/// Sets one option. A switch takes "" (on), true, false, on, off. Errors: InvalidArgument for an
/// unknown flag or a value that does not parse or is out of range; the message names the flag, the
/// value and what is expected.
Status set_option(EngineOptions& options, std::string_view flag, std::string_view text);

/// Whether weights are wanted, for check_source.
enum class SourceUse : uint8_t { kWeights, kShapes };

/// Refuses options that name no model, or two, and those of a preset beside a model, which would do
/// nothing. Errors: InvalidArgument, naming flags.
Status check_source(const EngineOptions& options, SourceUse use);

/// Checks every range and what options demand of each other. Errors: InvalidArgument, naming flags.
Status validate(const EngineOptions& options, SourceUse use = SourceUse::kWeights);

/// The effective options as one line of JSON, for logs.
std::string options_json(const EngineOptions& options);

}  // namespace fathom
