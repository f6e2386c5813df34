#include "fathom/formats/block/mxfp4_as_nvfp4.h"

#include <algorithm>

#include "fathom/base/check.h"
#include "fathom/formats/block/block_fp4.h"

namespace fathom {
namespace {

constexpr int kUe8m0Bias = 127;
constexpr int kLeastGlobalExponent = -126;  // of a normal float32

}  // namespace

uint8_t e4m3_of_exponent(int e) {
  FATHOM_CHECK(e >= kLeastE4m3Exponent && e <= kLargestE4m3Exponent, str_cat("2^", e));
  return static_cast<uint8_t>(e >= -6 ? (e + 7) << 3 : 1 << (e - kLeastE4m3Exponent));
}

int mxfp4_global_exponent(int most) {
  return std::max(most - kLargestE4m3Exponent, kLeastGlobalExponent);
}

bool is_zero_mxfp4_block(const uint8_t* packed, int64_t k, int64_t block) {
  const int64_t end = std::min(k, (block + 1) * kMxfp4Block);
  for (int64_t i = block * kMxfp4Block; i < end; ++i) {
    if ((unpack_e2m1(packed, i).bits & 7) != 0) return false;
  }
  return true;
}

Result<int> largest_mxfp4_exponent(std::span<const uint8_t> scales) {
  uint8_t most = 0;
  for (const uint8_t byte : scales)
    most = std::max(most, byte);
  if (most == kUe8m0Nan) return unsupported("a scale is NaN (byte 255), expected bytes 0 to 254");
  return most - kUe8m0Bias;
}

Status mxfp4_scales_to_nvfp4(const uint8_t* packed,
                             std::span<const uint8_t> scales,
                             int64_t k,
                             int g,
                             std::span<uint8_t> out) {
  constexpr int64_t kHalves = kMxfp4Block / kNvfp4Block;
  for (size_t block = 0; block < scales.size(); ++block) {
    const int e = scales[block] - kUe8m0Bias - g;
    uint8_t byte = 0;
    if (!is_zero_mxfp4_block(packed, k, static_cast<int64_t>(block))) {
      if (e < kLeastE4m3Exponent || e > kLargestE4m3Exponent) {
        return unsupported(str_cat("the scale of block ", block, " is 2^", e + g,
                                   ", but under the largest of its matrix only 2^",
                                   g + kLeastE4m3Exponent, " to 2^", g + kLargestE4m3Exponent,
                                   " are exact in the form of NVFP4"));
      }
      byte = e4m3_of_exponent(e);
    }
    const size_t first = block * kHalves;
    for (size_t half = first; half < std::min(first + kHalves, out.size()); ++half)
      out[half] = byte;
  }
  return {};
}

}  // namespace fathom
