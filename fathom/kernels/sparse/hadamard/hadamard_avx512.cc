#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/sparse/hadamard/hadamard_rows.h"

namespace fathom::avx512 {
namespace {

/// Strides below 16 pair lanes of one register: the lower lane becomes a + b, the upper a - b, as
/// the partner's value plus or minus its own. Multiplying by a sign rounds nothing.
struct LaneStages {
  __m512 sign1 = signs(0xAAAA);
  __m512 sign2 = signs(0xCCCC);
  __m512 sign4 = signs(0xF0F0);
  __m512 sign8 = signs(0xFF00);

  static __m512 signs(__mmask16 negative) {
    return _mm512_mask_blend_ps(negative, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
  }

  __m512 apply(__m512 v) const {
    v = _mm512_fmadd_ps(v, sign1, _mm512_permute_ps(v, 0xB1));
    v = _mm512_fmadd_ps(v, sign2, _mm512_permute_ps(v, 0x4E));
    v = _mm512_fmadd_ps(v, sign4, _mm512_shuffle_f32x4(v, v, 0xB1));
    return _mm512_fmadd_ps(v, sign8, _mm512_shuffle_f32x4(v, v, 0x4E));
  }
};

void butterfly(__m512& a, __m512& b) {
  const __m512 sum = _mm512_add_ps(a, b);
  b = _mm512_sub_ps(a, b);
  a = sum;
}

/// All stages of 16 * kRegs values in registers; lanes outside their mask are zeros.
template <int kRegs, class T>
void load_and_transform(const T* x, const __mmask16* masks, const LaneStages& lanes, __m512* v) {
#pragma GCC unroll 16
  for (int r = 0; r < kRegs; ++r)
    v[r] = lanes.apply(load16(x + r * kLanes, masks[r]));
#pragma GCC unroll 4
  for (int stride = 1; stride < kRegs; stride *= 2) {
#pragma GCC unroll 16
    for (int r = 0; r < kRegs; ++r) {
      if ((r & stride) == 0) butterfly(v[r], v[r + stride]);
    }
  }
}

/// Which lanes of each register lie within `count` values.
template <int kRegs>
void find_masks(int64_t count, __mmask16* masks) {
  for (int r = 0; r < kRegs; ++r)
    masks[r] = first_lanes(count - r * kLanes);
}

/// Scales and stores the registers of one row.
template <int kRegs, class T>
void store_row(T* y, const __mmask16* masks, __m512 scale, __m512* v) {
#pragma GCC unroll 16
  for (int r = 0; r < kRegs; ++r)
    store16(y + r * kLanes, masks[r], _mm512_mul_ps(v[r], scale));
}

/// Whole rows of bf16, 32 values a store. vcvtne2ps2bf16 rounds as store16 does but for subnormal
/// values, which it takes for zeros.
template <int kRegs>
void store_row(Bf16* y, const __mmask16* masks, __m512 scale, __m512* v) {
  constexpr int kSubnormal = 0x20;  // vfpclassps
  unsigned special = static_cast<unsigned>(masks[kRegs - 1]) ^ 0xFFFFu;
#pragma GCC unroll 16
  for (int r = 0; r < kRegs; ++r) {
    v[r] = _mm512_mul_ps(v[r], scale);
    special |= _mm512_fpclass_ps_mask(v[r], kSubnormal);
  }
  if (kRegs == 1 || special != 0) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return store_row<kRegs, Bf16>(y, masks, one, v);
  }
#pragma GCC unroll 8
  for (int r = 0; r + 1 < kRegs; r += 2) {
    const __m512bh pair = _mm512_cvtne2ps_pbh(v[r + 1], v[r]);
    __builtin_memcpy(y + r * kLanes, &pair, sizeof(pair));
  }
}

/// Rows that fit into registers: padded width 16 * kRegs.
template <int kRegs, class T>
void short_rows(const HadamardRows<T>& rows) {
  const LaneStages lanes;
  const __m512 scale = _mm512_set1_ps(rows.scale);
  __mmask16 masks[kRegs];
  find_masks<kRegs>(rows.width, masks);
  for (int64_t n = 0; n < rows.count; ++n) {
    __m512 v[kRegs];
    load_and_transform<kRegs>(rows.x + n * rows.x_stride, masks, lanes, v);
    store_row<kRegs>(rows.y + n * rows.y_stride, masks, scale, v);
  }
}

constexpr int kBlockRegs = 16;
constexpr int64_t kBlock = kBlockRegs * kLanes;

/// The stages of strides `stride` and 2 * stride in one pass over memory.
void two_stages(float* v, int64_t padded, int64_t stride) {
  for (int64_t begin = 0; begin < padded; begin += 4 * stride) {
    for (int64_t i = begin; i < begin + stride; i += kLanes) {
      __m512 part[4];
      for (int p = 0; p < 4; ++p)
        part[p] = _mm512_load_ps(v + i + p * stride);
      butterfly(part[0], part[1]);
      butterfly(part[2], part[3]);
      butterfly(part[0], part[2]);
      butterfly(part[1], part[3]);
      for (int p = 0; p < 4; ++p)
        _mm512_store_ps(v + i + p * stride, part[p]);
    }
  }
}

void one_stage(float* v, int64_t padded, int64_t stride) {
  for (int64_t begin = 0; begin < padded; begin += 2 * stride) {
    for (int64_t i = begin; i < begin + stride; i += kLanes) {
      __m512 a = _mm512_load_ps(v + i);
      __m512 b = _mm512_load_ps(v + i + stride);
      butterfly(a, b);
      _mm512_store_ps(v + i, a);
      _mm512_store_ps(v + i + stride, b);
    }
  }
}

/// Rows above one block: blocks in registers, the strides across blocks in the room of the thread.
template <class T>
void long_rows(const HadamardRows<T>& rows) {
  const LaneStages lanes;
  const __m512 scale = _mm512_set1_ps(rows.scale);
  const int64_t padded = hadamard_width(rows.width);
  float* room = rows.room;
  for (int64_t n = 0; n < rows.count; ++n) {
    const T* x = rows.x + n * rows.x_stride;
    for (int64_t begin = 0; begin < padded; begin += kBlock) {
      __m512 v[kBlockRegs];
      __mmask16 masks[kBlockRegs];
      find_masks<kBlockRegs>(rows.width - begin, masks);
      load_and_transform<kBlockRegs>(x + begin, masks, lanes, v);
#pragma GCC unroll 16
      for (int r = 0; r < kBlockRegs; ++r)
        _mm512_store_ps(room + begin + r * kLanes, v[r]);
    }
    int64_t stride = kBlock;
    for (; 2 * stride < padded; stride *= 4)
      two_stages(room, padded, stride);
    if (stride < padded) one_stage(room, padded, stride);
    T* y = rows.y + n * rows.y_stride;
    for (int64_t i = 0; i < rows.width; i += kLanes) {
      store16(y + i, first_lanes(rows.width - i), _mm512_mul_ps(_mm512_load_ps(room + i), scale));
    }
  }
}

}  // namespace

template <class T>
void hadamard_rows(const HadamardRows<T>& rows) {
  switch (hadamard_width(rows.width) / kLanes) {
    case 1:
      return short_rows<1>(rows);
    case 2:
      return short_rows<2>(rows);
    case 4:
      return short_rows<4>(rows);
    case 8:
      return short_rows<8>(rows);
    case 16:
      return short_rows<16>(rows);
    default:
      return long_rows(rows);
  }
}

template void hadamard_rows(const HadamardRows<Bf16>& rows);
template void hadamard_rows(const HadamardRows<F16>& rows);
template void hadamard_rows(const HadamardRows<float>& rows);

}  // namespace fathom::avx512
