// The ops of a pass as a tree of the scopes they ran in, with equal ones folded: sixty-one layers
// become "layers 0-2" and "layers 3-60", or "layers 3, 5, ..., 41" where kinds of layers alternate.
// What is equal is found by comparing the calls.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fathom/report/recording.h"

namespace fathom {

/// Numbers as ranges: "0-2, 5"; four and more at one distance as "4, 6, ..., 42".
std::string ranges_text(std::vector<int> numbers);

struct TreeNode;

/// A leaf's call. Folded layers may differ in one: layer 0 has no residual to add to yet.
struct CallForm {
  const TraceOp* op = nullptr;
  std::vector<int> layers;  ///< layers it stands for; empty outside of layers
  int64_t calls = 1;
};

/// A scope with its children, or an op with its forms.
struct TreeNode {
  std::string_view name;
  std::vector<int> indexes;  ///< of the folded scopes; empty for a scope without index
  CallSite site;             ///< what opened the scope, or names the op
  std::vector<TreeNode> children;
  std::vector<CallForm> forms;  ///< of an op; a scope has none

  bool is_op() const { return !forms.empty(); }

  /// Calls of kernels below, folded ones counted.
  int64_t calls() const;
};

/// The tree of one pass; its root has no name. Layers are folded into the first that has the same
/// ops in the same scopes, other scopes into the one before if every call below is the same. The
/// ops outlive the tree.
TreeNode build_tree(std::span<const TraceOp> ops);

/// The same without folding: a node a scope, a leaf a call.
TreeNode unfolded_tree(std::span<const TraceOp> ops);

/// True if a kernel of mixture of experts runs below.
bool has_experts(const TreeNode& node);

/// "layers 3-60", "key_chunk 0", "self_attn".
std::string node_label(const TreeNode& node);

/// The leaves in order, each form once, with the labels of the scopes above it:
/// "model/layers 3-60/mlp".
struct Leaf {
  std::string path;
  const TreeNode* node;
  const CallForm* form;
};

std::vector<Leaf> leaves_of(const TreeNode& root);

}  // namespace fathom
