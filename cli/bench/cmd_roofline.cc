// roofline: what a benchmark or a recorded run reached, under the ceilings of a machine.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/bench/roofline_source.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/io/png.h"
#include "cli/io/text_output.h"
#include "fathom/base/log.h"
#include "fathom/bench/files/peaks_file.h"
#include "fathom/bench/roofline/analysis.h"
#include "fathom/bench/roofline/chart.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string input;
  std::string peaks;
  std::string device;
  std::string output = "svg";
  std::string out_file;
  std::string png;
  bool all = false;
};

Result<Peaks> peaks_from_file(const std::string& path) {
  FATHOM_ASSIGN(const std::string text, read_file(path, 1 << 20));
  return read_peaks(text, path);
}

bool is_nominal_name(const std::string& name) {
  for (const std::string& known : nominal_peak_names())
    if (known == name) return true;
  return false;
}

/// True where the flags ask for what was measured with the input.
bool asks_for_measured(const Flags& flags) {
  if (flags.peaks == "measured") return true;
  return flags.peaks.empty() && (flags.device.empty() || flags.device == "cpu");
}

/// The ceilings that the flags ask for.
Result<Peaks> chosen_peaks(const Flags& flags,
                           const RooflineSource& source,
                           const GlobalFlags& globals) {
  const bool device = !flags.device.empty() && flags.device != "cpu";
  if (asks_for_measured(flags)) {
    if (!device) return measured_peaks_of(source, globals);
    return invalid_argument(str_cat("--peaks measured with --device ", flags.device,
                                    ": what was measured belongs to the rows\nhint: use --peaks "
                                    "nominal for a data sheet"));
  }
  if (!flags.peaks.empty() && flags.peaks != "nominal") return peaks_from_file(flags.peaks);
  if (!device) {
    return invalid_argument(
        "--peaks nominal needs --device h200, h100, b200 or gb200: there is no data sheet of a "
        "cpu");
  }
  if (!is_nominal_name(flags.device) && path_kind(flags.device) == PathKind::kFile) {
    return peaks_from_file(flags.device);
  }
  return nominal_peaks(flags.device);
}

/// Rows that cannot be drawn stay what they are: failed.
std::string failed_section(const RooflineSource& source) {
  if (source.failed.empty()) return {};
  std::string out = str_cat("\n## Rows without a time (", source.failed.size(), ")\n\n");
  for (const std::string& row : source.failed)
    str_append(out, str_cat("- ", row, "\n"));
  return out;
}

Result<int> roofline(const Flags& flags, const GlobalFlags& globals) {
  const PointChoice choice = flags.all ? PointChoice::kAll : PointChoice::kAuto;
  FATHOM_ASSIGN(RooflineSource source, read_roofline_source(flags.input, choice));
  FATHOM_ASSIGN(const Peaks peaks, chosen_peaks(flags, source, globals));
  if (!source.has_roofs || !asks_for_measured(flags)) hold_to(peaks, source.points);
  const RooflineChart chart = make_chart(str_cat("Roofline: ", source.title), peaks, source.points);
  if (!flags.png.empty()) FATHOM_TRY(write_png(draw_chart(chart), flags.png));
  std::string text;
  if (flags.output == "svg") text = draw_chart(chart);
  if (flags.output == "md") {
    text = write_analysis(source.points, peaks, chart.title, "") + failed_section(source);
  }
  if (flags.output == "csv") text = write_points_csv(source.points);
  if (flags.output == "json") text = write_points_json(source.points, peaks);
  FATHOM_TRY(emit(text, flags.out_file));
  if (!source.failed.empty()) {
    log_warn(flags.input, ": ", source.failed.size(),
             " rows failed and are not drawn; the first: ", source.failed.front());
  }
  return kExitOk;
}

}  // namespace

Command add_roofline(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("roofline", "Draw what was measured under a machine's roof");
  sub->add_option("INPUT", flags->input,
                  "The directory of a benchmark or of a trace, or rows as all_kernels.csv")
      ->required();
  sub->add_option(
      "--peaks", flags->peaks,
      "measured (with the rows), nominal (a data sheet), or a peaks.json (default: measured, "
      "or the data sheet of --device)");
  sub->add_option("--device", flags->device,
                  "h200, h100, b200, gb200, cpu, or a peaks.json (default: that of the rows)");
  sub->add_option("-o,--output", flags->output, "svg, csv, json or md")
      ->check(one_of({"svg", "csv", "json", "md"}))
      ->capture_default_str();
  sub->add_flag_callback(
      "--json", [flags] { flags->output = "json"; }, "The same as --output json");
  sub->add_option("--out-file", flags->out_file, "Write to this file (default: standard output)");
  sub->add_option("--png", flags->png, "Draw this picture as well, with rsvg-convert");
  sub->add_flag("--all", flags->all, "Every row, not only those of the published tables");
  return {sub, [flags](const GlobalFlags& globals) { return roofline(*flags, globals); }};
}

}  // namespace fathom::cli
