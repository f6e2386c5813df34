// quantize: a checkpoint in another number format.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/config/format_flag.h"
#include "cli/engine/calibrate.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "cli/not_empty.h"
#include "fathom/weights/checkpoint/model_folder.h"
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/weights/export/quantizer.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string source;
  std::string target;
  std::string format = "nvfp4";
  std::string scope = "mlp-o";
  std::vector<std::string> ignore;
  std::string calibrate;
  int64_t calibrate_tokens = 4096;
  bool no_draft = false;
  bool list = false;
  double shard_gb = 5;
};

// input_scale is a name of NVFP4 checkpoints: other formats quantise activations by themselves.
Status check_calibration(const Flags& flags, Format format) {
  if (flags.calibrate.empty() || format == Format::kNvfp4) return {};
  return invalid_argument(
      str_cat("--calibrate is for --format nvfp4, whose activations have scales "
              "in the checkpoint; --format is ",
              format_name(format), "\nhint: leave --calibrate out"));
}

void print_calibration(const QuantizeReport& report, int64_t tokens) {
  std::printf("%lld of them have an input_scale, of %lld tokens\n",
              static_cast<long long>(report.num_input_scales), static_cast<long long>(tokens));
}

// The error of what this run quantised; weights in shards of an earlier run have none.
std::string measured_error(const QuantizeReport& report) {
  const auto measured = static_cast<int64_t>(report.weights.size());
  if (measured == 0) return {};
  const std::string error = format_fixed(report.total.relative(), 4);
  if (measured == report.num_weights) {
    return str_cat(", relative error of the quantised weights ", error);
  }
  return str_cat(", relative error of the ", measured, " weights quantised in this run ", error);
}

void print_report(const QuantizeReport& report, const Flags& flags, int64_t calibrated) {
  std::printf("%s -> %s\n", flags.source.c_str(), flags.target.c_str());
  std::printf("%lld weights quantised to %s (scope %s), %lld tensors copied\n",
              static_cast<long long>(report.num_weights), flags.format.c_str(), flags.scope.c_str(),
              static_cast<long long>(report.copied_tensors));
  if (calibrated > 0) print_calibration(report, calibrated);
  std::printf("%s -> %s%s\n", format_bytes(report.input_bytes).c_str(),
              format_bytes(report.output_bytes).c_str(), measured_error(report).c_str());
  if (report.reused_shards > 0) {
    std::printf(
        "resumed: %lld of %lld shards were intact and kept; their weights are not measured again\n",
        static_cast<long long>(report.reused_shards), static_cast<long long>(report.num_shards));
  }
  std::vector<QuantizedWeight> worst = report.weights;
  std::stable_sort(worst.begin(), worst.end(), [](const auto& a, const auto& b) {
    return a.error.relative() > b.error.relative();
  });
  if (!flags.list && worst.size() > 5) worst.resize(5);
  MarkdownTable table({"weight", "rows", "columns", "relative error", "largest error"});
  for (const QuantizedWeight& w : worst) {
    table.add({w.name, str_cat(w.n), str_cat(w.k), format_fixed(w.error.relative(), 4),
               format_fixed(w.error.max_error, 5)});
  }
  if (!worst.empty()) std::printf("\n%s", table.str().c_str());
}

Result<int> quantize(const Flags& flags, const GlobalFlags& globals) {
  QuantizeOptions options;
  FATHOM_ASSIGN(options.format, choose_format(flags.format, writable_formats()));
  FATHOM_ASSIGN(options.scope, parse_quant_scope(flags.scope));
  FATHOM_TRY(check_calibration(flags, options.format));
  options.keep_draft = !flags.no_draft;
  options.ignore = flags.ignore;
  options.max_shard_bytes = static_cast<int64_t>(flags.shard_gb * 1e9);
  options.tool_version = FATHOM_VERSION;
  FATHOM_ASSIGN(const std::string directory, resolve_model_argument(flags.source));
  Result<Checkpoint> opened = Checkpoint::open(directory);
  if (!opened.ok()) return hint_at_files(std::move(opened).status(), directory);
  const Checkpoint& source = *opened;
  FATHOM_TRY(read_quant_config(directory).status());
  end_at_interrupt("what is written stays; the same command goes on where it stopped");
  int64_t calibrated = 0;
  if (!flags.calibrate.empty()) {
    FATHOM_ASSIGN(Calibration found,
                  calibrate(directory, flags.calibrate, flags.calibrate_tokens, globals));
    options.input_amax = std::move(found.input_amax);
    calibrated = found.tokens;
  }
  Result<QuantizeReport> report = [&] {
    Progress bar("quantising", "", globals.quiet);
    options.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
    return quantize_checkpoint(source, flags.target, options);
  }();
  if (!report.ok()) return std::move(report).status();
  if (!globals.quiet) print_report(report.value(), flags, calibrated);
  return kExitOk;
}

}  // namespace

Command add_quantize(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("quantize", "Write a checkpoint in another number format");
  sub->add_option("SRC", flags->source, "Model directory, or ORG/NAME in the local cache")
      ->required();
  sub->add_option("DST", flags->target, "Directory to write")->required();
  sub->add_option("--format", flags->format, format_names(writable_formats()))
      ->check(format_among(writable_formats()))
      ->capture_default_str();
  sub->add_option("--scope", flags->scope,
                  "experts; mlp-o: MLPs, experts and o_proj; all-linear: attention as well; "
                  "compressors: those of V4 as well")
      ->capture_default_str();
  sub->add_flag("--no-draft", flags->no_draft, "Leave the draft layer out");
  sub->add_option("--ignore", flags->ignore, "Pattern of modules that stay as they are (repeat)");
  CLI::Option* const text =
      sub->add_option(
             "--calibrate", flags->calibrate,
             "Text file: SRC runs over it on the CPU, and weights in nvfp4 get an input_scale "
             "for activations in nvfp4")
          ->check(not_empty("a file"));
  sub->add_option("--calibrate-tokens", flags->calibrate_tokens, "Its first tokens")
      ->needs(text)
      ->check(integer_range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  sub->add_option("--shard-gb", flags->shard_gb, "Largest shard in GB")
      ->check(finite_range(0.001, 1000))
      ->capture_default_str();
  sub->add_flag("--list", flags->list, "Print the error of every weight, not only of the worst");
  return {sub, [flags](const GlobalFlags& globals) { return quantize(*flags, globals); }};
}

}  // namespace fathom::cli
