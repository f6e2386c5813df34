#include "fathom/kernels/attn/cache_row.h"

#include <algorithm>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/quant_input.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/core/elements.h"

namespace fathom {
namespace {

bool is_dense(const View& values) {
  return values.format == Format::kBf16 || values.format == Format::kF32;
}

int64_t width_of(const View& field) {
  return field.present() ? field.dim(2) : 0;
}

CacheRowFormat format_of(const CacheFields& f) {
  if (f.values.format == Format::kBf16) return CacheRowFormat::kBf16;
  if (f.values.format == Format::kF32) return CacheRowFormat::kF32;
  if (f.values.format == Format::kE4m3) return CacheRowFormat::kFp8;
  return f.scales.format == Format::kE4m3 ? CacheRowFormat::kNvfp4 : CacheRowFormat::kMxfp4;
}

Status check_scales(const CacheFields& f, const CodedRows& rows) {
  const int64_t found = f.scales.dim(2);
  const bool fp4 = rows.format == CacheRowFormat::kNvfp4 || rows.format == CacheRowFormat::kMxfp4;
  const int64_t block = rows.format == CacheRowFormat::kNvfp4 ? kNvfp4Block : kMxfp4Block;
  if (fp4 && found * block != rows.num_values) {
    return invalid_argument(str_cat("scales has ", found, " of ", format_name(f.scales.format),
                                    " but ", rows.num_values, " channels in e2m1 need one per ",
                                    block));
  }
  if (!fp4 && (found < 1 || rows.num_values % found != 0)) {
    return invalid_argument(str_cat("scales has ", found, ", which does not divide the ",
                                    rows.num_values, " channels of values"));
  }
  return {};
}

/// InvalidArgument unless the scales have a format that those values take.
Status check_scale_format(const CacheFields& f, CacheScale scale) {
  const Format found = f.scales.format;
  const bool fp8 = f.values.format == Format::kE4m3;
  if (found != Format::kUe8m0 && found != (fp8 ? Format::kF32 : Format::kE4m3)) {
    return invalid_argument(str_cat("scales is ", format_name(found), " but values is ",
                                    format_name(f.values.format), ", expected ue8m0 or ",
                                    fp8 ? "f32" : "e4m3"));
  }
  if (scale == CacheScale::kAmax && found != Format::kF32) {
    return invalid_argument(
        str_cat("scales is ", format_name(found), " but only f32 holds amax / 448"));
  }
  return {};
}

/// x rounded to bf16, `count` at a time in memory of its own.
constexpr int64_t kPiece = 512;

void round_piece(const float* x, int64_t count, float* rounded) {
  for (int64_t i = 0; i < count; ++i)
    rounded[i] = to_float(bf16_from_float(x[i]));
}

/// The largest magnitude of `count` values rounded to bf16, NaN left out.
float rounded_amax(const float* x, int64_t count) {
  return to_float(bf16_from_float(amax_of(x, count)));  // rounding keeps the order
}

void store_fp8(const CodedRows& rows, int64_t slot, const float* x) {
  E4m3* codes = slot_data<E4m3>(rows.fields.values, slot);
  for (int64_t g = 0; g < rows.num_values / rows.group; ++g) {
    const float* values = x + g * rows.group;
    const float amax = rounded_amax(values, rows.group);
    const float scale = rows.scale == CacheScale::kAmax ? ds_mla_scale(amax, DsMlaScale::kAmax)
                                                        : fp8_scale(amax, kFp8V32DemoUe8m0);
    for (int64_t i = 0; i < rows.group; ++i) {
      codes[g * rows.group + i] = e4m3_from_float(to_float(bf16_from_float(values[i])) / scale);
    }
    if (rows.fields.scales.format == Format::kF32) {
      slot_data<float>(rows.fields.scales, slot)[g] = scale;
    } else {
      slot_data<Ue8m0>(rows.fields.scales, slot)[g] = ue8m0_round_up(scale);
    }
  }
}

void store_fp4(const CodedRows& rows, int64_t slot, const float* x) {
  uint8_t* codes = slot_data<uint8_t>(rows.fields.values, slot);
  float rounded[kPiece];
  for (int64_t i = 0; i < rows.num_values; i += kPiece) {
    const int64_t count = std::min(kPiece, rows.num_values - i);
    round_piece(x + i, count, rounded);
    if (rows.format == CacheRowFormat::kNvfp4) {
      E4m3* scales = slot_data<E4m3>(rows.fields.scales, slot) + i / kNvfp4Block;
      nvfp4_quantize_activations(rounded, 1, count, 1.0f, codes + i / 2, scales);
    } else {
      Ue8m0* scales = slot_data<Ue8m0>(rows.fields.scales, slot) + i / kMxfp4Block;
      mxfp4_quantize(rounded, 1, count, Mxfp4Rule::kCeil, codes + i / 2, scales);
    }
  }
}

void load_fp8(const CodedRows& rows, int64_t slot, float* x) {
  const E4m3* codes = slot_data<const E4m3>(rows.fields.values, slot);
  const View& scales = rows.fields.scales;
  if (scales.format == Format::kF32) {
    fp8_dequantize_groups(codes, slot_data<const float>(scales, slot), 1, rows.num_values,
                          rows.group, x);
  } else {
    fp8_dequantize_groups(codes, slot_data<const Ue8m0>(scales, slot), 1, rows.num_values,
                          rows.group, x);
  }
}

void load_fp4(const CodedRows& rows, int64_t slot, float* x) {
  const uint8_t* codes = slot_data<const uint8_t>(rows.fields.values, slot);
  const View& scales = rows.fields.scales;
  if (rows.format == CacheRowFormat::kNvfp4) {
    nvfp4_dequantize(codes, slot_data<const E4m3>(scales, slot), 1.0f, 1, rows.num_values, x);
  } else {
    mxfp4_dequantize(codes, slot_data<const Ue8m0>(scales, slot), 1, rows.num_values, x);
  }
}

template <class T>
void store_values(const float* x, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = from_float<T>(x[i]);
}

template <class T>
void load_values(const T* values, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i)
    x[i] = to_float(values[i]);
}

}  // namespace

Status check_cache_row(const CacheFields& f, int64_t channels, CacheScale scale) {
  const bool dense = is_dense(f.values);
  if (dense && (f.rope.present() || f.scales.present())) {
    return invalid_argument(str_cat("values is ", format_name(f.values.format),
                                    ", which takes neither rope nor scales"));
  }
  if (!dense && !f.scales.present()) {
    return invalid_argument(
        str_cat("values is ", format_name(f.values.format), " but scales is left out"));
  }
  if (!dense) FATHOM_TRY(check_scale_format(f, scale));
  const int64_t per_element = f.values.format == Format::kU8 ? 2 : 1;
  const int64_t found = width_of(f.values) * per_element + width_of(f.rope);
  if (found != channels) {
    return invalid_argument(
        str_cat("the fields of a row have ", found, " channels, expected ", channels));
  }
  return dense ? Status{} : check_scales(f, cache_rows(f, scale));
}

Status check_row_slots(std::string_view name, const View& slots, const View& field) {
  if (!slots.readable()) return {};
  const int64_t num_slots = field.dim(0) * field.dim(1);
  for (int64_t i = 0; i < slots.dim(0); ++i) {
    const int64_t slot = slots.as<int64_t>()[i];
    if (slot >= -1 && slot < num_slots) continue;
    return invalid_argument(
        str_cat(name, "[", i, "] is ", slot, " but there are slots 0..", num_slots - 1));
  }
  return {};
}

int64_t cache_row_bytes(const CacheFields& f) {
  int64_t bytes = 0;
  for (const View* field : {&f.values, &f.rope, &f.scales})
    bytes += field->present() ? field->dim(2) * element_bytes(field->format) : 0;
  return bytes;
}

CodedRows cache_rows(const CacheFields& f, CacheScale scale) {
  CodedRows rows{.fields = f, .scale = scale, .format = format_of(f)};
  rows.num_values = width_of(f.values) * (f.values.format == Format::kU8 ? 2 : 1);
  rows.num_rope = width_of(f.rope);
  const int64_t num_scales = width_of(f.scales);
  rows.group = num_scales == 0 ? 0 : rows.num_values / num_scales;
  return rows;
}

void store_cache_row(const CodedRows& rows, int64_t slot, const float* x) {
  const View& values = rows.fields.values;
  switch (rows.format) {
    case CacheRowFormat::kBf16:
      return store_values(x, rows.num_values, slot_data<Bf16>(values, slot));
    case CacheRowFormat::kF32:
      return store_values(x, rows.num_values, slot_data<float>(values, slot));
    case CacheRowFormat::kFp8:
      store_fp8(rows, slot, x);
      break;
    case CacheRowFormat::kNvfp4:
    case CacheRowFormat::kMxfp4:
      store_fp4(rows, slot, x);
      break;
  }
  if (rows.num_rope == 0) return;
  store_values(x + rows.num_values, rows.num_rope, slot_data<Bf16>(rows.fields.rope, slot));
}

void load_cache_row(const CodedRows& rows, int64_t slot, float* x) {
  const View& values = rows.fields.values;
  switch (rows.format) {
    case CacheRowFormat::kBf16:
      return load_values(slot_data<const Bf16>(values, slot), rows.num_values, x);
    case CacheRowFormat::kF32:
      return load_values(slot_data<const float>(values, slot), rows.num_values, x);
    case CacheRowFormat::kFp8:
      load_fp8(rows, slot, x);
      break;
    case CacheRowFormat::kNvfp4:
    case CacheRowFormat::kMxfp4:
      load_fp4(rows, slot, x);
      break;
  }
  if (rows.num_rope == 0) return;
  load_values(slot_data<const Bf16>(rows.fields.rope, slot), rows.num_rope, x + rows.num_values);
}

}  // namespace fathom
