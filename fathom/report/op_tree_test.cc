#include "fathom/report/op_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/report/record/dry_trace.h"
#include "fathom/report/test_models_test.h"

namespace fathom {
namespace {

using testing::ElementsAre;

TraceOp call(std::string_view op,
             int layer,
             std::string_view kernel = "rmsnorm",
             int64_t rows = 4) {
  TraceOp out;
  out.op = op;
  out.kernel = kernel;
  out.scopes = {{"model", -1, {}}, {"layer", layer, {}}};
  TraceOperand x{.name = "x",
                 .format = Format::kBf16,
                 .read = true,
                 .axes = {{"T", false, "T"}},
                 .dims = {rows}};
  out.shared_operands = std::make_shared<const std::vector<TraceOperand>>(1, std::move(x));
  return out;
}

std::vector<std::string> labels(const TreeNode& node) {
  std::vector<std::string> out;
  for (const TreeNode& child : node.children)
    out.push_back(node_label(child));
  return out;
}

TEST(RangesText, JoinsNeighboursAndDropsRepeats) {
  EXPECT_EQ(ranges_text({}), "");
  EXPECT_EQ(ranges_text({7}), "7");
  EXPECT_EQ(ranges_text({2, 0, 1, 1, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(RangesText, NamesTheEndsOfFourAndMoreAtOneDistance) {
  EXPECT_EQ(ranges_text({3, 5, 7}), "3, 5, 7");
  EXPECT_EQ(ranges_text({4, 6, 8, 10}), "4, 6, ..., 10");
  EXPECT_EQ(ranges_text({0, 1, 3, 5, 7, 9, 10}), "0-1, 3, 5, ..., 9, 10");
}

TEST(OpTree, FoldsLayersThatMakeTheSameCalls) {
  const std::vector<TraceOp> ops = {call("a", 0), call("a", 1), call("a", 2)};

  const TreeNode tree = build_tree(ops);

  EXPECT_THAT(labels(tree.children[0]), ElementsAre("layers 0-2"));
  EXPECT_EQ(tree.calls(), 3);
  EXPECT_EQ(tree.children[0].children[0].children[0].forms.size(), 1u);
}

TEST(OpTree, LayersWithOtherOpsStayApart) {
  const std::vector<TraceOp> ops = {call("a", 0), call("a", 1), call("b", 2), call("c", 3)};

  EXPECT_THAT(labels(build_tree(ops).children[0]), ElementsAre("layers 0-1", "layer 2", "layer 3"));
}

TEST(OpTree, LayersThatAlternateFoldIntoTheFirstOfTheirKind) {
  std::vector<TraceOp> ops;
  for (int layer = 0; layer < 9; ++layer)
    ops.push_back(call(layer % 2 == 0 ? "a" : "b", layer));

  const TreeNode tree = build_tree(ops);

  EXPECT_THAT(labels(tree.children[0]), ElementsAre("layers 0, 2, ..., 8", "layers 1, 3, ..., 7"));
  EXPECT_EQ(tree.calls(), 9);
}

TEST(OpTree, FoldedLayersNameTheOnesThatDiffer) {
  const std::vector<TraceOp> ops = {call("a", 0), call("a", 1, "add_rmsnorm"), call("a", 2)};

  const TreeNode tree = build_tree(ops);

  ASSERT_THAT(labels(tree.children[0]), ElementsAre("layers 0-2"));
  const auto& forms = tree.children[0].children[0].children[0].forms;
  ASSERT_EQ(forms.size(), 2u);
  EXPECT_THAT(forms[0].layers, ElementsAre(0, 2));
  EXPECT_THAT(forms[1].layers, ElementsAre(1));
}

TEST(OpTree, SizesTellCallsApart) {
  const std::vector<TraceOp> ops = {call("a", 0), call("a", 1, "rmsnorm", 5)};

  EXPECT_EQ(build_tree(ops).children[0].children[0].children[0].forms.size(), 2u);
}

TEST(OpTree, PartsOfALayerFoldOnlyWhenEveryCallIsEqual) {
  std::vector<TraceOp> ops = {call("a", 0), call("a", 0), call("a", 0, "rmsnorm", 9)};
  for (int i = 0; i < 3; ++i)
    ops[static_cast<size_t>(i)].scopes.push_back({"key_chunk", i, {}});

  EXPECT_THAT(labels(build_tree(ops).children[0].children[0]),
              ElementsAre("key_chunks 0-1", "key_chunk 2"));
}

TEST(OpTree, UnfoldedTreeHasALeafForEachCall) {
  const std::vector<TraceOp> ops = {call("a", 0), call("a", 1)};

  EXPECT_THAT(labels(unfolded_tree(ops).children[0]), ElementsAre("layer 0", "layer 1"));
}

TEST(OpTree, FlashHasFourKindsOfLayers) {
  const auto model = dry_model("deepseek-v4-flash");
  const auto phases = dry_phases(*model, {});
  ASSERT_TRUE(phases.ok()) << phases.status().message();

  for (const TracePhase& phase : *phases) {
    if (phase.name == "draft") continue;
    std::vector<std::string> parts = labels(build_tree(phase.ops).children[0]);
    // Lists of the decode range, once for all layers.
    EXPECT_EQ(std::erase(parts, "lists"), phase.name == "decode" ? 1u : 0u) << phase.name;
    EXPECT_THAT(parts, ElementsAre("embed_tokens", "hc_expand", "layers 0-1", "layer 2",
                                   "layers 3, 5, ..., 41", "layers 4, 6, ..., 42", "hc_head",
                                   "norm", "select_rows", "lm_head"))
        << phase.name;
  }
}

TEST(OpTree, R1HasThreeDenseLayersAndFiftyEightWithExperts) {
  const auto model = dry_model("deepseek-r1-nvfp4");
  const auto phases = dry_phases(*model, {});
  ASSERT_TRUE(phases.ok()) << phases.status().message();

  for (const TracePhase& phase : *phases) {
    if (phase.name == "draft") continue;
    const TreeNode tree = build_tree(phase.ops);
    EXPECT_THAT(labels(tree.children[0]), ElementsAre("embed_tokens", "layers 0-2", "layers 3-60",
                                                      "norm", "select_rows", "lm_head"));
    EXPECT_FALSE(has_experts(tree.children[0].children[1]));
    EXPECT_TRUE(has_experts(tree.children[0].children[2]));
    EXPECT_EQ(tree.calls(), static_cast<int64_t>(phase.ops.size()));
    // Layer 0 has no residual to add yet.
    const TreeNode& norm = tree.children[0].children[1].children[0];
    ASSERT_EQ(norm.forms.size(), 2u);
    EXPECT_EQ(norm.forms[0].op->kernel, "rmsnorm");
    EXPECT_THAT(norm.forms[0].layers, ElementsAre(0));
    EXPECT_THAT(norm.forms[1].layers, ElementsAre(1, 2));
  }
}

}  // namespace
}  // namespace fathom
