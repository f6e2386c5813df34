// kRows16: the weight layout of the CPU kernels. Sixteen output rows lie in the sixteen 32-bit
// lanes of a 512-bit vector, so a product needs no horizontal sum, and the stream of one row group
// is read once from front to back. A matrix [N, K] is ceil(N/16) groups; missing rows are zero.
//
// bf16    group g, pair p = k/2:   64 bytes    lane r = (w[16g+r][2p], w[16g+r][2p+1])
//         group bytes: ceil(K/2) * 64          (the B operand of an AMX bf16 tile as well)
//
// fp8     group g, quad p = k/4:   64 bytes    E4M3 codes, in four 16-byte parts L = 0..3:
//         byte 16L + 2j   = w[16g+4L+j][4p]      byte 16L + 2j + 1 = w[16g+4L+j][4p+1]    j = 0..3
//         byte 16L+8 + 2j = w[16g+4L+j][4p+2]    ...           + 1 = w[16g+4L+j][4p+3]
//         group bytes: ceil(K/4) * 64; scales: float32 [groups][ceil(K/128)], global: none
//
// nvfp4   group g, super-tile s = k/64:   576 bytes = 4 tiles of 128 bytes, then 64 scale bytes
//         tile i (k = 64s+16i .. +15): two vectors z = 0, 1 of 32 16-bit lanes; 16-bit lane
//         2r+p of vector z holds four codes, nibble n (low first) = k 64s + 16i + 8z + 2n + p
//         scale byte 16i + r = E4M3 scale of row r, tile i
//         group bytes: ceil(K/64) * 576; global: float32 [groups]
//
// mxfp4   the same tiles, so that one loop serves both: of a row's scale per 32 k, 2^e, the two
//         blocks of 16 k get 2^(e-g) in E4M3 each, and the global scale of the group is 2^g. That
//         is exact while e-g is -9 to 8, that is while the exponents of 16 rows lie within 17 of
//         each other (check_mxfp4_tiles). Blocks of zeros get scale 0 and do not count.
//
// mxfp8   group g, super-tile s = k/128:  2112 bytes = 32 quads as those of fp8, then 64 scale
// bytes
//         scale byte 16i + r = UE8M0 scale of row r, k = 128s+32i .. +31
//         group bytes: ceil(K/128) * 2112; scales: none, global: none
//
// f32     row-major within the group is not needed: float32 weights stay row-major.
//
// A row group has one global scale, so matrices of different per-tensor scales can be stacked.
#pragma once

#include <cstdint>
#include <span>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"

namespace fathom {

inline constexpr int64_t kTileRows = 16;

/// True for the formats that have a kRows16 form: bf16, fp8_block, fp8_block_ue8m0, nvfp4, mxfp4,
/// mxfp8.
bool has_rows16(Format format);

/// True if a group of 16 rows has a global scale: nvfp4 and mxfp4.
bool rows16_has_global(Format format);

/// Bytes of the tile stream of one group of 16 rows of k columns.
int64_t rows16_group_bytes(Format format, int64_t k);

/// float32 scales per group of 16 rows: ceil(k/128) for fp8_block and fp8_block_ue8m0, 0 otherwise.
int64_t rows16_group_scales(Format format, int64_t k);

/// One matrix in checkpoint layout (row-major, weights/checkpoint/linear_format.h): values packed
/// along K; scales in the format's scale type; global only for nvfp4 (1 otherwise).
struct RowMajorMatrix {
  Format format = Format::kNone;
  int64_t n = 0;
  int64_t k = 0;
  const void* values = nullptr;
  const void* scales = nullptr;
  float global = 1.0f;
};

/// Where rows16 data goes or comes from.
struct Rows16Matrix {
  Format format = Format::kNone;
  int64_t n = 0;  ///< rows; storage covers align_up(n, 16)
  int64_t k = 0;
  void* tiles = nullptr;
  float* scales = nullptr;  ///< fp8: [groups][ceil(k/128)]
  float* global = nullptr;  ///< nvfp4, mxfp4: [groups]
};

/// Whether the scales of an mxfp4 matrix can be written in tiles exactly. Errors: Unsupported for
/// a scale that is NaN (byte 255), and for a group of 16 rows, counted from row 0, with exponents
/// too far apart; the message calls row 0 `first_row`.
Status check_mxfp4_tiles(const RowMajorMatrix& src, int64_t first_row);

/// Packs row groups [group_begin, group_end) of `src` into `dst`. dst.n == src.n, dst.k == src.k.
/// Rows past n become zero. mxfp4 must have passed check_mxfp4_tiles. Thread-safe for disjoint
/// ranges.
void pack_rows16(const RowMajorMatrix& src,
                 const Rows16Matrix& dst,
                 int64_t group_begin,
                 int64_t group_end);

/// Row `row` of a rows16 matrix as float32: code * (scale * global scale), as block_fp4.h and
/// block_fp8.h define it. The plain definition of the layout; kernels are tested against it.
void decode_rows16_row(const Rows16Matrix& src, int64_t row, std::span<float> out);

/// True for floats of at most 32 bits, int8, and the quantised formats without zero points (not the
/// int4 ones): the matrices that decode_row_major_row reads.
bool can_decode_rows(Format format);

/// Row `row` of a checkpoint-layout matrix as float32, the same bits as decode_rows16_row, for the
/// formats that can_decode_rows names.
void decode_row_major_row(const RowMajorMatrix& src, int64_t row, std::span<float> out);

}  // namespace fathom
