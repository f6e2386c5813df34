// trace: documents of what a model does, out of the calls it makes. trace diff: two of them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/terminal.h"
#include "cli/trace/make_recording.h"
#include "fathom/base/log.h"
#include "fathom/os/file.h"
#include "fathom/report/docs/graph_doc.h"
#include "fathom/report/files/trace_diff.h"
#include "fathom/report/trace_files.h"

namespace fathom::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultDirectory = "fathom-trace";
constexpr int64_t kMaxCsvBytes = int64_t{1} << 30;

struct OutputFlags {
  std::string directory;
  std::string source_links;
  std::string level = "kernel";
  bool force = false;
  bool lines = false;
  bool json = false;
};

struct DiffFlags {
  std::string a;
  std::string b;
  double tolerance_pct = 2;
  double fail_slower_pct = 10;
};

// The sources are linked where they are: below the current directory, or where the flag says.
SourceLinks links_of(const OutputFlags& flags) {
  SourceLinks links;
  links.lines = flags.lines;
  if (!flags.source_links.empty()) {
    links.linked = true;
    links.root = flags.source_links;
    return links;
  }
  std::error_code error;
  const fs::path here = fs::current_path(error);
  if (error || !fs::exists(here / "fathom/trace/op.h", error)) return links;
  const fs::path out = fs::weakly_canonical(here / flags.directory, error);
  if (error) return links;
  links.linked = true;
  links.root = here.lexically_relative(out).string();
  return links;
}

// What the documents lack is said; it is no reason to keep them from whoever asked for them.
void warn_of_gaps(const std::vector<std::string>& failures) {
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(kShown, failures.size()); ++i)
    log_warn(failures[i]);
  if (failures.size() > kShown) log_warn("and ", failures.size() - kShown, " more");
}

Result<int> trace(const TraceFlags& flags, OutputFlags output, const GlobalFlags& globals) {
  const bool to_screen = output.directory.empty() && flags.dry;
  if (output.directory.empty()) output.directory = kDefaultDirectory;
  const Replace replace = output.force ? Replace::kYes : Replace::kNo;
  if (!to_screen) FATHOM_TRY(check_trace_directory(output.directory, replace));
  FATHOM_ASSIGN(const TraceRun run, make_recording(flags, globals));
  const SourceLinks links = to_screen ? SourceLinks{} : links_of(output);
  const TraceDetail detail = output.level == "op" ? TraceDetail::kOps : TraceDetail::kKernels;
  const TraceFiles made = make_trace_files(run.recording, run.variations, links,
                                           run.recording.timed ? &run.peaks : nullptr, detail);
  const std::string summary =
      output.json ? write_summary_json(made.summary, run.recording) : summary_lines(made.summary);
  if (to_screen && output.json) {
    warn_of_gaps(made.failures);
    std::printf("%s", summary.c_str());
    return kExitOk;
  }
  if (to_screen) {
    std::printf("%s", write_graph_doc(run.recording, links).c_str());
    warn_of_gaps(made.failures);
    return kExitOk;
  }
  FATHOM_TRY(write_trace_directory(made.files, output.directory, replace));
  warn_of_gaps(made.failures);
  if (!run.answer.empty() && !globals.quiet && !output.json) write_text(run.answer + "\n");
  std::printf("%s", summary.c_str());
  if (!run.overhead.empty() && !output.json) std::printf("%s\n", run.overhead.c_str());
  if (!globals.quiet) {
    std::fprintf(stderr, "fathom: %zu files in %s\n", made.files.size(), output.directory.c_str());
  }
  return kExitOk;
}

// A directory stands for its ops.csv.
Result<std::vector<OpRow>> read_rows(const std::string& path) {
  std::error_code error;
  const std::string file = fs::is_directory(path, error) ? path + "/ops.csv" : path;
  FATHOM_ASSIGN(const std::string text, read_file(file, kMaxCsvBytes));
  return read_ops_csv(text, file);
}

Result<int> diff(const DiffFlags& flags) {
  FATHOM_ASSIGN(const std::vector<OpRow> a, read_rows(flags.a));
  FATHOM_ASSIGN(const std::vector<OpRow> b, read_rows(flags.b));
  DiffOptions options;
  options.tolerance = flags.tolerance_pct / 100;
  options.fail_slower = flags.fail_slower_pct / 100;
  const TraceDifference difference = diff_traces(a, b, options);
  std::printf("%s", write_trace_diff(difference, options, flags.a, flags.b).c_str());
  return difference.failed(options) ? kExitCheckFailed : kExitOk;
}

void add_diff(CLI::App& app, DiffFlags& flags) {
  CLI::App* sub = app.add_subcommand(
      "diff", "Two traces: the first op that differs, ops that became slower; exit 1 if any");
  sub->add_option("A", flags.a, "Directory of a trace, or its ops.csv")->required();
  sub->add_option("B", flags.b, "The one to hold against it")->required();
  sub->add_option("--tolerance", flags.tolerance_pct,
                  "Statistics (of runs with --probe) may differ by this, in percent")
      ->check(finite_range(0, 100))
      ->capture_default_str();
  sub->add_option("--fail-slower", flags.fail_slower_pct,
                  "Median times may grow by this, in percent")
      ->check(finite_range(0, 1e6))
      ->capture_default_str();
}

void add_recording_flags(CLI::App& sub, TraceFlags& flags, GlobalFlags& globals) {
  sub.add_flag("--dry", flags.dry, "Run nothing: shapes, kernels and costs; needs no weights");
  add_engine_flags(sub, globals.engine, static_cast<OptionUse>(kForward | kDryPlan),
                   {OptionGroup::kModel, OptionGroup::kBuiltIn, OptionGroup::kNumbers,
                    OptionGroup::kDrafts, OptionGroup::kKernels},
                   {"layers", "attention"});
  sub.add_option("--attention", flags.attention,
                 "auto: by phase; mha, chunked: the phases with that form; absorbed, fused_rope: "
                 "what runs with it")
      ->check(one_of({"auto", "mha", "chunked", "absorbed", "fused_rope"}))
      ->capture_default_str();
  sub.add_option("--batch", flags.batch, "Requests of each step")
      ->check(integer_range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  sub.add_option("-p,--prompt", flags.prompt, "Prompt of a real run");
  sub.add_option(
         "--prompt-tokens", flags.prompt_tokens,
         "Prompt tokens of each request, random ones in a real run (default: with --dry 1024, "
         "or what fits)")
      ->check(integer_range(int64_t{1}, int64_t{1} << 20));
  sub.add_option("--gen", flags.generate, "Decode steps of a real run")
      ->check(integer_range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub.add_option("--kv-len", flags.kv_len,
                 "With --dry: keys a decoded token sees, and the cached prefix of the chunked "
                 "prefill (default: 4096, or what fits)")
      ->check(integer_range(int64_t{1}, int64_t{1} << 24));
  sub.add_option("--chunk", flags.chunk, "Most prompt tokens of one pass of a real run")
      ->check(integer_range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub.add_option("--layers", flags.layers,
                 "Keep these layers, such as 3-5, and what is outside (default: all)");
  sub.add_option(
      "--device", flags.device,
      "Where a real run is, cpu or cuda. With --dry: whose variants to show, cpu (those of --isa, "
      "of any machine), h200, h100, b200 or gb200 (default: cpu)");
  sub.add_flag("--probe", flags.probe, "Keep min, max, mean and norm of what each op wrote");
  sub.add_flag("--overhead", flags.overhead,
               "Run each decode step without recording too, and say what recording costs");
}

void add_output_flags(CLI::App& sub, OutputFlags& flags) {
  sub.add_option("--out-dir", flags.directory,
                 "Directory for the documents (default: fathom-trace; with --dry the graph is "
                 "printed)");
  sub.add_flag("--force", flags.force, "Replace a trace that is in that directory");
  sub.add_option("--level", flags.level, "Slices of trace.json: op, or kernel below it")
      ->check(one_of({"op", "kernel"}))
      ->capture_default_str();
  sub.add_flag("--json", flags.json,
               "Print the summary as JSON (fathom.trace.summary/1); with --dry and no --out-dir "
               "nothing else");
  sub.add_flag("--lines", flags.lines, "Line numbers in call sites");
  sub.add_option("--source-links", flags.source_links,
                 "Path from the documents to the sources, such as ../../.. (default: found from "
                 "the current directory, else no links)");
}

}  // namespace

Command add_trace(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<TraceFlags>();
  auto output = std::make_shared<OutputFlags>();
  auto diff_flags = std::make_shared<DiffFlags>();
  CLI::App* sub = app.add_subcommand(
      "trace", "Execution graph, ops, kernels and call chains, of a dry run or a real one");
  add_recording_flags(*sub, *flags, globals);
  add_output_flags(*sub, *output);
  add_diff(*sub, *diff_flags);
  return {sub, [=](const GlobalFlags& given) {
            flags->engine = given.engine;
            return sub->got_subcommand("diff") ? diff(*diff_flags) : trace(*flags, *output, given);
          }};
}

}  // namespace fathom::cli
