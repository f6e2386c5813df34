#include "fathom/report/docs/config_doc.h"

#include <algorithm>
#include <map>

#include "fathom/base/str_cat.h"
#include "fathom/report/op_tree.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

std::string in_code(std::string_view text) {
  return str_cat("`", text, "`");
}

std::string_view topk_name(TopkMethod method) {
  switch (method) {
    case TopkMethod::kGreedy:
      return "greedy";
    case TopkMethod::kGroupLimitedGreedy:
      return "group_limited_greedy";
    case TopkMethod::kNoauxTc:
    case TopkMethod::kSqrtSoftplus:
      return "noaux_tc";
  }
  return {};
}

std::string settings_table(const Recording& r) {
  MarkdownTable table({"setting", "value"});
  for (const auto& [name, value] : r.settings)
    table.add({name, value});
  return table.str();
}

std::string number(int64_t value) {
  return str_cat(value);
}

// Rows "key, value, symbol"; keys without a symbol have "none".
class ParameterTable {
 public:
  void add(std::string_view key, const std::string& value, std::string_view symbol = "none") {
    table_.add({in_code(key), value, std::string(symbol)});
  }

  // A size that is no key.
  void add_size(std::string name, int64_t value, std::string symbol) {
    table_.add({std::move(name), number(value), std::move(symbol)});
  }

  std::string str() const { return table_.str(); }

 private:
  MarkdownTable table_{{"parameter", "value", "symbol"}};
};

void add_indexer(const ModelConfig& c, ParameterTable& table) {
  table.add("index_n_heads", number(c.index_n_heads), "Hi");
  table.add("index_head_dim", number(c.index_head_dim), "Di");
  table.add("index_topk", number(c.index_topk), "Kt");
}

void add_heads(const ModelConfig& c, ParameterTable& table) {
  table.add("num_key_value_heads", number(c.num_key_value_heads), "Nk");
  table.add_size("head dimension", c.qk_head_dim(), "D = H/Nh");
  table.add("intermediate_size", number(c.intermediate_size), "Id");
}

void add_mla(const ModelConfig& c, ParameterTable& table) {
  table.add("q_lora_rank", c.q_lora_rank > 0 ? number(c.q_lora_rank) : "null (plain q_proj)",
            c.q_lora_rank > 0 ? "Lq" : "none");
  table.add("kv_lora_rank", number(c.kv_lora_rank), "Lkv");
  if (c.has_indexer()) add_indexer(c, table);
  table.add("qk_nope_head_dim", number(c.qk_nope_head_dim), "Dn");
  table.add("qk_rope_head_dim", number(c.qk_rope_head_dim), "Dr");
  table.add_size("qk_head_dim", c.qk_head_dim(), "Dq = Dn+Dr");
  table.add("v_head_dim", number(c.v_head_dim), "Dv");
  table.add("intermediate_size", number(c.intermediate_size), "Id");
}

std::string layers_of_ratio(const ModelConfig& c, CompressRatio ratio) {
  std::vector<int> layers;
  for (int i = 0; i < c.num_hidden_layers; ++i)
    if (c.compress_ratio(i) == ratio) layers.push_back(i);
  return layers.empty() ? "no layer" : str_cat("layers ", ranges_text(std::move(layers)));
}

void add_compressed_attention(const ModelConfig& c, ParameterTable& table) {
  table.add("q_lora_rank", number(c.q_lora_rank), "Lq");
  table.add("head_dim", number(c.head_dim), "D = Dn+Dr");
  table.add_size("channels without rotation", c.qk_nope_head_dim, "Dn");
  table.add("qk_rope_head_dim", number(c.qk_rope_head_dim), "Dr");
  table.add("o_groups", number(c.o_groups), "Go");
  table.add_size("heads of a group", c.num_attention_heads / c.o_groups, "Hg = Nh/Go");
  table.add("o_lora_rank", number(c.o_lora_rank), "Lo");
  table.add("sliding_window", number(c.sliding_window), "W");
  table.add("compress_ratios",
            str_cat("0 (window alone): ", layers_of_ratio(c, CompressRatio::kNone),
                    "; 4 (chosen rows): ", layers_of_ratio(c, CompressRatio::kSparse),
                    "; 128 (every row): ", layers_of_ratio(c, CompressRatio::kHeavy)));
  table.add("compress_rope_theta", str_cat(c.compress_rope_theta));
  add_indexer(c, table);
  table.add("hc_mult", number(c.hc_mult), "n");
  table.add("hc_sinkhorn_iters", number(c.hc_sinkhorn_iters));
  table.add("hc_eps", str_cat(c.hc_eps));
}

void add_experts(const ModelConfig& c, ParameterTable& table) {
  table.add("moe_intermediate_size", number(c.moe_intermediate_size), "I");
  table.add("n_routed_experts", number(c.n_routed_experts), "E");
  table.add("num_experts_per_tok", number(c.num_experts_per_tok), "K");
  table.add("n_shared_experts", number(c.n_shared_experts), "Ns");
  if (c.is_v4()) {
    table.add("scoring_func", "sqrtsoftplus");
    table.add("num_hash_layers", number(c.num_hash_layers));
    table.add("swiglu_limit", str_cat(c.swiglu_limit));
  } else {
    table.add("n_group", number(c.n_group), "G");
    table.add("topk_group", number(c.topk_group));
  }
  table.add("topk_method", std::string(topk_name(c.topk_method)));
  table.add("norm_topk_prob", c.norm_topk_prob ? "true" : "false");
  table.add("routed_scaling_factor", str_cat(c.routed_scaling_factor));
  if (c.is_v4()) return;
  table.add("first_k_dense_replace", number(c.first_k_dense_replace));
  table.add("moe_layer_freq", number(c.moe_layer_freq));
}

// The keys of config.json, those with a symbol first.
std::string parameter_table(const Recording& r) {
  const ModelConfig& c = r.config;
  ParameterTable table;
  table.add("hidden_size", number(c.hidden_size), "H");
  table.add("num_attention_heads", number(c.num_attention_heads), "Nh");
  if (c.is_v1()) {
    add_heads(c, table);
  } else if (c.is_v4()) {
    add_compressed_attention(c, table);
  } else {
    add_mla(c, table);
  }
  if (c.n_routed_experts > 0) add_experts(c, table);
  table.add("vocab_size", number(c.vocab_size), "V");
  table.add("num_hidden_layers", number(c.num_hidden_layers));
  table.add("num_nextn_predict_layers", number(c.num_nextn_predict_layers));
  table.add("max_position_embeddings", number(c.max_position_embeddings));
  table.add("rms_norm_eps", str_cat(c.rms_norm_eps));
  table.add("rope_theta", str_cat(c.rope_theta));
  if (c.rope_scaling.yarn) {
    table.add("rope_scaling", str_cat("yarn, factor ", c.rope_scaling.factor, ", original context ",
                                      c.rope_scaling.original_max_position_embeddings));
  } else if (c.rope_scaling.factor != 1.0) {
    table.add("rope_scaling", str_cat("linear, factor ", c.rope_scaling.factor));
  }
  table.add("tie_word_embeddings", c.tie_word_embeddings ? "true" : "false");
  return table.str();
}

// Every axis that is made of several sizes, with the first operand that has it.
std::string derived_table(const Recording& r) {
  MarkdownTable table({"axis", "in numbers", "size", "first met in"});
  std::map<std::string, bool> seen;
  for (const TracePhase& phase : r.phases) {
    for (const TraceOp& op : phase.ops) {
      for (const TraceOperand& o : op.operands()) {
        for (size_t i = 0; i < o.axes.size(); ++i) {
          const AxisName& axis = o.axes[i];
          const std::string numbers = with_numbers(axis.text, r.symbols);
          const bool compound = axis.text.find_first_of("*+") != std::string::npos;
          if (!axis.fixed || !compound || !seen.try_emplace(axis.text, true).second) continue;
          table.add({in_code(axis.text), numbers, str_cat(o.dims[i]),
                     str_cat(in_code(op.op), ", ", o.name, " ", o.symbols())});
        }
      }
    }
  }
  return table.str();
}

std::string step_table(const Recording& r) {
  std::vector<std::string> header{"symbol", "meaning"};
  for (const TracePhase& phase : r.phases)
    header.push_back(phase.name);
  MarkdownTable table(std::move(header));
  for (const StepSymbol& symbol : step_symbols()) {
    std::vector<std::string> row{std::string(symbol.name), std::string(symbol.meaning)};
    bool used = false;
    for (const TracePhase& phase : r.phases) {
      const auto at = phase.step_sizes.find(std::string(symbol.name));
      if (at == phase.step_sizes.end()) {
        row.push_back("not used");
        continue;
      }
      used = true;
      const auto& sizes = at->second;
      row.push_back(sizes.size() == 1 ? str_cat(sizes.front())
                                      : str_cat(sizes.front(), " to ", sizes.back()));
    }
    if (used) table.add(std::move(row));
  }
  return table.str();
}

// "MoE"; of V4 also what it attends to and how it routes.
std::string kind_of_layer(const ModelConfig& c, const TreeNode& node) {
  const std::string kind = has_experts(node) ? "MoE" : "dense";
  const int layer = node.indexes.front();
  if (!c.is_v4() || layer >= c.num_hidden_layers) return kind;
  const CompressRatio ratio = c.compress_ratio(layer);
  return str_cat(kind, layer < c.num_hash_layers ? " by token id" : "", ", window",
                 ratio == CompressRatio::kNone
                     ? std::string{}
                     : str_cat(" and rows of ", static_cast<int>(ratio), " tokens"));
}

std::string layer_table(const Recording& r) {
  MarkdownTable table({"phase", "layers", "kind", "calls of kernels in each"});
  for (const TracePhase& phase : r.phases) {
    const TreeNode tree = build_tree(phase.first_step());
    for (const TreeNode& top : tree.children) {
      for (const TreeNode& node : top.children) {
        if (node.name != "layer") continue;
        table.add({phase.name, ranges_text(node.indexes), kind_of_layer(r.config, node),
                   str_cat(node.calls() / static_cast<int64_t>(node.indexes.size()))});
      }
    }
  }
  return table.str();
}

std::string weight_table(const Recording& r) {
  MarkdownTable table({"role", "format", "layers", "tensors", "parameters", "bytes in memory"});
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  for (const WeightSummary& s : r.weights) {
    tensors += s.tensors;
    parameters += s.parameters;
    bytes += s.bytes;
    table.add({std::string(weight_role_name(s.role)), std::string(format_name(s.format)),
               s.draft ? "draft" : "main", str_cat(s.tensors), format_count(s.parameters),
               format_count(s.bytes)});
  }
  table.add({"all", "all", "all", str_cat(tensors), format_count(parameters), format_count(bytes)});
  return table.str();
}

}  // namespace

std::string write_config_doc(const Recording& r) {
  return str_cat(
      "# Configuration of ", r.title, "\n\nPrinted by `", r.command, "`.\n\n## Settings\n\n",
      settings_table(r),
      "\n## Model\n\nThe symbols are those of the DeepSeek reports; every document here "
      "uses them.\n\n",
      parameter_table(r),
      "\n## Derived sizes\n\nEvery axis that is a sum or product of them, as it occurs.\n\n",
      derived_table(r), "\n## Symbols of a step\n\nWhat the step gives, not the model.\n\n",
      step_table(r), "\n## Layers\n\n", layer_table(r), "\n## Weights\n\n", weight_table(r));
}

}  // namespace fathom
