#include "fathom/bench/preset/steps.h"

#include <algorithm>
#include <map>
#include <optional>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/models/dry/dry_records.h"
#include "fathom/models/registry.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

std::vector<int64_t> or_default(const std::vector<int64_t>& given, std::vector<int64_t> otherwise) {
  return given.empty() ? std::move(otherwise) : given;
}

bool same_operands(const OpRecord& a, const OpRecord& b) {
  const auto same = [](const OperandRecord& x, const OperandRecord& y) {
    return x.format == y.format && x.rank == y.rank && x.dims == y.dims && x.strides == y.strides;
  };
  return a.num_operands == b.num_operands &&
         std::equal(a.operands.begin(), a.operands.begin() + a.num_operands, b.operands.begin(),
                    same);
}

bool same_cost(const Cost& a, const Cost& b) {
  return a.flops == b.flops && a.bytes_read == b.bytes_read && a.bytes_written == b.bytes_written;
}

/// The innermost scope that has no number: layers, requests and chunks of keys do not tell calls
/// apart.
std::string part_of(const OpRecord& r) {
  for (size_t i = r.scope_depth; i > 0; --i)
    if (r.scopes[i - 1].index < 0) return r.scopes[i - 1].name;
  return {};
}

int layer_of(const OpRecord& r) {
  for (size_t i = 0; i < r.scope_depth; ++i)
    if (std::string_view(r.scopes[i].name) == "layer") return r.scopes[i].index;
  return -1;
}

int first_layer_with_experts(const ModelConfig& config) {
  int layer = 0;
  while (layer < config.num_hidden_layers && !config.is_moe_layer(layer))
    ++layer;
  return layer;
}

BatchShape shape_of(const StepPoint& p, const StepChoice& choice) {
  BatchShape shape;
  if (p.phase == "prefill") {
    shape.prefill = {.count = p.batch, .new_tokens = p.seq, .cached = p.keys};
    return shape;
  }
  shape.decode = {.count = p.batch, .new_tokens = 1, .cached = p.keys - 1};
  if (choice.gpu != nullptr && p.phase == "decode") {
    shape.padding.requests = decode_bucket(p.batch);
  }
  return shape;
}

CallContext context_of(const ModelConfig& config, const BatchShape& shape) {
  const BatchShape::Requests& prefill = shape.prefill;
  const int64_t decoded = std::max(shape.decode.count, shape.padding.requests);
  CallContext context{.tokens = prefill.count * prefill.new_tokens + decoded,
                      .keys = prefill.count > 0 ? prefill.cached + prefill.new_tokens
                                                : shape.decode.cached + shape.decode.new_tokens,
                      .compressed = config.is_v4()};
  if (config.n_group > 0) {
    context.router_groups = static_cast<int>(config.n_group);
    context.router_groups_kept = static_cast<int>(config.topk_group);
  }
  return context;
}

int64_t dim_of(const OpRecord& r, std::string_view operand, size_t axis) {
  for (size_t i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[i];
    if (std::string_view(o.name, o.name_length) == operand && o.format != Format::kNone)
      return o.dims[axis];
  }
  return 0;
}

/// What calls that make lists for an attention have from its caches: that attention comes after
/// them.
void note_caches(const OpRecord& r, CallContext& context) {
  if (std::string_view(r.kernel) != "sparse_mla_decode") return;
  const int64_t rows = dim_of(r, "values", 1);
  const int64_t extra_rows = dim_of(r, "extra_values", 1);
  context.ring_rows = rows;
  context.page_rows = extra_rows > 0 ? extra_rows : rows;
}

void add_call(const OpRecord& r, const CallContext& context, bool in_layer, PresetStep& step) {
  const std::string part = part_of(r);
  auto at = std::find_if(step.calls.begin(), step.calls.end(), [&](const PresetCall& c) {
    const OpRecord& known = c.call.record();
    return c.op == r.op.name && c.kernel() == r.kernel && c.part == part &&
           same_operands(known, r) && same_cost(known.cost, r.cost);
  });
  if (at == step.calls.end()) {
    step.calls.push_back({.call = RecordedCall(r, context), .op = r.op.name, .part = part});
    at = step.calls.end() - 1;
  }
  const int64_t calls = calls_of(r);
  at->count += calls;
  at->in_layer += in_layer ? calls : 0;
}

/// Calls of one op, part and kernel that differ in their operands are numbered from the second on.
void name_cases(PresetStep& step) {
  std::map<std::string, int> seen;
  for (PresetCall& c : step.calls) {
    const std::string name =
        str_cat(step.preset, "_", c.part, c.part.empty() ? "" : ".", c.op, "_", step.point.name());
    const int number = ++seen[str_cat(c.kernel(), "/", name)];
    c.case_name = number == 1 ? name : str_cat(name, "_", number);
  }
}

Result<PresetStep> record_step(const Model& model,
                               std::string_view preset,
                               const StepPoint& point,
                               const StepChoice& choice,
                               const KernelSet* kernels) {
  const int64_t longest = model.config().max_position_embeddings;
  if (point.keys + point.seq > longest) {
    return invalid_argument(str_cat("a step of ", point.seq, " tokens behind ", point.keys,
                                    " keys does not fit the context of ", preset, ", ", longest,
                                    " tokens"));
  }
  const BatchShape shape = shape_of(point, choice);
  const DryPass pass = point.phase == "draft" ? DryPass::kDraft : DryPass::kForward;
  FATHOM_ASSIGN(const std::vector<OpRecord> records,
                dry_records(model, shape, {.kernels = kernels, .gpu = choice.gpu, .pass = pass}));
  PresetStep step{.preset = std::string(preset), .point = point, .calls = {}};
  std::vector<CallContext> contexts(records.size());
  CallContext context = context_of(model.config(), shape);
  for (size_t i = records.size(); i > 0; --i) {
    note_caches(records[i - 1], context);
    contexts[i - 1] = context;
  }
  const int layer = first_layer_with_experts(model.config());
  for (size_t i = 0; i < records.size(); ++i)
    add_call(records[i], contexts[i], layer_of(records[i]) == layer, step);
  name_cases(step);
  return step;
}

}  // namespace

std::string StepPoint::name() const {
  std::string out = str_cat(phase, "_b", batch);
  if (phase == "prefill") str_append(out, str_cat("_s", seq));
  return keys > 0 ? str_cat(out, "_kv", keys) : out;
}

int64_t PresetStep::num_calls() const {
  int64_t sum = 0;
  for (const PresetCall& c : calls)
    sum += c.count;
  return sum;
}

int64_t PresetStep::bytes() const {
  int64_t sum = 0;
  for (const PresetCall& c : calls)
    sum += c.bytes();
  return sum;
}

bool same_call(const PresetCall& a, const PresetCall& b) {
  const OpRecord& x = a.call.record();
  const OpRecord& y = b.call.record();
  return a.kernel() == b.kernel() && same_operands(x, y) && same_cost(x.cost, y.cost);
}

std::vector<StepPoint> step_points(const StepChoice& choice) {
  if (!choice.points.empty()) return choice.points;
  const std::vector<int64_t> keys = or_default(choice.kv_len, {kReferenceContext});
  const bool any_seq = !choice.seq.empty();
  const bool any_batch = !choice.batch.empty();
  const auto wanted = [&](std::string_view phase) {
    return choice.phase.empty() || choice.phase == phase;
  };
  std::vector<StepPoint> points;
  for (const std::string_view phase : {"decode", "draft"}) {
    if (!wanted(phase) || (any_seq && !any_batch)) continue;
    if (phase == "draft" && choice.tables_only) continue;
    for (int64_t kv : keys)
      for (int64_t batch : or_default(choice.batch, {1, 8, 32, 128}))
        points.push_back({phase, batch, 1, kv});
  }
  if (!wanted("prefill") || (any_batch && !any_seq)) return points;
  for (int64_t seq : or_default(choice.seq, {128, 256, 512, 1024, 2048}))
    points.push_back({"prefill", 1, seq, 0});
  if (choice.tables_only) return points;
  for (int64_t kv : keys)
    for (int64_t seq : or_default(choice.seq, {1024}))
      points.push_back({"prefill", 1, seq, kv});
  return points;
}

Result<std::vector<PresetStep>> preset_steps(const Preset& preset, const StepChoice& choice) {
  OpenOptions dry;
  dry.weights = WeightOrigin::kNone;
  const Placement placement{.device = choice.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda};
  FATHOM_ASSIGN(const std::unique_ptr<Model> model,
                open_model(ModelSource::describe(preset), placement, dry));
  std::optional<KernelSet> kernels;
  if (choice.gpu != nullptr) kernels = KernelSet::for_cuda(choice.gpu->sm);
  std::vector<PresetStep> steps;
  for (const StepPoint& point : step_points(choice)) {
    if (point.phase == "draft" && !model->has_draft()) continue;
    FATHOM_ASSIGN(PresetStep step,
                  record_step(*model, preset.name, point, choice, kernels ? &*kernels : nullptr));
    steps.push_back(std::move(step));
  }
  return steps;
}

Result<Case> case_of(const PresetStep& step, const PresetCall& call) {
  const StepPoint& p = step.point;
  return make_case_of_call(all_cases(), call.call,
                           {.name = call.case_name,
                            .op = call.op,
                            .bench = true,
                            .phase = std::string(p.phase),
                            .part = call.part,
                            .suite = step.preset,
                            .batch = p.batch,
                            .seq = p.seq});
}

}  // namespace fathom
