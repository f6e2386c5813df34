#include "cli/config/server_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/flags.h"
#include "cli/not_empty.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

constexpr double kLongestTimeout = 1e8;  // seconds

}  // namespace

void add_server_flags(CLI::App& app, ServerFlags& f) {
  app.add_option("--api-key-file", f.api_key_file,
                 "File with the server's key (the environment has FATHOM_API_KEY)")
      ->check(not_empty("a file"));
  app.add_flag("--insecure", f.insecure, "Accept any certificate of an https server");
  app.add_option("--timeout", f.timeout_s, "Seconds for a request, to its last byte; 0: no limit")
      ->check(finite_range(0, kLongestTimeout))
      ->capture_default_str();
}

Result<std::string> api_key_of(const ServerFlags& flags) {
  constexpr int64_t kMaxBytes = 64 * 1024;
  std::string key = environment("FATHOM_API_KEY");
  if (!flags.api_key_file.empty()) {
    FATHOM_ASSIGN(key, read_file(flags.api_key_file, kMaxBytes));
    key = key.substr(0, key.find_first_of("\r\n"));
  }
  const auto printable = [](char c) { return c > ' ' && c < '\x7F'; };
  if (std::all_of(key.begin(), key.end(), printable)) return key;
  return invalid_argument(
      str_cat(flags.api_key_file.empty() ? "FATHOM_API_KEY" : flags.api_key_file,
              ": the key has blanks or characters beyond ASCII"));
}

Status no_http(std::string_view what) {
  return unavailable(str_cat(what,
                             " needs HTTP, which this build leaves out: build with "
                             "-DFATHOM_SERVER=ON and libboost-dev, libssl-dev, zlib1g-dev, "
                             "libzstd-dev and prometheus-cpp-dev"));
}

}  // namespace fathom::cli
