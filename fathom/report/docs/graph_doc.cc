#include "fathom/report/docs/graph_doc.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

struct Line {
  std::string tree;    // branches and name
  std::string kernel;  // kernel and variant
  std::string rest;    // operands
};

size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string kernel_text(const TraceOp& op) {
  if (op.variant.empty()) return std::string(op.kernel);
  return str_cat(op.kernel, " (", op.variant, ")");
}

std::string call_text(const TraceOp& op) {
  return str_cat(inputs_text(op), " -> ", outputs_text(op));
}

// "y [T, 24576]", results alone.
std::string outline_text(const TraceOp& op) {
  std::string out;
  for (const TraceOperand& o : op.operands()) {
    if (o.written) str_append(out, str_cat(out.empty() ? "" : ", ", o.name, " ", o.numbers()));
  }
  return out;
}

std::string scope_text(const TreeNode& node, TreeText detail) {
  std::string out = node_label(node);
  if (node.name == "layer") str_append(out, has_experts(node) ? ", MoE" : ", dense");
  const size_t copies = node.indexes.size();
  if (copies > 1) str_append(out, str_cat(" (", copies, " of them)"));
  if (detail == TreeText::kOutline) return out;
  str_append(out, str_cat("  · ", std::string_view(node.site.function), "() in ",
                          project_path(node.site.file)));
  return out;
}

void add_lines(const TreeNode& node,
               const std::string& indent,
               TreeText detail,
               std::vector<Line>& out) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const TreeNode& child = node.children[i];
    const bool last = i + 1 == node.children.size();
    const std::string branch = str_cat(indent, last ? "└─ " : "├─ ");
    const std::string below = str_cat(indent, last ? "   " : "│  ");
    if (!child.is_op()) {
      out.push_back({str_cat(branch, scope_text(child, detail)), {}, {}});
      add_lines(child, below, detail, out);
      continue;
    }
    for (size_t f = 0; f < child.forms.size(); ++f) {
      const CallForm& form = child.forms[f];
      std::string name = f == 0 ? str_cat(branch, child.name) : below;
      if (child.forms.size() > 1) {
        str_append(name,
                   str_cat(f == 0 ? " " : "", "[", form.layers.size() > 1 ? "layers " : "layer ",
                           ranges_text(form.layers), "]"));
      }
      const bool outline = detail == TreeText::kOutline;
      out.push_back({std::move(name),
                     outline ? std::string(form.op->kernel) : kernel_text(*form.op),
                     outline ? outline_text(*form.op) : call_text(*form.op)});
    }
  }
}

std::string form_text(const TracePhase& phase) {
  std::string out;
  for (const auto& [symbol, sizes] : phase.step_sizes) {
    str_append(out, str_cat(out.empty() ? "" : ", ", symbol, " = "));
    if (sizes.size() <= 4) {
      for (size_t i = 0; i < sizes.size(); ++i)
        str_append(out, str_cat(i == 0 ? "" : " or ", sizes[i]));
    } else {
      str_append(out, str_cat(sizes.front(), " to ", sizes.back()));
    }
  }
  return out;
}

// What becomes of drafts that were wrong, which shows in no op.
std::string rollback_text(const Recording& r) {
  return str_cat(
      "Taking back drafts is no op, in any cache: the sequence is cut behind its last right token, "
      "and the next\nstep overwrites the rows behind it",
      r.config.is_v4() ? ", in rings of windows and in states of compressors too, which hold rows "
                         "enough for that"
                       : "",
      ".\nOf a tree, right rows are first copied to where those of a chain lie, between the "
      "passes.\n\n");
}

void collect_scopes(const TreeNode& node, std::vector<const TreeNode*>& out) {
  for (const TreeNode& child : node.children) {
    if (child.is_op()) continue;
    if (std::none_of(out.begin(), out.end(),
                     [&](const TreeNode* n) { return n->name == child.name; })) {
      out.push_back(&child);
    }
    collect_scopes(child, out);
  }
}

std::string scope_table(const Recording& recording, const SourceLinks& links) {
  MarkdownTable table({"scope", "opened by"});
  std::vector<TreeNode> trees;
  for (const TracePhase& phase : recording.phases)
    trees.push_back(build_tree(phase.first_step()));
  std::vector<const TreeNode*> scopes;
  for (const TreeNode& tree : trees)
    collect_scopes(tree, scopes);
  for (const TreeNode* node : scopes)
    table.add({str_cat("`", node->name, "`"), links.place(node->site)});
  return str_cat(
      "\n## Scopes\n\nWhere the code names the parts; call sites of ops are in "
      "[ops.md](ops.md), chains in [kernels.md](kernels.md).\n\n",
      table.str());
}

}  // namespace

std::string tree_text(const TreeNode& root, TreeText detail) {
  std::vector<Line> lines;
  for (const TreeNode& top : root.children) {
    lines.push_back({scope_text(top, detail), {}, {}});
    add_lines(top, {}, detail, lines);
  }
  size_t name_width = 0;
  size_t kernel_width = 0;
  for (const Line& line : lines) {
    if (line.kernel.empty()) continue;
    name_width = std::max(name_width, columns_of(line.tree));
    kernel_width = std::max(kernel_width, columns_of(line.kernel));
  }
  std::string out;
  for (const Line& line : lines) {
    out += line.tree;
    if (!line.kernel.empty()) {
      str_append(out, std::string(name_width - columns_of(line.tree) + 2, ' '));
      str_append(out,
                 str_cat(line.kernel, std::string(kernel_width - columns_of(line.kernel) + 2, ' '),
                         line.rest));
    }
    out += '\n';
  }
  return out;
}

std::string write_graph_doc(const Recording& recording, const SourceLinks& links) {
  std::string out = str_cat(
      "# Execution graph of ", recording.title, "\n\nPrinted by `", recording.command,
      "` from the calls that the model code makes. A line is an op: its name, the kernel (and\n"
      "variant) that computes it, what it reads and what it writes. Shapes are in the symbols of\n"
      "[config.md](config.md), then in numbers; symbols of the step keep their letters. Layers "
      "are\n"
      "folded where they make the same calls in the same order; where folded layers differ in a\n"
      "call, each form names its layers.\n");
  for (const TracePhase& phase : recording.phases) {
    const TreeNode tree = build_tree(phase.first_step());
    const auto steps = static_cast<int64_t>(phase.steps.size());
    str_append(
        out,
        str_cat("\n## ", phase.title, "\n\n", format_count(tree.calls()), " calls of kernels",
                steps > 1 ? str_cat(" in the first of ", steps, " steps") : "", ". ",
                form_text(phase), ".\n\n", phase.name == "verify" ? rollback_text(recording) : "",
                "Outline:\n\n```text\n", tree_text(tree, TreeText::kOutline),
                "```\n\nWith all operands:\n\n```text\n", tree_text(tree), "```\n"));
  }
  str_append(out, scope_table(recording, links));
  return out;
}

}  // namespace fathom
