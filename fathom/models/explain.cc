#include "fathom/models/explain.h"

#include <algorithm>
#include <vector>

#include "fathom/kernels/core/catalog.h"
#include "fathom/layers/linear.h"
#include "fathom/models/deepseek_v3.h"
#include "fathom/trace/recorder.h"

namespace fathom {
namespace {

std::string operand_text(const OperandRecord& o) {
  std::string out = str_cat(std::string_view(o.name, o.name_length), "[");
  for (size_t i = 0; i < o.rank; ++i)
    str_append(out, str_cat(i == 0 ? "" : ", ", o.dims[i]));
  return str_cat(out, "] ", format_name(o.format));
}

const OperandRecord* operand(const OpRecord& r, std::string_view name) {
  for (size_t i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[i];
    if (std::string_view(o.name, o.name_length) == name) return &o;
  }
  return nullptr;
}

bool is_row_of_linear_table(std::string_view kernel) {
  const auto rows = linear_rows();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const LinearRow& row) { return row.kernel == kernel; });
}

LinearUse use_of(std::string_view op) {
  if (op == "fused_qkv_a_proj_with_mqa") return LinearUse::kLatentDown;
  return op == "gate" ? LinearUse::kRouter : LinearUse::kAny;
}

// The table the layer chose from, if it chose.
MoeCall moe_call(const Model& model) {
  MoeCall call{.rule = router_rule(model.config().topk_method),
               .renormalize = model.config().norm_topk_prob};
  for (const WeightSummary& line : model.weights().summary()) {
    if (line.role == WeightRole::kExpert && !line.draft) call.experts = line.format;
  }
  return call;
}

std::string table_text(const Model& model, const OpRecord& r) {
  const std::string_view op = r.op.name;
  const OperandRecord* x = operand(r, "x");
  const OperandRecord* w = operand(r, "w");
  const OperandRecord* y = operand(r, "y");
  if (is_row_of_linear_table(r.kernel) && x != nullptr && w != nullptr && y != nullptr) {
    Exec ex;
    ex.backend = Backend::kCpu;
    return str_cat(
        "linear layers:\n",
        explain_linear(ex, r.op, x->dims[0], shape_only_weight(w->format, w->dims[0], w->dims[1]),
                       x->format, y->format, use_of(op)));
  }
  if ((op == "attn_mha" || op == "attn_mqa") && r.selection_row >= 0) {
    std::string out = "attention forms:\n";
    int16_t index = 0;
    for (const AttentionRow& row : attention_rows()) {
      str_append(out, str_cat("row ", index, "  ", row.name, " (", row.when, ")",
                              index == r.selection_row ? ": chosen" : "", "\n"));
      ++index;
    }
    return out;
  }
  if (op == "apply_shuffle_mul_sum" || op == "moe_sum_reduce" || op == "fused_experts") {
    return str_cat("expert strategies:\n", explain_moe(moe_call(model), model.options().moe));
  }
  return {};
}

std::string variants_text(std::string_view kernel) {
  const KernelEntry* entry = find_kernel(kernel);
  if (entry == nullptr) return {};
  std::string out = str_cat("variants of ", kernel, " on this CPU, the first that fits runs:\n");
  for (const VariantEntry& v : entry->variants(Backend::kCpu)) {
    str_append(out, str_cat("  ", v.name, " (", isa_name(v.needs), ")",
                            v.limits.empty() ? "" : ": ", v.limits, "\n"));
  }
  return out;
}

std::string describe_call(const Model& model, const OpRecord& r) {
  std::string out = str_cat(phase_name(r.phase), ": ", r.op.name, " runs ", r.kernel, "\n ");
  for (size_t i = 0; i < r.num_operands; ++i) {
    if (r.operands[i].format == Format::kNone) continue;
    str_append(out, str_cat(" ", operand_text(r.operands[i])));
  }
  return str_cat(out, "\n", table_text(model, r), variants_text(r.kernel));
}

}  // namespace

Result<std::string> explain_op(const Model& model, std::string_view op, const BatchShape& shape) {
  constexpr int64_t kRecords = 1 << 17;
  Recorder recorder(RecordLevel::kShapes, kRecords);
  FATHOM_TRY(dry_run(model, shape, 1, &recorder).status());
  std::vector<Phase> explained;
  std::vector<std::string_view> ops;
  std::string out;
  for (const OpRecord& r : recorder.records()) {
    if (std::find(ops.begin(), ops.end(), r.op.name) == ops.end()) ops.push_back(r.op.name);
    const bool seen = std::find(explained.begin(), explained.end(), r.phase) != explained.end();
    if (op != r.op.name || seen) continue;
    explained.push_back(r.phase);
    str_append(out, str_cat(out.empty() ? "" : "\n", describe_call(model, r)));
  }
  if (!out.empty()) return out;
  std::string message = str_cat("the model has no op \"", op, "\" at this shape; it has");
  for (std::string_view name : ops)
    str_append(message, str_cat(" ", name));
  return not_found(std::move(message));
}

}  // namespace fathom
