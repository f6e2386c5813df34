#include "cli/serve/step_table.h"

#include <algorithm>
#include <map>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/bench/machine/gpu_machine.h"
#include "fathom/report/files/summary.h"
#include "fathom/report/record/live_trace.h"
#include "fathom/report/recording.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

constexpr int64_t kPromptTokens = 256;
constexpr double kPeakSeconds = 0.05;

struct Row {
  const TraceOp* first = nullptr;
  int64_t calls = 0;
  double us = 0;
  double bytes = 0;
  double flops = 0;
  double memory_us = 0;
  double compute_us = 0;
  double roof_us = 0;
};

// "layer 3 / moe" is of kind moe; what stands outside of layers, of its own scope.
std::string layer_kind(const TraceOp& op) {
  return op.scopes.empty() ? std::string{} : std::string(op.scopes.back().name);
}

// The operand with most bytes says what the op works on.
std::string dtype_of(const TraceOp& op) {
  std::string out;
  for (const TraceOperand& o : op.operands()) {
    if (o.kind == OperandKind::kWeight) return std::string(format_name(o.format));
    if (out.empty() && o.written) out = format_name(o.format);
  }
  return out;
}

std::string shape_of(const TraceOp& op) {
  const TraceOperand* shown = nullptr;
  for (const TraceOperand& o : op.operands()) {
    if (shown == nullptr || o.kind == OperandKind::kWeight) shown = &o;
    if (o.kind == OperandKind::kWeight) break;
  }
  return shown == nullptr ? std::string{} : shown->sizes();
}

std::vector<Row> rows_of(std::span<const TraceOp> ops, const Peaks& peaks) {
  std::map<std::string, Row> rows;
  for (const TraceOp& op : ops) {
    Row& row = rows[str_cat(op.op, "/", op.kernel, "/", op.variant, "/", shape_of(op), "/",
                            layer_kind(op))];
    if (row.first == nullptr) row.first = &op;
    ++row.calls;
    row.us += static_cast<double>(op.end_ns - op.start_ns) * 1e-3;
    row.flops += op.cost.flops;
    const auto bytes = static_cast<double>(op.cost.bytes_read + op.cost.bytes_written);
    row.bytes += bytes;
    row.roof_us += roof_us(op.cost, peaks);
    row.memory_us +=
        bytes * 1e-3 / std::max(peaks.memory_gbps(op.cost.bytes_read, op.cost.bytes_written), 1e-9);
  }
  std::vector<Row> out;
  for (auto& [key, row] : rows)
    out.push_back(row);
  std::ranges::sort(out, [](const Row& a, const Row& b) { return a.us > b.us; });
  return out;
}

void write_row(JsonWriter& w, const Row& row, double step_us) {
  const TraceOp& op = *row.first;
  w.begin_object();
  w.key("op").string(op.op).key("layer_kind").string(layer_kind(op));
  w.key("kernel").string(op.kernel).key("variant").string(op.variant);
  w.key("shape").string(shape_of(op)).key("dtype").string(dtype_of(op));
  w.key("calls").integer(row.calls).key("us").number(row.us);
  w.key("share").number(step_us > 0 ? row.us / step_us : 0);
  w.key("bytes").number(row.bytes).key("flops").number(row.flops);
  // The roof is the larger of the two times.
  w.key("bound").string(row.roof_us > row.memory_us * 1.0001 ? "compute" : "memory");
  w.key("roof_us").number(row.roof_us);
  w.key("pct_of_roof").number(row.us > 0 ? 100 * row.roof_us / row.us : 0);
  w.end_object();
}

Result<Peaks> peaks_of(const Machine& machine) {
  if (machine.gpu) return measure_gpu_peaks(machine.gpu->info(), machine.gpu->stream());
  return measure_peaks(*machine.pool, machine.isa, {.seconds = kPeakSeconds});
}

}  // namespace

Result<std::string> StepTable::measure(Engine& engine, std::string_view phase) {
  const Machine& machine = engine.machine();
  if (!peaks_) {
    FATHOM_ASSIGN(peaks_, peaks_of(machine));
  }
  LiveOptions live{.prompt = {}, .generate = 1, .pins = engine.options().pins};
  const int64_t room = engine.options().max_model_len - 2;
  const auto num_ids = static_cast<uint32_t>(engine.model().config().vocab_size);
  Rng rng(1);
  for (int64_t i = 0; i < std::clamp<int64_t>(room, 1, kPromptTokens); ++i)
    live.prompt.push_back(static_cast<int32_t>(rng.next_below(num_ids)));
  FATHOM_ASSIGN(const LiveRun run, run_live(engine.model(), machine.compute(), live));
  const auto found = std::ranges::find(run.phases, phase, &TracePhase::name);
  if (found == run.phases.end() || found->steps.empty()) {
    return internal_error(str_cat("a run has no phase ", phase));
  }
  const TraceStep& step = found->steps.front();
  const double step_us = static_cast<double>(step.duration_ns()) * 1e-3;
  JsonWriter w;
  w.begin_object();
  w.key("phase").string(phase).key("tokens").integer(step.tokens).key("step_us").number(step_us);
  w.key("device").string(peaks_->device).key("ops").begin_array();
  for (const Row& row : rows_of(found->first_step(), *peaks_))
    write_row(w, row, step_us);
  w.end_array().end_object();
  return w.take();
}

}  // namespace fathom::cli
