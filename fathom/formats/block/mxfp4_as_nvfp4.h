// MXFP4 in the form of NVFP4, exactly: the codes are the same, and of a row's scale 2^e per 32 k
// the two of its halves are E4M3(2^(e-g)), where 2^g is the global scale. E4M3 has the powers of
// two from 2^-9 to 2^8, so scales under one global scale may be 2^17 from each other. Blocks of
// zeros get scale 0 and do not count.
#pragma once

#include <cstdint>
#include <span>

#include "fathom/base/status.h"

namespace fathom {

inline constexpr int kLargestE4m3Exponent = 8;  ///< of the powers of two that E4M3 has
inline constexpr int kLeastE4m3Exponent = -9;
inline constexpr uint8_t kUe8m0Nan = 255;

/// The E4M3 byte of 2^e, e from -9 to 8.
uint8_t e4m3_of_exponent(int e);

/// g for blocks whose largest scale is 2^most: that becomes the largest power of two that E4M3 has,
/// as far as 2^g is a normal float32.
int mxfp4_global_exponent(int most);

/// Whether the 32 codes of block `block` of a packed row of k codes are zeros.
bool is_zero_mxfp4_block(const uint8_t* packed, int64_t k, int64_t block);

/// The largest exponent among scale bytes; -127 for none. Errors: Unsupported for a NaN (byte 255).
Result<int> largest_mxfp4_exponent(std::span<const uint8_t> scales);

/// The scales of one row in NVFP4: [ceil(k/32)] bytes of UE8M0 to [ceil(k/16)] of E4M3, under the
/// global scale 2^g. Errors: Unsupported for a scale that E4M3 does not reach, naming the block.
Status mxfp4_scales_to_nvfp4(const uint8_t* packed,
                             std::span<const uint8_t> scales,
                             int64_t k,
                             int g,
                             std::span<uint8_t> out);

}  // namespace fathom
