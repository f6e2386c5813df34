// Every storage format fathom knows, in one enum and one table.
//
// A dense format is one element type. A quantised format names values AND scales: E4M3 values with
// float32 scales per 128x128 block and the same values with UE8M0 scales are two formats, and
// converting between them requantises.
#pragma once

#include <cstdint>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

enum class Format : uint8_t {
  kNone,  ///< an absent optional operand
  // dense
  kF32,
  kF16,
  kBf16,
  kE4m3,
  kE5m2,
  kUe8m0,
  kI8,
  kU8,
  kI32,
  kI64,
  kBool,
  kF64,  ///< stored results only; no kernel takes it
  // quantised: values with scales (QuantView)
  kNvfp4,          ///< E2M1, E4M3 scale per 16 along K, float32 global scale
  kMxfp4,          ///< E2M1, UE8M0 scale per 32 along K
  kMxfp8,          ///< E4M3, UE8M0 scale per row and 32 along K
  kFp8Block,       ///< E4M3, float32 scale per 128x128 block
  kFp8BlockUe8m0,  ///< E4M3, UE8M0 scale per 128x128 block
  kFp8Group,       ///< E4M3, float32 scale per row and 128 along K (activations)
  kFp8GroupUe8m0,  ///< E4M3, UE8M0 scale per row and 128 along K
  kFp8Channel,     ///< E4M3, float32 scale per row (per token, or per output channel)
  kFp8Tensor,      ///< E4M3, one float32 scale
  kInt8Channel,    ///< int8, float32 scale per row (per token, or per output channel)
  kW4a8Channel,    ///< QServe: uint4, float16 scale and zero per output channel
  kW4a8Group,      ///< QServe: uint4, int8 scale and zero per group of 128, float16 per channel
  kW4Fp8,          ///< int4, float32 scale per row and 128 along K (W4AFP8)
};

inline constexpr int kNumFormats = static_cast<int>(Format::kW4Fp8) + 1;

/// How the scales of a quantised format lie over a [N, K] matrix.
struct FormatInfo {
  Format format;
  std::string_view name;  ///< as in signatures, CSV and command line: "bf16", "nvfp4"
  int bits;               ///< of one value
  Format scale;           ///< kNone for dense formats
  int block_n;            ///< rows per scale; 0: all rows
  int block_k;            ///< columns per scale; 0: all columns
  bool has_global;        ///< a float32 scale per tensor besides the block scales
  bool is_float;          ///< values are floating point
  Format zero;            ///< of the zero points, one for each scale; kNone for most
  Format row_scale;       ///< of a second scale per row (QServe per group); kNone for most
};

const FormatInfo& format_info(Format format);

inline std::string_view format_name(Format format) {
  return format_info(format).name;
}

/// The format of that name, or InvalidArgument listing the known names. Letter case does not
/// matter; the spellings of safetensors ("BF16", "F8_E4M3") and of frameworks ("bfloat16",
/// "fp8_e4m3", "float8_e4m3fn") are understood.
Result<Format> parse_format(std::string_view name);

bool is_quantised(Format format);

/// Bytes of n x k values in that format, scales and global scale included: the only function that
/// turns shapes into bytes. NK*bits/8 rounded up per row of k, + scale blocks (partial blocks count
/// whole, zero points included) + a second scale per row + 4 for a global scale. A matrix without
/// values takes no bytes. n, k >= 0; the caller checked that the product fits int64_t.
int64_t bytes_for(Format format, int64_t n, int64_t k);

/// Bytes of the values alone.
int64_t value_bytes_for(Format format, int64_t n, int64_t k);

/// Number of block scales of a [n, k] matrix: ceil(n/block_n) * ceil(k/block_k); 0 for dense
/// formats.
int64_t scale_count_for(Format format, int64_t n, int64_t k);

}  // namespace fathom
