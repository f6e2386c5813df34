// synth: a small random checkpoint of any supported family and format.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/config/format_flag.h"
#include "cli/io/interrupt.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "fathom/formats/format.h"
#include "fathom/models/synth.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string directory;
  SynthOptions options;
  std::string format = "bf16";
};

Result<int> synth(const Flags& flags, const GlobalFlags& globals) {
  SynthOptions options = flags.options;
  FATHOM_ASSIGN(options.format, choose_format(flags.format, synth_formats()));
  end_at_interrupt("what is written stays; the same command goes on where it stopped");
  Progress bar("writing", "tensors", globals.quiet);
  options.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
  FATHOM_ASSIGN(const SynthReport report, synthesize_checkpoint(flags.directory, options));
  bar.erase();
  if (!globals.quiet) {
    std::fprintf(stderr, "fathom: wrote %s: %s, %s parameters, %s of weights\n",
                 flags.directory.c_str(), options.version.c_str(),
                 format_count(report.parameters).c_str(), format_bytes(report.bytes).c_str());
  }
  return kExitOk;
}

std::string listed(std::span<const std::string_view> words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    str_append(out, str_cat(i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", words[i]));
  return out;
}

}  // namespace

Command add_synth(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("synth", "Write a small checkpoint with random weights");
  sub->add_option("DST", flags->directory, "Directory to write")->required();
  sub->add_option("--version", flags->options.version, listed(synth_versions()))
      ->capture_default_str();
  sub->add_option("--layers", flags->options.layers, "Decoder layers; of v4 at least 3")
      ->capture_default_str();
  sub->add_option("--hidden", flags->options.hidden, "Hidden size")->capture_default_str();
  sub->add_option("--experts", flags->options.experts, "Routed experts")->capture_default_str();
  sub->add_option("--format", flags->format,
                  str_cat(format_names(synth_formats()),
                          ", as published: nvfp4 has experts, MLPs and o_proj (v4: experts, the "
                          "rest fp8_block), mxfp4 the experts of v4, whose fp8_block has UE8M0 "
                          "scales"))
      ->check(format_among(synth_formats()))
      ->capture_default_str();
  sub->add_option("--seed", flags->options.seed, "Same seed, same bytes")->capture_default_str();
  return {sub, [flags](const GlobalFlags& globals) { return synth(*flags, globals); }};
}

}  // namespace fathom::cli
