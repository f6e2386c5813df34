#include "fathom/bench/harness.h"

#include <algorithm>
#include <charconv>

#include "fathom/base/checked_math.h"
#include "fathom/bench/conditions.h"
#include "fathom/bench/reference_names.h"
#include "fathom/bench/suites.h"
#include "fathom/kernels/conformance/case_runner.h"

namespace fathom {
namespace {

constexpr int64_t kMostCopies = 4096;
constexpr int64_t kMostCopyBytes = int64_t{4} << 30;
constexpr double kLatencyUs = 1.0;  // calls whose floor is shorter are bound by starting them

// ---- the plan ----

bool one_of(const std::vector<int64_t>& wanted, const Figure& found) {
  return wanted.empty() || (found && std::find(wanted.begin(), wanted.end(),
                                               static_cast<int64_t>(*found)) != wanted.end());
}

/// Stores "M=1;E=256" into the split columns; axes of a signature that have no column are left out.
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

bool matches_filter(std::string_view filter, const KernelEntry& kernel, const Case& c) {
  if (filter.empty() || matches_pattern(filter, c.spec.op)) return true;
  if (matches_pattern(filter, str_cat(c.kernel, "/", c.spec.name))) return true;
  for (std::string_view name : kernel.info.reference_names) {
    if (matches_pattern(filter, str_cat(name, "/", c.spec.name))) return true;
  }
  return false;
}

bool is_wanted(const BenchKernelOptions& options,
               std::string_view phase,
               const KernelEntry& kernel,
               const Case& c) {
  if (!c.spec.bench) return false;
  if (!phase.empty() && c.spec.phase != phase) return false;
  BenchRow row;
  split_columns(c.spec.columns, row);
  const bool batch = one_of(options.batch, row.m) || one_of(options.batch, row.b);
  if (!batch || !one_of(options.seq, row.s) || !one_of(options.kv_len, row.kv)) return false;
  return matches_filter(options.filter, kernel, c);
}

Status unknown_kernel(std::string_view name) {
  if (const ReferenceHome home = find_reference_home(name); home.covered) {
    return invalid_argument(str_cat("'", name, "' is no kernel here but ", home.home, " (fathom/",
                                    home.folder, "); there is nothing to time"));
  }
  std::string message = str_cat("no kernel is called '", name, "'");
  const std::vector<std::string> near = near_kernel_names(name);
  for (size_t i = 0; i < near.size(); ++i) {
    str_append(message, str_cat(i == 0 ? "; did you mean " : " or ", near[i]));
  }
  return invalid_argument(str_cat(message, "; see --list"));
}

// ---- one row ----

std::string_view reference_name_of(const KernelEntry& kernel) {
  return kernel.info.reference_names.size > 0 ? *kernel.info.reference_names.begin()
                                              : std::string_view{};
}

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

void store_report(const CheckReport& report, BenchRow& row) {
  row.max_abs = report.max_abs;
  row.max_rel = report.max_rel;
  row.cos = report.cos;
  row.sqnr_db = report.sqnr_db;
  row.passed = report.passed ? "true" : "false";
  row.budget = report.budget;
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

/// Copies after which a call finds nothing of its operands in the caches any more.
int copies_for(CaseInstance& instance) {
  const int64_t cache = cpu_info().l3_bytes > 0 ? cpu_info().l3_bytes : int64_t{32} << 20;
  const int64_t touched = std::max<int64_t>(1, instance.cost().bytes());
  const int64_t wanted = ceil_div(2 * cache, touched) + 1;
  const int64_t affordable = kMostCopyBytes / std::max<int64_t>(1, instance.bytes_per_copy());
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::min(kMostCopies, affordable + 1)));
}

/// Holds what a run of many rows shares.
class Bench {
 public:
  Bench(const BenchKernelOptions& options, BenchReport& report, int num_threads)
      : options_(options), report_(report), runner_(num_threads, PinThreads::kYes) {}

  void run(const BenchPlanEntry& entry) {
    BenchRow row = start_row(entry);
    if (entry.kernel == nullptr || entry.bench_case == nullptr) {
      row.note = entry.kernel == nullptr ? "not among the kernels of this build"
                                         : "no case of this choice";
      return finish(std::move(row));
    }
    const Case& c = *entry.bench_case;
    const std::unique_ptr<CaseInstance> instance = c.make(options_.seed);
    row.shape = instance->shape();
    split_columns(row.shape, row);
    if (!c.spec.columns.empty()) {
      row.b = row.s = row.kv = row.m = row.n = row.k = row.e = row.topk = row.h = row.d = {};
      split_columns(c.spec.columns, row);
    }
    describe_operands(*instance, row);
    add_note(row, c.spec.note);
    std::vector<std::string> variants = {""};
    if (options_.all_variants) {
      variants.clear();
      for (const VariantEntry& v : entry.kernel->variants(Backend::kCpu)) {
        variants.emplace_back(v.name);
      }
    }
    for (const std::string& variant : variants) {
      BenchRow variant_row = row;
      variant_row.variant = variant;
      run_variant(*entry.kernel, variant, *instance, variant_row);
      finish(std::move(variant_row));
    }
  }

 private:
  BenchRow start_row(const BenchPlanEntry& entry) const {
    BenchRow row;
    row.conditions = report_.conditions;
    row.backend = "cpu";
    row.arch = report_.conditions.host_isa;
    row.kernel = entry.kernel != nullptr ? std::string(entry.kernel->info.name) : entry.asked;
    if (entry.kernel != nullptr) {
      row.reference_name = std::string(reference_name_of(*entry.kernel));
    } else {
      row.reference_name = entry.asked;
    }
    if (entry.bench_case != nullptr) {
      row.case_name = entry.bench_case->spec.name;
      row.op = entry.bench_case->spec.op;
      row.phase = entry.bench_case->spec.phase;
    }
    return row;
  }

  void run_variant(const KernelEntry& kernel,
                   const std::string& variant,
                   CaseInstance& instance,
                   BenchRow& row) {
    runner_.pin(kernel.info.name, variant);
    Exec& ex = runner_.exec();
    if (std::string why = instance.why_not(ex); !why.empty()) {
      row.status = RowStatus::kUnavailable;
      return add_note(row, why);
    }
    // The recorder says which variant was chosen and what unit it computes on.
    Recorder recorder(RecordLevel::kShapes, 4);
    ex.recorder = &recorder;
    const CheckReport checked = runner_.run_checked(instance);
    ex.recorder = nullptr;
    store_report(checked, row);
    Cost cost = instance.cost();
    for (const OpRecord& record : recorder.records()) {
      if (record.variant != nullptr) row.variant = variant_name(kernel, record.variant);
      cost = record.cost;
    }
    row.flops = cost.flops;
    row.bytes_model = static_cast<double>(cost.bytes());
    if (!checked.passed) {
      row.status = RowStatus::kWrong;
      return add_note(row, checked.why);
    }
    if (options_.check_only) {
      row.status = RowStatus::kUnavailable;
      return add_note(row, "checked, not timed");
    }
    time_row(instance, cost, row);
  }

  void time_row(CaseInstance& instance, const Cost& cost, BenchRow& row) {
    const bool warm = options_.caches == BenchCaches::kWarm;
    const int copies = warm ? 1 : copies_for(instance);
    if (Status s = instance.make_copies(copies); !s.ok()) {
      row.status = RowStatus::kUnavailable;
      return add_note(row, s.message());
    }
    Exec& ex = runner_.exec();
    const MonotonicClock clock;
    const Result<Timing> timing =
        time_calls([&](int64_t call) { return instance.run(ex, static_cast<int>(call % copies)); },
                   options_.timer, clock);
    if (!timing.ok()) {
      row.status = RowStatus::kWrong;
      return add_note(row, timing.status().message());
    }
    row.status = RowStatus::kOk;
    store_timing(*timing, row);
    row.clock_mhz = cpu_clock_mhz();
    if (warm) add_note(row, "warm");
    if (timing->unstable()) add_note(row, "unstable");
    if (!timing->settled) add_note(row, "warm-up did not settle");
    add_roofline(cost, report_.peaks, row);
  }

  /// Variant names are views into tables; a record keeps only where one begins.
  static std::string variant_name(const KernelEntry& kernel, const char* begin) {
    for (const VariantEntry& v : kernel.variants(Backend::kCpu)) {
      if (v.name.data() == begin) return std::string(v.name);
    }
    return {};
  }

  void finish(BenchRow row) {
    if (options_.on_row) options_.on_row(row);
    report_.rows.push_back(std::move(row));
  }

  const BenchKernelOptions& options_;
  BenchReport& report_;
  CaseRunner runner_;
};

}  // namespace

int64_t BenchReport::count(RowStatus status) const {
  return std::count_if(rows.begin(), rows.end(),
                       [&](const BenchRow& row) { return row.status == status; });
}

void add_roofline(const Cost& cost, const Peaks& peaks, BenchRow& row) {
  row.flops = cost.flops;
  const auto bytes = static_cast<double>(cost.bytes());
  row.bytes_model = bytes;
  if (bytes > 0) row.ai = cost.flops / bytes;
  const double gbps = peaks.memory_gbps(cost.bytes_read, cost.bytes_written);
  const double gflops = peaks.compute_gflops(cost.unit);
  const double memory_us = gbps > 0 ? bytes / gbps * 1e-3 : 0;
  const double compute_us = gflops > 0 ? cost.flops / gflops * 1e-3 : 0;
  row.roof_us = std::max(memory_us, compute_us);
  const bool by_memory = memory_us >= compute_us;
  row.bound = *row.roof_us < kLatencyUs ? "latency" : (by_memory ? "memory" : "compute");
  row.peak_used = by_memory ? peaks.memory_name(cost.bytes_read, cost.bytes_written)
                            : peaks.compute_name(cost.unit);
  if (!row.us_median || *row.us_median <= 0) return;
  row.tflops = cost.flops / *row.us_median * 1e-6;
  row.gbps = bytes / *row.us_median * 1e-3;
  row.pct_of_roof = *row.roof_us / *row.us_median * 100;
}

Result<std::vector<BenchPlanEntry>> plan_kernel_bench(const BenchKernelOptions& options) {
  FATHOM_ASSIGN(Suite suite, find_suite(options.suite));
  const bool by_name = !options.kernels.empty();
  if (by_name) suite.kernels = options.kernels;
  const std::string_view phase = options.phase.empty() ? suite.phase : options.phase;
  std::vector<BenchPlanEntry> plan;
  for (const std::string& name : suite.kernels) {
    const KernelEntry* kernel = find_kernel(name);
    if (kernel == nullptr && by_name) return unknown_kernel(name);
    bool any = false;
    for (const Case* c :
         kernel == nullptr ? std::vector<const Case*>{} : all_cases().of(kernel->info.name)) {
      if (!is_wanted(options, phase, *kernel, *c)) continue;
      plan.push_back({name, kernel, c});
      any = true;
    }
    // A name that was asked for never goes missing without a word; kernels that a filter leaves out
    // do.
    const bool filtered = kernel != nullptr && !by_name;
    if (!any && !filtered) plan.push_back({name, kernel, nullptr});
  }
  return plan;
}

void run_bench_plan(const std::vector<BenchPlanEntry>& plan,
                    const BenchKernelOptions& options,
                    int num_threads,
                    BenchReport& report) {
  Bench bench(options, report, num_threads);
  for (const BenchPlanEntry& entry : plan)
    bench.run(entry);
}

Result<BenchReport> run_kernel_bench(const BenchKernelOptions& options) {
  const Isa isa = std::min(options.isa, best_isa());
  install_cpu_kernels(isa);
  const int num_threads = options.num_threads > 0 ? options.num_threads : cpu_info().num_cpus();
  FATHOM_ASSIGN(const std::vector<BenchPlanEntry> plan, plan_kernel_bench(options));
  BenchReport report;
  report.conditions = bench_conditions(isa, num_threads);
  if (!options.check_only) {
    ThreadPool pool(num_threads, PinThreads::kYes);
    FATHOM_ASSIGN(report.peaks, measure_peaks(pool, isa, options.peaks));
  }
  Bench bench(options, report, num_threads);
  for (const BenchPlanEntry& entry : plan)
    bench.run(entry);
  return report;
}

}  // namespace fathom
