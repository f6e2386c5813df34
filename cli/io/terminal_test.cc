#include "cli/io/terminal.h"

#include <cstdio>
#include <gtest/gtest.h>
#include <unistd.h>

namespace fathom::cli {
namespace {

// What a terminal gets, where a handler of signals covers the line as soon as its bytes are out:
// draw_over_line has not returned by then.
ssize_t write_then_cover(void*, const char* bytes, size_t size) {
  const ssize_t written = ::write(STDERR_FILENO, bytes, size);
  cover_drawn_line();
  return written;
}

// Stands in for stderr until it goes.
class CoveredStderr {
 public:
  CoveredStderr()
      : stream_(fopencookie(
            nullptr, "w", {.read = {}, .write = write_then_cover, .seek = {}, .close = {}})),
        before_(stderr) {
    setvbuf(stream_, nullptr, _IOLBF, 1024);
    stderr = stream_;
  }

  ~CoveredStderr() {
    stderr = before_;
    std::fclose(stream_);
  }

  CoveredStderr(const CoveredStderr&) = delete;
  CoveredStderr& operator=(const CoveredStderr&) = delete;

 private:
  FILE* stream_;
  FILE* before_;
};

TEST(DrawOverLine, CanBeCoveredBeforeItReturns) {
  testing::internal::CaptureStderr();
  {
    const CoveredStderr covered;
    size_t drawn = 0;

    draw_over_line("first", drawn);
    draw_over_line("longer", drawn);
    draw_over_line("short", drawn);
  }
  cover_drawn_line();  // of the last, whose columns are known after it

  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "\rfirst\r     \r"
            "\rlonger\r      \r"
            "\rshort \r      \r"
            "\r     \r");
}

TEST(DrawOverLine, OfNothingLeavesNothingToCover) {
  testing::internal::CaptureStderr();
  size_t drawn = 0;

  draw_over_line("line", drawn);
  draw_over_line({}, drawn);
  cover_drawn_line();

  EXPECT_EQ(drawn, 0U);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "\rline\r    \r");
}

}  // namespace
}  // namespace fathom::cli
