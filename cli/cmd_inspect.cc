// inspect: what a model is, what it needs, and which kernel each op gets. Needs no weights.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/engine/model_setup.h"
#include "cli/inspect_json.h"
#include "cli/inspect_plan.h"
#include "cli/io/terminal.h"
#include "fathom/base/hint.h"
#include "fathom/device/described_gpu.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/models/dry/explain.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string explain;
  std::string device;
  bool json = false;
};

// A model without weights and where its description came from.
struct Subject {
  std::string title;
  std::string name;  // directory, or name of the description
  std::unique_ptr<Model> model;
  std::vector<std::string> notes;
};

Result<Subject> open_subject(const Flags& flags, const EngineOptions& given, DeviceKind kind) {
  FATHOM_ASSIGN(EngineOptions options, checked_options(given, SourceUse::kShapes));
  options.device.kind = kind;
  FATHOM_ASSIGN(const ModelSource source, open_source(options, SourceUse::kShapes));
  OpenOptions dry{.model = model_options(options), .weights = WeightOrigin::kNone};
  dry.model.draft = !flags.explain.empty();
  Subject subject;
  subject.name = source.title;
  FATHOM_ASSIGN(subject.model, open_model(source, options.placement(), dry));
  if (!source.checkpoint) {
    subject.title = str_cat(source.title, " (built-in description, no files)");
    return subject;
  }
  const Checkpoint& checkpoint = *source.checkpoint;
  subject.title = str_cat(source.title, " (", checkpoint.file_names().size(), " files, ",
                          format_bytes(checkpoint.total_bytes()), ")");
  if (source.declared.algo != QuantAlgo::kNone) {
    subject.notes.push_back(str_cat("declared as ", quant_algo_name(source.declared.algo), " by ",
                                    source.declared.source, "; the tensors decide"));
  }
  for (const std::string& warning : checkpoint.warnings())
    subject.notes.push_back(warning);
  return subject;
}

// "2 of a window alone, 21 with chosen rows of 4 tokens, 20 with every row of 128".
std::string describe_ratios(const ModelConfig& c) {
  const auto count = [&](CompressRatio ratio) {
    return std::count(c.compress_ratios.begin(), c.compress_ratios.begin() + c.num_hidden_layers,
                      ratio);
  };
  return str_cat(count(CompressRatio::kNone), " with a window alone, ",
                 count(CompressRatio::kSparse), " with chosen rows of 4 tokens, ",
                 count(CompressRatio::kHeavy), " with every row of 128");
}

void add_compressed_attention(const ModelConfig& c, MarkdownTable& table) {
  table.add({"attention", str_cat(c.num_attention_heads, " heads on a row of ", c.qk_nope_head_dim,
                                  "+", c.qk_rope_head_dim, ", query latent ", c.q_lora_rank,
                                  ", output in ", c.o_groups, " groups of rank ", c.o_lora_rank,
                                  ", window ", c.sliding_window)});
  table.add({"layers by rows", describe_ratios(c)});
  table.add({"indexer", str_cat(c.index_n_heads, " heads of ", c.index_head_dim, ", best ",
                                c.index_topk, " rows")});
  table.add(
      {"residual streams", str_cat(c.hc_mult, ", ", c.hc_sinkhorn_iters, " Sinkhorn rounds")});
}

std::string describe_attention(const ModelConfig& c) {
  if (c.is_v1()) {
    return str_cat(c.num_attention_heads, " heads of ", c.qk_head_dim(), ", ",
                   c.num_key_value_heads, " of keys and values");
  }
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
  if (c.is_v4()) {
    add_compressed_attention(c, table);
  } else {
    table.add({c.is_v1() ? "attention" : "attention (MLA)", describe_attention(c)});
    if (c.has_indexer()) {
      table.add({"indexer", str_cat(c.index_n_heads, " heads of ", c.index_head_dim, ", best ",
                                    c.index_topk, " keys")});
    }
    table.add({"dense MLP", str_cat("width ", c.intermediate_size)});
  }
  if (c.n_routed_experts > 0) {
    table.add(
        {"experts",
         str_cat(c.n_routed_experts, " of width ", c.moe_intermediate_size, ", ",
                 c.num_experts_per_tok, " a token, ", c.n_shared_experts, " shared; ",
                 c.is_v4() ? str_cat("layers before ", c.num_hash_layers, " choose by token id")
                           : str_cat("groups ", c.n_group, ", ", c.topk_group, " kept"))});
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

// All that is printed of a model. What cannot be planned is refused before anything is.
struct Plans {
  Subject subject;
  std::string weights;
  MemoryVerdict memory;
  std::string calls;
  std::string json;  // in place of all the others, if it is asked for
};

Result<Plans> make_plans(const Flags& flags, const EngineOptions& engine, const PlanOptions& plan) {
  Plans out;
  const DeviceKind kind = plan.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda;
  FATHOM_ASSIGN(out.subject, open_subject(flags, engine, kind));
  const Model& model = *out.subject.model;
  if (flags.json) {
    FATHOM_ASSIGN(out.json, inspection_json(out.subject.name, out.subject.notes, model, plan));
    return out;
  }
  FATHOM_ASSIGN(out.weights, weights_table(model));
  FATHOM_ASSIGN(out.memory, memory_plan_text(model, plan));
  FATHOM_ASSIGN(out.calls, kernel_plan_text(model, plan));
  return out;
}

// With the kernels of the GPU that is planned for, where this build has them and they run the whole
// model; else with those of this CPU, and why.
Result<Plans> plan_on(const Flags& flags,
                      const EngineOptions& engine,
                      PlanOptions plan,
                      std::string& why_cpu) {
  const std::optional<DeviceInfo> gpu = described_gpu(plan.device.gpu);
  if (gpu && cuda_is_built()) {
    const KernelSet kernels = KernelSet::for_cuda(gpu->sm, engine.batch_invariant);
    PlanOptions on_gpu = plan;
    on_gpu.kernels = &kernels;
    on_gpu.gpu = &*gpu;
    on_gpu.kernels_of = plan.device.gpu;
    Result<Plans> plans = make_plans(flags, engine, on_gpu);
    const StatusCode code = plans.status().code();
    if (code != StatusCode::kUnsupported && code != StatusCode::kInvalidArgument) return plans;
    why_cpu = str_cat("kernels of ", plan.device.gpu,
                      " do not run all of it: ", in_one_line(plans.status().message()));
  } else if (gpu) {
    why_cpu =
        str_cat("this program is built without CUDA and has no kernels for ", plan.device.gpu);
  }
  return make_plans(flags, engine, plan);
}

Result<int> inspect(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const Isa isa, usable_isa(globals.engine));
  const KernelSet kernels = KernelSet::for_cpu(isa);
  if (!flags.explain.empty()) {
    FATHOM_ASSIGN(const Subject subject, open_subject(flags, globals.engine, DeviceKind::kCpu));
    return explain(*subject.model, flags.explain, kernels);
  }
  PlanOptions plan{.device = {},
                   .max_model_len = globals.engine.max_model_len,
                   .max_num_seqs = globals.engine.max_num_seqs,
                   .threads = thread_count(globals.engine),
                   .kernels = &kernels,
                   .kernels_of = str_cat("this CPU (", isa_name(isa), ")")};
  FATHOM_ASSIGN(plan.device, plan_device(flags.device, !globals.engine.preset.empty()));
  std::string why_cpu;
  FATHOM_ASSIGN(const Plans plans, plan_on(flags, globals.engine, plan, why_cpu));
  if (flags.json) {
    std::printf("%s", plans.json.c_str());
    return kExitOk;
  }
  print_model(plans.subject);
  std::printf("\nPlanned for %s.\n", device_text(plan.device).c_str());
  if (!why_cpu.empty()) {
    std::printf("\nnote: variants of kernels, and memory of steps, are those of this CPU: %s\n",
                why_cpu.c_str());
  }
  std::printf("\n## Weights\n\n%s", plans.weights.c_str());
  std::printf("\n## Memory plan\n\n%s", plans.memory.text.c_str());
  std::printf("\n## Kernel plan\n\n%s", plans.calls.c_str());
  std::printf("\nverdict: %s\n", plans.memory.verdict.c_str());
  return kExitOk;
}

}  // namespace

Command add_inspect(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub =
      app.add_subcommand("inspect", "Configuration, formats, memory plan and kernel plan");
  sub->add_option(
      "--device", flags->device,
      "Plan for cpu, h200, h100, b200 or gb200, with a count: 8xh200 (default: cpu, with "
      "--as 8xh200)");
  sub->add_option("--explain", flags->explain, "Why an op gets its kernel, such as q_b_proj");
  sub->add_flag("--json", flags->json, "Print JSON (fathom.inspect/1)")->excludes("--explain");
  add_engine_flags(*sub, globals.engine, kDryPlan,
                   {OptionGroup::kModel, OptionGroup::kBuiltIn, OptionGroup::kNumbers,
                    OptionGroup::kMemory, OptionGroup::kKernels});
  return {sub, [flags](const GlobalFlags& given) { return inspect(*flags, given); }};
}

}  // namespace fathom::cli
