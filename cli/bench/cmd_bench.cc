// bench kernel: cases of kernels, checked and timed. bench model: prefill and decode of a whole
// model. bench serve: requests to a server. bench compare: two runs of bench kernel.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <unistd.h>

#include "cli/bench/bench_model.h"
#include "cli/bench/bench_serve.h"
#include "cli/command.h"
#include "cli/config/lists.h"
#include "cli/engine/text_engine.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/io/text_output.h"
#include "cli/trace/planned_device.h"
#include "fathom/api/open.h"
#include "fathom/base/log.h"
#include "fathom/bench/files/catalogue.h"
#include "fathom/bench/files/compare.h"
#include "fathom/bench/files/csv.h"
#include "fathom/bench/files/report.h"
#include "fathom/bench/harness.h"
#include "fathom/bench/suites/reference_names.h"
#include "fathom/bench/suites/suites.h"
#include "fathom/device/device.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/clock.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

struct KernelFlags {
  BenchKernelOptions options;
  std::string kernels;
  std::string output = "md";
  std::string out_file;
  std::string out_dir;
  std::optional<double> budget_s;
  bool list = false;
  bool reference = false;
  bool catalogue = false;
  bool check = false;
  bool slow = false;
  bool warm = false;
  bool in_process = false;
  std::optional<double> min_time_s;
  std::optional<int64_t> min_reps;
  bool force = false;
  std::string backend = "cpu";
};

constexpr double kMostCallSeconds = 2;
constexpr int64_t kTellEveryNs = 15'000'000'000;  // in a log; a terminal has its line

/// True where nothing but the suite "all" says which rows there are.
bool is_everything(const BenchKernelOptions& o) {
  return o.suite == "all" && o.preset.empty() && o.kernels.empty() && o.filter.empty() &&
         o.phase.empty() && o.batch.empty() && o.seq.empty() && o.kv_len.empty();
}

/// The last line of a check of everything. True if every reference name is covered.
bool print_coverage(const BenchReport& report) {
  std::vector<ReferenceHome> homes = reference_homes();
  hold_to_rows(homes, report.rows);
  std::fprintf(stderr, "%s\n", reference_coverage_line(homes).c_str());
  return std::all_of(homes.begin(), homes.end(), [](const ReferenceHome& h) { return h.covered; });
}

Result<BenchKernelOptions> options_of(const KernelFlags& flags, const GlobalFlags& globals) {
  BenchKernelOptions options = flags.options;
  if (flags.backend == "cuda") {
    options.backend = Backend::kCuda;
    // Refused here and not at the first row; a build that has the backend asks the driver later, in
    // a process of its own.
    if (!cuda_is_built()) return cuda_devices().status();
  } else if (flags.backend != "cpu") {
    return invalid_argument(str_cat("--backend ", flags.backend, ": expected cpu or cuda"));
  }
  if (options.suite == kReferenceSuite || is_suite_of_steps(options.suite) ||
      !options.preset.empty()) {
    // Hundreds of rows, some of them seconds long: less of each.
    options.timer.min_reps = 20;
    options.timer.min_time_s = 0.1;
    options.timer.max_time_s = 1.0;
  }
  if (!flags.slow) options.max_call_s = kMostCallSeconds;
  options.timer.min_time_s = flags.min_time_s.value_or(options.timer.min_time_s);
  options.timer.min_reps = flags.min_reps.value_or(options.timer.min_reps);
  if (flags.budget_s)
    options.deadline_ns = monotonic_ns() + static_cast<int64_t>(*flags.budget_s * 1e9);
  if (!flags.kernels.empty()) options.kernels = parts_of_list(flags.kernels);
  options.check_only = false;
  options.caches = flags.warm ? BenchCaches::kWarm : BenchCaches::kCold;
  options.isolation =
      flags.in_process ? BenchIsolation::kInProcess : BenchIsolation::kChildPerKernel;
  FATHOM_ASSIGN(options.isa, usable_isa(globals.engine));
  options.num_threads = thread_count(globals.engine);
  return options;
}

Result<int> list_kernels(const KernelFlags& flags, BenchKernelOptions options) {
  if (options.backend == Backend::kCuda) {
    // A machine without a GPU lists what an H200 would run.
    const Result<std::vector<DeviceInfo>> found = cuda_devices();
    FATHOM_ASSIGN(const PlannedDevice planned, planned_device("h200"));
    options.gpu = found.ok() && !found->empty() ? found->front() : planned.gpu;
  }
  if (flags.catalogue) {
    FATHOM_TRY(emit(write_kernel_catalogue(all_kernels(), all_cases()), flags.out_file));
  } else if (flags.reference) {
    FATHOM_TRY(emit(write_reference_table(reference_homes()), flags.out_file));
  } else {
    FATHOM_ASSIGN(const BenchPlan plan, plan_kernel_bench(options));
    FATHOM_TRY(emit(write_bench_list(plan.entries), flags.out_file));
  }
  return kExitOk;
}

/// The command that makes the same report.
std::string command_of(const KernelFlags& flags) {
  const BenchKernelOptions& options = flags.options;
  std::string out = options.preset.empty() ? str_cat("fathom bench kernel --suite ", options.suite)
                                           : str_cat("fathom bench kernel --as ", options.preset);
  const auto add = [&](std::string_view flag, std::string_view value) {
    if (!value.empty()) str_append(out, str_cat(" ", flag, " ", value));
  };
  const auto add_switch = [&](std::string_view flag, bool on) {
    if (on) str_append(out, str_cat(" ", flag));
  };
  add("--kernels", flags.kernels);
  out += filter_flags(options);
  add("--backend", flags.backend);
  add_switch("--variants", options.all_variants);
  add_switch("--check", flags.check);
  add_switch("--in-process", flags.in_process);
  add_switch("--warm", flags.warm);
  add("--min-time", flags.min_time_s ? str_cat(*flags.min_time_s) : "");
  add("--reps", flags.min_reps ? str_cat(*flags.min_reps) : "");
  add_switch("--slow", flags.slow);
  add("--budget", flags.budget_s ? str_cat(*flags.budget_s) : "");
  add("--out-dir", flags.out_dir);
  return out;
}

/// Writes the directory, and says whether every row that was measured is right.
Result<int> finish(const KernelFlags& flags,
                   const GlobalFlags& globals,
                   const BenchKernelOptions& options,
                   const BenchReport& report) {
  if (!flags.out_dir.empty()) FATHOM_TRY(write_bench_directory(report, flags.out_dir));
  if (!globals.quiet) std::fprintf(stderr, "fathom: %s\n", bench_verdict_line(report).c_str());
  if (options.interrupted()) return kExitInterrupted;
  const bool covered = !flags.check || !is_everything(options) || print_coverage(report);
  return all_rows_ok(report) && covered ? kExitOk : kExitCheckFailed;
}

Result<int> bench_kernel(const KernelFlags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(BenchKernelOptions options, options_of(flags, globals));
  if (flags.catalogue || flags.list) return list_kernels(flags, options);
  if (!flags.out_dir.empty()) {
    const Overwrite overwrite = flags.force ? Overwrite::kYes : Overwrite::kNo;
    FATHOM_TRY(check_bench_directory(flags.out_dir, overwrite));
  }
  if (!flags.out_file.empty()) FATHOM_TRY(check_writable(flags.out_file));
  FATHOM_ASSIGN(const BenchFormat format, parse_bench_format(flags.output));
  Progress progress("timing", "cases", globals.quiet);
  const bool to_log = isatty(STDERR_FILENO) == 0 && !globals.quiet;
  int64_t told_ns = monotonic_ns();
  options.on_start = [&](int64_t index, int64_t count, const std::string& name) {
    progress.update(index, count, name);
    if (!to_log || monotonic_ns() - told_ns < kTellEveryNs) return;
    told_ns = monotonic_ns();
    std::fprintf(stderr, "fathom: %lld of %lld cases are done, %s is next\n",
                 static_cast<long long>(index), static_cast<long long>(count), name.c_str());
  };
  // The first ends the run with the rows that there are; a second at once ends the program.
  install_interrupt_handler();
  bool interrupted = false;
  options.interrupted = [&interrupted] { return interrupted = take_interrupt() || interrupted; };
  FATHOM_ASSIGN(BenchReport report, run_kernel_bench(options));
  progress.erase();
  report.command = command_of(flags);
  if (flags.out_dir.empty() || !flags.out_file.empty()) {
    FATHOM_TRY(emit(write_bench_report(report, format), flags.out_file));
  }
  return finish(flags, globals, options, report);
}

void add_kernel(CLI::App& bench, std::shared_ptr<KernelFlags> flags) {
  CLI::App* sub = bench.add_subcommand("kernel", "Check and time kernels on the shapes of models");
  sub->add_flag("--list", flags->list, "List kernels and cases, run nothing");
  sub->add_flag("--reference", flags->reference,
                "With --list: the names of the reference stack and where each lives here");
  sub->add_flag("--catalogue", flags->catalogue, "Print every contract as Markdown, run nothing");
  sub->add_option("--suite", flags->options.suite,
                  "all, decode, prefill, streaming, reference23, v4 or v32")
      ->capture_default_str();
  sub->add_option(
         "--as", flags->options.preset,
         "The calls of this preset's own graph instead of a suite; --phase, --batch, --seq "
         "and --kv-len say of which steps")
      ->excludes("--suite");
  sub->add_option("--kernels", flags->kernels,
                  "Our names or reference names, with commas (default: all)")
      ->check(list_of());
  sub->add_option("--filter", flags->options.filter,
                  "Pattern over kernel/case: text, or with * ? (default: all)");
  sub->add_option("--phase", flags->options.phase,
                  "decode, prefill or verify; of --as also draft (default: all)");
  const CLI::Validator size = integer_range(int64_t{0}, int64_t{1} << 40);
  add_list(*sub, "--batch", flags->options.batch,
           "Rows of these batches or tokens, with commas (default: all)", size);
  add_list(*sub, "--seq", flags->options.seq,
           "Rows of these sequence lengths, with commas (default: all)", size);
  add_list(*sub, "--kv-len", flags->options.kv_len,
           "Rows of these cached lengths, with commas (default: all)", size);
  sub->add_option("--backend,--device", flags->backend, "cpu or cuda")->capture_default_str();
  sub->add_flag("--variants", flags->options.all_variants,
                "Every variant, not only the chosen one");
  sub->add_flag(
      "--check", flags->check,
      "With all of --suite all: exit 1 also unless every reference name has a row (a row that is "
      "not ok always makes it 1)");
  sub->add_flag("--in-process", flags->in_process, "No child process a kernel, for a debugger");
  sub->add_flag("--warm", flags->warm, "One set of data again and again; rows say so");
  sub->add_option(
         "--min-time", flags->min_time_s,
         "Seconds a row, after warming up (default: 0.2, or 0.1 in reference23, v4, v32 and --as)")
      ->check(finite_range(0, 3600));
  sub->add_option("--reps", flags->min_reps,
                  "Least repetitions of a row, time permitting (default: 50, or 20 in reference23, "
                  "v4, v32 and --as)")
      ->check(integer_range<int64_t>(1, 1'000'000));
  sub->add_option(
         "--budget", flags->budget_s,
         "Seconds after which no further row begins; the summary names those left out (default: "
         "no limit)")
      ->check(finite_range(1e-3, 1e6));
  sub->add_flag("--slow", flags->slow,
                "Rows too of which one call takes more than 2 s on this machine");
  sub->add_option("-o,--output", flags->output, "md, csv, json or jsonl")->capture_default_str();
  sub->add_flag_callback(
      "--json", [flags] { flags->output = "json"; }, "The same as --output json");
  sub->add_option("--out-file", flags->out_file, "Write to this file (default: standard output)");
  sub->add_option("--out-dir", flags->out_dir,
                  "Write the rows, a CSV a kernel, the summary and the roofline here");
  sub->add_flag("--force", flags->force, "Overwrite the files of an earlier run in --out-dir");
}

struct CompareFlags {
  std::string before, after;
  std::string fail_slower;
  std::string out_file;
};

Result<std::vector<BenchRow>> read_rows(const std::string& given) {
  const std::string path = bench_rows_path(given);
  FATHOM_ASSIGN(const std::string text, read_file(path, int64_t{256} << 20));
  return read_bench_csv(text, path);
}

Result<int> bench_compare(const CompareFlags& flags) {
  double share = 0.05;
  if (!flags.fail_slower.empty()) {
    Result<double> given = parse_share(flags.fail_slower);
    if (!given.ok()) return std::move(given).status().add_context("--fail-slower");
    share = *given;
  }
  FATHOM_ASSIGN(const std::vector<BenchRow> before, read_rows(flags.before));
  FATHOM_ASSIGN(const std::vector<BenchRow> after, read_rows(flags.after));
  FATHOM_ASSIGN(const BenchComparison comparison, compare_bench(before, after));
  FATHOM_TRY(emit(write_comparison(comparison, share), flags.out_file));
  const bool fails = !comparison.failed_after.empty() ||
                     (!flags.fail_slower.empty() && !comparison.slower_than(share).empty());
  return fails ? kExitCheckFailed : kExitOk;
}

void add_compare(CLI::App& bench, CompareFlags& flags) {
  CLI::App* sub = bench.add_subcommand(
      "compare", "Two runs of `bench kernel`, row by row; exit 1 if a row fails in the second");
  sub->add_option("BEFORE", flags.before, "Directory of the first run, or its all_kernels.csv")
      ->required();
  sub->add_option("AFTER", flags.after, "Directory of the second run, or its all_kernels.csv")
      ->required();
  sub->add_option(
      "--fail-slower", flags.fail_slower,
      "Exit 1 if a row is slower by more than this, such as 5% (default: rows are marked at 5%, "
      "and none fails)");
  sub->add_option("--out-file", flags.out_file, "Write to this file (default: standard output)");
}

}  // namespace

Command add_bench(CLI::App& app, GlobalFlags& globals) {
  auto kernel_flags = std::make_shared<KernelFlags>();
  auto compare_flags = std::make_shared<CompareFlags>();
  auto model_flags = std::make_shared<BenchModelFlags>();
  auto serve_flags = std::make_shared<BenchServeFlags>();
  CLI::App* sub = app.add_subcommand("bench", "Measure kernels, a whole model or a server");
  sub->require_subcommand(1);
  add_kernel(*sub, kernel_flags);
  add_bench_model(*sub, *model_flags, globals);
  add_bench_serve(*sub, *serve_flags);
  add_compare(*sub, *compare_flags);
  return {sub, [=](const GlobalFlags& given) {
            if (sub->got_subcommand("compare")) return bench_compare(*compare_flags);
            if (sub->got_subcommand("kernel")) return bench_kernel(*kernel_flags, given);
            if (sub->got_subcommand("serve")) return bench_serve(*serve_flags, given);
            model_flags->engine = given.engine;
            return bench_model(*model_flags, given);
          }};
}

}  // namespace fathom::cli
