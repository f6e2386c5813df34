#include <array>
#include <gtest/gtest.h>

#include "fathom/device/device.h"
#include "fathom/kernels/core/launch.h"

namespace fathom {
namespace {

// A kernel for these tests alone: y = x.
struct CopyRows {
  static constexpr KernelInfo kInfo{.name = "copy_rows", .signature = "x[T,D]:f32 -> y[T,D]:f32"};

  struct Args {
    View x, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args&) { return {}; }
};

Status copy_nothing(Exec&, const CopyRows::Args&) {
  return {};
}

bool fills_device(const CopyRows::Args& a, const DeviceInfo& gpu) {
  return a.x.dim(0) >= gpu.num_sms;
}

const VariantTable<CopyRows> kTable{{"a_row_a_multiprocessor", sm(90), "", kDeterministic,
                                     copy_nothing, MathUnit::kF32, nullptr, nullptr, fills_device}};

TEST(Suits, PassesOverAVariantOnADeviceOfOtherFigures) {
  const CopyRows::Args args{.x = make_view(nullptr, {100, 4}, Format::kF32),
                            .y = make_view(nullptr, {100, 4}, Format::kF32)};
  const int64_t symbols[] = {100, 4};
  DeviceInfo small;
  small.num_sms = 100;
  DeviceInfo large;
  large.num_sms = 101;

  EXPECT_TRUE(internal::variant_fits(*kTable.begin(), args, symbols, &small));
  EXPECT_FALSE(internal::variant_fits(*kTable.begin(), args, symbols, &large));
}

}  // namespace
}  // namespace fathom
