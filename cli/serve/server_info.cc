#include "cli/serve/server_info.h"

#include "fathom/bench/machine/conditions.h"
#include "fathom/device/device.h"
#include "fathom/os/cpu_info.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {

std::vector<std::pair<std::string, int64_t>> memory_regions(const MemoryPlan& plan) {
  return {{"weights", plan.weight_bytes},
          {"activations", plan.step.activation_bytes},
          {"workspaces", plan.step.scratch_bytes},
          {"hidden", plan.step.hidden_bytes},
          {"kv_cache", plan.cache_bytes}};
}

std::vector<std::pair<std::string, std::string>> effective_mode(const Engine& engine) {
  const EngineOptions& o = engine.options();
  const ModelOptions& m = engine.model().options();
  const bool gpu = engine.machine().gpu != nullptr;
  std::vector<std::pair<std::string, std::string>> mode{
      {"device", find_option("device")->get(o)},
      {"dtype", std::string(format_name(m.activations))},
      {"kv_cache_dtype", std::string(format_name(m.cache_format()))},
      {"attention", find_option("attention")->get(o)},
      {"experts", find_option("moe")->get(o)},
      {"batch_invariant", o.batch_invariant ? "true" : "false"},
      {"prefix_cache", o.prefix_cache ? "true" : "false"}};
  if (gpu) {
    mode.emplace_back("steps", o.cuda_graphs ? "graphs" : "eager");
    mode.emplace_back("gpu", engine.machine().gpu->info().name);
  } else {
    mode.emplace_back("isa", std::string(isa_name(engine.machine().isa)));
    mode.emplace_back("threads", str_cat(engine.machine().pool->size()));
  }
  return mode;
}

TokenCost token_cost(const Model& model) {
  const ModelConfig& c = model.config();
  TokenCost cost;
  for (const WeightSummary& w : model.weights().summary()) {
    if (w.draft || w.role == WeightRole::kEmbedding || w.role == WeightRole::kHashTable) continue;
    const bool routed = w.role == WeightRole::kExpert && c.n_routed_experts > 0;
    const double share = routed ? static_cast<double>(c.num_experts_per_tok) /
                                      static_cast<double>(c.n_routed_experts)
                                : 1.0;
    cost.flops += 2.0 * share * static_cast<double>(w.parameters);
    (routed ? cost.bytes_per_token : cost.bytes_per_step) += share * static_cast<double>(w.bytes);
  }
  return cost;
}

std::string version_json() {
  JsonWriter w;
  w.begin_object();
  w.key("version").string(FATHOM_VERSION).key("commit").string(build_commit());
#if defined(FATHOM_SANITIZED)
  w.key("build").string("sanitized");
#elif defined(NDEBUG)
  w.key("build").string("release");
#else
  w.key("build").string("debug");
#endif
  w.key("cuda").boolean(cuda_is_built());
  w.end_object();
  return w.take();
}

namespace {

// Whether the model thinks by itself, and the efforts that its format tells apart.
void write_thinking(JsonWriter& w, const serve::ServedModel& model) {
  const ChatFormat& format = *model.chat_format;
  w.key("thinking").begin_object();
  w.key("default").string(format.answer_grammar(model.chat_options).starts_in_reasoning ? "on"
                                                                                        : "off");
  w.key("efforts").begin_array();
  if (format.name().starts_with("v4")) {
    for (const std::string_view effort : {"low", "medium", "high", "max"})
      w.string(effort);
  }
  w.end_array().end_object();
}

void write_model(JsonWriter& w, const Engine& engine, const serve::ServedModel& model) {
  const ModelConfig& c = engine.model().config();
  w.key("model").begin_object();
  w.key("name").string(model.name()).key("names").begin_array();
  for (const std::string& name : model.names)
    w.string(name);
  w.end_array();
  w.key("architecture").string(c.model_type).key("layers").integer(c.num_hidden_layers);
  std::string formats;
  for (const std::string& format : model.formats)
    str_append(formats, str_cat(formats.empty() ? "" : ", ", format));
  w.key("formats").string(formats);
  w.key("parameters").integer(model.num_params).key("bytes").integer(model.weight_bytes);
  w.key("vocab_size").integer(model.vocab_size).key("max_model_len").integer(model.max_model_len);
  w.key("chat_format").string(model.chat_format == nullptr ? "" : model.chat_format->name());
  w.key("system_fingerprint").string(model.system_fingerprint);
  if (model.chat_format != nullptr &&
      model.chat_format->answer_grammar(model.chat_options).knows_thinking) {
    write_thinking(w, model);
  }
  w.end_object();
}

void write_memory(JsonWriter& w, const Engine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  const std::string device = find_option("device")->get(engine.options());
  w.key("memory_plan").begin_array();
  for (const auto& [kind, bytes] : memory_regions(plan)) {
    w.begin_object().key("kind").string(kind).key("device").string(device);
    w.key("bytes").integer(bytes);
    if (kind == "kv_cache") {
      w.key("note").string(
          str_cat(plan.num_blocks, " pages of ", plan.cache.block_tokens, " tokens"));
    }
    w.end_object();
  }
  w.end_array();
}

void write_sampling(JsonWriter& w, const SamplingParams& p) {
  w.key("sampling_defaults").begin_object();
  w.key("temperature").number(p.temperature).key("top_p").number(p.top_p);
  w.key("top_k").integer(p.top_k).key("min_p").number(p.min_p);
  w.end_object();
}

}  // namespace

std::string server_info_json(const Engine& engine,
                             const serve::ServedModel& model,
                             const std::vector<StartPhase>& startup,
                             const std::string& config_json) {
  JsonWriter w;
  w.begin_object();
  w.key("version").string(FATHOM_VERSION).key("commit").string(build_commit());
  write_model(w, engine, model);
  w.key("device").begin_object();
  const Machine& machine = engine.machine();
  w.key("name").string(machine.gpu ? machine.gpu->info().name : cpu_info().model);
  w.key("detail").string(machine.gpu
                             ? str_cat(machine.gpu->info().num_sms, " multiprocessors")
                             : str_cat(machine.pool->size(), " threads, ", isa_name(machine.isa)));
  w.end_object();
  w.key("mode").begin_object();
  for (const auto& [name, value] : effective_mode(engine))
    w.key(name).string(value);
  w.end_object();
  write_memory(w, engine);
  write_sampling(w, model.sampling);
  w.key("structured_output").boolean(model.grammars != nullptr);
  w.key("step_measurement").boolean(true);
  w.key("startup").begin_array();
  for (const StartPhase& phase : startup) {
    w.begin_object().key("phase").string(phase.name).key("seconds").number(phase.seconds);
    w.key("bytes").integer(phase.bytes).end_object();
  }
  w.end_array();
  if (Result<Json> config = parse_json(config_json, {}, "configuration"); config.ok()) {
    w.key("config").json(*config);
  }
  w.end_object();
  return w.take();
}

}  // namespace fathom::cli
