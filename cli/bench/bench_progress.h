// Where a benchmark is, for whoever waits for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::cli {

/// Says on stderr where a run is: on a terminal in one line that is redrawn, elsewhere in a line
/// every ten seconds.
class BenchProgress {
 public:
  /// `noun` names what is counted: "case".
  BenchProgress(std::string_view noun, bool quiet);

  /// `index` of `count` begins, from 0.
  void begin(int64_t index, int64_t count, const std::string& name);

  /// Erases the line.
  void end();

 private:
  std::string noun_;
  bool quiet_;
  bool terminal_;
  size_t drawn_ = 0;
  int64_t begin_ns_;
  int64_t last_ns_;
};

}  // namespace fathom::cli
