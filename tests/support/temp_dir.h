// A directory of its own for one test, deleted with everything in it.
#pragma once

#include <filesystem>
#include <stdlib.h>
#include <string>
#include <string_view>
#include <system_error>

#include "fathom/base/check.h"

namespace fathom {

class TempDir {
 public:
  TempDir() {
    std::string name =
        std::filesystem::temp_directory_path().string() + "/fathom-test-" + std::string(6, 'X');
    FATHOM_CHECK(mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }

  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

  /// The path of `name` in this directory.
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace fathom
