#include "fathom/bench/suites/plan.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "fathom/base/hint.h"
#include "fathom/base/near_names.h"
#include "fathom/bench/suites/reference_names.h"
#include "fathom/bench/suites/suites.h"
#include "fathom/models/config/presets.h"

namespace fathom {
namespace {

bool one_of(const std::vector<int64_t>& wanted, const Figure& found) {
  return wanted.empty() || (found && std::find(wanted.begin(), wanted.end(),
                                               static_cast<int64_t>(*found)) != wanted.end());
}

bool matches_filter(std::string_view filter, const KernelEntry& kernel, const Case& c) {
  if (filter.empty() || matches_pattern(filter, c.spec.op)) return true;
  if (matches_pattern(filter, str_cat(c.kernel, "/", c.spec.name))) return true;
  for (std::string_view name : kernel.info.reference_names) {
    if (matches_pattern(filter, str_cat(name, "/", c.spec.name))) return true;
  }
  return false;
}

/// By the flags that choose among the cases of a suite.
bool is_chosen(const BenchKernelOptions& options,
               std::string_view phase_of_suite,
               const KernelEntry& kernel,
               const Case& c) {
  const std::string_view phase = options.phase.empty() ? phase_of_suite : options.phase;
  if (!phase.empty() && c.spec.phase != phase) return false;
  BenchRow row;
  store_columns(c.spec, row);
  const bool batch = one_of(options.batch, row.m) || one_of(options.batch, row.b);
  if (!batch || !one_of(options.seq, row.s) || !one_of(options.kv_len, row.kv)) return false;
  return matches_filter(options.filter, kernel, c);
}

bool is_wanted(const BenchKernelOptions& options,
               const Suite& suite,
               const KernelEntry& kernel,
               const Case& c) {
  if (!c.spec.bench || c.spec.suite != suite.own_cases) return false;
  if (!suite.filter.empty() && !matches_pattern(suite.filter, c.spec.name)) return false;
  return is_chosen(options, suite.phase, kernel, c);
}

Status unknown_kernel(std::string_view name) {
  if (const ReferenceHome home = find_reference_home(name); home.covered) {
    return invalid_argument(str_cat("'", name, "' is no kernel here but ", home.home, " (fathom/",
                                    home.folder, "); there is nothing to time"));
  }
  Status unknown = invalid_argument(
      str_cat("no kernel is called '", name, "'", did_you_mean(near_kernel_names(name))));
  return with_hint(std::move(unknown), "`fathom bench kernel --list` shows what there is");
}

bool runs_in(const std::vector<PresetStep>& steps, std::string_view kernel) {
  return std::any_of(steps.begin(), steps.end(), [&](const PresetStep& step) {
    return std::any_of(step.calls.begin(), step.calls.end(),
                       [&](const PresetCall& c) { return c.kernel() == kernel; });
  });
}

/// Every name that was asked for is a kernel of the suite or of the steps.
Status check_named(const std::vector<std::string>& names,
                   const Suite& suite,
                   const std::vector<PresetStep>& steps) {
  for (const std::string& name : names) {
    const KernelEntry* kernel = find_kernel(name);
    if (kernel == nullptr) return unknown_kernel(name);
    const auto same = [&](const std::string& other) { return find_kernel(other) == kernel; };
    if (std::any_of(suite.kernels.begin(), suite.kernels.end(), same)) continue;
    if (runs_in(steps, kernel->info.name)) continue;
    return invalid_argument(suite.name.empty()
                                ? str_cat("kernel '", name, "' is in no step of ", suite.preset)
                                : str_cat("kernel '", name, "' is not in suite ", suite.name));
  }
  return {};
}

Status check_phase(std::string_view phase, bool of_preset) {
  if (phase.empty()) return {};
  std::set<std::string_view> phases;
  if (of_preset) phases = {"decode", "draft", "prefill"};
  for (const Case& c : all_cases().cases())
    if (c.spec.bench && !of_preset) phases.insert(c.spec.phase);
  if (phases.count(phase) > 0) return {};
  std::string known;
  for (const std::string_view name : phases)
    str_append(known, str_cat(known.empty() ? "" : ", ", name));
  return invalid_argument(str_cat("--phase is '", phase, "', expected one of ", known));
}

// " --batch 1,8"; nothing for no numbers.
void append_flag(std::string& out, std::string_view flag, const std::vector<int64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i)
    str_append(out, i == 0 ? str_cat(" ", flag, " ", numbers[i]) : str_cat(",", numbers[i]));
}

/// Names the flags that left no case.
Status nothing_chosen(const BenchKernelOptions& options) {
  return invalid_argument(
      str_cat("no case is left by ", options.preset.empty() ? "--suite " : "--as ",
              options.preset.empty() ? options.suite : options.preset, filter_flags(options),
              "\nhint: `--list` without them shows what there is"));
}

}  // namespace

std::string filter_flags(const BenchKernelOptions& options) {
  std::string flags;
  if (!options.filter.empty()) str_append(flags, str_cat(" --filter '", options.filter, "'"));
  if (!options.phase.empty()) str_append(flags, str_cat(" --phase ", options.phase));
  append_flag(flags, "--batch", options.batch);
  append_flag(flags, "--seq", options.seq);
  append_flag(flags, "--kv-len", options.kv_len);
  return flags;
}

std::string BenchPlanEntry::name() const {
  const std::string own = kernel != nullptr ? std::string(kernel->info.name) : asked;
  const std::string& of_case = bench_case ? bench_case->spec.name : case_name;
  return of_case.empty() ? own : str_cat(own, "/", of_case);
}

void split_columns(std::string_view text, BenchRow& row) {
  const struct {
    std::string_view name;
    Figure& column;
  } columns[] = {{"B", row.b},       {"S", row.s}, {"KV", row.kv}, {"M", row.m},
                 {"T", row.m},       {"N", row.n}, {"K", row.k},   {"E", row.e},
                 {"topk", row.topk}, {"H", row.h}, {"D", row.d}};

  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t equal = part.find('=');
    if (equal == std::string_view::npos) continue;
    double value = 0;
    std::from_chars(part.data() + equal + 1, part.data() + part.size(), value);
    for (const auto& [name, column] : columns) {
      if (name == part.substr(0, equal)) column = value;
    }
  }
}

void store_columns(const CaseSpec& spec, BenchRow& row) {
  if (!spec.columns.empty()) {
    row.b = row.s = row.kv = row.m = row.n = row.k = row.e = row.topk = row.h = row.d = {};
    split_columns(spec.columns, row);
  }
  if (spec.rows > 0) row.m = static_cast<double>(spec.rows);
  if (spec.batch == 0) return;
  row.b = static_cast<double>(spec.batch);
  row.s = static_cast<double>(spec.seq);
  row.m = static_cast<double>(spec.batch * spec.seq);
}

std::string_view reference_name_of(const KernelEntry& kernel) {
  return kernel.info.reference_names.size > 0 ? *kernel.info.reference_names.begin()
                                              : std::string_view{};
}

namespace {

void add_cases_of_suite(const BenchKernelOptions& options,
                        const Suite& suite,
                        const std::vector<PresetStep>& steps,
                        std::vector<BenchPlanEntry>& entries) {
  const bool by_name = !options.kernels.empty();
  for (const std::string& name : by_name ? options.kernels : suite.kernels) {
    const KernelEntry* kernel = find_kernel(name);
    bool any = kernel != nullptr && runs_in(steps, kernel->info.name);
    for (const Case* c :
         kernel == nullptr ? std::vector<const Case*>{} : all_cases().of(kernel->info.name)) {
      if (!is_wanted(options, suite, *kernel, *c)) continue;
      entries.push_back({name, kernel, *c});
      any = true;
    }
    // A name that was asked for never goes missing without a word; kernels that a filter leaves out
    // do.
    const bool filtered = kernel != nullptr && !by_name;
    if (!any && !filtered) entries.push_back({name, kernel});
  }
}

/// A call of a step, if the options want it: its case, or an entry without one that says so.
void add_call(const BenchKernelOptions& options,
              const PresetStep& step,
              const PresetCall& call,
              std::vector<BenchPlanEntry>& entries) {
  const KernelEntry* kernel = find_kernel(call.kernel());
  const bool named = std::any_of(options.kernels.begin(), options.kernels.end(),
                                 [&](const std::string& n) { return find_kernel(n) == kernel; });
  if (!named && !options.kernels.empty()) return;
  Result<Case> made = case_of(step, call);
  if (!made.ok()) {
    return entries.push_back({.asked = std::string(call.kernel()),
                              .kernel = kernel,
                              .case_name = call.case_name,
                              .why = made.status().message()});
  }
  // The steps of a preset and of a suite of steps are chosen already.
  const bool of_table = options.preset.empty() && !is_suite_of_steps(options.suite);
  const bool chosen = of_table ? is_chosen(options, {}, *kernel, *made)
                               : matches_filter(options.filter, *kernel, *made);
  if (!chosen) return;
  entries.push_back({std::string(call.kernel()), kernel, std::move(made).value(), call.call});
}

/// Kernel by kernel in the order of the catalogue: each has a process of its own.
void add_calls_of_steps(const BenchKernelOptions& options,
                        const std::vector<PresetStep>& steps,
                        std::vector<BenchPlanEntry>& entries) {
  for (const KernelEntry& kernel : all_kernels()) {
    for (const PresetStep& step : steps)
      for (const PresetCall& call : step.calls)
        if (call.kernel() == kernel.info.name) add_call(options, step, call, entries);
  }
}

bool is_chosen_point(const BenchKernelOptions& options, const StepPoint& p) {
  return (options.phase.empty() || options.phase == p.phase) &&
         one_of(options.batch, static_cast<double>(p.batch)) &&
         one_of(options.seq, static_cast<double>(p.seq)) &&
         one_of(options.kv_len, static_cast<double>(p.keys));
}

/// Adds the steps of a preset at `points`; without points none.
Status add_steps(std::string_view preset_name,
                 const std::vector<StepPoint>& points,
                 const BenchKernelOptions& options,
                 std::vector<PresetStep>& steps) {
  if (points.empty()) return {};
  const StepChoice choice{.points = points, .gpu = options.gpu ? &*options.gpu : nullptr};
  FATHOM_ASSIGN(const Preset preset, find_preset(preset_name));
  FATHOM_ASSIGN(std::vector<PresetStep> own, preset_steps(preset, choice));
  std::ranges::move(own, std::back_inserter(steps));
  return {};
}

/// The steps of a suite that the flags leave, whole ones and then parts.
Result<std::vector<PresetStep>> chosen_steps(const BenchKernelOptions& options,
                                             const Suite& suite) {
  std::vector<StepPoint> points = suite.points;
  std::erase_if(points, [&](const StepPoint& p) { return !is_chosen_point(options, p); });
  std::vector<PresetStep> steps;
  for (const std::string_view name : suite.step_presets)
    FATHOM_TRY(add_steps(name, points, options, steps));
  for (const PartOfStep& part : suite.parts) {
    if (!is_chosen_point(options, part.point)) continue;
    std::vector<PresetStep> own;
    FATHOM_TRY(add_steps(part.preset, {part.point}, options, own));
    for (PresetStep& step : own) {
      std::erase_if(step.calls, [&](const PresetCall& c) {
        return std::ranges::none_of(part.kernels, [&](std::string_view pattern) {
          return matches_pattern(pattern, c.kernel());
        });
      });
    }
    std::ranges::move(own, std::back_inserter(steps));
  }
  return steps;
}

/// Timed cases that a suite of steps has besides.
void add_timed_cases(const BenchKernelOptions& options,
                     const Suite& suite,
                     std::vector<BenchPlanEntry>& entries) {
  for (const std::string& name : suite.kernels) {
    const KernelEntry* kernel = find_kernel(name);
    const bool named =
        options.kernels.empty() || std::ranges::any_of(options.kernels, [&](const std::string& n) {
          return find_kernel(n) == kernel;
        });
    if (kernel == nullptr || !named) continue;
    for (const Case* c : all_cases().of(name)) {
      const bool timed = c->spec.bench && c->spec.suite.empty();
      if (timed && matches_pattern(suite.cases, c->spec.name) &&
          is_chosen(options, {}, *kernel, *c))
        entries.push_back({name, kernel, *c});
    }
  }
}

/// Leaves of calls that are the same, in whatever steps, the first.
void keep_distinct_calls(std::vector<PresetStep>& steps) {
  std::vector<const PresetCall*> kept;
  for (PresetStep& step : steps) {
    std::vector<PresetCall> own;
    for (PresetCall& c : step.calls) {
      const bool in_step =
          std::ranges::any_of(own, [&](const PresetCall& k) { return same_call(k, c); });
      const bool before =
          std::ranges::any_of(kept, [&](const PresetCall* k) { return same_call(*k, c); });
      if (!in_step && !before) own.push_back(std::move(c));
    }
    step.calls = std::move(own);
    for (const PresetCall& c : step.calls)
      kept.push_back(&c);
  }
}

/// The rows of a suite of steps, in its order of kernels.
Result<BenchPlan> plan_suite_of_steps(const BenchKernelOptions& options, const Suite& suite) {
  FATHOM_TRY(check_phase(options.phase, true));
  FATHOM_ASSIGN(std::vector<PresetStep> steps, chosen_steps(options, suite));
  if (steps.empty()) return nothing_chosen(options);
  FATHOM_TRY(check_named(options.kernels, suite, steps));
  keep_distinct_calls(steps);
  BenchPlan plan;
  add_calls_of_steps(options, steps, plan.entries);
  add_timed_cases(options, suite, plan.entries);
  std::ranges::stable_sort(plan.entries, {}, [](const BenchPlanEntry& e) {
    return step_suite_rank(e.kernel->info.name);
  });
  if (plan.entries.empty()) return nothing_chosen(options);
  return plan;
}

StepChoice choice_of(const BenchKernelOptions& options) {
  const DeviceInfo* gpu = options.gpu ? &*options.gpu : nullptr;
  if (options.preset.empty()) return {.tables_only = true, .gpu = gpu};
  return {.phase = options.phase,
          .batch = options.batch,
          .seq = options.seq,
          .kv_len = options.kv_len,
          .gpu = gpu};
}

}  // namespace

Result<BenchPlan> plan_kernel_bench(const BenchKernelOptions& options) {
  Suite suite;
  suite.preset = options.preset;
  if (options.preset.empty()) {
    FATHOM_ASSIGN(suite, find_suite(options.suite));
    if (!suite.step_presets.empty()) return plan_suite_of_steps(options, suite);
  }
  FATHOM_TRY(check_phase(options.phase, !options.preset.empty()));
  BenchPlan plan;
  if (!suite.preset.empty()) {
    FATHOM_ASSIGN(const Preset preset, find_preset(suite.preset));
    FATHOM_ASSIGN(plan.steps, preset_steps(preset, choice_of(options)));
  }
  FATHOM_TRY(check_named(options.kernels, suite, plan.steps));
  if (options.preset.empty()) add_cases_of_suite(options, suite, plan.steps, plan.entries);
  add_calls_of_steps(options, plan.steps, plan.entries);
  if (plan.entries.empty()) return nothing_chosen(options);
  return plan;
}

}  // namespace fathom
