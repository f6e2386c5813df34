#include "fathom/report/op_tree.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

constexpr std::string_view kLayer = "layer";

TreeNode* child_scope(TreeNode& parent, const ScopeName& scope) {
  if (!parent.children.empty()) {
    TreeNode& last = parent.children.back();
    const bool same_index = scope.index < 0
                                ? last.indexes.empty()
                                : !last.indexes.empty() && last.indexes.front() == scope.index;
    if (!last.is_op() && last.name == scope.name && same_index) return &last;
  }
  TreeNode& node = parent.children.emplace_back();
  node.name = scope.name;
  node.site = scope.site;
  if (scope.index >= 0) node.indexes = {scope.index};
  return &node;
}

TreeNode leaf(const TraceOp& op) {
  TreeNode node;
  node.name = op.op;
  node.site = op.site;
  CallForm& form = node.forms.emplace_back();
  form.op = &op;
  form.calls = op.calls;
  if (const int layer = op.index_in(kLayer); layer >= 0) form.layers = {layer};
  return node;
}

bool same_calls(const TreeNode& a, const TreeNode& b) {
  return std::equal(a.forms.begin(), a.forms.end(), b.forms.begin(), b.forms.end(),
                    [](const CallForm& x, const CallForm& y) { return same_call(*x.op, *y.op); });
}

// The same ops in the same scopes; `exact`: the same calls too.
bool alike(const TreeNode& a, const TreeNode& b, bool exact) {
  return a.name == b.name && a.is_op() == b.is_op() && (!exact || same_calls(a, b)) &&
         std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
                    [&](const TreeNode& x, const TreeNode& y) {
                      return x.indexes == y.indexes && alike(x, y, exact);
                    });
}

bool follows(const TreeNode& a, const TreeNode& b) {
  if (b.name == kAlikeRequests) return false;  // its index is a number of requests, no place
  return !a.indexes.empty() && !b.indexes.empty() && b.indexes.front() == a.indexes.back() + 1;
}

void merge_forms(TreeNode& into, TreeNode& from) {
  for (CallForm& form : from.forms) {
    const auto same = std::find_if(into.forms.begin(), into.forms.end(),
                                   [&](const CallForm& f) { return same_call(*f.op, *form.op); });
    if (same == into.forms.end()) {
      into.forms.push_back(std::move(form));
      continue;
    }
    same->calls += form.calls;
    for (int layer : form.layers)
      if (same->layers.empty() || same->layers.back() != layer) same->layers.push_back(layer);
  }
  for (size_t i = 0; i < into.children.size(); ++i)
    merge_forms(into.children[i], from.children[i]);
}

// Where a scope is folded into: a layer into any before it, others into the one just before.
TreeNode* fold_target(std::vector<TreeNode>& folded, const TreeNode& child) {
  if (child.name != kLayer) {
    const bool fits =
        !folded.empty() && follows(folded.back(), child) && alike(folded.back(), child, true);
    return fits ? &folded.back() : nullptr;
  }
  const auto same = std::find_if(folded.begin(), folded.end(), [&](const TreeNode& node) {
    return !node.indexes.empty() && !child.indexes.empty() &&
           node.indexes.back() < child.indexes.front() && alike(node, child, false);
  });
  return same == folded.end() ? nullptr : &*same;
}

void fold(TreeNode& node) {
  std::vector<TreeNode> folded;
  for (TreeNode& child : node.children) {
    fold(child);
    if (TreeNode* target = fold_target(folded, child)) {
      merge_forms(*target, child);
      target->indexes.push_back(child.indexes.front());
    } else {
      folded.push_back(std::move(child));
    }
  }
  node.children = std::move(folded);
}

void collect(const TreeNode& node, const std::string& path, std::vector<Leaf>& out) {
  for (const TreeNode& child : node.children) {
    if (child.is_op()) {
      for (const CallForm& form : child.forms)
        out.push_back({path, &child, &form});
    } else {
      collect(child, str_cat(path, path.empty() ? "" : "/", node_label(child)), out);
    }
  }
}

}  // namespace

std::string ranges_text(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string out;
  constexpr size_t kFewest = 4;  // at one distance, to be more than a list
  for (size_t i = 0; i < numbers.size();) {
    const int step = i + 1 < numbers.size() ? numbers[i + 1] - numbers[i] : 1;
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + step)
      ++end;
    const bool spread = step > 1 && end - i + 1 >= kFewest;
    if (step > 1 && !spread) end = i;
    str_append(out, str_cat(out.empty() ? "" : ", ", numbers[i]));
    if (spread) str_append(out, str_cat(", ", numbers[i + 1], ", ..."));
    if (end > i) str_append(out, str_cat(spread ? ", " : "-", numbers[end]));
    i = end + 1;
  }
  return out;
}

int64_t TreeNode::calls() const {
  int64_t sum = 0;
  for (const CallForm& form : forms)
    sum += form.calls;
  for (const TreeNode& child : children)
    sum += child.calls();
  return sum;
}

TreeNode unfolded_tree(std::span<const TraceOp> ops) {
  TreeNode root;
  for (const TraceOp& op : ops) {
    TreeNode* node = &root;
    for (const ScopeName& scope : op.scopes)
      node = child_scope(*node, scope);
    node->children.push_back(leaf(op));
  }
  return root;
}

TreeNode build_tree(std::span<const TraceOp> ops) {
  TreeNode root = unfolded_tree(ops);
  fold(root);
  return root;
}

bool has_experts(const TreeNode& node) {
  for (const CallForm& form : node.forms) {
    const KernelEntry* kernel = find_kernel(form.op->kernel);
    if (kernel != nullptr && kernel->family == "moe") return true;
  }
  return std::any_of(node.children.begin(), node.children.end(), has_experts);
}

std::string node_label(const TreeNode& node) {
  if (node.indexes.empty()) return std::string(node.name);
  if (node.name == kAlikeRequests) return str_cat(node.indexes.front(), " ", node.name);
  return str_cat(node.name, node.indexes.size() > 1 ? "s " : " ", ranges_text(node.indexes));
}

std::vector<Leaf> leaves_of(const TreeNode& root) {
  std::vector<Leaf> out;
  collect(root, {}, out);
  return out;
}

}  // namespace fathom
