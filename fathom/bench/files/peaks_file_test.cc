#include "fathom/bench/files/peaks_file.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

Peaks some_peaks() {
  Peaks peaks{.device = "Some \"CPU\"", .source = "measured"};
  peaks.read_gbps = 31.25;
  peaks.copy_gbps = 27.5;
  peaks.f32_gflops = 350.125;
  peaks.bf16_gflops = 0.1;
  peaks.bf16_unit = "vdpbf16ps zmm";
  return peaks;
}

std::string replaced(std::string_view from, std::string_view to) {
  std::string text = write_peaks(some_peaks());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  return read_peaks(text, "p.json").status().message();
}

TEST(PeaksFile, ReadsBackWhatItWrote) {
  const Peaks back = read_peaks(write_peaks(some_peaks()), "p.json").value();

  EXPECT_EQ(write_peaks(back), write_peaks(some_peaks()));
  EXPECT_EQ(back.device, "Some \"CPU\"");
  EXPECT_EQ(back.read_gbps, 31.25);
  EXPECT_EQ(back.bf16_gflops, 0.1);
  EXPECT_EQ(back.fp4_gflops, 0);
  EXPECT_EQ(back.bf16_unit, "vdpbf16ps zmm");
}

TEST(PeaksFile, WhatIsWrongIsNamed) {
  EXPECT_EQ(error_of("[]"), "p.json: expected an object with \"schema\": \"fathom.peaks/1\"");
  EXPECT_EQ(error_of(replaced("fathom.peaks/1", "other")),
            "p.json: expected an object with \"schema\": \"fathom.peaks/1\"");
  EXPECT_EQ(error_of(replaced("copy_gbps", "copy")),
            "p.json: copy_gbps is missing; expected a number, 0 for none");
  EXPECT_EQ(error_of(replaced("27.5", "\"fast\"")),
            "p.json: copy_gbps is missing; expected a number, 0 for none");
  EXPECT_EQ(error_of(replaced("27.5", "-1")),
            "p.json: copy_gbps is -1, expected 0 or 1e-06 to 1e+15");
  EXPECT_EQ(error_of(replaced("350.125", "0.0")),
            "p.json: read_gbps, copy_gbps and f32_gflops must be above 0");
  EXPECT_EQ(error_of(replaced("\"measured\"", "7")), "p.json: source is no text");
  EXPECT_NE(error_of("{").find("p.json"), std::string::npos);
}

}  // namespace
}  // namespace fathom
