// version: what this program is.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/about/build_facts.h"
#include "cli/command.h"
#include "cli/config/model_places.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

void print_text() {
  std::printf("fathom %s\n", FATHOM_VERSION);
  const auto row = [](std::string name, const std::string& value) {
    std::replace(name.begin(), name.end(), '_', ' ');
    std::printf("%-12s %s\n", name.c_str(), value.c_str());
  };
  for (const auto& [name, value] : build_facts())
    row(name, value);
  for (const std::string& root : shipped_model_roots())
    row("models", root);
}

void print_json() {
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string("fathom.version/1");
  out.key("version").string(FATHOM_VERSION);
  for (const auto& [name, value] : build_facts())
    out.key(name).string(value);
  out.key("model_directories").begin_array();
  for (const std::string& root : shipped_model_roots())
    out.string(root);
  out.end_array().key("models").begin_array();
  for (const std::string& model : known_models())
    out.string(model);
  out.end_array().end_object();
  std::printf("%s\n", out.take().c_str());
}

}  // namespace

Command add_version(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("version", "The version, and the facts of the build");
  sub->add_flag("--json", *json, "Print JSON (fathom.version/1), with the names of models here");
  return {sub, [json](const GlobalFlags&) -> Result<int> {
            (*json ? print_json : print_text)();
            return kExitOk;
          }};
}

}  // namespace fathom::cli
