#include "cli/serve/server_info.h"

#include "fathom/bench/records/commit.h"
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

std::string version_json() {
  JsonWriter w;
  w.begin_object();
  w.key("version").string(FATHOM_VERSION).key("commit").string(commit_of_build());
#if defined(FATHOM_SANITIZED)
  w.key("build").string("sanitized");
#elif defined(NDEBUG)
  w.key("build").string("release");
#else
  w.key("build").string("debug");
#endif
  w.key("cuda").boolean(cuda_built());
  w.end_object();
  return w.take();
}

std::string server_info_json(const Engine& engine,
                             const serve::ServedModel& model,
                             const std::vector<StartPhase>& startup,
                             const std::string& config_json) {
  const ModelConfig& c = engine.model().config();
  const MemoryPlan& plan = engine.memory_plan();
  JsonWriter w;
  w.begin_object();
  w.key("version").string(FATHOM_VERSION).key("commit").string(commit_of_build());
  w.key("model").begin_object();
  w.key("names").begin_array();
  for (const std::string& name : model.names)
    w.string(name);
  w.end_array();
  w.key("model_type").string(c.model_type).key("layers").integer(c.num_hidden_layers);
  w.key("vocab_size").integer(model.vocab_size).key("max_model_len").integer(model.max_model_len);
  w.key("chat_format").string(model.chat_format == nullptr ? "" : model.chat_format->name());
  w.key("system_fingerprint").string(model.system_fingerprint);
  w.key("constrained_decoding").boolean(model.grammars != nullptr);
  w.end_object();
  w.key("mode").begin_object();
  for (const auto& [name, value] : effective_mode(engine))
    w.key(name).string(value);
  w.end_object();
  w.key("memory").begin_array();
  for (const auto& [name, bytes] : memory_regions(plan))
    w.begin_object().key("kind").string(name).key("bytes").integer(bytes).end_object();
  w.end_array();
  w.key("kv_cache").begin_object();
  w.key("block_tokens").integer(plan.cache.block_tokens).key("blocks").integer(plan.num_blocks);
  w.key("tokens").integer(plan.cached_tokens());
  w.end_object();
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
