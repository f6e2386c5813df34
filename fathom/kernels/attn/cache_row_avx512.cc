#include "fathom/formats/minifloat.h"
#include "fathom/kernels/attn/cache_row.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {
namespace {

constexpr float kSmallestNormal = 0x1p-126f;

/// As ue8m0_round_up of a number that is not NaN.
uint32_t power_of_two_byte(float scale) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, scale) & 0x7FFFFFFFu;
  const uint32_t byte = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return byte < 1 ? 1 : byte > 254 ? 254 : byte;
}

/// The largest magnitude of n values rounded to bf16; NaN is left out.
float rounded_amax(const float* x, int64_t n) {
  __m512 largest = _mm512_setzero_ps();
  for_lanes(n, [&](int64_t i, __mmask16 mask) {
    // Of two operands one of which is NaN, the processor takes the second.
    largest = _mm512_max_ps(_mm512_abs_ps(load16(x + i, mask)), largest);
  });
  const __m512 amax = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
  return _mm512_cvtss_f32(rounded_to<Bf16>(amax));  // rounding keeps the order
}

/// The scale of e4m3 codes and, of a power of two, its byte.
struct Fp8Scale {
  float value;
  uint32_t byte;
};

Fp8Scale fp8_scale_of(float amax, CacheScale rule) {
  if (rule == CacheScale::kAmax) {
    const float scale = amax / 448.0f;
    return {scale > kSmallestNormal ? scale : kSmallestNormal, 0};
  }
  const uint32_t byte = power_of_two_byte((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
  return {__builtin_bit_cast(float, byte << 23), byte};
}

void store_fp8(const CodedRows& rows, int64_t slot, const float* x) {
  E4m3* codes = slot_data<E4m3>(rows.fields.values, slot);
  const View& scales = rows.fields.scales;
  const int64_t num_groups = rows.num_values / rows.group;
  for (int64_t g = 0; g < num_groups; ++g) {
    const float* values = x + g * rows.group;
    E4m3* out = codes + g * rows.group;
    const Fp8Scale scale = fp8_scale_of(rounded_amax(values, rows.group), rows.scale);
    // The quotient by a power of two is the product with its inverse, which is exact.
    const __m512 inverse = _mm512_set1_ps(1.0f / scale.value);
    const __m512 divisor = _mm512_set1_ps(scale.value);
    const bool divides = rows.scale == CacheScale::kAmax;
    for_lanes(rows.group, [&](int64_t i, __mmask16 mask) {
      const __m512 v = rounded_to<Bf16>(load16(values + i, mask));
      store16(out + i, mask, divides ? _mm512_div_ps(v, divisor) : _mm512_mul_ps(v, inverse));
    });
    if (scales.format == Format::kF32) {
      slot_data<float>(scales, slot)[g] = scale.value;
    } else {
      slot_data<uint8_t>(scales, slot)[g] = static_cast<uint8_t>(scale.byte);
    }
  }
}

/// E2M1 codes in the low bits of the lanes, as e2m1_from_float. Each comparison is a boundary
/// between two codes; those that a tie does not pass lead to the even one below.
__m512i e2m1_codes(__m512 v) {
  const __m512 a = _mm512_abs_ps(v);
  const __m512i one = _mm512_set1_epi32(1);
  __m512i code = _mm512_setzero_si512();
  const auto above = [&](float bound) {
    const __mmask16 passed = _mm512_cmp_ps_mask(a, _mm512_set1_ps(bound), _CMP_NLE_UQ);
    code = _mm512_mask_add_epi32(code, passed, code, one);
  };
  const auto from = [&](float bound) {
    const __mmask16 passed = _mm512_cmp_ps_mask(a, _mm512_set1_ps(bound), _CMP_NLT_UQ);
    code = _mm512_mask_add_epi32(code, passed, code, one);
  };
  above(0.25f);
  from(0.75f);
  above(1.25f);
  from(1.75f);
  above(2.5f);
  from(3.5f);
  above(5.0f);  // NaN passes all: 7, without its sign
  const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
  const __m512i sign = _mm512_maskz_srli_epi32(number, _mm512_castps_si512(v), 28);
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi32(8), kOrAnd);
}

/// Sixteen codes to eight bytes, the even one in the low nibble.
void store_packed(uint8_t* out, __m512i codes) {
  // Lane pairs as 64-bit elements: even + 16 * odd in the low byte.
  const __m512i odd = _mm512_srli_epi64(codes, 28);
  const __m128i bytes = _mm512_cvtepi64_epi8(_mm512_or_si512(codes, odd));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), bytes);
}

/// The value of the E4M3 code in the low byte, 0 .. 0x7E.
float e4m3_value(uint32_t code) {
  if (code < 8) return static_cast<float>(code) * 0x1p-9f;
  return __builtin_bit_cast(float, (code << 20) + ((127u - 7u) << 23));
}

void store_nvfp4(const CodedRows& rows, int64_t slot, const float* x) {
  uint8_t* out = slot_data<uint8_t>(rows.fields.values, slot);
  uint8_t* scales = slot_data<uint8_t>(rows.fields.scales, slot);
  for (int64_t i = 0; i < rows.num_values; i += 16) {
    const float raw = rounded_amax(x + i, 16) * (1.0f / 6.0f);
    const auto code = static_cast<uint32_t>(
        _mm_cvtsi128_si32(_mm512_castsi512_si128(e4m3_codes(_mm512_set1_ps(raw)))));
    const float factor = code == 0 ? 0.0f : 1.0f / e4m3_value(code);
    const __m512 v = rounded_to<Bf16>(load16(x + i, 0xFFFF));
    store_packed(out + i / 2, e2m1_codes(_mm512_mul_ps(v, _mm512_set1_ps(factor))));
    scales[i / 16] = static_cast<uint8_t>(code);
  }
}

void store_mxfp4(const CodedRows& rows, int64_t slot, const float* x) {
  uint8_t* out = slot_data<uint8_t>(rows.fields.values, slot);
  uint8_t* scales = slot_data<uint8_t>(rows.fields.scales, slot);
  for (int64_t g = 0; g < rows.num_values / 32; ++g) {
    const uint32_t byte = power_of_two_byte(rounded_amax(x + g * 32, 32) / 6.0f);
    const __m512 scale = _mm512_set1_ps(__builtin_bit_cast(float, byte << 23));
    for (int64_t i = g * 32; i < g * 32 + 32; i += 16) {
      const __m512 v = rounded_to<Bf16>(load16(x + i, 0xFFFF));
      store_packed(out + i / 2, e2m1_codes(_mm512_div_ps(v, scale)));
    }
    scales[g] = static_cast<uint8_t>(byte);
  }
}

template <class T>
void store_values(const float* x, int64_t count, T* out) {
  for_lanes(count, [&](int64_t i, __mmask16 mask) { store16(out + i, mask, load16(x + i, mask)); });
}

// ---- reading ----

template <class T>
void load_values(const T* values, int64_t count, float* x) {
  for_lanes(count,
            [&](int64_t i, __mmask16 mask) { store16(x + i, mask, load16(values + i, mask)); });
}

/// The values of e4m3 codes in the low bytes of the lanes.
__m512 e4m3_values(__m512i codes) {
  const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7F));
  const __m512i normal =
      _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32((127 - 7) << 23));
  const __m512 subnormal = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f));
  const __mmask16 is_subnormal = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
  const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F));
  __m512i bits =
      _mm512_castps_si512(_mm512_mask_mov_ps(_mm512_castsi512_ps(normal), is_subnormal, subnormal));
  bits = _mm512_mask_mov_epi32(bits, is_nan, _mm512_set1_epi32(0x7FC00000));
  const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(codes, 7), 31);
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}

/// As to_float(Ue8m0).
float ue8m0_value(uint8_t byte) {
  if (byte == 0) return 0x1p-127f;
  if (byte == 255) return __builtin_nanf("");
  return __builtin_bit_cast(float, uint32_t{byte} << 23);
}

void load_fp8(const CodedRows& rows, int64_t slot, float* x) {
  const uint8_t* codes = slot_data<const uint8_t>(rows.fields.values, slot);
  const View& scales = rows.fields.scales;
  for (int64_t g = 0; g < rows.num_values / rows.group; ++g) {
    const float value = scales.format == Format::kF32
                            ? slot_data<const float>(scales, slot)[g]
                            : ue8m0_value(slot_data<const uint8_t>(scales, slot)[g]);
    const __m512 scale = _mm512_set1_ps(value);
    for_lanes(rows.group, [&](int64_t i, __mmask16 mask) {
      const int64_t at = g * rows.group + i;
      const __m512i c = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, codes + at));
      store16(x + at, mask, _mm512_mul_ps(e4m3_values(c), scale));
    });
  }
}

void load_fp4(const CodedRows& rows, int64_t slot, float* x) {
  const uint8_t* packed = slot_data<const uint8_t>(rows.fields.values, slot);
  const uint8_t* scales = slot_data<const uint8_t>(rows.fields.scales, slot);
  const __m512 values =
      _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
  for (int64_t i = 0; i < rows.num_values; i += 16) {
    const uint8_t byte = scales[i / rows.group];
    const __m512 scale = rows.format == CacheRowFormat::kMxfp4
                             ? _mm512_set1_ps(ue8m0_value(byte))
                             : e4m3_values(_mm512_set1_epi32(byte));
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed + i / 2));
    const __m512i pairs = _mm512_cvtepu8_epi64(bytes);
    const __m512i codes = _mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28));
    // The permutation looks at the low four bits of an index.
    store16(x + i, 0xFFFF, _mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scale));
  }
}

}  // namespace

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
      store_nvfp4(rows, slot, x);
      break;
    case CacheRowFormat::kMxfp4:
      store_mxfp4(rows, slot, x);
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

}  // namespace fathom::avx512
