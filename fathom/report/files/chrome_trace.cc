#include "fathom/report/files/chrome_trace.h"

#include "fathom/base/str_cat.h"
#include "fathom/report/files/ops_csv.h"
#include "fathom/report/op_tree.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

constexpr int kProcess = 1;
constexpr int kThread = 1;

class Events {
 public:
  Events(int64_t begin_ns, TraceDetail detail) : begin_ns_(begin_ns), detail_(detail) {
    json_.begin_object().key("displayTimeUnit").string("ns").key("traceEvents").begin_array();
  }

  void name(std::string_view what, const std::string& text) {
    json_.begin_object().key("ph").string("M").key("pid").integer(kProcess);
    json_.key("tid").integer(kThread).key("name").string(what);
    json_.key("args").begin_object().key("name").string(text).end_object().end_object();
  }

  // Opens a slice and its arguments, which end_slice() closes.
  JsonWriter& slice(std::string_view name, std::string_view category, int64_t start, int64_t end) {
    json_.begin_object().key("ph").string("X").key("pid").integer(kProcess);
    json_.key("tid").integer(kThread).key("name").string(name).key("cat").string(category);
    json_.key("ts").number(static_cast<double>(start - begin_ns_) * 1e-3);
    json_.key("dur").number(static_cast<double>(end - start) * 1e-3);
    return json_.key("args").begin_object();
  }

  void end_slice() { json_.end_object().end_object(); }

  void node(const TreeNode& node) {
    if (node.is_op()) return op(*node.forms.front().op);
    const std::string label = node_label(node);
    const Span span = span_of(node);
    slice(label, node.name == "layer" ? "layer" : "scope", span.start, span.end);
    end_slice();
    for (const TreeNode& child : node.children)
      this->node(child);
  }

  std::string finish(const Recording& r) {
    json_.end_array().key("metadata").begin_object();
    json_.key("schema").string("fathom.trace.events/1").key("model").string(r.title);
    json_.key("command").string(r.command);
    for (const auto& [name, value] : r.settings)
      json_.key(name).string(value);
    json_.end_object().end_object();
    return json_.take();
  }

 private:
  struct Span {
    int64_t start;
    int64_t end;
  };

  static Span span_of(const TreeNode& node) {
    if (node.is_op()) return {node.forms.front().op->start_ns, node.forms.front().op->end_ns};
    return {span_of(node.children.front()).start, span_of(node.children.back()).end};
  }

  void op(const TraceOp& op) {
    slice(op.op, "op", op.start_ns, op.end_ns);
    json_.key("layer").integer(op.index_in("layer")).key("kernel").string(op.kernel);
    json_.key("reads").string(inputs_text(op)).key("writes").string(outputs_text(op));
    for (const TraceOperand& o : op.operands()) {
      json_.key(str_cat("shape ", o.name)).string(str_cat(format_name(o.format), " ", o.sizes()));
    }
    json_.key("flops").number(op.cost.flops).key("bytes").integer(op.cost.bytes());
    json_.key("source").string(str_cat(op.site.function, "() in ", project_path(op.site.file)));
    end_slice();
    if (detail_ == TraceDetail::kOps) return;
    slice(op.kernel, "kernel", op.start_ns, op.end_ns);
    json_.key("op").string(op.op).key("variant").string(op.variant);
    json_.key("unit").string(math_unit_name(op.cost.unit));
    json_.key("backend").string(backend_name(op.backend));
    json_.key("flops").number(op.cost.flops).key("bytes_read").integer(op.cost.bytes_read);
    json_.key("bytes_written").integer(op.cost.bytes_written);
    end_slice();
  }

  JsonWriter json_;
  int64_t begin_ns_;
  TraceDetail detail_;
};

}  // namespace

std::string write_chrome_trace(const Recording& recording, TraceDetail detail) {
  Events events(recording.begin_ns, detail);
  events.name("process_name", str_cat("fathom: ", recording.title));
  events.name("thread_name", "engine");
  for (const TracePhase& phase : recording.phases) {
    size_t next = 0;
    for (size_t s = 0; s < phase.steps.size(); ++s) {
      const TraceStep& step = phase.steps[s];
      const size_t first = next;
      while (next < phase.ops.size() && phase.ops[next].step == static_cast<int>(s))
        ++next;
      JsonWriter& args =
          events.slice(str_cat(phase.name, " ", s), "step", step.start_ns, step.end_ns);
      args.key("tokens").integer(step.tokens);
      if (step.graph_ns > 0) {
        args.key("us as one graph").number(static_cast<double>(step.graph_ns) * 1e-3);
        args.key("us in one stream").number(static_cast<double>(step.one_stream_ns) * 1e-3);
      }
      events.end_slice();
      const TreeNode tree = unfolded_tree(std::span(phase.ops).subspan(first, next - first));
      for (const TreeNode& top : tree.children)
        events.node(top);
    }
  }
  return events.finish(recording);
}

}  // namespace fathom
