#include "fathom/kernels/quant/amax_avx512.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope_rows.h"
#include "fathom/kernels/rope/inverse_rope/turn_back.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {
namespace {

/// Memory bounds this loop: two lines of every eight that a head of DeepSeek-V4 has in bf16.
template <class A>
void rotate_tokens(const InverseRope::Args& a, float* back, int64_t begin, int64_t end) {
  const int64_t R = a.table.dim(1);
  const int64_t ahead = rows_ahead(R * static_cast<int64_t>(sizeof(A)));
  for (int64_t t = begin; t < end; ++t) {
    turn_back(a.table.row<float>(a.positions.as<int32_t>()[t]), R, back);
    A* pe = a.o.row<A>(t) + a.o.dim(2) - R;
    const int64_t H = a.o.dim(1);
    for (int64_t h = 0; h < H; ++h) {
      const A* next = pe + (h + ahead < H ? h + ahead : h) * a.o.stride(1);
      for (int64_t i = 0; i < R; i += 64 / static_cast<int64_t>(sizeof(A)))
        prefetch_to_write(next + i);
      A* head = pe + h * a.o.stride(1);
      rotate_head(head, head, back, R, RopeStyle::kInterleaved);
    }
  }
}

/// The byte of the power of two that is the scale of a group: as ue8m0_round_up.
uint32_t scale_byte(float amax) {
  const float scale = (amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f);
  const uint32_t bits = __builtin_bit_cast(uint32_t, scale);
  const uint32_t byte = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return byte > 254 ? 254 : byte;
}

void store_scale(float* s, uint32_t byte) {
  *s = __builtin_bit_cast(float, byte << 23);
}

void store_scale(uint8_t* s, uint32_t byte) {
  *s = static_cast<uint8_t>(byte);
}

/// x: 128 values of float or of the activation's format.
template <class X, class S>
void quantise_group(const X* x, E4m3* codes, S* s) {
  const uint32_t byte = scale_byte(amax(x, kRopeQuantGroup));
  // The inverse of a power of two is exact, and so is the product with it.
  const __m512 inverse = _mm512_set1_ps(1.0f / __builtin_bit_cast(float, byte << 23));
  for (int64_t i = 0; i < kRopeQuantGroup; i += kLanes)
    store16(codes + i, 0xFFFF, _mm512_mul_ps(load16(x + i, 0xFFFF), inverse));
  store_scale(s, byte);
}

/// Groups without a rotated channel are quantised where they are, the others by way of `row`.
/// Conversion to e4m3 bounds this loop in a core, memory where many run.
template <class A, class S>
void quantise_tokens(const InverseRopeQuant::Args& a, float* room, int64_t begin, int64_t end) {
  const int64_t R = a.table.dim(1);
  const int64_t D = a.o.dim(2);
  const int64_t plain = (D - R) / kRopeQuantGroup * kRopeQuantGroup;
  float* row = room + whole_lines(R);
  for (int64_t t = begin; t < end; ++t) {
    turn_back(a.table.row<float>(a.positions.as<int32_t>()[t]), R, room);
    for (int64_t h = 0; h < a.o.dim(1); ++h) {
      const A* o = a.o.row<A>(t) + h * a.o.stride(1);
      const HeadPlace place = place_of_head(a, t, h);
      E4m3* codes = a.y.as<E4m3>() + place.code;
      S* scales = a.s.as<S>() + place.scale;
      for (int64_t i = plain; i < D - R; i += kLanes) {
        const __mmask16 mask = first_lanes(D - R - i);
        store16(row + i, mask, load16(o + i, mask));
      }
      rotate_head(o + D - R, row + D - R, room, R, RopeStyle::kInterleaved);
      for (int64_t i = 0; i < plain; i += kRopeQuantGroup)
        quantise_group(o + i, codes + i, scales + i / kRopeQuantGroup);
      for (int64_t i = plain; i < D; i += kRopeQuantGroup)
        quantise_group(row + i, codes + i, scales + i / kRopeQuantGroup);
    }
  }
}

template <class A>
void quantise_tokens_from(const InverseRopeQuant::Args& a,
                          float* room,
                          int64_t begin,
                          int64_t end) {
  if (a.s.format == Format::kF32) return quantise_tokens<A, float>(a, room, begin, end);
  quantise_tokens<A, uint8_t>(a, room, begin, end);
}

}  // namespace

void inverse_rope_rows(const InverseRope::Args& a, float* room, int64_t begin, int64_t end) {
  if (a.o.format == Format::kBf16) return rotate_tokens<Bf16>(a, room, begin, end);
  rotate_tokens<float>(a, room, begin, end);
}

void inverse_rope_quant_rows(const InverseRopeQuant::Args& a,
                             float* room,
                             int64_t begin,
                             int64_t end) {
  if (a.o.format == Format::kBf16) return quantise_tokens_from<Bf16>(a, room, begin, end);
  quantise_tokens_from<float>(a, room, begin, end);
}

}  // namespace fathom::avx512
