#include "fathom/models/dry/explain.h"

#include <algorithm>
#include <vector>

#include "fathom/base/near_names.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/layers/linear.h"
#include "fathom/models/deepseek/deepseek_v3.h"
#include "fathom/models/dry/dry_records.h"

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

// A weight without data that reads x as the record has it.
LinearWeight weight_of(const OperandRecord& w, const OperandRecord& x) {
  return shape_only_weight(
      w.format, w.dims[0], w.dims[1],
      x.format == Format::kNvfp4 ? Nvfp4Inputs::kQuantised : Nvfp4Inputs::kExact);
}

// The row that the table of linear layers gives a recorded product in a place; -1 if none.
int row_in(const OpRecord& r, LinearUse use) {
  const OperandRecord* x = operand(r, "x");
  const OperandRecord* w = operand(r, "w");
  const OperandRecord* y = operand(r, "y");
  if (x == nullptr || w == nullptr || y == nullptr || w->rank != 2) return -1;
  const View in = make_view(nullptr, {x->dims[0], x->dims[1]}, x->format);
  const View out = make_view(nullptr, {y->dims[0], y->dims[1]}, y->format);
  const LinearWeight weight = weight_of(*w, *x);
  Exec ex;
  ex.backend = Backend::kDry;
  int index = 0;
  for (const LinearRow& row : linear_rows()) {
    const bool here = row.format == w->format && (row.use == LinearUse::kAny || row.use == use);
    if (here && row.why_not(ex, r.op, in, weight, out).empty()) return index;
    ++index;
  }
  return -1;
}

// The place of an op in the model: the one with which the table gives the row that was recorded.
// Places differ for few tokens, so the records are those of a step of one.
LinearUse use_of(std::string_view op, const std::vector<OpRecord>& one_token) {
  for (const LinearUse use : {LinearUse::kAny, LinearUse::kLatentDown, LinearUse::kRouter}) {
    const bool fits = std::all_of(one_token.begin(), one_token.end(), [&](const OpRecord& r) {
      return op != r.op.name || !is_row_of_linear_table(r.kernel) ||
             row_in(r, use) == r.selection_row;
    });
    if (fits) return use;
  }
  return LinearUse::kAny;
}

// The table the layer chose from, if it chose.
MoeCall moe_call(const Model& model) {
  const ModelConfig& c = model.config();
  MoeCall call{.rule = router_rule(c.topk_method),
               .renormalize = c.norm_topk_prob,
               .in_fp8_groups = widths_fit_fp8_groups(c.hidden_size, c.moe_intermediate_size)};
  for (const WeightSummary& line : model.weights().summary()) {
    if (line.role == WeightRole::kExpert && !line.draft) call.experts = line.format;
  }
  call.quantises_input =
      call.experts == Format::kNvfp4 && model.options().nvfp4_inputs == Nvfp4Inputs::kQuantised;
  return call;
}

std::string table_text(const Model& model,
                       const OpRecord& r,
                       LinearUse use,
                       const KernelSet& kernels) {
  const OperandRecord* x = operand(r, "x");
  const OperandRecord* w = operand(r, "w");
  const OperandRecord* y = operand(r, "y");
  if (is_row_of_linear_table(r.kernel) && x != nullptr && w != nullptr && y != nullptr) {
    Exec ex;
    ex.kernels = &kernels;
    return str_cat("linear layers:\n", explain_linear(ex, r.op, x->dims[0], weight_of(*w, *x),
                                                      x->format, y->format, use));
  }
  const KernelEntry* kernel = find_kernel(r.kernel);
  if (kernel != nullptr && kernel->family == "attn" && r.selection_row >= 0) {
    std::string out = "attention forms:\n";
    int16_t index = 0;
    for (const AttentionRow& row : attention_rows()) {
      str_append(out, str_cat("row ", index, "  ", row.name, " (", row.when, ")",
                              index == r.selection_row ? ": chosen" : "", "\n"));
      ++index;
    }
    return out;
  }
  // The choice of experts, which groups of kernels/moe/gate make, comes before that of a strategy.
  if (kernel != nullptr && kernel->family == "moe" && kernel->group != "gate") {
    return str_cat("expert strategies:\n", explain_moe(moe_call(model), model.options().moe));
  }
  return {};
}

std::string variants_text(std::string_view kernel, const char* chosen, const KernelSet& kernels) {
  const KernelEntry* entry = find_kernel(kernel);
  if (entry == nullptr) return {};
  std::string out = str_cat("variants of ", kernel, " on this CPU, the first that fits runs:\n");
  for (const VariantEntry& v : entry->variants(kernels)) {
    str_append(out, str_cat("  ", v.name, " (", isa_name(v.needs), ")",
                            v.limits.empty() ? "" : ": ", v.limits,
                            chosen != nullptr && v.name == chosen ? "  <- runs here" : "", "\n"));
  }
  return out;
}

std::string describe_call(const Model& model,
                          const OpRecord& r,
                          LinearUse use,
                          const KernelSet& kernels) {
  const char* part = r.scope_depth == 0 ? "model" : r.scopes[r.scope_depth - 1u].name;
  std::string out = str_cat(phase_name(r.phase), ": ", r.op.name, " runs ", r.kernel, ", in ",
                            std::string_view(part), "\n ");
  for (size_t i = 0; i < r.num_operands; ++i) {
    if (r.operands[i].format == Format::kNone) continue;
    str_append(out, str_cat(" ", operand_text(r.operands[i])));
  }
  return str_cat(out, "\n", table_text(model, r, use, kernels),
                 variants_text(r.kernel, r.variant, kernels));
}

}  // namespace

namespace {

// What tells the calls of one op apart.
struct CallKind {
  Phase phase;
  std::string_view kernel;
  std::string_view part;  // the innermost scope

  bool operator==(const CallKind&) const = default;
};

CallKind kind_of(const OpRecord& r) {
  const char* part = r.scope_depth == 0 ? "" : r.scopes[r.scope_depth - 1u].name;
  return {r.phase, r.kernel, part};
}

// A decode step of one token: the records from which places in the model are read.
Result<std::vector<OpRecord>> one_token_of(const Model& model, const KernelSet& kernels) {
  BatchShape shape;
  shape.decode = {.count = 1, .new_tokens = 1, .cached = 0};
  return dry_records(model, shape, {.kernels = &kernels});
}

std::vector<std::string> ops_of(const std::vector<OpRecord>& records) {
  std::vector<std::string> ops;
  for (const OpRecord& r : records)
    if (std::find(ops.begin(), ops.end(), r.op.name) == ops.end()) ops.emplace_back(r.op.name);
  return ops;
}

// Empty if no record is of that op.
std::string explain_records(const Model& model,
                            std::string_view op,
                            const std::vector<OpRecord>& records,
                            LinearUse use,
                            const KernelSet& kernels) {
  std::vector<CallKind> explained;
  std::string out;
  for (const OpRecord& r : records) {
    const CallKind kind = kind_of(r);
    const bool seen = std::find(explained.begin(), explained.end(), kind) != explained.end();
    if (op != r.op.name || seen) continue;
    explained.push_back(kind);
    str_append(out, str_cat(out.empty() ? "" : "\n", describe_call(model, r, use, kernels)));
  }
  return out;
}

Status unknown_op(std::string_view op, std::string_view where, std::vector<std::string> ops) {
  const std::vector<std::string> near = near_names(op, ops);
  std::string message = str_cat("the model has no op '", op, "'", where);
  if (!near.empty()) return not_found(message + did_you_mean(near));
  str_append(message, "; it has");
  for (const std::string& name : ops)
    str_append(message, str_cat(" ", name));
  return not_found(std::move(message));
}

struct PassKind {
  std::string_view title;
  BatchShape shape;
  DryPass pass = DryPass::kForward;
};

std::vector<PassKind> passes_of(const Model& model) {
  const int64_t context = model.config().max_position_embeddings;
  const int64_t tokens = std::min<int64_t>(512, std::max<int64_t>(context / 2, 1));
  BatchShape decode;
  decode.decode = {.count = 1, .new_tokens = 1, .cached = std::min<int64_t>(255, context - 1)};
  BatchShape prefill;
  prefill.prefill = {.count = 1, .new_tokens = tokens, .cached = 0};
  BatchShape chunked;
  // A prefix as long as a chunk of keys: it is merged with the new tokens' part.
  const int64_t prefix = std::min(model.options().attention.prefill_chunk, context - tokens);
  chunked.prefill = {.count = 1, .new_tokens = tokens, .cached = prefix};
  std::vector<PassKind> out = {
      {"decode", decode}, {"prefill", prefill}, {"prefill after a cached prefix", chunked}};
  if (model.has_draft()) out.push_back({"draft head", decode, DryPass::kDraft});
  return out;
}

std::string size_text(const BatchShape& shape) {
  const BatchShape::Requests& r = shape.prefill.count > 0 ? shape.prefill : shape.decode;
  return str_cat(r.new_tokens, r.new_tokens == 1 ? " token" : " tokens", " after ", r.cached);
}

}  // namespace

Result<std::string> explain_op(const Model& model,
                               std::string_view op,
                               const BatchShape& shape,
                               const KernelSet& kernels,
                               DryPass pass) {
  FATHOM_ASSIGN(const std::vector<OpRecord> one_token, one_token_of(model, kernels));
  FATHOM_ASSIGN(const std::vector<OpRecord> records,
                dry_records(model, shape, {.kernels = &kernels, .pass = pass}));
  std::string out = explain_records(model, op, records, use_of(op, one_token), kernels);
  if (!out.empty()) return out;
  return unknown_op(op, " at this shape", ops_of(records));
}

Result<std::string> explain_op_everywhere(const Model& model,
                                          std::string_view op,
                                          const KernelSet& kernels) {
  FATHOM_ASSIGN(const std::vector<OpRecord> one_token, one_token_of(model, kernels));
  std::vector<std::string> all;
  std::string out;
  for (const PassKind& p : passes_of(model)) {
    FATHOM_ASSIGN(const std::vector<OpRecord> records,
                  dry_records(model, p.shape, {.kernels = &kernels, .pass = p.pass}));
    for (std::string& name : ops_of(records))
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(std::move(name));
    const std::string text = explain_records(model, op, records, use_of(op, one_token), kernels);
    if (text.empty()) continue;
    str_append(out, str_cat(out.empty() ? "" : "\n", "# ", p.title, ": ", size_text(p.shape),
                            "\n\n", text));
  }
  if (!out.empty()) return out;
  return unknown_op(op, "", std::move(all));
}

}  // namespace fathom
