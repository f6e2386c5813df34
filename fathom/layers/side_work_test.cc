#include "fathom/layers/side_work.h"

#include <gtest/gtest.h>

#include "fathom/device/described_gpu.h"
#include "fathom/layers/attention/index_choice.h"

namespace fathom {
namespace {

// Bytes in use behind two works of 64 bytes each, the first of them in two pieces; and behind all.
std::pair<int64_t, int64_t> bytes_behind(const DeviceInfo* device, bool wanted) {
  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.device = device;
  const auto work = [](Exec& own) -> Status {
    ArenaScope temporary(*own.activations);
    return own.activations->take(64).status();
  };
  int64_t used = 0;
  {
    SideWork one(ex, Side::kFirst, wanted);
    SideWork other(ex, Side::kSecond, wanted);
    for (SideWork* side : {&one, &other, &one})
      EXPECT_TRUE(side->run(work).ok());
    EXPECT_TRUE(one.join().ok() && other.join().ok());
    used = activations.mark();
  }
  return {used, activations.mark()};
}

TEST(SideWork, KeepsItsMemoryToItsEndWhereItRunsBeside) {
  const DeviceInfo gpu = described_gpu("h200").value();
  EXPECT_EQ(bytes_behind(&gpu, true), std::pair(int64_t{192}, int64_t{0}));
  EXPECT_EQ(bytes_behind(&gpu, false), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(bytes_behind(nullptr, true), std::pair(int64_t{0}, int64_t{0}));
}

TEST(SideWork, IsForIndexersOfStepsThatDecodeFewTokensAlone) {
  AttentionBatch batch;
  batch.decode.num_tokens = 32;
  EXPECT_TRUE(indexes_beside(batch));
  batch.prefill.num_tokens = 1;
  EXPECT_FALSE(indexes_beside(batch));
  batch.prefill.num_tokens = 0;
  batch.decode.num_tokens = 33;
  EXPECT_FALSE(indexes_beside(batch));
}

}  // namespace
}  // namespace fathom
