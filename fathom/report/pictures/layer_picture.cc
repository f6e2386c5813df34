#include "fathom/report/pictures/layer_picture.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/report/op_tree.h"
#include "fathom/report/pictures/traffic_bar.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

constexpr double kWidth = 1200;
constexpr double kTop = 124;
constexpr double kOpRow = 27;
constexpr double kScopeRow = 26;  // the head of a box
constexpr double kBelowBox = 7;
constexpr double kText = 12.5;

// Columns.
constexpr double kRail = 30;
constexpr double kTree = 52;
constexpr double kIndent = 16;
constexpr double kKernel = 366;
constexpr double kResult = 552;
constexpr double kBar = 882;
constexpr double kBarWidth = 196;
constexpr double kRight = 1184;

std::string fitted(std::string text, double width) {
  while (!text.empty() && svg_text_width(text, kText) > width) {
    text.resize(text.size() - (text.ends_with("..") ? 3 : 2));
    text += "..";
  }
  return text;
}

std::string results_of(const TraceOp& op) {
  std::string out;
  for (const TraceOperand& o : op.operands()) {
    if (!o.written) continue;
    str_append(out, str_cat(out.empty() ? "" : ", ", o.name, " ", o.numbers()));
  }
  return out;
}

std::string tooltip_of(const TraceOp& op) {
  return str_cat(op.op, ": ", op.kernel, "; reads ", inputs_text(op), "; writes ", outputs_text(op),
                 "; ", format_si(op.cost.flops), "FLOP; weights ", format_bytes(op.traffic.weights),
                 ", cache ", format_bytes(op.traffic.cache), ", activations ",
                 format_bytes(op.traffic.activations));
}

int64_t most_bytes(const TreeNode& node) {
  int64_t most = 0;
  for (const CallForm& form : node.forms)
    most = std::max(most, form.op->cost.bytes());
  for (const TreeNode& child : node.children)
    most = std::max(most, most_bytes(child));
  return most;
}

// The last folded layer below.
const TreeNode* last_layer(const TreeNode& node) {
  const TreeNode* found = nullptr;
  for (const TreeNode& child : node.children) {
    if (child.name == "layer") {
      found = &child;
    } else if (const TreeNode* below = last_layer(child); below != nullptr) {
      found = below;
    }
  }
  return found;
}

// Height of what is below a node, without its head.
double height_of(const TreeNode& node) {
  double height = 0;
  for (const TreeNode& child : node.children)
    height += child.is_op() ? kOpRow : kScopeRow + height_of(child) + kBelowBox;
  return height;
}

class Picture {
 public:
  Picture(const TreeNode& layer, std::string_view title)
      : layer_(layer),
        most_(static_cast<double>(std::max<int64_t>(most_bytes(layer), 1))),
        svg_(kWidth, kTop + height_of(layer) + 40, title) {}

  std::string draw(std::string_view title, std::string_view subtitle) {
    svg_.text({24, 30}, title, {.size = 18, .bold = true});
    svg_.text({24, 54}, subtitle, {.size = 13});
    traffic_legend(svg_, {kBar - 110, 72});
    heads();
    y_ = kTop;
    children(layer_, 0);
    rail();
    return svg_.take();
  }

 private:
  void heads() {
    const SvgText head{.size = kText, .bold = true};
    svg_.text({kRail - 10, kTop - 10}, "h  op", head);
    svg_.text({kKernel, kTop - 10}, "kernel", head);
    svg_.text({kResult, kTop - 10}, "writes", head);
    svg_.text({kBar, kTop - 10}, "bytes of a call", head);
    svg_.line({20, kTop - 3}, {kRight, kTop - 3}, {.stroke = "#8a97a3"});
  }

  void children(const TreeNode& node, int depth) {
    for (const TreeNode& child : node.children) {
      if (child.is_op()) {
        op(*child.forms.back().op, depth);
      } else {
        scope(child, depth);
      }
    }
  }

  void scope(const TreeNode& node, int depth) {
    const double x = kTree + depth * kIndent;
    const double height = kScopeRow - 4 + height_of(node) + kBelowBox - 2;
    svg_.rect({x, y_ + 3, kRight - x - depth * 5, height},
              {.fill = depth % 2 == 0 ? "#f3f6f9" : "#e6edf3", .stroke = "#8a97a3"});
    svg_.text({x + 8, y_ + 19}, node_label(node), {.size = kText, .bold = true});
    y_ += kScopeRow;
    children(node, depth + 1);
    y_ += kBelowBox;
  }

  void op(const TraceOp& op, int depth) {
    const double base = y_ + 18;
    const double x = kTree + depth * kIndent + 8;
    svg_.begin_group(tooltip_of(op));
    svg_.text({x, base}, fitted(std::string(op.op), kKernel - x - 8), {.size = kText});
    svg_.text({kKernel, base}, fitted(std::string(op.kernel), kResult - kKernel - 8),
              {.size = kText});
    svg_.text({kResult, base}, fitted(results_of(op), kBar - kResult - 8), {.size = kText});
    const auto bytes = static_cast<double>(op.cost.bytes());
    const double end =
        traffic_bar(svg_, {kBar, y_ + 6, bytes / most_ * kBarWidth, kOpRow - 12},
                    static_cast<double>(op.traffic.weights), static_cast<double>(op.traffic.cache),
                    static_cast<double>(op.traffic.activations));
    svg_.text({end + 6, base}, format_bytes(op.cost.bytes()), {.size = kText});
    svg_.end_group();
    if (op.operand("h") != nullptr) stops_.push_back(y_ + kOpRow / 2);
    y_ += kOpRow;
  }

  // The residual: in from above, out below.
  void rail() {
    if (stops_.empty()) return;
    const SvgStyle style{.stroke = "#16212b", .stroke_width = 2};
    svg_.line({kRail - 6, kTop + 2}, {kRail - 6, y_ + 14}, style);
    svg_.polygon({{kRail - 11, y_ + 14}, {kRail - 1, y_ + 14}, {kRail - 6, y_ + 24}},
                 {.fill = "#16212b"});
    for (double y : stops_) {
      svg_.line({kRail - 6, y}, {kTree + 4, y}, style);
      svg_.circle({kRail - 6, y}, 5, {.fill = "#fff", .stroke = "#16212b", .stroke_width = 2});
    }
  }

  const TreeNode& layer_;
  double most_;
  SvgWriter svg_;
  double y_ = 0;
  std::vector<double> stops_;
};

}  // namespace

std::string write_layer_picture(const Recording& recording, std::string_view phase_name) {
  for (const TracePhase& phase : recording.phases) {
    if (phase.name != phase_name) continue;
    const TreeNode tree = build_tree(phase.first_step());
    const TreeNode* layer = last_layer(tree);
    if (layer == nullptr) return {};
    const std::string title =
        str_cat("One of ", layer->indexes.size(), has_experts(*layer) ? " MoE" : " dense",
                layer->indexes.size() == 1 ? " layer (" : " layers (", node_label(*layer), ") of ",
                recording.title);
    return Picture(*layer, title)
        .draw(title, str_cat(phase.title, ". The circles are where the residual h is added to."));
  }
  return {};
}

}  // namespace fathom
