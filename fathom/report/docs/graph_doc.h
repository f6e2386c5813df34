// execution_graph.md: the tree of each phase with ops, kernels and shapes.
#pragma once

#include <string>

#include "fathom/report/docs/source_links.h"
#include "fathom/report/op_tree.h"
#include "fathom/report/recording.h"

namespace fathom {

/// One section a phase, with the tree of its first step. Layers that make the same calls are one.
std::string write_graph_doc(const Recording& recording, const SourceLinks& links);

/// The tree alone, a line an op: branches, kernel, operands; a line a scope: what opens it.
/// An outline has op, kernel and the numbers of the results alone.
enum class TreeText : uint8_t { kOutline, kShapes };
std::string tree_text(const TreeNode& root, TreeText detail = TreeText::kShapes);

}  // namespace fathom
