// One row of a paged cache in the formats of sparse attention: how its channels become fields, and
// back. The kernels that write such rows share it, and those that read them may.
//
// A row of d channels is one, two or three fields, each a view [pages, rows, width] with strides of
// its own, as PageCodec::view gives them: `values`, `rope` (the last R channels, kept in bf16) and
// `scales` (one for each group of value channels). Their formats name the row:
//
//   values        rope   scales            value =             row
//   bf16|f32 [d]  -      -                 values              dense
//   e4m3 [d-R]    bf16?  ue8m0 [G]         code * 2^(byte-127) V4 ("fp8_ds_mla"): 448, 64, 7
//   e4m3 [d-R]    bf16?  f32 [G]           code * scale        V3.2 latent: 512, 64, 4; index key:
//                                                              128, -, 1
//   u8 [(d-R)/2]  bf16?  e4m3 [(d-R)/16]   code * scale        NVFP4 without global scale: 224, 64,
//                                                              28
//   u8 [(d-R)/2]  bf16?  ue8m0 [(d-R)/32]  code * 2^(byte-127) MXFP4 index key: 64, -, 4
//
// u8 holds two E2M1 codes, the even channel in the low nibble. G divides d-R. So a page of V4 is
//
//   byte 0 ........ B*576                                          | B*576 ........ B*584
//        row j at j*576: [ 448 x e4m3 | 64 x bf16 ]                | row j at +j*8: 7 x ue8m0, 1
//        pad
//
// and a row of V3.2, in one plane of 656 bytes: [ 512 x e4m3 | 4 x f32 | 64 x bf16 ]. Pads are
// never touched.
//
// A row that is quantised is first rounded to bf16, channel by channel. Then, over each group, with
// amax = max |x| (NaN left out):
//
//   e4m3    scale by CacheScale;                                code = e4m3(x / scale)
//   NVFP4   scale = e4m3(amax * (1/6));                         code = e2m1(x * (1 / scale)), 0 if
//                                                               the scale is 0
//   MXFP4   scale = 2^ceil(log2(amax / 6)), 2^-126 at least;    code = e2m1(x / scale)
//
// Codes round to nearest even and saturate; the code of NaN is NaN in e4m3 and 6 in e2m1.
//
// Sources: deepseek-ai/FlashMLA (tests/quant.py), vLLM, SGLang (row formats); DeepSeek-V4,
// inference/kernel.py (act_quant, fp4_act_quant).
#pragma once

#include <cstdint>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// The scale of a group of e4m3 codes.
enum class CacheScale : uint8_t {
  kPowerOfTwo,  ///< 2^ceil(log2(max(amax, 1e-4) / 448)): V4, and the keys of indexers
  kAmax,        ///< max(amax / 448, smallest normal float), for f32 scales: the latent of V3.2
};

/// The fields of a row; rope and scales are left out where the row has none.
struct CacheFields {
  View values;
  View rope = {};
  View scales = {};
};

/// InvalidArgument unless the fields are one of the rows above, of `channels` channels.
Status check_cache_row(const CacheFields& fields, int64_t channels, CacheScale scale);

/// InvalidArgument unless every slot is -1 or a slot of the field; passes when there is no data.
Status check_row_slots(std::string_view name, const View& slots, const View& field);

/// Bytes that one row takes in its fields.
int64_t cache_row_bytes(const CacheFields& fields);

enum class CacheRowFormat : uint8_t { kBf16, kF32, kFp8, kNvfp4, kMxfp4 };

/// The rows of checked fields: their format and where they are.
struct CodedRows {
  CacheFields fields;
  CacheScale scale = CacheScale::kPowerOfTwo;
  CacheRowFormat format = CacheRowFormat::kBf16;
  int64_t num_values = 0;  ///< channels in `values`
  int64_t num_rope = 0;    ///< channels in `rope`, behind them
  int64_t group = 0;       ///< channels of a scale
};

CodedRows cache_rows(const CacheFields& fields, CacheScale scale = CacheScale::kPowerOfTwo);

/// Writes the channels x to the row of that slot (page * rows + row). One rounding to bf16 or f32;
/// quantised rows as above. The AVX-512 form has the same bits.
void store_cache_row(const CodedRows& rows, int64_t slot, const float* x);

/// Reads the row of that slot: x = value, one float32 product a channel.
void load_cache_row(const CodedRows& rows, int64_t slot, float* x);

namespace avx512 {
void store_cache_row(const CodedRows& rows, int64_t slot, const float* x);
void load_cache_row(const CodedRows& rows, int64_t slot, float* x);
}  // namespace avx512

}  // namespace fathom
