#include "fathom/formats/format.h"

#include <array>
#include <string>

#include "fathom/base/ascii.h"
#include "fathom/base/checked_math.h"

namespace fathom {
namespace {

// clang-format off
constexpr std::array<FormatInfo, kNumFormats> kFormats = {{
    // format               name                bits scale            n    k  global float  zero           row scale
    {Format::kNone,          "none",             0,  Format::kNone,   0,   0, false, false, Format::kNone, Format::kNone},
    {Format::kF32,           "f32",              32, Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kF16,           "f16",              16, Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kBf16,          "bf16",             16, Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kE4m3,          "e4m3",             8,  Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kE5m2,          "e5m2",             8,  Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kUe8m0,         "ue8m0",            8,  Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kI8,            "i8",               8,  Format::kNone,   0,   0, false, false, Format::kNone, Format::kNone},
    {Format::kU8,            "u8",               8,  Format::kNone,   0,   0, false, false, Format::kNone, Format::kNone},
    {Format::kI32,           "i32",              32, Format::kNone,   0,   0, false, false, Format::kNone, Format::kNone},
    {Format::kI64,           "i64",              64, Format::kNone,   0,   0, false, false, Format::kNone, Format::kNone},
    {Format::kBool,          "bool",             8,  Format::kNone,   0,   0, false, false, Format::kNone, Format::kNone},
    {Format::kF64,           "f64",              64, Format::kNone,   0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kNvfp4,         "nvfp4",            4,  Format::kE4m3,   1,  16, true,  true,  Format::kNone, Format::kNone},
    {Format::kMxfp4,         "mxfp4",            4,  Format::kUe8m0,  1,  32, false, true,  Format::kNone, Format::kNone},
    {Format::kMxfp8,         "mxfp8",            8,  Format::kUe8m0,  1,  32, false, true,  Format::kNone, Format::kNone},
    {Format::kFp8Block,      "fp8_block",        8,  Format::kF32,  128, 128, false, true,  Format::kNone, Format::kNone},
    {Format::kFp8BlockUe8m0, "fp8_block_ue8m0",  8,  Format::kUe8m0,128, 128, false, true,  Format::kNone, Format::kNone},
    {Format::kFp8Group,      "fp8_group",        8,  Format::kF32,    1, 128, false, true,  Format::kNone, Format::kNone},
    {Format::kFp8GroupUe8m0, "fp8_group_ue8m0",  8,  Format::kUe8m0,  1, 128, false, true,  Format::kNone, Format::kNone},
    {Format::kFp8Channel,    "fp8_channel",      8,  Format::kF32,    1,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kFp8Tensor,     "fp8_tensor",       8,  Format::kF32,    0,   0, false, true,  Format::kNone, Format::kNone},
    {Format::kInt8Channel,   "int8_channel",     8,  Format::kF32,    1,   0, false, false, Format::kNone, Format::kNone},
    {Format::kW4a8Channel,   "w4a8_channel",     4,  Format::kF16,    1,   0, false, false, Format::kF16,  Format::kNone},
    {Format::kW4a8Group,     "w4a8_group",       4,  Format::kI8,     1, 128, false, false, Format::kI8,   Format::kF16},
    {Format::kW4Fp8,         "w4_fp8",           4,  Format::kF32,    1, 128, false, false, Format::kNone, Format::kNone},
}};

// clang-format on

constexpr bool table_follows_enum() {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (static_cast<size_t>(kFormats[i].format) != i) return false;
  }
  return true;
}

static_assert(table_follows_enum(), "a format is the index of its row");

struct Alias {
  std::string_view name;  // in lower case
  Format format;
};

// The spellings of safetensors, PyTorch and serving engines.
constexpr Alias kAliases[] = {
    {"float32", Format::kF32},      {"fp32", Format::kF32},
    {"float", Format::kF32},        {"float16", Format::kF16},
    {"fp16", Format::kF16},         {"half", Format::kF16},
    {"bfloat16", Format::kBf16},    {"f8_e4m3", Format::kE4m3},
    {"fp8_e4m3", Format::kE4m3},    {"float8_e4m3fn", Format::kE4m3},
    {"f8_e5m2", Format::kE5m2},     {"fp8_e5m2", Format::kE5m2},
    {"float8_e5m2", Format::kE5m2}, {"f8_e8m0", Format::kUe8m0},
    {"e8m0", Format::kUe8m0},       {"float8_e8m0fnu", Format::kUe8m0},
    {"int8", Format::kI8},          {"uint8", Format::kU8},
    {"int32", Format::kI32},        {"int64", Format::kI64},
};

int64_t count_blocks(int64_t size, int block) {
  return block == 0 ? 1 : ceil_div<int64_t>(size, block);
}

}  // namespace

const FormatInfo& format_info(Format format) {
  const auto index = static_cast<size_t>(format);
  FATHOM_CHECK(index < kFormats.size(), str_cat("no format has number ", index));
  return kFormats[index];
}

Result<Format> parse_format(std::string_view name) {
  const std::string lower = ascii_lower(name);
  for (const FormatInfo& info : kFormats) {
    if (info.format != Format::kNone && info.name == lower) return info.format;
  }
  for (const Alias& alias : kAliases) {
    if (alias.name == lower) return alias.format;
  }
  std::string message = str_cat("unknown format \"", name, "\"; known are");
  for (const FormatInfo& info : kFormats) {
    if (info.format != Format::kNone) str_append(message, str_cat(" ", info.name));
  }
  return invalid_argument(std::move(message));
}

bool is_quantised(Format format) {
  return format_info(format).scale != Format::kNone;
}

int64_t value_bytes_for(Format format, int64_t n, int64_t k) {
  return n * ceil_div<int64_t>(k * format_info(format).bits, 8);
}

int64_t scale_count_for(Format format, int64_t n, int64_t k) {
  const FormatInfo& info = format_info(format);
  if (info.scale == Format::kNone || n == 0 || k == 0) return 0;
  return count_blocks(n, info.block_n) * count_blocks(k, info.block_k);
}

int64_t bytes_for(Format format, int64_t n, int64_t k) {
  const FormatInfo& info = format_info(format);
  if (n == 0 || k == 0) return 0;
  const int bits_per_scale =
      format_info(info.scale).bits + format_info(info.zero).bits;  // "none" has no bits
  const int64_t scales = scale_count_for(format, n, k) * (bits_per_scale / 8);
  const int64_t row_scales = n * (format_info(info.row_scale).bits / 8);
  const int64_t global = info.has_global ? 4 : 0;
  return value_bytes_for(format, n, k) + scales + row_scales + global;
}

}  // namespace fathom
