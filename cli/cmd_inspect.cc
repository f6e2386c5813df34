// inspect: what a model is, what it needs, and which kernel each op gets. Needs no weights.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/command.h"
#include "cli/engine/model_setup.h"
#include "cli/flags.h"
#include "cli/inspect_plan.h"
#include "cli/integers.h"
#include "cli/io/terminal.h"
#include "fathom/kernels/core/kernel_set.h"
#include "fathom/models/explain.h"
#include "fathom/models/registry.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/file.h"
#include "fathom/weights/loader.h"

namespace fathom::cli {
namespace {

struct Flags {
  ModelFlags model;
  std::string explain;
  PlanOptions plan;
};

// A model without weights and where its description came from.
struct Subject {
  std::string title;
  std::unique_ptr<Model> model;
  std::vector<std::string> notes;
  bool is_preset = false;
};

Result<Subject> open_subject(const Flags& flags) {
  FATHOM_TRY(check_source(flags.model));
  ModelOptions options;
  FATHOM_ASSIGN(options.activations, parse_format(flags.model.dtype));
  FATHOM_ASSIGN(options.moe.strategy, parse_moe_strategy(flags.model.moe));
  options.attention.always_absorbed = flags.model.attention == "absorbed";
  options.attention.fused_rope = flags.model.attention == "fused_rope";
  options.draft = !flags.explain.empty();
  OpenOptions dry;
  dry.model = options;
  dry.weights = WeightOrigin::kNone;
  Subject subject;
  const std::string& name = flags.model.preset;
  if (!name.empty()) {
    Result<Preset> preset = find_preset(name);
    if (!preset.ok()) return invalid_argument(str_cat("--as: ", preset.status().message()));
    if (!flags.model.format.empty()) {
      FATHOM_ASSIGN(preset.value().formats, preset_formats(flags.model.format));
    }
    subject.title = str_cat(name, " (built-in description, no files)");
    subject.is_preset = true;
    FATHOM_ASSIGN(subject.model, open_preset(preset.value(), dry));
    return subject;
  }
  if (flags.model.model.empty()) {
    return invalid_argument("inspect needs a MODEL, or --as PRESET for a built-in description");
  }
  FATHOM_ASSIGN(const std::string directory, resolve_model_argument(flags.model.model));
  FATHOM_ASSIGN(const OpenedFolder folder, open_folder(directory));
  const Checkpoint& checkpoint = folder.checkpoint;
  const QuantConfig& declared = folder.declared;
  FATHOM_ASSIGN(subject.model, open_model(checkpoint, folder.config, dry));
  subject.title = str_cat(directory, " (", checkpoint.file_names().size(), " files, ",
                          format_bytes(checkpoint.total_bytes()), ")");
  if (declared.algo != QuantAlgo::kNone) {
    subject.notes.push_back(str_cat("declared as ", quant_algo_name(declared.algo), " by ",
                                    declared.source, "; the tensors decide"));
  }
  for (const std::string& warning : checkpoint.warnings())
    subject.notes.push_back(warning);
  return subject;
}

std::string describe_attention(const ModelConfig& c) {
  return str_cat(c.num_attention_heads, " heads of ", c.qk_nope_head_dim, "+", c.qk_rope_head_dim,
                 " (values ", c.v_head_dim, "), query latent ",
                 c.q_lora_rank > 0 ? str_cat(c.q_lora_rank) : std::string("none"),
                 ", key-value latent ", c.kv_lora_rank);
}

void print_model(const Subject& subject) {
  const ModelConfig& c = subject.model->config();
  int64_t dense = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l)
    dense += c.is_moe_layer(l) ? 0 : 1;
  std::printf("# %s\n\n", subject.title.c_str());
  MarkdownTable table({"what", "value"});
  table.add({"architecture", str_cat(c.architecture, " (", c.model_type, ")")});
  table.add({"layers", str_cat(c.num_hidden_layers, ": ", dense, " dense, ",
                               c.num_hidden_layers - dense, " with experts",
                               c.num_nextn_predict_layers > 0
                                   ? str_cat(", and ", c.num_nextn_predict_layers, " draft")
                                   : std::string{})});
  table.add({"hidden size", str_cat(c.hidden_size)});
  table.add({"attention (MLA)", describe_attention(c)});
  table.add({"dense MLP", str_cat("width ", c.intermediate_size)});
  if (c.n_routed_experts > 0) {
    table.add({"experts", str_cat(c.n_routed_experts, " of width ", c.moe_intermediate_size, ", ",
                                  c.num_experts_per_tok, " a token, ", c.n_shared_experts,
                                  " shared; groups ", c.n_group, ", ", c.topk_group, " kept")});
  }
  table.add({"vocabulary", str_cat(c.vocab_size)});
  table.add({"context", str_cat(c.max_position_embeddings, " tokens")});
  std::printf("%s", table.str().c_str());
  for (const std::string& note : subject.notes)
    std::printf("\nnote: %s\n", note.c_str());
}

// An op may be of one phase only.
Result<int> explain(const Model& model, const std::string& op, const KernelSet& kernels) {
  Result<std::string> text = explain_op_everywhere(model, op, kernels);
  if (text.ok()) {
    std::printf("%s", text.value().c_str());
    return kExitOk;
  }
  if (text.status().code() != StatusCode::kNotFound) return std::move(text).status();
  return invalid_argument(str_cat("--explain: ", text.status().message()));
}

Result<int> inspect(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const Isa isa, limit_isa(globals.isa, best_isa()));
  const KernelSet kernels = KernelSet::for_cpu(isa);
  FATHOM_ASSIGN(Subject subject, open_subject(flags));
  PlanOptions plan = flags.plan;
  FATHOM_ASSIGN(plan.threads, resolve_threads(globals.threads));
  plan.kernels = &kernels;
  plan.preset = subject.is_preset;
  if (!flags.explain.empty()) {
    return explain(*subject.model, flags.explain, kernels);
  }
  // What cannot be planned is refused before anything is printed.
  FATHOM_ASSIGN(const std::string weights, weights_table(*subject.model));
  FATHOM_ASSIGN(const MemoryVerdict memory, memory_plan_text(*subject.model, plan));
  FATHOM_ASSIGN(const std::string calls, kernel_plan_text(*subject.model, plan));
  print_model(subject);
  std::printf("\n## Weights\n\n%s", weights.c_str());
  std::printf("\n## Memory plan\n\n%s", memory.text.c_str());
  std::printf("\n## Kernel plan\n\n%s", calls.c_str());
  std::printf("\nverdict: %s\n", memory.verdict.c_str());
  return kExitOk;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub =
      app.add_subcommand("inspect", "Configuration, formats, memory plan and kernel plan");
  sub->add_option("MODEL", flags->model.model, "Model directory, or ORG/NAME in the local cache");
  sub->add_option("--as", flags->model.preset, "A built-in description, such as deepseek-r1-nvfp4");
  sub->add_option("--format", flags->model.format,
                  "With --as: bf16, fp8_block, nvfp4, fp8, int8, w4a8 or w4a8_group weights");
  sub->add_option("--dtype", flags->model.dtype, "Activations: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  sub->add_option("--device", flags->plan.device,
                  "Plan for cpu, h200, h100, b200 or gb200, with a count: 8xh200");
  sub->add_option("--max-model-len", flags->plan.max_model_len,
                  "Context to plan for; 0: the model's")
      ->check(integer_range(int64_t{0}, int64_t{1} << 24));
  sub->add_option("--max-num-seqs", flags->plan.max_num_seqs, "Sequences to plan for")
      ->check(integer_range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  sub->add_option("--moe", flags->model.moe, "How experts run: auto, grouped, sorted or fused")
      ->check(CLI::IsMember({"auto", "grouped", "sorted", "fused"}))
      ->capture_default_str();
  sub->add_option(
         "--attention", flags->model.attention,
         "auto: by phase; absorbed: one form for all; fused_rope: fused decode preparation")
      ->check(CLI::IsMember({"auto", "absorbed", "fused_rope"}))
      ->capture_default_str();
  sub->add_option("--explain", flags->explain, "Why an op gets its kernel, such as q_b_proj");
  return {sub, [flags](const GlobalFlags& globals) { return inspect(*flags, globals); }};
}

}  // namespace fathom::cli
