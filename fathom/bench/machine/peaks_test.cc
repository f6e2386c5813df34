#include "fathom/bench/machine/peaks.h"

#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "fathom/bench/machine/peak_loops.h"

namespace fathom {
namespace {

TEST(Peaks, EveryRateOfThisMachineIsMeasured) {
  ThreadPool pool(2, PinThreads::kNo);

  const Peaks peaks =
      measure_peaks(pool, best_isa(), {.buffer_bytes = 1 << 20, .seconds = 0.001}).value();

  EXPECT_GT(peaks.read_gbps, 0);
  EXPECT_GT(peaks.copy_gbps, 0);
  EXPECT_GT(peaks.f32_gflops, 0);
  EXPECT_EQ(peaks.bf16_gflops > 0, best_isa() >= Isa::kAvx512);
  EXPECT_EQ(peaks.int8_gops > 0, best_isa() >= Isa::kAvx512);
  EXPECT_EQ(peaks.source, "measured");
}

TEST(Peaks, PlainLoopsAreMeasuredToo) {
  ThreadPool pool(2, PinThreads::kNo);

  EXPECT_GT(measure_plain_gflops(pool), 0);
}

TEST(Peaks, LoopsCountTheirOperations) {
  // Twice the rounds, twice the operations; a vector of n floats does 2n of them.
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa > best_isa()) continue;
    for (const ComputeLoop& loop : {f32_loop(isa), bf16_loop(isa), int8_loop(isa)}) {
      if (loop.run == nullptr) continue;
      EXPECT_EQ(loop.run(6), 2 * loop.run(3)) << loop.instruction;
      EXPECT_FALSE(loop.instruction.empty());
    }
  }
  EXPECT_EQ(f32_loop(Isa::kPortable).run(1), 12 * 2);
  EXPECT_EQ(plain_loop().run(6), 2 * plain_loop().run(3));
}

TEST(Peaks, ReadingTouchesEveryWord) {
  for (size_t count : {0, 1, 7, 8, 9, 1000}) {
    std::vector<uint64_t> words(count);
    std::iota(words.begin(), words.end(), uint64_t{1});
    EXPECT_EQ(read_words(words), count * (count + 1) / 2);
  }
}

TEST(Peaks, UnitsThatAreMissingAreStoodInFor) {
  const Peaks cpu{.device = "", .source = "", .f32_gflops = 10, .bf16_gflops = 40};
  const Peaks old{.device = "", .source = "", .f32_gflops = 10};

  EXPECT_EQ(cpu.compute_gflops(MathUnit::kFp4), 40);
  EXPECT_EQ(cpu.compute_name(MathUnit::kFp4), "bf16");
  EXPECT_EQ(old.compute_gflops(MathUnit::kBf16), 10);
  EXPECT_EQ(old.compute_name(MathUnit::kFp8), "f32");
}

TEST(Peaks, CopyRateBoundsWhatWritesAQuarter) {
  const Peaks peaks{.device = "", .source = "", .read_gbps = 30, .copy_gbps = 20};

  EXPECT_EQ(peaks.memory_gbps(100, 1), 30);
  EXPECT_EQ(peaks.memory_gbps(75, 25), 20);
  EXPECT_EQ(peaks.memory_name(76, 24), "read");
  EXPECT_EQ(peaks.memory_name(0, 0), "read");
}

TEST(Peaks, DataSheetOfTheReferenceBenchmark) {
  const Peaks gb200 = nominal_peaks("gb200").value();

  EXPECT_EQ(gb200.fp4_gflops, 9e6);
  EXPECT_EQ(gb200.fp8_gflops, 4.5e6);
  EXPECT_EQ(gb200.bf16_gflops, 2.25e6);
  EXPECT_EQ(gb200.read_gbps, 8000);
}

TEST(Peaks, UnknownDeviceNamesTheKnownOnes) {
  EXPECT_EQ(nominal_peaks("h20").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(nominal_peaks("h20").status().message(),
            "no data sheet for device 'h20'; known are h100, h200, b200, gb200");
}

}  // namespace
}  // namespace fathom
