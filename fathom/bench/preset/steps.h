// The steps of a preset's own graph, recorded without weights: which calls it makes, how often, and
// what they must move. Rows of a preset are made of these calls; nothing about them is typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fathom/device/device.h"
#include "fathom/kernels/conformance/recorded_call.h"

namespace fathom {

struct Preset;

/// A step: `batch` requests with `seq` new tokens each.
struct StepPoint {
  std::string_view phase;  ///< "decode", "prefill" or "draft" (the draft head)
  int64_t batch = 1;
  int64_t seq = 1;
  int64_t keys =
      0;  ///< a request's keys in the cache: with the new one, of prefill before the step

  /// "decode_b8_kv1024", "prefill_b1_s512", "prefill_b1_s512_kv1024".
  std::string name() const;

  bool operator==(const StepPoint&) const = default;
};

/// Calls of a step that are the same: op, part of the model, kernel, operands, cost.
struct PresetCall {
  RecordedCall call;
  std::string op;
  std::string part;  ///< innermost scope that is no layer: "experts", "self_attn"
  std::string case_name =
      {};  ///< of its row: "deepseek-r1-nvfp4_project.q_b_proj_decode_b8_kv1024"
  int64_t count = 0;
  int64_t in_layer = 0;  ///< of these, in the first layer with experts

  std::string_view kernel() const { return call.record().kernel; }

  /// Of all of them.
  int64_t bytes() const { return count * call.cost().bytes(); }
};

struct PresetStep {
  std::string preset;
  StepPoint point;
  std::vector<PresetCall> calls;  ///< in the order of their first

  int64_t num_calls() const;
  /// Compulsory bytes of the whole step: weights, cache and activations.
  int64_t bytes() const;
};

/// Which steps are recorded.
struct StepChoice {
  std::string phase = {};              ///< "decode", "prefill", "draft"; empty: all
  std::vector<int64_t> batch = {};     ///< requests of decode; empty: 1, 8, 32, 128
  std::vector<int64_t> seq = {};       ///< tokens of prefill; empty: 128 to 2,048
  std::vector<int64_t> kv_len = {};    ///< empty: 1,024
  bool tables_only = false;            ///< neither the draft head nor prefill after a prefix
  std::vector<StepPoint> points = {};  ///< not empty: these steps alone, whatever else it says
  const DeviceInfo* gpu = nullptr;     ///< records what that GPU would run; null: a CPU
};

/// Where batch is given and seq is not, or the other way round, there are steps of that alone.
std::vector<StepPoint> step_points(const StepChoice& choice);

/// Errors: those of open_model and dry_run; InvalidArgument for a context beyond the model's.
Result<std::vector<PresetStep>> preset_steps(const Preset& preset, const StepChoice& choice);

/// True for calls of one kernel with the same operands and cost, whatever op they are.
bool same_call(const PresetCall& a, const PresetCall& b);

/// The case that times a call: of exactly its operands. Errors: NotFound as make_case_of_call.
Result<Case> case_of(const PresetStep& step, const PresetCall& call);

}  // namespace fathom
