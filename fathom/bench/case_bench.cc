#include "fathom/bench/case_bench.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fathom/base/hint.h"
#include "fathom/base/log.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/os/clock.h"

namespace fathom {
namespace {

void describe_operands(CaseInstance& instance, BenchRow& row) {
  for (const OperandInfo& o : instance.operands()) {
    const std::string format(format_name(o.format));
    if (o.is_weight && row.dtype_w.empty()) {
      row.dtype_w = format;
      const Format scale = format_info(o.format).scale;
      row.scale_fmt = scale == Format::kNone ? "" : std::string(format_name(scale));
    } else if (o.written && row.dtype_out.empty()) {
      row.dtype_out = format;
      if (o.read && row.dtype_a.empty()) row.dtype_a = format;
    } else if (o.read && !o.is_weight && row.dtype_a.empty()) {
      row.dtype_a = format;
    }
  }
}

/// A file holds no infinities: a measure that is one is left out, the verdict stays.
Figure finite(double value) {
  return std::isfinite(value) ? Figure(value) : Figure();
}

void store_report(const CheckReport& report, BenchRow& row) {
  row.max_abs = finite(report.max_abs);
  row.max_rel = finite(report.max_rel);
  row.cos = finite(report.cos);
  row.sqnr_db = finite(report.sqnr_db);
  row.passed = report.passed ? "true" : "false";
  row.budget = report.budget;
  row.checked = report.checked;
}

void store_timing(const Timing& timing, BenchRow& row) {
  row.reps = static_cast<double>(timing.reps);
  row.us_median = timing.median_us;
  row.us_mean = timing.mean_us;
  row.us_min = timing.min_us;
  row.us_max = timing.max_us;
  row.us_p10 = timing.p10_us;
  row.us_p90 = timing.p90_us;
}

void add_note(BenchRow& row, std::string_view note) {
  if (note.empty()) return;
  str_append(row.note, str_cat(row.note.empty() ? "" : "; ", note));
}

/// Axes of the signature, and what the case says of them where they are not what a reader expects.
void store_shape(const CaseSpec& spec, CaseInstance& instance, BenchRow& row) {
  row.shape = instance.shape();
  split_columns(row.shape, row);
  store_columns(spec, row);
}

/// The row of a variant; a record keeps only where its name begins, in the table.
std::optional<VariantEntry> variant_at(const KernelEntry& kernel,
                                       const KernelSet& kernels,
                                       const char* begin) {
  for (const VariantEntry& v : kernel.variants(kernels))
    if (v.name.data() == begin) return v;
  return std::nullopt;
}

std::string variant_name(const KernelEntry& kernel, const KernelSet& kernels, const char* begin) {
  const std::optional<VariantEntry> variant = variant_at(kernel, kernels, begin);
  return variant ? std::string(variant->name) : std::string{};
}

/// True for loops that ask for no instruction set.
bool is_portable(const KernelEntry& kernel, const KernelSet& kernels, const char* begin) {
  const std::optional<VariantEntry> variant = variant_at(kernel, kernels, begin);
  return variant && variant->needs == Isa::kPortable;
}

/// Of a case whose operands do not fit into what a GPU has for them; empty if they do, and on the
/// CPU.
std::string too_large(const CaseRunner& runner, CaseInstance& instance) {
  if (!runner.is_gpu()) return {};
  int64_t bytes = 0;
  for (const int64_t part : instance.gpu_layout())
    bytes += align_up(part, Arena::kAlignment);
  if (bytes <= runner.operand_bytes()) return {};
  return str_cat("its operands are ", bytes, " bytes, and the GPU has ", runner.operand_bytes(),
                 " for those of a case");
}

/// Of a call that takes at least so many seconds, at the rate that says it; empty if that is within
/// the limit.
std::string too_long_text(double seconds, double most, std::string_view rate) {
  if (most <= 0 || seconds <= most) return {};
  return str_cat("one call takes at least ", std::round(seconds * 10) / 10, " s at the ", rate,
                 " of this machine, ", most, " s are allowed; --slow times it");
}

double seconds_since(int64_t begin_ns) {
  return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
}

}  // namespace

BenchRow start_row(const BenchPlanEntry& entry, const BenchConditions& conditions) {
  BenchRow row;
  row.conditions = conditions;
  row.backend = conditions.backend;
  row.arch = conditions.arch;
  row.kernel = row.reference_name = entry.asked;
  if (entry.kernel != nullptr) {
    row.kernel = entry.kernel->info.name;
    // The name it was asked for by, if that is one of the reference's.
    const NameList& names = entry.kernel->info.reference_names;
    if (std::find(names.begin(), names.end(), entry.asked) == names.end()) {
      row.reference_name = reference_name_of(*entry.kernel);
    }
  }
  row.case_name = entry.case_name;
  if (!entry.bench_case) return row;
  const CaseSpec& spec = entry.bench_case->spec;
  row.case_name = spec.name;
  row.op = spec.op;
  row.phase = spec.phase;
  row.layer_kind = spec.part;
  store_columns(spec, row);
  return row;
}

Result<std::unique_ptr<CaseBench>> CaseBench::create(const KernelSet& kernels,
                                                     const BenchKernelOptions& options,
                                                     const BenchReport& report,
                                                     int num_threads) {
  std::unique_ptr<CaseBench> bench(new CaseBench(kernels, options, report));
  if (options.backend == Backend::kCpu) {
    FATHOM_ASSIGN(bench->runner_, CaseRunner::create(kernels, num_threads, PinThreads::kYes));
    return bench;
  }
  FATHOM_ASSIGN(const DeviceInfo device, use_cuda_device(options.device));
  FATHOM_ASSIGN(const int64_t free_bytes, cuda_free_bytes());
  // The rest is for scratch and for what cools the caches down.
  FATHOM_ASSIGN(bench->runner_, CaseRunner::on_gpu(kernels, device, free_bytes / 4 * 3));
  FATHOM_ASSIGN(bench->gpu_timer_, GpuTimer::create(device));
  return bench;
}

std::string CaseBench::reason_to_leave_out(const BenchPlanEntry& entry) const {
  if (entry.kernel != nullptr && entry.kernel->variants(kernels_).empty())
    return str_cat("has no code for ", backend_name(options_.backend));
  if (options_.interrupted && options_.interrupted()) return std::string(kInterruptedReason);
  if (options_.deadline_ns > 0 && monotonic_ns() > options_.deadline_ns)
    return "the time of --budget was over";
  return entry.bench_case ? too_long_by_spec(*entry.bench_case) : std::string{};
}

std::string CaseBench::too_long_by_spec(const Case& c) const {
  const double gflops = report_.peaks.compute_gflops(MathUnit::kBf16);
  const double seconds = gflops > 0 ? c.spec.flops / gflops * 1e-9 : 0;
  return too_long_text(seconds, options_.max_call_s, "bf16 rate");
}

std::unique_ptr<CaseInstance> CaseBench::make(const BenchPlanEntry& entry) const {
  const bool runs = entry.kernel != nullptr && !entry.kernel->variants(kernels_).empty();
  if (!runs || !entry.bench_case || !too_long_by_spec(*entry.bench_case).empty()) return nullptr;
  const Case& c = *entry.bench_case;
  const int64_t begin_ns = monotonic_ns();
  std::unique_ptr<CaseInstance> instance =
      options_.backend == Backend::kCpu ? c.make(options_.seed) : c.make_for_gpu(options_.seed);
  log_debug(entry.name(), ": operands and answers in ", seconds_since(begin_ns), " s");
  return instance;
}

std::string CaseBench::too_long(const KernelEntry& kernel, CaseInstance& instance) {
  if (options_.max_call_s <= 0 || runner_->is_gpu()) return {};
  // A dry launch says which variant takes the call, on which unit, and what it costs.
  Recorder recorder(RecordLevel::kShapes, 1);
  Arena scratch;
  Exec dry = runner_->exec();
  dry.backend = Backend::kDry;
  dry.scratch = &scratch;
  dry.recorder = &recorder;
  if (!instance.run(dry, 0).ok() || recorder.total() == 0) return {};  // run_variant says why
  const OpRecord record = recorder.records().back();
  const double gflop = record.cost.flops * 1e-9;
  // Loops written for every processor are far below what its units could do.
  if (is_portable(kernel, kernels_, record.variant)) {
    if (plain_gflops_ <= 0) plain_gflops_ = measure_plain_gflops(*runner_->exec().pool);
    return too_long_text(gflop / plain_gflops_, options_.max_call_s, "rate of plain loops");
  }
  const double gflops = report_.peaks.compute_gflops(record.cost.unit);
  return too_long_text(gflops > 0 ? gflop / gflops : 0, options_.max_call_s,
                       str_cat(report_.peaks.compute_name(record.cost.unit), " rate"));
}

void CaseBench::run(const BenchPlanEntry& entry,
                    std::unique_ptr<CaseInstance> instance,
                    const OnRow& on_row,
                    const OnAbsent& on_absent) {
  BenchRow row = start_row(entry, report_.conditions);
  if (entry.kernel == nullptr || !entry.bench_case) {
    row.note = entry.kernel == nullptr ? "not among the kernels of this build" : entry.why;
    return on_row(std::move(row), {});
  }
  const Case& c = *entry.bench_case;
  store_shape(c.spec, *instance, row);
  describe_operands(*instance, row);
  add_note(row, c.spec.note);
  if (entry.call) {
    if (std::string why = difference_from(*entry.call, *instance); !why.empty()) {
      row.status = RowStatus::kWrong;
      add_note(row, why);
      return on_row(std::move(row), {});
    }
  }
  std::vector<std::string> variants = {""};
  if (options_.all_variants) {
    variants.clear();
    for (const VariantEntry& v : entry.kernel->variants(kernels_))
      variants.emplace_back(v.name);
  }
  for (const std::string& variant : variants) {
    BenchRow variant_row = row;
    variant_row.variant = variant;
    runner_->pin(entry.kernel->info.name, variant);
    if (std::string why = too_long(*entry.kernel, *instance); !why.empty()) {
      variant_row.note = std::move(why);
      on_absent(std::move(variant_row));
      continue;
    }
    const Cost cost = run_variant(*entry.kernel, *instance, variant_row);
    on_row(std::move(variant_row), cost);
  }
}

Cost CaseBench::run_variant(const KernelEntry& kernel, CaseInstance& instance, BenchRow& row) {
  Exec& ex = runner_->exec();
  if (std::string why = instance.why_not(ex); !why.empty()) {
    row.status = RowStatus::kUnavailable;
    add_note(row, why);
    return {};
  }
  if (std::string why = too_large(*runner_, instance); !why.empty()) {
    row.status = RowStatus::kUnavailable;
    add_note(row, why);
    return {};
  }
  // The recorder says which variant was chosen, what unit it computes on and how long it took.
  Recorder recorder(RecordLevel::kTimed, 4);
  ex.recorder = &recorder;
  const int64_t begin_ns = monotonic_ns();
  const CheckReport checked = runner_->run_checked(instance);
  log_debug(row.kernel, "/", row.case_name, ": checked in ", seconds_since(begin_ns), " s");
  ex.recorder = nullptr;
  store_report(checked, row);
  Cost cost = instance.cost();
  double checked_s = 0;
  for (const OpRecord& record : recorder.records()) {
    if (record.variant != nullptr) row.variant = variant_name(kernel, kernels_, record.variant);
    cost = record.cost;
    checked_s = static_cast<double>(record.end_ns - record.start_ns) * 1e-9;
  }
  row.flops = cost.flops;
  row.bytes_model = static_cast<double>(cost.bytes());
  if (!checked.passed) {
    row.status = RowStatus::kWrong;
    add_note(row, checked.why);
  } else if (options_.check_only) {
    row.status = RowStatus::kUnavailable;
    add_note(row, "checked, not timed");
  } else if (runner_->is_gpu()) {
    time_row_on_gpu(instance, cost, row);
  } else {
    time_row(instance, cost, checked_s, row);
  }
  return cost;
}

void CaseBench::time_row(CaseInstance& instance,
                         const Cost& cost,
                         double checked_s,
                         BenchRow& row) {
  const bool warm = options_.caches == BenchCaches::kWarm;
  const int64_t begin_ns = monotonic_ns();
  const ColdPlan cold =
      warm ? ColdPlan{} : cold_plan(cost.bytes(), instance.bytes_per_copy(), last_cache_bytes());
  Exec& ex = runner_->exec();
  Status ready = instance.make_copies(cold.copies);
  if (ready.ok() && cold.sweep) ready = sweep_.run(*ex.pool);
  if (!ready.ok()) {
    row.status = RowStatus::kUnavailable;
    return add_note(row, in_one_line(ready.message()));
  }
  log_debug(row.kernel, "/", row.case_name, ": ", cold.copies, " copies in ",
            seconds_since(begin_ns), " s");
  const MonotonicClock clock;
  TimerOptions timer = options_.timer;
  // The checked launch has warmed up what takes so long.
  if (checked_s > timer.max_warm_up_s) timer.max_warm_up_s = 0;
  std::function<void()> before_sample;
  if (cold.sweep) before_sample = [&] { (void)sweep_.run(*ex.pool); };
  const Result<Timing> timing = time_calls(
      [&](int64_t call) { return instance.run(ex, static_cast<int>(call % cold.copies)); }, timer,
      clock, before_sample);
  if (!timing.ok()) {
    row.status = RowStatus::kWrong;
    return add_note(row, in_one_line(timing.status().message()));
  }
  row.status = RowStatus::kOk;
  store_timing(*timing, row);
  row.clock_mhz = cpu_clock_mhz();
  if (warm) add_note(row, "warm");
  if (timing->unstable()) add_note(row, "unstable");
  if (!timing->settled && timer.max_warm_up_s > 0) add_note(row, "warm-up did not settle");
  add_roofline(cost, report_.peaks, row);
  log_debug(row.kernel, "/", row.case_name, ": timed in ", seconds_since(begin_ns), " s");
}

void CaseBench::time_row_on_gpu(CaseInstance& instance, const Cost& cost, BenchRow& row) {
  GpuTimerOptions timer;
  timer.min_replays = options_.timer.min_reps;
  timer.min_time_s = options_.timer.min_time_s;
  timer.max_time_s = options_.timer.max_time_s;
  timer.cold = options_.caches == BenchCaches::kCold;
  const Result<GpuTiming> timing = gpu_timer_->time(*runner_, instance, timer);
  if (!timing.ok()) {
    row.status = RowStatus::kWrong;
    return add_note(row, in_one_line(timing.status().message()));
  }
  row.status = RowStatus::kOk;
  const std::vector<double>& us = timing->us;
  row.reps = static_cast<double>(us.size());
  row.us_median = timing->median();
  row.us_mean = std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
  row.us_min = us.front();
  row.us_max = us.back();
  row.us_p10 = timing->quantile(0.1);
  row.us_p90 = timing->quantile(0.9);
  if (!timer.cold) add_note(row, "warm");
  if (*row.us_p90 - *row.us_p10 > 0.1 * *row.us_median) add_note(row, "unstable");
  add_roofline(cost, report_.peaks, row);
}

}  // namespace fathom
