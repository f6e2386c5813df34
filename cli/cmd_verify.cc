// verify: reads every byte of a model's files and says what is wrong with them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "fathom/api/engine.h"
#include "fathom/text/json_writer.h"
#include "fathom/weights/verify/verify.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string model;
  bool json = false;
};

// What is said of one model.
struct Verdict {
  std::string directory;
  VerifyReport report;
  std::vector<std::string> warnings;

  bool ok() const { return report.faults.empty(); }
};

std::string_view hash_word(VerifiedFile::Hash hash) {
  switch (hash) {
    case VerifiedFile::Hash::kMatches:
      return "matches";
    case VerifiedFile::Hash::kDiffers:
      return "differs";
    case VerifiedFile::Hash::kUnrecorded:
      return "unrecorded";
  }
  return {};
}

// Configuration, names and shapes of the tensors, vocabulary: all that loading would ask before it
// reads weights.
Status check_description(const EngineSource& source) {
  FATHOM_TRY(open_model(source.model, {}, {.model = {}, .weights = WeightOrigin::kNone}).status());
  return check_vocabulary(source, {});
}

void note(const Status& status, std::vector<std::string>& faults) {
  if (!status.ok()) faults.push_back(status.message());
}

// A model that only holds weights is whole without a vocabulary.
Status open_tokenizer(const std::string& directory, EngineSource& source, Verdict& out) {
  if (path_kind(join_path(directory, "tokenizer.json")) == PathKind::kMissing) {
    out.warnings.push_back(str_cat(directory, ": has no tokenizer.json"));
    return {};
  }
  FATHOM_ASSIGN(source.tokenizer, Tokenizer::load(directory));
  return {};
}

Verdict verify_model(const std::string& directory, ThreadPool& pool, bool quiet) {
  Verdict out{.directory = directory, .report = {}, .warnings = {}};
  std::vector<std::string> faults;
  std::optional<Checkpoint> alone;
  EngineSource source;
  Result<ModelSource> model = ModelSource::open(directory);
  note(model.status(), faults);
  if (model.ok()) {
    source.model = std::move(model).value();
    note(open_tokenizer(directory, source, out), faults);
    note(check_description(source), faults);
  } else if (Result<Checkpoint> weights = Checkpoint::open(directory); weights.ok()) {
    alone = std::move(weights).value();  // the fault is elsewhere
  }
  const Checkpoint* const checkpoint = source.model.checkpoint ? &*source.model.checkpoint
                                       : alone                 ? &*alone
                                                               : nullptr;
  Progress bar("verifying", "", quiet);
  out.report = verify_files(directory, checkpoint, pool,
                            [&](int64_t done, int64_t total) { bar.update(done, total); });
  // First what loading says, which may be the reason of the rest.
  std::swap(faults, out.report.faults);
  for (std::string& fault : faults)
    out.report.faults.push_back(std::move(fault));
  if (checkpoint == nullptr) return out;
  for (const std::string& warning : checkpoint->warnings()) {
    const auto wrong = checkpoint->index_faults();
    if (std::find(wrong.begin(), wrong.end(), warning) == wrong.end())
      out.warnings.push_back(warning);
  }
  return out;
}

void print_text(const Verdict& verdict) {
  const VerifyReport& report = verdict.report;
  MarkdownTable table({"file", "size", "SHA-256"});
  for (const VerifiedFile& file : report.files) {
    const bool recorded = file.hash != VerifiedFile::Hash::kUnrecorded;
    table.add({file.name, format_bytes(file.bytes),
               recorded ? str_cat(hash_word(file.hash), ", by ", file.recorded_by)
                        : std::string("not recorded")});
  }
  std::string text =
      str_cat("# ", verdict.directory, "\n\n", table.str(), "\n", format_bytes(report.bytes),
              " read, the numbers of ", report.tensors, " tensors looked at\n");
  for (const std::string& warning : verdict.warnings)
    str_append(text, str_cat("note: ", warning, "\n"));
  for (const std::string& fault : report.faults)
    str_append(text, str_cat("fault: ", fault, "\n"));
  const size_t count = report.faults.size();
  str_append(text, verdict.ok()
                       ? std::string("ok\n")
                       : str_cat("FAILED: ", count, count == 1 ? " fault\n" : " faults\n"));
  write_text(text);
}

void print_json(const Verdict& verdict) {
  JsonWriter out(JsonStyle::kIndented);
  const auto list = [&](std::string_view key, const std::vector<std::string>& texts) {
    out.key(key).begin_array();
    for (const std::string& text : texts)
      out.string(text);
    out.end_array();
  };
  out.begin_object().key("schema").string("fathom.verify/1");
  out.key("model").string(verdict.directory).key("ok").boolean(verdict.ok());
  out.key("bytes").integer(verdict.report.bytes).key("tensors").integer(verdict.report.tensors);
  out.key("files").begin_array();
  for (const VerifiedFile& file : verdict.report.files) {
    out.begin_object().key("name").string(file.name).key("bytes").integer(file.bytes);
    out.key("sha256").string(hash_word(file.hash));
    out.key("recorded_by").string(file.recorded_by).end_object();
  }
  out.end_array();
  list("faults", verdict.report.faults);
  list("notes", verdict.warnings);
  out.end_object();
  std::printf("%s\n", out.take().c_str());
}

Result<int> verify(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const std::string directory, resolve_model_argument(flags.model));
  FATHOM_ASSIGN(const auto pool, ThreadPool::create(thread_count(globals.engine), PinThreads::kNo));
  const Verdict verdict = verify_model(directory, *pool, globals.quiet);
  (flags.json ? print_json : print_text)(verdict);
  return verdict.ok() ? kExitOk : kExitBadInput;
}

}  // namespace

Command add_verify(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "verify", "Read every byte of a model: hashes, index, numbers that are not finite");
  sub->add_option("MODEL", flags->model, "Model directory, or ORG/NAME in the local cache")
      ->required();
  sub->add_flag("--json", flags->json, "Print JSON (fathom.verify/1)");
  return {sub, [flags](const GlobalFlags& globals) { return verify(*flags, globals); }};
}

}  // namespace fathom::cli
