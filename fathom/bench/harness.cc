#include "fathom/bench/harness.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <malloc.h>
#include <type_traits>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/base/log.h"
#include "fathom/bench/case_bench.h"
#include "fathom/bench/cases_ahead.h"
#include "fathom/bench/child_process.h"
#include "fathom/bench/files/csv.h"
#include "fathom/bench/machine/conditions.h"
#include "fathom/bench/machine/gpu_machine.h"
#include "fathom/os/clock.h"

namespace fathom {
namespace {

constexpr double kLatencyUs = 1.0;  // calls whose floor is shorter are bound by starting them

using Plan = std::vector<BenchPlanEntry>;

void tell(const BenchKernelOptions& options, const Plan& plan, size_t index) {
  if (!options.on_start) return;
  options.on_start(static_cast<int64_t>(index), static_cast<int64_t>(plan.size()),
                   plan[index].name());
}

AbsentRow absent_row(const BenchPlanEntry& entry,
                     const BenchConditions& conditions,
                     std::string why) {
  AbsentRow row = start_row(entry, conditions);
  row.note = std::move(why);
  return row;
}

bool is_interrupted(const BenchKernelOptions& options) {
  return options.interrupted && options.interrupted();
}

/// Index of the first entry after those of the kernel at `begin`.
size_t end_of_kernel(const Plan& plan, size_t begin) {
  size_t end = begin + 1;
  while (end < plan.size() && plan[end].kernel == plan[begin].kernel)
    ++end;
  return end;
}

void add_row(BenchReport& report, BenchRow row, const Cost& cost) {
  report.rows.push_back(std::move(row));
  report.costs.push_back(cost);
}

/// Threads that make cases ahead: none beside kernels that are timed on the processor, and on a GPU
/// one less than there are, which launches.
int threads_ahead(const BenchKernelOptions& options, int num_threads) {
  return options.backend == Backend::kCpu ? 0 : num_threads - 1;
}

/// Entries [begin, end), of one kernel, in this process.
Status run_here(const Plan& plan,
                size_t begin,
                size_t end,
                const KernelSet& kernels,
                const BenchKernelOptions& options,
                int num_threads,
                BenchReport& report) {
  FATHOM_ASSIGN(const std::unique_ptr<CaseBench> bench,
                CaseBench::create(kernels, options, report, num_threads));
  CasesAhead cases(begin, end, threads_ahead(options, num_threads),
                   [&](size_t i) { return bench->make(plan[i]); });
  for (size_t i = begin; i < end; ++i) {
    tell(options, plan, i);
    if (std::string why = bench->reason_to_leave_out(plan[i]); !why.empty()) {
      report.absent.push_back(absent_row(plan[i], report.conditions, std::move(why)));
      continue;
    }
    bench->run(
        plan[i], cases.take(i),
        [&](BenchRow row, const Cost& cost) { add_row(report, std::move(row), cost); },
        [&](AbsentRow row) { report.absent.push_back(std::move(row)); });
  }
  return {};
}

/// What a child sends: the entry that it begins, what its next row costs, a row as CSV, a row that
/// is left out.
constexpr char kBegins = 'b';
constexpr char kCost = 'c';
constexpr char kRow = 'r';
constexpr char kAbsent = 'a';

std::string_view bytes_of(const Cost& cost) {
  static_assert(std::is_trivially_copyable_v<Cost>);
  return {reinterpret_cast<const char*>(&cost), sizeof cost};
}

/// Takes what a child sends into a report.
class Receiver {
 public:
  Receiver(const Plan& plan, size_t begin, const BenchKernelOptions& options, BenchReport& report)
      : plan_(plan), options_(options), report_(report), at_(begin) {}

  void take(char kind, std::string_view bytes) {
    if (kind == kBegins) {
      std::from_chars(bytes.data(), bytes.data() + bytes.size(), at_);
      reported_ = false;
      return tell(options_, plan_, at_);
    }
    if (kind == kCost) {
      std::memcpy(&cost_, bytes.data(), std::min(bytes.size(), sizeof cost_));
      return;
    }
    Result<std::vector<BenchRow>> rows = read_bench_csv(bytes, plan_[at_].name());
    const AbsentRow row =
        rows.ok() && rows->size() == 1
            ? rows->front()
            : absent_row(plan_[at_], report_.conditions, in_one_line(rows.status().message()));
    reported_ = true;
    if (kind == kAbsent) {
      report_.absent.push_back(row);
    } else {
      add_row(report_, row, cost_);
    }
  }

  /// The entry whose process died.
  void take_crash(const ChildEnd& ended) {
    BenchRow row = start_row(plan_[at_], report_.conditions);
    row.status = RowStatus::kCrashed;
    row.note = str_cat("its process ended with ", ended.how);
    add_row(report_, std::move(row), {});
  }

  size_t at() const { return at_; }

  /// The first entry of which nothing came.
  size_t first_missing() const { return reported_ ? at_ + 1 : at_; }

 private:
  const Plan& plan_;
  const BenchKernelOptions& options_;
  BenchReport& report_;
  size_t at_;
  bool reported_ = false;
  Cost cost_;
};

/// Entries [begin, end), of one kernel, in a child that makes `ahead` cases ahead. Returns the
/// entry to go on with. A child that dies may have died of a case ahead: then no entry is blamed,
/// `ahead` is 0 from there on, and the next child tells.
Result<size_t> run_in_own_process(const Plan& plan,
                                  size_t begin,
                                  size_t end,
                                  const KernelSet& kernels,
                                  const BenchKernelOptions& options,
                                  int num_threads,
                                  int& ahead,
                                  BenchReport& report) {
  const auto work = [&](const SendMessage& send) {
    // What one case gives back the next one takes: the system clears fresh pages slowly.
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    const Result<std::unique_ptr<CaseBench>> bench =
        CaseBench::create(kernels, options, report, num_threads);
    const auto send_row = [&](char kind, const BenchRow& row) {
      send(kind, write_bench_csv(std::span(&row, 1)));
    };
    CasesAhead cases(begin, end, bench.ok() ? ahead : 0,
                     [&](size_t i) { return (*bench)->make(plan[i]); });
    for (size_t i = begin; i < end; ++i) {
      send(kBegins, str_cat(i));
      if (!bench.ok()) {
        BenchRow row = start_row(plan[i], report.conditions);
        row.note = in_one_line(bench.status().message());
        send(kCost, bytes_of({}));
        send_row(kRow, row);
        continue;
      }
      if (std::string why = (*bench)->reason_to_leave_out(plan[i]); !why.empty()) {
        send_row(kAbsent, absent_row(plan[i], report.conditions, std::move(why)));
        continue;
      }
      (*bench)->run(
          plan[i], cases.take(i),
          [&](const BenchRow& row, const Cost& cost) {
            send(kCost, bytes_of(cost));
            send_row(kRow, row);
          },
          [&](const AbsentRow& row) { send_row(kAbsent, row); });
    }
  };
  Receiver receiver(plan, begin, options, report);
  FATHOM_ASSIGN(const ChildEnd ended,
                run_in_child(
                    work, [&](char kind, std::string_view bytes) { receiver.take(kind, bytes); },
                    options.interrupted));
  if (!ended.crashed()) return end;
  if (is_interrupted(options)) return receiver.first_missing();
  if (std::exchange(ahead, 0) > 0) return receiver.first_missing();
  receiver.take_crash(ended);
  return receiver.at() + 1;
}

/// Holds the rows against ceilings that were found higher since.
void hold_rows_to(const Peaks& peaks, BenchReport& report) {
  report.peaks = peaks;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    if (report.rows[i].status != RowStatus::kOk) continue;
    add_roofline(report.costs[i], peaks, report.rows[i]);
  }
}

/// Ceilings measured before the rows, and again between kernels every so often.
class Ceilings {
 public:
  static Result<Ceilings> create(Isa isa, int num_threads, const PeakOptions& options) {
    FATHOM_ASSIGN(PeakMeter meter, PeakMeter::create(isa, options));
    Ceilings ceilings(std::move(meter), num_threads);
    FATHOM_TRY(ceilings.measure(options.seconds));
    return ceilings;
  }

  /// Rows stay held to the ceilings that there are where the system has no threads left.
  void measure_again() {
    if (monotonic_ns() - last_ns_ <= kEveryNs) return;
    if (const Status s = measure(kShortSeconds); !s.ok())
      log_warn("the ceilings are not measured again: ", s.message());
  }

  const Peaks& best() const { return meter_.best(); }

 private:
  static constexpr int64_t kEveryNs = 10'000'000'000;
  static constexpr double kShortSeconds = 0.05;

  Ceilings(PeakMeter meter, int num_threads)
      : meter_(std::move(meter)), num_threads_(num_threads) {}

  // Threads of its own each time: a process that forks children has none.
  Status measure(double seconds) {
    FATHOM_ASSIGN(const auto pool, ThreadPool::create(num_threads_, PinThreads::kYes));
    meter_.measure(*pool, seconds);
    last_ns_ = monotonic_ns();
    return {};
  }

  PeakMeter meter_;
  int num_threads_;
  int64_t last_ns_ = 0;
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

Status run_bench_plan(const std::vector<BenchPlanEntry>& plan,
                      const KernelSet& kernels,
                      const BenchKernelOptions& options,
                      int num_threads,
                      BenchReport& report,
                      const std::function<void()>& between_kernels) {
  size_t kernel_end = 0;
  int ahead = 0;
  for (size_t begin = 0; begin < plan.size();) {
    const size_t end = end_of_kernel(plan, begin);
    if (end != kernel_end) ahead = threads_ahead(options, num_threads);
    kernel_end = end;
    if (options.isolation == BenchIsolation::kChildPerKernel) {
      FATHOM_ASSIGN(begin, run_in_own_process(plan, begin, end, kernels, options, num_threads,
                                              ahead, report));
    } else {
      FATHOM_TRY(run_here(plan, begin, end, kernels, options, num_threads, report));
      begin = end;
    }
    if (is_interrupted(options)) {
      for (; begin < plan.size(); ++begin) {
        report.absent.push_back(
            absent_row(plan[begin], report.conditions, std::string(kInterruptedReason)));
      }
      return {};
    }
    if (between_kernels) between_kernels();
  }
  return {};
}

Result<BenchReport> run_kernel_bench(const BenchKernelOptions& options) {
  const Isa isa = std::min(options.isa, best_isa());
  const int num_threads = options.num_threads > 0 ? options.num_threads : cpu_info().num_cpus();
  FATHOM_ASSIGN(BenchPlan plan, plan_kernel_bench(options));
  BenchReport report;
  report.suite = options.preset.empty() ? options.suite : options.preset;
  // Of a preset, phase, batch and lengths say which steps there are.
  const bool every_step =
      !options.preset.empty() || (options.phase.empty() && options.batch.empty() &&
                                  options.seq.empty() && options.kv_len.empty());
  report.whole_suite =
      options.kernels.empty() && options.filter.empty() && every_step && !options.all_variants;
  if (options.backend == Backend::kCuda) {
    FATHOM_ASSIGN(const GpuMachine gpu, measure_gpu_in_child(options.device));
    report.conditions = bench_conditions(isa, num_threads, gpu.device);
    report.peaks = gpu.peaks;
    BenchKernelOptions for_gpu = options;
    for_gpu.gpu = gpu.device;
    for_gpu.gpu->ordinal = -1;  // asking it would leave the children of this process without CUDA
    FATHOM_ASSIGN(plan, plan_kernel_bench(for_gpu));
    report.steps = std::move(plan.steps);
    const KernelSet kernels = KernelSet::for_cuda(gpu.device.sm);
    FATHOM_TRY(run_bench_plan(plan.entries, kernels, options, num_threads, report));
    return report;
  }
  report.steps = std::move(plan.steps);
  const KernelSet kernels = KernelSet::for_cpu(isa);
  report.conditions = bench_conditions(isa, num_threads);
  if (options.check_only) {
    FATHOM_TRY(run_bench_plan(plan.entries, kernels, options, num_threads, report));
    return report;
  }
  FATHOM_ASSIGN(Ceilings ceilings, Ceilings::create(isa, num_threads, options.peaks));
  report.peaks = ceilings.best();
  FATHOM_TRY(run_bench_plan(plan.entries, kernels, options, num_threads, report,
                            [&] { ceilings.measure_again(); }));
  hold_rows_to(ceilings.best(), report);
  return report;
}

}  // namespace fathom
