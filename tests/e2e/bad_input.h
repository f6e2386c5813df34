// What a user sees whose files, arguments or disk are bad. Each case builds something bad from a
// small fixture, runs the program, and stands as a row in docs/bad-input.md with the exit code and
// the message that it printed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/loose_safetensors.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {

/// Limits of the program's process, besides those that hold for every case.
struct ProcessLimits {
  int64_t file_bytes = -1;       ///< RLIMIT_FSIZE; -1: none
  bool no_privileges = false;    ///< permissions bind, though the test may run as root
  const char* input = nullptr;   ///< what standard input is opened at instead
  const char* output = nullptr;  ///< what standard output is opened at instead
};

inline constexpr const char* kJournal = "fathom-journal.jsonl";

/// A folder with a model in it that may be spoilt.
class Scene {
 public:
  /// A copy of a folder under tests/golden, without its reference outputs.
  explicit Scene(const std::string& fixture = "micro-v3");

  std::filesystem::path model() const { return folder_ / "model"; }

  std::filesystem::path folder() const { return folder_ / "."; }

  std::filesystem::path file(const std::string& name) const { return model() / name; }

  std::filesystem::path beside(const std::string& name) const { return folder_ / name; }

  LooseSafetensors weights() const { return LooseSafetensors(file("model.safetensors")); }

  /// Replaces the first `from` in a text file of the model, which must be there.
  void edit(const std::string& name, const std::string& from, const std::string& to) const;

  void put(const std::string& name, const std::string& content) const;

  /// Replaces the model by itself in another format; `more` are further arguments of quantize. The
  /// journal, which would tell of every change that a case makes, is taken away.
  void quantize(const std::string& format, const std::vector<std::string>& more = {}) const;

  /// The same in nvfp4 with the journal, whose text it returns.
  std::string quantize_with_journal() const;

  /// fathom run MODEL, two tokens.
  ProgramResult run(const ProcessLimits& limits = {}) const;

  /// fathom ARGS. Ends the program after two minutes.
  ProgramResult fathom(const std::vector<std::string>& args,
                       const std::string& input = {},
                       const ProcessLimits& limits = {}) const;

  /// The text with this scene's paths as MODEL and DIR.
  std::string without_paths(std::string text) const;

 private:
  void replace_by_quantised(const std::string& format, const std::vector<std::string>& more) const;

  TempFolder folder_;
};

/// The exit code of a case that this machine does not let happen; `err` says why.
inline constexpr int kCannotRun = -2;

struct BadCase {
  std::string name;  ///< first column of docs/bad-input.md
  int exit_code;
  std::function<ProgramResult(Scene&)> run;
  bool only_warns = false;  ///< the program goes on, and says so
  std::string fixture = "micro-v3";
};

std::vector<BadCase> bad_weight_cases();
std::vector<BadCase> bad_shard_cases();
std::vector<BadCase> bad_scale_cases();
std::vector<BadCase> bad_v4_cases();
std::vector<BadCase> bad_config_cases();
std::vector<BadCase> bad_tokenizer_cases();
std::vector<BadCase> bad_prompt_cases();
std::vector<BadCase> bad_output_cases();

}  // namespace fathom::e2e
