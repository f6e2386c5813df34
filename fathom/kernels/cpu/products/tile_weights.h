// Weights as tiles of bf16 for tile_loops.h: tiles of sixteen pairs of k by sixteen rows, in order
// of k, padded with zeros to whole tiles. Pairs of bf16 in layout kRows16 are that already; codes
// are decoded, which a call does once for every block of rows of x.
//
// A Weights type has
//   kInPlace       chunks of whole tiles are used where they lie
//   kBlockScales   sums of 128 k are multiplied by p.scales
//   kHasGlobal     results are multiplied by the global scale of their group
//   at             first byte of column k of a group, k a multiple of kTileChunkK; groups count
//                  through all matrices
//   decode         tiles of a chunk; asks for the bytes at `next`, which will be read soon
//
// The functions are always inline: files of several instruction sets include this.
#pragma once

#include <cstdint>
#include <cstring>

#include "fathom/formats/layout/super_tile.h"
#include "fathom/kernels/cpu/products/products.h"

namespace fathom {

/// E4M3 codes of `quads` times four k, exactly. Writes 128 bytes a quad.
void decode_fp8_tiles_amx(const uint8_t* codes, int64_t quads, const uint8_t* next, uint8_t* out);

/// E2M1 codes times their block scales, exactly, with the sign of a zero lost. Scales must be 0x00
/// to 0x7E, as E4M3 without a sign; writes 2 KiB for each super-tile of 64 k.
void decode_nvfp4_tiles_amx(const uint8_t* super_tiles,
                            int64_t count,
                            const uint8_t* next,
                            uint8_t* out);

/// E4M3 codes times 2^e, exactly where bf16 has it; what is below 2^-126 becomes subnormal, what is
/// 2^128 or more infinite. Writes 4 KiB for each super-tile of 128 k.
void decode_mxfp8_tiles_amx(const uint8_t* super_tiles,
                            int64_t count,
                            const uint8_t* next,
                            uint8_t* out);

/// Does an item of few rows in vectors, to the bits of tiles (few_row_loops.h). False, and nothing
/// done, where the item is one for tiles.
bool fp8_few_rows_amx(const Products& p, const WorkItem& item, void* scratch);
bool nvfp4_few_rows_amx(const Products& p, const WorkItem& item, void* scratch);
bool mxfp8_few_rows_amx(const Products& p, const WorkItem& item, void* scratch);

struct Bf16TileWeights {
  static constexpr bool kInPlace = true;
  static constexpr bool kBlockScales = false;
  static constexpr bool kHasGlobal = false;

  [[gnu::always_inline]] static const uint8_t* at(const Products& p, int64_t group, int64_t k) {
    return p.tiles + group * p.group_bytes + k * 32;
  }

  /// Copies a chunk that ends within a tile.
  [[gnu::always_inline]] static void decode(const Products& p,
                                            int64_t group,
                                            int64_t k0,
                                            int64_t columns,
                                            const uint8_t* next,
                                            uint8_t* out) {
    __builtin_prefetch(next, 0, 2);
    const int64_t bytes = (columns + 1) / 2 * 64;
    const int64_t whole = (columns + 31) / 32 * 1024;
    std::memcpy(out, at(p, group, k0), static_cast<size_t>(bytes));
    std::memset(out + bytes, 0, static_cast<size_t>(whole - bytes));
  }
};

struct Fp8TileWeights {
  static constexpr bool kInPlace = false;
  static constexpr bool kBlockScales = true;
  static constexpr bool kHasGlobal = false;

  [[gnu::always_inline]] static const uint8_t* at(const Products& p, int64_t group, int64_t k) {
    return p.tiles + group * p.group_bytes + k * 16;
  }

  [[gnu::always_inline]] static void decode(const Products& p,
                                            int64_t group,
                                            int64_t k0,
                                            int64_t columns,
                                            const uint8_t* next,
                                            uint8_t* out) {
    const int64_t quads = (columns + 3) / 4;
    const int64_t whole = (columns + 31) / 32 * 1024;
    decode_fp8_tiles_amx(at(p, group, k0), quads, next, out);
    std::memset(out + quads * 128, 0, static_cast<size_t>(whole - quads * 128));
  }
};

struct Nvfp4TileWeights {
  static constexpr bool kInPlace = false;
  static constexpr bool kBlockScales = false;
  static constexpr bool kHasGlobal = true;

  [[gnu::always_inline]] static const uint8_t* at(const Products& p, int64_t group, int64_t k) {
    return p.tiles + group * p.group_bytes + k / kSuperTileK * kSuperTileBytes;
  }

  [[gnu::always_inline]] static void decode(const Products& p,
                                            int64_t group,
                                            int64_t k0,
                                            int64_t columns,
                                            const uint8_t* next,
                                            uint8_t* out) {
    decode_nvfp4_tiles_amx(at(p, group, k0), (columns + 63) / 64, next, out);
  }
};

struct Mxfp8TileWeights {
  static constexpr bool kInPlace = false;
  static constexpr bool kBlockScales = false;
  static constexpr bool kHasGlobal = false;

  [[gnu::always_inline]] static const uint8_t* at(const Products& p, int64_t group, int64_t k) {
    return p.tiles + group * p.group_bytes + k / kMxfp8TileK * kMxfp8TileBytes;
  }

  [[gnu::always_inline]] static void decode(const Products& p,
                                            int64_t group,
                                            int64_t k0,
                                            int64_t columns,
                                            const uint8_t* next,
                                            uint8_t* out) {
    decode_mxfp8_tiles_amx(at(p, group, k0), (columns + 127) / 128, next, out);
  }
};

}  // namespace fathom
