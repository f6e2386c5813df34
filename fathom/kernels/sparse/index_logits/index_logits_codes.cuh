// Rows of 128 codes as the lanes of a warp hold and multiply them, and queries in shared memory.
//
// The order of channels is free as long as both sides agree. A lane's words of a key are neighbours
// in memory, 32 codes of lane t = lane % 4 in eight words:
//
//   e4m3   word i < 4: channels 16 t + 4 i ..;   i >= 4: channels 64 + 16 t + 4 (i - 4) ..
//   e2m1   word i:     channels 32 t + 4 i ..    (a group with one scale)
//
// Words 2 s and 2 s + 1 go into step s, so word i of lane t is word 8 (i / 2) + 4 (i % 2) + t of a
// row of queries in shared memory.
//
// e2m1 codes become e4m3 codes with the scale of their group in the exponent, relative to the
// largest scale of the row, which multiplies the sum. Exact for groups down to 2^-14 of the
// largest; what lies below counts as zero. Sums of products keep 14 bits (the hardware's), which
// holds those of e2m1 rows with scales near each other exactly.
#pragma once

#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_as_e4m3.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_cuts.cuh"

namespace fathom::index_logits {

inline constexpr int kTileKeys = 64;
inline constexpr int kWarpKeys = kTileKeys / 4;  ///< of a warp
inline constexpr uint32_t kQueryBytes = kMostHeads * kChannels;

static_assert(kChannels == cuda::kPanelRowBytes, "a row of codes is a row of a panel");

// ---- rows of codes ----

/// Where word i of lane t lies in a row of queries, in words.
__device__ __forceinline__ int query_word(int t, int i) {
  return 8 * (i >> 1) + 4 * (i & 1) + t;
}

/// Two rows of a lane as e4m3 codes, and what says a factor of their sums.
struct DecodedRows {
  uint32_t words[2][8];
  uint32_t scales[2];

  /// The factor of the row whose sums a lane has in the end (weigh_heads).
  template <class Rows>
  __device__ float factor() const {
    return Rows::factor((cuda::lane_id() & 1) != 0 ? scales[1] : scales[0]);
  }
};

/// e4m3 as it is. A key has a factor of its own in float32.
struct E4m3Rows {
  static constexpr int kChunks = 2;   ///< of sixteen bytes, of a lane and row
  static constexpr int kBuffers = 2;  ///< tiles of keys in registers
  static constexpr bool kGroups = false;

  /// Bytes from the start of a row to chunk `chunk` of lane t.
  static __device__ int chunk_offset(int t, int chunk) { return 64 * chunk + 16 * t; }

  static __device__ __forceinline__ void decode(const uint4 (&chunks)[2][kChunks],
                                                const uint32_t (&scales)[2],
                                                DecodedRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        rows.words[h][4 * c] = chunks[h][c].x;
        rows.words[h][4 * c + 1] = chunks[h][c].y;
        rows.words[h][4 * c + 2] = chunks[h][c].z;
        rows.words[h][4 * c + 3] = chunks[h][c].w;
      }
      rows.scales[h] = scales[h];
    }
  }

  static __device__ float factor(uint32_t scale) {
    return __uint_as_float(scale);
  }
};

/// e4m3 codes of the magnitudes 0 .5 1 1.5 | 2 3 4 6 times 2^(6 - steps).
struct MagnitudeCodes {
  uint32_t low;
  uint32_t high;

  /// From here on 0.5 would have an exponent of zero.
  static constexpr uint32_t kFirstSubnormal = 12;

  __device__ explicit MagnitudeCodes(uint32_t steps)
      : low(0x6C686000u - steps * 0x08080800u), high(0x7C787470u - steps * 0x08080808u) {}

  /// The same for any number of steps; zeros from 15 on.
  __device__ void mend(uint32_t steps) {
    if (steps < kFirstSubnormal) return;
    low = steps == 12 ? 0x0C080400u : steps == 13 ? 0x06040200u : steps == 14 ? 0x03020100u : 0;
    high = steps == 12 ? 0x1C181410u : steps == 13 ? 0x14100C08u : steps == 14 ? 0x0C080604u : 0;
  }
};

/// e2m1 with a scale for each 32 channels, those of a lane.
struct E2m1Rows {
  static constexpr int kChunks = 1;
  static constexpr int kBuffers = 3;
  static constexpr bool kGroups = true;

  static __device__ int chunk_offset(int t, int) { return 16 * t; }

  /// By whole warps: the lanes of a quad have the four groups of a row.
  static __device__ __forceinline__ void decode(const uint4 (&chunks)[2][kChunks],
                                                const uint32_t (&scales)[2],
                                                DecodedRows& rows) {
    const auto t = static_cast<uint32_t>(cuda::lane_id() % 4);
    // Sixteen bits a row: the lane's scale, the largest of the row, steps from that to this.
    const uint32_t own =
        cuda::permute_bytes(scales[0], scales[1], t * 0x1111u + 0x4400u) & 0x00FF00FFu;
    uint32_t most = __vmaxu2(own, __shfl_xor_sync(kAllLanes, own, 1));
    most = __vmaxu2(most, __shfl_xor_sync(kAllLanes, most, 2));
    const uint32_t steps = most - own;
    MagnitudeCodes codes[2] = {MagnitudeCodes(steps & 0xFFFFu), MagnitudeCodes(steps >> 16)};
    constexpr uint32_t kToTop = 0x8000u - MagnitudeCodes::kFirstSubnormal;
    if (((steps + kToTop * 0x10001u) & 0x80008000u) != 0) {
      codes[0].mend(steps & 0xFFFFu);
      codes[1].mend(steps >> 16);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t packed[4] = {chunks[h][0].x, chunks[h][0].y, chunks[h][0].z, chunks[h][0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        constexpr uint32_t kMagnitudes = 0x77777777u;
        constexpr uint32_t kSigns = 0x80808080u;
        const uint32_t w = packed[i];
        const uint32_t up = w << 4;  // signs of even codes at the top of their byte
        const uint32_t sizes = w & kMagnitudes;
        rows.words[h][2 * i] = cuda::permute_bytes(codes[h].low, codes[h].high, sizes) |
                               (cuda::permute_bytes(up, w, 0xD9C8u) & kSigns);
        rows.words[h][2 * i + 1] = cuda::permute_bytes(codes[h].low, codes[h].high, sizes >> 16) |
                                   (cuda::permute_bytes(up, w, 0xFBEAu) & kSigns);
      }
      rows.scales[h] = most >> 16 * h & 255u;
    }
  }

  /// Of a row whose largest scale has this byte: NaN if that is.
  static __device__ float factor(uint32_t scale) {
    return to_float(Ue8m0{static_cast<uint8_t>(scale)}) * 0x1p-6f;
  }
};

// ---- queries in shared memory ----

inline constexpr uint32_t kAtom = 1024;  ///< bytes that the swizzle of panels is aligned to
inline constexpr int kWeightsOfLane = 16;

/// The queries of a block.
struct QueryMemory {
  std::byte* codes;  ///< [queries][64 heads][128], swizzled
  float* weights;    ///< [queries][lane % 4][16 heads in the order of a lane's sums]

  static constexpr uint32_t kBytes = kQueryBytes + 4 * kWeightsOfLane * sizeof(float);  ///< of one

  __device__ __forceinline__ std::byte* codes_of(int query) const {
    return codes + static_cast<uint32_t>(query) * kQueryBytes;
  }

  __device__ __forceinline__ float* weights_of(int query, int quarter) const {
    return weights + (query * 4 + quarter) * kWeightsOfLane;
  }
};

/// That of a block, at the first atom of its shared memory.
__device__ __forceinline__ QueryMemory query_memory(unsigned char* shared, int queries) {
  auto* codes =
      reinterpret_cast<std::byte*>(shared + (kAtom - cuda::shared_address(shared) % kAtom) % kAtom);
  return {codes, reinterpret_cast<float*>(codes + static_cast<uint32_t>(queries) * kQueryBytes)};
}

/// Lays `count` queries out from token t on, as keys are decoded: a lane has the same part of heads
/// `head` and `head` + 32. Heads that do not exist have codes and weights of zero.
template <class Rows>
__device__ void load_queries(const Call& c, int t, int count, const QueryMemory& queries) {
  const auto tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 4;
  const int head = tid / 4;
  constexpr int kApart = kThreads / 4;
  static_assert(2 * kApart == kMostHeads, "two heads a thread are all");
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    uint4 chunks[2][Rows::kChunks];
    uint32_t scales[2] = {};
    float weights[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = head + kApart * h;
#pragma unroll
      for (int chunk = 0; chunk < Rows::kChunks; ++chunk)
        chunks[h][chunk] = make_uint4(0, 0, 0, 0);
      if (at >= c.H) continue;
      const std::byte* row = c.q.at(t + i, at);
#pragma unroll
      for (int chunk = 0; chunk < Rows::kChunks; ++chunk)
        chunks[h][chunk] = cuda::load_16(row + Rows::chunk_offset(lane, chunk), cuda::kEvictNormal);
      if constexpr (Rows::kGroups) scales[h] = load_bytes(c.q_scales.at(t + i, at));
      // Half, since x + |x| is twice what a negative x is cut off to.
      weights[h] = 0.5f * c.w[t + i][at];
    }
    DecodedRows rows;
    Rows::decode(chunks, scales, rows);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = head + kApart * h;
#pragma unroll
      for (int word = 0; word < 8; ++word) {
        const int place = query_word(lane, word);
        const uint32_t offset =
            cuda::panel_offset(at, place / 4) + static_cast<uint32_t>(place % 4) * 4;
        *reinterpret_cast<uint32_t*>(queries.codes_of(i) + offset) = rows.words[h][word];
      }
      if constexpr (Rows::kGroups) weights[h] *= Rows::factor(rows.scales[h]);
      if (lane == 0) queries.weights_of(i, at / 2 % 4)[at / 8 * 2 + at % 2] = weights[h];
    }
  }
}

}  // namespace fathom::index_logits
