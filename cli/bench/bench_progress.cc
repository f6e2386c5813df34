#include "cli/bench/bench_progress.h"

#include <cstdio>

#include "cli/io/terminal.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/clock.h"

namespace fathom::cli {

BenchProgress::BenchProgress(std::string_view noun, bool quiet)
    : noun_(noun),
      quiet_(quiet),
      terminal_(stderr_is_terminal()),
      begin_ns_(monotonic_ns()),
      last_ns_(begin_ns_) {}

void BenchProgress::begin(int64_t index, int64_t count, const std::string& name) {
  if (quiet_) return;
  if (terminal_) {
    draw_over_line(str_cat("[", index + 1, "/", count, "] ", name), drawn_);
    return;
  }
  const int64_t now = monotonic_ns();
  if (now - last_ns_ < 10'000'000'000) return;
  last_ns_ = now;
  std::fprintf(stderr, "fathom: %s %lld of %lld after %lld s: %s\n", noun_.c_str(),
               static_cast<long long>(index + 1), static_cast<long long>(count),
               static_cast<long long>((now - begin_ns_) / 1'000'000'000), name.c_str());
}

void BenchProgress::end() {
  if (drawn_ > 0) draw_over_line({}, drawn_);
}

}  // namespace fathom::cli
