#include "fathom/weights/load/random_jobs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/super_tile.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"
#include "fathom/tensor/view.h"
#include "fathom/weights/load/tiles.h"

namespace fathom {
namespace {

// ---- the size of what is drawn

// Each number has a random sign and mantissa and the given exponent: magnitude in [2^e, 2^(e+1)).
constexpr float kRmsOfMantissa = 1.5275252f;  // sqrt(7/3), of a number uniform in [1, 2)
constexpr float kRmsOfE2m1 = 2.9261749f;      // of codes drawn uniformly

int exponent_for(float rms) {
  return static_cast<int>(std::floor(std::log2(rms / kRmsOfMantissa) + 0.5f));
}

float rms_of(const WeightItem& item) {
  return 1.0f / std::sqrt(static_cast<float>(item.k));
}

// Of the scales of a format whose scales are powers of two.
int scale_exponent(const WeightItem& item) {
  if (item.format != Format::kMxfp4) return exponent_for(rms_of(item));
  return static_cast<int>(std::lround(std::log2(rms_of(item) / kRmsOfE2m1)));
}

// Root mean square of what random codes of a row-major matrix stand for, before their scale.
float rms_of_codes(Format format) {
  switch (format) {
    case Format::kFp8Channel:
    case Format::kFp8Block:
      return kRmsOfMantissa;
    case Format::kInt8Channel:
      return 73.9f;  // uniform in -128 .. 127
    case Format::kW4a8Group:
      return 16.0f * 4.61f;  // 16 * (code - 7.5), see below
    default:
      return 4.61f;  // sixteen equal steps
  }
}

// ---- words of 64 bits

// A mixing function whose inputs are (stream, word index): random access, so any thread can make
// any part. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators".
uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// 64 random bits as codes of a format; what bits must not be set is masked, what must be is set.
struct CodeMask {
  uint64_t random = ~uint64_t{0};
  uint64_t fixed = 0;
};

constexpr CodeMask kZeros{.random = 0};

uint64_t repeat(uint64_t value, int bits) {
  for (int width = bits; width < 64; width *= 2)
    value |= value << width;
  return value;
}

template <class T>
CodeMask constant(T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t,
                                  std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
  return {.random = 0,
          .fixed = repeat(std::bit_cast<Bits>(value), static_cast<int>(8 * sizeof(T)))};
}

CodeMask code_mask(Format format, float rms) {
  const auto exponent = static_cast<uint64_t>(127 + exponent_for(rms));
  switch (format) {
    case Format::kF32:
      return {repeat(0x807FFFFFu, 32), repeat(exponent << 23, 32)};
    case Format::kBf16:
      return {repeat(0x807Fu, 16), repeat(exponent << 7, 16)};
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
    case Format::kFp8Channel:
    case Format::kMxfp8:
      return {repeat(0x87u, 8), repeat(0x38u, 8)};  // [1, 2)
    default:
      return {};  // any code is a number
  }
}

constexpr CodeMask kE4m3Scales{0x0707070707070707u, 0x3838383838383838u};  // [1, 2)
constexpr CodeMask kE4m3One{0, 0x3838383838383838u};

uint64_t word_of(uint64_t stream, uint64_t index, CodeMask mask) {
  return (mix(stream ^ mix(index)) & mask.random) | mask.fixed;
}

// The words of a part of the store from `first` on. In super-tiles the last eight words are scales.
struct Words {
  uint64_t stream = 0;
  CodeMask codes = {};
  uint64_t tile_words = 0;  // of a super-tile, where there are any
  CodeMask scales = {};

  void fill(std::span<std::byte> out, uint64_t first) const {
    constexpr uint64_t kScaleWords = 8;
    uint64_t in_tile = tile_words > 0 ? first % tile_words : 0;
    for (size_t i = 0; i < out.size(); i += 8) {
      const bool is_code = tile_words == 0 || in_tile < tile_words - kScaleWords;
      const uint64_t word = word_of(stream, first + i / 8, is_code ? codes : scales);
      std::memcpy(out.data() + i, &word, std::min<size_t>(8, out.size() - i));
      if (tile_words > 0 && ++in_tile == tile_words) in_tile = 0;
    }
  }
};

// ---- jobs

// Words for a part of the store. Sinks that repeat get a prime number of units, which no row or
// expert is a multiple of, so that they differ.
FillJob words_job(int64_t offset, int64_t bytes, const Words& words) {
  constexpr int64_t kUnit = 1 << 16;
  constexpr int64_t kPeriodUnits = 509;
  FillJob job;
  job.units = ceil_div(bytes, kUnit);
  job.parts = {{offset, kUnit, bytes}};
  job.period = words.tile_words > 0 ? 0 : kPeriodUnits * kUnit;
  job.fill = [words](const FillCall& call) -> Status {
    words.fill(call.parts[0], static_cast<uint64_t>(call.begin * kUnit / 8));
    return {};
  };
  return job;
}

int64_t columns_per_tile(Format format) {
  if (rows16_has_global(format)) return kSuperTileK;
  return format == Format::kBf16 ? 2 : 128;
}

// Tiles that are not full: rows and columns past the end must be zero, so each group is drawn as
// rows and packed.
void draw_padded_group(const WeightItem& item,
                       uint64_t stream,
                       int64_t group,
                       const Rows16Matrix& out) {
  const float rms = rms_of(item);
  const int64_t rows = out.n;
  std::vector<std::byte> values(static_cast<size_t>(value_bytes_for(item.format, rows, item.k)));
  Words{.stream = stream, .codes = code_mask(item.format, rms)}.fill(
      values,
      static_cast<uint64_t>(group * ceil_div<int64_t>(static_cast<int64_t>(values.size()), 8)));
  const int64_t num_scales = scale_count_for(item.format, rows, item.k);
  const Format scale_format = format_info(item.format).scale;
  std::vector<std::byte> scales(static_cast<size_t>(num_scales * 4), std::byte{0x38});
  if (scale_format == Format::kF32) {
    const float scale = rms / kRmsOfMantissa;
    for (int64_t i = 0; i < num_scales; ++i)
      std::memcpy(scales.data() + i * 4, &scale, 4);
  } else if (scale_format == Format::kUe8m0) {
    std::fill(scales.begin(), scales.end(), static_cast<std::byte>(127 + scale_exponent(item)));
  }
  const RowMajorMatrix src{.format = item.format,
                           .n = rows,
                           .k = item.k,
                           .values = values.data(),
                           .scales = scales.data(),
                           .global = item.format == Format::kNvfp4 ? rms / kRmsOfE2m1 : 1.0f};
  pack_rows16(src, out, 0, 1);
}

FillJob padded_job(const WeightItem& item, uint64_t stream) {
  FillJob job;
  job.units = item.groups();
  job.parts = tiled_parts(item);
  job.fill = [&item, stream](const FillCall& call) -> Status {
    for (int64_t group = call.begin; group < call.end; ++group) {
      const int64_t row = group % item.groups_per_matrix() * kTileRows;
      draw_padded_group(item, stream, group,
                        tiles_of(item, call, group, std::min(kTileRows, item.n - row)));
    }
    return {};
  };
  return job;
}

uint64_t words_per_super_tile(Format format) {
  if (rows16_has_global(format)) return kSuperTileBytes / 8;
  return format == Format::kMxfp8 ? kMxfp8TileBytes / 8 : 0;
}

// What the scales in super-tiles are filled with.
CodeMask scales_in_tiles(const WeightItem& item) {
  if (item.format == Format::kMxfp8)
    return constant(static_cast<uint8_t>(127 + scale_exponent(item)));
  return item.format == Format::kNvfp4 ? kE4m3Scales : kE4m3One;
}

// What scales of row-major codes are filled with, in their own type.
CodeMask scale_mask(const WeightItem& item) {
  const float scale = rms_of(item) / rms_of_codes(item.format);
  switch (item.scale_type()) {
    case Format::kE4m3:
      return kE4m3Scales;
    case Format::kUe8m0:
      return constant(static_cast<uint8_t>(127 + scale_exponent(item)));
    case Format::kF16:
      return constant(f16_from_float(scale));
    case Format::kI8:
      return constant(int8_t{16});
    default:
      return constant(item.in_tiles() ? rms_of(item) / kRmsOfMantissa : scale);
  }
}

// Zero points in the middle of the codes.
CodeMask zeros_mask(const WeightItem& item) {
  if (item.format == Format::kW4a8Group) return constant(int8_t{-120});
  return constant(f16_from_float(7.5f * (rms_of(item) / rms_of_codes(item.format))));
}

// Different numbers in each row, in a random rotation.
FillJob index_job(const WeightItem& item, uint64_t stream) {
  const int64_t bytes = item.k * element_bytes(item.format);
  FillJob job{.units = item.n, .parts = {{item.values_offset, bytes, item.n * bytes}}};
  job.fill = [stream, format = item.format, k = item.k,
              limit = item.index_limit](const FillCall& call) -> Status {
    std::byte* out = call.parts[0].data();
    for (int64_t row = call.begin; row < call.end; ++row) {
      const auto first = static_cast<int64_t>(mix(stream + static_cast<uint64_t>(row)) >> 33);
      for (int64_t j = 0; j < k; ++j, out += element_bytes(format)) {
        const int64_t value = (first + j) % limit;
        const auto narrow = static_cast<int32_t>(value);
        if (format == Format::kI64) {
          std::memcpy(out, &value, sizeof value);
        } else {
          std::memcpy(out, &narrow, sizeof narrow);
        }
      }
    }
    return {};
  };
  return job;
}

std::vector<FillJob> jobs_of(const WeightItem& item, uint64_t stream) {
  std::vector<FillJob> jobs;
  const auto add = [&](int64_t offset, int64_t count, Format type, const Words& words) {
    if (offset >= 0) jobs.push_back(words_job(offset, count * element_bytes(type), words));
  };
  if (item.index_limit > 0) {
    jobs.push_back(index_job(item, stream));
    return jobs;
  }
  if (item.kind == WeightItem::Kind::kVector) {
    const CodeMask one =
        item.format == Format::kF32 ? constant(1.0f) : constant(bf16_from_float(1.0f));
    const bool bias = is_kept_in_f32(item.role);
    add(item.values_offset, item.k, item.format, {.codes = bias ? kZeros : one});
    return jobs;
  }
  add(item.input_scale_offset, item.num_input_floats(), Format::kF32, {.codes = constant(1.0f)});
  const float rms = rms_of(item);
  const bool tiles = item.in_tiles();
  if (tiles && (item.n % kTileRows != 0 || item.k % columns_per_tile(item.format) != 0)) {
    jobs.push_back(padded_job(item, stream));
    return jobs;
  }
  add(item.values_offset, item.value_bytes(), Format::kU8,
      {.stream = stream,
       .codes = code_mask(item.format, rms),
       .tile_words = tiles ? words_per_super_tile(item.format) : 0,
       .scales = scales_in_tiles(item)});
  add(item.scales_offset, item.num_scales(), item.scale_type(),
      {.stream = mix(~stream), .codes = scale_mask(item)});
  // Scales of blocks are drawn from [1, 2), or are 1.
  add(item.global_offset, item.num_globals(), Format::kF32,
      {.codes = constant(item.format == Format::kNvfp4 ? rms / (kRmsOfE2m1 * kRmsOfMantissa)
                                                       : std::ldexp(1.0f, scale_exponent(item)))});
  if (item.zeros_offset >= 0) {
    const FormatInfo& info = format_info(item.format);
    add(item.zeros_offset, item.num_scales(), info.zero, {.codes = zeros_mask(item)});
    add(item.row_scales_offset, item.n, info.row_scale,
        {.codes = constant(f16_from_float(rms / rms_of_codes(item.format)))});
  }
  return jobs;
}

}  // namespace

JobSource random_source(const WeightPlan& plan, uint64_t seed) {
  return [&plan, seed](const WeightItem& item, size_t index) -> Result<std::vector<FillJob>> {
    const auto rank = static_cast<uint64_t>(item.shared ? plan.placement().shard.rank : 0);
    // Rank 0 draws what the whole model draws at that place.
    return jobs_of(item, mix(seed ^ mix(index)) ^ (rank == 0 ? 0 : mix(~rank)));
  };
}

}  // namespace fathom
