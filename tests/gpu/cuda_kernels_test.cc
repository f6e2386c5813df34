// Everything that can be said of the CUDA kernels on a machine that has a GPU and nothing else:
// every variant of every kernel over the cases of conformance (gates, guards, traits, graph
// replay), the number formats code by code, and times. Needs libc and the driver alone. Processes
// share the cases of a kernel (case_shards.h). `--help` prints the flags.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "fathom/bench/child_process.h"
#include "fathom/device/device.h"
#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/conformance/gpu_timing.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/kernels/core/kernel_set/variants.h"
#include "tests/gpu/case_shards.h"
#include "tests/gpu/number_checks.h"

namespace fathom {
namespace {

constexpr uint64_t kSeed = 20260101;
constexpr int64_t kSmallCaseBytes = int64_t{512} << 20;
constexpr int64_t kRealCaseBytes = int64_t{56} << 30;
constexpr int kRepeats = 8;
constexpr size_t kShardCases = 24;

/// Under a checker it takes long to begin: shards are larger.
constexpr size_t kCheckedShardCases = 96;

/// What --small computes at most in a case, and how many cases of a variant it runs of a shard.
constexpr double kMostSmallFlops = 40e6;
constexpr int64_t kMostSmallBytes = int64_t{32} << 20;
constexpr int kMostSmallRuns = 6;

/// For printf: takes limits of --small: in MFLOP and MiB, runs and cases.
constexpr const char* kUsage =
    R"(usage: cuda_kernels_test [FLAGS]

  --kernel NAME   only this kernel; may be given again
  --case TEXT     only cases with this text in their name
  --skip TEXT     no cases with this text in their name
  --variant NAME  only variants of this name, where one takes the case
  --real          the real shapes instead of the small ones (seconds and gigabytes each)
  --small         no case that computes more than %.0f MFLOP or moves more than %.0f MiB, but
                  of a variant that takes larger ones alone the smallest; and no more than %d
                  runs of a variant among %zu cases
  --brief         fewer repeats and no other seed, for runs under a memory checker
  --time          times the real shapes that are right, one kernel after the other
  --csv FILE      times, a row a case
  --jobs N        processes that share the cases; 8 unless said, of real shapes no more than
                  have room on the GPU
  --help          this text

Exits 0 if everything passed, 1 if not, 64 for an unknown flag, 69 where there is no GPU.
)";

struct Options {
  std::vector<std::string> kernels;
  std::string case_text;
  std::string skip_text;
  bool real = false;
  bool time = false;
  bool small = false;
  bool brief = false;
  std::string csv;
  std::string variant;
  int jobs = 8;
};

/// Cases of one kernel for a child.
struct Work {
  const KernelEntry& kernel;
  std::vector<const Case*> cases;
  std::string variant{};  ///< the only one; empty: all
  bool small = false;     ///< leaves large cases out
};

/// A kernel that was asked for, and all its cases.
struct KernelCases {
  const KernelEntry& kernel;
  std::vector<const Case*> cases;
  std::vector<VariantEntry> variants;
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

/// How many times what --small allows.
float size_of(const Cost& cost) {
  return static_cast<float>(std::max(cost.flops / kMostSmallFlops,
                                     static_cast<double>(cost.bytes()) / double{kMostSmallBytes}));
}

/// What a child does, from case `first` on. Messages: 'b' a case begins, 'r' a run, 'l' a run left
/// out as too large (size, variant), 'o' a run of the case is left out, 'n' no variant takes it,
/// 'f' a failure, 't' a line of times.
class KernelWork {
 public:
  KernelWork(const Options& options, const Work& work, const SendMessage& send)
      : options_(options), work_(work), send_(send) {}

  Status run(size_t first) {
    FATHOM_ASSIGN(const DeviceInfo device, use_cuda_device(0));
    const bool real = options_.real || options_.time;
    kernels_.emplace(KernelSet::for_cuda(device.sm));
    FATHOM_ASSIGN(runner_,
                  CaseRunner::on_gpu(*kernels_, device, real ? kRealCaseBytes : kSmallCaseBytes));
    FATHOM_ASSIGN(GpuTimer timer, GpuTimer::create(device));
    for (size_t i = first; i < work_.cases.size(); ++i) {
      send_('b', str_cat(i));
      run_case(*work_.cases[i], timer);
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
    left_out_ = false;
    if (!c.spec.bench) taken += run_form(c, c.make, timer, reason);
    taken += run_form(c, c.make_for_gpu, timer, reason);
    if (left_out_) send_('o', {});
    if (taken == 0) send_('n', str_cat(work_.kernel.info.name, "/", c.spec.name, ": ", reason));
  }

  /// Variants that took the case in this form; where none did, why.
  int run_form(const Case& c,
               const std::function<std::unique_ptr<CaseInstance>(uint64_t seed)>& make,
               GpuTimer& timer,
               std::string& reason) {
    const std::unique_ptr<CaseInstance> instance = make(kSeed);
    const float size = size_of(instance->cost());
    const bool leaves_out = work_.small && size > 1;
    const std::unique_ptr<CaseInstance> changed =
        c.spec.bench || options_.brief || leaves_out ? nullptr : make(kSeed + 1);
    int taken = 0;
    for (const VariantEntry& variant : work_.kernel.variants(*kernels_)) {
      if (!work_.variant.empty() && variant.name != work_.variant) continue;
      runner_->pin(work_.kernel.info.name, variant.name);
      if (!instance->why_not(runner_->exec()).empty()) continue;
      ++taken;
      if (leaves_out) send_('l', str_cat(size, " ", variant.name));
      if (leaves_out || (work_.small && ++runs_[variant.name] > kMostSmallRuns)) {
        left_out_ = true;
        continue;
      }
      send_('r', variant.name);
      std::string why = check(*instance, changed.get(), variant);
      if (why.empty() && options_.time) why = time(c, *instance, variant, timer);
      if (!why.empty()) fail(c, variant.name, why);
      if (options_.time) break;  // the first is the one that is chosen
    }
    runner_->pin(work_.kernel.info.name, "");
    if (!work_.variant.empty()) return 1;
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
    send_('t', str_cat(work_.kernel.info.name, ",", c.spec.name, ",", variant.name, ",",
                       instance.shape(), ",", us, ",", timing->quantile(0.1), ",",
                       timing->quantile(0.9), ",", cost.bytes(), ",", cost.flops, ",",
                       static_cast<double>(cost.bytes()) / us * 1e-3, ",", cost.flops / us * 1e-6,
                       ",", timing->launches, ",", timing->copies));
    return {};
  }

  void fail(const Case& c, std::string_view variant, std::string_view why) {
    send_('f', str_cat(work_.kernel.info.name, "/", c.spec.name, " [", variant, "]: ", why));
  }

  const Options& options_;
  const Work& work_;
  const SendMessage& send_;
  std::optional<KernelSet> kernels_;
  std::unique_ptr<CaseRunner> runner_;
  std::map<std::string_view, int> runs_;  ///< of variants
  bool left_out_ = false;                 ///< a run of the case
};

/// Takes the shards of all processes one after the other and runs their cases in children.
class Worker {
 public:
  Worker(const Options& options,
         const std::vector<KernelCases>& kernels,
         CaseShards& shards,
         std::FILE* csv)
      : options_(options), kernels_(kernels), shards_(shards), csv_(csv) {}

  void run() {
    while (const std::optional<Shard> shard = shards_.take()) {
      const KernelCases& k = kernels_[static_cast<size_t>(shard->kernel)];
      KernelCounts& counts = shards_.kernels()[static_cast<size_t>(shard->kernel)];
      Work work{.kernel = k.kernel,
                .cases = shard->of(k.cases),
                .variant = options_.variant,
                .small = options_.small};
      run_cases(work, k, counts);
      if (!shards_.finish(*shard)) continue;
      run_variants_without_cases(k, counts);
      if (!options_.time) say(summary(k, counts));
    }
  }

 private:
  /// In another process after a case that killed one.
  void run_cases(const Work& work, const KernelCases& k, KernelCounts& counts) {
    size_t first = 0;
    while (first < work.cases.size()) {
      size_t current = first;
      bool started = false;
      const auto on_message = [&](char kind, std::string_view text) {
        if (kind == 'b') {
          current = static_cast<size_t>(std::strtoull(std::string(text).c_str(), nullptr, 10));
          started = true;
          ++counts.cases;
        } else {
          take_message(kind, std::string(text), *work.cases[current], k, counts);
        }
      };
      const Result<ChildEnd> end = run_in_child(
          [&](const SendMessage& send) {
            if (Status s = KernelWork(options_, work, send).run(first); !s.ok()) {
              send('f', str_cat(k.kernel.info.name, ": ", s.message()));
              _exit(70);
            }
          },
          on_message);
      if (end.ok() && !end->crashed()) return;
      ++counts.crashes;
      say(str_cat("CRASH ", k.kernel.info.name, "/",
                  started ? work.cases[current]->spec.name : "start", ": ",
                  end.ok() ? end->how : end.status().message()));
      if (!started) return;
      first = current + 1;
    }
  }

  void take_message(char kind,
                    const std::string& text,
                    const Case& c,
                    const KernelCases& k,
                    KernelCounts& counts) {
    if (kind == 'r') {
      ++counts.runs[variant_index(k, text)];
    } else if (kind == 'l') {
      const size_t space = text.find(' ');
      const auto number =
          static_cast<uint32_t>(std::find(k.cases.begin(), k.cases.end(), &c) - k.cases.begin());
      counts.not_run[variant_index(k, text.substr(space + 1))].add(
          {.size = std::strtof(text.c_str(), nullptr), .number = number});
    } else if (kind == 'o') {
      ++counts.left_out;
    } else if (kind == 'n') {
      ++counts.not_taken;
      say(str_cat("NOT TAKEN ", text));
    } else if (kind == 'f') {
      ++counts.failures;
      say(str_cat("FAIL ", text));
    } else if (kind == 't') {
      say(text);
      if (csv_ != nullptr) std::fprintf(csv_, "%s\n", text.c_str());
      if (csv_ != nullptr) std::fflush(csv_);
    }
  }

  static size_t variant_index(const KernelCases& k, std::string_view name) {
    const auto it = std::find_if(k.variants.begin(), k.variants.end(),
                                 [&](const VariantEntry& v) { return v.name == name; });
    FATHOM_CHECK(it != k.variants.end(), "a child has variants that its parent has not");
    return static_cast<size_t>(it - k.variants.begin());
  }

  /// Of a variant all of whose cases were left out, the smallest.
  void run_variants_without_cases(const KernelCases& k, KernelCounts& counts) {
    for (size_t v = 0; v < k.variants.size(); ++v) {
      const std::optional<LargeCase> large = counts.not_run[v].get();
      if (counts.runs[v] > 0 || !large) continue;
      const Case* c = k.cases[large->number];
      say(str_cat("LARGE ", k.kernel.info.name, "/", c->spec.name, " [", k.variants[v].name,
                  "]: the smallest of the variant, ", large->size, " times what is small"));
      run_cases({.kernel = k.kernel, .cases = {c}, .variant = std::string(k.variants[v].name)}, k,
                counts);
      --counts.cases;  // it was begun before
    }
  }

  std::string summary(const KernelCases& k, const KernelCounts& counts) const {
    std::vector<std::string> runs;
    std::string without;
    for (size_t v = 0; v < k.variants.size(); ++v) {
      const std::string_view name = k.variants[v].name;
      if (counts.runs[v] > 0) {
        runs.push_back(str_cat(" ", name, " ", counts.runs[v].load()));
      } else if (options_.variant.empty() || name == options_.variant) {
        str_append(without, str_cat(" ", name));
      }
    }
    std::sort(runs.begin(), runs.end());
    std::string line = str_cat(k.kernel.info.name, ": ", k.cases.size(), " cases");
    if (options_.small)
      str_append(line, str_cat(", ", counts.left_out.load(), " not by all variants"));
    str_append(line, ", runs:");
    for (const std::string& run : runs)
      str_append(line, run);
    str_append(line, str_cat("; ", counts.failures.load(), " failures"));
    if (counts.crashes > 0) str_append(line, str_cat(", ", counts.crashes.load(), " crashes"));
    if (options_.small && !without.empty()) str_append(line, str_cat("; no case of:", without));
    return line;
  }

  const Options& options_;
  const std::vector<KernelCases>& kernels_;
  CaseShards& shards_;
  std::FILE* csv_;
};

/// The GPU, as a child saw it.
struct GpuSeen {
  bool exists = true;
  int sm = 0;
  int64_t bytes = 0;
  int failures = 0;  ///< of number formats
};

/// Processes: as many as were asked for, each with room on the GPU for its cases; one where times
/// are taken.
int jobs_that_fit(const Options& options, const GpuSeen& gpu) {
  if (options.time) return 1;
  if (!options.real) return options.jobs;
  constexpr int64_t kOfAProcess = kRealCaseBytes + (int64_t{2} << 30);
  const int fit = static_cast<int>(std::max<int64_t>(1, gpu.bytes / kOfAProcess));
  if (fit >= options.jobs) return options.jobs;
  say(str_cat("--jobs ", fit, " for ", options.jobs, ": a process has ", kRealCaseBytes >> 30,
              " GiB of operands of real shapes"));
  return fit;
}

/// Starts processes that share the cases and waits for them.
void run_kernels(const Options& options,
                 int jobs,
                 const std::vector<KernelCases>& kernels,
                 CaseShards& shards,
                 std::FILE* csv) {
  Worker worker(options, kernels, shards, csv);
  std::vector<pid_t> others;
  for (int i = 1; i < jobs; ++i) {
    const pid_t other = fork();
    if (other == 0) {
      worker.run();
      _exit(0);
    }
    if (other > 0) others.push_back(other);
  }
  worker.run();
  for (const pid_t other : others)
    waitpid(other, nullptr, 0);
}

/// The number formats and the ceilings, in a child: this process never touches the GPU, and knows
/// from the child alone which kernels it runs.
GpuSeen check_numbers(const Options& options) {
  GpuSeen gpu;
  const Result<ChildEnd> end = run_in_child(
      [&](const SendMessage& send) {
        const Result<DeviceInfo> device = use_cuda_device(0);
        if (!device.ok()) {
          send('u', device.status().message());
          return;
        }
        send('s', str_cat(device->sm));
        send('m', str_cat(device->total_bytes));
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
        if (kind == 's') {
          gpu.sm = static_cast<int>(std::strtol(std::string(text).c_str(), nullptr, 10));
          return;
        }
        if (kind == 'm') {
          gpu.bytes = std::strtoll(std::string(text).c_str(), nullptr, 10);
          return;
        }
        if (kind == 'f') ++gpu.failures;
        if (kind == 'u') gpu.exists = false;
        say(str_cat(kind == 'f' ? "FAIL " : "", text));
      });
  if (!end.ok() || end->crashed()) {
    say(str_cat("CRASH number formats: ", end.ok() ? end->how : end.status().message()));
    return {.failures = 1};
  }
  return gpu;
}

/// The last line. The exit code: a run without a case has shown nothing.
int end_of_run(const Options& options,
               const std::vector<KernelCases>& kernels,
               CaseShards& shards,
               int number_failures) {
  int cases = 0;
  int left_out = 0;
  int runs = 0;
  int failures = 0;
  int crashes = 0;
  int not_taken = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    const KernelCounts& counts = shards.kernels()[k];
    cases += counts.cases;
    left_out += counts.left_out;
    failures += counts.failures;
    crashes += counts.crashes;
    not_taken += counts.not_taken;
    for (const std::atomic<int>& of_variant : counts.runs)
      runs += of_variant;
    if (counts.shards_left == 0) continue;
    ++crashes;
    say(str_cat("CRASH ", kernels[k].kernel.info.name, ": a process ended before its cases"));
  }
  const bool nothing = runs == 0 && left_out == 0;  // flags that no case fits
  const int bad = failures + crashes + not_taken + number_failures + (nothing ? 1 : 0);
  say(str_cat("numbers: ", number_failures, " failures; kernels: ", cases, " cases, ",
              options.small ? str_cat(left_out, " not by all variants, ") : "", runs, " runs, ",
              failures, " failures, ", crashes, " crashes, ", not_taken,
              " not taken: ", nothing ? "nothing ran, " : "", bad == 0 ? "PASSED" : "FAILED"));
  return bad == 0 ? 0 : 1;
}

int run(const Options& options) {
  const GpuSeen gpu = check_numbers(options);
  if (!gpu.exists) return 69;
  const KernelSet on_gpu = KernelSet::for_cuda(gpu.sm);
  std::vector<KernelCases> kernels;
  std::vector<size_t> num_cases;
  for (const KernelEntry& k : all_kernels()) {
    if (!is_asked_for(options, k)) continue;
    kernels.push_back({k, cases_of(options, k.info.name), k.variants(on_gpu)});
    num_cases.push_back(kernels.back().cases.size());
  }
  // Times come kernel by kernel, in the order of the cases.
  const size_t most = options.time                     ? SIZE_MAX
                      : options.small || options.brief ? kCheckedShardCases
                                                       : kShardCases;
  Result<CaseShards> shards = CaseShards::create(num_cases, most);
  if (!shards.ok()) {
    say(std::string(shards.status().message()));
    return 70;
  }
  std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w");
  if (csv != nullptr) {
    std::fprintf(csv,
                 "kernel,case,variant,shape,us_median,us_p10,us_p90,bytes,flops,gbps,tflops,"
                 "launches,copies\n");
    std::fflush(csv);
  }
  run_kernels(options, jobs_that_fit(options, gpu), kernels, *shards, csv);
  if (csv != nullptr) std::fclose(csv);
  return end_of_run(options, kernels, *shards, gpu.failures);
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
    } else if (flag == "--small") {
      options.small = true;
    } else if (flag == "--brief") {
      options.brief = true;
    } else if (flag == "--time") {
      options.time = true;
    } else if (flag == "--help") {
      std::printf(fathom::kUsage, fathom::kMostSmallFlops * 1e-6,
                  static_cast<double>(fathom::kMostSmallBytes >> 20), fathom::kMostSmallRuns,
                  fathom::kCheckedShardCases);
      return 0;
    } else {
      std::fprintf(stderr, "cuda_kernels_test: unknown argument '%s' (see --help)\n", argv[i]);
      return 64;
    }
  }
  return fathom::run(options);
}
