#include "fathom/report/docs/op_doc.h"

#include <algorithm>
#include <map>
#include <set>

#include "fathom/base/str_cat.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/report/op_tree.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

std::string in_code(std::string_view text) {
  return str_cat("`", text, "`");
}

std::string kernel_cell(const TraceOp& op) {
  return op.variant.empty() ? in_code(op.kernel)
                            : str_cat(in_code(op.kernel), " (", op.variant, ")");
}

// ---- 1. Tables of a phase

struct Row {
  const TraceOp* op;
  std::string scope;  // below the layer
  std::vector<int> layers;
  int64_t calls = 0;
};

// Rows of one table; equal calls of different layers are one row.
class OpTable {
 public:
  void add(const std::string& scope, const CallForm& form) {
    for (Row& row : rows_) {
      if (row.scope != scope || !same_call(*row.op, *form.op)) continue;
      row.calls += form.calls;
      row.layers.insert(row.layers.end(), form.layers.begin(), form.layers.end());
      return;
    }
    rows_.push_back({form.op, scope, form.layers, form.calls});
  }

  bool empty() const { return rows_.empty(); }

  std::string str() const {
    const bool layers =
        std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.layers.empty(); });
    std::vector<std::string> header{"op"};
    if (layers) header.insert(header.end(), {"in", "layers"});
    header.insert(header.end(), {"reads", "writes", "kernel", "calls", "FLOPs a call", "weights",
                                 "cache", "activations"});
    MarkdownTable table(std::move(header));
    for (const Row& row : rows_) {
      const TraceOp& op = *row.op;
      std::vector<std::string> cells{in_code(op.op)};
      if (layers) cells.insert(cells.end(), {row.scope, ranges_text(row.layers)});
      cells.insert(cells.end(),
                   {inputs_text(op), outputs_text(op), kernel_cell(op), str_cat(row.calls),
                    format_si(op.cost.flops), format_bytes(op.traffic.weights),
                    format_bytes(op.traffic.cache), format_bytes(op.traffic.activations)});
      table.add(std::move(cells));
    }
    return table.str();
  }

 private:
  std::vector<Row> rows_;
};

void add_below(const TreeNode& node, const std::string& scope, OpTable& table) {
  if (node.is_op()) {
    for (const CallForm& form : node.forms)
      table.add(scope, form);
    return;
  }
  for (const TreeNode& child : node.children) {
    const bool scoped = !child.is_op();
    add_below(child,
              scoped ? str_cat(scope == "layer" ? "" : scope + "/", node_label(child)) : scope,
              table);
  }
}

// What a layer does up to its attention, and what it does afterwards.
void split_layer(const TreeNode& layer, OpTable& attention, OpTable& ffn) {
  bool after = false;
  for (const TreeNode& child : layer.children) {
    add_below(child, child.is_op() ? std::string("layer") : node_label(child),
              after ? ffn : attention);
    after = after || child.name == "self_attn";
  }
}

struct Totals {
  double flops = 0;
  Traffic traffic;
};

std::string totals_text(const TracePhase& phase) {
  Totals sum;
  for (const TraceOp& op : phase.first_step()) {
    sum.flops += static_cast<double>(op.calls) * op.cost.flops;
    sum.traffic.weights += op.calls * op.traffic.weights;
    sum.traffic.cache += op.calls * op.traffic.cache;
    sum.traffic.activations += op.calls * op.traffic.activations;
  }
  return str_cat("All calls of the step: ", format_si(sum.flops), "FLOP; weights ",
                 format_bytes(sum.traffic.weights), ", cache ", format_bytes(sum.traffic.cache),
                 ", activations ", format_bytes(sum.traffic.activations), ".\n");
}

std::string phase_section(const TracePhase& phase) {
  const TreeNode tree = build_tree(phase.first_step());
  OpTable attention;
  OpTable outside;
  std::string ffn;
  for (const TreeNode& top : tree.children) {
    if (top.is_op()) {
      add_below(top, {}, outside);
      continue;
    }
    for (const TreeNode& node : top.children) {
      if (node.name != "layer") {
        add_below(node, std::string(top.name), outside);
        continue;
      }
      OpTable table;
      split_layer(node, attention, table);
      str_append(ffn, str_cat("\n### ", phase.name, ": feed-forward, ",
                              has_experts(node) ? "MoE" : "dense", ", ", node_label(node), "\n\n",
                              table.str()));
    }
  }
  std::string out = str_cat("\n## ", phase.title, "\n\n", totals_text(phase));
  if (!attention.empty()) {
    str_append(out, str_cat("\n### ", phase.name, ": attention\n\n", attention.str()));
  }
  out += ffn;
  str_append(out, str_cat("\n### ", phase.name, ": outside of layers\n\n", outside.str()));
  return out;
}

// ---- 2. Over all variations

using Names = std::vector<std::string>;

void add_once(Names& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

std::string joined(const Names& names) {
  std::string out;
  for (const std::string& name : names)
    str_append(out, str_cat(out.empty() ? "" : ", ", name));
  return out;
}

// Formats and variations that lead from an op to a kernel.
std::string weight_formats(const std::set<std::string>& formats) {
  std::string out;
  for (const std::string& f : formats)
    str_append(out, str_cat(out.empty() ? " (" : ", ", f));
  return out.empty() ? out : out + ")";
}

std::string kernels_of_ops(std::span<const Variation> variations) {
  struct Entry {
    Names phases;
    Names kernels;
    std::map<std::string, std::set<std::string>> formats;
  };

  Names order;
  std::map<std::string, Entry> ops;
  for (const Variation& v : variations) {
    for (const TracePhase& phase : v.phases) {
      for (const TraceOp& op : phase.ops) {
        const std::string name(op.op);
        add_once(order, name);
        Entry& entry = ops[name];
        add_once(entry.phases, phase.name);
        add_once(entry.kernels, std::string(op.kernel));
        for (const TraceOperand& o : op.operands()) {
          const bool matrix = o.kind == OperandKind::kWeight && o.dims.size() > 1;
          if (matrix)
            entry.formats[std::string(op.kernel)].insert(std::string(format_name(o.format)));
        }
      }
    }
  }
  MarkdownTable table({"op", "phases", "kernels", "which (formats of the weights)"});
  for (const std::string& name : order) {
    const Entry& entry = ops[name];
    Names kernels;
    for (const std::string& kernel : entry.kernels) {
      const auto at = entry.formats.find(kernel);
      kernels.push_back(
          str_cat(in_code(kernel), at == entry.formats.end() ? "" : weight_formats(at->second)));
    }
    table.add(
        {in_code(name), joined(entry.phases), str_cat(entry.kernels.size()), joined(kernels)});
  }
  return table.str();
}

const TracePhase* find_phase(const Variation& v, std::string_view name) {
  for (const TracePhase& phase : v.phases)
    if (phase.name == name) return &phase;
  return nullptr;
}

bool in_scope(const TraceOp& op, std::string_view scope) {
  return std::any_of(op.scopes.begin(), op.scopes.end(),
                     [&](const ScopeName& s) { return scope == s.name; });
}

// Calls below a scope in the last layer of a phase: the layer that has experts where any has.
std::string scope_table(const TracePhase& phase, std::string_view scope) {
  int last = -1;
  for (const TraceOp& op : phase.ops)
    last = std::max(last, op.index_in("layer"));
  MarkdownTable table({"op", "reads", "writes", "kernel"});
  for (const TraceOp& op : phase.ops) {
    if (op.index_in("layer") != last || !in_scope(op, scope)) continue;
    table.add({in_code(op.op), inputs_text(op), outputs_text(op), kernel_cell(op)});
  }
  return table.empty() ? std::string{} : table.str();
}

// The formats a checkpoint of experts may have, in each strategy that takes them.
std::string strategies(std::span<const Variation> variations) {
  std::string out;
  for (const MoeRow& row : moe_rows()) {
    if (row.pin == MoePin::kNever) continue;
    for (const Variation& v : variations) {
      const std::string suffix = str_cat(" --moe ", row.name);
      if (!v.flags.ends_with(suffix)) continue;
      if (v.phases.empty()) {
        str_append(out, str_cat("\n### `", v.flags, "`\n\nIs refused: ", v.refusal, ".\n"));
        continue;
      }
      const TracePhase* decode = find_phase(v, "decode");
      const std::string table = decode == nullptr ? std::string{} : scope_table(*decode, "mlp");
      if (!table.empty()) str_append(out, str_cat("\n### `", v.flags, "`\n\n", table));
    }
  }
  return out;
}

std::string attention_forms(std::span<const Variation> variations) {
  std::string out;
  for (const AttentionRow& row : attention_rows()) {
    bool shown = false;
    for (const Variation& v : variations) {
      if (shown || v.flags.starts_with("--as ")) continue;
      for (const TracePhase& phase : v.phases) {
        if (shown || attention_form_of(phase) != row.name) continue;
        str_append(out, str_cat("\n### ", row.name, "\n\nServes ", row.when, ". Here: ", v.flags,
                                ", ", phase.name, ".\n\n", scope_table(phase, "self_attn")));
        shown = true;
      }
    }
  }
  return out;
}

// ---- 3. Call sites

std::string site_table(std::span<const Variation> variations, const SourceLinks& links) {
  struct Entry {
    Names sites;
    Names launches;
  };

  Names order;
  std::map<std::string, Entry> ops;
  for (const Variation& v : variations) {
    for (const TracePhase& phase : v.phases) {
      for (const TraceOp& op : phase.ops) {
        const std::string name(op.op);
        add_once(order, name);
        const std::string scope =
            op.scopes.empty() ? "" : str_cat(" (", std::string_view(op.scopes.back().name), ")");
        add_once(ops[name].sites, links.place(op.site) + scope);
        add_once(ops[name].launches, links.place(op.launch));
      }
    }
  }
  MarkdownTable table({"op", "named by (scope)", "launched by"});
  for (const std::string& name : order) {
    table.add({in_code(name), joined(ops[name].sites), joined(ops[name].launches)});
  }
  return table.str();
}

}  // namespace

std::string write_op_doc(const Recording& r,
                         std::span<const Variation> variations,
                         const SourceLinks& links) {
  std::string out = str_cat(
      "# Ops of ", r.title, "\n\nPrinted by `", r.command,
      "`. Shapes are in the symbols of [config.md](config.md). FLOPs and bytes are those of one\n"
      "call by the contract of its kernel: bytes are what must move, each operand once in its "
      "stored\n"
      "format; of experts the expected number of distinct ones; of a cache the keys that are "
      "seen.\n");
  for (const TracePhase& phase : r.phases)
    out += phase_section(phase);
  str_append(out, str_cat("\n## Kernels of each op\n\nOver every `--format`, `--moe` and "
                          "`--attention` that this model can run, the other built-in models, "
                          "drafts, and sampling.\n\n",
                          kernels_of_ops(variations)));
  str_append(out, str_cat("\n## Experts by strategy\n\nThe feed-forward block of a layer with "
                          "experts in decode, in "
                          "each format and strategy.\n",
                          strategies(variations)));
  str_append(out, str_cat("\n## Attention by form\n", attention_forms(variations)));
  str_append(
      out,
      str_cat("\n## Call sites\n\nWhere the layers and models name an op, and where its kernel is "
              "launched.\n\n",
              site_table(variations, links)));
  return out;
}

}  // namespace fathom
