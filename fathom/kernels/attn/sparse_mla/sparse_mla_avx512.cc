// The vector form: a block of 64 rows is decoded to bf16 once for all heads of the item, packed for
// both products, and met with eight heads at a time (attend_avx512.h).
#include <math.h>

#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"
#include "fathom/kernels/attn/sparse_mla/coded_channels_avx512.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla_plan.h"
#include "fathom/kernels/rope/inverse_rope/turn_back.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"

namespace fathom::avx512 {

static_assert(kBlockKeys == sparse_mla::kRowBlock, "the block size is part of the contract");

namespace {

using sparse_mla::Call;
using sparse_mla::RowList;
using sparse_mla::RowPlace;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Memory of one thread besides that of AttendScratch: a block of decoded rows, the scales of a
/// row, the rotation and the list of a token.
struct DecodedRows {
  int64_t width;       ///< of a row: D up to whole vectors
  int64_t num_scales;  ///< of a row, up to whole vectors and one more
  int64_t turned;      ///< channels, up to whole vectors
  int64_t list_bytes;
  Bf16* rows = nullptr;
  float* scales = nullptr;
  float* back = nullptr;
  int32_t* list = nullptr;

  explicit DecodedRows(const Call& c)
      : width(round_up(c.q.dim(2), 32)),
        num_scales(0),
        turned(round_up(sparse_mla::turned_channels(c), kLanes)),
        list_bytes(round_up(sparse_mla::list_width(c) * 4, 64)) {
    for (int i = 0; i < c.num_sources; ++i) {
      const int64_t scales_of = round_up(sparse_mla::num_scales(c.sources[i]), kLanes);
      num_scales = scales_of > num_scales ? scales_of : num_scales;
    }
  }

  int64_t bytes() const { return kBlockKeys * width * 2 + (num_scales + turned) * 4 + list_bytes; }

  void place(void* memory) {
    rows = static_cast<Bf16*>(memory);
    scales = reinterpret_cast<float*>(rows + kBlockKeys * width);
    back = scales + num_scales;
    list = reinterpret_cast<int32_t*>(back + turned);
  }
};

template <class Scale>
void widen_scales_of(const SparseRows& rows, int64_t slot, float* out) {
  widen_scales(slot_data<const Scale>(rows.scales, slot), rows.scales.dim(2), out);
}

/// The channels of a row of codes, rounded to bf16.
void decode_row(const SparseRows& rows, int64_t slot, float* scales, Bf16* out) {
  switch (rows.scales.format) {
    case Format::kUe8m0:
      widen_scales_of<Ue8m0>(rows, slot, scales);
      break;
    case Format::kE4m3:
      widen_scales_of<E4m3>(rows, slot, scales);
      break;
    default:
      widen_scales_of<float>(rows, slot, scales);
  }
  const int64_t W = sparse_mla::value_channels(rows);
  const int64_t group = W / sparse_mla::num_scales(rows);
  if (rows.values.format == Format::kU8) {
    decode_channels(slot_data<const uint8_t>(rows.values, slot), W, group, scales, out);
  } else {
    decode_channels(slot_data<const E4m3>(rows.values, slot), W, group, scales, out);
  }
  if (!rows.rope.present()) return;
  const Bf16* rope = slot_data<const Bf16>(rows.rope, slot);
  const int64_t R = rows.rope.dim(2);
  for (int64_t d = 0; d < R; d += 32)
    _mm512_mask_storeu_epi16(out + W + d, first_32(R - d), load32(rope + d, R - d));
}

/// Asks for a field of a row, which lies anywhere.
void prefetch_field(const View& field, int64_t slot, int64_t element) {
  if (!field.present()) return;
  const char* at =
      static_cast<const char*>(field.data) +
      (slot / field.dim(1) * field.stride(0) + slot % field.dim(1) * field.stride(1)) * element;
  for (int64_t i = 0; i < field.dim(2) * element; i += 64)
    _mm_prefetch(at + i, _MM_HINT_T1);
}

/// Bytes of an element of a field: of bf16 and f32 fields more than one.
int64_t bytes_of(Format format) {
  return format == Format::kF32 ? 4 : (format == Format::kBf16 ? 2 : 1);
}

/// Rows [begin, begin + count) of the list: dense ones where they are, others decoded.
void find_block(const Call& c,
                const RowList& list,
                const DecodedRows& decoded,
                int64_t begin,
                int64_t count,
                KeyBlock<Bf16>& out) {
  out.count = count;
  for (int64_t j = 0; j < count; ++j) {
    if (begin + j + kBlockKeys < list.count) {
      const RowPlace later = row_place(c, list, begin + j + kBlockKeys);
      for (const View* field : {&later.source->values, &later.source->rope, &later.source->scales})
        prefetch_field(*field, later.slot, bytes_of(field->format));
    }
    const RowPlace place = row_place(c, list, begin + j);
    if (!sparse_mla::is_coded(*place.source)) {
      out.at[j] = slot_data<const Bf16>(place.source->values, place.slot);
      continue;
    }
    Bf16* row = decoded.rows + j * decoded.width;
    decode_row(*place.source, place.slot, decoded.scales, row);
    out.at[j] = row;
  }
}

/// o = factor * sums, of which the last R channels are turned by the row `back`. Adds +0 as
/// store_row() does.
template <class Out>
void store_turned(float* sums, float factor, int64_t L, const float* back, int64_t R, Out* o) {
  store_row(sums, factor, L - R, o);
  float* pe = sums + L - R;
  for (int64_t d = 0; d < R; ++d)
    pe[d] = pe[d] * factor + 0.0f;
  rotate_head(pe, o + L - R, back, R, RopeStyle::kInterleaved);
}

void store_head(
    const Call& c, const AttendScratch& s, const float* back, int64_t i, int64_t t, int64_t n) {
  const float sum = sum_lanes(s.sum + i * kLanes);
  float factor = 0.0f;
  if (sum != 0.0f) {
    const float sink = c.sink.present() ? expf(c.sink.as<const float>()[n] - s.max[i]) : 0.0f;
    factor = 1.0f / (sum + sink);
  }
  float* sums = s.o + i * s.padded_L;
  const int64_t L = c.o.dim(2);
  const int64_t R = sparse_mla::turned_channels(c);
  if (c.o.format == Format::kBf16) {
    store_turned(sums, factor, L, back, R, c.o.row<Bf16>(t) + n * c.o.stride(1));
  } else {
    store_turned(sums, factor, L, back, R, c.o.row<float>(t) + n * c.o.stride(1));
  }
  if (c.max.present()) c.max.row<float>(t)[n] = s.max[i] * c.lse_factor;
  if (c.lse.present()) {
    const float lse = sum == 0.0f ? -__builtin_inff() : s.max[i] + logf(sum);
    c.lse.row<float>(t)[n] = lse * c.lse_factor;
  }
}

}  // namespace

int64_t sparse_mla_scratch(const Call& c, int64_t heads) {
  const AttendScratch s(heads, c.q.dim(2), c.o.dim(2));
  return round_up(s.bytes(), 64) + DecodedRows(c).bytes();
}

void sparse_mla_heads(const Call& c, int64_t t, int64_t head, int64_t count, void* scratch) {
  AttendScratch s(count, c.q.dim(2), c.o.dim(2));
  s.place(scratch);
  DecodedRows decoded(c);
  decoded.place(static_cast<char*>(scratch) + round_up(s.bytes(), 64));
  const RowList list = list_rows(c, t, decoded.list);
  reset_rows(s, count);
  for (int64_t i = 0; i < count; ++i) {
    load_query(s, i, c.q.row<const Bf16>(t) + (head + i) * c.q.stride(1), 0, c.q.dim(2));
    s.seen[i] = static_cast<int32_t>(list.count);
  }
  KeyBlock<Bf16> none;  // find_block asks for what comes next
  for (int64_t begin = 0; begin < list.count; begin += kBlockKeys) {
    KeyBlock<Bf16> block;
    const int64_t left = list.count - begin;
    find_block(c, list, decoded, begin, left < kBlockKeys ? left : kBlockKeys, block);
    pack_keys(s, block, none, c.q.dim(2));
    pack_values(s, block, c.o.dim(2));
    attend_block(s, count, begin, c.scale);
  }
  const int64_t R = sparse_mla::turned_channels(c);
  if (R > 0) turn_back(c.table.row<const float>(position_of(c.positions, t)), R, decoded.back);
  for (int64_t i = 0; i < count; ++i)
    store_head(c, s, decoded.back, i, t, head + i);
}

}  // namespace fathom::avx512
