#include "fathom/device/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/hint.h"

namespace fathom {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Buffer, ThatIsTooLargeIsRefusedWithWhatItIsForAndWhatHelps) {
  const auto buffer = Buffer::allocate(DeviceKind::kCpu, int64_t{1} << 52, "weights");

  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(buffer.status().message(), StartsWith("weights: cannot allocate 4503599627370496 "));
  EXPECT_THAT(buffer.status().message(), HasSubstr("\nhint: lower --max-model-len"));
}

// Without a GPU the reason is another one, with a hint of its own or none.
TEST(Buffer, OfPinnedMemoryIsRefusedWithAHint) {
  const auto buffer = Buffer::allocate_pinned(int64_t{1} << 52, "staging of weights");

  ASSERT_FALSE(buffer.ok());
  EXPECT_THAT(buffer.status().message(), StartsWith("staging of weights: "));
  EXPECT_EQ(buffer.status().message().find("hint: pinned memory") != std::string::npos,
            buffer.status().code() == StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace fathom
