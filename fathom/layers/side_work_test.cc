#include "fathom/layers/side_work.h"

#include <gtest/gtest.h>

#include "fathom/device/described_gpu.h"
#include "fathom/layers/attention/index_choice.h"

namespace fathom {
namespace {

// Bytes in use behind two works that took 64 at a time, one of them in two pieces.
int64_t bytes_behind(const DeviceInfo* device, bool wanted) {
  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.device = device;
  int64_t used = 0;
  {
    SideWork one(ex, SideNumber::kFirst, wanted);
    SideWork other(ex, SideNumber::kSecond, wanted);
    for (SideWork* side : {&one, &other, &one}) {
      const Status done = side->run([](Exec& own) {
        ArenaScope temporary(*own.activations);
        return own.activations->take(64).status();
      });
      EXPECT_TRUE(done.ok() && side->join().ok());
    }
    used = activations.mark();
  }
  EXPECT_EQ(activations.mark(), 0);
  return used;
}

TEST(SideWork, KeepsItsMemoryToItsEndWhereItRunsBeside) {
  const DeviceInfo gpu = described_gpu("h200").value();
  EXPECT_EQ(bytes_behind(&gpu, true), 192);
  EXPECT_EQ(bytes_behind(&gpu, false), 0);
  EXPECT_EQ(bytes_behind(nullptr, true), 0);
}

TEST(SideWork, IsForIndexersOfPaddedStepsThatDecodeFewTokensAlone) {
  AttentionBatch batch;
  batch.decode.num_tokens = 128;
  EXPECT_FALSE(indexes_beside(batch));  // sequences with different numbers of tokens
  batch.decode.fixed_keys = 256;
  EXPECT_TRUE(indexes_beside(batch));
  batch.prefill.num_tokens = 1;
  EXPECT_FALSE(indexes_beside(batch));
  batch.prefill.num_tokens = 0;
  batch.decode.num_tokens = 129;
  EXPECT_FALSE(indexes_beside(batch));
}

}  // namespace
}  // namespace fathom
