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

// The keys of config.json, those with a symbol first.
std::string parameter_table(const Recording& r) {
  const ModelConfig& c = r.config;
  const std::string none = "none";
  MarkdownTable table({"parameter", "value", "symbol"});
  const auto add = [&](std::string_view key, const std::string& value, std::string_view symbol) {
    table.add({in_code(key), value, std::string(symbol)});
  };
  const auto number = [](int64_t value) { return str_cat(value); };
  add("hidden_size", number(c.hidden_size), "H");
  add("num_attention_heads", number(c.num_attention_heads), "Nh");
  add("q_lora_rank", c.q_lora_rank > 0 ? number(c.q_lora_rank) : "null (plain q_proj)",
      c.q_lora_rank > 0 ? "Lq" : "none");
  add("kv_lora_rank", number(c.kv_lora_rank), "Lkv");
  if (c.has_indexer()) {
    add("index_n_heads", number(c.index_n_heads), "Hi");
    add("index_head_dim", number(c.index_head_dim), "Di");
    add("index_topk", number(c.index_topk), "Kt");
  }
  add("qk_nope_head_dim", number(c.qk_nope_head_dim), "Dn");
  add("qk_rope_head_dim", number(c.qk_rope_head_dim), "Dr");
  table.add({"qk_head_dim", number(c.qk_head_dim()), "Dq = Dn+Dr"});
  add("v_head_dim", number(c.v_head_dim), "Dv");
  add("intermediate_size", number(c.intermediate_size), "Id");
  if (c.n_routed_experts > 0) {
    add("moe_intermediate_size", number(c.moe_intermediate_size), "I");
    add("n_routed_experts", number(c.n_routed_experts), "E");
    add("num_experts_per_tok", number(c.num_experts_per_tok), "K");
    add("n_shared_experts", number(c.n_shared_experts), "Ns");
    add("n_group", number(c.n_group), "G");
    add("topk_group", number(c.topk_group), none);
    add("topk_method", std::string(topk_name(c.topk_method)), none);
    add("norm_topk_prob", c.norm_topk_prob ? "true" : "false", none);
    add("routed_scaling_factor", str_cat(c.routed_scaling_factor), none);
    add("first_k_dense_replace", number(c.first_k_dense_replace), none);
    add("moe_layer_freq", number(c.moe_layer_freq), none);
  }
  add("vocab_size", number(c.vocab_size), "V");
  add("num_hidden_layers", number(c.num_hidden_layers), none);
  add("num_nextn_predict_layers", number(c.num_nextn_predict_layers), none);
  add("max_position_embeddings", number(c.max_position_embeddings), none);
  add("rms_norm_eps", str_cat(c.rms_norm_eps), none);
  add("rope_theta", str_cat(c.rope_theta), none);
  if (c.rope_scaling.yarn) {
    add("rope_scaling",
        str_cat("yarn, factor ", c.rope_scaling.factor, ", original context ",
                c.rope_scaling.original_max_position_embeddings),
        none);
  }
  add("tie_word_embeddings", c.tie_word_embeddings ? "true" : "false", none);
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

std::string layer_table(const Recording& r) {
  MarkdownTable table({"phase", "layers", "kind", "calls of kernels in each"});
  for (const TracePhase& phase : r.phases) {
    const TreeNode tree = build_tree(phase.first_step());
    for (const TreeNode& top : tree.children) {
      for (const TreeNode& node : top.children) {
        if (node.name != "layer") continue;
        table.add({phase.name, ranges_text(node.indexes), has_experts(node) ? "MoE" : "dense",
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
