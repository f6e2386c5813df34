#include "cli/inspect_json.h"

#include <algorithm>
#include <map>

#include "fathom/models/dry/dry_records.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

constexpr int64_t kDecodeContext = 4096;

void write_model(JsonWriter& out,
                 const std::string& name,
                 const std::vector<std::string>& notes,
                 const ModelConfig& c) {
  int64_t dense = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l)
    dense += c.is_moe_layer(l) ? 0 : 1;
  out.key("model").begin_object().key("name").string(name);
  out.key("architecture").string(c.architecture).key("model_type").string(c.model_type);
  out.key("layers").integer(c.num_hidden_layers).key("dense_layers").integer(dense);
  out.key("draft_layers").integer(c.num_nextn_predict_layers);
  out.key("hidden_size").integer(c.hidden_size);
  out.key("attention_heads").integer(c.num_attention_heads);
  out.key("experts").integer(c.n_routed_experts);
  out.key("experts_per_token").integer(c.num_experts_per_tok);
  out.key("shared_experts").integer(c.n_shared_experts);
  out.key("vocabulary").integer(c.vocab_size);
  out.key("context").integer(c.max_position_embeddings).key("notes").begin_array();
  for (const std::string& note : notes)
    out.string(note);
  out.end_array().end_object();
}

void write_weights(JsonWriter& out, const WeightStore& weights) {
  out.key("weight_bytes").integer(weights.bytes()).key("weights").begin_array();
  for (const WeightSummary& s : weights.summary()) {
    out.begin_object().key("role").string(weight_role_name(s.role));
    out.key("format").string(format_name(s.format)).key("draft").boolean(s.draft);
    out.key("tensors").integer(s.tensors).key("parameters").integer(s.parameters);
    out.key("bytes").integer(s.bytes).end_object();
  }
  out.end_array();
}

void write_cache(JsonWriter& out, const CacheLayout& cache) {
  out.key("cache").begin_array();
  for (const CacheGroup& group : cache.groups) {
    out.begin_object().key("name").string(group.name);
    if (group.grows()) {
      out.key("bytes_per_token").integer(group.bytes() / cache.block_tokens);
    } else {
      out.key("bytes_per_sequence").integer(group.bytes());
    }
    out.end_object();
  }
  out.end_array();
}

// The calls of an op that run one kernel, together.
struct OpSum {
  std::string op;
  std::string kernel;
  std::string variant;
  int64_t calls = 0;
  double flops = 0;
  int64_t bytes = 0;
};

std::vector<OpSum> sums_of(const std::vector<OpRecord>& records) {
  std::vector<OpSum> sums;
  std::map<std::string, size_t> index;
  for (const OpRecord& r : records) {
    const std::string variant = r.variant == nullptr ? "" : r.variant;
    const std::string key =
        str_cat(std::string_view(r.op.name), "/", std::string_view(r.kernel), "/", variant);
    const auto [at, fresh] = index.try_emplace(key, sums.size());
    if (fresh) sums.push_back({.op = r.op.name, .kernel = r.kernel, .variant = variant});
    OpSum& sum = sums[at->second];
    ++sum.calls;
    sum.flops += r.cost.flops;
    sum.bytes += r.cost.bytes();
  }
  return sums;
}

Status write_ops(JsonWriter& out, const Model& model, const PlanOptions& options) {
  const int64_t length = options.max_model_len > 0 ? options.max_model_len : kDecodeContext;
  const int64_t context = std::min(length, model.config().max_position_embeddings);
  BatchShape shape;
  shape.decode = {.count = 1, .new_tokens = 1, .cached = context - 1};
  FATHOM_ASSIGN(const std::vector<OpRecord> records, dry_records(model, shape,
                                                                 {.num_threads = options.threads,
                                                                  .kernels = options.kernels,
                                                                  .gpu = options.gpu}));
  out.key("decode").begin_object().key("context").integer(context).key("ops").begin_array();
  for (const OpSum& sum : sums_of(records)) {
    out.begin_object().key("op").string(sum.op).key("kernel").string(sum.kernel);
    out.key("variant").string(sum.variant).key("calls").integer(sum.calls);
    out.key("flops").number(sum.flops).key("bytes").integer(sum.bytes).end_object();
  }
  out.end_array().end_object();
  return {};
}

}  // namespace

Result<std::string> inspection_json(const std::string& name,
                                    const std::vector<std::string>& notes,
                                    const Model& model,
                                    const PlanOptions& options) {
  FATHOM_ASSIGN(const MemoryVerdict memory, memory_plan_text(model, options));
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string("fathom.inspect/1");
  write_model(out, name, notes, model.config());
  write_weights(out, model.weights());
  write_cache(out, model.cache_layout());
  out.key("fits").boolean(memory.fits).key("verdict").string(memory.verdict);
  FATHOM_TRY(write_ops(out, model, options));
  out.end_object();
  return out.take() + "\n";
}

}  // namespace fathom::cli
