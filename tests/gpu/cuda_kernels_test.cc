// Everything that can be said of the CUDA kernels on a machine that has a GPU and nothing else:
// every variant of every kernel over the cases of conformance (gates, guards, traits, graph
// replay), the number formats code by code, and times. Needs libc and the driver alone.
//
//   cuda_kernels_test [--kernel NAME]... [--case TEXT] [--skip TEXT] [--real] [--time] [--csv FILE]
//   [--jobs N] [--brief] [--variant NAME]
//
// --real    the real shapes instead of the small ones (seconds and gigabytes each)
// --brief   fewer repeats and no other seed, for runs under a memory checker
// --time    times the real shapes that are right, one kernel after the other
// --variant only variants of that name, where one takes the case
// Exits 0 if everything passed, 1 if not, 69 where there is no GPU.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "fathom/bench/child_process.h"
#include "fathom/device/device.h"
#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/conformance/gpu_timing.h"
#include "fathom/kernels/core/catalog.h"
#include "fathom/kernels/core/variants.h"
#include "tests/gpu/number_checks.h"

namespace fathom {
namespace {

constexpr uint64_t kSeed = 20260101;
constexpr int64_t kSmallCaseBytes = int64_t{512} << 20;
constexpr int64_t kRealCaseBytes = int64_t{56} << 30;
constexpr int kRepeats = 8;

struct Options {
  std::vector<std::string> kernels;
  std::string case_text;
  std::string skip_text;
  bool real = false;
  bool time = false;
  bool brief = false;
  std::string csv;
  std::string variant;
  int jobs = 8;
};

/// Counts of all processes.
struct Counts {
  std::atomic<int> next_kernel{0};
  std::atomic<int> cases{0};
  std::atomic<int> runs{0};  // of a case by a variant
  std::atomic<int> failures{0};
  std::atomic<int> crashes{0};
  std::atomic<int> not_taken{0};  // cases that no variant takes
};

void say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) _exit(1);
}

bool is_asked_for(const Options& options, const KernelEntry& kernel) {
  if (!kernel.cuda) return false;
  if (options.kernels.empty()) return true;
  for (const std::string& name : options.kernels) {
    if (kernel.info.name == name) return true;
  }
  return false;
}

std::vector<const Case*> cases_of(const Options& options, std::string_view kernel) {
  std::vector<const Case*> out;
  for (const Case* c : all_cases().of(kernel)) {
    if (c->spec.bench != (options.real || options.time)) continue;
    if (c->spec.name.find(options.case_text) == std::string::npos) continue;
    if (!options.skip_text.empty() && c->spec.name.find(options.skip_text) != std::string::npos) {
      continue;
    }
    out.push_back(c);
  }
  return out;
}

/// What a child does: cases of one kernel, from `first` on. Messages: 'b' a case begins, 'r' a run,
/// 'n' no variant takes it, 'f' a failure, 't' a line of times.
class KernelWork {
 public:
  KernelWork(const Options& options, const KernelEntry& kernel, const SendMessage& send)
      : options_(options), kernel_(kernel), send_(send) {}

  Status run(const std::vector<const Case*>& cases, size_t first) {
    FATHOM_ASSIGN(const DeviceInfo device, use_cuda_device(0));
    install_cuda_kernels(device.sm);
    const bool real = options_.real || options_.time;
    FATHOM_ASSIGN(runner_, CaseRunner::on_gpu(device, real ? kRealCaseBytes : kSmallCaseBytes));
    FATHOM_ASSIGN(GpuTimer timer, GpuTimer::create(device));
    for (size_t i = first; i < cases.size(); ++i) {
      send_('b', str_cat(i));
      run_case(*cases[i], timer);
      FATHOM_TRY(synchronize_device());
    }
    return {};
  }

 private:
  /// Small cases run twice: as they are written for any backend, and as they lie on a GPU. Real
  /// shapes lie as they do on a GPU.
  void run_case(const Case& c, GpuTimer& timer) {
    int taken = 0;
    std::string reason;
    if (!c.spec.bench) taken += run_form(c, c.make, timer, reason);
    taken += run_form(c, c.make_for_gpu, timer, reason);
    if (taken == 0) send_('n', str_cat(kernel_.info.name, "/", c.spec.name, ": ", reason));
  }

  /// Variants that took the case in this form; where none did, why.
  int run_form(const Case& c,
               const std::function<std::unique_ptr<CaseInstance>(uint64_t seed)>& make,
               GpuTimer& timer,
               std::string& reason) {
    const std::unique_ptr<CaseInstance> instance = make(kSeed);
    const std::unique_ptr<CaseInstance> changed =
        c.spec.bench || options_.brief ? nullptr : make(kSeed + 1);
    int taken = 0;
    for (const VariantEntry& variant : kernel_.variants(Backend::kCuda)) {
      if (!options_.variant.empty() && variant.name != options_.variant) continue;
      runner_->pin(kernel_.info.name, variant.name);
      if (!instance->why_not(runner_->exec()).empty()) continue;
      ++taken;
      send_('r', variant.name);
      std::string why = check(*instance, changed.get(), variant);
      if (why.empty() && options_.time) why = time(c, *instance, variant, timer);
      if (!why.empty()) fail(c, variant.name, why);
      if (options_.time) break;  // the first is the one that is chosen
    }
    runner_->pin(kernel_.info.name, "");
    if (!options_.variant.empty()) return 1;
    if (taken == 0) reason = instance->why_not(runner_->exec());
    return taken;
  }

  std::string check(CaseInstance& instance, CaseInstance* changed, const VariantEntry& variant) {
    const CheckReport report = runner_->run_checked(instance);
    if (!report.passed) return str_cat(report.why, "; budget: ", report.budget);
    if (options_.time) return {};
    return check_gpu_traits(*runner_, instance, changed, variant.traits,
                            {.repeats = options_.real || options_.brief ? 2 : kRepeats});
  }

  std::string time(const Case& c,
                   CaseInstance& instance,
                   const VariantEntry& variant,
                   GpuTimer& timer) {
    const Result<GpuTiming> timing = timer.time(*runner_, instance, {});
    if (!timing.ok()) return str_cat("timing: ", timing.status().message());
    const Cost cost = instance.cost();
    const double us = timing->median();
    send_('t',
          str_cat(kernel_.info.name, ",", c.spec.name, ",", variant.name, ",", instance.shape(),
                  ",", us, ",", timing->quantile(0.1), ",", timing->quantile(0.9), ",",
                  cost.bytes(), ",", cost.flops, ",", static_cast<double>(cost.bytes()) / us * 1e-3,
                  ",", cost.flops / us * 1e-6, ",", timing->launches, ",", timing->copies));
    return {};
  }

  void fail(const Case& c, std::string_view variant, std::string_view why) {
    send_('f', str_cat(kernel_.info.name, "/", c.spec.name, " [", variant, "]: ", why));
  }

  const Options& options_;
  const KernelEntry& kernel_;
  const SendMessage& send_;
  std::unique_ptr<CaseRunner> runner_;
};

/// Runs all cases of a kernel, in another process after one that a case killed.
void run_kernel(const Options& options, const KernelEntry& kernel, Counts& counts, std::FILE* csv) {
  const std::vector<const Case*> cases = cases_of(options, kernel.info.name);
  const int failures_before = counts.failures;
  std::map<std::string, int, std::less<>> runs;  // of each variant
  size_t first = 0;
  while (first < cases.size()) {
    size_t current = first;
    bool started = false;
    const auto on_message = [&](char kind, std::string_view text) {
      if (kind == 'b') {
        current = static_cast<size_t>(std::strtoull(std::string(text).c_str(), nullptr, 10));
        started = true;
        ++counts.cases;
      } else if (kind == 'r') {
        ++counts.runs;
        ++runs[std::string(text)];
      } else if (kind == 'n') {
        ++counts.not_taken;
        say(str_cat("NOT TAKEN ", text));
      } else if (kind == 'f') {
        ++counts.failures;
        say(str_cat("FAIL ", text));
      } else if (kind == 't') {
        say(std::string(text));
        if (csv != nullptr) std::fprintf(csv, "%s\n", std::string(text).c_str());
        if (csv != nullptr) std::fflush(csv);
      }
    };
    const Result<ChildEnd> end = run_in_child(
        [&](const SendMessage& send) {
          KernelWork work(options, kernel, send);
          if (Status s = work.run(cases, first); !s.ok()) {
            send('f', str_cat(kernel.info.name, ": ", s.message()));
            _exit(70);
          }
        },
        on_message);
    if (end.ok() && !end->crashed()) break;
    ++counts.crashes;
    say(str_cat("CRASH ", kernel.info.name, "/", started ? cases[current]->spec.name : "start",
                ": ", end.ok() ? end->how : end.status().message()));
    if (!started) break;
    first = current + 1;
  }
  if (options.time) return;
  // Which variants there are is known only where the kernels are: to the child.
  std::string by_variant;
  for (const auto& [variant, count] : runs)
    str_append(by_variant, str_cat(" ", variant, " ", count));
  say(str_cat(kernel.info.name, ": ", cases.size(), " cases, runs:", by_variant, "; ",
              counts.failures - failures_before, " failures (of all kernels at this time)"));
}

/// Starts workers that share the kernels; each runs one kernel after the other.
void run_kernels(const Options& options, Counts& counts, std::FILE* csv) {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry& k : all_kernels()) {
    if (is_asked_for(options, k)) kernels.push_back(&k);
  }
  const auto work = [&] {
    for (int i = counts.next_kernel++; i < static_cast<int>(kernels.size());
         i = counts.next_kernel++) {
      run_kernel(options, *kernels[static_cast<size_t>(i)], counts, csv);
    }
  };
  // Times are taken alone on the GPU.
  const int jobs = options.time ? 1 : options.jobs;
  std::vector<pid_t> workers;
  for (int i = 1; i < jobs; ++i) {
    const pid_t worker = fork();
    if (worker == 0) {
      work();
      _exit(0);
    }
    if (worker > 0) workers.push_back(worker);
  }
  work();
  for (const pid_t worker : workers)
    waitpid(worker, nullptr, 0);
}

/// The number formats and the ceilings, in a child: this process never touches the GPU.
int check_numbers(const Options& options) {
  int failures = 0;
  const Result<ChildEnd> end = run_in_child(
      [&](const SendMessage& send) {
        const Result<DeviceInfo> device = use_cuda_device(0);
        if (!device.ok()) {
          send('u', device.status().message());
          return;
        }
        send('l', str_cat("GPU: ", device->name, ", sm_", device->sm, ", ", device->num_sms,
                          " multiprocessors, L2 ", device->l2_bytes >> 20, " MiB, ",
                          device->total_bytes >> 20, " MiB, driver ", device->driver_version));
        for (const std::string& why : check_number_formats())
          send('f', why);
        if (!options.time) return;
        for (const std::string& line : measure_ceilings(*device))
          send('l', line);
      },
      [&](char kind, std::string_view text) {
        if (kind == 'f') ++failures;
        if (kind == 'u') failures = -1;
        say(str_cat(kind == 'f' ? "FAIL " : "", text));
      });
  if (!end.ok() || end->crashed()) {
    say(str_cat("CRASH number formats: ", end.ok() ? end->how : end.status().message()));
    return 1;
  }
  return failures;
}

int run(const Options& options) {
  const int number_failures = check_numbers(options);
  if (number_failures < 0) return 69;
  void* shared =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 70;
  auto* counts = new (shared) Counts;
  std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w");
  if (csv != nullptr) {
    std::fprintf(csv,
                 "kernel,case,variant,shape,us_median,us_p10,us_p90,bytes,flops,gbps,tflops,"
                 "launches,copies\n");
    std::fflush(csv);
  }
  run_kernels(options, *counts, csv);
  if (csv != nullptr) std::fclose(csv);
  const int bad = counts->failures + counts->crashes + counts->not_taken + number_failures;
  say(str_cat("numbers: ", number_failures, " failures; kernels: ", counts->cases.load(),
              " cases, ", counts->runs.load(), " runs, ", counts->failures.load(), " failures, ",
              counts->crashes.load(), " crashes, ", counts->not_taken.load(),
              " not taken: ", bad == 0 ? "PASSED" : "FAILED"));
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  fathom::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--kernel" && has_value) {
      options.kernels.emplace_back(argv[++i]);
    } else if (flag == "--case" && has_value) {
      options.case_text = argv[++i];
    } else if (flag == "--skip" && has_value) {
      options.skip_text = argv[++i];
    } else if (flag == "--csv" && has_value) {
      options.csv = argv[++i];
    } else if (flag == "--variant" && has_value) {
      options.variant = argv[++i];
    } else if (flag == "--jobs" && has_value) {
      options.jobs = static_cast<int>(std::strtol(argv[++i], nullptr, 10));
    } else if (flag == "--real") {
      options.real = true;
    } else if (flag == "--brief") {
      options.brief = true;
    } else if (flag == "--time") {
      options.time = true;
    } else {
      std::fprintf(stderr, "cuda_kernels_test: unknown argument '%s'\n", argv[i]);
      return 64;
    }
  }
  return fathom::run(options);
}
