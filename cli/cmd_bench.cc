// bench kernel: cases of kernels, checked and timed. bench model: prefill and decode of a whole
// model.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/bench_model.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/io/terminal.h"
#include "fathom/bench/catalogue.h"
#include "fathom/bench/harness.h"
#include "fathom/bench/reference_names.h"
#include "fathom/bench/report.h"
#include "fathom/os/atomic_file.h"

namespace fathom::cli {
namespace {

struct KernelFlags {
  BenchKernelOptions options;
  std::string kernels;
  std::string phase;
  std::string output = "md";
  std::string out_file;
  std::string out_dir;
  bool list = false;
  bool reference = false;
  bool catalogue = false;
  bool check = false;
  bool warm = false;
  std::string backend = "cpu";
};

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) names.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

Status emit(const std::string& text, const std::string& file) {
  if (!file.empty()) return write_file(file, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

/// True where nothing but the suite "all" says which rows there are.
bool is_everything(const BenchKernelOptions& o) {
  return o.suite == "all" && o.kernels.empty() && o.filter.empty() && o.phase.empty() &&
         o.batch.empty() && o.seq.empty() && o.kv_len.empty();
}

/// The last line of a check of everything. True if every reference name is covered.
bool print_coverage(const BenchReport& report) {
  std::vector<ReferenceHome> homes = reference_homes();
  hold_to_rows(homes, report.rows);
  std::fprintf(stderr, "%s\n", reference_coverage_line(homes).c_str());
  return std::all_of(homes.begin(), homes.end(), [](const ReferenceHome& h) { return h.covered; });
}

Result<int> bench_kernel(const KernelFlags& flags, const GlobalFlags& globals) {
  if (flags.backend != "cpu") {
    return unsupported(
        str_cat("--backend ", flags.backend, ": this build has the cpu backend only"));
  }
  BenchKernelOptions options = flags.options;
  options.kernels = split_names(flags.kernels);
  options.phase = flags.phase;
  options.check_only = false;
  options.caches = flags.warm ? BenchCaches::kWarm : BenchCaches::kCold;
  FATHOM_ASSIGN(options.isa, limit_isa(globals.isa, best_isa()));
  FATHOM_ASSIGN(options.num_threads, resolve_threads(globals.threads));
  if (flags.catalogue) {
    FATHOM_TRY(emit(write_kernel_catalogue(all_kernels(), all_cases()), flags.out_file));
    return kExitOk;
  }
  if (flags.list && flags.reference) {
    FATHOM_TRY(emit(write_reference_table(reference_homes()), flags.out_file));
    return kExitOk;
  }
  if (flags.list) {
    FATHOM_ASSIGN(const auto plan, plan_kernel_bench(options));
    FATHOM_TRY(emit(write_bench_list(plan), flags.out_file));
    return kExitOk;
  }
  FATHOM_ASSIGN(const BenchFormat format, parse_bench_format(flags.output));
  if (!globals.quiet && stderr_is_terminal()) {
    options.on_row = [](const BenchRow& row) {
      std::fprintf(stderr, "\r%s/%s\033[K", row.kernel.c_str(), row.case_name.c_str());
    };
  }
  FATHOM_ASSIGN(const BenchReport report, run_kernel_bench(options));
  if (options.on_row) std::fprintf(stderr, "\r\033[K");
  FATHOM_TRY(emit(write_bench_report(report, format), flags.out_file));
  if (!flags.out_dir.empty()) FATHOM_TRY(write_bench_directory(report, flags.out_dir));
  const int64_t wrong = report.count(RowStatus::kWrong);
  const int64_t ok = report.count(RowStatus::kOk);
  const auto rows = static_cast<int64_t>(report.rows.size());
  if (!globals.quiet) {
    std::fprintf(stderr, "fathom: %lld of %lld rows ok, %lld wrong\n", static_cast<long long>(ok),
                 static_cast<long long>(rows), static_cast<long long>(wrong));
  }
  const bool covered = !flags.check || !is_everything(options) || print_coverage(report);
  return ok == rows && covered ? kExitOk : kExitCheckFailed;
}

void add_kernel(CLI::App& bench, std::shared_ptr<KernelFlags> flags) {
  CLI::App* sub = bench.add_subcommand("kernel", "Check and time kernels on the shapes of models");
  sub->add_flag("--list", flags->list, "List kernels and cases, run nothing");
  sub->add_flag("--reference", flags->reference,
                "With --list: the names of the reference stack and where each lives here");
  sub->add_flag("--catalogue", flags->catalogue, "Print every contract as Markdown, run nothing");
  sub->add_option("--suite", flags->options.suite, "all, decode, prefill or reference23")
      ->capture_default_str();
  sub->add_option("--kernels", flags->kernels, "Our names or reference names, with commas");
  sub->add_option("--filter", flags->options.filter, "Pattern over kernel/case: text, or with * ?");
  sub->add_option("--phase", flags->phase, "decode or prefill");
  sub->add_option("--backend,--device", flags->backend, "cpu")->capture_default_str();
  sub->add_flag("--variants", flags->options.all_variants,
                "Every variant, not only the chosen one");
  sub->add_flag("--check", flags->check, "Exit 1 unless every row is ok (rows are always checked)");
  sub->add_flag("--warm", flags->warm, "One set of data again and again; rows say so");
  sub->add_option("--min-time", flags->options.timer.min_time_s, "Seconds a row, after warming up")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  sub->add_option("--reps", flags->options.timer.min_reps, "Least repetitions of a row")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  sub->add_option("-o,--output", flags->output, "md, csv, json or jsonl")->capture_default_str();
  sub->add_option("--out-file", flags->out_file, "Write to this file");
  sub->add_option("--out-dir", flags->out_dir, "Write all_kernels.csv and a CSV a kernel here");
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto kernel_flags = std::make_shared<KernelFlags>();
  auto model_flags = std::make_shared<BenchModelFlags>();
  CLI::App* sub = app.add_subcommand("bench", "Measure kernels or a whole model");
  sub->require_subcommand(1);
  add_kernel(*sub, kernel_flags);
  add_bench_model(*sub, *model_flags);
  return {sub, [=](const GlobalFlags& globals) {
            return sub->got_subcommand("kernel") ? bench_kernel(*kernel_flags, globals)
                                                 : bench_model(*model_flags, globals);
          }};
}

}  // namespace fathom::cli
